"""wandb for training and reports: optional, offline without a key, never asking for one."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit


def offline_without_key(say: Callable[[str], None]) -> None:
    """Make wandb write offline (WANDB_MODE=offline), and `say` so, if there is no key and no mode was chosen. A key is
    WANDB_API_KEY, or an entry for the server (WANDB_BASE_URL or wandb's own) in ~/.netrc."""
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    netrc = ""
    with suppress(OSError, RuntimeError):  # RuntimeError: no home folder
        netrc = (Path.home() / ".netrc").read_text(encoding="utf-8")
    if "WANDB_MODE" not in os.environ and not os.environ.get("WANDB_API_KEY") and host not in netrc:
        os.environ["WANDB_MODE"] = "offline"
        say("wandb: no key, writing offline (WANDB_MODE=offline)")
