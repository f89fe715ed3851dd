"""What follows one paper: its framework, its procedure beyond a run, and its tables. The harness imports none of it."""
