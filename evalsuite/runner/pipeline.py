"""The stages of a run: dialogues are held and scored in one stream, every record is rebuilt from the call store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import BaseModel

from core.errors import UserError
from core.files import read_jsonl, write_json, write_jsonl, write_lines
from core.machine import Machine
from core.records import Dialogue, HumanScore, Judgement, Usage
from core.specs import ModelSpec
from core.tables import Table
from data_prep.scores.human import read_dialogues
from evalsuite.dialogues.floors import with_floors
from evalsuite.dialogues.hold import Plan, hold
from evalsuite.judge.judge import Judge
from evalsuite.runner.end import End
from evalsuite.runner.engine import Runner
from evalsuite.runner.forecast import shares_of
from evalsuite.runner.lengths import needs
from evalsuite.runner.outcome import Outcome
from evalsuite.runs.folder import Run
from evalsuite.runs.framework import opens_freely
from evalsuite.runs.held import Held
from evalsuite.runs.identity import hashed
from evalsuite.runs.judgement_sets import JudgementSet, claim_set, set_of, sets_of
from evalsuite.runs.people import PEOPLE
from evalsuite.runs.resolved import Resolved, unspoken
from evalsuite.runs.spool import Piece, Records, Spool
from evalsuite.runs.versions import code, versions
from evalsuite.statistics.agreement import agreement
from evalsuite.statistics.clusters import clusters_of
from serve.answers import UsageTally
from serve.callables import PLACE, CallableSpec
from serve.client import ChatClient
from serve.failures import NotReached, NotStored
from serve.plan import overview, plan_servers

Job = Plan | Dialogue
_PLAYED = [name.removesuffix(".jsonl") for name in PEOPLE]
# What may be added in the same folder, by stage and field of its config.
_GROWS: dict[str, Sequence[str]] = {
    "simulate": ("supporters", "languages", "trials", *_PLAYED),
    "score": _PLAYED,
    "gold": ("count", "sha256"),
}


def simulate(runner: Runner, score: bool) -> Outcome:
    """Hold every dialogue of a run and, with `score`, judge each as soon as it ends. Writes cards or profiles, dialogues and
    judgements."""
    run, asked = runner.run, runner.resolved
    for spec in asked.supporters:
        if left_out := unspoken(spec, asked.config.languages):
            runner.console.print(f"{spec.name} does not speak {', '.join(left_out)}: what is played in it is left out")
    if asked.config.limit is not None and not asked.config.until:
        runner.say(f"at most {asked.config.limit} a language are played (limit); --limit N plays more in the same folder")
    if score and asked.judge.name in {spec.name for spec in asked.supporters}:
        runner.say(f"{asked.judge.name} judges itself too: read its scores with care, or name another with --judge")
    judging = set_of(run, asked.judge.name) if score else None
    resolved = _with_held(run, asked, judging)
    dialogues, judgements = resolved.simulate_identity(), resolved.score_identity() if judging else {}
    run.claim("simulate", dialogues, _grows(resolved, "simulate"), resolved.people())
    if judging:
        claim_set(run, judging, judgements, _grows(resolved, "score"))
    if silent := asked.silent():
        runner.say(f"reference: {silent} dialogues are left out: references have no source dialogue of their cards")
    end = End(run, resolved, judging, [dialogues, judgements], code(type(resolved)))
    all_asked = resolved is asked or asked.simulate_identity() == dialogues
    if all_asked and (left := end.outcome()):
        return left
    plans, specs = _cast(asked, score)
    jobs, chosen = _beside_held(resolved, plans, all_asked), {plan.id for plan in plans}
    outcome = _execute(runner, resolved, "simulate", specs, jobs, chosen, judging)
    _write_people(run, resolved.people())
    _drop_outdated(runner, resolved, outcome.dialogues, judging)
    if resolved.shard and outcome.unfinished:  # a part of a part would pass for the whole of it
        return outcome
    write_lines(run.folder / "dialogues.jsonl", outcome.dialogues.lines())
    if judging:
        _write_judgements(judging, outcome)
    if all_asked:
        end.keep(outcome)
    return outcome


def _cast(resolved: Resolved, score: bool) -> tuple[list[Plan], list[ModelSpec]]:
    """The dialogues to hold here, and the models that they ask."""
    plans = list(with_floors(resolved.plans(), resolved.supporters, resolved.replies))
    names = {plan.dialogue.supporter for plan in plans}  # a shard needs only some
    speaking = [spec for spec in resolved.supporters if spec.name in names and spec.floor is None]
    return plans, [*resolved.seekers, *([resolved.judge] if score else []), *speaking]


def planned(resolved: Resolved, dialogues: Path | None, score: bool) -> tuple[Sequence[Job], list[ModelSpec]]:
    """What a run works on, and the models that it asks; `dialogues`: given ones are scored."""
    if dialogues is None:
        return _cast(resolved, score)
    chosen = [d for d in read_dialogues([dialogues]) if d.language in resolved.languages]
    return chosen, [resolved.judge, *resolved.completing(chosen)]


def servers(resolved: Resolved, machine: Machine, dialogues: Path | None, score: bool) -> Table:
    """Which servers a run starts, where, and what they take; `dialogues`: given ones are scored. Nothing is written, asked or
    downloaded. Raises `UserError` where they do not fit."""
    jobs, specs = planned(resolved, dialogues, score)
    lengths = needs(resolved, jobs, score)
    given = resolved.config.endpoints | {spec.name: spec.endpoint.base_url for spec in specs if spec.endpoint.base_url}
    launched = list({spec.name: spec for spec in specs if spec.name not in given}.values())
    parts = resolved.phases(launched, lengths, machine) if launched else []
    plans = [plan_servers(part, Path("logs"), resolve=False, machine=machine, needs=lengths) for part in parts]
    elsewhere = [f"{spec.name} answers at {given[spec.name]}" for spec in specs if spec.name in given]
    if not launched:
        rows = tuple(dict.fromkeys((spec.name, given[spec.name]) for spec in specs))
        return Table("servers", "No server is started", ("model", "answers at"), rows)
    return overview(plans, machine, lengths, list(dict.fromkeys(elsewhere)))


def score(runner: Runner, dialogues: Path) -> Outcome:
    """Judge given dialogues. Writes them beside the judgements, so that the folder can be reported on its own."""
    run = runner.run
    judging = set_of(run, runner.resolved.judge.name)
    resolved = _with_held(run, runner.resolved, judging)
    path = run.folder / "dialogues.jsonl"
    from_elsewhere = dialogues.resolve() != path.resolve()
    chosen = [d for d in read_dialogues([dialogues]) if d.language in resolved.languages]
    asked = {dialogue.id for dialogue in chosen if dialogue.language in resolved.config.languages}
    if not asked:
        raise UserError(f"{dialogues}: no dialogue in {', '.join(resolved.config.languages)}")
    people = resolved.people_of(chosen)
    if from_elsewhere:
        if "simulate" in run.config():
            raise UserError(f"--dialogues {dialogues}: {run.folder} holds a run's own dialogues; use another --out")
        run.claim("dialogues", hashed(chosen))
        chosen = resolved.part(chosen)  # a run's own dialogues are this shard's already
    for dialogue in chosen:
        resolved.shown.profile(dialogue)  # an unknown one is refused before anything is started
    claim_set(run, judging, resolved.score_identity(), _grows(resolved, "score"))
    specs = [resolved.judge, *resolved.completing(chosen)]
    outcome = _execute(runner, resolved, judging.stage, specs, chosen, asked, judging)
    if resolved.shard and outcome.unfinished:
        return outcome
    if from_elsewhere:
        write_lines(path, outcome.dialogues.lines())
        _write_people(run, people)
    _write_judgements(judging, outcome)
    return outcome


def score_gold(runner: Runner) -> Outcome:
    """Judge the gold set and measure the agreement. Writes gold_*.jsonl and agreement.json (not for a shard)."""
    run = runner.run
    judging = set_of(run, runner.resolved.judge.name)
    resolved = _with_held(run, runner.resolved.judging_whole(), judging)  # people scored whole dialogues
    dialogues, scores = resolved.gold
    run.claim("gold", resolved.gold_identity(), _grows(resolved, "gold") if _holds_gold(run, dialogues, scores) else ())
    part = resolved.part(dialogues)
    specs = [resolved.judge, *resolved.completing(part)]
    outcome = _execute(runner, resolved, judging.gold_stage, specs, part, {dialogue.id for dialogue in part}, judging)
    if outcome.unfinished:  # a part has no partner for every score
        return outcome
    write_jsonl(run.folder / "gold_dialogues.jsonl", dialogues)
    write_jsonl(run.folder / "gold_scores.jsonl", scores)
    write_lines(judging.folder / "gold_judgements.jsonl", outcome.judgements.lines())
    if resolved.shard is None:  # a part's would pass for the whole's; `esc-eval merge` makes it
        agreed = agreement(list(outcome.judgements), scores, clusters_of(dialogues))
        write_json(judging.folder / "agreement.json", {"agreement": agreed})
    return outcome


def _write_people(run: Run, people: Mapping[str, Sequence[BaseModel]]) -> None:
    for name, records in people.items():
        write_jsonl(run.folder / name, records)


def _write_judgements(judging: JudgementSet, outcome: Outcome) -> None:
    """Verdicts on whole dialogues; those on parts of them have a file of their own."""
    first = next(judging.each(), None)  # each file is one judge's
    if first and first.judge != judging.judge:
        judging.clear()  # left by a judge that never answered
    write_lines(judging.folder / "judgements.jsonl", outcome.judgements.lines())
    if len(outcome.turn_judgements):
        write_lines(judging.folder / "turn_judgements.jsonl", outcome.turn_judgements.lines())


def _drop_outdated(runner: Runner, resolved: Resolved, dialogues: Iterable[Dialogue], judging: JudgementSet | None) -> None:
    """Remove what other judges said of dialogues that are others now: those that had been lost, or were drawn again."""
    others = [other for other in sets_of(runner.run.folder, runner.run.config()) if other != judging]
    if resolved.held is None or not others:
        return
    known = resolved.held.dialogues
    changed = {dialogue.id for dialogue in dialogues if known.get(dialogue.id, dialogue).turns != dialogue.turns}
    for other in others if changed else ():
        if count := other.drop(changed):
            runner.say(f"{count} dialogues are others than {other.judge} judged: score them again with --judge {other.judge}")


def _with_held(run: Run, resolved: Resolved, judging: JudgementSet | None) -> Resolved:
    """A run with what its folder holds beside it. A shard stays as it is: which dialogues are its part would change."""
    held = None if resolved.shard else Held.of(run, judging)
    return replace(resolved, held=held) if held else resolved


def _grows(resolved: Resolved, stage: str) -> Sequence[str]:
    """What may be added to a stage's config."""
    if resolved.shard:
        return ()
    first = stage == "simulate" and resolved.held is not None and resolved.held.references is None
    return (*_GROWS[stage], *(["references"] if first else []))


def _beside_held(resolved: Resolved, plans: Sequence[Plan], all_asked: bool) -> list[Plan]:
    """The dialogues to hold and those that the folder holds already, in the order of one run; with `all_asked` it holds no
    others. Raises `UserError` for one that cannot be placed."""
    if resolved.held is None:
        return list(plans)
    known = {plan.id for plan in plans} | resolved.held.ids
    planned = plans if all_asked else [plan for plan in resolved.plans() if plan.id in known]
    together = list(planned if all_asked else with_floors(planned, resolved.supporters, resolved.replies))
    if lost := known - {plan.id for plan in together}:
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


async def _from_store(
    resolved: Resolved, client: ChatClient, job: Job, judge: Judge | None
) -> tuple[Dialogue, list[Judgement]]:
    """A dialogue that only earlier commands asked for, with its verdicts: made again of stored answers, or as it was recorded
    where these do not reach."""
    assert resolved.held is not None
    stored, verdicts = client.from_store(), resolved.held.judgements.get(job.id, [])
    try:
        dialogue = await hold(job, stored) if isinstance(job, Plan) else job
    except NotStored:
        return resolved.held.dialogues[job.id], verdicts
    try:
        return dialogue, await replace(judge, client=stored).score(dialogue) if judge and verdicts else verdicts
    except NotStored:
        return dialogue, verdicts


def _execute(
    runner: Runner,
    resolved: Resolved,
    stage: str,
    specs: Sequence[ModelSpec],
    jobs: Sequence[Job],
    asked: Collection[str],
    judging: JudgementSet | None,
) -> Outcome:
    """Hold or take every dialogue and, where `judging`, judge it as soon as it is there. Those that are not `asked` for are
    taken from what the folder holds."""
    run = runner.run
    kept = [job.id for job in jobs if job.id not in asked]
    if kept:
        runner.say(f"{run.folder} holds {len(kept)} dialogues beside those that are asked for: they are kept")
    judge = None
    if judging:  # refused before anything is asked
        how = resolved.judge, resolved.rubric, resolved.judge_prompts, resolved.method
        judge = Judge(ChatClient(run.store), *how, shown=resolved.shown, opens_freely=opens_freely)

    spool = Spool(run.folder)

    not_judged = set[str]()

    async def whole(client: ChatClient, job: Job) -> Piece:
        judgements: list[Judgement] = []
        try:
            dialogue = await hold(job, client) if isinstance(job, Plan) else job
            PLACE.set((dialogue.card_id or dialogue.profile_id, None))
            if judge is not None:
                try:
                    complete = dialogue if isinstance(job, Plan) else await resolved.completed(client, dialogue)
                    dialogue = dialogue if complete.lost else complete
                    judgements = await replace(judge, client=client).score(complete)
                except NotReached:  # the dialogue itself is there
                    not_judged.add(job.id)
        finally:
            for spec in specs:
                if isinstance(spec, CallableSpec):
                    await spec.end(client.timeout_s, job.id)
        if dialogue.lost or any(judgement.lost for judgement in judgements):
            client.threshold.dialogue_failed(len(jobs))
        return spool.keep(dialogue, judgements)

    shares = shares_of([job for job in jobs if job.id in asked], [resolved, *runner.later], bool(judging), run.budget)

    async def work(client: ChatClient, job: Job) -> Piece:
        if job.id not in asked:
            return spool.keep(*await _from_store(resolved, client, job, judge))
        if client.offline or not shares:
            return await whole(client, job)
        share, later = map(replace, shares[job.id])
        async with run.budget.room(job.id, share, later if runner.later else None):
            return await whole(client, job)

    def keep_versions(servers: Mapping[str, str | None]) -> None:
        packs = {resolved.pack: resolved.prompts} if stage == "simulate" else {}
        packs |= {resolved.judge_pack: resolved.judge_prompts} if judging else {}
        run.keep_versions(versions(packs, resolved.rubric, servers, specs))

    keep_versions({})
    failed = run.store.failed_items()  # in earlier tries
    places = _places(jobs)
    of_judge = judging.stage if judging and stage == "simulate" else stage  # `run` leaves what `simulate` and `score` leave
    answers = runner.answered(
        stage,
        specs,
        jobs,
        work,
        "dialogues",
        order=lambda job: (failed.get(job.id, 0), *places[job.id]),
        checked=keep_versions,
        judging=of_judge,
        needs=lambda: needs(resolved, (job for job in jobs if job.id in asked), judging is not None),
    )
    client = answers.client
    usage: dict[str, dict[str, Usage]] = {}
    for name in dict.fromkeys([stage, of_judge]):
        tallies = {who: tally for who, tally in client.tallies.items() if name == (of_judge if who[1] == "judge" else stage)}
        usage |= run.keep_usage(name, {(model, role): _usage(tally, role) for (model, role), tally in tallies.items()})
    pieces = answers.results
    name = "gold_judgements.jsonl" if judging and stage == judging.gold_stage else "judgements.jsonl"
    outcome = Outcome(
        dialogues=Records(Dialogue, spool, [piece.dialogue for piece in pieces]),
        judgements=Records(Judgement, spool, [place for piece in pieces for place in piece.whole]),
        turn_judgements=Records(Judgement, spool, [place for piece in pieces for place in piece.parts]),
        failures=client.failures,
        ended_early=client.threshold.cause,
        not_reached=len(jobs) - len(pieces),
        not_judged=len(not_judged),
        file=str(judging.folder.relative_to(run.folder) / name) if judging else "",
        usage=usage,
        kept=kept,
    )
    if answers.rate is not None:
        calls = {"/".join(who): asdict(tally) for who, tally in client.tallies.items()}
        run.keep_timing(
            stage, calls=calls, latency_s=run.store.latency(), in_flight=answers.in_flight, unfinished=outcome.unfinished
        )
        runner.console.print(f"{stage}: {len(answers.results)} dialogues, {answers.rate}")
    return outcome


def _places(jobs: Sequence[Job]) -> dict[str, tuple[int, int]]:
    """In which order dialogues begin: card by card with every supporter in every language, so that what a budget reaches
    compares them."""
    places: dict[str, tuple[int, int]] = {}
    seen: Counter[tuple[str | None, str, int]] = Counter()
    for job in jobs:
        dialogue = job.dialogue if isinstance(job, Plan) else job
        trial = dialogue.trial or 0
        alike = dialogue.supporter, dialogue.language, trial
        places[job.id] = trial, seen[alike]
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
