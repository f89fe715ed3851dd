"""Benchmarks: `make bench` runs them all; figures are medians with their spread, ratios are taken within one run."""
