"""A run folder: its config, who may write in it, its parts and its versions."""
