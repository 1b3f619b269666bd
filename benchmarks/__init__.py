"""Time and memory, measured side by side in one process: `python -m benchmarks.training_step`."""
