"""FDAEF: a benchmark described in YAML as capabilities, tasks, datasets and methods, its scores added up to one."""
