"""Model directories: fitted estimators as files, written atomically and loaded without executing code.

A directory contains `config.json` (settings, with checksums of itself and of the other files), `weights.safetensors`,
`preprocessing.skops`, and possibly companions such as a report, which loading ignores.
"""

from bayesify.persistence.directory import CHECKPOINT, check_destination, load_config
from bayesify.persistence.lock import locked
from bayesify.persistence.model import load_model, save_model

__all__ = ["CHECKPOINT", "check_destination", "load_config", "load_model", "locked", "save_model"]
