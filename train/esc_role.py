"""Train the seeker simulator (ESC-Role, ESC-Eval section 2.3): LoRA on role-play dialogues, loss on the seeker's lines only.

    accelerate launch train/esc_role.py --config configs/train/esc_role_qwen1.5_14b.yaml [--learning_rate 1e-4 …]

The data come from `python -m data_prep role-sft`. Running the identical command again resumes from the last checkpoint.
"""

from core.starting import interrupted  # noqa: F401 - before the slow imports

import sys

from core.errors import run_cli
from train import run
from train.examples import load_examples
from train.models import load_base, load_tokenizer
from train.recipes import Recipe, RoleArguments, lora_config, parse_recipe


def main(recipe: Recipe[RoleArguments]) -> None:
    from train.steps import StepClock  # torch is slow to load, so errors come first
    from train.trainers import RoleTrainer, perplexity

    training = recipe.training
    run.check_machine(recipe)
    peft_config = lora_config(recipe.model)

    # Data
    tokenizer = load_tokenizer(recipe)
    train, valid, _ = load_examples(recipe, tokenizer)
    run.say(train.summary())
    run.say(valid.summary())

    # Output folder
    checkpoint = run.open_output(recipe, train, valid)
    if run.finished(recipe):
        run.say(f"already trained: {training.output_dir}/adapter")
        return

    # Model and trainer
    run.name_tracked_run(recipe)
    trainer = RoleTrainer(
        model=load_base(recipe),
        args=training,
        train_dataset=train.dataset(),
        eval_dataset=valid.dataset(),
        processing_class=tokenizer,
        peft_config=peft_config,
        compute_metrics=perplexity,
        clock=StepClock(recipe),
    )

    # Train
    run.train(trainer, checkpoint)

    # Evaluate
    figures = trainer.evaluate()
    # After training, since below stage 3 DeepSpeed has no engine for evaluation before.
    with trainer.accelerator.unwrap_model(trainer.model).disable_adapter():
        base = trainer.evaluate(metric_key_prefix="base")
    run.say(
        f"perplexity of held-out seeker lines: base {base['base_perplexity']:.3f}, trained {figures['eval_perplexity']:.3f} "
        f"({figures['eval_perplexity'] / base['base_perplexity']:.3f} ×), over {figures['eval_scored_tokens']:.0f} tokens, "
        "dialogues cut to max_length"
    )

    # Save
    metrics = {
        "valid_perplexity": figures["eval_perplexity"],
        "valid_scored_tokens": figures["eval_scored_tokens"],
        "valid_dialogues": len(valid.rows),
        "steps": run.trained_steps(trainer),
    }
    baselines = {"the base": {"valid_perplexity": base["base_perplexity"]}}
    run.say(f"adapter: {run.export_adapter(trainer, recipe, [train, valid], metrics, baselines)}")


if __name__ == "__main__":
    run_cli(lambda: main(parse_recipe("role", sys.argv[1:])))
