"""Counterfactual replay: a dialogue up to a turn, another reply there, and on to the end, several times on both sides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from core.errors import UserError
from core.files import write_jsonl
from core.records import Dialogue, Judgement, Turn, dialogue_id
from core.specs import ModelSpec
from evalsuite.dialogues.hold import Plan, Side, Utterance, hold
from evalsuite.runner.engine import Runner
from evalsuite.runner.lengths import needs
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.identity import hashed, identity
from evalsuite.runs.run_identity import RunIdentity
from serve.batch import answered
from serve.client import ChatClient

STAGE = "fork"


@dataclass(frozen=True)
class Forked:
    """Both sides of a fork. A dialogue's `trial` is the draw, and its `supporter` the side: `as_it_was`, or `changed`."""

    source: Dialogue
    turn: int
    as_it_was: str
    changed: str
    reply: str
    """What the other supporter said at the turn."""
    dialogues: list[Dialogue]
    judgements: list[Judgement]


@dataclass(frozen=True)
class Fork:
    """What is forked: the dialogue, the turn, and the plans of it with the supporter that held it and with the other one."""

    source: Dialogue
    turn: int
    plan: Plan
    other: Plan

    @classmethod
    def of(cls, resolved: DialogueFramework, source: Dialogue, turn: int, other: str) -> Fork:
        """Raises `UserError` for a turn that is no answer of the supporter's, and for a dialogue that the config does not
        play."""
        specs = {spec.name: spec for spec in resolved.models.supporters}
        played = source.card_id, source.profile_id, source.trial
        plans = {
            plan.opening.supporter: plan
            for plan in resolved.plans()
            if (plan.opening.card_id, plan.opening.profile_id, plan.opening.trial) == played
        }
        plan = plans.get(source.supporter or "")
        if plan is None or plan.id != source.id:
            raise UserError(f"--dialogue {source.id}: the config does not hold it: give the run's own config, cards and seeker")
        if other not in plans:
            raise UserError(f"--supporter {other}: does not speak {source.language}, or has no reply on this card")
        given = len(plan.opening.turns)
        answers = [place for place, one in enumerate(source.turns) if one.role == "supporter" and place >= given]
        if turn not in answers:
            raise UserError(f"--turn {turn}: the supporter's turns in {source.id} are {', '.join(map(str, answers)) or 'none'}")
        assert specs[other].name == other
        return cls(source, turn, plan, plans[other])

    def branches(self, reply: str, temperature: float, draws: int) -> list[Plan]:
        """The rest of the dialogue after either reply, so many times: seeker and supporter go on as they were, at least at this
        temperature."""
        before = self.source.turns[: self.turn]
        own, changed = self.sides
        ends = {own: self.source.turns[self.turn], changed: Turn(role="supporter", text=reply)}
        plans = []
        for draw in range(draws):
            for side, last in ends.items():
                supporter, simulator = self.source.supporter or "", self.source.simulator or ""
                id = dialogue_id(STAGE, f"{self.source.id} {self.turn} {side}", supporter, simulator, draw)
                plans.append(
                    replace(
                        self.plan,
                        opening=replace(self.plan.opening, id=id, turns=(*before, last), supporter=side, trial=draw),
                        seeker_side=_drawn(self.plan.seeker_side, id, temperature),
                        supporter_side=_drawn(self.plan.supporter_side, id, temperature),
                        spoken=self.turn + 1 - len(self.plan.opening.turns),
                    )
                )
        return plans

    @property
    def sides(self) -> tuple[str, str]:
        """What the sides are called in records."""
        return f"{self.source.supporter}, as it was", f"{self.other.opening.supporter} at turn {self.turn}"


def _drawn(side: Side, dialogue: str, temperature: float = 0) -> Side:
    """A side in another dialogue, its models at this temperature at least: at 0 every draw would be the same."""
    changes: dict[str, Any] = {"dialogue": dialogue} if hasattr(side, "dialogue") else {}
    for field in fields(side):  # type: ignore[arg-type]
        spec = getattr(side, field.name)
        if isinstance(spec, ModelSpec) and (spec.sampling.temperature or 0) < temperature:
            changes[field.name] = spec.model_copy(
                update={"sampling": spec.sampling.model_copy(update={"temperature": temperature})}
            )
    return replace(side, **changes)  # type: ignore[type-var]


def fork(runner: Runner, forked: Fork, draws: int, temperature: float) -> Forked:
    """Ask for the other reply, go on from both and judge every dialogue. Writes dialogues.jsonl and judgements.jsonl; the same
    command resumes, and more draws may be added."""
    run, resolved = runner.run, runner.resolved.judging_whole()
    own, other = (
        {spec.name: spec for spec in resolved.models.supporters}[plan.opening.supporter] for plan in (forked.plan, forked.other)
    )
    settings = {
        "source": hashed([forked.source]),
        "turn": forked.turn,
        "seeker": identity(resolved.models.seeker),
        "supporters": [identity(own), *([identity(other)] if other.name != own.name else [])],
        "temperature": temperature,
        "draws": draws,
        "judged": RunIdentity(resolved).score(),
    }
    run.claim(STAGE, settings, ("draws",))
    name = forked.sides[1]
    asked_as = dialogue_id(STAGE, f"{forked.source.id} {forked.turn} {name}", other.name, "", 0)

    async def reply(client: ChatClient, side: Side) -> Utterance:
        turns = [turn.model_copy(update={"state": None}) for turn in forked.source.turns[: forked.turn]]
        return await side.speak(client, turns)

    side = _drawn(forked.other.supporter_side, asked_as)
    said = answered(runner.desk(f"{STAGE} reply", _models([other])), [side], reply, f"{STAGE} reply", "reply").results[0]
    if said.stopped:
        raise UserError(f"--supporter {other.name}: gave no reply at turn {forked.turn} ({said.stopped.replace('_', ' ')})")

    async def go_on(client: ChatClient, plan: Plan) -> tuple[Dialogue, list[Judgement]]:
        dialogue = await hold(plan, client)
        return dialogue, await resolved.judge(client).score(dialogue)

    plans = forked.branches(said.text, temperature, draws)
    specs = [*resolved.models.seekers, *_models([own]), resolved.models.judge]
    desk = runner.desk(STAGE, specs, lambda: needs(resolved, plans, True))
    answers = answered(desk, plans, go_on, STAGE, "dialogues")
    dialogues = [dialogue for dialogue, _ in answers.results]
    judgements = [judgement for _, of_one in answers.results for judgement in of_one]
    write_jsonl(run.folder / "dialogues.jsonl", dialogues)
    write_jsonl(run.folder / "judgements.jsonl", judgements)
    return Forked(forked.source, forked.turn, *forked.sides, said.text, dialogues, judgements)


def _models(specs: Iterable[ModelSpec]) -> list[ModelSpec]:
    return [spec for spec in specs if spec.floor is None]
