"""Bridges to other libraries: Hugging Face transformers and peft, and Lightning. Import the modules by name."""
