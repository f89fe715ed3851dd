"""Training: tokens a second and the share of padding, examples of like length together (what the recipes ask for) beside
batches as they come (plain padding)."""

import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from core.files import CONFIGS, write_jsonl
from core.records import Record
from data_prep.role_play.examples import RoleExample
from tests.bench.figures import OUT, Bench, OutOption, RunsOption
from tests.bench.role_sft import sentence, vocabulary

PLAIN, GROUPED = "random", "group_by_length"
WARM_UP = 2  # steps before the clock runs
EPOCH = 200  # batches
RECIPE = CONFIGS / "train" / "esc_role_embedded.yaml"


def examples(count: int, name: str) -> list[Record]:
    """Dialogues of random words whose lengths spread as real ones do: 2 to 14 exchanges, lines of 4 to 40 words."""
    rng, words = random.Random(name), vocabulary("en")
    made: list[Record] = []
    for number in range(count):
        messages = [{"role": "system", "content": sentence(rng, words, "en", 60)}]
        for turn in range(2 * rng.randint(2, 14)):
            line = sentence(rng, words, "en", rng.randint(4, 40))
            messages.append({"role": "assistant" if turn % 2 else "user", "content": line})
        given = {"id": f"{name}-{number}", "language": "en", "kind": "support", "source": "generated", "source_id": str(number)}
        made.append(RoleExample.model_validate(given | {"turns": len(messages) - 1, "tokens": 1, "messages": messages}))
    return made


def padding(batches: list[list[int]]) -> float:
    """The share of padding when every batch is as wide as its longest example; `batches` holds lengths."""
    wide = sum(max(batch) * len(batch) for batch in batches)
    return 1 - sum(map(sum, batches)) / wide


def train(folder: Path, strategy: str, steps: int, batch: int, length: int, number: int) -> tuple[float, float]:
    """Train on some batches of an epoch, the same number whichever way they were made: (tokens a second without padding, share
    of padding of the whole epoch)."""
    from transformers import TrainerCallback

    from tests.train.conftest import untrained
    from train.recipes import parse_recipe

    settings: dict[str, Any] = {
        "train_file": folder / "train.jsonl",
        "valid_file": folder / "valid.jsonl",
        "max_length": length,
        "seed": number,
    }
    settings |= {"output_dir": folder / f"{strategy}-{number}", "train_sampling_strategy": strategy, "save_strategy": "no"}
    settings |= {"max_steps": steps + WARM_UP, "per_device_train_batch_size": batch, "gradient_accumulation_steps": 1}
    settings |= {"disable_tqdm": True}
    overrides = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    trainer = untrained(parse_recipe("role", ["--config", str(RECIPE), *overrides]))
    clock: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            clock.append(time.perf_counter())

    lengths = [len(ids) for ids in trainer.train_dataset["input_ids"]]
    order = list(trainer._get_train_sampler())
    epoch = [order[start : start + batch] for start in range(0, len(order) - batch + 1, batch)]
    drawn = random.Random(number).sample(epoch, steps + WARM_UP)
    trainer._get_train_sampler = lambda *given: [index for each in drawn for index in each]
    trainer.add_callback(Clock())
    trainer.train()
    assert len(clock) == len(drawn)
    tokens = sum(lengths[index] for each in drawn[WARM_UP:] for index in each)
    return tokens / (clock[-1] - clock[WARM_UP - 1]), padding([[lengths[index] for index in each] for each in epoch])


def main(
    steps: Annotated[int, typer.Option(help="Counted steps of each training.")] = 16,
    batch: Annotated[int, typer.Option(help="Examples a step.")] = 4,
    length: Annotated[int, typer.Option(help="Longest example, tokens.")] = 1024,
    runs: RunsOption = 1,
    out: OutOption = OUT,
) -> None:
    """(f) Training: tokens a second and share of padding, examples grouped by length beside plain padding."""
    title = f"(f) Training: {RECIPE.name}, tokens that are no padding"
    bench = Bench("training", title, steps=steps, batch=batch, longest=length, runs=runs)
    found: dict[str, list[tuple[float, float]]] = {PLAIN: [], GROUPED: []}
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_jsonl(folder / "train.jsonl", examples(EPOCH * batch, "train"))
        write_jsonl(folder / "valid.jsonl", examples(4, "valid"))
        for number in range(runs):
            for strategy, measured in found.items():
                measured.append(train(folder, strategy, steps, batch, length, number))
                bench.say(f"{strategy}: {measured[-1][0]:.0f} tokens/s, {100 * measured[-1][1]:.1f} % padding")
    plain = {"plain padding": [speed for speed, _ in found[PLAIN]]}
    for strategy, label in ((PLAIN, "plain padding"), (GROUPED, "grouped by length")):
        peers = {} if strategy == PLAIN else plain
        bench.add(f"{label}: tokens/s", [speed for speed, _ in found[strategy]], peers=peers)
        bench.add(f"{label}: share of padding", [share for _, share in found[strategy]])
    ratios = [grouped[0] / one[0] for grouped, one in zip(found[GROUPED], found[PLAIN], strict=True)]
    bench.add("tokens/s, grouped ÷ plain", ratios, at_least=1.0)
    bench.deliver(out)
