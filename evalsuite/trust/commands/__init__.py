"""`esc-eval judge-card`, `power`, `fork` and `study`."""
