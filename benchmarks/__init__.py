"""Time and memory of bayesify and reference implementations: `python -m benchmarks`."""
