"""`esc-eval paper role-play`: how well seekers play their cards (table 1); `paper pairwise`: which of two seekers, or of any
two systems, a judge or people prefer (figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console

from core.errors import UserError
from core.files import first_object, write_jsonl
from core.options import SetOption, choice
from core.paths import InName, MaybeFile, MaybeFiles, Reads, Writes
from core.records import LOST, RoleCard
from core.rubrics import load_rubric
from core.tables import Table
from data_prep.profiles import Profile
from data_prep.scores.human import RubricCheck, read_comparisons, read_dialogues, read_preferences, read_scores
from evalsuite.commands.options import AgainstOption, JsonOption, ModeOption, refuse, resolve
from evalsuite.commands.output import deliver, exit_if_lost, plain, talk
from evalsuite.commands.verdicts import read_judgements
from evalsuite.papers.reported.against import against
from evalsuite.papers.role_play.pairwise import TITLES, compare_seekers, given_answers, pairs_of, pairwise_tables
from evalsuite.papers.role_play.seekers import Field, read_field, role_play_tables, score_seekers
from evalsuite.papers.role_play.win_rates import Mode, Words, choices_of, win_rate_tables
from evalsuite.runner.engine import Runner
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.folder import open_run
from evalsuite.runs.run_identity import RunIdentity

IN_SEEKER = Reads("place", ("dialogues.jsonl", "cards.jsonl", "profiles.jsonl"), labelled=True)
BESIDE = Reads(beside=True)  # records may be in the folder that the tables go to

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
    MaybeFiles, typer.Option("--cards", help="Role cards, if not in the run folders; needed for corpora. Repeat.")
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
        Path | None, typer.Option("--dialogues", help="With scores: the dialogues scored (JSONL)."), BESIDE
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
    """Score how well seekers play their role cards, on six metrics (table 1 of ESC-Eval).

    With --config and --seeker a judge, who sees the card, scores every dialogue: OUT/role_play_judgements.jsonl, with the
    dialogues and cards in OUT/role_play_dialogues.jsonl and role_play_cards.jsonl. With --dialogues and existing scores (any
    judge's, people's or both), no model is asked. The tables are in OUT/tables.

    Example: esc-eval paper role-play --config configs/eval/role_play.yaml --seeker gpt-4=runs/gpt-4 --out runs/role_play
    """
    if judgements or gold:
        refuse("no model is asked with existing scores", config=config, seeker=seeker, cards=cards, set=settings)
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
    refuse("needs existing scores: --judgements or --gold", dialogues=dialogues)
    progress = talk(as_json)
    resolved = resolve(config, settings=settings, out=str(out))
    if resolved.method != "paper":  # which score_seekers refuses
        RunIdentity(resolved).score()
    seekers = read_seekers(seeker, cards, resolved, progress)
    with open_run(out) as run, Runner(run, resolved, progress) as runner:
        scores = score_seekers(runner, seekers)
        write_seekers(run.folder, "role_play", seekers)
        write_jsonl(run.folder / "role_play_judgements.jsonl", scores)
        tables = role_play_tables(seekers.dialogues, resolved.rubric, scores)
        shown = against(tables, versus)
        deliver("role_play", plain(shown), shown, run.folder / "tables", as_json)
    cut = {dialogue.id for dialogue in seekers.dialogues if dialogue.lost}
    if cut:
        progress.print(f"{len(cut)} dialogues that a failing server had cut off are not judged", soft_wrap=True)
    lost = sum(score.lost and score.dialogue_id not in cut for score in scores)
    exit_if_lost(lost, len(scores), "answers", run.failures())


def read_seekers(
    seekers: list[str],
    cards: list[Path] | None,
    resolved: DialogueFramework,
    progress: Console,
    profiles: list[Path] | None = None,
) -> Field:
    """The seekers given with --seeker; the console says how many dialogues belong to no card."""
    field = read_field(seekers, cards or [], resolved.config.languages, resolved.config.limit, profiles or [])
    for name, count in sorted(field.unplaced.items()):
        progress.print(f"{name}: {count} dialogues belong to no given card and are left out", soft_wrap=True)
    return field


def write_seekers(folder: Path, stage: str, seekers: Field) -> None:
    """Write a stage's dialogues and cards; another stage in the same folder may have others, so names begin with the stage."""
    write_jsonl(folder / f"{stage}_dialogues.jsonl", seekers.dialogues)
    people = list({person.id: person for person in seekers.cards.values()}.values())
    for name, kind in (("cards", RoleCard), ("profiles", Profile)):
        if records := [person for person in people if isinstance(person, kind)]:
            write_jsonl(folder / f"{stage}_{name}.jsonl", records)


# --- preferences in pairs ---------------------------------------------------------------------------------------------------

WORDS = Words("pairwise", "system", "items")


def pairwise(
    choices: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="CHOICES…",
            help="People's choices: Preference records (JSONL) between two --dialogues; or tables (CSV, JSONL) "
            "of item, a, b, annotator, and verdict (a, b, tie) or degree (from -n, b far better, to n, a far better); question "
            "and order (ab: a was shown first; ba) may be left out.",
        ),
        BESIDE,
    ] = None,
    dialogues: Annotated[
        list[Path] | None,
        typer.Option("--dialogues", help="The dialogues that Preference records are about (JSONL). Repeat for more."),
        BESIDE,
    ] = None,
    config: ConfigOption = None,
    seeker: SeekersOption = None,
    cards: CardsOption = None,
    profiles: Annotated[
        MaybeFiles, typer.Option("--profiles", help="Profiles, if not in EmoHarbor's run folders. Repeat.")
    ] = None,
    settings: SetOption = None,
    mode: ModeOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare seekers in pairs: which is closer to a human on a card (ESC-Eval, figure 3) or profile (EmoHarbor, figure 5).

    With --config and two or more --seeker a judge sees every pair in both orders: OUT/answers.jsonl (all answers),
    OUT/preferences.jsonl (the readable ones), with the dialogues and people in OUT/pairwise_dialogues.jsonl and
    pairwise_cards.jsonl or pairwise_profiles.jsonl. CHOICES are people's, between seekers, supporters or any systems; tables of
    them need no dialogues.

    Per question: win rates of every system and pair with intervals over items, ties, mean degrees, the effect of the order
    shown, and the annotators' agreement. Natively, answers that change with the order are a tie; in paper mode every answer is
    a vote. The tables are in OUT/tables.

    Example: esc-eval paper pairwise choices.csv
    """
    if choices:
        reason = "no model is asked with CHOICES"
        refuse(reason, config=config, seeker=seeker, cards=cards, profiles=profiles, set=settings)
        tables = _given(choices, dialogues or [], choice("--mode", mode or "native", get_args(Mode)))
        deliver("pairwise", plain(tables), tables, out and out / "tables", as_json)
        return
    if config is None or not seeker or out is None:
        raise UserError("give --config, two or more --seeker NAME=PLACE and --out to ask a judge, or people's CHOICES")
    refuse("is for people's CHOICES", dialogues=dialogues)
    resolved = resolve(config, settings=settings, mode=mode, out=str(out))
    progress = talk(as_json)
    seekers = read_seekers(seeker, cards, resolved, progress, profiles)
    pairs, left_out = pairs_of(seekers)
    for name, count in sorted(left_out.items()):
        progress.print(f"{name}: {count} dialogues, unanswered or cut off by a failing server, are in no pair", soft_wrap=True)
    with open_run(out) as run, Runner(run, resolved, progress) as runner:
        answers = compare_seekers(runner, seekers, pairs)
        write_seekers(run.folder, "pairwise", seekers)
        write_jsonl(run.folder / "answers.jsonl", answers)
        readable = [preference for answer in answers if (preference := answer.preference()) is not None]
        write_jsonl(run.folder / "preferences.jsonl", readable)
        tables = pairwise_tables(answers, seekers.dialogues, resolved.config.mode)
        deliver("pairwise", plain(tables), tables, run.folder / "tables", as_json)
    exit_if_lost(sum(answer.failure in LOST for answer in answers), len(answers), "answers", run.failures())


def _given(paths: Sequence[Path], dialogues: Sequence[Path], mode: Mode) -> list[Table]:
    """The tables of people's choices, between dialogues (whose records name the seekers) or between systems by name."""
    records = [path for path in paths if path.suffix == ".jsonl" and "dialogue_a" in first_object(path, "choices")]
    if not records:
        return [*win_rate_tables([*choices_of(read_comparisons(paths))], mode, WORDS, TITLES)]
    if len(records) < len(paths) or not dialogues:
        problem = "the other files are tables; give one kind" if dialogues else "give the dialogues with --dialogues"
        raise UserError(f"{records[0]}: choices between two dialogues: {problem}")
    return pairwise_tables(given_answers(read_preferences(paths)), read_dialogues(dialogues), mode)
