"""The verbs of `esc-eval people`."""
