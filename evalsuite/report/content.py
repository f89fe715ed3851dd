"""From a run folder's records to its tables and report."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from core.errors import UserError, clean
from core.files import read_jsonl, read_object
from core.records import Dialogue, HumanScore, Usage
from core.statistics.bootstrap import LEVEL
from core.tables import Table, file_keys, fits, to_console
from evalsuite.checks import risk, simulator
from evalsuite.checks.shared_bases import alike, bases
from evalsuite.report import charts
from evalsuite.report.charts import along
from evalsuite.report.report import PLUMBING, UNSCORED, ReportContent, log_report, write_report
from evalsuite.runner.work import Outcome
from evalsuite.runs.contents import JudgementSet, sets_of
from evalsuite.runs.folder import Run, looks_of, made_with, prices_in
from evalsuite.runs.framework import ScoredRun, entries, framework_of, framework_of_run
from evalsuite.runs.people import read_people
from evalsuite.runs.run_config import Judged, RunConfig
from evalsuite.runs.texts import prompt_texts
from evalsuite.statistics import discrimination
from evalsuite.statistics.agreement import judgements_in_order
from evalsuite.statistics.components import Looks
from evalsuite.statistics.contestants import cards_of, clusters_of, distinct, repeats, users_of
from evalsuite.statistics.judge_figures import SYNTHETIC_NOTE, JudgeSettings, judge_figures
from evalsuite.statistics.judges import (
    Bin,
    Confusion,
    between_judges,
    by_judge,
    calibration_table,
    gold_of,
)
from evalsuite.statistics.leaderboard import Tally, by_category, leaderboard, pairwise_differences, saturation
from evalsuite.statistics.reply_length import length_table, replies_of
from evalsuite.statistics.summary import (
    AVERAGE,
    COSTS,
    TROUBLE,
    ModelUse,
    cost_table,
    cut_off,
    dialogue_costs,
    dimension_label,
    distributions,
    failed_calls,
    in_trouble,
    model_uses,
    supporter_of,
    terminations,
    use_table,
)
from serve.batch import rare_collections
from serve.dialect import report_of

M = TypeVar("M", bound=BaseModel)

CONSOLE_ROWS = 30  # the most rows of a table that the console shows
# The tables that the console shows, by the beginning of their keys, and the columns that fit on every console.
_BRIEF = {
    "agreement_": ("Dimension", "ACC", "Majority ACC"),
    "leaderboard-": ("rank", "supporter", "judged by", AVERAGE, "both"),
    "people-leaderboard-": ("rank", "supporter", "judged by", AVERAGE),
    "runs": ("run", "dialogues", "left out", "setting: first run's → its own"),
    "failures": ("model", "outcome", "calls", "for example"),
}


@rare_collections(10_000_000)  # a report's objects nearly all live until its end
def report_run(
    run: Run,
    console: Console,
    made: Sequence[Outcome] = (),
    wandb: bool = False,
    beside: Callable[[Iterable[Table]], Iterable[Table]] = tuple,
    more: Callable[[Tally], Iterable[Table]] = lambda _: (),
) -> None:
    """Write report.html, report.json, report.md and tables/*.csv into a run's folder, and print the most important tables.

    `more` makes further tables; `beside` may put a paper's figures beside ours; with `wandb`, tables and charts go there too.
    Everything is written before it is printed: a reader who stops listening (`| head`) costs no file. Raises `UserError` when
    the folder holds no judgements yet."""
    content = content_of(run, made)
    lost = any(dialogue.lost for dialogue in content.tally.dialogues) or any(verdict.lost for verdict in content.tally.verdicts)
    if not lost and not any(stage.get("unfinished") for stage in run.timing().values()):  # a budget ended it
        run.look(cards_of(content.tally.dialogues))
    content = replace(content, tables=list(beside([*content.tables, *more(content.tally)])))
    paths = write_report(run.folder, content)
    print_brief(content, console)
    if content.plumbing:
        console.print(Text(PLUMBING))
    if content.replay:
        console.print(Text(content.replayed))
    for kind, path in paths.items():
        console.print(f"{kind}: {path}", soft_wrap=True)
    if wandb:
        log_report(run.folder, content, lambda line: console.print(Text(line)))


def print_brief(content: ReportContent, console: Console) -> None:
    """Print the answer, the reasons for it, and as much of the most important tables as fits."""
    for sentence in [*content.alarmed, *content.findings[:-1]]:
        console.print(Text(clean(sentence)))
    for beginning, columns in _BRIEF.items():
        for table in content.tables:
            if table.key.startswith(beginning):
                _print(table, columns, console)


def _print(table: Table, columns: Collection[str], console: Console) -> None:
    """Print a whole table if it fits, otherwise these columns and where to find the rest."""
    if len(table.rows) <= CONSOLE_ROWS and fits(table, console):
        to_console(table, console)
        return
    kept = [place for place, column in enumerate(table.columns) if column in columns]
    rows = tuple(tuple(row[place] for place in kept) for row in table.rows[:CONSOLE_ROWS])
    to_console(replace(table, columns=tuple(table.columns[place] for place in kept), rows=rows, notes=()), console)
    size = f"{len(table.rows)} rows of {len(table.columns)} columns"
    console.print(Text(f"whole in tables/{table.key}.csv: {size}"), soft_wrap=True)


def content_of(run: Run, made: Sequence[Outcome] = ()) -> ReportContent:
    """The content of a run folder's report. Records that the command has just `made` are not read again."""
    config = run.config()
    scored = config.scored
    if scored is None and "role_play" in config:
        played, scores = (quote(str(run.folder / f"role_play_{name}.jsonl")) for name in ("dialogues", "judgements"))
        raise UserError(
            f"{run.folder} holds scores of seekers, not of supporters: show them with `esc-eval paper role-play --dialogues "
            f"{played} --judgements {scores}`"
        )
    if scored is None and (others := config.stages.keys() - {"simulate", "dialogues", "gold"}):
        raise UserError(f"{run.folder} holds records of {', '.join(sorted(others))}: their command wrote their tables there")
    if scored is None:
        raise UserError(UNSCORED.format(run.folder))
    judges = sets_of(run.folder, config)
    outcomes = {outcome.file: outcome for outcome in made}
    path = run.folder / "dialogues.jsonl"
    dialogues = list(made[0].dialogues) if made else read_jsonl(path, Dialogue, "dialogues")
    looks, seen = looks_of(run.folder)
    level = looks.level_at(cards_of(dialogues)) if looks else LEVEL
    read = (outcomes[judging.file].judgements if judging.file in outcomes else judging.records() for judging in judges)
    verdicts = [*chain.from_iterable(read)]
    tally = Tally(dialogues, verdicts, scored.rubric, config.floors(), users_of(dialogues), level)
    once, kept = tally, distinct(dialogues)  # shares what is already computed, if every dialogue is distinct
    if len(kept) < len(dialogues):
        drawn = {dialogue.id for dialogue in kept}
        once = replace(tally, dialogues=kept, judgements=[verdict for verdict in verdicts if verdict.dialogue_id in drawn])
    rubric = tally.rubric
    timing, used = run.timing(), run.usage()
    seconds = {stage: float(figures["seconds"]) for stage, figures in timing.items()}
    records = ScoredRun(run.folder, config, tally, used, timing)
    framework, name = framework_of_run(records), records.framework
    of_framework = list(framework.tables(records)) if framework else []
    risky = risk.find(dialogues)
    dialogue_means = dialogue_costs(dialogues, used, timing)
    failed = failed_calls(run.failures())
    files = {judge.judge: judge.folder / "agreement.json" for judge in judges}
    agreements = {judge: read_object(file, file.name)["agreement"] for judge, file in files.items() if file.exists()}
    synthetic = config.synthetic_gold
    gold_tables, gold_charts = _gold(run, judges, scored, agreements, synthetic)
    may_leave = framework is not None and framework.may_leave and framework.name == records.framework
    along_tables, along_charts = along(judges, once, may_leave)
    scores_given, endings = distributions(once.verdicts, rubric), terminations(once.dialogues)
    cards = {person.id: framework.card(person) for person in read_people(run.folder)} if framework else {}
    replies = replies_of(once.dialogues, once.contestants)
    audited = simulator.audit(dialogues, {d.id: cards[d.card_id] for d in dialogues if d.card_id in cards})
    # How well the scores distinguish supporters (EmoHarbor table 2), if there are several.
    several = len({contestant.supporter for contestant in tally.contestants}) > 1
    distinguished = discrimination.run_tables(discrimination.of_run(tally.contestants, rubric), rubric) if several else ()
    kinds = run.store.asked_again()
    named = ", ".join(f"{count:,} {reason} of the {role} {spec}" for role, spec, reason, count in kinds)
    again = f"{sum(count for *_, count in kinds):,} answers by name (--retry): {named}" if kinds else ""
    own = config.own_wording()  # None outside paper mode
    uses = model_uses(used, dialogues, tally.verdicts, prices_in(run.versions()))
    return ReportContent(
        title=f"{framework_of(name).title if ':' in name or name in entries() else name} · {run.folder.name}",
        framework=records.framework,
        mode=scored.mode,
        plumbing=config.plumbing,
        synthetic_gold=synthetic,
        replay=config.simulated.replay if config.simulated else None,
        tally=tally,
        cards=cards,
        tables=[
            *leaderboard(tally.boards, rubric, groups=config.groups()),
            *pairwise_differences(tally.boards),
            *distinguished,
            *(table for table in of_framework if table.section != COSTS),
            *between_judges(once.verdicts, rubric),
            *gold_tables,
            scores_given,
            *by_category(once, cards),
            *([length_table(replies)] if replies else []),
            endings,
            *([failed] if failed else []),
            risk.table(dialogues, risky),  # the turns are in the transcripts, behind content warnings
            *([simulator.audit_table(audited)] if audited else []),
            *([use_table(uses)] if uses else []),
            *([cost_table(dialogue_means)] if dialogue_means else []),
            *(table for table in of_framework if table.section == COSTS),
            *along_tables,
        ],
        charts=[
            *charts.distribution_charts(scores_given, rubric),
            *gold_charts,
            *charts.termination_charts(endings),
            *along_charts,
        ],
        texts=[*prompt_texts(config.simulated.supporters if config.simulated else [])],
        further_facts=[
            *([] if own is None else [("Wording", f"in our words: {', '.join(own)}" if own else "as published, every part")]),
            *config.texts(),
            *(framework.facts(records) if framework else ()),
            *_asked(run, judges),
            *_taken(uses),
            *made_with(run.versions()),
            *([("Asked again", again)] if again else []),
        ],
        agreement=next(iter(agreements.values()), None),
        agreements=agreements,
        config=config.root | {"fingerprints": _fingerprints(config, scored)},
        timing=seconds,
        alarms=[*(framework.alarms(records) if framework else ())],
        warnings=[
            *(framework.cautions(records) if framework else ()),
            *_unplanned(looks, [*seen, cards_of(dialogues)], tally),
            *(f"The budget was used up: {text}." for stage in timing.values() if (text := stage.get("unfinished"))),
            *_behind(tally, judges),
            *repeats(dialogues, config.floors()),
            *(f"{sentence}." for sentence in in_trouble(used.values(), tally.judgements)),
            *_warnings(tally, config.specs()),
            *([sentence] if (sentence := cut_off(used.values(), TROUBLE)) else []),
            *saturation(tally.boards, rubric),
        ],
        risks=_risks(dialogues, risky),
        records={"excerpts": [*filter(None, map(risk.excerpt, risky))], "findings": simulator.findings(audited)},
        generated=time.strftime("%Y-%m-%d %H:%M"),
    )


def _unplanned(looks: Looks | None, seen: Collection[int], tally: Tally) -> Iterator[str]:
    """A warning if a difference was found in a run that had been looked at on fewer cards without a plan for that."""
    unplanned = set(seen) - set(looks.cards if looks else ())
    if len({*seen}) > 1 and unplanned and any(difference.holds for board in tally.pooled for difference in board.asked):
        yield (
            f"This run was looked at on {', '.join(map(str, sorted({*seen})))} cards and grew in between: who goes on until a "
            "difference is found finds one by chance in more than 5 of 100 runs. --until decided plans its looks."
        )


def _behind(tally: Tally, judges: Sequence[JudgementSet]) -> Iterator[str]:
    """The judges that lack verdicts on dialogues that other judges have scored."""
    judged = {judge.judge: {j.dialogue_id for j in tally.verdicts if j.judge == judge.judge} for judge in judges}
    every = set().union(*judged.values())
    for judge, dialogues in judged.items():
        if lacking := len(every - dialogues):
            yield f"{judge} has not judged {lacking:,} of {len(every):,} dialogues yet: score them with --judge {judge}."


def _gold(
    run: Run, judges: Sequence[JudgementSet], scored: Judged, agreements: Mapping[str, dict[str, Any]], synthetic: bool
) -> tuple[list[Table], list[charts.Chart]]:
    """The judges' agreement with the gold set; several judges are compared and tested against each other."""
    rubric, mode = scored.rubric, scored.mode
    gold = [judgement for judge in judges for judgement in judge.records("gold_judgements.jsonl")]
    if not gold:
        return [], []
    judgements = judgements_in_order(gold, rubric)
    scores = gold_of(judgements, _records(run.folder / "gold_scores.jsonl", HumanScore))
    clusters = clusters_of(_records(run.folder / "gold_dialogues.jsonl", Dialogue))
    figures, tables = judge_figures(by_judge(judgements), scores, JudgeSettings(mode, rubric, clusters=clusters))
    several, keys = len(figures["judges"]) > 1, file_keys(agreements)
    drawn: list[charts.Chart] = []
    for who, agreement in agreements.items():
        named = (who, f"agreement_{keys[who]}") if several else ()
        drawn += charts.agreement_charts(agreement, rubric, mode, synthetic, *named)
    if several:
        return [*chain.from_iterable(tables)], drawn
    (judge,) = figures["judges"].values()
    matrices = {code: {name: Confusion(**m) for name, m in judge["confusion"][code].items()} for code in judge["confusion"]}
    bins = [Bin(**part) for part in judge["calibration"]]
    labels = {key: dimension_label(rubric, key) for key in rubric.dimensions}
    calibrated = [calibration_table(bins, labels, SYNTHETIC_NOTE * figures["synthetic_gold"])] if bins else []
    drawn += [*charts.confusion_charts(matrices, rubric, synthetic), *charts.calibration_charts(bins, synthetic)]
    return [*tables.judges, *tables.counts, *calibrated], drawn


def _asked(run: Run, judges: Sequence[JudgementSet]) -> Iterator[tuple[str, str]]:
    """Each judge's prompt pack and method, and the features of requests that each model's server supports."""
    learnt = run.store.dialects()
    taken = {spec: report_of([record for (name, _), record in learnt.items() if name == spec]) for spec, _ in sorted(learnt)}
    for judge in judges:
        settings = run.config().root.get(judge.stage, {})
        settled = [f"pack {settings.get('prompts', {}).get('pack')}", f"method {settings.get('method')}"]
        yield f"Judge {judge.judge}", "; ".join([*settled, *taken.pop(judge.judge, [])])
    yield from ((f"Model {name}", "; ".join(sentences)) for name, sentences in taken.items() if sentences)


def _taken(uses: Sequence[ModelUse]) -> Iterator[tuple[str, str]]:
    """Total calls, tokens and cost."""
    if uses:
        total = Usage.total([use.usage for use in uses])
        text = f"{total.calls:,} calls, {total.prompt_tokens:,} tokens in, {total.completion_tokens:,} out"
        if costs := [use.cost for use in uses if use.cost is not None]:
            text += f"; cost {sum(costs):,.2f}" if sum(costs) >= 1 else f"; cost {sum(costs):.2g}"
            free = len(uses) - len(costs)
            text += f", {free} model{'s' * (free > 1)} without a price apart" if free else ""
        yield "Taken", text


def _risks(dialogues: Sequence[Dialogue], risks: Sequence[risk.RiskTurn]) -> dict[str, dict[int, list[str]]]:
    """Dialogue id → place of a turn → the dangers that it voices, also in the seeker's thoughts, which transcripts show."""
    about: dict[str, dict[int, list[risk.Category]]] = defaultdict(dict)
    for risky in risks:
        about[risky.dialogue.id][risky.turn] = list(risky.categories)
    for dialogue in dialogues:
        for place, turn in enumerate(dialogue.turns):
            thoughts = "\n".join(map(str, (turn.state or {}).values()))
            for name, _ in risk.load_lexicon(dialogue.language).danger(thoughts) if thoughts else ():
                about[dialogue.id].setdefault(place, []).append(name)
    return {
        id: {place: [risk.CATEGORIES[name] for name in dict.fromkeys(names)] for place, names in turns.items()}
        for id, turns in about.items()
    }


def _records(path: Path, model: type[M]) -> list[M]:
    return read_jsonl(path, model, path.stem, allow_empty=True) if path.exists() else []


def _warnings(tally: Tally, specs: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The supporters that have the same base model as a judge or the seeker, which may favour them (ESC-Eval appendix B.3)."""
    supporters = sorted({supporter_of(dialogue) for dialogue in tally.dialogues})
    played = {(dialogue.framework, dialogue.simulator) for dialogue in tally.dialogues}
    seekers = sorted({name for framework, simulator in played for name in _players(framework, simulator)})
    judges = sorted({judgement.judge for judgement in tally.judgements})
    families = bases([*supporters, *seekers, *judges], specs)
    for role, names, harm in (("judge", judges, "its scores may favour"), ("seeker", seekers, "it may draw out the best in")):
        for name in names:
            likes = {supporter: alike(name, supporter, families) for supporter in supporters}
            if sharing := [f"{supporter} ({how})" for supporter, how in likes.items() if how]:
                whom = "it" if len(sharing) == 1 else "them"
                yield f"The {role} {name} shares its base with {', '.join(sharing)}: {harm} {whom}."


def _players(framework: str | None, simulator: str | None) -> Sequence[str]:
    """The models that played a dialogue's seeker; empty if a person did."""
    if simulator is None:
        return []
    return framework_of(framework).players(simulator) if framework and framework in entries() else [simulator]


def _fingerprints(config: RunConfig, scored: Judged) -> dict[str, str]:
    fingerprints = {who: spec.fingerprint for who, spec in config.models().items()}
    if simulated := config.simulated:
        people = {"role cards": simulated.cards, "profiles": simulated.profiles}
        fingerprints |= {name: records.sha256 for name, records in people.items() if records}
    if gold := config.gold:
        fingerprints["gold set"] = gold.sha256
    packs = {f"prompts of {judged.judge.name}": judged.prompts for judged in config.judged.values() if judged.judge}
    packs = packs if len(packs) > 1 else {"prompts": scored.prompts}
    return fingerprints | {name: prompts.fingerprint for name, prompts in packs.items()}
