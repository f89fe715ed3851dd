"""Does the trained simulator play the seeker better than its base? Perplexity of real seeker lines, and lines it writes.

`python -m train test RECIPE --adapter FOLDER --out DIR` reads the recipe's validation dialogues of emotional support; general
role-play has no seeker and is left out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from core.errors import UserError
from core.files import sha256_file, write_json, write_jsonl, write_text
from core.records import Count, Language, Record
from core.statistics.accuracy import share
from core.statistics.bootstrap import interval, resampled_means
from core.tables import Estimate, Screen, Table, to_console, to_markdown
from data_prep.line_checks import MACHINE, SUPPORTER, distinct, says, units
from data_prep.role_play.examples import RoleExample
from serve.checkpoints.lora import WEIGHTS
from train.example_files import hub_dataset, read_role
from train.examples import IGNORED, Prepared, chatml, encode_prompt, prepare_role
from train.models import (
    NEW_TOKENS,
    BaseAndAdapter,
    Floats,
    check_adapters,
    load_adapters,
    load_base,
    load_tokenizer,
    precision,
    stock_rows,
)
from train.recipes import Recipe

LINES = 32  # seeker lines that are asked for, one a dialogue
VOICES = ("base", "adapter", "real")  # whose lines are compared


def weighted(totals: Floats, weights: Floats) -> Estimate:
    """sum(totals) / sum(weights) with its 95 % bootstrap interval; both [n], drawn together. No interval for n = 1."""
    n = len(totals)
    mean = float(totals.sum() / weights.sum())
    if n < 2:
        return Estimate(mean, None, None, n)
    low, high = interval(resampled_means(totals[:, None], weights[:, None])[:, 0])
    return Estimate(mean, low, high, n)


def ratio(adapter: Floats, base: Floats, tokens: Floats) -> Estimate:
    """Perplexity of the adapter over the base's, drawing whole dialogues, each with both its sums (nats) and its tokens."""
    nats = weighted(adapter - base, tokens)
    mean, low, high = (None if bound is None else math.exp(bound) for bound in (nats.mean, nats.low, nats.high))
    return Estimate(mean, low, high, nats.n)


class SeekerLine(Record):
    """One line that was asked for, and who said what. `turn` is its place among the messages; `*_ended` is False where
    `NEW_TOKENS` cut a line off."""

    id: str
    language: Language
    turn: Count
    asked: str
    base: str
    adapter: str
    real: str
    base_ended: bool
    adapter_ended: bool


def draw_turns(prepared: Prepared, count: int, seed: int, max_length: int | None) -> list[tuple[RoleExample, int]]:
    """`count` dialogues (all, if there are fewer) drawn by the seed, each with one seeker line that is not its first.

    Only lines that begin within `max_length` tokens take part. Raises `UserError` when there is none.
    """
    rng = random.Random(seed)
    usable = []
    for example, row in zip(prepared.examples, prepared.rows, strict=True):
        scored = [label != IGNORED for label in row["labels"]]
        begun = sum(here and not before for before, here in zip([False, *scored], scored, strict=False))
        turns = [place for place, message in enumerate(example.messages) if message["role"] == "assistant"][1:begun]
        if turns:
            usable.append((example, turns))
    if not usable:
        within = f" within {max_length} tokens" if max_length else ""
        raise UserError(f"{prepared.path}: no dialogue{within} has a second seeker line to ask for")
    chosen = sorted(rng.sample(range(len(usable)), min(count, len(usable))))
    return [(usable[place][0], rng.choice(usable[place][1])) for place in chosen]


def write_lines(model: BaseAndAdapter, turns: Sequence[tuple[RoleExample, int]]) -> list[SeekerLine]:
    """What base and adapter say at these places, under our template."""
    template = chatml(model.tokenizer)
    prompts = [encode_prompt(model.tokenizer, example.messages[:turn], template) for example, turn in turns]
    base, adapter = (model.lines(prompts, voice, f"lines of the {voice}") for voice in ("base", "adapter"))
    return [
        SeekerLine(
            id=example.id,
            language=example.language,
            turn=turn,
            asked=example.messages[turn - 1]["content"],
            base=base[place][0],
            adapter=adapter[place][0],
            real=example.messages[turn]["content"],
            base_ended=base[place][1],
            adapter_ended=adapter[place][1],
        )
        for place, (example, turn) in enumerate(turns)
    ]


def line_figures(lines: Sequence[SeekerLine], language: Language, voice: str) -> dict[str, Any]:
    """One voice's figures on the lines of one language: length in `units`, distinct-n as shares, other shares in %."""
    lines = [line for line in lines if line.language == language]
    texts = [str(getattr(line, voice)) for line in lines]
    counted = [units(text, language) for text in texts]
    n = len(lines)
    copies = [text.lower().split() == line.asked.lower().split() for text, line in zip(texts, lines, strict=True)]
    return {
        "language": language,
        "lines": voice,
        "n": n,
        "units": sum(map(len, counted)),
        "length": weighted(np.array([len(line) for line in counted], float), np.ones(n)),
        "distinct_1": distinct(counted, 1),
        "distinct_2": distinct(counted, 2),
        "machine": share(sum(says(MACHINE, text) for text in texts), n),
        "supporter": share(sum(says(SUPPORTER, text) for text in texts), n),
        "copies": share(sum(copies), n),
        "cut_off": None if voice == "real" else share(sum(not getattr(line, f"{voice}_ended") for line in lines), n),
    }


def perplexity_figures(languages: Sequence[Language], tokens: Floats, nll: dict[str, Floats], wanted: str) -> dict[str, Any]:
    """Perplexities (exp of the mean over tokens) of one language's dialogues, or of `all`.

    `nll` has base, adapter and, where it could be scored, base_stock: nats a dialogue. `ratio` is the adapter's over the better
    base's.
    """
    kept = np.array([wanted in (language, "all") for language in languages])
    count = tokens[kept]
    perplexity = {name: float(np.exp(values[kept].sum() / count.sum())) for name, values in nll.items()}
    better = min((name for name in perplexity if name != "adapter"), key=lambda name: perplexity[name])
    return {
        "language": wanted,
        "dialogues": int(kept.sum()),
        "scored_tokens": int(count.sum()),
        "perplexity": perplexity,
        "better_base": better,
        "ratio": ratio(nll["adapter"][kept], nll[better][kept], count),
    }


def tables(figures: dict[str, Any]) -> list[Table]:
    """What is printed and written to compare.md."""
    cut = f"{figures['cut']} dialogues cut to {figures['max_length']} tokens" if figures["max_length"] else "no dialogue cut"
    perplexities = Table(
        "perplexity",
        "Perplexity of real seeker lines",
        ("language", "dialogues", "scored tokens", "base", "base, own template", "adapter", "adapter / better base"),
        tuple(
            (
                *(row["language"], row["dialogues"], row["scored_tokens"], row["perplexity"]["base"]),
                *(row["perplexity"].get("base_stock"), row["perplexity"]["adapter"], row["ratio"]),
            )
            for row in figures["perplexity"]
        ),
        (
            f"Validation dialogues of {figures['data']['file']}, seeker lines only, the same tokens in every column; "
            f"{cut}, {figures['left_out']} without a seeker left out. Base and adapter under the training template; the base "
            "under its own, too. Interval: 95 %, paired bootstrap over dialogues.",
            f"The base's own template: {figures['stock_template']}.",
        ),
    )
    columns = {
        **{"language": "language", "lines": "lines of", "n": "lines", "length": "length"},
        **{"distinct_1": "distinct-1", "distinct_2": "distinct-2", "machine": "gives the machine away, %"},
        **{"supporter": "speaks as supporter, %", "copies": "copies the line before, %", "cut_off": "cut off, %"},
    }
    lines = Table(
        "lines",
        "Next seeker lines, greedy",
        tuple(columns.values()),
        tuple(tuple(row[name] for name in columns) for row in figures["lines"]),
        (
            "One line of each of the drawn dialogues, never its first. Length in words (en) or characters (zh), with a "
            f"bootstrap interval; base and adapter are cut off at {NEW_TOKENS} tokens. Shares with Wilson's 95 % interval. "
            "distinct-n falls as text grows: compare it only between lines of like length.",
            "Giving the machine away and speaking as the supporter are found by fixed phrases (MACHINE and SUPPORTER in "
            "data_prep/line_checks.py): they miss what is put otherwise; the real lines' share is their false alarms.",
        ),
    )
    return [perplexities, lines]


def make_comparison(
    model: BaseAndAdapter, prepared: Prepared, count: int, seed: int, max_length: int | None
) -> tuple[dict[str, Any], list[SeekerLine]]:
    """All figures (see `perplexity_figures`, `line_figures`) and the lines they are about."""
    turns = draw_turns(prepared, count, seed, max_length)
    nll = {voice: model.nll(prepared.rows, voice, f"perplexity of the {voice}") for voice in ("base", "adapter")}
    try:
        stock = stock_rows(prepared, model.tokenizer)
    except UserError as error:
        template = f"not scored: {error}"
    else:
        same = [row["input_ids"] for row in stock] == [row["input_ids"] for row in prepared.rows]
        same_tokens = f"the same tokens for all {len(prepared.rows)} dialogues, so one measurement"
        template = same_tokens if same else "other tokens around the lines scored"
        nll["base_stock"] = nll["base"] if same else model.nll(stock, "base", "perplexity of the base, own template")
    lines = write_lines(model, turns)
    tokens = np.array([sum(label != IGNORED for label in row["labels"]) for row in prepared.rows], float)
    languages = [example.language for example in prepared.examples]
    groups = [*(["all"] if len(set(languages)) > 1 else []), *sorted(set(languages))]
    figures = {
        "data": prepared.identity(),
        "cut": prepared.cut,
        "max_length": max_length,
        "seed": seed,
        "stock_template": template,
        "perplexity": [perplexity_figures(languages, tokens, nll, group) for group in groups],
        "lines": [line_figures(lines, of, voice) for of in sorted({line.language for line in lines}) for voice in VOICES],
    }
    return figures, lines


def read_held_out(recipe: Recipe[Any], path: Path) -> tuple[list[RoleExample], int]:
    """A file's support dialogues, sorted by id, and how many others it has; `UserError` when there is none or the recipe trains
    on one.

    Sorted, so that neither the lines that are drawn nor the intervals depend on the order of its rows.
    """
    examples = read_role(path)
    support = sorted((example for example in examples if example.kind == "support"), key=lambda example: example.id)
    if not support:
        raise UserError(f"{path}: no dialogue of kind support: without a seeker there is nothing to compare")
    train = Path(recipe.data.train_file)
    if (train.exists() or hub_dataset(train)) and (shared := {e.id for e in support} & {e.id for e in read_role(train)}):
        raise UserError(f"{path}: shares {len(shared)} dialogues with {train}, for example {min(shared)}: give held-out ones")
    return support, len(examples) - len(support)


def run(recipe: Recipe[Any], path: Path, adapter: Path, out: Path, count: int = LINES) -> None:
    """Compare an adapter with its base on a file's held-out dialogues, write the figures to `out` and print them.

    `count` seeker lines are asked for, one a dialogue, drawn by the recipe's seed.
    """
    check_adapters(recipe, [adapter])
    examples, left_out = read_held_out(recipe, path)
    tokenizer = load_tokenizer(recipe)
    prepared = prepare_role(path, examples, tokenizer, recipe.training.max_length)
    model = load_adapters(load_base(recipe), recipe, {adapter.name: adapter}).to(recipe.training.device)
    pair = BaseAndAdapter(model, tokenizer, partial(precision, recipe))
    figures, said = make_comparison(pair, prepared, count, recipe.training.seed, recipe.training.max_length)
    figures |= {
        "left_out": left_out,
        "base": recipe.model.model_name_or_path,
        "adapter": {"folder": adapter.resolve().name, "sha256": sha256_file(adapter / WEIGHTS)},
        "precision": "bf16 autocast" if recipe.training.bf16 else str(model.dtype).removeprefix("torch."),
    }
    write_jsonl(out / "lines.jsonl", said)
    shown = tables(figures)
    write_text(out / "compare.md", "\n".join(map(to_markdown, shown)))
    write_json(out / "compare.json", figures)
    console = Screen()
    for table in shown:
        to_console(table, console)
    console.print(f"written: {out}/ (compare.json, compare.md, lines.jsonl)")
