"""Compares a trained simulator with its base on held-out support dialogues: perplexity of real seeker lines, and own lines."""

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
from train.models import adapter_switched_on, load_adapted, load_tokenizer
from train.recipes import Recipe
from train.run import check_numbers

Floats = NDArray[np.float64]
Line = dict[str, Any]
LINES = 32  # seeker lines to generate, one per dialogue
NEW_TOKENS = 64  # of a line, at most
VOICES = ("base", "adapter", "real")


def weighted(totals: Floats, weights: Floats) -> Estimate:
    """sum(totals) / sum(weights) with its 95 % bootstrap interval; both [n], drawn together."""
    draws = resampled_means(totals[:, None], weights[:, None])[:, 0]
    return estimate(float(totals.sum() / weights.sum()), draws, len(totals), len(totals))


def ratio(adapter: Floats, base: Floats, tokens: Floats) -> Estimate:
    """The adapter's perplexity over the base's, from both sums (nats) and the tokens of each dialogue, drawn together."""
    nats = weighted(adapter - base, tokens)
    mean, low, high = (None if bound is None else math.exp(bound) for bound in (nats.mean, nats.low, nats.high))
    return Estimate(mean, low, high, nats.n)


def draw_turns(prepared: Prepared, count: int, seed: int, max_length: int | None) -> list[tuple[RoleExample, int]]:
    """`count` dialogues (or all) drawn by the seed, each with a seeker line, not its first, that begins within `max_length`."""
    rng = random.Random(seed)
    usable = []
    for example, row in zip(prepared.examples, prepared.rows, strict=True):
        scored = [label != IGNORED for label in row["labels"]]
        begun = sum(is_scored and not before for before, is_scored in zip([False, *scored], scored, strict=False))
        turns = [place for place, message in enumerate(example.messages) if message["role"] == "assistant"][1:begun]
        if turns:
            usable.append((example, turns))
    if not usable:
        within = f" within {max_length} tokens" if max_length else ""
        raise UserError(f"{prepared.path}: no dialogue{within} has a second seeker line")
    chosen = sorted(rng.sample(range(len(usable)), min(count, len(usable))))
    return [(usable[place][0], rng.choice(usable[place][1])) for place in chosen]


def write_lines(recipe: Recipe[Any], model: Any, tokenizer: Any, turns: Sequence[tuple[RoleExample, int]]) -> list[Line]:
    """The greedy lines of base and adapter at these places, under our template, beside the real lines. `turn` is the line's
    index among the messages; `*_ended` is False if `NEW_TOKENS` cut a line off."""
    import torch

    from train.batches import left_padded

    template = template_of(tokenizer)
    prompts = [encode_prompt(tokenizer, example.messages[:turn], template) for example, turn in turns]
    lines: list[Line] = []
    for example, turn in turns:
        before, real = (message["content"] for message in example.messages[turn - 1 : turn + 1])
        lines.append({"id": example.id, "language": example.language, "turn": turn, "asked": before, "real": real})
    training, end = recipe.training, template.end
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
                    repetition_penalty=1.0,  # some bases' generation configs set one, which also affects greedy search
                    eos_token_id=ends,
                    pad_token_id=end,
                )
            for line, tokens in zip(lines[first : first + size], generated[:, ids.shape[1] :].tolist(), strict=True):
                stop = next((place for place, token in enumerate(tokens) if token in ends), None)
                text = tokenizer.decode(tokens[:stop], skip_special_tokens=True).strip()
                line |= {voice: text, f"{voice}_ended": stop is not None}
    return lines


def line_figures(lines: Sequence[Line], language: Language, voice: str) -> dict[str, Any]:
    """The figures of one voice's lines in one language: length in `units`, distinct-n as shares, other shares in %."""
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
    """Perplexities (exp of the mean over tokens) of the dialogues in one language, or in `all`; `ratio` is the adapter's over
    the base's. `nll` has the nats of base and adapter for each dialogue, over as many `tokens`."""
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
    """The tables that are printed and written to compare.md."""
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
            f"Validation dialogues of {figures['data']['file']}, seeker lines only, under the training template; {cut}, "
            f"{figures['left_out']} without a seeker left out. Interval: 95 %, paired bootstrap over dialogues.",
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
            "One line from each drawn dialogue, never its first. Length in words (en) or characters (zh), with a bootstrap "
            f"interval; base and adapter are cut off at {NEW_TOKENS} tokens. Shares with Wilson's 95 % interval. Compare "
            "distinct-n only between lines of similar length. Fixed phrases (data_prep/line_checks.py) find lines that give "
            "the machine away or speak as the supporter; the share of real lines shows their false alarms.",
        ),
    )
    return [perplexities, lines]


def read_held_out(recipe: Recipe[Any], path: Path) -> tuple[list[RoleExample], int]:
    """A file's support dialogues, sorted by id so that draws do not depend on the order of rows, and the number of other
    dialogues. Raises `UserError` if there are none, or if the recipe trains on one."""
    examples = read_role(path)
    support = sorted((example for example in examples if example.kind == "support"), key=lambda example: example.id)
    if not support:
        raise UserError(f"{path}: no dialogue of kind support, so there is no seeker to compare")
    train = Path(recipe.data.train_file)
    if (train.exists() or hub_dataset(train)) and (shared := {e.id for e in support} & {e.id for e in read_role(train)}):
        raise UserError(f"{path}: shares {len(shared)} dialogues with {train}, for example {min(shared)}: give held-out ones")
    return support, len(examples) - len(support)


def run(recipe: Recipe[Any], path: Path, adapter: Path, out: Path, count: int = LINES) -> None:
    """Compare an adapter with its base on a file's held-out dialogues, with `count` lines of each; write the figures."""
    from train.trainers import RoleTrainer, for_measuring

    training = recipe.training
    examples, left_out = read_held_out(recipe, path)
    tokenizer = load_tokenizer(recipe)
    prepared = prepare_role(path, examples, tokenizer, training.max_length)
    turns = draw_turns(prepared, count, training.seed, training.max_length)
    model = load_adapted(recipe, {adapter.name: adapter})
    rows = prepared.dataset()
    args = for_measuring(training, out)
    trainer = RoleTrainer(model=model, args=args, train_dataset=rows, processing_class=tokenizer)  # TRL needs training data
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
        "lines": [
            line_figures(lines, code, voice) for code in sorted({line["language"] for line in lines}) for voice in VOICES
        ],
    }
    write_text(out / "lines.jsonl", "".join(f"{orjson.dumps(line).decode()}\n" for line in lines))
    write_text(out / "compare.md", "\n".join(map(to_markdown, tables(figures))))
    write_json(out / "compare.json", figures)
    console = Screen()
    for table in tables(figures):
        to_console(table, console)
    console.print(f"written: {out}/ (compare.json, compare.md, lines.jsonl)")
