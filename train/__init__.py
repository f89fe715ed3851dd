"""Training of ESC-Role and ESC-RANK (LoRA)."""
