"""What is specific to one paper: its framework, its procedures beyond a run, and its tables. The harness imports none of it."""
