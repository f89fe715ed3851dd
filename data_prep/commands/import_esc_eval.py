"""Import of a user's own clone of the published ESC-Eval repository."""

import tempfile
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from core.errors import UserError
from core.files import write_bytes
from core.languages import PAPER_LANGUAGES
from core.ledger import Build
from core.options import console
from core.prompts import PromptPack
from core.records import Language, RoleCard
from core.rows import CorpusReader
from core.side_prompts import SUPPORTER_PAPER
from data_prep.cards import load_cards
from data_prep.published import Clone, find_clone, read_dialogues, read_scores
from data_prep.published.checkout import escaped, write_pack
from data_prep.published.comparison import NotCompared, PublishedPart, compare
from data_prep.published.prompts import (
    GREETING,
    INTERNLM2_CODE,
    JUDGE,
    JUDGE_SYSTEM,
    SEEKER,
    PublishedPrompts,
    find_prompts,
    internlm2_system,
    pack_files,
)

R = TypeVar("R", bound=BaseModel)
_FILES_OF = {"seeker": (SEEKER, GREETING), "supporter": (SUPPORTER_PAPER,), "judge": (JUDGE, JUDGE_SYSTEM)}
_NAMES = {SEEKER: "seeker's system message", GREETING: "greeting", JUDGE: "judge's message"}
CLONE, INTERNLM2 = "esc_eval", "internlm2"  # the sources' names in --source
_FILE = {"high cards": "cards", "test cards": "test_cards"}
FILES = ("cards_*.jsonl", "test_cards_*.jsonl", "prompts/*", "prompts/en/*", "prompts/zh/*")


def import_clone(folder: Path, internlm2: Path | None, build: Build) -> None:
    """Write the cards, dialogues, verdicts and prompts of a clone, and how the prompts compare with its scripts. `internlm2` is
    the folder of internlm2-chat-7b as downloaded. Raises `UserError` for a folder without published files and for a wrong row
    of cards; malformed dialogues and scores are left out and printed with their place."""
    clone = find_clone(folder)
    prompts = find_prompts(clone.scripts)
    if internlm2 is not None:
        prompts.judge_system = escaped(internlm2_system(internlm2))
    build.input(*clone.cards.values(), *(run.path for run in (*clone.results.values(), *clone.scores.values())))
    build.input(*clone.scripts, *([internlm2 / INTERNLM2_CODE] if internlm2 else []))
    cards: dict[tuple[str, Language], list[RoleCard]] = {}
    for (kind, language), path in clone.cards.items():
        cards[kind, language] = load_cards(path)
        build.step(f"{kind} {language}", len(cards[kind, language]))
        if other := [card.id for card in cards[kind, language] if card.language != language]:
            raise UserError(f"{path}: card {other[0]} is not in the language of the file's name ({language})")
        build.write(f"{_FILE[kind]}_{language}.jsonl", cards[kind, language])
    reader = CorpusReader(build.step("dialogues"), tidy=False)
    of_run = [read_dialogues(run, cards.get(("test cards", run.language), []), reader) for run in clone.results.values()]
    ids = {dialogue.id for dialogue in _collect(build, reader, list(chain.from_iterable(of_run)))}
    reader = CorpusReader(build.step("judgements"), tidy=False)
    _collect(build, reader, [verdict for run in clone.scores.values() for verdict in read_scores(run, ids, reader)])
    files = pack_files(prompts)
    parts, reason = _compared(clone, cards, prompts, files)
    # Files whose prompts differed from the scripts in the comparison are not listed as published.
    own = {name for part in parts if part.difference for name in _FILES_OF.get(part.name, ())}
    own |= {JUDGE_SYSTEM} if prompts.judge_system is None else set()
    write_pack(build, files, [name for name in files if name.split("/")[-1] in own])
    build.figures["comparison"] = [part._asdict() for part in parts] if reason is None else reason
    for problem in prompts.problems:
        console.print(f"left out: {problem}")
    wanted = {f"{code}/{name}": f"{what} ({code}) in the scripts" for name, what in _NAMES.items() for code in PAPER_LANGUAGES}
    for missing in (*clone.missing(), *(what for file, what in wanted.items() if file not in files)):
        console.print(f"not found: {missing}")
    if prompts.judge_script and internlm2 is None:
        console.print("not in the clone: the judge's system message (InternLM2's default). Ours is used unless you give the")
        console.print(f"  folder of internlm2-chat-7b with --source {INTERNLM2}=FOLDER")
    if reason is not None:
        console.print(f"not compared with the published scripts: {reason}", soft_wrap=True)
    for part in parts:
        what = f"{part.name}, {part.language} ({part.calls} calls)" if part.language else f"{part.name} ({part.calls} models)"
        console.print(f"compared with the published scripts: {what}: {part.difference or 'equal'}", soft_wrap=True)


def _collect(build: Build, reader: CorpusReader, records: list[R]) -> list[R]:
    """A reader's records, written to a file named after its step."""
    reader.step.kept = len(records)
    for problem in reader.problems:
        console.print(f"left out: {problem}")
    if reader.step.taken:
        build.write(f"{reader.step.name}.jsonl", records)
    return records


def _compared(
    clone: Clone,
    cards: Mapping[tuple[str, Language], Sequence[RoleCard]],
    prompts: PublishedPrompts,
    files: Mapping[str, bytes],
) -> tuple[list[PublishedPart], str | None]:
    """How the imported prompts compare with the scripts, or why they were not compared."""
    played: dict[Language, tuple[Path, Sequence[RoleCard]]] = {}
    for language in (language for kind, language in clone.cards if kind == "high cards"):
        key = ("test cards" if ("test cards", language) in cards else "high cards", language)
        if all(f"{language}/{name}" in files for name in (*_NAMES, SUPPORTER_PAPER)):
            played[language] = clone.cards[key], cards[key]
    if not played:
        return [], "the clone has no role cards or not all of the prompts"
    samples = {run.language: run.path for run in reversed(clone.results.values())}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            write_bytes(Path(folder) / name, content)
        try:
            return list(compare(prompts, PromptPack(f"{folder}/"), played, samples)), None
        except NotCompared as error:
            return [], str(error)
