"""`import-esc-eval` reads a user's own clone of the published ESC-Eval repository."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel

from core.errors import UserError
from core.files import write_bytes
from core.ledger import Build
from core.options import OutOption, StrictOption, console, writes
from core.paths import IN_FOLDER, Writes
from core.records import Language, RoleCard
from core.rows import CorpusReader
from data_prep.cards import load_cards
from data_prep.published import Clone, find_clone, read_dialogues, read_scores
from data_prep.published.prompts import LANGUAGES, PublishedPrompts, edited, find_prompts, pack_files

R = TypeVar("R", bound=BaseModel)
_FILE = {"high cards": "cards", "test cards": "test_cards"}
_FILES = (
    "cards_*.jsonl",
    "test_cards_*.jsonl",
    "dialogues.jsonl",
    "judgements.jsonl",
    "prompts/*",
    "prompts/en/*",
    "prompts/zh/*",
)


def import_esc_eval(
    source: Annotated[
        Path, typer.Option("--source", metavar="CLONE", help="Your clone of the published repository."), IN_FOLDER
    ],
    out: Annotated[OutOption, writes(*_FILES)],
    prompts_out: Annotated[
        Path | None,
        typer.Option("--prompts-out", help="Folder for the prompt pack; OUT/prompts if not given."),
        Writes(("en/*", "zh/*", ".gitignore")),
    ] = None,
    strict: StrictOption = False,
) -> None:
    """Import cards, sample dialogues, scores and prompts of the published ESC-Eval repository from your own clone.

    The scripts are read, never run. The prompts become a prompt pack for paper mode: name its folder under `prompts` in an
    evaluation config. Those that you have edited since the last import stay as they are. Cards must be right in every row;
    malformed dialogues and scores are left out with their place. The repository states no licence: keep what is imported on
    your machine.
    """
    clone = find_clone(source.expanduser())
    prompts_found = find_prompts(clone.scripts)
    pack = prompts_out or out / "prompts"
    build = Build(out, "import-esc-eval", settings={"strict": strict, "prompts": str(pack)})
    build.input(*clone.cards.values(), *(run.path for run in (*clone.results.values(), *clone.scores.values())))
    build.input(*clone.scripts)
    cards = _cards(clone, build)
    _runs(clone, cards, build, strict)
    missing = [*clone.missing(), *_missing_prompts(prompts_found)]
    files = _write_prompts(pack, prompts_found, build)
    for problem in prompts_found.problems:
        console.print(f"left out: {problem}")
    for name in missing:
        console.print(f"not found: {name}")
    if prompts_found.judge:
        console.print("not in the clone: the judge's system message (InternLM2's default); ours stands in as")
        console.print(f"  {pack}/LANGUAGE/judge_paper_system.j2: edit it for your own runs")
    build.finish(console)
    if files:
        console.print(f"prompt pack: {pack} ({len(files)} files; git-ignored)")


def _cards(clone: Clone, build: Build) -> dict[tuple[str, Language], list[RoleCard]]:
    """Every card file as JSONL: cards_LANGUAGE.jsonl and test_cards_LANGUAGE.jsonl."""
    cards = {}
    for (kind, language), path in clone.cards.items():
        step = build.step(f"{kind} {language}")
        cards[kind, language] = load_cards(path)
        step.taken = step.kept = len(cards[kind, language])
        other = [card.id for card in cards[kind, language] if card.language != language]
        if other:
            raise UserError(f"{path}: card {other[0]} is not in the language of the file's name ({language})")
        build.write(f"{_FILE[kind]}_{language}.jsonl", cards[kind, language])
    return cards


def _runs(clone: Clone, cards: dict[tuple[str, Language], list[RoleCard]], build: Build, strict: bool) -> None:
    """dialogues.jsonl and scores.jsonl of all supporters."""
    dialogues = _collect(
        build,
        "dialogues",
        strict,
        lambda reader: (
            dialogue
            for run in clone.results.values()
            for dialogue in read_dialogues(run, cards.get(("test cards", run.language), []), reader)
        ),
    )
    known = {dialogue.id for dialogue in dialogues}
    _collect(
        build,
        "judgements",
        strict,
        lambda reader: (score for run in clone.scores.values() for score in read_scores(run, known, reader)),
    )


def _collect(build: Build, name: str, strict: bool, read: Callable[[CorpusReader], Iterable[R]]) -> list[R]:
    step = build.step(name)
    reader = CorpusReader(step, strict)
    records = list(read(reader))
    step.kept = len(records)
    for problem in reader.problems:
        console.print(f"left out: {problem}")
    if step.taken:
        build.write(f"{name}.jsonl", records)
    return records


def _write_prompts(pack: Path, published: PublishedPrompts, build: Build) -> list[str]:
    """The prompt pack, but for files that somebody has edited since the last import: they stay, which is said. Its files."""
    files = pack_files(published)
    before = build.earlier()
    same = before.get("settings", {}).get("prompts") == str(pack)
    kept = edited(pack, files, before.get("figures", {}).get("prompts", {}) if same else {})
    for name, content in files.items():
        if name in kept:
            continue
        if pack == build.out / "prompts":
            write_bytes(build.folder / "prompts" / name, content)
            build.output(f"prompts/{name}")
        else:
            write_bytes(pack / name, content)
    build.figures = {"prompts": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}}
    if kept:
        text = f"kept as edited in {pack}: {', '.join(kept)}; to get a published one back, delete it and run this again"
        console.print(text, soft_wrap=True)
    return list(files)


def _missing_prompts(published: PublishedPrompts) -> list[str]:
    kinds: dict[str, Mapping[Language, object]] = {
        "seeker's system message": published.seeker,
        "greeting": published.greeting,
        "judge's message": published.judge,
    }
    return [f"{kind} ({language}) in the scripts" for kind, by in kinds.items() for language in LANGUAGES if language not in by]
