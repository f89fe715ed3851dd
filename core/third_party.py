"""Third-party libraries and programs: their failures in one line with what to do, wandb without a key, a commit in git."""

import os
import subprocess
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from core.masking import SECRET_FROM, mask_message

ROOT = Path(__file__).parents[1]
ROOMS = tuple(f"{ROOT / room}{os.sep}" for room in ("core", "serve", "data_prep", "train", "evalsuite"))
# A failure in any other library is taken for a bug of ours, with its traceback.
LIBRARIES = (
    *("accelerate", "bert_score", "datasets", "deepspeed", "evaluate", "huggingface_hub", "inspect_ai", "lm_eval", "nltk"),
    *("peft", "sacrebleu", "safetensors", "tokenizers", "trackio", "transformers", "trl", "verifiers", "vllm", "wandb"),
)
# Words in the names or messages of exceptions → what to do. The first match counts.
_REMEDIES = {
    ("OfflineModeIsEnabled", "LocalEntryNotFound", "HF_HUB_OFFLINE", "couldn't connect to", "ConnectError", "MaxRetryError"): (
        "the network or the hub cannot be reached: give a folder on this machine, or run the same command when it is back"
    ),
    ("RepositoryNotFound", "GatedRepo", "is not a valid model identifier", "401 Client Error", "403 Client Error"): (
        "check the name; a private or gated repository needs `hf auth login`, or the variable HF_TOKEN"
    ),
    ("UsageError", "No API key", "api_key not configured"): "log in (`wandb login`), or train without: --report_to none",
    ("OutOfMemory", "MemoryError", "out of memory", "can't allocate memory"): (
        "use less memory: smaller batches, shorter texts, a smaller model"
    ),
    ("ModuleNotFoundError", "ImportError"): "a package is missing or too old: install it with the extra that contains it",
    ("No space left", "Disk quota"): "make room, and run the same command again to resume",
}


def explained(error: BaseException) -> str | None:
    """A line about a failure in the library that our code called last, or a lack of memory; None for a failure of our own."""
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    last = max((place for place, name in enumerate(frames) if name.startswith(ROOMS)), default=-1)
    called = Path(frames[last + 1]).parts if 0 <= last < len(frames) - 1 else ()
    library = next((name for name in LIBRARIES if name in called or f"{name}.py" in called), None)
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    texts = [f"{type(part).__name__}: {part}" for part in chain]
    remedy = next((advice for words, advice in _REMEDIES.items() if any(word in line for line in texts for word in words)), "")
    if library is None and "memory" not in remedy:
        return None
    message = texts[0]
    for name, value in os.environ.items():
        if len(value) >= SECRET_FROM and any(word in name.upper() for word in ("KEY", "TOKEN", "SECRET", "PASSW")):
            message = mask_message(message, value)
    message, advice = " ".join(message.split())[:300], remedy or "fix it, and the same command resumes"
    return f"{library or 'this machine'} failed: {message}. What to do: {advice}"


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


@cache
def git_revision(root: Path = ROOT) -> str | None:
    """The commit of a checkout (default: of this package), with `+changes` if tracked files differ; None if it is not one."""
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        return f"{head}+changes" if _git(root, "status", "--porcelain", "--untracked-files=no") else head
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *command: str) -> str:
    # Run no program that somebody else's clone names: `status` would start its fsmonitor.
    line = ["git", "-C", str(root), "-c", "core.fsmonitor=false", *command]
    return subprocess.run(line, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
