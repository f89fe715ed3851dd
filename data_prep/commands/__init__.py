"""The command line of data_prep: one module a group of verbs, holding options and what is printed; the work is elsewhere."""
