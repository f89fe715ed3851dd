"""Train a supporter by reinforcement learning (GRPO): it talks to the seeker, and the ranker's scores are its reward.

    accelerate launch train/esc_supporter.py --config configs/train/esc_supporter.yaml [--beta 0.02 …]

Seeker and ranker are served elsewhere. Rewards can be gamed: docs/train.md says how to check. Running the identical command
again resumes from the last checkpoint.
"""

from core.starting import interrupted  # noqa: F401 - before the slow imports

import asyncio
import sys
from pathlib import Path
from typing import Any

from core.errors import run_cli
from core.files import read_object, write_json
from evalsuite.environment import Brevity, Environment
from train import run
from train.examples import load_examples, template_of
from train.models import load_base, load_tokenizer
from train.recipes import Recipe, SupporterArguments, lora_config, parse_recipe


def main(recipe: Recipe[SupporterArguments]) -> None:
    from trl import GRPOTrainer  # torch is slow to load, so errors come first

    from train.rollouts import Rollouts, brevity, judged, policy_server
    from train.steps import SoundSteps, StepClock

    class SupporterTrainer(SoundSteps, GRPOTrainer):
        pass

    data, training = recipe.data, recipe.training
    run.check_machine(recipe)
    peft_config = lora_config(recipe.model)

    # Data: role cards
    tokenizer = load_tokenizer(recipe)
    train, valid, _ = load_examples(recipe, tokenizer)

    # Output folder
    checkpoint = run.open_output(recipe, train, valid)
    out = Path(training.output_dir)
    if run.finished(recipe):
        run.say(f"already trained: {out}/adapter")
        return

    # Seeker and ranker
    environment = Environment(
        {
            "cards": [data.train_file, data.valid_file],
            "languages": sorted({card.language for card in [*train.examples, *valid.examples]}),
            **{name: getattr(data, name) for name in ("seeker", "judge", "rubric", "method", "exchanges")},
        },
        store=out / f"calls-{training.process_index}.sqlite",
        brevity=Brevity(data.free_characters, data.length_cost),
    )

    # Model and trainer
    run.name_tracked_run(recipe)
    model = load_base(recipe)
    model.generation_config.eos_token_id = template_of(tokenizer).end
    context = training.vllm_max_model_length or model.config.max_position_embeddings
    rollouts = Rollouts(environment, tokenizer, context)
    with policy_server():
        trainer = SupporterTrainer(
            model=model,
            args=training,
            reward_funcs=[judged, brevity],
            rollout_func=rollouts,
            train_dataset=train.dataset(),
            eval_dataset=valid.dataset(),
            processing_class=tokenizer,
            peft_config=peft_config,
            callbacks=[StepClock(recipe)],
        )

    # Baselines: floors, and the base, which an untrained adapter does not change
    place = out / "baselines.json"
    if place.is_file():
        baselines = read_object(place, "baselines of a training")
    else:
        baselines = {"the base": evaluated(trainer), **floors(environment, [card.id for card in valid.examples])}
        if run.is_main_process():
            write_json(place, baselines)
    for name, figures in baselines.items():
        run.say(f"reward of {name}: {figures['reward']:.3f}")
    base = baselines["the base"]["reward"]
    if better := [name for name, figures in baselines.items() if name != "the base" and figures["reward"] >= base]:
        names = ", ".join(better)
        run.say(f"warning: {names}: rewarded like the base or better, so this judge does not see what a supporter does")

    # Train
    run.train(trainer, checkpoint)

    # Evaluate
    figures = evaluated(trainer)
    run.say(f"reward on {len(valid.examples)} held-out cards: base {base:.3f}, trained {figures['reward']:.3f}")

    # Save
    train.markers = rollouts.markers
    if train.markers:
        run.say(f"{train.markers} control markers in seekers' lines were broken up")
    metrics = {**figures, "valid_cards": len(valid.examples), "steps": run.trained_steps(trainer)}
    run.say(f"adapter: {run.export_adapter(trainer, recipe, [train, valid], metrics, baselines)}")


def evaluated(trainer: Any) -> dict[str, float]:
    """Mean reward on the validation cards, its two parts, and the policy's mean tokens per dialogue."""
    if "trackio" in trainer.args.report_to and trainer.is_world_process_zero():
        import trackio

        # TRL logs to trackio itself, and transformers has a run open only while it trains.
        trackio.init(
            project=trainer.args.project,
            name=trainer.args.run_name,
            resume="allow",
            space_id=trainer.args.trackio_space_id,
            bucket_id=trainer.args.trackio_bucket_id,
            private=trainer.args.hub_private_repo,
        )
    trainer.evaluate()
    logged = next(entry for entry in reversed(trainer.state.log_history) if "eval_reward" in entry)
    names = {
        "reward": "eval_reward",
        "judged": "eval_rewards/judged/mean",
        "brevity": "eval_rewards/brevity/mean",
        "tokens": "eval_completions/mean_length",
    }
    return {name: float(logged[key]) for name, key in names.items()}


def floors(environment: Environment, people: list[str]) -> dict[str, dict[str, float]]:
    """The rewards of supporters that need no model."""

    async def rewards() -> dict[str, float]:
        async with environment.open() as client:
            return await environment.floors(client, people)

    return {f"floor {name}": {"reward": reward} for name, reward in asyncio.run(rewards()).items()}


if __name__ == "__main__":
    run_cli(lambda: main(parse_recipe("supporter", sys.argv[1:])))
