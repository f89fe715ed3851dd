"""The verbs of `esc-eval paper`."""
