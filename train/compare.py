"""Measures trained adapters on held-out data without a server (`python -m train test`).

A simulator is compared with its base on support dialogues: perplexity of real seeker lines, and own lines. A ranker's base,
untrained and under each adapter, scores a test split: the trainer's own validation gives the answers
(`RankTrainer.prediction_step`), as a constrained server would.
"""

import math
import random
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import orjson
from numpy.typing import NDArray

from core.errors import UserError
from core.files import read_object, sha256_file, write_json, write_jsonl, write_text
from core.judge_prompts import PromptMethod
from core.records import Judgement, Language
from core.rubrics import Rubric
from core.statistics.accuracy import share
from core.statistics.bootstrap import estimate, resampled_means
from core.tables import Estimate, Screen, Table, to_console, to_markdown
from data_prep.line_checks import MACHINE, SUPPORTER, distinct, says, units
from data_prep.role_play.examples import RoleExample
from data_prep.scores.rank_sft import RankExample
from serve.checkpoints.lora import WEIGHTS
from train.example_files import hub_dataset, read_rank, read_role, rubric_beside
from train.examples import IGNORED, Prepared, encode_prompt, prepare_rank, prepare_role, score_tokens, template_of
from train.models import adapter_switched_on, load_adapted, load_tokenizer
from train.recipes import UNTRAINED, Recipe, may_read_trees
from train.run import check_numbers, say

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

    from train.steps import left_padded

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


def compare_seeker(recipe: Recipe[Any], path: Path, adapter: Path, out: Path) -> None:
    """Compare an adapter with its base on a file's held-out dialogues, with `LINES` lines of each; write the figures."""
    from train.trainers import RoleTrainer, for_measuring

    training = recipe.training
    examples, left_out = read_held_out(recipe, path)
    tokenizer = load_tokenizer(recipe)
    prepared = prepare_role(path, examples, tokenizer, training.max_length)
    turns = draw_turns(prepared, LINES, training.seed, training.max_length)
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


def judge_split(recipe: Recipe[Any], test: Path, adapters: dict[str, Path], untrained: bool, out: Path) -> None:
    """Write the judgements of a test split by each adapter and, with `untrained`, by the base alone."""
    from datasets import Dataset

    from train.steps import RankPadding
    from train.trainers import RankTrainer, as_trees, for_measuring

    rubric, method = rubric_beside(test), method_beside(test)
    examples = read_rank(test, recipe.data.dimension, recipe.data.language)
    tokenizer = load_tokenizer(recipe)
    tokens = score_tokens(tokenizer, [*map(int, rubric.scores)], f"base {recipe.model.model_name_or_path}")
    model = load_adapted(recipe, adapters)
    limit = getattr(model.config, "max_position_embeddings", None)
    prepared = prepare_rank(test, examples, tokenizer, limit, tokens, over_scale=True)
    for number, (row, example) in enumerate(zip(prepared.rows, prepared.examples, strict=True)):
        digits = len(example.labels)
        # The trainer identifies dimensions by number; here each example has its own, by which its answers are found again.
        row |= {"keys": [number] * digits, "targets": [0.0] * digits, "weights": [1.0] * digits}
    if may_read_trees(recipe, prepared.examples):
        prepared.rows = as_trees(prepared.rows, prepared.examples)
    args = for_measuring(recipe.training, out)
    args.remove_unused_columns, args.label_names = False, ["labels"]
    rows = Dataset.from_list(prepared.rows)
    trainer = RankTrainer(
        model=model,
        args=args,
        train_dataset=rows,  # TRL needs one
        processing_class=tokenizer,
        data_collator=RankPadding(tokenizer.pad_token_id),
        score_tokens=list(tokens.values()),
        digits=max(len(example.labels) for example in prepared.examples),
        over_scale=True,
    )
    dialogues = len({example.dialogue_id for example in examples})
    timing_file = out / "timing.json"
    timing = read_object(timing_file, "seconds by judge") if timing_file.is_file() else {}
    judges: list[tuple[str, int | None]] = [(UNTRAINED, None)] if untrained else []
    judges += [(name, number) for number, name in enumerate(adapters)]
    for name, adapter in judges:
        started = time.monotonic()
        with adapter_switched_on(model, adapter):
            output = trainer.predict(rows)
        seconds = time.monotonic() - started
        numbers = output.label_ids[..., 0]
        shares = {e.id: output.predictions[numbers == place] for place, e in enumerate(prepared.examples)}
        check_numbers(np.concatenate(list(shares.values())), name)
        records = [r for example in examples for r in judgements(example, shares.get(example.id), name, rubric, method)]
        write_jsonl(out / f"judgements-{name}.jsonl", records)
        timing[name] = {"seconds": seconds, "dialogues": dialogues, "seconds_per_dialogue": seconds / dialogues}
        write_json(timing_file, timing)
        unread = sum(record.value is None for record in records)
        tail = f", {unread} without a score (longer than the context of {limit} tokens)" if unread else ""
        say(f"{name}: {len(records)} judgements of {dialogues} dialogues, {seconds / dialogues:.2f} s per dialogue{tail}")


def method_beside(path: Path) -> PromptMethod:
    """The prompt method of the examples, from manifest.json beside them; `UserError` if it has none."""
    manifest = path.parent / "manifest.json"
    settings = read_object(manifest, "the manifest of rank-sft").get("settings")
    method = settings.get("method") if isinstance(settings, dict) else None
    if method not in get_args(PromptMethod):
        raise UserError(f"{manifest}: settings.method: {method!r} is not one of {', '.join(get_args(PromptMethod))}")
    return cast(PromptMethod, method)


def judgements(
    example: RankExample, shares: NDArray[np.float64] | None, name: str, rubric: Rubric, method: PromptMethod
) -> list[Judgement]:
    """One record per dimension of the example. `shares` [D, S] are the probabilities of its digits; None: context exceeded."""
    scores = rubric.scores
    condition = {"mode": "paper" if method == "paper" else "native", "where": "in-process"}
    common: dict[str, Any] = {"dialogue_id": example.dialogue_id, "language": example.language, "judge": name}
    common |= {"rubric": rubric.name, "method": method}
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
