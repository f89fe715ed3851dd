"""Failures inside third-party libraries in one line: the library's message and what to do."""

import os
import traceback
from pathlib import Path

from core.masking import SECRET_FROM, mask_message

ROOMS = tuple(f"{Path(__file__).parents[1] / room}{os.sep}" for room in ("core", "serve", "data_prep", "train", "evalsuite"))
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
