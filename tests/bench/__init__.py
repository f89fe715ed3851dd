"""Benchmarks: `make bench` runs them all, `python -m tests.bench PART` one; figures are medians with their spread, ratios are
taken within one run."""
