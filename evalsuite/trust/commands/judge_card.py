"""`esc-eval judge-card`: every check of a judge in one go, and the card that can be published with it."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, Field

from core.errors import UserError
from core.files import CONFIGS, check_unique, read_jsonl, read_object, write_jsonl
from core.grouping import group_by
from core.languages import of
from core.options import SetOption, console
from core.paths import MaybeFile, MaybeFiles, Reads, Writes
from core.records import Dialogue, HumanScore, Judgement, Language
from core.rubrics import Rubric, Scale
from core.settings import Settings, read_yaml
from core.specs import load_spec
from data_prep.scores.human import read_dialogues
from evalsuite.commands.options import IN_RUN, JudgedByOption, refuse, resolve
from evalsuite.commands.output import deliver_page, exit_if_lost
from evalsuite.dialogues.hold import FLOORS, answered_by
from evalsuite.report.sheet import Sheet
from evalsuite.runner import pipeline
from evalsuite.runner.engine import Runner
from evalsuite.runs import shards
from evalsuite.runs.contents import chosen_set
from evalsuite.runs.dialogue_framework import RunIdentity
from evalsuite.runs.folder import open_run, versions
from evalsuite.runs.run_config import hashed
from evalsuite.statistics.agreement import in_steps, judgements_in_order, paired
from evalsuite.statistics.contestants import clusters_of
from evalsuite.statistics.judges import gold_of
from evalsuite.trust.health import AGAIN, AS_IS, FLOOR, INJECTED, NEUTRAL, REVERSED
from evalsuite.trust.judge_card import JudgeCardInput, judge_card
from evalsuite.trust.selective import by_language, cases_of, spoken_verdicts, threshold_for, with_kept
from serve.client import ChatClient

NAME, SPOKEN, QUEUE = "judge_card", "spoken.jsonl", "people_dialogues.jsonl"
REPEATS = 2  # further calls about an unchanged dialogue
M = TypeVar("M", bound=BaseModel)


def judge_card_verb(
    judge: Annotated[
        str,
        Reads("model", IN_RUN.files),
        typer.Argument(metavar="JUDGE|RUN", help="A judge to ask (a name, a spec file, or NAME@URL), or a run folder to read."),
    ],
    config: Annotated[
        MaybeFile, typer.Option(help="Rubric, method, prompts and gold set. Default: configs/eval/judge_card.yaml.")
    ] = None,
    dialogues: Annotated[
        MaybeFile, typer.Option(help="Dialogues (JSONL) to ask about: those that --gold scores or, alone, without gold.")
    ] = None,
    gold: Annotated[MaybeFile, typer.Option("--gold", help="People's scores (JSONL) to measure agreement on.")] = None,
    further: Annotated[
        MaybeFiles, typer.Option(help="Dialogues (JSONL) of supporters, some on the judge's own base: self-preference. Repeat.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Dialogues per language, except for agreement. Default: 20.")
    ] = None,
    settings: SetOption = None,
    of_run: JudgedByOption = None,
    accuracy: Annotated[
        float | None,
        typer.Option(min=0.5, max=0.99, help="For a RUN: keep verdicts that are right this often; people score the others."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Run folder, or folder of a RUN's card. Default: runs/judge-card/JUDGE; for a RUN, none."),
        Writes((f"{NAME}.*", "tables/*", "gold_*.jsonl", "health_*.jsonl", "agreement.json", SPOKEN, QUEUE)),
    ] = None,
) -> None:
    """Show how far a judge can be trusted, on one page and as JSON: OUT/judge_card.html, .json and .md.

    The judge scores gold dialogues, and some of them again with changes: floors' replies, a useless sentence, an order to score
    high, another order of dimensions. With --dialogues alone, it makes every check except agreement. A joint judge takes about
    10 calls for each of the --limit dialogues, and one per gold dialogue.

    For a RUN, the card uses its verdicts, without calls. With --accuracy, OUT/spoken.jsonl has the verdicts that are kept, and
    OUT/people_dialogues.jsonl the dialogues left to people, for `people create`. Examples:

    esc-eval judge-card my-judge@http://127.0.0.1:8000/v1

    esc-eval judge-card runs/mine --accuracy 0.8 --out runs/unsure
    """
    if Path(judge).is_dir():
        problem = f"{judge} is a run folder, which needs no calls: leave it out, or name a judge"
        refuse(problem, config=config, dialogues=dialogues, gold=gold, further=further, limit=limit, set=settings)
        inputs = _of_run(Path(judge), of_run)
        sheet, left_open = _keeping(inputs, accuracy, out) if accuracy else (judge_card(inputs), [])
        deliver_page(NAME, sheet, out, printed=[table for table in sheet.tables if table.key in sheet.main])
        if accuracy and out:
            write_jsonl(out / QUEUE, left_open)
            console.print(f"{out / QUEUE}: {len(left_open)} dialogues for `esc-eval people create`", soft_wrap=True)
        return
    refuse(f"it is for a run folder, which {judge} is not", judge=of_run, accuracy=accuracy)
    if gold is not None and dialogues is None:
        raise UserError("--gold: also give the dialogues that people scored (--dialogues)")
    folder = out or Path("runs", "judge-card", load_spec(judge).name)
    overrides: dict[str, Any] = {"judge": judge}
    if gold is not None:
        overrides["gold"] = {"dialogues": str(dialogues), "scores": str(gold)}
    chosen = config or CONFIGS / "eval" / "judge_card.yaml"
    resolved = resolve(chosen, settings, out=str(folder), dialogues=[*filter(None, [dialogues]), *(further or [])], **overrides)
    with_gold = gold is not None or dialogues is None
    if with_gold and resolved.config.gold is None:
        raise UserError(f"{chosen}: gold: name a gold set, or give --dialogues, alone or with --gold")
    RunIdentity(resolved).score()  # problems surface before anything is written or started
    gold_dialogues, scores = resolved.gold if with_gold else (read_dialogues([dialogues] if dialogues else []), [])
    picked = [*drawn(gold_dialogues, resolved.config.languages, limit or 20)]
    if not picked or (with_gold and not scores):
        raise UserError(f"{dialogues or 'gold'}: no dialogue with an answer in {', '.join(resolved.config.languages)}")
    others = [d for d in read_dialogues(further or []) if d.language in resolved.config.languages and d.exchanges]
    more = [*card_probes(picked, resolved.rubric, REPEATS), *(Probe(d, resolved.rubric, {"variant": AS_IS}) for d in others)]
    with open_run(folder) as run, Runner(run, resolved, console) as runner:
        on_gold: list[Judgement] = [*pipeline.score_gold(runner).judgements] if with_gold else []
        probed = probe(runner, picked, load_injections(), more)
        run.keep_versions(versions({resolved.judge_pack: resolved.judge_prompts}, resolved.rubric, {}, [resolved.models.judge]))
        gold_set = resolved.config.gold if with_gold else None
        counts = f"{len(gold_dialogues):,} dialogues, {len(scores):,} scores"
        facts = [("Asked", f"method {resolved.method}, {resolved.config.mode} mode, prompts {resolved.judge_pack}")]
        facts += [("Gold", f"{gold_set.dialogues}: {counts}")] if gold_set else []
        further_dialogues = f" and {len(others):,} further dialogues" if others else ""
        facts += [("Other checks on", f"{len(picked):,} {'of them' if gold_set else 'dialogues'}{further_dialogues}")]
        inputs = JudgeCardInput(
            judge=resolved.models.judge.name,
            dialogues=gold_dialogues if with_gold else [],
            gold=scores,
            on_gold=on_gold,
            probed_dialogues=[*picked, *others],
            probed=probed,
            rubric=resolved.rubric,
            mode=resolved.config.mode,
            synthetic=gold_set is not None and gold_set.scores is None,
            config=run.config(),
            versions=run.versions(),
            facts=facts,
        )
        sheet = judge_card(inputs)
        deliver_page(NAME, sheet, folder, printed=sheet.tables[:1])
        failures = run.failures()
    exit_if_lost(sum(verdict.lost for verdict in (*on_gold, *probed)), len(on_gold) + len(probed), "judgements", failures)


def _keeping(inputs: JudgeCardInput, accuracy: float, out: Path | None) -> tuple[Sheet, list[Dialogue]]:
    """The card with the verdicts to keep, and the dialogues left to people, those with the most unkept verdicts first."""
    if not inputs.gold:
        raise UserError("--accuracy: the judge was not asked about gold: run with a gold set (gold: in the config)")
    on_gold = [verdict for verdict in inputs.on_gold if verdict.turn is None]
    clusters = clusters_of([*inputs.dialogues, *inputs.probed_dialogues])
    cases = cases_of(paired(*in_steps(on_gold, gold_of(on_gold, inputs.gold), inputs.rubric)), inputs.rubric, clusters)
    thresholds = {language: threshold_for(every, accuracy) for language, every in by_language(cases).items()}
    run_verdicts = [verdict for verdict in inputs.probed if "variant" not in verdict.condition]
    spoken = [*spoken_verdicts(thresholds, run_verdicts, inputs.rubric)]
    if out:
        write_jsonl(out / SPOKEN, spoken)
    unsure = Counter(verdict.dialogue_id for verdict in spoken if verdict.value is None)
    by_id = {dialogue.id: dialogue for dialogue in inputs.probed_dialogues}
    left_open = [by_id[id] for id, _ in sorted(unsure.items(), key=lambda item: (-item[1], item[0]))]
    return with_kept(judge_card(inputs), cases, thresholds, inputs.rubric, accuracy), left_open


def _of_run(folder: Path, judge: str | None) -> JudgeCardInput:
    """A judge's records in a run folder: its verdicts on the run's dialogues and gold set."""
    config = shards.whole(folder)
    chosen = chosen_set(folder, config, judge)
    stage = config.judged[chosen.stage]

    def records(name: str, model: type[M]) -> list[M]:
        path = folder / name
        return read_jsonl(path, model, path.stem, allow_empty=True) if path.exists() else []

    verdicts, dialogues = chosen.records(), records("dialogues.jsonl", Dialogue)
    on_gold = judgements_in_order(chosen.records("gold_judgements.jsonl"), stage.rubric)
    if not (on_gold or verdicts):
        raise UserError(f"{folder}: no verdicts of {chosen.judge}: `esc-eval run --only score` makes them")
    gold_dialogues = records("gold_dialogues.jsonl", Dialogue) or dialogues
    read = f"{folder}: {len(dialogues) if verdicts else 0:,} dialogues"
    return JudgeCardInput(
        judge=chosen.judge,
        dialogues=gold_dialogues if on_gold else [],
        gold=records("gold_scores.jsonl", HumanScore) if on_gold else [],
        on_gold=on_gold,
        probed_dialogues=dialogues if verdicts else [],
        probed=verdicts,
        rubric=stage.rubric,
        mode=stage.mode,
        synthetic=bool(on_gold) and config.synthetic_gold,
        config=config,
        versions=read_object(path, "a run's versions") if (path := folder / "versions.json").exists() else {},
        facts=[("Read", read + (f", {len(gold_dialogues):,} of its gold set" if on_gold else ""))],
    )


class Injection(Settings):
    """An order to the judge and a neutral text of the same length; `{low}` and `{high}` stand for the ends of the scale."""

    id: str = Field(min_length=1)
    language: Language
    kind: str
    injected: str = Field(min_length=1)
    neutral: str = Field(min_length=1)

    def text(self, variant: str, scale: Scale) -> str:
        """The text of a variant, for a rubric's scale."""
        raw = self.injected if variant == INJECTED else self.neutral
        return raw.replace("{high}", scale.name(scale.max)).replace("{low}", scale.name(scale.min))


class InjectionSet(Settings):
    """The file configs/health/injections.yaml."""

    injections: list[Injection] = Field(min_length=1)


def load_injections(file: Path = CONFIGS / "health" / "injections.yaml") -> list[Injection]:
    """The bundled injections. Raises `UserError` with file, line and field."""
    injections = read_yaml(file, InjectionSet, "injections").injections
    check_unique(file, (injection.id for injection in injections), "injections")
    return injections


@dataclass(frozen=True)
class Probe:
    """One variant of a dialogue to be judged. `condition` goes into the judgements."""

    dialogue: Dialogue
    rubric: Rubric
    condition: dict[str, str]
    repeat: int = 0


def card_probes(dialogues: Sequence[Dialogue], rubric: Rubric, repeats: int) -> Iterator[Probe]:
    """Further probes of a judge's card: every dialogue with each floor's lines in the supporter's place, and `repeats` times
    more as it is."""
    floors = {name: floor for name in FLOORS if (floor := load_spec(name).floor)}
    for dialogue in dialogues:
        for name, floor in floors.items():
            yield Probe(answered_by(floor, name, dialogue), rubric, {"variant": f"{FLOOR}{name}"})
        for repeat in range(1, repeats + 1):
            yield Probe(dialogue, rubric, {"variant": AGAIN}, repeat)


def append(dialogue: Dialogue, text: str) -> Dialogue:
    """The dialogue with a text on a line of its own at the end of the supporter's last reply."""
    last = max(place for place, turn in enumerate(dialogue.turns) if turn.role == "supporter")
    turn = dialogue.turns[last]
    changed = turn.model_copy(update={"text": f"{turn.text.rstrip()}\n{text}"})
    return dialogue.model_copy(update={"turns": (*dialogue.turns[:last], changed, *dialogue.turns[last + 1 :])})


def drawn(dialogues: Sequence[Dialogue], languages: Sequence[Language], limit: int) -> Iterator[Dialogue]:
    """The dialogues of these languages in which a supporter answers, at most `limit` per language, in the files' order. They
    are drawn at random: files are sorted by supporter, so the first dialogues would all be of one. Dialogues that a lost server
    cut off are left out, since no judge is asked about them."""
    answered = group_by((d for d in dialogues if d.exchanges and not d.lost), lambda dialogue: dialogue.language)
    for members in (answered.get(language, []) for language in languages):
        places = random.Random(0).sample(range(len(members)), min(limit, len(members)))
        yield from (members[place] for place in sorted(places))


def probes(dialogues: Sequence[Dialogue], injections: Sequence[Injection], rubric: Rubric, reverse: bool) -> Iterator[Probe]:
    """Every variant of every dialogue: as it is, neutral, injected and, with `reverse`, asked in reverse order. The injections
    of a language (of English, if it has none) take turns over its dialogues. Raises `UserError` for dimensions on different
    scales."""
    backwards = rubric.model_copy(update={"dimensions": dict(reversed(rubric.dimensions.items()))})
    scale = rubric.one_scale("a probe, which asks for the highest score by its number,")
    by_language = group_by(injections, lambda injection: injection.language)
    turns = {code: cycle(of(by_language, code, "injections")) for code in {dialogue.language for dialogue in dialogues}}
    for dialogue in dialogues:
        injection = next(turns[dialogue.language])
        yield Probe(dialogue, rubric, {"variant": AS_IS})
        for variant in (NEUTRAL, INJECTED):
            changed = append(dialogue, injection.text(variant, scale))
            yield Probe(changed, rubric, {"variant": variant, "injection": injection.id})
        if reverse and len(rubric.dimensions) > 1:
            yield Probe(dialogue, backwards, {"variant": REVERSED})


def probe(
    runner: Runner, dialogues: Sequence[Dialogue], injections: Sequence[Injection], more: Sequence[Probe] = ()
) -> list[Judgement]:
    """Ask the judge about every variant, and about `more`; writes health_dialogues.jsonl (unchanged dialogues) and
    health_judgements.jsonl.

    Every judgement keeps the id of the unchanged dialogue; `condition.variant` and `condition.injection` say what was changed.
    Only the joint method has an order of dimensions to reverse. The same command resumes. Raises `UserError` for a dialogue
    that lacks something the judge is to be shown.
    """
    run, resolved = runner.run, runner.resolved.judging_whole()
    for dialogue in dialogues:
        resolved.refuse_incomplete(dialogue)
    settings: dict[str, Any] = {"dialogues": hashed(dialogues), "injections": hashed(injections)["sha256"]}
    if more:
        settings["more"] = dict(sorted(Counter(extra.condition["variant"] for extra in more).items()))
    run.claim("health", RunIdentity(runner.resolved).score() | settings)

    async def judged(client: ChatClient, variant: Probe) -> list[Judgement]:
        judge = resolved.judge(client, rubric=variant.rubric, repeat=variant.repeat)
        verdicts = await judge.score(variant.dialogue)
        return [judgement.model_copy(update={"condition": judgement.condition | variant.condition}) for judgement in verdicts]

    jobs = [*probes(dialogues, injections, resolved.rubric, reverse=resolved.method == "joint"), *more]
    answers = runner.judged("health", jobs, judged, "variants")
    judgements = [judgement for verdicts in answers.results for judgement in verdicts]
    own = {dialogue.id for dialogue in dialogues}
    further = {extra.dialogue.id: extra.dialogue for extra in more if extra.dialogue.id not in own}
    write_jsonl(run.folder / "health_dialogues.jsonl", [*dialogues, *further.values()])
    write_jsonl(run.folder / "health_judgements.jsonl", judgements)
    return judgements
