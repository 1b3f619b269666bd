"""bayesify makes any PyTorch network say how sure it is."""

TYPE_CHECKING = False  # type checkers take it as True; `typing` is not imported so that the command line starts at once

if TYPE_CHECKING:
    from bayesify._public import *  # noqa: F403

__version__: str

if not TYPE_CHECKING:  # a type checker would take a module with __getattr__ to have every attribute
    try:
        from bayesify._version import __version__  # written by the build, with the version from git
    except ModuleNotFoundError:
        __version__ = "0.1.0+source"  # sources that were not built; as fallback-version in pyproject.toml

    # PyTorch is imported with the first public name, so that the command line can show its help or an error without it.

    def __getattr__(name: str) -> object:
        """Import submodules and public names on first use (PEP 562)."""
        from importlib import import_module
        from importlib.util import find_spec

        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if find_spec(f"{__name__}.{name}") is not None:
            return import_module(f"{__name__}.{name}")
        public = import_module(f"{__name__}._public")
        if name != "__all__" and name not in public.__all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # All at once: importing the methods fills `Method.registry`.
        globals().update({"__all__": public.__all__, **{each: getattr(public, each) for each in public.__all__}})
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
