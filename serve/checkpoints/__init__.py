"""Models as files: the embedded model, adapters and merging, conversions (InternLM2, ChatGLM), folders, model cards."""
