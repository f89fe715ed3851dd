"""Train the ranker (ESC-RANK, ESC-Eval section 3.4): LoRA on prompts that scoring sends, loss on the scores that people gave.

    accelerate launch train/esc_rank.py --config configs/train/esc_rank_internlm2_7b.yaml [--loss ordinal …]

The data are what `python -m data_prep rank-sft` writes: one answer for all dimensions (joint), or one digit a dimension. With
`--dimension` and `--language` it trains the paper's way, one adapter each. Running the identical command again resumes.
"""

from __future__ import annotations

import sys
from copy import copy
from pathlib import Path
from typing import Any

from core.errors import UserError, run_cli
from train.chat_templates import IGNORED
from train.examples import prepare_rank, read_rank, rubric_beside, score_tokens
from train.export import export_adapter, trained_steps
from train.output import check_same_everywhere, finished, open_output
from train.recipes import RankArguments, Recipe, may_read_trees, parse_recipe
from train.session import (
    Built,
    add_settings_log,
    check_one_gpu,
    fit,
    load_base,
    load_tokenizer,
    note_slow_products,
    say,
    set_up_logging,
)


def build(recipe: Recipe[RankArguments]) -> Built | None:
    """Check everything, then load the base; None when the adapter is there already."""
    from train.last_layer import applies
    from train.lora import lora_config
    from train.rank_trainer import (
        OrdinalRankTrainer,
        Padding,
        RankTrainer,
        add_scores,
        as_trees,
        balanced_weights,
        keys_of,
        score_metrics,
    )

    check_one_gpu(recipe)
    data, training = recipe.data, recipe.training
    peft_config = lora_config(recipe.model)
    tokenizer = load_tokenizer(recipe)
    scores = list(rubric_beside(Path(data.train_file)).scores)
    tokens = score_tokens(tokenizer, scores, f"base {recipe.model.model_name_or_path}")
    sets = []
    for name, limit, seed in (
        ("train_file", data.max_train_examples, training.seed),
        ("valid_file", data.max_valid_examples, 0),
    ):
        path = Path(getattr(data, name))
        found = read_rank(path, data.dimension, data.language, limit, seed)
        sets.append(prepare_rank(path, found, tokenizer, training.max_length, tokens))
        if data.loss_over == "scale":
            for row in sets[-1].rows:
                row["labels"] = [label if label in tokens.values() else IGNORED for label in row["labels"]]
        say(sets[-1].summary())
    train, valid = sets
    if {e.id for e in train.examples} & {e.id for e in valid.examples}:
        raise UserError(f"{data.valid_file}: shares examples with {data.train_file}: validation would mean nothing")
    keys = keys_of([*train.examples, *valid.examples])
    add_scores(train.rows, train.examples, keys, balanced_weights(train.examples) if data.class_weights == "balanced" else None)
    add_scores(valid.rows, valid.examples, keys)
    trees = False
    if may_read_trees(recipe, [*train.examples, *valid.examples]):
        packed = [as_trees(each.rows, each.examples) for each in sets]
        # Where nothing is shared (one question a dialogue, or the paper's order), plain rows spare the attention its mask.
        trees = any(len(rows) < len(each.rows) for rows, each in zip(packed, sets, strict=True))
    if trees:
        for each, rows in zip(sets, packed, strict=True):
            each.rows = rows
            say(each.packed())
    resume = open_output(recipe, sets)
    check_same_everywhere(recipe, resume)
    if finished(recipe):
        return None
    set_up_logging(recipe)
    note_slow_products(recipe)
    training.remove_unused_columns = False  # the loss needs ours
    training.label_names = ["labels"]
    args = copy(training)
    args.max_length = None  # every example fits; TRL would cut a tree that is longer than its examples
    base = load_base(recipe)
    # Not in several processes: gradients are gathered where the model is called as a whole.
    last_layer = applies(base, peft_config) and training.world_size == 1
    if last_layer:
        say("only the last layer is adapted, and not its keys and values: what is below it is computed once a row and kept")
        if not trees:
            train.rows = as_trees(train.rows, train.examples)
    common: dict[str, Any] = {
        "model": base,
        "args": args,
        "train_dataset": train.dataset(),
        "eval_dataset": valid.dataset(),
        "processing_class": tokenizer,
        "peft_config": peft_config,
        "data_collator": Padding(tokenizer.pad_token_id),
        "compute_metrics": score_metrics(keys, scores),
        "score_tokens": list(tokens.values()),
        "digits": max(len(example.labels) for example in valid.examples),
        "over_scale": data.loss_over == "scale",
        "last_layer": last_layer,
        "kept": Path(data.kept_dir) if data.kept_dir else None,
    }
    ordinal = data.loss == "ordinal"
    trainer = OrdinalRankTrainer(ordinal_weight=data.ordinal_weight, **common) if ordinal else RankTrainer(**common)
    add_settings_log(trainer, recipe, sets)
    return Built(trainer, sets, resume)


def main(recipe: Recipe[RankArguments]) -> None:
    built = build(recipe)
    if built is None:
        say(f"already trained: {recipe.training.output_dir}/adapter")
        return
    fit(built)
    trainer, sets = built.trainer, built.sets
    found = trainer.evaluate()
    named = {name.removeprefix("eval_"): value for name, value in found.items() if isinstance(value, float | int)}
    shown = ("_acc", "_acc_soft", "_kappa", "_spearman", "_ece", "_n")
    kept = {f"valid_{name}": value for name, value in named.items() if name.endswith(shown)}
    metrics = {name: value for name, value in kept.items() if "majority" not in name}
    majority = {name.replace("majority_", ""): value for name, value in kept.items() if "majority" in name}
    say(
        f"validation: ACC {100 * named['average_acc']:.1f} % (majority class {100 * named['average_majority_acc']:.1f} %), "
        f"ACC_soft {100 * named['average_acc_soft']:.1f} %, n {named['average_n']:.0f}"
    )
    folder = export_adapter(trainer, recipe, sets, metrics | {"steps": trained_steps(trainer)}, {"majority class": majority})
    say(f"adapter: {folder}")


if __name__ == "__main__":
    run_cli(lambda: main(parse_recipe("rank", sys.argv[1:])))
