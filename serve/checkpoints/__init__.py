"""Models as files: the embedded model, adapters and their merging, InternLM2, folders, model cards."""
