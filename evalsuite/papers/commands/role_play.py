"""`esc-eval paper role-play`: how well seekers play their cards (table 1), and which seekers or other systems a judge or people
prefer (figure 3)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import typer

from core.errors import UserError
from core.files import first_object, write_jsonl
from core.options import SetOption, choice
from core.paths import InName, MaybeFile, MaybeFiles, Reads, Writes
from core.records import LOST, RoleCard
from core.rubrics import load_rubric
from core.tables import Table
from data_prep.profiles import Profile
from data_prep.scores.human import RubricCheck, read_comparisons, read_dialogues, read_preferences, read_scores
from evalsuite.commands.agree import read_judgements
from evalsuite.commands.options import AgainstOption, JsonOption, ModeOption, refuse, resolve
from evalsuite.commands.output import deliver, exit_if_lost, plain, talk
from evalsuite.papers.reported.against import against
from evalsuite.papers.role_play import (
    TITLES,
    compare_seekers,
    pairs_of,
    pairwise_tables,
    read_field,
    role_play_tables,
    score_seekers,
)
from evalsuite.papers.win_rates import Mode, Words, choices_of, win_rate_tables
from evalsuite.runner.engine import Runner
from evalsuite.runs.dialogue_framework import RunIdentity
from evalsuite.runs.folder import open_run

IN_SEEKER = Reads("place", ("dialogues.jsonl", "cards.jsonl", "profiles.jsonl"), labelled=True)
BESIDE = Reads(beside=True)  # records may be in the folder that the tables go to
WORDS = Words("pairwise", "system", "items")


def role_play(
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
    config: Annotated[
        MaybeFile, typer.Option("--config", help="Judge, rubric and prompts; see configs/eval/role_play.yaml.")
    ] = None,
    seeker: Annotated[
        list[str] | None,
        typer.Option(
            "--seeker",
            metavar="NAME=PLACE",
            help="A seeker and its dialogues: a run folder, or a JSONL file (a corpus of people's dialogues: source=FILE). "
            "Repeat.",
        ),
        IN_SEEKER,
    ] = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="The judge compares seekers in pairs instead of scoring them.")
    ] = False,
    cards: Annotated[
        MaybeFiles, typer.Option("--cards", help="Role cards, if not in the run folders; needed for corpora. Repeat.")
    ] = None,
    profiles: Annotated[
        MaybeFiles, typer.Option("--profiles", help="Profiles, if not in EmoHarbor's run folders. Repeat.")
    ] = None,
    dialogues: Annotated[
        list[Path] | None,
        typer.Option("--dialogues", help="The dialogues that scores or Preference records are about (JSONL). Repeat."),
        BESIDE,
    ] = None,
    judgements: Annotated[
        list[Path] | None, typer.Option("--judgements", help="A judge's scores (Judgement records, JSONL). Repeat."), BESIDE
    ] = None,
    gold: Annotated[
        list[Path] | None, typer.Option("--gold", help="People's scores (HumanScore records, CSV or JSONL). Repeat."), BESIDE
    ] = None,
    rubric: Annotated[InName, typer.Option("--rubric", help="With scores: their rubric, by name or file.")] = "role_play",
    settings: SetOption = None,
    mode: ModeOption = None,
    versus: AgainstOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for records and tables. The same folder and command resume."),
        Writes(("role_play_*.jsonl", "pairwise_*.jsonl", "answers.jsonl", "preferences.jsonl", "tables/*")),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Score how well seekers play their cards (ESC-Eval, table 1), or compare them in pairs (figure 3; EmoHarbor, figure 5).

    With --config and --seeker a judge, who sees the card, scores every dialogue on six metrics: OUT/role_play_judgements.jsonl,
    with dialogues and cards beside it. With --dialogues and existing scores (any judge's, people's or both), no model is asked.

    With --pairs the judge says which of two seekers is closer to a human, for every pair on a card or profile in both orders:
    OUT/answers.jsonl and, of the readable ones, OUT/preferences.jsonl. CHOICES are people's, between seekers, supporters or any
    systems. The tables, in OUT/tables, have win rates of every system and pair with intervals over items, ties, mean degrees,
    the effect of the order shown, and the annotators' agreement. Natively, answers that change with the order are a tie; in
    paper mode every answer is a vote.

    Example: esc-eval paper role-play --config configs/eval/role_play.yaml --seeker gpt-4=runs/gpt-4 --out runs/role_play
    """
    tables_out = out and out / "tables"
    if choices or judgements or gold:
        asking = {"config": config, "seeker": seeker, "cards": cards, "profiles": profiles, "set": settings, "pairs": pairs}
        refuse("no model is asked with CHOICES, --judgements or --gold", **asking)
    if choices:
        refuse("scores and CHOICES have tables of their own", judgements=judgements, gold=gold)
        tables = against(_of_choices(choices, dialogues or [], choice("--mode", mode or "native", get_args(Mode))), versus)
        deliver("pairwise", plain(tables), tables, tables_out, as_json)
        return
    if judgements or gold:
        refuse("counts answers of pairs", mode=mode)
        if not dialogues:
            raise UserError("--judgements, --gold: give the dialogues that were scored with --dialogues")
        rated = read_dialogues(dialogues)
        check = RubricCheck([Path(rubric)] if rubric.endswith((".yaml", ".yml")) else [], rated)
        verdicts = [judgement for path in judgements or [] for judgement in read_judgements(path)]
        people = [human for path in gold or [] for human in read_scores(path, check)]
        tables = against(role_play_tables(rated, load_rubric(rubric), verdicts, people), versus)
        deliver("role_play", plain(tables), tables, tables_out, as_json)
        return
    if config is None or not seeker or out is None:
        raise UserError(
            "give --config, --seeker NAME=PLACE (two or more with --pairs) and --out to ask a judge, people's CHOICES, or "
            "--dialogues with --judgements or --gold"
        )
    refuse("needs CHOICES, --judgements or --gold", dialogues=dialogues)
    resolved, progress = resolve(config, settings=settings, mode=mode, out=str(out)), talk(as_json)
    if not pairs and resolved.method != "paper":  # which score_seekers refuses
        RunIdentity(resolved).score()
    seekers = read_field(seeker, cards or [], resolved.config.languages, resolved.config.limit, profiles or [])
    for name, count in sorted(seekers.unplaced.items()):
        progress.print(f"{name}: {count} dialogues belong to no given card and are left out", soft_wrap=True)
    compared, left_out = pairs_of(seekers) if pairs else ([], {})
    for name, count in sorted(left_out.items()):
        progress.print(f"{name}: {count} dialogues, unanswered or cut off by a failing server, are in no pair", soft_wrap=True)
    stage = "pairwise" if pairs else "role_play"
    with open_run(out) as run, Runner(run, resolved, progress) as runner:
        if pairs:
            answers = compare_seekers(runner, seekers, compared)
            write_jsonl(run.folder / "answers.jsonl", answers)
            readable = [preference for answer in answers if (preference := answer.preference()) is not None]
            write_jsonl(run.folder / "preferences.jsonl", readable)
            tables = pairwise_tables(answers, seekers.dialogues, resolved.config.mode)
            lost, total = sum(answer.failure in LOST for answer in answers), len(answers)
        else:
            scores = score_seekers(runner, seekers)
            write_jsonl(run.folder / "role_play_judgements.jsonl", scores)
            tables = role_play_tables(seekers.dialogues, resolved.rubric, scores)
            if cut := {dialogue.id for dialogue in seekers.dialogues if dialogue.lost}:
                progress.print(f"{len(cut)} dialogues that a failing server had cut off are not judged", soft_wrap=True)
            lost, total = sum(score.lost and score.dialogue_id not in cut for score in scores), len(scores)
        # Another stage in the same folder may have other dialogues and cards, so names begin with the stage.
        write_jsonl(run.folder / f"{stage}_dialogues.jsonl", seekers.dialogues)
        played = list({person.id: person for person in seekers.cards.values()}.values())
        for name, kind in (("cards", RoleCard), ("profiles", Profile)):
            if records := [person for person in played if isinstance(person, kind)]:
                write_jsonl(run.folder / f"{stage}_{name}.jsonl", records)
        shown = against(tables, versus)
        deliver(stage, plain(shown), shown, tables_out, as_json)
    exit_if_lost(lost, total, "answers", run.failures())


def _of_choices(paths: Sequence[Path], dialogues: Sequence[Path], mode: Mode) -> list[Table]:
    """The tables of people's choices, between dialogues (whose records name the seekers) or between systems by name."""
    records = [path for path in paths if path.suffix == ".jsonl" and "dialogue_a" in first_object(path, "choices")]
    if not records:
        return [*win_rate_tables([*choices_of(read_comparisons(paths))], mode, WORDS, TITLES)]
    if len(records) < len(paths) or not dialogues:
        problem = "the other files are tables; give one kind" if dialogues else "give the dialogues with --dialogues"
        raise UserError(f"{records[0]}: choices between two dialogues: {problem}")
    return pairwise_tables(read_preferences(paths), read_dialogues(dialogues), mode)
