"""Nothing is downloaded, and the libraries say nothing about it."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
