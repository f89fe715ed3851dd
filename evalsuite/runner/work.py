"""What a stage of a run does with each of its dialogues: hold it, judge it as soon as it is there, keep the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from core.records import Dialogue, Judgement, Usage
from core.specs import ModelSpec
from evalsuite.dialogues.hold import Plan, hold
from evalsuite.runner.engine import Runner
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.judgement_sets import JudgementSet
from evalsuite.runs.spool import Piece, Records, Spool
from evalsuite.runs.versions import versions
from serve.answers import UsageTally
from serve.batch import Answers, Desk
from serve.budget import Share
from serve.callables import PLACE, CallableSpec
from serve.client import ChatClient
from serve.failures import FailedCall, NotReached, NotStored
from serve.units import Needs

Job = Plan | Dialogue


@dataclass
class Outcome:
    """What a stage made, in the order of its jobs."""

    dialogues: Records[Dialogue]
    judgements: Records[Judgement]
    """Verdicts on whole dialogues."""
    turn_judgements: Records[Judgement]
    """Verdicts on parts of them."""
    failures: list[FailedCall] = field(default_factory=list)
    """Calls without an answer."""
    ended_early: str | None = None
    """Why the stage ended before its end."""
    not_reached: int = 0
    """Dialogues that the budget did not reach."""
    not_judged: int = 0
    """Dialogues whose verdicts it did not reach."""
    file: str = ""
    """Where the verdicts are, in the run folder."""
    usage: dict[str, dict[str, Usage]] = field(default_factory=dict)
    """Role → model → what it used."""
    kept: Collection[str] = ()
    """Dialogues that only earlier commands asked for."""

    @property
    def unfinished(self) -> str:
        """What the budget did not reach; "" where that is nothing."""
        parts = [(self.not_reached, "not asked"), (self.not_judged, "not judged")]
        told = "".join(f", {number:,} {what}" for number, what in parts if number)
        of = "of the gold set " if self.file.endswith("gold_judgements.jsonl") else ""
        return f"{len(self.dialogues) - self.not_judged:,} dialogues {of}are finished{told}" if told else ""


@dataclass
class Work:
    """What a stage does with every dialogue: hold or take it, judge it as soon as it is there, keep the records.

    Dialogues that are not `asked` for are taken from what the folder holds.
    """

    runner: Runner
    resolved: DialogueFramework
    stage: str
    specs: Sequence[ModelSpec]
    jobs: Sequence[Job]
    asked: Collection[str]
    judging: JudgementSet | None

    def __post_init__(self) -> None:
        run, resolved = self.runner.run, self.resolved
        self.kept = [job.id for job in self.jobs if job.id not in self.asked]
        if self.kept:
            self.runner.say(f"{run.folder} holds {len(self.kept)} dialogues beside those that are asked for: they are kept")
        # A judge that cannot judge is refused before anything is asked.
        among = [job for job in self.jobs if isinstance(job, Dialogue)]
        self._judge = resolved.judge(ChatClient(run.store), among=among) if self.judging else None
        self._spool = Spool(run.folder)
        self._not_judged = set[str]()
        jobs = [job for job in self.jobs if job.id in self.asked]
        self._shares: dict[str, tuple[Share, Share]] = {}
        if run.budget.limited:
            from evalsuite.runner.forecast import shares_of  # what only a budget needs

            self._shares = shares_of(jobs, [resolved, *self.runner.later], self.judging is not None)
        self._failed = run.store.failed_items()  # in earlier tries
        self._places = places(self.jobs)
        # `run` leaves what `simulate` and `score` leave
        self._judged_as = self.judging.stage if self.judging and self.stage == "simulate" else self.stage
        self.keep_versions({})

    def desk(self) -> Desk:
        """Where the dialogues are held and judged."""
        judged = self.judging is not None

        def needs() -> Needs:
            from evalsuite.runner.forecast import workloads  # what only servers of ours need

            return workloads(self.resolved, (job for job in self.jobs if job.id in self.asked), judged)

        return self.runner.desk(self.stage, self.specs, needs, self._judged_as)

    def order(self, client: ChatClient, job: Job) -> tuple[int, ...]:
        """Which dialogues begin first: those that failed least often, then card by card."""
        return self._failed.get(job.id, 0), *self._places[job.id]

    def keep_versions(self, servers: Mapping[str, str | None]) -> None:
        """Note what the records are made with."""
        resolved = self.resolved
        packs = {resolved.pack: resolved.prompts} if self.stage == "simulate" else {}
        packs |= {resolved.judge_pack: resolved.judge_prompts} if self.judging else {}
        self.runner.run.keep_versions(versions(packs, resolved.rubric, servers, self.specs))

    async def __call__(self, client: ChatClient, job: Job) -> Piece:
        """A dialogue with its verdicts, as they are kept."""
        if job.id not in self.asked:
            return self._spool.keep(*await self._from_store(client, job))
        judgements: list[Judgement] = []
        async with self._room(client, job):
            try:
                dialogue = await hold(job, client) if isinstance(job, Plan) else job
                PLACE.set((dialogue.card_id or dialogue.profile_id, None))
                if self._judge is not None:
                    try:
                        complete = dialogue if isinstance(job, Plan) else await self.resolved.completed(client, dialogue)
                        dialogue = dialogue if complete.lost else complete
                        judgements = await replace(self._judge, client=client).score(complete)
                    except NotReached:  # the dialogue itself is there
                        self._not_judged.add(job.id)
            finally:
                for spec in self.specs:
                    if isinstance(spec, CallableSpec):
                        await spec.end(client.timeout_s, job.id)
        if dialogue.lost or any(judgement.lost for judgement in judgements):
            client.threshold.dialogue_failed(len(self.jobs))
        return self._spool.keep(dialogue, judgements)

    def _room(self, client: ChatClient, job: Job) -> AbstractAsyncContextManager[None]:
        """Waits until the budget finishes one more dialogue."""
        if client.offline or not self._shares:
            return nullcontext()
        share, later = map(replace, self._shares[job.id])
        return self.runner.run.budget.room(job.id, share, later if self.runner.later else None)

    async def _from_store(self, client: ChatClient, job: Job) -> tuple[Dialogue, list[Judgement]]:
        """A dialogue that only earlier commands asked for, with its verdicts: made again of stored answers, or as it was
        recorded where these do not reach."""
        held, judge = self.resolved.held, self._judge
        assert held is not None
        stored, verdicts = client.from_store(), held.judgements.get(job.id, [])
        try:
            dialogue = await hold(job, stored) if isinstance(job, Plan) else job
        except NotStored:
            return held.dialogues[job.id], verdicts
        try:
            return dialogue, await replace(judge, client=stored).score(dialogue) if judge and verdicts else verdicts
        except NotStored:
            return dialogue, verdicts

    def outcome(self, answers: Answers[Piece]) -> Outcome:
        """What the stage made. Writes what it used, and how fast."""
        run, client, pieces = self.runner.run, answers.client, answers.results
        usage: dict[str, dict[str, Usage]] = {}
        for name in dict.fromkeys([self.stage, self._judged_as]):
            whose = self._judged_as, self.stage
            used = {who: tally for who, tally in client.tallies.items() if name == whose[who[1] != "judge"]}
            usage |= run.keep_usage(name, {(model, role): _usage(tally, role) for (model, role), tally in used.items()})
        file = self.judging.file if self.judging else ""
        if self.judging and self.stage == self.judging.gold_stage:
            file = str(Path(file).with_name("gold_judgements.jsonl"))
        outcome = Outcome(
            dialogues=Records(Dialogue, self._spool, [piece.dialogue for piece in pieces]),
            judgements=Records(Judgement, self._spool, [place for piece in pieces for place in piece.whole]),
            turn_judgements=Records(Judgement, self._spool, [place for piece in pieces for place in piece.parts]),
            failures=client.failures,
            ended_early=client.threshold.cause,
            not_reached=len(self.jobs) - len(pieces),
            not_judged=len(self._not_judged),
            file=file,
            usage=usage,
            kept=self.kept,
        )
        if answers.rate is not None:
            figures: dict[str, Any] = {
                "calls": {"/".join(who): asdict(tally) for who, tally in client.tallies.items()},
                "latency_s": run.store.latency(),
                "in_flight": answers.in_flight,
                "unfinished": outcome.unfinished,
            }
            run.keep_timing(self.stage, **figures)
            self.runner.console.print(f"{self.stage}: {len(pieces)} dialogues, {answers.rate}")
        return outcome


def places(jobs: Sequence[Job]) -> dict[str, tuple[int, int]]:
    """In which order dialogues begin: card by card with every supporter in every language, so that what a budget reaches
    compares them."""
    places: dict[str, tuple[int, int]] = {}
    seen: Counter[tuple[str | None, str, int]] = Counter()
    for job in jobs:
        dialogue = job.opening if isinstance(job, Plan) else job
        alike = dialogue.supporter, dialogue.language, dialogue.trial
        places[job.id] = dialogue.trial, seen[alike]
        seen[alike] += 1
    return places


def _usage(tally: UsageTally, role: str) -> Usage:
    """The part of a tally that is the same for an interrupted run and an undisturbed one."""
    return Usage(
        calls=tally.calls,
        prompt_tokens=tally.prompt_tokens,
        completion_tokens=tally.completion_tokens,
        reasoning_tokens=tally.reasoning_tokens,
        cut_off={role: tally.cut_off} if tally.cut_off else {},
    )
