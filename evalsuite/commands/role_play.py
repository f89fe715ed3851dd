"""`esc-eval role-play …`: which seeker plays its cards best (table 1, figure 3); `audit-simulator`: what gives it away."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console

from core.errors import UserError
from core.files import check_unique, write_jsonl
from core.options import choice, console
from core.paths import InFile, InName, MaybeFile, MaybeFiles, MaybeModel, Reads, Writes
from core.prompts import load_pack
from core.records import LOST, Dialogue, Preference, RoleCard
from core.rubrics import load_rubric
from core.specs import load_spec
from core.tables import Table
from core.verbs import Verbs
from data_prep.cards import load_cards
from data_prep.profiles import Profile
from data_prep.scores.human import Check, read_dialogues, read_preferences, read_scores
from evalsuite.commands.options import (
    AgainstOption,
    EndpointOption,
    JudgeOption,
    LanguageOption,
    MaybeRuns,
    out_tables,
    resolve,
)
from evalsuite.commands.output import deliver, exit_if_lost, plain, talk
from evalsuite.commands.verdicts import read_judgements
from evalsuite.reported.against import against
from evalsuite.role_play.audit import audit, audit_tables, judge_cards
from evalsuite.role_play.pairwise import PairAnswer, compare_seekers, given_answers, pairs_of, pairwise_tables
from evalsuite.role_play.seekers import Cards, Field, given_dialogues, read_field, role_play_tables, score_seekers
from evalsuite.runner.engine import Runner
from evalsuite.runs import shards
from evalsuite.runs.folder import open_run
from evalsuite.runs.resolved import Resolved
from evalsuite.statistics.win_rates import Mode
from serve.batch import Batch

PACK = "role_play_judge"
IN_SEEKER = Reads("place", ("dialogues.jsonl", "cards.jsonl", "profiles.jsonl"), labelled=True)
BESIDE = Reads(beside=True)  # with people's choices, only OUT/tables is written
app = Verbs(no_args_is_help=True, help="Which model plays the seeker best: scores and pairwise choices, by a judge or people.")

ConfigOption = Annotated[InFile, typer.Option("--config", help="Judge, rubric and prompts; see configs/eval/role_play.yaml.")]
SeekersOption = Annotated[
    list[str],
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
ProfilesOption = Annotated[
    MaybeFiles, typer.Option("--profiles", help="Profiles beside those of EmoHarbor's run folders. Repeat.")
]
LimitOption = Annotated[int | None, typer.Option("--limit", min=1, help="At most this many cards a language.")]
ModeOption = Annotated[
    str | None, typer.Option("--mode", help="native: answers that change with the order are a tie. paper: no.")
]
OutOption = Annotated[
    str,
    typer.Option("--out", help="Folder for records and tables. The same folder and command resume."),
    Writes(("role_play_*.jsonl", "pairwise_*.jsonl", "answers.jsonl", "preferences.jsonl", "tables/*")),
]
TablesOption = Annotated[Path | None, typer.Option("--out", help="Folder for the tables as CSV."), out_tables("role_play")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the tables as JSON.")]


@app.command("score")
def score(
    config: ConfigOption,
    seeker: SeekersOption,
    out: OutOption,
    cards: CardsOption = None,
    judge: JudgeOption = None,
    endpoint: EndpointOption = None,
    language: LanguageOption = None,
    limit: LimitOption = None,
) -> None:
    """Table 1 by a judge: every dialogue rated on six metrics, with the role card in sight.

    Writes OUT/role_play_judgements.jsonl, and what they are about to OUT/role_play_dialogues.jsonl and role_play_cards.jsonl.
    """
    resolved = resolve(config, endpoint, judge=judge, language=language, out=out)
    if resolved.method != "paper":  # which score_seekers refuses
        resolved.score_identity()
    seekers = _field(seeker, cards, resolved, limit, console)
    with open_run(Path(out)) as run, Runner(run, resolved, console) as runner:
        judgements = score_seekers(runner, seekers)
        _write_field(run.folder, "role_play", seekers)
        write_jsonl(run.folder / "role_play_judgements.jsonl", judgements)
        shown = role_play_tables(seekers.dialogues, resolved.rubric, judgements)
        _show("role_play", shown, run.folder / "tables", as_json=False)
    cut = {dialogue.id for dialogue in seekers.dialogues if dialogue.lost}
    if cut:
        console.print(f"{len(cut)} dialogues were cut off by a failing server when held: they are not judged", soft_wrap=True)
    lost = sum(judgement.lost and judgement.dialogue_id not in cut for judgement in judgements)
    exit_if_lost(lost, len(judgements), "answers", run.failures())


@app.command("table")
def table(
    dialogues: Annotated[InFile, typer.Option(help="Dialogue records (JSONL), as `role-play score` and runs write them.")],
    judgements: Annotated[MaybeFiles, typer.Option(help="Judgement records (JSONL) on the rubric. Repeat.")] = None,
    gold: Annotated[MaybeFiles, typer.Option("--gold", help="People's scores, CSV or JSONL (HumanScore). Repeat.")] = None,
    rubric: Annotated[InName, typer.Option(help="Rubric by name or file.")] = "role_play",
    versus: AgainstOption = None,
    out: TablesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Table 1 from scores that are there already: any judge's, people's, or both side by side."""
    if not judgements and not gold:
        raise UserError("nothing to show: give --judgements FILE or --gold FILE")
    known = read_dialogues([dialogues])
    rules = load_rubric(rubric)
    check = Check([Path(rubric)] if rubric.endswith((".yaml", ".yml")) else [], known)
    verdicts = [judgement for path in judgements or [] for judgement in read_judgements(path)]
    people = [human for path in gold or [] for human in read_scores(path, check)]
    _show("role_play", against(role_play_tables(known, rules, verdicts, people), versus), out, as_json)


@app.command("pairwise")
def pairwise(
    out: OutOption,
    config: Annotated[MaybeFile, typer.Option("--config", help="Judge and prompts; see configs/eval/role_play.yaml.")] = None,
    seeker: Annotated[
        list[str] | None,
        typer.Option("--seeker", metavar="NAME=PLACE", help="A seeker and its run folder or JSONL file. Twice or more."),
        IN_SEEKER,
    ] = None,
    cards: CardsOption = None,
    profiles: ProfilesOption = None,
    preferences: Annotated[
        Path | None,
        typer.Option(
            help="People's choices (Preference records, JSONL) instead of a judge's. Those in a table, without dialogues: see "
            "`esc-eval pairwise`."
        ),
        BESIDE,
    ] = None,
    dialogues: Annotated[
        Path | None,
        typer.Option(help="With --preferences: the dialogues they are about. Default: OUT/pairwise_dialogues.jsonl."),
        BESIDE,
    ] = None,
    judge: JudgeOption = None,
    endpoint: EndpointOption = None,
    language: LanguageOption = None,
    limit: LimitOption = None,
    mode: ModeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Figure 3: which of two seekers on one card is closer to a human. A judge sees every pair in both orders.

    With run folders of EmoHarbor, its figure 5: seekers on one profile. Writes OUT/answers.jsonl (all answers),
    OUT/preferences.jsonl (the readable ones), and what they are about to OUT/pairwise_dialogues.jsonl and pairwise_cards.jsonl
    or pairwise_profiles.jsonl. With --preferences nothing is asked.
    """
    if preferences is not None:
        if seeker or config or judge:
            raise UserError("--preferences: people's choices are read, nothing is asked: leave out --seeker, --config, --judge")
        compared = read_dialogues([dialogues or Path(out) / "pairwise_dialogues.jsonl"])
        answers = given_answers(read_preferences([preferences]))
        _show(
            "pairwise",
            pairwise_tables(answers, compared, choice("--mode", mode or "native", get_args(Mode))),
            Path(out) / "tables",
            as_json,
        )
        return
    if config is None or not seeker:
        raise UserError("give --config and two or more --seeker NAME=PLACE to ask a judge, or --preferences FILE")
    resolved = resolve(config, endpoint, judge=judge, language=language, mode=mode, out=out)
    said = talk(as_json)
    seekers = _field(seeker, cards, resolved, limit, said, profiles)
    pairs, left_out = pairs_of(seekers)
    for name, count in sorted(left_out.items()):
        said.print(f"{name}: {count} dialogues, unanswered or cut off by a failing server, are in no pair", soft_wrap=True)
    with open_run(Path(out)) as run, Runner(run, resolved, said) as runner:
        answers = compare_seekers(runner, seekers, pairs)
        _write_field(run.folder, "pairwise", seekers)
        write_jsonl(run.folder / "answers.jsonl", answers)
        write_jsonl(run.folder / "preferences.jsonl", _readable(answers))
        _show("pairwise", pairwise_tables(answers, seekers.dialogues, resolved.config.mode), run.folder / "tables", as_json)
    exit_if_lost(sum(answer.failure in LOST for answer in answers), len(answers), "answers", run.failures())


def audit_simulator(
    run: Annotated[MaybeRuns, typer.Argument(metavar="RUN…", help="Run folders: their dialogues and cards.")] = None,
    dialogues: Annotated[MaybeFiles, typer.Option(help="Dialogue records (JSONL). Repeat.")] = None,
    cards: CardsOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for findings.jsonl and the tables as CSV."),
        out_tables("simulator_audit", "findings.jsonl"),
    ] = None,
    judge: Annotated[
        MaybeModel,
        typer.Option(
            "--judge",
            metavar="MODEL",
            help="Also ask a model (name, spec file or NAME@URL) whether the seeker leaves its card. Needs --out.",
        ),
    ] = None,
    examples: Annotated[int, typer.Option("--examples", min=0, help="Examples a check and seeker.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """What a simulator does that people do not: leaves its card, reveals a model, cheers up too soon, says all at once,
    repeats itself, plays the supporter. Rates per seeker and supporter, with examples."""
    if judge and out is None:
        raise UserError("--judge needs --out: its answers are kept there, so that nothing is asked twice")
    audited_dialogues, cards_held = _audit_input(run or [], dialogues or [], cards or [])
    judged = None
    if judge and out is not None:
        out.mkdir(parents=True, exist_ok=True)
        with Batch(load_spec(judge), out / "calls.sqlite", talk(as_json)) as batch:
            judged = judge_cards(batch, load_pack(PACK), audited_dialogues, cards_held)
    audited = audit(audited_dialogues, cards_held, judged)
    if not audited:
        raise UserError("no dialogue has a seeker line: nothing to audit")
    if out is not None:
        findings = [finding for one in audited for of_check in one.findings.values() for finding in of_check or []]
        write_jsonl(out / "findings.jsonl", findings)
    _show("simulator_audit", audit_tables(audited, examples), out, as_json)


def _audit_input(
    runs: Sequence[Path], files: Sequence[Path], card_files: Sequence[Path]
) -> tuple[list[Dialogue], dict[str, RoleCard]]:
    """The dialogues, and the card of each that has one, by dialogue id."""
    if not runs and not files:
        raise UserError("nothing to audit: give a run folder or --dialogues FILE")
    for run in runs:
        shards.whole(run, needed=False)
    cards = Cards()
    for path in (*(run / "cards.jsonl" for run in runs if (run / "cards.jsonl").exists()), *card_files):
        cards.add(load_cards(path))
    dialogues: list[Dialogue] = []
    held: dict[str, RoleCard] = {}
    for path in (*(run / "dialogues.jsonl" for run in runs), *files):
        for dialogue in given_dialogues(path):
            dialogues.append(dialogue)
            if dialogue.card_id is None or dialogue.card_id in cards.by_id:  # without its card, some checks do not apply
                card = None if dialogue.profile_id else cards.of(dialogue, str(path))
                held |= {dialogue.id: card} if isinstance(card, RoleCard) else {}
    check_unique(", ".join(map(str, (*runs, *files))), (dialogue.id for dialogue in dialogues), "dialogue ids")
    return dialogues, held


def _field(
    seekers: list[str],
    cards: list[Path] | None,
    resolved: Resolved,
    limit: int | None,
    said: Console,
    profiles: list[Path] | None = None,
) -> Field:
    field = read_field(seekers, cards or [], resolved.config.languages, limit or resolved.config.limit, profiles or [])
    for name, count in sorted(field.unplaced.items()):
        said.print(f"{name}: {count} dialogues belong to none of the cards given and are left out", soft_wrap=True)
    return field


def _write_field(folder: Path, stage: str, seekers: Field) -> None:
    """The dialogues and cards of a stage under names of its own: another stage in the same folder may have others."""
    write_jsonl(folder / f"{stage}_dialogues.jsonl", seekers.dialogues)
    people = list({person.id: person for person in seekers.cards.values()}.values())
    for name, kind in (("cards", RoleCard), ("profiles", Profile)):
        if of_kind := [person for person in people if isinstance(person, kind)]:
            write_jsonl(folder / f"{stage}_{name}.jsonl", of_kind)


def _readable(answers: Sequence[PairAnswer]) -> list[Preference]:
    return [preference for answer in answers if (preference := answer.preference()) is not None]


def _show(name: str, tables: Sequence[Table], out: Path | None, as_json: bool) -> None:
    deliver(name, plain(tables), tables, out, as_json)
