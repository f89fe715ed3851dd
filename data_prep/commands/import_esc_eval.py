"""What `import` makes of a user's own clone of the published ESC-Eval repository."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from core.errors import UserError
from core.files import write_bytes
from core.ledger import Build
from core.options import console
from core.prompts import PUBLISHED, PromptPack
from core.records import LANGUAGES, Language, RoleCard
from core.rows import CorpusReader
from core.side_prompts import SUPPORTER_PAPER
from data_prep.cards import load_cards
from data_prep.published import Clone, find_clone, read_dialogues, read_scores
from data_prep.published.comparison import NotCompared, PublishedPart, compare
from data_prep.published.prompts import (
    INTERNLM2_CODE,
    JUDGE_SYSTEM,
    PublishedPrompts,
    edited,
    escaped,
    find_prompts,
    internlm2_system,
    pack_files,
    published_list,
)

R = TypeVar("R", bound=BaseModel)
_FILES_OF = {
    "seeker": ("seeker_system.j2", "greeting.txt"),
    "supporter": (SUPPORTER_PAPER,),
    "judge": ("judge_paper.j2", JUDGE_SYSTEM),
}
CLONE, INTERNLM2 = "esc_eval", "internlm2"  # names of its sources
_FILE = {"high cards": "cards", "test cards": "test_cards"}
FILES = (
    "cards_*.jsonl",
    "test_cards_*.jsonl",
    "dialogues.jsonl",
    "judgements.jsonl",
    "prompts/*",
    "prompts/en/*",
    "prompts/zh/*",
)


def import_clone(folder: Path, internlm2: Path | None, build: Build) -> None:
    """Write the cards, dialogues, verdicts and prompts of a clone, and how the prompts compare with its scripts.

    `internlm2` is the folder of internlm2-chat-7b as downloaded. Raises `UserError` for a folder without published files, and
    for cards of which any row is wrong; malformed dialogues and scores are left out, which is printed with their place.
    """
    clone = find_clone(folder)
    prompts_found = find_prompts(clone.scripts)
    if internlm2 is not None:
        prompts_found.judge_system = escaped(internlm2_system(internlm2))
    build.input(*clone.cards.values(), *(run.path for run in (*clone.results.values(), *clone.scores.values())))
    build.input(*clone.scripts, *([internlm2 / INTERNLM2_CODE] if internlm2 else []))
    cards = _cards(clone, build)
    _runs(clone, cards, build)
    missing = [*clone.missing(), *_missing_prompts(prompts_found)]
    parts, reason = _compared(clone, cards, prompts_found)
    _write_prompts(prompts_found, parts, build)
    build.figures["comparison"] = [part._asdict() for part in parts] if reason is None else reason
    for problem in prompts_found.problems:
        console.print(f"left out: {problem}")
    for name in missing:
        console.print(f"not found: {name}")
    if prompts_found.judge and internlm2 is None:
        console.print("not in the clone: the judge's system message (InternLM2's default); ours stands in, unless you give the")
        console.print(f"  folder of internlm2-chat-7b with --source {INTERNLM2}=FOLDER")
    _tell(parts, reason)


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


def _runs(clone: Clone, cards: dict[tuple[str, Language], list[RoleCard]], build: Build) -> None:
    """dialogues.jsonl and scores.jsonl of all supporters."""
    dialogues = _collect(
        build,
        "dialogues",
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
        lambda reader: (score for run in clone.scores.values() for score in read_scores(run, known, reader)),
    )


def _collect(build: Build, name: str, read: Callable[[CorpusReader], Iterable[R]]) -> list[R]:
    step = build.step(name)
    reader = CorpusReader(step, tidy=False)
    records = list(read(reader))
    step.kept = len(records)
    for problem in reader.problems:
        console.print(f"left out: {problem}")
    if step.taken:
        build.write(f"{name}.jsonl", records)
    return records


def _compared(
    clone: Clone, cards: dict[tuple[str, Language], list[RoleCard]], published: PublishedPrompts
) -> tuple[list[PublishedPart], str | None]:
    """How the imported prompts compare with the scripts, or why they were not compared."""
    files = pack_files(published)
    whole = {language: path for (kind, language), path in clone.cards.items() if kind == "high cards"}
    chosen = {language: clone.cards.get(("test cards", language), path) for language, path in whole.items()}
    played = {
        language: (path, cards["test cards" if ("test cards", language) in cards else "high cards", language])
        for language, path in chosen.items()
        if all(f"{language}/{name}" in files for name in ("seeker_system.j2", "greeting.txt", "judge_paper.j2"))
    }
    if not played or published.supporter is None:
        return [], "the clone has no role cards or not all of the prompts"
    samples = {run.language: run.path for run in reversed(clone.results.values())}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            write_bytes(Path(folder) / name, content)
        try:
            return list(compare(published, PromptPack(f"{folder}/"), played, samples)), None
        except NotCompared as error:
            return [], str(error)


def _tell(parts: Sequence[PublishedPart], reason: str | None) -> None:
    """The outcome of the comparison, a line a part."""
    if reason is not None:
        console.print(f"not compared with the published scripts: {reason}", soft_wrap=True)
    for part in parts:
        what = f"{part.name}, {part.language}" if part.language else part.name
        count = f"{part.calls} calls" if part.language else f"{part.calls} models"
        text = f"compared with the published scripts: {what} ({count}): {part.difference or 'equal'}"
        console.print(text, soft_wrap=True)


def _write_prompts(published: PublishedPrompts, parts: Sequence[PublishedPart], build: Build) -> None:
    """The prompt pack, except files that somebody has edited since the last import: they stay, which is printed. What differed
    from the scripts in the comparison is not listed as published."""
    files, pack = pack_files(published), build.out / "prompts"
    ours = {name for part in parts if part.difference for name in _FILES_OF.get(part.name, ())}
    ours |= {JUDGE_SYSTEM} if published.judge_system is None else set()
    if files:
        files[PUBLISHED] = published_list(files, ours)
    kept = edited(pack, files, build.earlier().get("figures", {}).get("prompts", {}))
    for name, content in files.items():
        if name not in kept:
            write_bytes(build.folder / "prompts" / name, content)
            build.output(f"prompts/{name}")
    build.figures = {"prompts": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}}
    if kept:
        text = f"kept as edited in {pack}: {', '.join(kept)}; to get a published one back, delete it and run this again"
        console.print(text, soft_wrap=True)
    if files:
        console.print(f"prompt pack: {pack} ({len(files)} files; git-ignored)")


def _missing_prompts(published: PublishedPrompts) -> list[str]:
    kinds: dict[str, Mapping[Language, object]] = {
        "seeker's system message": published.seeker,
        "greeting": published.greeting,
        "judge's message": published.judge,
    }
    return [f"{kind} ({language}) in the scripts" for kind, by in kinds.items() for language in LANGUAGES if language not in by]
