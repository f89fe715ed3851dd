"""Training of ESC-Role and ESC-RANK (LoRA)."""

import warnings

# TRL 1.16 names vLLM up to 0.31; what it asks of the one that is pinned is there (tests/train/test_trl_and_vllm.py).
warnings.filterwarnings("ignore", "TRL currently supports vLLM", UserWarning)
