"""Whether judges can be trusted, and what dialogues must not pass over."""
