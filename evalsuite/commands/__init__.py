"""One module a verb (or a few that belong together) of `esc-eval`; evalsuite.cli registers them."""
