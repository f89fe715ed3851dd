"""Building the role-play set at full size, on perturbed rows.

Rows are dialogues of random words from the bundled texts (nothing is a near duplicate of anything), in the files that a user
gives: a quarter support dialogues with a card, the rest general role play, 20 % more of each than the quotas take.
"""

import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
import yaml

from core.files import write_jsonl
from core.records import Dialogue, Language, Line, RolePlay, SupportDialogue, Turn
from data_prep import BUNDLED
from data_prep.sources import SOURCES
from tests.bench.figures import OUT, Bench, OutOption
from tests.bench.one_run import measured

SUPPORT, ROLE_PLAY = "bundled_support", "bundled_role_play"
SPARE = 1.2  # rows beyond the quota, so that the quota step has something to do
TURNS, WORDS = 14, 22  # of a dialogue; words (en) or pairs of characters (zh) of a turn: about ESConv's length


def vocabulary(language: Language) -> list[str]:
    """Words (en) or pairs of characters (zh) of everything that the bundled samples say, repeated as often as they occur."""
    text = " ".join((BUNDLED / f"{name}_{language}.jsonl").read_text() for name in ("bases", "cards", "role_play"))
    return text.split() if language == "en" else [text[i : i + 2] for i in range(0, len(text) - 1, 2) if text[i] > "\u3000"]


def sentence(rng: random.Random, words: list[str], language: Language, count: int = WORDS) -> str:
    return (" " if language == "en" else "").join(rng.choices(words, k=count)).replace('"', "").replace("\\", "")


def support(count: int, language: Language, seed: int) -> Iterator[SupportDialogue]:
    rng, words = random.Random(f"{seed}/support/{language}"), vocabulary(language)
    for number in range(count):
        turns = tuple(
            Turn(role="seeker" if i % 2 == 0 else "supporter", text=sentence(rng, words, language)) for i in range(TURNS)
        )
        dialogue = Dialogue(
            id=f"s-{language}-{number}", language=language, source=SUPPORT, source_id=f"{language}-{number}", turns=turns
        )
        yield SupportDialogue(dialogue=dialogue, situation=sentence(rng, words, language, 40), problem="work", age="30")


def role_play(count: int, language: Language, seed: int) -> Iterator[RolePlay]:
    rng, words = random.Random(f"{seed}/role_play/{language}"), vocabulary(language)
    for number in range(count):
        said = [sentence(rng, words, language) for _ in range(TURNS)]
        yield RolePlay(
            id=f"r-{language}-{number}",
            language=language,
            source=ROLE_PLAY,
            source_id=f"{language}-{number}",
            character="Ada",
            persona=sentence(rng, words, language, 60),
            lines=tuple(
                Line(role="character", name="Ada", text=text) if i % 2 else Line(role="partner", name="Bo", text=text)
                for i, text in enumerate(said)
            ),
        )


def corpus(folder: Path, size: int, seed: int = 0) -> Path:
    """Files of both corpora, and the mix that takes `size` of them. Returns the mix's path."""
    languages: tuple[Language, ...] = ("en", "zh")
    few, many = round(0.125 * size), round(0.375 * size)
    quotas: list[dict[str, str | int]] = []
    for language in languages:
        write_jsonl(folder / f"support_{language}.jsonl", support(round(SPARE * few), language, seed))
        write_jsonl(folder / f"role_play_{language}.jsonl", role_play(round(SPARE * many), language, seed))
        quotas.append({"source": SUPPORT, "language": language, "count": few})
        quotas.append({"source": ROLE_PLAY, "language": language, "count": many})
    mix = folder / "mix.yaml"
    mix.write_text(yaml.safe_dump({"target": 2 * (few + many), "quotas": quotas}))
    return mix


def main(
    sizes: Annotated[list[int] | None, typer.Argument(help="Examples of each build. Default: 1400 14000.")] = None,
    out: OutOption = OUT,
) -> None:
    """(e) Data preparation: seconds and peak memory of `python -m data_prep role-sft` for each size, on perturbed rows."""
    assert {SUPPORT, ROLE_PLAY} <= set(SOURCES)
    sizes = sizes or [1_400, 14_000]
    bench = Bench("role_sft", "(e) Role-play set, perturbed rows", sizes=sizes)
    seconds = {}
    for size in sizes:
        bench.say(f"{size} examples")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            mix = corpus(folder, size)
            given = ["--config", str(mix), "--out", str(folder / "out")]
            given += [f"--source={source}={folder}" for source in (SUPPORT, ROLE_PLAY)]
            took, _, peak = measured(sys.executable, "-m", "data_prep", "role-sft", *given)
            built = sum(1 for part in ("train", "valid") for _ in (folder / "out" / f"{part}.jsonl").open())
        seconds[size] = took
        bench.add(f"{size:,}: built", built)
        bench.add(f"{size:,}: s", took)
        bench.add(f"{size:,}: peak memory, MB", peak)
    if len(sizes) > 1:
        bench.add(f"time, {max(sizes):,} ÷ {min(sizes):,}", seconds[max(sizes)] / seconds[min(sizes)])
    bench.deliver(out)
