"""The reward of a toy supporter in training, step by step, for three seeds: as JSON and as a picture of the documents."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from core.files import write_json, write_text
from tests.bench.figures import OUT, OutOption
from tests.endpoint import Endpoint
from tests.train.grpo_toy import behave, train_toy

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 640, 320, 56, 24, 88, 44
_COLOURS = ("#1b6ca8", "#c0562b", "#3f8f4f", "#7a4fa3", "#8a7a1f")


def main(
    steps: Annotated[int, typer.Option(min=2, help="Optimizer steps of each training.")] = 30,
    seeds: Annotated[int, typer.Option(min=1, max=len(_COLOURS), help="How many trainings, with seeds from 0.")] = 3,
    picture: Annotated[Path, typer.Option(help="The SVG file to write.")] = Path("docs/reward_curve.svg"),
    out: OutOption = OUT,
) -> None:
    """Train a toy supporter with a scripted seeker and judge, and draw its reward: two minutes on two cores."""
    curves: dict[int, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, Endpoint(behave=behave, models=("seeker", "judge")) as endpoint:
        for seed in range(seeds):
            curves[seed] = train_toy(Path(folder), endpoint.url, seed, steps)
    write_json(out / "reward_curve.json", {"rewards": {str(seed): curve for seed, curve in curves.items()}})
    write_text(picture, drawn(curves))
    console = Console()
    for seed, curve in curves.items():
        console.print(f"seed {seed}: " + " ".join(f"{reward:.2f}" for reward in curve), soft_wrap=True, highlight=False)


def drawn(curves: Mapping[int, Sequence[float]]) -> str:
    """The curves as SVG: steps to the right, rewards from 0 to 1 upwards."""
    steps = max(map(len, curves.values()))

    def x(step: int) -> float:
        return round(_LEFT + (step - 1) / (steps - 1) * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(reward: float) -> float:
        return round(_HEIGHT - _BOTTOM - reward * (_HEIGHT - _TOP - _BOTTOM), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for tenth in range(0, 11, 2):
        level = y(tenth / 10)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{level}" y2="{level}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{level + 4}" text-anchor="end">{tenth / 10:.1f}</text>')
    for step in sorted({1, *range(5, steps + 1, 5), steps}):
        parts.append(f'<text x="{x(step)}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{step}</text>')
    parts.append(f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">step</text>')
    parts.append(f'<text x="{_LEFT}" y="{_TOP - 8}">mean reward of 16 dialogues</text>')
    for (seed, curve), colour in zip(curves.items(), _COLOURS, strict=False):
        points = " ".join(f"{x(step)},{y(reward)}" for step, reward in enumerate(curve, start=1))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        place = _TOP + 16 * (seed + 1)
        parts.append(f'<text x="{_WIDTH - _RIGHT + 12}" y="{place}" fill="{colour}">seed {seed}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
