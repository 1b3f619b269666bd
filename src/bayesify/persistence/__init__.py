"""Model directories: a fitted estimator as plain files, written in one piece or not at all; loading executes nothing.

A directory holds `config.json` (everything one can read, with checksums of itself and of the other files), `weights.safetensors`
and `preprocessing.skops`, and possibly companions such as a report, which loading ignores.
"""

from bayesify.persistence.directory import CHECKPOINT, ModelError, check_destination, load_config
from bayesify.persistence.model import load_model, save_model

__all__ = ["CHECKPOINT", "ModelError", "check_destination", "load_config", "load_model", "save_model"]
