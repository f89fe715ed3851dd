"""Scores a test split with a ranker's base, untrained and under each adapter, without a server (`python -m train test`): the
trainer's own validation gives the answers (`RankTrainer.prediction_step`), as a constrained server would."""

import time
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray

from core.errors import UserError
from core.files import read_object, write_json, write_jsonl
from core.judge_prompts import PromptMethod
from core.records import Judgement
from core.rubrics import Rubric
from data_prep.scores.rank_sft import RankExample
from train.example_files import read_rank, rubric_beside
from train.examples import prepare_rank, score_tokens
from train.models import adapter_switched_on, load_adapted, load_tokenizer
from train.recipes import UNTRAINED, Recipe, may_read_trees
from train.run import check_numbers, say


def run(recipe: Recipe[Any], test: Path, adapters: dict[str, Path], untrained: bool, out: Path) -> None:
    """Write the judgements of a test split by each adapter and, with `untrained`, by the base alone."""
    from datasets import Dataset

    from train.batches import RankPadding
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
