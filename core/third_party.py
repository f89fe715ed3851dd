"""What a library that work is handed to fails with, in one line: what it says, and the way on."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

from core.masking import SECRET_FROM, mask_message

ROOMS = tuple(f"{Path(__file__).parents[1] / room}{os.sep}" for room in ("core", "serve", "data_prep", "train", "evalsuite"))
# Import name → what people call it. A failure in what is not listed is a fault of ours, and its traceback is wanted.
LIBRARIES = {
    "accelerate": "Accelerate",
    "bert_score": "bert-score",
    "datasets": "Datasets",
    "deepspeed": "DeepSpeed",
    "evaluate": "Evaluate",
    "huggingface_hub": "the Hugging Face hub's client",
    "inspect_ai": "Inspect AI",
    "lm_eval": "lm-eval",
    "nltk": "NLTK",
    "peft": "PEFT",
    "sacrebleu": "sacreBLEU",
    "safetensors": "safetensors",
    "tokenizers": "Tokenizers",
    "trackio": "trackio",
    "transformers": "Transformers",
    "trl": "TRL",
    "verifiers": "verifiers",
    "vllm": "vLLM",
    "wandb": "Weights & Biases",
}
DEBUG = "ESC_EVAL_DEBUG"
# Words in the names of exceptions, or in what they say → what to do. The first that fits.
_REMEDIES = {
    ("OfflineModeIsEnabled", "LocalEntryNotFound", "HF_HUB_OFFLINE", "couldn't connect to", "ConnectError", "MaxRetryError"): (
        "the network or the hub cannot be reached: give a folder on this machine, or run the same command when it is back"
    ),
    ("RepositoryNotFound", "GatedRepo", "is not a valid model identifier", "401 Client Error", "403 Client Error"): (
        "check the name; what is private or gated needs `hf auth login`, or the variable HF_TOKEN"
    ),
    ("UsageError", "No API key", "api_key not configured"): "log in (`wandb login`), or train without: --report_to none",
    ("OutOfMemory", "MemoryError", "out of memory", "can't allocate memory"): (
        "less at once needs less memory: smaller batches, shorter texts, a smaller model"
    ),
    (
        "ModuleNotFoundError",
        "ImportError",
    ): "a package is missing or too old: install the one that is named, by the extra that has it",
    ("No space left", "Disk quota"): "make room, and run the same command again to resume",
}


def explained(error: BaseException) -> str | None:
    """One line on a failure inside a library that we called; None for one of our own.

    The library is the one that our code called last. Memory that runs out is told wherever it happens.
    """
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    last = max((place for place, name in enumerate(frames) if name.startswith(ROOMS)), default=-1)
    called = Path(frames[last + 1]).parts if 0 <= last < len(frames) - 1 else ()
    library = next((name for part, name in LIBRARIES.items() if part in called or f"{part}.py" in called), None)
    told = [f"{type(part).__name__}: {part}" for part in _chain(error)]
    remedy = next((advice for words, advice in _REMEDIES.items() if any(word in text for text in told for word in words)), None)
    if library is None and "memory" not in (remedy or ""):
        return None
    said = told[0]
    for name, value in os.environ.items():
        if len(value) >= SECRET_FROM and any(word in name.upper() for word in ("KEY", "TOKEN", "SECRET", "PASSW")):
            said = mask_message(said, value)
    said = " ".join(said.split())[:300]
    way_on = remedy or "fix it, and the same command resumes"
    return f"{library or 'this machine'} failed: {said}. What to do: {way_on}. {DEBUG}=1 shows the traceback"


def _chain(error: BaseException) -> list[BaseException]:
    """The error, and what it came from."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None and before not in chain:
        chain.append(before)
    return chain
