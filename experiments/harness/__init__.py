"""What every experiment needs and none should write: configuration, results, running, reports."""
