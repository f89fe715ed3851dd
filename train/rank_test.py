"""Score a test split with a ranker's base, untrained and under each adapter, without a server (`python -m train test`).

The answers are generated as a constrained server generates them (`train.models.Decoder`). Examples of one dialogue share the
reading of what their prompts have in common, as a server's prefix cache does, so that the methods' times compare.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
from rich.progress import track

from core.errors import UserError
from core.files import read_object, write_json, write_jsonl
from core.judge_prompts import PromptMethod
from core.records import Judgement
from core.rubrics import Rubric
from core.tables import Screen
from data_prep.scores.rank_sft import RankExample
from train.example_files import read_rank, rubric_beside
from train.examples import chatml, encode_prompt, score_tokens
from train.models import (
    BATCH_TOKENS,
    Decoder,
    Shares,
    adapter_switched_on,
    check_adapters,
    load_adapters,
    load_base,
    load_tokenizer,
    precision,
    prompt_groups,
    token_batches,
)
from train.recipes import UNTRAINED, Recipe, may_read_trees
from train.run import check_numbers, say


def run(
    recipe: Recipe[Any], test: Path, adapters: dict[str, Path], untrained: bool, out: Path, batch_tokens: int = BATCH_TOKENS
) -> None:
    """Write the judgements of a test split by each adapter and, with `untrained`, by the base alone.

    Everything that can be wrong with data and adapters is found before the first forward pass.
    """
    rubric, method = rubric_beside(test), method_beside(test)
    examples = read_rank(test, recipe.data.dimension, recipe.data.language)
    check_adapters(recipe, adapters.values())
    tokenizer = load_tokenizer(recipe)
    scores = score_tokens(tokenizer, rubric.scores, f"base {recipe.model.model_name_or_path}")
    base = load_base(recipe)
    limit = getattr(base.config, "max_position_embeddings", None)
    model = (load_adapters(base, recipe, adapters) if adapters else base).to(recipe.training.device).eval()
    decoder = Decoder()
    if adapters and recipe.training.device.type == "cpu" and may_read_trees(recipe, examples):
        from train.last_layer import LastLayer, LastLayerDecoder, applies  # for CPUs alone

        if all(applies(base, config) for config in model.peft_config.values()):
            decoder = LastLayerDecoder(LastLayer(base, Path(recipe.data.kept_dir) if recipe.data.kept_dir else None))
    template = chatml(tokenizer)
    prompts = [encode_prompt(tokenizer, example.prompt, template) for example in examples]
    dialogues = len({example.dialogue_id for example in examples})
    timing_file = out / "timing.json"
    timing = read_object(timing_file, "seconds by judge") if timing_file.is_file() else {}
    judges: list[tuple[str, int | None]] = [(UNTRAINED, None)] if untrained else []
    judges += [(name, number) for number, name in enumerate(adapters)]
    for name, number in judges:
        started = time.monotonic()
        with adapter_switched_on(model, number), precision(recipe):
            shares = answers(model, examples, prompts, list(scores.values()), limit, batch_tokens, name, decoder)
        # Every adapter's time is that of an adapter which reads for itself.
        seconds = time.monotonic() - started + decoder.take_spared()
        records = [
            record
            for example, answer in zip(examples, shares, strict=True)
            for record in judgements(example, answer, name, rubric, method)
        ]
        write_jsonl(out / f"judgements-{name}.jsonl", records)
        timing[name] = {"seconds": seconds, "dialogues": dialogues, "seconds_per_dialogue": seconds / dialogues}
        write_json(timing_file, timing)
        unread = sum(record.value is None for record in records)
        tail = f", {unread} without a score (longer than the context of {limit} tokens)" if unread else ""
        say(f"{name}: {len(records)} judgements of {dialogues} dialogues, {seconds / dialogues:.2f} s a dialogue{tail}")


def method_beside(path: Path) -> PromptMethod:
    """How the examples were asked, from manifest.json beside them; `UserError` when it does not say."""
    manifest = path.parent / "manifest.json"
    settings = read_object(manifest, "the manifest of rank-sft").get("settings")
    method = settings.get("method") if isinstance(settings, dict) else None
    if method not in get_args(PromptMethod):
        raise UserError(f"{manifest}: settings.method: {method!r} is not one of {', '.join(get_args(PromptMethod))}")
    return cast(PromptMethod, method)


def answers(
    model: Any,
    examples: Sequence[RankExample],
    prompts: Sequence[list[int]],
    tokens: Sequence[int],
    limit: int | None,
    batch_tokens: int = BATCH_TOKENS,
    what: str = "answers",
    decoder: Decoder | None = None,
) -> list[Shares | None]:
    """For each example the probabilities [digits, S] of its digits over `tokens`; None when it exceeds `limit` tokens."""
    decoder = decoder or Decoder()
    digits = [len(example.labels) for example in examples]
    fits = [limit is None or len(prompt) + d <= limit for prompt, d in zip(prompts, digits, strict=True)]
    groups = prompt_groups(examples, prompts, fits)
    batches = token_batches([group.cached for group in groups], batch_tokens)
    shares: list[Shares | None] = [None] * len(examples)
    console = Screen(stderr=True)
    for members in track(batches, what, console=console, disable=not console.is_terminal):
        batch = [groups[member] for member in members]
        places = [place for group in batch for place in group.places]
        rows = decoder(model, batch, tokens, max(digits[place] for place in places))
        check_numbers(rows, what)
        for place, row in zip(places, rows, strict=True):
            shares[place] = row[: digits[place]]
    return shares


def judgements(example: RankExample, shares: Shares | None, name: str, rubric: Rubric, method: PromptMethod) -> list[Judgement]:
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
