"""The stages of a run: dialogues are held and scored in one stream, and all records are rebuilt from the call store."""

import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from core.errors import UserError
from core.files import digest, read_jsonl, sha256_file, write_jsonl, write_lines
from core.machine import Machine
from core.records import Dialogue, HumanScore, Judgement, Usage
from core.specs import ModelSpec
from core.tables import Table
from evalsuite.dialogues.hold import Plan
from evalsuite.judge.methods import method_of
from evalsuite.runner.engine import Runner
from evalsuite.runner.work import Job, Outcome, Work
from evalsuite.runs.contents import VERDICTS, Held, JudgementSet, Written, claim_set, set_of, sets_of
from evalsuite.runs.dialogue_framework import DialogueFramework, RunIdentity
from evalsuite.runs.folder import USED, Run, code, versions
from evalsuite.runs.models import unspoken
from evalsuite.runs.people import PEOPLE, write_people
from evalsuite.runs.run_config import hashed
from serve.batch import answered
from serve.client import ChatClient

_PLAYED = [name.removesuffix(".jsonl") for name in PEOPLE]
# Stage → the fields of its config to which more may be added in the same folder.
_GROWS: dict[str, Sequence[str]] = {
    "simulate": ("supporters", "languages", "trials", "texts", *_PLAYED),
    "score": ("texts", *_PLAYED),
    "gold": ("count", "sha256"),
}


def simulate(runner: Runner, score: bool) -> Outcome:
    """Hold every dialogue of a run and, with `score`, judge each as soon as it ends. Writes people and records."""
    if score and method_of(runner.resolved.method).together:
        return _simulate_then_score(runner)
    run, requested = runner.run, runner.resolved
    for spec in requested.models.supporters:
        if left_out := unspoken(spec, requested.config.languages):
            runner.console.print(f"{spec.name} does not speak {', '.join(left_out)}: its dialogues there are left out")
    if requested.config.limit is not None and not requested.config.until:
        limit = requested.config.limit
        runner.say(f"at most {limit} cards or profiles per language (limit); --limit N plays more in the same folder")
    if score and requested.models.judge.served_name() in {spec.served_name() for spec in requested.models.supporters}:
        runner.say(f"{requested.models.judge.name} judges itself too: read its scores with care, or name another with --judge")
    judging = set_of(run, requested.models.judge.name) if score else None
    resolved = _with_held(run, requested, judging)
    identity = RunIdentity(resolved)
    dialogues, judgements = identity.simulate(), identity.score() if judging else {}
    run.claim("simulate", dialogues, _grows(resolved, "simulate"), resolved.played)
    if judging:
        claim_set(run, judging, judgements, _grows(resolved, "score"))
    if silent := requested.silent():
        runner.say(f"reference: {silent} dialogues are left out: references have no source dialogue of their cards")
    end = End(run, resolved, judging, [dialogues, judgements], code(type(resolved).__mro__))
    all_requested = resolved is requested or RunIdentity(requested).simulate() == dialogues
    if all_requested and (outcome := end.outcome()):
        return outcome
    plans, specs = _cast(requested, score)
    jobs = plans if all_requested else _with_plans_held(resolved, plans)
    outcome = answered(Work(runner, resolved, "simulate", specs, jobs, {plan.id for plan in plans}, judging).desk())
    write_people(run.folder, resolved.played)
    _drop_outdated(runner, resolved, outcome.dialogues, judging)
    if resolved.shard and outcome.unfinished:  # it would pass for a whole shard
        return outcome
    write_lines(run.folder / "dialogues.jsonl", outcome.dialogues.lines())
    if judging:
        _write_judgements(judging, outcome)
    if all_requested:
        end.keep(outcome)
    return outcome


def _simulate_then_score(runner: Runner) -> Outcome:
    """Hold all dialogues, then judge them, for a method that compares dialogues."""
    if runner.resolved.shard:
        raise UserError(
            f"--shard: method {runner.resolved.method} compares dialogues that are in different shards: "
            "leave --shard out, or hold the dialogues in shards (--only simulate), merge them and judge all (--only score)"
        )
    runner.resolved.judge(ChatClient(runner.run.store))  # raises for an unsuitable judge before anything is asked
    simulated = simulate(runner, False)
    if not len(simulated.dialogues):
        return simulated
    judged = score(runner, runner.run.folder / "dialogues.jsonl", list(simulated.dialogues))
    return replace(
        judged,
        failures=[*simulated.failures, *judged.failures],
        ended_early=simulated.ended_early or judged.ended_early,
        not_reached=simulated.not_reached,
        usage=simulated.usage | judged.usage,
        kept=simulated.kept,
    )


def _cast(resolved: DialogueFramework, score: bool) -> tuple[list[Plan], list[ModelSpec]]:
    """The dialogues to hold here, and the models that they ask."""
    plans, models = list(resolved.plans()), resolved.models
    names = {plan.opening.supporter for plan in plans}  # a shard needs only some
    speaking = [spec for spec in models.supporters if spec.name in names and spec.floor is None]
    return plans, [*models.seekers, *([models.judge] if score else []), *speaking]


def planned(resolved: DialogueFramework, dialogues: Path | None, score: bool) -> tuple[Sequence[Job], list[ModelSpec]]:
    """The jobs of a run, and the models that it asks. With a file of `dialogues`, these are scored."""
    if dialogues is None:
        return _cast(resolved, score)
    given = resolved.given_dialogues(dialogues).dialogues
    return given, [resolved.models.judge, *resolved.completing(given)]


def servers(resolved: DialogueFramework, machine: Machine, dialogues: Path | None, score: bool) -> list[Table]:
    """Tables of the servers that a run starts: where, with how much memory and how fast. With a file of `dialogues`, these are
    scored. Nothing is written, asked or downloaded. Raises `UserError` if the servers do not fit."""
    from evalsuite.runner.forecast import workloads  # slow to import, so only for a plan
    from serve.plan import overview, plan_servers
    from serve.units import unservable

    jobs, specs = planned(resolved, dialogues, score)
    urls = dict(resolved.config.endpoints)
    urls |= {spec.name: url for spec in specs if (url := spec.endpoint.base_url or urls.get(spec.served_name()))}
    local = {spec.name: spec for spec in specs if spec.name not in urls}
    if not local:
        rows = tuple(dict.fromkeys((spec.name, urls[spec.name]) for spec in specs))
        return [Table("servers", "No server is started", ("model", "answers at"), rows)]
    problems = {name: unservable(spec) for name, spec in local.items()}
    launched = [spec for name, spec in local.items() if not problems[name]]
    parts = resolved.models.phases(launched, workloads(resolved, jobs, score), machine)
    plans = [plan_servers(part.specs, Path("logs"), resolve=False, machine=machine, needs=part.needs) for part in parts]
    remote = dict.fromkeys(f"{spec.name} answers at {urls[spec.name]}" for spec in specs if spec.name in urls)
    return [*overview(parts, plans, machine, [*remote, *filter(None, problems.values())])]


def score(runner: Runner, dialogues: Path, given: Sequence[Dialogue] | None = None) -> Outcome:
    """Judge the dialogues of a file, or those `given` from it, and write both to the run folder."""
    run = runner.run
    judging = set_of(run, runner.resolved.models.judge.name)
    resolved = _with_held(run, runner.resolved, judging)
    path = run.folder / "dialogues.jsonl"
    from_elsewhere = dialogues.resolve() != path.resolve()
    chosen = list(given) if given is not None else resolved.given_dialogues(dialogues).dialogues
    requested = {dialogue.id for dialogue in chosen if dialogue.language in resolved.config.languages}
    if not requested:
        raise UserError(f"{dialogues}: no dialogue in {', '.join(resolved.config.languages)}")
    people = resolved.people_of(chosen)
    if from_elsewhere:
        if "simulate" in run.config():
            raise UserError(f"--dialogues {dialogues}: {run.folder} holds a run's own dialogues; use another --out")
        run.claim("dialogues", hashed(chosen))
        chosen = resolved.shard.take(chosen) if resolved.shard else chosen  # a run's own dialogues are this shard's already
    for dialogue in chosen:
        resolved.shown.profile(dialogue)  # raises for an unknown seeker before anything is started
    claim_set(run, judging, RunIdentity(resolved).score(), _grows(resolved, "score"))
    specs = [resolved.models.judge, *resolved.completing(chosen)]
    outcome = answered(Work(runner, resolved, judging.stage, specs, chosen, requested, judging).desk())
    if resolved.shard and outcome.unfinished:
        return outcome
    if from_elsewhere:
        write_lines(path, outcome.dialogues.lines())
        write_people(run.folder, people)
    _write_judgements(judging, outcome)
    return outcome


def score_gold(runner: Runner) -> Outcome:
    """Judge the gold set. Writes gold_*.jsonl and, except in a shard, the judge's agreement with it (agreement.json)."""
    run = runner.run
    judging = set_of(run, runner.resolved.models.judge.name)
    resolved = _with_held(run, runner.resolved.judging_whole(), judging)  # people scored whole dialogues
    dialogues, scores = resolved.gold
    grows = _grows(resolved, "gold") if _holds_gold(run, dialogues, scores) else ()
    run.claim("gold", RunIdentity(resolved).gold(), grows)
    part = resolved.shard.take(dialogues) if resolved.shard else dialogues
    specs, ids = [resolved.models.judge, *resolved.completing(part)], {dialogue.id for dialogue in part}
    outcome = answered(Work(runner, resolved, judging.gold_stage, specs, part, ids, judging).desk())
    if outcome.unfinished:  # agreement needs a verdict for every score
        return outcome
    write_jsonl(run.folder / "gold_dialogues.jsonl", dialogues)
    write_jsonl(run.folder / "gold_scores.jsonl", scores)
    write_lines(judging.folder / "gold_judgements.jsonl", outcome.judgements.lines())
    if resolved.shard is None:  # a shard's agreement would pass for the run's, which `esc-eval merge` computes
        judging.measure(outcome.judgements, scores, dialogues, resolved.rubric)
    return outcome


def _write_judgements(judging: JudgementSet, outcome: Outcome) -> None:
    """Write verdicts on whole dialogues, and those on parts of dialogues to another file."""
    first = next(judging.each(), None)  # each file has only one judge
    if first and first.judge != judging.judge:
        judging.clear()  # a judge that never answered left it
    write_lines(judging.folder / "judgements.jsonl", outcome.judgements.lines())
    if len(outcome.turn_judgements):
        write_lines(judging.folder / "turn_judgements.jsonl", outcome.turn_judgements.lines())


def _drop_outdated(
    runner: Runner, resolved: DialogueFramework, dialogues: Iterable[Dialogue], judging: JudgementSet | None
) -> None:
    """Remove other judges' verdicts on dialogues that have changed: those that had been lost, or were sampled again."""
    others = [other for other in sets_of(runner.run.folder, runner.run.config()) if other != judging]
    if resolved.held is None or not others:
        return
    before = resolved.held.dialogues
    changed = {dialogue.id for dialogue in dialogues if before.get(dialogue.id, dialogue).turns != dialogue.turns}
    for other in others if changed else ():
        if count := other.drop(changed):
            judge = other.judge
            runner.say(f"{count} dialogues have changed since {judge} judged them: score them again with --judge {judge}")


def _with_held(run: Run, resolved: DialogueFramework, judging: JudgementSet | None) -> DialogueFramework:
    """A run with the dialogues that its folder has already. For a shard, these would change which dialogues it plays."""
    folder = None if resolved.shard else Held.of(run, judging)
    return replace(resolved, held=folder) if folder else resolved


def _grows(resolved: DialogueFramework, stage: str) -> Sequence[str]:
    """The fields of a stage's config to which more may be added."""
    if resolved.shard:
        return ()
    first = stage == "simulate" and resolved.held is not None and resolved.held.references is None
    return (*_GROWS[stage], *(["references"] if first else []))


def _with_plans_held(resolved: DialogueFramework, plans: Sequence[Plan]) -> list[Plan]:
    """These plans and those of the folder's dialogues, in the order of one run. Raises `UserError` if one has no plan."""
    assert resolved.held is not None
    ids = {plan.id for plan in plans} | resolved.held.ids
    together = [plan for plan in resolved.plans() if plan.id in ids]
    if lost := ids - {plan.id for plan in together}:
        raise UserError(
            f"{resolved.held.folder}: dialogue {min(lost)} is on a card or profile that is not in the folder any more: put the "
            "old cards.jsonl or profiles.jsonl back, or use another --out"
        )
    return together


def _holds_gold(run: Run, dialogues: Sequence[Dialogue], scores: Sequence[HumanScore]) -> bool:
    """Whether the folder's gold set is part of this one."""

    def is_part(name: str, model: type[BaseModel], records: Sequence[BaseModel]) -> bool:
        path = run.folder / name
        stored = read_jsonl(path, model, "gold") if path.exists() else []
        return {record.model_dump_json() for record in stored} <= {record.model_dump_json() for record in records}

    return is_part("gold_dialogues.jsonl", Dialogue, dialogues) and is_part("gold_scores.jsonl", HumanScore, scores)


@dataclass(frozen=True)
class End:
    """The end of a run whose dialogues are judged by one judge or none. Its records are taken as they are if nothing that they
    were made of has changed. Making 100,000 dialogues again takes minutes, comparing hashes seconds."""

    run: Run
    resolved: DialogueFramework
    judging: JudgementSet | None
    identities: Sequence[Any]
    """The identity of its dialogues and of its judgements, as in config.json."""
    code: Sequence[str]
    """Hashes of the code that makes them, taken beforehand."""

    @property
    def _stages(self) -> list[str]:
        return ["simulate", *([self.judging.stage] if self.judging else [])]

    def _state(self, then: float) -> str:
        """A hash of the records and of all that they were made of: of stored answers, those up to `then`."""
        resolved, run = self.resolved, self.run
        specs = [*resolved.models.seekers, *resolved.models.supporters]
        packs = {resolved.pack: resolved.prompts}
        if self.judging:
            specs.append(resolved.models.judge)
            packs[resolved.judge_pack] = resolved.judge_prompts
        made_by = [versions(packs, resolved.rubric, {}, specs), self.code, str(resolved.shard)]
        paths = [*(run.folder / name for name in (*PEOPLE, "dialogues.jsonl")), *itertools.chain(*self._verdicts())]
        files = {str(path.relative_to(run.folder)): sha256_file(path) for path in paths if path.exists()}
        used = USED.dump_python({stage: run.usage().get(stage, {}) for stage in self._stages}, mode="json")
        return digest([self.identities, made_by, files, used, run.store.state(then)])

    def _verdicts(self) -> list[list[Path]]:
        """The files of verdicts on whole dialogues, and of those on parts; a list is empty if there is no file."""
        return [[path] if self.judging and (path := self.judging.folder / name).exists() else [] for name in VERDICTS]

    def keep(self, outcome: Outcome) -> None:
        """Remember this outcome as the end, unless something is missing."""
        if not (outcome.failures or outcome.ended_early or outcome.unfinished):
            now = time.time()
            self.run.store.keep_end(self._stages[-1], now, self._state(now))

    def outcome(self) -> Outcome | None:
        """The outcome that the run left; None if it is not at its end, or would make other records now."""
        run, end = self.run, self.run.store.end_of(self._stages[-1])
        again = run.retry.kinds or run.failures().keys() & self._stages or not run.versions()
        if again or end is None or end[1] != self._state(end[0]):
            return None
        run.settle()
        usage: dict[str, dict[str, Usage]] = {}
        for stage in self._stages:
            usage |= run.usage().get(stage, {})
        whole, parts = (Written(Judgement, paths) for paths in self._verdicts())
        file = self.judging.file if self.judging else ""
        return Outcome(Written(Dialogue, [run.folder / "dialogues.jsonl"]), whole, parts, file=file, usage=usage)
