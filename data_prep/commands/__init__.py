"""The command line of data_prep: one module per group of verbs, with options and printing; the work is done elsewhere."""
