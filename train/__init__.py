"""Training of ESC-Role and ESC-RANK (LoRA)."""

import os
import warnings

# TRL would set ERROR for this process and its children. Then a server's log, which we parse, would lack the size of its cache.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO")

# TRL 1.16 lists vLLM up to 0.31; the pinned version has all that it uses (tests/train/test_supporter.py).
warnings.filterwarnings("ignore", "TRL currently supports vLLM", UserWarning)
