"""`import` converts published benchmarks and profiles, and people's scores and dialogues, to records."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel

from core.errors import UserError, near
from core.files import check_unique, first_object, write_bytes
from core.languages import PAPER_LANGUAGES
from core.ledger import Build
from core.options import OutOption, console, name_and_value, writes
from core.paths import IN_FILE, IN_PLACES
from core.prompts import SUPPORTER_PAPER, PromptPack
from core.records import Dialogue, Language, RoleCard
from core.rows import CorpusReader
from data_prep.cards import load_cards
from data_prep.commands.cards import CARDS
from data_prep.profiles.published import (
    PERSONAMEM,
    SAGE,
    find_personas,
    find_sage,
    personamem_profiles,
    sage_dialogues,
    sage_profiles,
    sage_topics,
)
from data_prep.profiles.record import Profile
from data_prep.published import BENCHMARKS, Checkout, esc_eval, escaped, write_pack
from data_prep.published.comparison import NotCompared, PublishedPart, compare
from data_prep.published.esc_eval import (
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
from data_prep.scores.corpora import CORPORA, import_corpus
from data_prep.scores.held import read_held, read_ratings, references
from data_prep.scores.human import Imported, RubricCheck, read_dialogues, read_scores

_FILES_OF = {"seeker": (SEEKER, GREETING), "supporter": (SUPPORTER_PAPER,), "judge": (JUDGE, JUDGE_SYSTEM)}
_NAMES = {SEEKER: "seeker's system message", GREETING: "greeting", JUDGE: "judge's message"}
CLONE, INTERNLM2 = "esc_eval", "internlm2"  # the sources' names in --source
_FILE = {"high cards": "cards", "test cards": "test_cards"}
FILES = ("cards_*.jsonl", "test_cards_*.jsonl", "prompts/*", "prompts/en/*", "prompts/zh/*")
_PUBLISHED, _PROFILES = (CLONE, INTERNLM2), (SAGE, PERSONAMEM)
_SCORES = ("dialogues.jsonl", "scores.jsonl", "turn_scores.jsonl", "judgements.jsonl", "references.jsonl")


def import_(
    out: Annotated[OutOption, writes("profiles.jsonl", "people_turns.jsonl", CARDS, *_SCORES, *FILES, "*.yaml", "LICEN*")],
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            metavar="NAME=PLACE",
            help="What to import, and where it is. ESC-Eval: esc_eval=CLONE, internlm2=FOLDER with it. Other "
            f"benchmarks, each from a clone: {', '.join(BENCHMARKS) or 'none yet'}. Profiles: sage, personamem. Scores: "
            "esconv, esconv_failed, esconv_multi, epitome, empathic_comm. Repeat for more.",
        ),
        IN_PLACES,
    ] = None,
    gold: Annotated[
        list[Path] | None,
        typer.Option(
            "--gold",
            help="People's scores, CSV (with header) or JSONL: dialogue_id, language, annotator, rubric, dimension, value and, "
            "for a score of one turn, turn (from 0). For held dialogues: situation, supporter, annotator, rubric, "
            "dimension, value and, if the dialogues have it, trial. Repeat for more.",
        ),
        IN_FILE,
    ] = None,
    dialogues: Annotated[
        list[Path] | None,
        typer.Option(
            "--dialogues",
            help="Records of the dialogues scored in --gold; or held dialogues, JSONL with one per line (situation, supporter, "
            "language, turns of role and text) or CSV with one utterance per row (situation, supporter, language, role, text), "
            "each optionally with trial, profile or card, and with them records of the corpus's own dialogues. Repeat for "
            "more.",
        ),
        IN_FILE,
    ] = None,
    rubric: Annotated[
        list[Path] | None,
        typer.Option("--rubric", help="YAML file of a rubric of your own that --gold names. Repeat for more."),
        IN_FILE,
    ] = None,
) -> None:
    """Convert published benchmarks and profiles, and people's scores and dialogues, to our records, one kind at a time.

    esc_eval: cards, sample dialogues, scores and prompts of your own clone of the published repository, which states no
    licence: keep what is imported on your machine. The prompts become a pack, OUT/prompts, for paper mode; those that you have
    edited stay. The scripts run on two dialogues per language, without files, network or other modules, and what they would
    send is compared with the pack: "equal", or the first difference. internlm2-chat-7b's folder has the default system message
    that the published scorer relies on.

    Other benchmarks: the cards or profiles, rubric and prompts of your own clone at its commit, with the licence, which is
    printed. Scripts of the clone are read, not run.

    sage, personamem: profiles, and SAGE's dialogues by supporter, to be scored as given dialogues.

    Scores: dialogues.jsonl and scores.jsonl and, if there are any, turn_scores.jsonl and judgements.jsonl (models' verdicts in
    a corpus). A missing answer gives no score. Malformed rows of corpora are left out; in --gold every row has to be right.

    Held dialogues (ESC-Eval's section 3.3: people discuss each situation with every supporter): the same with the ratings
    given afterwards; references.jsonl has the corpus's own dialogue of each situation, found by its source_id. Profile or card
    says who the seeker is or plays, as EmoHarbor's table 1 needs.
    """
    places: dict[str, str] = {}
    for text in source or []:
        name, place = name_and_value("--source", text, "NAME=PATH, or NAME=hf:OWNER/DATASET for the hub")
        if name not in (names := (*_PUBLISHED, *BENCHMARKS, *_PROFILES, *CORPORA)):
            raise UserError(f"--source: nothing is imported from {name!r}: {near(name, names)}")
        if name in places:
            raise UserError(f"--source: {name} is given twice")
        places[name] = place
    kinds = [_PUBLISHED, *([name] for name in BENCHMARKS), _PROFILES, CORPORA]
    given = [kind for kind in kinds if set(kind) & places.keys() or (kind is CORPORA and (gold or dialogues or rubric))]
    if not places and not gold:
        raise UserError("nothing to import: give --source NAME=PLACE or --gold FILE (own role cards: esc-data cards import)")
    if len(given) > 1:
        raise UserError("--source: import a benchmark's clone, profiles and scores one at a time, each with its own --out")
    build = Build(out, "import", settings={"source": [*places]})
    if given == [_PUBLISHED]:
        if CLONE not in places:
            raise UserError(f"--source {INTERNLM2}: give {CLONE}=CLONE, too")
        folders = {name: Path(place).expanduser() for name, place in places.items()}
        _import_clone(folders[CLONE], folders.get(INTERNLM2), build)
    elif given == [_PROFILES]:
        _import_profiles(places, build)
    elif benchmark := next((name for name in BENCHMARKS if name in places), None):
        Checkout(benchmark, Path(places[benchmark]).expanduser()).import_into(build)
    else:
        _import_scores(places, gold or [], dialogues or [], rubric or [], build)
    build.finish(console)


def _import_scores(places: dict[str, str], gold: list[Path], dialogues: list[Path], rubric: list[Path], build: Build) -> None:
    build.input(*dialogues, *gold, *rubric)
    # Held dialogues have their own form, which `read_held` reads; all others are records.
    held_files = [
        path
        for path in dialogues
        if path.suffix.lower() != ".jsonl" or {"situation", "turns"} <= first_object(path, "dialogues").keys()
    ]
    records = [path for path in dialogues if path not in held_files]
    if held_files:
        if places or not gold:
            raise UserError(f"{held_files[0]}: held dialogues are imported with their ratings (--gold), and without --source")
        talks = read_held(held_files)
        ratings = read_ratings(gold, talks, RubricCheck(rubric))
        reference_dialogues = references(records, talks) if records else []
        Imported(dialogues=list(talks.values()), scores=ratings).write(build)
        if records:
            build.write("references.jsonl", reference_dialogues)
        return
    imported = Imported()
    for name, place in places.items():
        imported.add(import_corpus(name, place, build, console))
    imported.add(Imported(dialogues=read_dialogues(records)))
    check = RubricCheck(rubric, imported.dialogues or None)
    for path in gold:
        read = read_scores(path, check)
        build.step(f"read {path.name}", len(read))
        imported.scores += [score for score in read if score.turn is None]
        imported.turn_scores += [score for score in read if score.turn is not None]
    imported.write(build)


def _import_profiles(places: dict[str, str], build: Build) -> None:
    profiles: list[Profile] = []
    dialogues: list[Dialogue] = []
    for name, place in places.items():
        if name == PERSONAMEM:
            files = find_personas(Path(place))
            profiles += [profile for file in files for profile in personamem_profiles(file)]
        else:
            file, results = find_sage(Path(place))
            topics = {key: topic for path in results.values() for key, topic in sage_topics(path).items()}
            profiles += sage_profiles(file, topics)
            dialogues += [talk for supporter, path in results.items() for talk in sage_dialogues(path, supporter)]
            files = [file, *results.values()]
        build.input(*files)
    check_unique(", ".join(places.values()), (profile.id for profile in profiles), "profile ids")
    ids = {profile.id for profile in profiles}
    for talk in dialogues:
        if talk.profile_id not in ids:
            raise UserError(f"dialogue {talk.source_id} of {talk.supporter}: its profile is not in the profile file")
    build.step("profiles", len(profiles))
    build.step("dialogues", len(dialogues))
    build.write("profiles.jsonl", profiles)
    if dialogues:
        build.write("dialogues.jsonl", dialogues)


# --- the published ESC-Eval repository ---------------------------------------------------------------------------------------


def _import_clone(folder: Path, internlm2: Path | None, build: Build) -> None:
    """Write the cards, dialogues, verdicts and prompts of a clone, and how the prompts compare with its scripts. `internlm2` is
    the folder of internlm2-chat-7b as downloaded. Raises `UserError` for a folder without published files and for a wrong row
    of cards; malformed dialogues and scores are left out and printed with their place."""
    clone = esc_eval.find_clone(folder)
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
    dialogues = [
        dialogue
        for run in clone.results.values()
        for dialogue in esc_eval.read_dialogues(run, cards.get(("test cards", run.language), []), reader)
    ]
    _collect(build, reader, dialogues)
    ids = {dialogue.id for dialogue in dialogues}
    reader = CorpusReader(build.step("judgements"), tidy=False)
    _collect(build, reader, [verdict for run in clone.scores.values() for verdict in esc_eval.read_scores(run, ids, reader)])
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


def _collect(build: Build, reader: CorpusReader, records: Sequence[BaseModel]) -> None:
    reader.step.kept = len(records)
    for problem in reader.problems:
        console.print(f"left out: {problem}")
    if reader.step.taken:
        build.write(f"{reader.step.name}.jsonl", records)


def _compared(
    clone: esc_eval.Clone,
    cards: Mapping[tuple[str, Language], Sequence[RoleCard]],
    prompts: PublishedPrompts,
    files: Mapping[str, bytes],
) -> tuple[list[PublishedPart], str | None]:
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
