"""The stages of a run: dialogues are held and scored in one stream, every record is rebuilt from the call store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from core.errors import UserError
from core.files import digest, read_jsonl, sha256_file, write_json, write_jsonl, write_lines
from core.machine import Machine
from core.records import Dialogue, HumanScore, Judgement, Usage
from core.specs import ModelSpec
from core.tables import Table
from evalsuite.dialogues.hold import Plan
from evalsuite.judge.methods import method_of
from evalsuite.runner.engine import Runner
from evalsuite.runner.work import Job, Outcome, Work
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.folder import USED, Run
from evalsuite.runs.held import Held
from evalsuite.runs.identity import hashed
from evalsuite.runs.judgement_sets import VERDICTS, JudgementSet, claim_set, set_of, sets_of
from evalsuite.runs.models import unspoken
from evalsuite.runs.people import PEOPLE, write_people
from evalsuite.runs.run_identity import RunIdentity
from evalsuite.runs.spool import Written
from evalsuite.runs.versions import code, versions
from serve.batch import answered
from serve.client import ChatClient

_PLAYED = [name.removesuffix(".jsonl") for name in PEOPLE]
# What may be added in the same folder, by stage and field of its config.
_GROWS: dict[str, Sequence[str]] = {
    "simulate": ("supporters", "languages", "trials", "texts", *_PLAYED),
    "score": ("texts", *_PLAYED),
    "gold": ("count", "sha256"),
}


def simulate(runner: Runner, score: bool) -> Outcome:
    """Hold every dialogue of a run and, with `score`, judge each as soon as it ends. Writes cards or profiles, dialogues and
    judgements."""
    if score and method_of(runner.resolved.method).together:
        return _beside_each_other(runner)
    run, asked = runner.run, runner.resolved
    for spec in asked.models.supporters:
        if left_out := unspoken(spec, asked.config.languages):
            runner.console.print(f"{spec.name} does not speak {', '.join(left_out)}: what is played in it is left out")
    if asked.config.limit is not None and not asked.config.until:
        runner.say(f"at most {asked.config.limit} a language are played (limit); --limit N plays more in the same folder")
    if score and asked.models.judge.served_name() in {spec.served_name() for spec in asked.models.supporters}:
        runner.say(f"{asked.models.judge.name} judges itself too: read its scores with care, or name another with --judge")
    judging = set_of(run, asked.models.judge.name) if score else None
    resolved = _with_held(run, asked, judging)
    identity = RunIdentity(resolved)
    dialogues, judgements = identity.simulate(), identity.score() if judging else {}
    run.claim("simulate", dialogues, _grows(resolved, "simulate"), resolved.played)
    if judging:
        claim_set(run, judging, judgements, _grows(resolved, "score"))
    if silent := asked.silent():
        runner.say(f"reference: {silent} dialogues are left out: references have no source dialogue of their cards")
    end = End(run, resolved, judging, [dialogues, judgements], code(type(resolved).__mro__))
    all_asked = resolved is asked or RunIdentity(asked).simulate() == dialogues
    if all_asked and (left := end.outcome()):
        return left
    plans, specs = _cast(asked, score)
    jobs = plans if all_asked else _with_plans_held(resolved, plans)
    work = Work(runner, resolved, "simulate", specs, jobs, {plan.id for plan in plans}, judging)
    answers = answered(work.desk(), jobs, work, "simulate", "dialogues", work.order, work.keep_versions)
    outcome = work.outcome(answers)
    write_people(run.folder, resolved.played)
    _drop_outdated(runner, resolved, outcome.dialogues, judging)
    if resolved.shard and outcome.unfinished:  # a part of a part would pass for the whole of it
        return outcome
    write_lines(run.folder / "dialogues.jsonl", outcome.dialogues.lines())
    if judging:
        _write_judgements(judging, outcome)
    if all_asked:
        end.keep(outcome)
    return outcome


def _beside_each_other(runner: Runner) -> Outcome:
    """Hold every dialogue, then judge all of them: what is compared has to be there."""
    if runner.resolved.shard:
        raise UserError(
            f"--shard: method {runner.resolved.method} sets dialogues beside each other that other shards hold: "
            "leave --shard out, or hold the dialogues in shards (--only simulate), merge them and judge all (--only score)"
        )
    runner.resolved.judge(ChatClient(runner.run.store))  # one that cannot judge is refused before anything is asked
    held = simulate(runner, False)
    if not len(held.dialogues):
        return held
    judged = score(runner, runner.run.folder / "dialogues.jsonl", list(held.dialogues))
    return replace(
        judged,
        failures=[*held.failures, *judged.failures],
        ended_early=held.ended_early or judged.ended_early,
        not_reached=held.not_reached,
        usage=held.usage | judged.usage,
        kept=held.kept,
    )


def _cast(resolved: DialogueFramework, score: bool) -> tuple[list[Plan], list[ModelSpec]]:
    """The dialogues to hold here, and the models that they ask."""
    plans, models = list(resolved.plans()), resolved.models
    names = {plan.opening.supporter for plan in plans}  # a shard needs only some
    speaking = [spec for spec in models.supporters if spec.name in names and spec.floor is None]
    return plans, [*models.seekers, *([models.judge] if score else []), *speaking]


def planned(resolved: DialogueFramework, dialogues: Path | None, score: bool) -> tuple[Sequence[Job], list[ModelSpec]]:
    """What a run works on, and the models that it asks; `dialogues`: given ones are scored."""
    if dialogues is None:
        return _cast(resolved, score)
    chosen = resolved.given_dialogues(dialogues).dialogues
    return chosen, [resolved.models.judge, *resolved.completing(chosen)]


def servers(resolved: DialogueFramework, machine: Machine, dialogues: Path | None, score: bool) -> list[Table]:
    """Which servers a run starts, where, what they take and how fast they are; `dialogues`: given ones are scored. Nothing is
    written, asked or downloaded. Raises `UserError` where they do not fit."""
    from evalsuite.runner.forecast import workloads  # loaded when servers are planned
    from serve.plan import overview, plan_servers
    from serve.units import unservable

    jobs, specs = planned(resolved, dialogues, score)
    given = dict(resolved.config.endpoints)
    given |= {spec.name: url for spec in specs if (url := spec.endpoint.base_url or given.get(spec.served_name()))}
    here = {spec.name: spec for spec in specs if spec.name not in given}
    alone = {name: unservable(spec) for name, spec in here.items()}
    launched = [spec for name, spec in here.items() if not alone[name]]
    if not here:
        rows = tuple(dict.fromkeys((spec.name, given[spec.name]) for spec in specs))
        return [Table("servers", "No server is started", ("model", "answers at"), rows)]
    parts = resolved.models.phases(launched, workloads(resolved, jobs, score), machine)
    elsewhere = dict.fromkeys(f"{spec.name} answers at {given[spec.name]}" for spec in specs if spec.name in given)
    plans = [plan_servers(part.specs, Path("logs"), resolve=False, machine=machine, needs=part.needs) for part in parts]
    notes = [*elsewhere, *filter(None, alone.values())]
    return [*overview(parts, plans, machine, notes)]


def score(runner: Runner, dialogues: Path, held: Sequence[Dialogue] | None = None) -> Outcome:
    """Judge given dialogues, those of a file or `held` ones of it. Writes them beside the judgements, so that the folder can be
    reported on its own."""
    run = runner.run
    judging = set_of(run, runner.resolved.models.judge.name)
    resolved = _with_held(run, runner.resolved, judging)
    path = run.folder / "dialogues.jsonl"
    from_elsewhere = dialogues.resolve() != path.resolve()
    chosen = list(held) if held is not None else resolved.given_dialogues(dialogues).dialogues
    asked = {dialogue.id for dialogue in chosen if dialogue.language in resolved.config.languages}
    if not asked:
        raise UserError(f"{dialogues}: no dialogue in {', '.join(resolved.config.languages)}")
    people = resolved.people_of(chosen)
    if from_elsewhere:
        if "simulate" in run.config():
            raise UserError(f"--dialogues {dialogues}: {run.folder} holds a run's own dialogues; use another --out")
        run.claim("dialogues", hashed(chosen))
        chosen = resolved.shard.take(chosen) if resolved.shard else chosen  # a run's own dialogues are this shard's already
    for dialogue in chosen:
        resolved.shown.profile(dialogue)  # an unknown one is refused before anything is started
    claim_set(run, judging, RunIdentity(resolved).score(), _grows(resolved, "score"))
    specs = [resolved.models.judge, *resolved.completing(chosen)]
    work = Work(runner, resolved, judging.stage, specs, chosen, asked, judging)
    answers = answered(work.desk(), chosen, work, judging.stage, "dialogues", work.order, work.keep_versions)
    outcome = work.outcome(answers)
    if resolved.shard and outcome.unfinished:
        return outcome
    if from_elsewhere:
        write_lines(path, outcome.dialogues.lines())
        write_people(run.folder, people)
    _write_judgements(judging, outcome)
    return outcome


def score_gold(runner: Runner) -> Outcome:
    """Judge the gold set and measure the agreement. Writes gold_*.jsonl and agreement.json (not for a shard)."""
    run = runner.run
    judging = set_of(run, runner.resolved.models.judge.name)
    resolved = _with_held(run, runner.resolved.judging_whole(), judging)  # people scored whole dialogues
    dialogues, scores = resolved.gold
    grows = _grows(resolved, "gold") if _holds_gold(run, dialogues, scores) else ()
    run.claim("gold", RunIdentity(resolved).gold(), grows)
    part = resolved.shard.take(dialogues) if resolved.shard else dialogues
    specs, stage = [resolved.models.judge, *resolved.completing(part)], judging.gold_stage
    work = Work(runner, resolved, stage, specs, part, {dialogue.id for dialogue in part}, judging)
    outcome = work.outcome(answered(work.desk(), part, work, stage, "dialogues", work.order, work.keep_versions))
    if outcome.unfinished:  # a part has no partner for every score
        return outcome
    write_jsonl(run.folder / "gold_dialogues.jsonl", dialogues)
    write_jsonl(run.folder / "gold_scores.jsonl", scores)
    write_lines(judging.folder / "gold_judgements.jsonl", outcome.judgements.lines())
    if resolved.shard is None:  # a part's would pass for the whole's; `esc-eval merge` makes it
        from evalsuite.statistics.agreement import agreement, in_steps
        from evalsuite.statistics.clusters import clusters_of

        agreed = agreement(*in_steps(outcome.judgements, scores, resolved.rubric), clusters_of(dialogues))
        write_json(judging.folder / "agreement.json", {"agreement": agreed})
    return outcome


def _write_judgements(judging: JudgementSet, outcome: Outcome) -> None:
    """Verdicts on whole dialogues; those on parts of them have a file of their own."""
    first = next(judging.each(), None)  # each file is one judge's
    if first and first.judge != judging.judge:
        judging.clear()  # left by a judge that never answered
    write_lines(judging.folder / "judgements.jsonl", outcome.judgements.lines())
    if len(outcome.turn_judgements):
        write_lines(judging.folder / "turn_judgements.jsonl", outcome.turn_judgements.lines())


def _drop_outdated(
    runner: Runner, resolved: DialogueFramework, dialogues: Iterable[Dialogue], judging: JudgementSet | None
) -> None:
    """Remove what other judges said of dialogues that are others now: those that had been lost, or were drawn again."""
    others = [other for other in sets_of(runner.run.folder, runner.run.config()) if other != judging]
    if resolved.held is None or not others:
        return
    known = resolved.held.dialogues
    changed = {dialogue.id for dialogue in dialogues if known.get(dialogue.id, dialogue).turns != dialogue.turns}
    for other in others if changed else ():
        if count := other.drop(changed):
            runner.say(f"{count} dialogues are others than {other.judge} judged: score them again with --judge {other.judge}")


def _with_held(run: Run, resolved: DialogueFramework, judging: JudgementSet | None) -> DialogueFramework:
    """A run with what its folder holds beside it. A shard stays as it is: which dialogues are its part would change."""
    held = None if resolved.shard else Held.of(run, judging)
    return replace(resolved, held=held) if held else resolved


def _grows(resolved: DialogueFramework, stage: str) -> Sequence[str]:
    """What may be added to a stage's config."""
    if resolved.shard:
        return ()
    first = stage == "simulate" and resolved.held is not None and resolved.held.references is None
    return (*_GROWS[stage], *(["references"] if first else []))


def _with_plans_held(resolved: DialogueFramework, plans: Sequence[Plan]) -> list[Plan]:
    """The dialogues to hold and those that the folder holds already, in the order of one run. Raises `UserError` for one that
    cannot be placed."""
    assert resolved.held is not None
    wanted = {plan.id for plan in plans} | resolved.held.ids
    together = [plan for plan in resolved.plans() if plan.id in wanted]
    if lost := wanted - {plan.id for plan in together}:
        raise UserError(
            f"{resolved.held.folder}: dialogue {min(lost)} is on a card or profile that is not in the folder any more: put the "
            "old cards.jsonl or profiles.jsonl back, or use another --out"
        )
    return together


def _holds_gold(run: Run, dialogues: Sequence[Dialogue], scores: Sequence[HumanScore]) -> bool:
    """Whether the gold set that the folder holds is part of this one."""
    pairs: tuple[tuple[str, type[BaseModel], Sequence[BaseModel]], ...]
    pairs = ("gold_dialogues.jsonl", Dialogue, dialogues), ("gold_scores.jsonl", HumanScore, scores)
    for name, model, records in pairs:
        path = run.folder / name
        held = read_jsonl(path, model, "gold") if path.exists() else []
        if not {record.model_dump_json() for record in held} <= {record.model_dump_json() for record in records}:
            return False
    return True


@dataclass(frozen=True)
class End:
    """The end of a run whose dialogues are judged by one judge or by none: records are taken as they were left where nothing
    that they were made of has changed since. To make 100,000 dialogues again takes minutes, to compare hashes seconds."""

    run: Run
    resolved: DialogueFramework
    judging: JudgementSet | None
    identities: Sequence[Any]
    """What decides its dialogues and its judgements, as config.json has it."""
    code: Sequence[str]
    """Hashes of the program that makes them, as it was before they were made."""

    @property
    def _stages(self) -> list[str]:
        return ["simulate", *([self.judging.stage] if self.judging else [])]

    def _state(self, then: float) -> str:
        """A hash of all that the records were made of, of stored answers those until `then`, and of the records."""
        of, run = self.resolved, self.run
        specs = [*of.models.seekers, *of.models.supporters, *([of.models.judge] if self.judging else [])]
        packs = {of.pack: of.prompts} | ({of.judge_pack: of.judge_prompts} if self.judging else {})
        made_by = [versions(packs, of.rubric, {}, specs), self.code, str(of.shard)]
        paths = [run.folder / name for name in (*PEOPLE, "dialogues.jsonl")] + [
            path for one in self._verdicts() for path in one
        ]
        files = {str(path.relative_to(run.folder)): sha256_file(path) for path in paths if path.exists()}
        used = USED.dump_python({stage: run.usage().get(stage, {}) for stage in self._stages}, mode="json")
        return digest([self.identities, made_by, files, used, run.store.state(then)])

    def _verdicts(self) -> list[list[Path]]:
        """The files of verdicts on whole dialogues, and on parts of them."""
        return [[path] if self.judging and (path := self.judging.folder / name).exists() else [] for name in VERDICTS]

    def keep(self, outcome: Outcome) -> None:
        """Remember that this is the end, unless something is missing."""
        if not (outcome.failures or outcome.ended_early or outcome.unfinished):
            now = time.time()
            self.run.store.keep_end(self._stages[-1], now, self._state(now))

    def outcome(self) -> Outcome | None:
        """What the run left; None where it has not come to its end, or would make other records now."""
        run, known = self.run, self.run.store.end_of(self._stages[-1])
        again = run.retry.kinds or run.failures().keys() & self._stages or not run.versions()
        if again or known is None or known[1] != self._state(known[0]):
            return None
        run.settle()
        usage: dict[str, dict[str, Usage]] = {}
        for stage in self._stages:
            usage |= run.usage().get(stage, {})
        whole, parts = (Written(Judgement, paths) for paths in self._verdicts())
        file = self.judging.file if self.judging else ""
        return Outcome(Written(Dialogue, [run.folder / "dialogues.jsonl"]), whole, parts, file=file, usage=usage)
