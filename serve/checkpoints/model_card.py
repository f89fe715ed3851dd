"""What a trained model's folder says about itself: `training.json` for programs, `README.md` (a model card) for people."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jinja2
import orjson
import yaml
from pydantic import Field

from core.errors import UserError, need_modules
from core.files import read_object, validated, write_json, write_text
from core.hub import Publication, licence_fields, on_hub
from core.settings import Settings
from core.specs import load_spec, model_names
from serve.checkpoints.lora import CONFIG, WEIGHTS

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
    """One file that was trained or evaluated on: its sha256, that of the manifest beside it, how many examples it gave, and the
    prompt pack that they were written in."""

    file: str
    sha256: str
    manifest_sha256: str | None = None
    examples: int = Field(ge=0)
    prompts: str | None = Field(default=None, exclude_if=lambda prompts: prompts is None)


class Training(Settings):
    """How an adapter came about. Nothing in it tells the time, so the same training leaves the same record.

    `kind` is what the model does: play the seeker (`role`), judge (`rank`) or be the `supporter`. `recipe` is the resolved one.
    `metrics` maps a metric to a number, or a group to metrics of its own; `baselines` maps the name of each baseline to its
    metrics, under the same names. `versions` maps packages to versions.
    """

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
        """The prompt packs that it was trained in."""
        return sorted({data.prompts for data in self.data if data.prompts})


def read_training(folder: Path) -> Training | None:
    """The record in a model's folder, None where there is none; `UserError` for one that cannot be read."""
    path = folder / TRAINING
    return validated(Training, read_object(path, "a training record"), path) if path.is_file() else None


def write_card(folder: Path, training: Training | None, merged: bool = False, base: str = "") -> None:
    """Write `training.json` and `README.md` into a folder, over what is there.

    `merged` says that the folder holds a whole model, not an adapter. Without a `training` there is no `training.json`, and
    the card says that nothing is known but the name of the `base`. Raises `UserError` when they cannot be written.
    """
    if training is not None:
        write_json(folder / TRAINING, training.model_dump(mode="json"))
    write_text(folder / CARD, model_card(training, merged, base))


def adapter_to_publish(folder: Path, repo: str) -> Publication:
    """An adapter's files with a card of today: where its training recorded no licence, that of its base; addresses of servers
    that a training asked are left out.

    Raises `UserError` for a folder that holds no adapter.
    """
    need_modules("huggingface_hub", purpose="publishing on the hub")
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise UserError(f"{folder}: no {name}: not an adapter's folder (a training leaves OUT/adapter)")
    training = read_training(folder)
    base = str(read_object(folder / CONFIG, "an adapter's config").get("base_model_name_or_path") or "")
    if training is not None and not training.licence:
        training = training.model_copy(update={"licence": licence_of(training.base)})
    if training is not None:
        asked = {"recipe": training.recipe, "command": training.command}
        training = training.model_copy(update=orjson.loads(_ADDRESS.sub(b"URL", orjson.dumps(asked))))
    files: dict[str, Path | bytes] = {name: folder / name for name in (CONFIG, WEIGHTS)}
    files[CARD] = model_card(training, base=base).encode()
    if training is not None:
        files[TRAINING] = orjson.dumps(training.model_dump(mode="json"), option=orjson.OPT_INDENT_2) + b"\n"
    return Publication(repo, "model", files, f"LoRA adapter on {base or 'an unknown base'}")


def licence_of(base: str) -> str | None:
    """The licence of a base model: by its card on the hub, else by the bundled specs of it; None where nobody says it."""
    if on_hub(base):
        from huggingface_hub import ModelCard

        with suppress(Exception):  # no network, no such model, no card: the specs may know
            stated = ModelCard.load(base).data
            return str(stated.get("license_name") or stated.get("license") or "") or None
    specs = map(load_spec, model_names())
    return next((spec.licence for spec in specs if spec.checkpoint == base and spec.licence), None)


def model_card(training: Training | None, merged: bool = False, base: str = "") -> str:
    """The card's text, metadata first."""
    from huggingface_hub import ModelCard, ModelCardData

    base = training.base if training else base
    kind = {"role": ["seeker-simulator"], "rank": ["judge"], "supporter": ["supporter"]}[training.kind] if training else []
    results = list(_results(training)) if training else []
    named: dict[str, Any] = licence_fields(training.licence if training else None)
    if results:
        named |= {"eval_results": results, "model_name": "esc-eval adapter"}
    data = ModelCardData(
        base_model=base if on_hub(base) else None,
        library_name="transformers" if merged else "peft",
        pipeline_tag="text-generation",
        tags=["esc-eval", "emotional-support-dialogue", *kind, "merged" if merged else "lora"],
        **named,
    )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown, not HTML: `text` and `block` below
    )
    environment.filters |= {"text": _text, "block": _block}
    body = environment.get_template("model_card.md.j2").render(
        training=training,
        merged=merged,
        base=base,
        spec=_yaml(_spec(training, merged, base)),
        recipe=_yaml(training.model_dump(mode="json")["recipe"]) if training else "",
        made_with=[training.created_by, *(f"{k} {v}" for k, v in sorted(training.versions.items()))] if training else [],
        figures=list(_figures(training)) if training else [],
    )
    return str(ModelCard.from_template(data, template_str="---\n{{ card_data }}\n---\n\n{{ body }}", body=body))


def _results(training: Training) -> Iterator[EvalResult]:
    """The figures that a reader chooses by (perplexity; agreement averaged over dimensions; reward) for the hub's
    `model-index`, each with its baselines and how many examples, verdicts or role cards it is of."""
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
        beside = {baseline: figures[name] for baseline, figures in baselines.items() if name in figures}
        told = [*([f"n = {n:g}"] if n else []), *(f"{baseline} {figure:.4g}" for baseline, figure in beside.items())]
        if metric == "reward":
            told.insert(0, f"judge {str(training.recipe.get('judge')).partition('@')[0]}")
        yield EvalResult(
            task_type="text-generation",
            task_name=_TASKS[training.kind],
            dataset_type="esc-eval",
            dataset_name=f"{data.file} ({data.sha256[:12]})" if data else "validation part",
            dataset_config=(part or "").removesuffix("_average").removesuffix("average") or None,
            dataset_split="validation",
            metric_type=metric,
            metric_name=f"{metric} ({'; '.join(told)})" if told else metric,
            metric_value=round(float(value), 4),
            metric_args={"n": n, "baselines": {baseline: round(float(figure), 4) for baseline, figure in beside.items()}},
        )


def _spec(training: Training | None, merged: bool, base: str) -> dict[str, Any]:
    """A model spec that `python -m serve up` takes once the folder's path is filled in."""
    here = "path/of/this/folder"
    revision = training.base_revision if training else None
    return {
        "name": "my-model",
        "about": "see its model card",
        "roles": [PLAYS[training.kind] if training else "seeker"],
        **({"learnt": training.learnt} if training and training.learnt else {}),
        "languages": ["en"],
        **(
            {"checkpoint": here}
            if merged
            else {"checkpoint": base, **({"revision": revision} if revision else {}), "adapter": here}
        ),
        "context_length": 4096,
        **({"licence": training.licence} if training and training.licence else {}),
    }


def _figures(training: Training) -> Iterator[list[str]]:
    """A table: each metric with this model's value and every baseline's."""
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


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


def _text(value: object) -> str:
    """Text within a line of Markdown or a table cell: it shows as it is, whatever it holds, and stays on its line."""
    return _MARKUP.sub(r"\\\1", _CONTROL.sub(" ", str(value)))


def _block(value: object, language: str = "") -> str:
    """Text as a code block, whose fence is longer than any in the text."""
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\ufffd", str(value)).rstrip("\n")
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"
