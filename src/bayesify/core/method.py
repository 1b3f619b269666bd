"""Stand-in for the module that the rebuilt core brings under this name; to be replaced by it."""

from bayesify.core.posterior import Method

__all__ = ["Method"]
