"""The records in a trained model's folder: `training.json` for programs, `README.md` (a model card) for people."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jinja2
import orjson
import yaml
from pydantic import Field

from core.errors import UserError, need_modules
from core.files import read_object, validated, write_json, write_text
from core.hub import Publication, licence_fields
from core.settings import Settings
from core.specs import load_spec, model_names
from serve.checkpoints.lora import CONFIG, WEIGHTS
from serve.checkpoints.places import on_hub

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

TRAINING, CARD = "training.json", "README.md"
PLAYS = {"role": "seeker", "rank": "judge", "supporter": "supporter"}  # kind of training → role
_TASKS = {"role": "playing a seeker", "rank": "scoring dialogues", "supporter": "supporting, for a judge's reward"}
_TEMPLATES = Path(__file__).parent / "templates"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_ADDRESS = re.compile(rb"https?://[^\s\"'#]+")
_MARKUP = re.compile(r"([\\`*_\[\]<>|~&$])")


class Data(Settings):
    """A file used in training or validation: its sha256, that of its manifest, its number of examples and their prompt pack."""

    file: str
    sha256: str
    manifest_sha256: str | None = None
    examples: int = Field(ge=0)
    prompts: str | None = Field(default=None, exclude_if=lambda prompts: prompts is None)


class Training(Settings):
    """The record of a training, without clock times, so that the same training leaves the same record. `recipe` is resolved.
    `metrics` has numbers by metric, possibly in groups; `baselines` has the same metrics of each baseline."""

    kind: Literal["role", "rank", "supporter"]
    base: str
    base_revision: str | None = None
    licence: str | None = None
    recipe: dict[str, Any]
    data: list[Data]
    metrics: dict[str, Any]
    baselines: dict[str, dict[str, Any]] = Field(default={})
    seed: int
    command: str
    versions: dict[str, str]
    hardware: str
    created_by: str = Field(default_factory=lambda: f"esc-eval {importlib.metadata.version('esc-eval')}")

    @property
    def learnt(self) -> list[str]:
        """The prompt packs of the training data."""
        return sorted({data.prompts for data in self.data if data.prompts})


def read_training(folder: Path) -> Training | None:
    """The record in a model's folder, or None. Raises `UserError` if it cannot be read."""
    path = folder / TRAINING
    return validated(Training, read_object(path, "a training record"), path) if path.is_file() else None


def write_card(folder: Path, training: Training | None, merged: bool = False, base: str = "") -> None:
    """Write, or overwrite, `training.json` and `README.md` in a folder. `merged`: it has a whole model, not an adapter. Without
    a `training` there is no `training.json`, and the card says that only the name of the `base` is known."""
    if training is not None:
        write_json(folder / TRAINING, training.model_dump(mode="json"))
    write_text(folder / CARD, model_card(training, merged, base))


def adapter_to_publish(folder: Path, repo: str) -> Publication:
    """An adapter's files with a current card: a missing licence is the base's, and URLs of servers in training are replaced."""
    need_modules("huggingface_hub", purpose="publishing on the hub")
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise UserError(f"{folder}: no {name}: not an adapter's folder (a training leaves OUT/adapter)")
    training = read_training(folder)
    base = str(read_object(folder / CONFIG, "an adapter's config").get("base_model_name_or_path") or "")
    files: dict[str, Path | bytes] = {name: folder / name for name in (CONFIG, WEIGHTS)}
    if training is not None:
        fields = {"recipe": training.recipe, "command": training.command}
        without_urls = orjson.loads(_ADDRESS.sub(b"URL", orjson.dumps(fields)))
        training = training.model_copy(update=without_urls | {"licence": training.licence or licence_of(training.base)})
        files[TRAINING] = orjson.dumps(training.model_dump(mode="json"), option=orjson.OPT_INDENT_2) + b"\n"
    files[CARD] = model_card(training, base=base).encode()
    return Publication(repo, "model", files, f"LoRA adapter on {base or 'an unknown base'}")


def licence_of(base: str) -> str | None:
    """The licence of a base model, from its card on the hub or else a bundled spec; None if neither has one."""
    if on_hub(base):
        from huggingface_hub import ModelCard

        with suppress(Exception):  # no network, no such model, no card: try the specs
            card = ModelCard.load(base).data
            return str(card.get("license_name") or card.get("license") or "") or None
    specs = map(load_spec, model_names())
    return next((spec.licence for spec in specs if spec.checkpoint == base and spec.licence), None)


def model_card(training: Training | None, merged: bool = False, base: str = "") -> str:
    """The card's text, beginning with the metadata."""
    from huggingface_hub import ModelCard, ModelCardData

    base = training.base if training else base
    kind = {"role": ["seeker-simulator"], "rank": ["judge"], "supporter": ["supporter"]}[training.kind] if training else []
    results = list(_results(training)) if training else []
    fields: dict[str, Any] = licence_fields(training.licence if training else None)
    if results:
        fields |= {"eval_results": results, "model_name": "esc-eval adapter"}
    data = ModelCardData(
        base_model=base if on_hub(base) else None,
        library_name="transformers" if merged else "peft",
        pipeline_tag="text-generation",
        tags=["esc-eval", "emotional-support-dialogue", *kind, "merged" if merged else "lora"],
        **fields,
    )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown, not HTML: see `text` and `block`
    )
    environment.filters |= {
        "text": _text,
        "block": _block,
        "yaml": partial(yaml.safe_dump, sort_keys=False, allow_unicode=True),
    }
    body = environment.get_template("model_card.md.j2").render(
        training=training,
        merged=merged,
        base=base,
        spec=_spec(training, merged, base),
        recipe=training.model_dump(mode="json")["recipe"] if training else "",
        made_with=[training.created_by, *(f"{k} {v}" for k, v in sorted(training.versions.items()))] if training else [],
        figures=list(_figures(training)) if training else [],
    )
    return str(ModelCard.from_template(data, template_str="---\n{{ card_data }}\n---\n\n{{ body }}", body=body))


def _results(training: Training) -> Iterator[EvalResult]:
    """The main figures (perplexity; average agreement; reward) for the hub's `model-index`, each with baselines and n."""
    from huggingface_hub import EvalResult

    metrics = dict(_flat(training.metrics))
    baselines = {name: dict(_flat(values)) for name, values in training.baselines.items()}
    data = training.data[-1] if training.data else None
    for name, value in metrics.items():
        match = re.fullmatch(r"valid_((?:.*_)?average|)_?(acc|acc_soft|kappa|spearman|perplexity)|reward", name)
        if not match or not isinstance(value, int | float):
            continue
        part, metric = match[1], match[2] or name
        n = metrics.get(f"valid_{part}_n" if part else "valid_cards" if metric == "reward" else "valid_dialogues")
        compared = {baseline: figures[name] for baseline, figures in baselines.items() if name in figures}
        notes = [f"judge {str(training.recipe.get('judge')).partition('@')[0]}"] if metric == "reward" else []
        notes += [f"n = {n:g}"] if n else []
        notes += [f"{baseline} {figure:.4g}" for baseline, figure in compared.items()]
        yield EvalResult(
            task_type="text-generation",
            task_name=_TASKS[training.kind],
            dataset_type="esc-eval",
            dataset_name=f"{data.file} ({data.sha256[:12]})" if data else "validation part",
            dataset_config=(part or "").removesuffix("_average").removesuffix("average") or None,
            dataset_split="validation",
            metric_type=metric,
            metric_name=f"{metric} ({'; '.join(notes)})" if notes else metric,
            metric_value=round(float(value), 4),
            metric_args={"n": n, "baselines": {baseline: round(float(figure), 4) for baseline, figure in compared.items()}},
        )


def _spec(training: Training | None, merged: bool, base: str) -> dict[str, Any]:
    """A model spec for `python -m serve up`, in which the folder's path has to be filled in."""
    here = "path/of/this/folder"
    spec = {
        "name": "my-model",
        "about": "see its model card",
        "roles": [PLAYS[training.kind] if training else "seeker"],
        "learnt": training.learnt if training else None,
        "languages": ["en"],
        "checkpoint": here if merged else base,
        "revision": training.base_revision if training and not merged else None,
        "adapter": None if merged else here,
        "context_length": 4096,
        "licence": training.licence if training else None,
    }
    return {name: value for name, value in spec.items() if value or name == "checkpoint"}


def _figures(training: Training) -> Iterator[list[str]]:
    columns = [dict(_flat(values)) for values in (training.metrics, *training.baselines.values())]
    yield ["metric", "this model", *training.baselines]
    for name in dict.fromkeys(name for column in columns for name in column):
        yield [name, *(_number(column.get(name)) for column in columns)]


def _flat(values: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{name} / ")
        else:
            yield f"{path}{name}", value


def _number(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_number, value))
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _text(value: object) -> str:
    return _MARKUP.sub(r"\\\1", _CONTROL.sub(" ", str(value)))


def _block(value: object, language: str = "") -> str:
    """Text as a code block, with a fence longer than any in the text."""
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\ufffd", str(value)).rstrip("\n")
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"
