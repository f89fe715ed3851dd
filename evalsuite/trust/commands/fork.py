"""`esc-eval fork`: a dialogue continued from a turn, several times each with its own reply and with another one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from core.errors import UserError, near
from core.files import read_jsonl, write_jsonl
from core.options import SetOption, console
from core.paths import InFile, InModel, Writes
from core.records import Dialogue, Judgement, Turn, dialogue_id
from core.rubrics import Rubric
from core.settings import differing_leaves, fields_set
from core.specs import EMBEDDED_PREFIX, ModelSpec, load_spec
from core.statistics.bootstrap import SMOOTHED
from core.tables import Table, fmt
from evalsuite.checks.risk import risk_turns
from evalsuite.checks.simulator import cheerful
from evalsuite.commands.options import InRun, RoleModelOption, resolve
from evalsuite.commands.output import deliver_page, exit_if_lost
from evalsuite.dialogues.hold import Plan, Side, Utterance, hold
from evalsuite.report.headlines import ENDINGS, found_in, verdict
from evalsuite.report.report import PLUMBING
from evalsuite.report.sheet import Branch, ForestLine, Sheet, gap_forest, reach
from evalsuite.runner.engine import Runner
from evalsuite.runner.forecast import workloads
from evalsuite.runs import shards
from evalsuite.runs.config import load_config
from evalsuite.runs.contents import Held
from evalsuite.runs.dialogue_framework import DialogueFramework, RunIdentity
from evalsuite.runs.folder import open_run
from evalsuite.runs.run_config import HeldSpec, hashed, identity
from evalsuite.statistics import paired
from evalsuite.statistics.contestants import contestants_of, stack
from evalsuite.statistics.summary import AVERAGE, dimension_at, dimension_label
from serve.batch import answered
from serve.client import ChatClient

TEMPERATURE = 0.7  # at which seeker and supporter continue, unless theirs is higher
_WHERE = "{0}: its address is missing: give --set supporters={0}@URL"
_GROWS = {"supporters", "languages", "trials", "cards", "profiles", "references", "replay"}  # may differ from the run's config


def fork(
    run: Annotated[InRun, typer.Argument(metavar="RUN", help="Run folder that holds the dialogue.")],
    config: Annotated[InFile, typer.Option("--config", help="The run's config: seeker, prompts, cards, judge.")],
    dialogue: Annotated[str, typer.Option("--dialogue", metavar="ID", help="The dialogue; the report shows its id.")],
    turn: Annotated[int, typer.Option("--turn", min=0, metavar="T", help="The supporter's turn to replace, counted from 0.")],
    supporter: Annotated[InModel, typer.Option(metavar="MODEL", help="Model or floor that replies there instead.")],
    model: RoleModelOption = None,
    settings: SetOption = None,
    draws: Annotated[int, typer.Option("--draws", min=2, max=1000, metavar="N", help="Continuations of each side.")] = 12,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the fork; the same command resumes. Default: runs/fork/DIALOGUE-TURN."),
        Writes(("fork.*", "tables/*", "dialogues.jsonl", "judgements.jsonl")),
    ] = None,
) -> None:
    """Replace one reply of a dialogue and continue to the end N times: what did that reply change?

    The other supporter speaks at that turn only. The original reply is continued equally often, as a control. Writes
    OUT/fork.html, .json and .md: differences in the scores and in the seeker's later turns, and the dialogues as a tree.

    Example: esc-eval fork runs/demo --config configs/eval/demo.yaml --dialogue 0123456789abcdef --turn 2 --supporter lecture
    """
    made_with = shards.whole(run)
    dialogues = {record.id: record for record in read_jsonl(run / "dialogues.jsonl", Dialogue, "dialogues")}
    if dialogue not in dialogues:
        raise UserError(f"--dialogue {dialogue}: not in {run / 'dialogues.jsonl'}: {near(dialogue, dialogues)}")
    source, other = dialogues[dialogue], load_spec(supporter).name
    folder = out or Path("runs", "fork", f"{dialogue}-{turn}")
    overrides: dict[str, Any] = {"model": model, "out": str(folder), "floors": False}
    own_model = _named(config, overrides, settings or [], source)
    changed = [setting for setting in settings or [] if "supporters" not in fields_set([setting])]
    resolved = resolve(config, changed, supporters=list(dict.fromkeys([own_model, supporter])), **overrides)
    with open_run(run) as opened:
        resolved = replace(resolved, held=Held.of(opened, None))
    both = (made_with.root.get("simulate", {}), RunIdentity(resolved).simulate())
    lasting = ({field: value for field, value in simulated.items() if field not in _GROWS} for simulated in both)
    if lines := "; ".join(differing_leaves(*lasting)):
        raise UserError(f"--config {config}: differs from the config of {run}: {lines}")
    own = next((spec for spec in resolved.models.supporters if spec.name == source.supporter), None)
    if own is None or isinstance(own, HeldSpec):
        raise UserError(_WHERE.format(source.supporter))
    RunIdentity(resolved).score()  # problems surface before anything is written or started
    forked = Fork.of(resolved, source, turn, other)
    with open_run(folder) as opened, Runner(opened, resolved, console) as runner:
        result = ask_both(runner, forked, draws, TEMPERATURE)
        failures = opened.failures()
    judged_by = f"{resolved.models.judge.name}, method {resolved.method}"
    facts = [("Judge", judged_by), ("Draws", f"{draws} per side, at a temperature of at least {TEMPERATURE:g}")]
    supporters = (spec for spec in resolved.models.supporters if spec.name in (source.supporter, other))
    speakers = [*resolved.models.seekers, resolved.models.judge, *supporters]
    sheet = fork_sheet(result, resolved.rubric, facts, [spec.checkpoint for spec in speakers])
    deliver_page("fork", sheet, folder)
    exit_if_lost(sum(branch.lost for branch in result.dialogues), len(result.dialogues), "dialogues", failures)


def _named(config: Path, overrides: dict[str, Any], settings: Sequence[str], source: Dialogue) -> str:
    """The config's name of the dialogue's supporter, else the supporter's own name."""
    own_name = source.supporter or ""
    for name in (*load_config(config, overrides, settings).supporters, own_name):
        with suppress(UserError):
            if load_spec(name).name == own_name:
                return name
    raise UserError(_WHERE.format(own_name))


STAGE = "fork"


@dataclass(frozen=True)
class Forked:
    """Both sides of a fork. A dialogue's `trial` is the draw, and its `supporter` names the side: `as_it_was` or `changed`."""

    source: Dialogue
    turn: int
    as_it_was: str
    changed: str
    reply: str
    """The other supporter's reply at the turn."""
    dialogues: list[Dialogue]
    judgements: list[Judgement]


@dataclass(frozen=True)
class Fork:
    """A dialogue to fork at a turn, with its plans for its own supporter and for the other one."""

    source: Dialogue
    turn: int
    plan: Plan
    other: Plan

    @classmethod
    def of(cls, resolved: DialogueFramework, source: Dialogue, turn: int, other: str) -> Fork:
        """Raises `UserError` for a turn that is no answer of the supporter, and a dialogue that the config does not plan."""
        played = source.card_id, source.profile_id, source.trial
        openings = ((plan, plan.opening) for plan in resolved.plans())
        plans = {o.supporter: plan for plan, o in openings if (o.card_id, o.profile_id, o.trial) == played}
        plan = plans.get(source.supporter or "")
        if plan is None or plan.id != source.id:
            raise UserError(f"--dialogue {source.id}: not planned by the config: give the run's own config, cards and seeker")
        if other not in plans:
            raise UserError(f"--supporter {other}: does not speak {source.language}, or has no reply on this card")
        fixed = len(plan.opening.turns)
        answers = [place for place in range(fixed, len(source.turns)) if source.turns[place].role == "supporter"]
        if turn not in answers:
            raise UserError(f"--turn {turn}: the supporter's turns in {source.id} are {', '.join(map(str, answers)) or 'none'}")
        return cls(source, turn, plan, plans[other])

    @property
    def sides(self) -> tuple[str, str]:
        """The names of the sides in records."""
        return f"{self.source.supporter}, as it was", f"{self.other.opening.supporter} at turn {self.turn}"


def _drawn(side: Side, dialogue: str, temperature: float = 0) -> Side:
    """A side in another dialogue, with its models at least at this temperature: at 0 all draws would be the same."""
    changes: dict[str, Any] = {"dialogue": dialogue} if hasattr(side, "dialogue") else {}
    for field in fields(side):  # type: ignore[arg-type]
        spec = getattr(side, field.name)
        if isinstance(spec, ModelSpec) and (spec.sampling.temperature or 0) < temperature:
            sampling = spec.sampling.model_copy(update={"temperature": temperature})
            changes[field.name] = spec.model_copy(update={"sampling": sampling})
    return replace(side, **changes)  # type: ignore[type-var]


def ask_both(runner: Runner, forked: Fork, draws: int, temperature: float) -> Forked:
    """Ask for the other reply, continue from both to the end, `draws` times each, with models at least at this temperature, and
    judge every dialogue. Writes dialogues.jsonl and judgements.jsonl; the same command resumes, and draws may be added."""
    run, resolved = runner.run, runner.resolved.judging_whole()
    specs = {spec.name: spec for spec in resolved.models.supporters}
    own, other = (specs[plan.opening.supporter] for plan in (forked.plan, forked.other))
    supporters = [identity(own), *([identity(other)] if other.name != own.name else [])]
    settings = {"source": hashed([forked.source]), "turn": forked.turn, "seeker": identity(resolved.models.seeker)}
    settings |= {"supporters": supporters, "temperature": temperature, "draws": draws, "judged": RunIdentity(resolved).score()}
    run.claim(STAGE, settings, ("draws",))
    reply_id = dialogue_id(STAGE, f"{forked.source.id} {forked.turn} {forked.sides[1]}", other.name, "", 0)

    async def reply(client: ChatClient, side: Side) -> Utterance:
        turns = [turn.model_copy(update={"state": None}) for turn in forked.source.turns[: forked.turn]]
        return await side.speak(client, turns)

    results = attrgetter("results")
    side, stage = _drawn(forked.other.supporter_side, reply_id), f"{STAGE} reply"
    (other_reply,) = answered(runner.desk(stage, [other] if other.floor is None else [], [side], reply, "reply", results))
    if other_reply.stopped:
        why = other_reply.stopped.replace("_", " ")
        raise UserError(f"--supporter {other.name}: gave no reply at turn {forked.turn} ({why})")

    async def go_on(client: ChatClient, plan: Plan) -> tuple[Dialogue, list[Judgement]]:
        dialogue = await hold(plan, client)
        return dialogue, await resolved.judge(client).score(dialogue)

    # Both sides go on with the same seeker and supporter.
    source, plan, turn, plans = forked.source, forked.plan, forked.turn, []
    ends = dict(zip(forked.sides, (source.turns[turn], Turn(role="supporter", text=other_reply.text)), strict=True))
    for draw, (name, last) in product(range(draws), ends.items()):
        id = dialogue_id(STAGE, f"{source.id} {turn} {name}", source.supporter or "", source.simulator or "", draw)
        turns = (*source.turns[:turn], last)
        branch = replace(
            plan,
            opening=replace(plan.opening, id=id, turns=turns, supporter=name, trial=draw),
            seeker_side=_drawn(plan.seeker_side, id, temperature),
            supporter_side=_drawn(plan.supporter_side, id, temperature),
            spoken=len(turns) - len(plan.opening.turns),
        )
        plans.append(branch)
    models = [*resolved.models.seekers, *([own] if own.floor is None else []), resolved.models.judge]
    desk = runner.desk(STAGE, models, plans, go_on, "dialogues", results, lambda: workloads(resolved, plans, True))
    judged = answered(desk)
    dialogues = [dialogue for dialogue, _ in judged]
    judgements = [judgement for _, verdicts in judged for judgement in verdicts]
    write_jsonl(run.folder / "dialogues.jsonl", dialogues)
    write_jsonl(run.folder / "judgements.jsonl", judgements)
    return Forked(forked.source, forked.turn, *forked.sides, other_reply.text, dialogues, judgements)


# --- the page: the seeker afterwards, the scores, and the dialogues as a tree -----------------------------------------------


FORK = "What the reply changed"  # heading of the page
AFTER = ("turns with thanks or relief %", "turns that voice danger %", "seeker took leave %")
NOTE = (
    "The other reply minus the original one; both are continued with the same seeker and the same supporter, drawn anew. "
    f"[{SMOOTHED} over draws], n = draws. {paired.HOLDS}."
)
WHY = (
    "The original reply is continued too, as a control: the dialogue as it was is one draw of many. Compared with it alone, "
    "a difference could be the luck of that draw, and a dialogue forked because it went badly would go better by chance."
)


def seeker_differences(forked: Forked) -> list[paired.Difference]:
    """The other reply minus the original one, for each of `AFTER`, paired by draw and corrected together."""
    whole = [dialogue for dialogue in forked.dialogues if not dialogue.lost]
    draws = sorted({dialogue.trial for dialogue in whole})
    values = np.full((len(draws), 2, len(AFTER)), np.nan)
    for dialogue in whole:
        later = [line for line in dialogue.turns[forked.turn + 1 :] if line.role == "seeker"]
        relief = sum(cheerful(line.text) is not None for line in later)
        danger = sum(risk.turn > forked.turn for risk in risk_turns(dialogue))
        share = 100 / len(later) if later else np.nan
        took_leave = 100.0 * (dialogue.termination == "seeker_ended")
        side = 0 if dialogue.supporter == forked.changed else 1
        values[draws.index(dialogue.trial), side] = share * relief, share * danger, took_leave
    # Holm's correction is over these alone: an average over them means nothing.
    return paired.differences(np.nan_to_num(values), (~np.isnan(values)).astype(float), [(0, 1)])[:-1]


def score_differences(forked: Forked, rubric: Rubric) -> list[paired.Difference]:
    """The same for the scores, the average last; empty if a side has no readable verdict."""
    # Branches are independent draws: each counts as a card of its own, even if two have the same text.
    branches = [branch.model_copy(update={"card_id": f"branch {branch.trial}"}) for branch in forked.dialogues]
    by_side = {side.supporter: side for side in contestants_of(branches, forked.judgements, rubric)}
    if not {forked.changed, forked.as_it_was} <= by_side.keys():
        return []
    sides = [by_side[forked.changed], by_side[forked.as_it_was]]
    return paired.differences(*stack(sides), [(0, 1)], design=sides[0].design)


def fork_sheet(forked: Forked, rubric: Rubric, facts: Sequence[tuple[str, str]], checkpoints: Sequence[str | None]) -> Sheet:
    """The page; `checkpoints` are those of the models that spoke and judged."""
    seeker, scores = seeker_differences(forked), score_differences(forked, rubric)
    names = [dimension_label(rubric, dimension_at(rubric, gap.dimension)) for gap in scores]
    heads, tables = ("what", "other reply", "as it was", *paired.COLUMNS), []
    for key, title, labels, gaps in (
        ("fork-scores", "Scores", names, scores),
        ("fork-seeker", "The seeker afterwards", AFTER, seeker),
    ):
        rows = [
            (label, gap.first_mean, gap.second_mean, *paired.by_column(gap).values())
            for label, gap in zip(labels, gaps, strict=True)
        ]
        tables.append(Table(key, title, heads, tuple(rows), (NOTE,), FORK))
    average = next((row for row in scores if row.dimension is None), None)
    answer = "Scores cannot be compared: a side has no readable verdict."
    if average is not None:
        judges = sorted({judgement.judge for judgement in forked.judgements})
        sentence = verdict("the other reply", "the original one", average, "draws")
        answer = f"{sentence[0].upper()}{sentence[1:]}, judged by {' and '.join(judges)}."
    ends = reach(gap.estimate for gap in scores)
    lines = [ForestLine(name, [[gap.estimate]], said=found_in(gap)) for name, gap in zip(names, scores, strict=True)]
    forest = gap_forest("Scores: the other reply minus the original one", [*lines[-1:], *lines[:-1]], ends, "")
    plumbing = any(str(place).startswith(EMBEDDED_PREFIX) for place in checkpoints)
    return Sheet(
        title=f"Fork of dialogue {forked.source.id} at turn {forked.turn}",
        cautions=[PLUMBING] if plumbing else [],
        findings=[answer, WHY],
        facts=[
            ("As it was", forked.as_it_was),
            ("Other reply", forked.changed),
            ("Seeker", forked.source.simulator or ""),
            *facts,
            ("Generated", time.strftime("%Y-%m-%d %H:%M")),
        ],
        forests=[forest] if lines else [],
        main=["fork-seeker"],
        tables=tables,
        figures={"plumbing": plumbing, "turn": forked.turn, "dialogue": forked.source.id, "reply": forked.reply},
        tree=_tree(forked, rubric),
    )


def _tree(forked: Forked, rubric: Rubric) -> Branch:
    """The trunk with two branches, and a leaf for every draw."""
    averages: dict[str, dict[str, float]] = {}
    for judgement in forked.judgements:
        if judgement.value is not None:
            points = rubric.normalised(judgement.dimension, judgement.value)
            averages.setdefault(judgement.dialogue_id, {})[judgement.dimension] = points

    def leaf(dialogue: Dialogue) -> Branch:
        scores = averages.get(dialogue.id)
        average = rubric.average(scores or {})
        score = "not scored" if average is None else f"{AVERAGE} {fmt(average, 1)}"
        label = f"{score}; ended {ENDINGS[dialogue.termination]}"
        return Branch(f"draw {dialogue.trial + 1}", label, dialogue.turns[forked.turn + 1 :])

    def side(name: str) -> Branch:
        drawn = [dialogue for dialogue in forked.dialogues if dialogue.supporter == name]
        return Branch(name, f"{len(drawn)} draws", drawn[0].turns[forked.turn : forked.turn + 1], [*map(leaf, drawn)])

    shared = f"{forked.turn} turns that both sides share"
    return Branch("Up to the fork", shared, forked.source.turns[: forked.turn], [side(forked.as_it_was), side(forked.changed)])
