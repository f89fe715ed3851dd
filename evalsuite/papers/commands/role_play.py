"""`esc-eval paper role-play`: how well seekers play their cards (table 1)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from core.errors import UserError
from core.files import write_jsonl
from core.options import SetOption
from core.paths import InName, MaybeFile, MaybeFiles, Reads, Writes
from core.records import RoleCard
from core.rubrics import load_rubric
from data_prep.profiles import Profile
from data_prep.scores.human import RubricCheck, read_dialogues, read_scores
from evalsuite.commands.options import AgainstOption, JsonOption, refuse, resolve
from evalsuite.commands.output import deliver, exit_if_lost, plain, talk
from evalsuite.commands.verdicts import read_judgements
from evalsuite.papers.reported.against import against
from evalsuite.papers.role_play.seekers import Field, read_field, role_play_tables, score_seekers
from evalsuite.runner.engine import Runner
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.folder import open_run
from evalsuite.runs.run_identity import RunIdentity

IN_SEEKER = Reads("place", ("dialogues.jsonl", "cards.jsonl", "profiles.jsonl"), labelled=True)
BESIDE = Reads(beside=True)  # records of the folder that the tables go to

ConfigOption = Annotated[
    MaybeFile, typer.Option("--config", help="Judge, rubric and prompts; see configs/eval/role_play.yaml.")
]
SeekersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--seeker",
        metavar="NAME=PLACE",
        help="A seeker and its dialogues: a run folder, or a JSONL file (a corpus of people's dialogues: source=FILE). Repeat.",
    ),
    IN_SEEKER,
]
CardsOption = Annotated[
    MaybeFiles, typer.Option("--cards", help="Role cards beside those of the run folders; needed for corpora. Repeat.")
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", help="Folder for records and tables. The same folder and command resume."),
    Writes(("role_play_*.jsonl", "pairwise_*.jsonl", "answers.jsonl", "preferences.jsonl", "tables/*")),
]


def role_play(
    config: ConfigOption = None,
    seeker: SeekersOption = None,
    cards: CardsOption = None,
    dialogues: Annotated[
        Path | None, typer.Option("--dialogues", help="With scores: the dialogues that they are of (JSONL)."), BESIDE
    ] = None,
    judgements: Annotated[
        list[Path] | None, typer.Option("--judgements", help="A judge's scores (Judgement records, JSONL). Repeat."), BESIDE
    ] = None,
    gold: Annotated[
        list[Path] | None, typer.Option("--gold", help="People's scores (HumanScore records, CSV or JSONL). Repeat."), BESIDE
    ] = None,
    rubric: Annotated[InName, typer.Option("--rubric", help="With scores: their rubric, by name or file.")] = "role_play",
    settings: SetOption = None,
    versus: AgainstOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Table 1 of ESC-Eval: how well seekers play their role cards, on six metrics.

    With --config and --seeker a judge scores every dialogue, with the card in sight: OUT/role_play_judgements.jsonl, and what
    they are about in OUT/role_play_dialogues.jsonl and role_play_cards.jsonl. With --dialogues and scores that are there (any
    judge's, people's or both), nothing is asked. The tables are in OUT/tables.

    Example: esc-eval paper role-play --config configs/eval/role_play.yaml --seeker gpt-4=runs/gpt-4 --out runs/role_play
    """
    if judgements or gold:
        refuse("with scores that are there nothing is asked", config=config, seeker=seeker, cards=cards, set=settings)
        if dialogues is None:
            raise UserError("--judgements, --gold: give the dialogues that were scored with --dialogues")
        rated = read_dialogues([dialogues])
        check = RubricCheck([Path(rubric)] if rubric.endswith((".yaml", ".yml")) else [], rated)
        verdicts = [judgement for path in judgements or [] for judgement in read_judgements(path)]
        people = [human for path in gold or [] for human in read_scores(path, check)]
        tables = role_play_tables(rated, load_rubric(rubric), verdicts, people)
        shown = against(tables, versus)
        deliver("role_play", plain(shown), shown, out and out / "tables", as_json)
        return
    if config is None or not seeker or out is None:
        raise UserError(
            "give --config, --seeker NAME=PLACE and --out to ask a judge, or --dialogues with --judgements or --gold"
        )
    refuse("needs scores that are there: --judgements or --gold", dialogues=dialogues)
    progress = talk(as_json)
    resolved = resolve(config, settings=settings, out=str(out))
    if resolved.method != "paper":  # which score_seekers refuses
        RunIdentity(resolved).score()
    seekers = read_seekers(seeker, cards, resolved, progress)
    with open_run(out) as run, Runner(run, resolved, progress) as runner:
        asked = score_seekers(runner, seekers)
        write_seekers(run.folder, "role_play", seekers)
        write_jsonl(run.folder / "role_play_judgements.jsonl", asked)
        tables = role_play_tables(seekers.dialogues, resolved.rubric, asked)
        shown = against(tables, versus)
        deliver("role_play", plain(shown), shown, run.folder / "tables", as_json)
    cut = {dialogue.id for dialogue in seekers.dialogues if dialogue.lost}
    if cut:
        progress.print(f"{len(cut)} dialogues were cut off by a failing server when held: they are not judged", soft_wrap=True)
    lost = sum(judgement.lost and judgement.dialogue_id not in cut for judgement in asked)
    exit_if_lost(lost, len(asked), "answers", run.failures())


def read_seekers(
    seekers: list[str],
    cards: list[Path] | None,
    resolved: DialogueFramework,
    progress: Console,
    profiles: list[Path] | None = None,
) -> Field:
    """The seekers given with --seeker; dialogues that belong to none of the cards are counted on the console."""
    field = read_field(seekers, cards or [], resolved.config.languages, resolved.config.limit, profiles or [])
    for name, count in sorted(field.unplaced.items()):
        progress.print(f"{name}: {count} dialogues belong to none of the cards given and are left out", soft_wrap=True)
    return field


def write_seekers(folder: Path, stage: str, seekers: Field) -> None:
    """The dialogues and cards of a stage under names of its own: another stage in the same folder may have others."""
    write_jsonl(folder / f"{stage}_dialogues.jsonl", seekers.dialogues)
    people = list({person.id: person for person in seekers.cards.values()}.values())
    for name, kind in (("cards", RoleCard), ("profiles", Profile)):
        if of_kind := [person for person in people if isinstance(person, kind)]:
            write_jsonl(folder / f"{stage}_{name}.jsonl", of_kind)
