"""Training of ESC-Role and ESC-RANK (LoRA)."""

import os
import warnings

# TRL would set ERROR for this process and what it starts. A server's log, which is read, then lacks what its cache
# holds.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO")

# TRL 1.16 names vLLM up to 0.31; what it asks of the one that is pinned is there (tests/train/test_trl_and_vllm.py).
warnings.filterwarnings("ignore", "TRL currently supports vLLM", UserWarning)
