"""Does the trained simulator play the seeker better than its base? Perplexity of real seeker lines, and lines it writes.

`python -m train test RECIPE --adapter FOLDER --out DIR` reads the recipe's validation dialogues of emotional support; general
role-play has no seeker and is left out.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from core.errors import UserError
from core.files import sha256_file, write_json, write_text
from core.records import Language
from core.statistics.accuracy import share
from core.statistics.bootstrap import estimate, resampled_means
from core.tables import Estimate, Screen, Table, to_console, to_markdown
from data_prep.line_checks import MACHINE, SUPPORTER, distinct, says, units
from data_prep.role_play.examples import RoleExample
from serve.checkpoints.lora import WEIGHTS
from train.example_files import hub_dataset, read_role
from train.examples import IGNORED, Prepared, encode_prompt, prepare_role, template_of
from train.models import adapter_switched_on, load_adapted, load_tokenizer, policy_end
from train.recipes import Recipe
from train.run import check_numbers

Floats = NDArray[np.float64]
Line = dict[str, Any]
LINES = 32  # seeker lines that are asked for, one per dialogue
NEW_TOKENS = 64  # of a line, at most
VOICES = ("base", "adapter", "real")  # whose lines are compared


def weighted(totals: Floats, weights: Floats) -> Estimate:
    """sum(totals) / sum(weights) with its 95 % bootstrap interval; both [n], drawn together."""
    draws = resampled_means(totals[:, None], weights[:, None])[:, 0]
    return estimate(float(totals.sum() / weights.sum()), draws, len(totals), len(totals))


def ratio(adapter: Floats, base: Floats, tokens: Floats) -> Estimate:
    """Perplexity of the adapter over the base's, drawing whole dialogues, each with both its sums (nats) and its tokens."""
    nats = weighted(adapter - base, tokens)
    mean, low, high = (None if bound is None else math.exp(bound) for bound in (nats.mean, nats.low, nats.high))
    return Estimate(mean, low, high, nats.n)


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


def write_lines(recipe: Recipe[Any], model: Any, tokenizer: Any, turns: Sequence[tuple[RoleExample, int]]) -> list[Line]:
    """What base and adapter say at these places, greedily, under our template, beside what was really said.

    `turn` is the line's place among the messages; `*_ended` is False where `NEW_TOKENS` cut a line off.
    """
    import torch

    from train.batches import left_padded

    template = template_of(tokenizer)
    prompts = [encode_prompt(tokenizer, example.messages[:turn], template) for example, turn in turns]
    lines: list[Line] = [
        {
            "id": example.id,
            "language": example.language,
            "turn": turn,
            "asked": example.messages[turn - 1]["content"],
            "real": example.messages[turn]["content"],
        }
        for example, turn in turns
    ]
    training, end = recipe.training, policy_end(tokenizer)
    ends = sorted({end, tokenizer.eos_token_id} - {None})
    size = training.per_device_eval_batch_size
    dtype = torch.bfloat16 if training.bf16 else torch.float16 if training.fp16 else None
    autocast: Any = torch.autocast(training.device.type, dtype) if dtype else nullcontext()
    for voice, number in (("base", None), ("adapter", 0)):
        for first in range(0, len(prompts), size):
            ids, mask = left_padded(prompts[first : first + size], end)
            with torch.inference_mode(), adapter_switched_on(model, number), autocast:
                generated = model.generate(
                    input_ids=ids.to(model.device),
                    attention_mask=mask.to(model.device),
                    max_new_tokens=NEW_TOKENS,
                    do_sample=False,
                    num_beams=1,
                    repetition_penalty=1.0,  # some bases' generation config sets one, and it applies to greedy search, too
                    eos_token_id=ends,
                    pad_token_id=end,
                )
            for line, tokens in zip(lines[first : first + size], generated[:, ids.shape[1] :].tolist(), strict=True):
                stop = next((place for place, token in enumerate(tokens) if token in ends), None)
                text = tokenizer.decode(tokens[:stop], skip_special_tokens=True).strip()
                line |= {voice: text, f"{voice}_ended": stop is not None}
    return lines


def line_figures(lines: Sequence[Line], language: Language, voice: str) -> dict[str, Any]:
    """One voice's figures on the lines of one language: length in `units`, distinct-n as shares, other shares in %."""
    lines = [line for line in lines if line["language"] == language]
    texts = [line[voice] for line in lines]
    counted = [units(text, language) for text in texts]
    n = len(lines)
    copies = [text.lower().split() == line["asked"].lower().split() for text, line in zip(texts, lines, strict=True)]
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
        "cut_off": None if voice == "real" else share(sum(not line[f"{voice}_ended"] for line in lines), n),
    }


def perplexity_figures(languages: Sequence[Language], tokens: Floats, nll: dict[str, Floats], wanted: str) -> dict[str, Any]:
    """Perplexities (exp of the mean over tokens) of one language's dialogues, or of `all`; `ratio` is the adapter's over the
    base's.

    `nll` has the nats of base and adapter for each dialogue, over as many `tokens`.
    """
    kept = np.array([wanted in (language, "all") for language in languages])
    count = tokens[kept]
    return {
        "language": wanted,
        "dialogues": int(kept.sum()),
        "scored_tokens": int(count.sum()),
        "perplexity": {name: float(np.exp(values[kept].sum() / count.sum())) for name, values in nll.items()},
        "ratio": ratio(nll["adapter"][kept], nll["base"][kept], count),
    }


def tables(figures: dict[str, Any]) -> list[Table]:
    """What is printed and written to compare.md."""
    cut = f"{figures['cut']} dialogues cut to {figures['max_length']} tokens" if figures["max_length"] else "no dialogue cut"
    perplexities = Table(
        "perplexity",
        "Perplexity of real seeker lines",
        ("language", "dialogues", "scored tokens", "base", "adapter", "adapter / base"),
        tuple(
            (row["language"], row["dialogues"], row["scored_tokens"], *row["perplexity"].values(), row["ratio"])
            for row in figures["perplexity"]
        ),
        (
            f"Validation dialogues of {figures['data']['file']}, seeker lines only, the same tokens in every column; "
            f"{cut}, {figures['left_out']} without a seeker left out. Base and adapter under the training template. Interval: "
            "95 %, paired bootstrap over dialogues.",
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

    `count` seeker lines are asked for, one from each dialogue, drawn by the recipe's seed.
    """
    from train.trainers import RoleTrainer, for_measuring

    training = recipe.training
    examples, left_out = read_held_out(recipe, path)
    tokenizer = load_tokenizer(recipe)
    prepared = prepare_role(path, examples, tokenizer, training.max_length)
    turns = draw_turns(prepared, count, training.seed, training.max_length)
    model = load_adapted(recipe, {adapter.name: adapter})
    rows = prepared.dataset()
    trainer = RoleTrainer(
        model=model,
        args=for_measuring(training, out),
        train_dataset=rows,  # TRL wants one
        processing_class=tokenizer,
    )
    nll: dict[str, Floats] = {}
    for voice, number in (("base", None), ("adapter", 0)):
        with adapter_switched_on(model, number):
            nll[voice], tokens = trainer.predict(rows).predictions.T
        check_numbers(nll[voice], voice)
    lines = write_lines(recipe, model, tokenizer, turns)
    languages = [example.language for example in prepared.examples]
    groups = [*(["all"] if len(set(languages)) > 1 else []), *sorted(set(languages))]
    figures = {
        "data": prepared.identity(),
        "cut": prepared.cut,
        "left_out": left_out,
        "max_length": training.max_length,
        "seed": training.seed,
        "base": recipe.model.model_name_or_path,
        "adapter": {"folder": adapter.resolve().name, "sha256": sha256_file(adapter / WEIGHTS)},
        "precision": "bf16 autocast" if training.bf16 else str(model.dtype).removeprefix("torch."),
        "perplexity": [perplexity_figures(languages, tokens, nll, group) for group in groups],
        "lines": [line_figures(lines, of, voice) for of in sorted({line["language"] for line in lines}) for voice in VOICES],
    }
    write_text(out / "lines.jsonl", "".join(f"{orjson.dumps(line).decode()}\n" for line in lines))
    shown = tables(figures)
    write_text(out / "compare.md", "\n".join(map(to_markdown, shown)))
    write_json(out / "compare.json", figures)
    console = Screen()
    for table in shown:
        to_console(table, console)
    console.print(f"written: {out}/ (compare.json, compare.md, lines.jsonl)")
