"""What a stage of a run does with each dialogue: hold it, judge it as soon as it is finished, keep the records."""

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
from evalsuite.runs.contents import JudgementSet, Piece, Records, Spool
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.folder import versions
from serve.answers import UsageTally
from serve.batch import Answers, Desk
from serve.callables import PLACE, CallableSpec
from serve.client import ChatClient
from serve.failures import FailedCall, NotReached, NotStored
from serve.limits import Share
from serve.units import Needs

Job = Plan | Dialogue


@dataclass
class Outcome:
    """The results of a stage, in the order of its jobs."""

    dialogues: Records[Dialogue]
    judgements: Records[Judgement]
    """Verdicts on whole dialogues."""
    turn_judgements: Records[Judgement]
    """Verdicts on parts of dialogues."""
    failures: list[FailedCall] = field(default_factory=list)
    """Calls without an answer."""
    ended_early: str | None = None
    """Why the stage stopped early."""
    not_reached: int = 0
    """The number of dialogues that the budget did not reach."""
    not_judged: int = 0
    """The number of dialogues that it did not reach to judge."""
    file: str = ""
    """The file of verdicts in the run folder."""
    usage: dict[str, dict[str, Usage]] = field(default_factory=dict)
    """Role → model → usage."""
    kept: Collection[str] = ()
    """Ids of dialogues that only earlier commands asked for."""

    @property
    def unfinished(self) -> str:
        """A sentence on what the budget did not reach; "" if it reached everything."""
        counts = [(self.not_reached, "not asked"), (self.not_judged, "not judged")]
        parts = "".join(f", {number:,} {state}" for number, state in counts if number)
        gold = "of the gold set " if self.file.endswith("gold_judgements.jsonl") else ""
        return f"{len(self.dialogues) - self.not_judged:,} dialogues {gold}are finished{parts}" if parts else ""


def lost_in(outcomes: Sequence[Outcome]) -> tuple[set[str], set[str]]:
    """The ids of lost dialogues, and of others with a lost judgement."""
    lost = {dialogue.id for outcome in outcomes for dialogue in outcome.dialogues if dialogue.lost}
    return lost, {j.dialogue_id for outcome in outcomes for j in outcome.judgements if j.lost} - lost


def problems_of(outcomes: Sequence[Outcome]) -> list[str]:
    """What is missing of the dialogues that this command asks for, because a model failed or the budget was used up."""
    kept = {dialogue for outcome in outcomes for dialogue in outcome.kept}
    lost, unscored = (ids - kept for ids in lost_in(outcomes))
    early = next((outcome.ended_early for outcome in outcomes if outcome.ended_early), None)
    problems = []
    if lost or unscored:
        failures = [failure for outcome in outcomes for failure in outcome.failures]
        reason = f"the run ended early: {early}" if early else failures[0].reason if failures else "a server was lost"
        kinds = Counter(failure.outcome for failure in failures)
        calls = f" ({kinds['rejected']} calls rejected, {kinds['infrastructure']} lost: failures.json)" if failures else ""
        problems = [f"{len(lost)} dialogues and the judgements of {len(unscored)} more are missing: {reason}{calls}"]
    if unfinished := "; ".join(outcome.unfinished for outcome in outcomes if outcome.unfinished):
        problems.append(f"the run ended early: {early}: {unfinished}")
    return problems


@dataclass
class Work:
    """What a stage does with every dialogue: hold or take it, judge it as soon as it is finished, keep the records. Dialogues
    that are not `requested` are taken from the folder."""

    runner: Runner
    resolved: DialogueFramework
    stage: str
    specs: Sequence[ModelSpec]
    jobs: Sequence[Job]
    requested: Collection[str]
    """Ids of the dialogues that this command asks for."""
    judging: JudgementSet | None

    def __post_init__(self) -> None:
        run, resolved = self.runner.run, self.resolved
        self.kept = [job.id for job in self.jobs if job.id not in self.requested]
        if self.kept:
            self.runner.say(f"{run.folder} has {len(self.kept)} dialogues that this command does not ask for: they are kept")
        # Raises for an unsuitable judge before anything is asked.
        among = [job for job in self.jobs if isinstance(job, Dialogue)]
        self._judge = resolved.judge(ChatClient(run.store), among=among) if self.judging else None
        self._spool = Spool(run.folder)
        self._not_judged = set[str]()
        jobs = [job for job in self.jobs if job.id in self.requested]
        self._shares: dict[str, tuple[Share, Share]] = {}
        if run.budget.limited:
            from evalsuite.runner.forecast import shares_of  # only a budget needs it

            self._shares = shares_of(jobs, [resolved, *self.runner.later], self.judging is not None)
        self._failures = run.store.failed_items()  # of earlier commands
        self._places = places(self.jobs)
        # The judge's calls belong to its own stage, so that `run` leaves the same files as `simulate` and then `score`.
        self._judged_as = self.judging.stage if self.judging and self.stage == "simulate" else self.stage
        self.keep_versions({})

    def desk(self) -> Desk[Job, Piece, Outcome]:
        """The desk at which the dialogues are held and judged. The stage's usage and timing are written at its end."""

        def needs() -> Needs:
            from evalsuite.runner.forecast import workloads  # only servers of ours need it

            jobs = (job for job in self.jobs if job.id in self.requested)
            return workloads(self.resolved, jobs, self.judging is not None)

        return self.runner.desk(
            self.stage,
            self.specs,
            self.jobs,
            self,
            "dialogues",
            self._outcome,
            needs,
            self._judged_as,
            order=self.order,
            checked=self.keep_versions,
        )

    def order(self, client: ChatClient, job: Job) -> tuple[int, ...]:
        """A job's place in the order of beginning: dialogues that failed least often first, then card by card."""
        return self._failures.get(job.id, 0), *self._places[job.id]

    def keep_versions(self, servers: Mapping[str, str | None]) -> None:
        """Record the versions that the records are made with."""
        resolved = self.resolved
        packs = {resolved.pack: resolved.prompts} if self.stage == "simulate" else {}
        packs |= {resolved.judge_pack: resolved.judge_prompts} if self.judging else {}
        self.runner.run.keep_versions(versions(packs, resolved.rubric, servers, self.specs))

    async def __call__(self, client: ChatClient, job: Job) -> Piece:
        """Hold and judge a dialogue, or take it from the folder, and keep it."""
        if job.id not in self.requested:
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
                    except NotReached:  # the dialogue itself is finished
                        self._not_judged.add(job.id)
            finally:
                for spec in self.specs:
                    if isinstance(spec, CallableSpec):
                        await spec.end(client.timeout_s, job.id)
        if dialogue.lost or any(judgement.lost for judgement in judgements):
            client.threshold.dialogue_failed(len(self.jobs))
        return self._spool.keep(dialogue, judgements)

    def _room(self, client: ChatClient, job: Job) -> AbstractAsyncContextManager[None]:
        """Waits until the budget has room for one more dialogue."""
        if client.offline or not self._shares:
            return nullcontext()
        share, later = map(replace, self._shares[job.id])
        return self.runner.run.budget.room(job.id, share, later if self.runner.later else None)

    async def _from_store(self, client: ChatClient, job: Job) -> tuple[Dialogue, list[Judgement]]:
        """A dialogue of earlier commands with its verdicts: from stored answers, or as recorded if some are missing."""
        folder, judge = self.resolved.held, self._judge
        assert folder is not None
        stored, verdicts = client.from_store(), folder.judgements.get(job.id, [])
        try:
            dialogue = await hold(job, stored) if isinstance(job, Plan) else job
        except NotStored:
            return folder.dialogues[job.id], verdicts
        try:
            return dialogue, await replace(judge, client=stored).score(dialogue) if judge and verdicts else verdicts
        except NotStored:
            return dialogue, verdicts

    def _outcome(self, answers: Answers[Piece]) -> Outcome:
        run, client, pieces = self.runner.run, answers.client, answers.results
        usage: dict[str, dict[str, Usage]] = {}
        for name in dict.fromkeys([self.stage, self._judged_as]):
            tallies = client.tallies.items()
            mine = {key: tally for key, tally in tallies if name == (self._judged_as if key[1] == "judge" else self.stage)}
            usage |= run.keep_usage(name, {key: _usage(tally, key[1]) for key, tally in mine.items()})
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
                "calls": {f"{model}/{role}": asdict(tally) for (model, role), tally in client.tallies.items()},
                "latency_s": run.store.latency(),
                "in_flight": answers.in_flight,
                "unfinished": outcome.unfinished,
            }
            run.keep_timing(self.stage, **figures)
            self.runner.console.print(f"{self.stage}: {len(pieces)} dialogues, {answers.rate}")
        return outcome


def places(jobs: Sequence[Job]) -> dict[str, tuple[int, int]]:
    """Dialogue id → trial and number of its card. In this order dialogues begin with every supporter and language card by card,
    so that whatever a budget reaches can be compared."""
    places: dict[str, tuple[int, int]] = {}
    counts: Counter[tuple[str | None, str, int]] = Counter()
    for job in jobs:
        dialogue = job.opening if isinstance(job, Plan) else job
        group = dialogue.supporter, dialogue.language, dialogue.trial
        places[job.id] = dialogue.trial, counts[group]
        counts[group] += 1
    return places


def _usage(tally: UsageTally, role: str) -> Usage:
    """The part of a tally that does not change if a run is interrupted and resumed."""
    figures = {name: getattr(tally, name) for name in ("calls", "prompt_tokens", "completion_tokens", "reasoning_tokens")}
    return Usage(**figures, cut_off={role: tally.cut_off} if tally.cut_off else {})
