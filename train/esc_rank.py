"""Train the ranker (ESC-RANK, ESC-Eval section 3.4): LoRA on the prompts that scoring sends, loss on people's scores.

    accelerate launch train/esc_rank.py --config configs/train/esc_rank_internlm2_7b.yaml [--loss ordinal …]

The data come from `python -m data_prep rank-sft`: one answer for all dimensions (joint), or one digit per dimension. With
`--dimension` and `--language` it trains one adapter each, as in the paper. Running the identical command again resumes.
"""

from core.starting import interrupted  # noqa: F401 - before the slow imports

import sys
from copy import copy

from core.errors import run_cli
from train import run
from train.examples import load_examples
from train.models import load_base, load_tokenizer
from train.recipes import RankArguments, Recipe, lora_config, may_read_trees, parse_recipe


def main(recipe: Recipe[RankArguments]) -> None:
    from train.steps import (
        RankPadding,  # torch is slow to load, so errors come first
        StepClock,
    )
    from train.trainers import RankTrainer, add_scores, as_trees, balanced_weights, keys_of, score_metrics

    data, training = recipe.data, recipe.training
    run.check_machine(recipe)
    peft_config = lora_config(recipe.model)

    # Data
    tokenizer = load_tokenizer(recipe)
    train, valid, tokens = load_examples(recipe, tokenizer)
    run.say(train.summary())
    run.say(valid.summary())
    keys = keys_of([*train.examples, *valid.examples])
    add_scores(train.rows, train.examples, keys, balanced_weights(train.examples) if data.class_weights == "balanced" else None)
    add_scores(valid.rows, valid.examples, keys)
    if may_read_trees(recipe, [*train.examples, *valid.examples]):
        trees = [as_trees(split.rows, split.examples) for split in (train, valid)]
        # If nothing is shared (one question per dialogue, or the paper's order), plain rows save the attention its mask.
        if any(len(rows) < len(split.rows) for rows, split in zip(trees, (train, valid), strict=True)):
            train.rows, valid.rows = trees
            run.say(train.packed())
            run.say(valid.packed())

    # Output folder
    checkpoint = run.open_output(recipe, train, valid)
    if run.finished(recipe):
        run.say(f"already trained: {training.output_dir}/adapter")
        return

    # Model and trainer
    run.name_tracked_run(recipe)
    training.remove_unused_columns = False  # the loss needs our columns
    training.label_names = ["labels"]
    args = copy(training)
    args.max_length = None  # every example fits, but TRL would cut a tree that is longer than its examples
    trainer = RankTrainer(
        model=load_base(recipe),
        args=args,
        train_dataset=train.dataset(),
        eval_dataset=valid.dataset(),
        processing_class=tokenizer,
        peft_config=peft_config,
        data_collator=RankPadding(tokenizer.pad_token_id),
        compute_metrics=score_metrics(keys, [*map(int, tokens)]),
        clock=StepClock(recipe),
        fused_qkv=data.fused_qkv,
        score_tokens=list(tokens.values()),
        digits=max(len(example.labels) for example in valid.examples),
        over_scale=data.loss_over == "scale",
        ordinal_weight=data.ordinal_weight if data.loss == "ordinal" else 0.0,
    )

    # Train
    run.train(trainer, checkpoint)

    # Evaluate
    figures = trainer.evaluate()
    endings = ("_acc", "_acc_soft", "_kappa", "_spearman", "_ece", "_n")
    valid_figures = {name.replace("eval_", "valid_", 1): value for name, value in figures.items() if name.endswith(endings)}
    metrics = {name: value for name, value in valid_figures.items() if "majority" not in name}
    majority = {name.replace("majority_", ""): value for name, value in valid_figures.items() if "majority" in name}
    run.say(
        f"validation: ACC {100 * metrics['valid_average_acc']:.1f} % (majority class {100 * majority['valid_average_acc']:.1f} "
        f"%), ACC_soft {100 * metrics['valid_average_acc_soft']:.1f} %, n {metrics['valid_average_n']:.0f}"
    )

    # Save
    metrics |= {"steps": run.trained_steps(trainer)}
    run.say(f"adapter: {run.export_adapter(trainer, recipe, [train, valid], metrics, {'majority class': majority})}")


if __name__ == "__main__":
    run_cli(lambda: main(parse_recipe("rank", sys.argv[1:])))
