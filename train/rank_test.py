"""`python -m train rank-test`: score a test split with a recipe's base, untrained and under each adapter, without a server.

The answers are generated as a constrained server generates them (`train.decoding`). Examples of one dialogue share the reading
of what their prompts have in common, as a server's prefix cache does, so that the methods' times compare.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from core.errors import UserError, need_modules
from core.files import read_object, write_json, write_jsonl
from core.judge_prompts import Method
from core.paths import IN_FILE, IN_MODEL, Reads, Writes
from core.records import Judgement
from core.rubrics import Rubric
from data_prep.scores.rank_sft import RankExample
from serve.checkpoints.lora import CONFIG, WEIGHTS, adapter_rank
from serve.checkpoints.model_card import read_training
from serve.checkpoints.tensors import stored_tensors
from train.chat_templates import chatml, encode_prompt
from train.decoding import Shares, batched, decode, decode_kept, units
from train.examples import read_rank, rubric_beside, score_tokens
from train.recipes import Recipe, may_read_trees, read_recipe
from train.session import base_folder, load_base, load_tokenizer, say

if TYPE_CHECKING:
    from train.last_layer import LastLayer

UNTRAINED = "untrained"
BATCH_TOKENS = 4096
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*")


def rank_test(
    context: typer.Context,
    recipe: Annotated[
        Path, typer.Argument(help="Recipe (configs/train): says which base and precision. Overrides may follow."), IN_FILE
    ],
    test: Annotated[Path, typer.Option("--test", help="test.jsonl of `python -m data_prep rank-sft`."), IN_FILE],
    out: Annotated[
        Path,
        typer.Option("--out", help="Folder for judgements-NAME.jsonl and timing.json."),
        Writes(("judgements-*.jsonl", "timing.json")),
    ],
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            "--adapter", metavar="[NAME=]FOLDER", help="An adapter of that base. Repeat for more; write NAME@SEED for seeds."
        ),
        Reads("folder", IN_MODEL.files, labelled=True),
    ] = None,
    untrained: Annotated[bool, typer.Option("--untrained", help="Score with the base alone, too.")] = False,
    batch_tokens: Annotated[int, typer.Option("--batch-tokens", min=1, help="Tokens in the cache at a time.")] = BATCH_TOKENS,
) -> None:
    """Judgements of a test split by adapters, and by the untrained base, as constrained serving would give them."""
    adapters = named_adapters(adapter or [])
    if not adapters and not untrained:
        raise UserError("nothing to score with: give --adapter, --untrained, or both")
    need_modules("torch", "transformers", "trl", "peft", purpose="scoring without a server")
    run(read_recipe(recipe, context.args), test, adapters, untrained, out, batch_tokens)


def named_adapters(given: Sequence[str]) -> dict[str, Path]:
    """{name: folder} of `NAME=FOLDER` or `FOLDER`; a folder called adapter… is named by the folder that it is in."""
    found: dict[str, Path] = {}
    for text in given:
        name, equals, place = text.partition("=")
        if not equals or "/" in name:
            folder = Path(text)
            name = folder.absolute().parent.name if folder.name.startswith("adapter") else folder.name
        else:
            folder = Path(place)
        if not _NAME.fullmatch(name):
            raise UserError(f"--adapter {text}: {name!r} cannot be part of a file's name; write NAME=FOLDER")
        if name in found or name == UNTRAINED:
            raise UserError(f"--adapter {text}: the name {name} is taken; write NAME=FOLDER with another")
        found[name] = folder
    return found


def run(
    recipe: Recipe[Any], test: Path, adapters: dict[str, Path], untrained: bool, out: Path, batch_tokens: int = BATCH_TOKENS
) -> None:
    """What the verb does. Everything that can be wrong with data and adapters is found before the first forward pass."""
    if recipe.task != "rank":
        raise UserError(f"{recipe.file}: task: {recipe.task}: a recipe of the ranker is needed")
    from train.last_layer import LastLayer, applies

    rubric, method = rubric_beside(test), method_beside(test)
    examples = read_rank(test, recipe.data.dimension, recipe.data.language)
    for folder in adapters.values():
        adapter_rank(folder)
    tokenizer = load_tokenizer(recipe)
    scores = score_tokens(tokenizer, rubric.scores, f"base {recipe.model.model_name_or_path}")
    model = base = load_base(recipe)
    limit = getattr(model.config, "max_position_embeddings", None)
    last = False
    if adapters:
        model = with_adapters(model, recipe, adapters)
        last = all(applies(base, lora) for lora in model.peft_config.values())
    model = model.to(recipe.training.device).eval()
    kept = Path(recipe.data.kept_dir) if recipe.data.kept_dir else None
    way = LastLayer(base, kept) if last and may_read_trees(recipe, examples) else None
    template = chatml(tokenizer)
    prompts = [encode_prompt(tokenizer, example.prompt, template) for example in examples]
    timing_file = out / "timing.json"
    timing = read_object(timing_file, "seconds by judge") if timing_file.is_file() else {}
    for place, name in enumerate([*([UNTRAINED] if untrained else []), *adapters], start=0 if untrained else 1):
        with _ready(model, place - 1):
            started = time.monotonic()
            found = answers(model, examples, prompts, list(scores.values()), limit, batch_tokens, name, precision(recipe), way)
            seconds = time.monotonic() - started
            if way:  # every adapter's time is that of an adapter which reads for itself
                seconds, way.spared = seconds + way.spared, 0.0
        records = [j for e, shares in zip(examples, found, strict=True) for j in judgements(e, shares, name, rubric, method)]
        write_jsonl(out / f"judgements-{name}.jsonl", records)
        dialogues = len({example.dialogue_id for example in examples})
        timing[name] = {"seconds": seconds, "dialogues": dialogues, "seconds_per_dialogue": seconds / dialogues}
        write_json(timing_file, timing)
        unread = sum(record.value is None for record in records)
        tail = f", {unread} without a score (longer than the context of {limit} tokens)" if unread else ""
        say(f"{name}: {len(records)} judgements of {dialogues} dialogues, {seconds / dialogues:.2f} s a dialogue{tail}")


def method_beside(path: Path) -> Method:
    """How the examples were asked, from manifest.json beside them; `UserError` when it does not say."""
    manifest = path.parent / "manifest.json"
    settings = read_object(manifest, "the manifest of rank-sft").get("settings")
    method = settings.get("method") if isinstance(settings, dict) else None
    if method not in get_args(Method):
        raise UserError(f"{manifest}: settings.method: {method!r} is not one of {', '.join(get_args(Method))}")
    return cast(Method, method)


def with_adapters(model: Any, recipe: Recipe[Any], adapters: dict[str, Path]) -> Any:
    """The base with every adapter loaded, the n-th under the name `an`.

    Warns when an adapter says that it was trained on another base. Raises `UserError` when its modules or shapes are not the
    base's, and when the file lacks a tensor or has one too many (PEFT goes on with untrained values then).
    """
    from peft import PeftModel, get_peft_model_state_dict

    base = recipe.model.model_name_or_path
    for number, (name, folder) in enumerate(adapters.items()):
        training = read_training(folder)
        told = training.base if training else read_object(folder / CONFIG, "an adapter's config").get("base_model_name_or_path")
        if told not in (base, base_folder(recipe)):
            say(f"warning: {name}: {folder} was trained on {told}, and is put on {base}")
        wrong = f"base and adapter do not fit: {name}: {folder} on {base}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of missing keys: they are an error below
                if number == 0:
                    model = PeftModel.from_pretrained(model, str(folder), adapter_name="a0")
                else:
                    model.load_adapter(str(folder), adapter_name=f"a{number}")
        except (ValueError, RuntimeError, TypeError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise UserError(f"{wrong}: {lines[min(1, len(lines) - 1)] if lines else type(error).__name__}") from None
        wanted = set(get_peft_model_state_dict(model, adapter_name=f"a{number}", save_embedding_layers=False))
        has = set(stored_tensors([folder / WEIGHTS]))
        for what, names in (("lacks", wanted - has), ("has, and its config does not adapt,", has - wanted)):
            if names:
                raise UserError(f"{wrong}: {WEIGHTS} {what} {len(names)} tensors, for example {min(names)}")
    return model


def _ready(model: Any, number: int) -> AbstractContextManager[None]:
    """Adapter `a{number}` switched on; for −1 the base alone."""
    if number >= 0:
        model.set_adapter(f"a{number}")
        return nullcontext()
    return cast("AbstractContextManager[None]", model.disable_adapter()) if hasattr(model, "peft_config") else nullcontext()


def precision(recipe: Recipe[Any]) -> AbstractContextManager[Any]:
    """Autocast as the recipe trains: bf16, fp16, or none."""
    import torch

    dtype = torch.bfloat16 if recipe.training.bf16 else torch.float16 if recipe.training.fp16 else None
    return torch.autocast(recipe.training.device.type, dtype) if dtype else nullcontext()


def answers(
    model: Any,
    examples: Sequence[RankExample],
    prompts: Sequence[list[int]],
    tokens: Sequence[int],
    limit: int | None,
    batch_tokens: int = BATCH_TOKENS,
    what: str = "answers",
    cast_to: AbstractContextManager[Any] | None = None,
    way: LastLayer | None = None,
) -> list[Shares | None]:
    """For each example the probabilities [digits, S] of its digits over `tokens`; None when it exceeds `limit` tokens.

    `way`, where all adapters are in the last layer and answers have one digit: what the first of them read serves them all.
    """
    digits = [len(example.labels) for example in examples]
    fits = [limit is None or len(prompt) + d <= limit for prompt, d in zip(prompts, digits, strict=True)]
    batches = list(batched(units(examples, prompts, fits), batch_tokens))
    found: list[Shares | None] = [None] * len(examples)
    console = Console(stderr=True)
    with cast_to or nullcontext():
        for batch in track(batches, what, console=console, disable=not console.is_terminal):
            rows = [place for unit in batch for place in unit.places]
            most = max(digits[place] for place in rows)
            shares = decode_kept(model, batch, tokens, way) if way else decode(model, batch, tokens, most)
            for place, row in zip(rows, shares, strict=True):
                found[place] = row[: digits[place]]
    return found


def judgements(example: RankExample, shares: Shares | None, name: str, rubric: Rubric, method: Method) -> list[Judgement]:
    """One record a dimension of the example, with the fields that a served judge fills."""
    scores = rubric.scores
    condition = {"mode": "paper" if method == "paper" else "native", "where": "in-process"}
    common: dict[str, Any] = dict(
        dialogue_id=example.dialogue_id, language=example.language, judge=name, rubric=rubric.name, method=method
    )
    if shares is None:
        condition["failure"] = "context_overflow"
        return [Judgement(**common, dimension=key, value=None, condition=condition) for key in example.labels]
    values = [scores[place] for place in shares.argmax(1)]
    return [
        Judgement(
            **common,
            dimension=key,
            value=value,
            expected=float(row @ np.array(scores)),
            distribution={str(score): float(share) for score, share in zip(scores, row, strict=True)},
            condition=condition,
            raw="".join(map(str, values)),
        )
        for key, value, row in zip(example.labels, values, shares, strict=True)
    ]
