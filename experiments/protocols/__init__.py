"""One module per kind of experiment. Importing this package fills `Protocol.registry`."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
