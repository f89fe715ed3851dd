"""Train the seeker simulator (ESC-Role, ESC-Eval section 2.3): LoRA on role-play dialogues, loss on the seeker's lines only.

    accelerate launch train/esc_role.py --config configs/train/esc_role_qwen1.5_14b.yaml [--learning_rate 1e-4 …]

The data are what `python -m data_prep role-sft` writes. Running the identical command again resumes from the last checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path

from core.errors import UserError, run_cli
from train.examples import prepare_role, read_role
from train.export import export_adapter, trained_steps
from train.output import check_same_everywhere, finished, open_output
from train.recipes import Recipe, RoleArguments, parse_recipe
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


def build(recipe: Recipe[RoleArguments]) -> Built | None:
    """Check everything, then load the base; None when the adapter is there already."""
    from train.lora import lora_config
    from train.role_trainer import RoleTrainer, SampleLines, perplexity

    check_one_gpu(recipe)
    data, training = recipe.data, recipe.training
    peft_config = lora_config(recipe.model)
    tokenizer = load_tokenizer(recipe)
    sets = []
    for name, limit, seed in (
        ("train_file", data.max_train_examples, training.seed),
        ("valid_file", data.max_valid_examples, 0),
    ):
        path = Path(getattr(data, name))
        sets.append(prepare_role(path, read_role(path, limit, seed), tokenizer, training.max_length))
        say(sets[-1].summary())
    train, valid = sets
    if {e.id for e in train.examples} & {e.id for e in valid.examples}:
        raise UserError(
            f"{data.valid_file}: shares dialogues with {data.train_file}: the held-out perplexity would mean nothing"
        )
    resume = open_output(recipe, sets)
    check_same_everywhere(recipe, resume)
    if finished(recipe):
        return None
    set_up_logging(recipe)
    note_slow_products(recipe)
    out = Path(training.output_dir)
    trainer = RoleTrainer(
        model=load_base(recipe),
        args=training,
        train_dataset=train.dataset(),
        eval_dataset=valid.dataset(),
        processing_class=tokenizer,
        peft_config=peft_config,
        compute_metrics=perplexity,
        callbacks=[SampleLines(valid.examples[: data.samples], tokenizer, out)],
    )
    add_settings_log(trainer, recipe, sets)
    return Built(trainer, sets, resume)


def main(recipe: Recipe[RoleArguments]) -> None:
    from train.role_trainer import SampleLines

    built = build(recipe)
    if built is None:
        say(f"already trained: {recipe.training.output_dir}/adapter")
        return
    fit(built)
    trainer, sets = built.trainer, built.sets
    found = trainer.evaluate()
    trainer.remove_callback(SampleLines)  # the base's lines are not samples of what was trained
    # After training: before it, DeepSpeed has no engine to evaluate with below stage 3.
    with trainer.accelerator.unwrap_model(trainer.model).disable_adapter():
        base = trainer.evaluate(metric_key_prefix="base")
    ratio = found["eval_perplexity"] / base["base_perplexity"]
    say(
        f"perplexity of held-out seeker lines: base {base['base_perplexity']:.3f}, trained {found['eval_perplexity']:.3f} "
        f"({ratio:.3f} ×), over {found['eval_scored_tokens']:.0f} tokens, dialogues cut to max_length"
    )
    metrics = {
        "valid_perplexity": found["eval_perplexity"],
        "valid_scored_tokens": found["eval_scored_tokens"],
        "valid_dialogues": len(sets[1].rows),
        "steps": trained_steps(trainer),
    }
    folder = export_adapter(trainer, recipe, sets, metrics, {"the base": {"valid_perplexity": base["base_perplexity"]}})
    say(f"adapter: {folder}")


if __name__ == "__main__":
    run_cli(lambda: main(parse_recipe("role", sys.argv[1:])))
