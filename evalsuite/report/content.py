"""A run folder's records → the tables and the report."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from core.errors import UserError
from core.files import read_jsonl, read_object
from core.records import Dialogue, HumanScore, Judgement, RoleCard, Usage
from core.rubrics import Rubric
from core.specs import EMBEDDED_PREFIX
from core.tables import Table, to_console, too_wide
from data_prep.profiles import Profile
from evalsuite.checks import risk
from evalsuite.checks.shared_bases import alike, bases
from evalsuite.report.charts import (
    Chart,
    agreement_charts,
    calibration_charts,
    confusion_charts,
    distribution_charts,
    score_charts,
    termination_charts,
)
from evalsuite.report.log_wandb import log_report
from evalsuite.report.report import PLUMBING, ReportContent, write_report
from evalsuite.report.trajectories import survival_charts, trend_charts
from evalsuite.reported.against import against
from evalsuite.runs.folder import Run
from evalsuite.runs.records import read_turn_judgements
from evalsuite.runs.versions import made_with
from evalsuite.statistics import dialogue_costs, discrimination, discrimination_tables, survival, trends
from evalsuite.statistics.agreement import agreement_tables
from evalsuite.statistics.judges import calibration, calibration_table, confusion, confusion_tables
from evalsuite.statistics.leaderboard import groups_of, leaderboard, pairwise_differences
from evalsuite.statistics.order import judgements_in_order
from evalsuite.statistics.summary import (
    AGREEMENT,
    SCORES,
    TERMINATIONS,
    costs,
    cut_off,
    distributions,
    failed_calls,
    supporter_of,
    terminations,
)
from evalsuite.statistics.tally import Tally

M = TypeVar("M", bound=BaseModel)

CONSOLE_ROWS = 30  # longer tables, and those too wide for it, are only named on the console
_TITLES = {"esc_eval": "ESC-Eval", "emoharbor": "EmoHarbor"}


def report_run(run: Run, console: Console, wandb: bool = False, versus: str | None = None) -> None:
    """Print a run's tables and write report.html, report.json, report.md and tables/*.csv into its folder.

    `versus` puts a paper's figures beside ours (`evalsuite.reported.against`). With `wandb`, the same tables and charts go
    there too (see `log_wandb`). Everything comes from the folder's own files. Raises `UserError` when it holds no
    judgements yet.
    """
    content = content_of(run)
    content = replace(content, tables=against(content.tables, versus))
    for table in content.tables:
        if len(table.rows) <= CONSOLE_ROWS and not too_wide(table, console):
            to_console(table, console)
        else:
            size = f"{len(table.rows)} rows of {len(table.columns)} columns"
            console.print(Text(f"{table.title}: {size}, in tables/{table.key}.csv"), soft_wrap=True)
    if content.plumbing:
        console.print(Text(PLUMBING))
    for kind, path in write_report(run.folder, content).items():
        console.print(f"{kind}: {path}", soft_wrap=True, highlight=False, markup=False)
    if wandb:
        log_report(run.folder, content, lambda line: console.print(Text(line)))


def content_of(run: Run) -> ReportContent:
    """What the report of a run folder shows."""
    config = run.config()
    if "score" not in config and "role_play" in config:
        raise UserError(
            f"{run.folder} holds scores of seekers, not of supporters: show them with `esc-eval role-play table --dialogues "
            f"{run.folder}/role_play_dialogues.jsonl --judgements {run.folder}/role_play_judgements.jsonl`"
        )
    if "score" not in config:
        raise UserError(f"{run.folder} has no judgements yet: run `esc-eval score --out {run.folder} …` first")
    tally = Tally(
        read_jsonl(run.folder / "dialogues.jsonl", Dialogue, "dialogues"),
        read_jsonl(run.folder / "judgements.jsonl", Judgement, "judgements"),
        Rubric.model_validate(config["score"]["rubric"]),
    )
    dialogues, rubric = tally.dialogues, tally.rubric
    cards = _records(run.folder / "cards.jsonl", RoleCard)
    cards += map(_as_card, _records(run.folder / "profiles.jsonl", Profile))
    timing, usage = run.timing(), _json(run.folder / "usage.json", {})
    seconds = {stage: float(figures["seconds"]) for stage, figures in timing.items()}
    framework = config.get("simulate", {}).get("framework", "given dialogues")
    harbour = framework == "emoharbor" or "judging" in config["score"]
    risky = risk.find(dialogues)
    failed = failed_calls(run.failures())
    judged = {
        f"{model} ({stage})": Usage.model_validate(u) for stage in usage for model, u in usage[stage].get("judge", {}).items()
    }
    gold = _gold(run, config, rubric)
    along = _along(run, dialogues, rubric, framework)
    scores_given, endings = distributions(tally.verdicts, rubric), terminations(dialogues)
    return ReportContent(
        title=f"{_TITLES.get(framework, framework)} · {run.folder.name}",
        framework=framework,
        mode=config["score"]["mode"],
        plumbing=_embedded(config),
        synthetic_gold=gold.synthetic,
        tally=tally,
        cards={card.id: card for card in cards},
        tables=[
            *leaderboard(tally.boards, rubric, groups=groups_of(config)),
            *pairwise_differences(tally.boards),
            *(_discrimination(tally) if harbour else []),
            *gold.tables,
            scores_given,
            endings,
            *([failed] if failed else []),
            *risk.tables(risk.count(dialogues, risky), risky, examples=0),  # examples are behind warnings, in transcripts
            costs(dialogues, judged, seconds),
            *(_dialogue_costs(dialogues, usage, timing) if harbour else []),
            *along.tables,
        ],
        charts={
            SCORES: [*score_charts(tally), *distribution_charts(scores_given, rubric)],
            AGREEMENT: gold.charts,
            TERMINATIONS: list(termination_charts(endings)),
            **along.charts,
        },
        further_facts=[*_facts(config), *made_with(run.versions()), *_asked_again(run)],
        agreement=gold.agreement,
        config=config | {"fingerprints": _fingerprints(config)},
        timing=seconds,
        warnings=[*([told] if (told := _cut_off(usage)) else []), *_warnings(tally, config)],
        risks=_risks(dialogues, risky),
        generated=time.strftime("%Y-%m-%d %H:%M"),
    )


class _Gold(NamedTuple):
    """How the judge agrees with the gold set: figures, tables and charts."""

    synthetic: bool
    agreement: dict[str, Any] | None
    tables: list[Table]
    charts: list[Chart]


def _gold(run: Run, config: dict[str, Any], rubric: Rubric) -> _Gold:
    synthetic = config.get("gold", {}).get("dialogues") in ("synthetic", "synthetic_test")
    note = "synthetic gold, scores hold by construction" if synthetic else ""
    labels = {key: dimension.label.get("en", key) for key, dimension in rubric.dimensions.items()}
    agreed = _json(run.folder / "agreement.json", {}).get("agreement")
    judgements = judgements_in_order(_records(run.folder / "gold_judgements.jsonl", Judgement), rubric)
    scores = _records(run.folder / "gold_scores.jsonl", HumanScore)
    matrices, bins = confusion(judgements, scores, rubric.scales), calibration(judgements, scores)
    mode = config["score"]["mode"]
    tables = [
        *agreement_tables(agreed or {}, mode, labels, note),
        *confusion_tables(matrices, labels, note),
        *([calibration_table(bins, labels, note)] if bins else []),
    ]
    charts = [
        *agreement_charts(agreed or {}, rubric, mode, synthetic),
        *confusion_charts(matrices, rubric, synthetic),
        *calibration_charts(bins, synthetic),
    ]
    return _Gold(synthetic, agreed, tables, charts)


def _discrimination(tally: Tally) -> list[Table]:
    """EmoHarbor's table 2; none where there is one supporter alone, or no verdict."""
    if not tally.contestants or len({supporter_of(dialogue) for dialogue in tally.dialogues}) < 2:
        return []
    return discrimination_tables.run_tables(discrimination.of_run(tally.contestants, tally.rubric), tally.rubric)


def _dialogue_costs(dialogues: Sequence[Dialogue], usage: dict[str, Any], timing: dict[str, Any]) -> list[Table]:
    """EmoHarbor's table 4; none where the calls were not counted."""
    figures = dialogue_costs.dialogue_costs(dialogues, usage, timing)
    return [dialogue_costs.table(figures)] if figures else []


class _Along(NamedTuple):
    """What happens along the dialogues: tables, and charts by section."""

    tables: list[Table]
    charts: dict[str, list[Chart]]


def _along(run: Run, dialogues: Sequence[Dialogue], rubric: Rubric, framework: str) -> _Along:
    """Survival, where seekers may leave, and scores by round, where single turns were judged."""
    may_leave = framework == "emoharbor" or any(dialogue.termination == "seeker_ended" for dialogue in dialogues)
    curves = survival.curves(dialogues) if may_leave else []
    by_round = trends.trends(dialogues, read_turn_judgements(run.folder), rubric)
    return _Along(
        [*survival.tables(curves, survival.log_ranks(dialogues) if curves else []), *trends.tables(by_round, rubric)],
        {survival.SURVIVAL: list(survival_charts(curves)), trends.TRENDS: list(trend_charts(by_round, rubric))},
    )


def _as_card(profile: Profile) -> RoleCard:
    """A profile as the transcript browser shows who is played: the profile itself is in profiles.jsonl."""
    who = profile.demographics
    return RoleCard(
        id=profile.id,
        language=profile.language,
        age="" if who.age is None else str(who.age),
        gender=who.gender,
        occupation=who.occupation,
        problem=profile.counselling.problem,
        source=profile.source,
        card_method="written",
    )


def _facts(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What EmoHarbor's run did that a reader must know to compare its figures."""
    simulated, scored = config.get("simulate", {}), config.get("score", {})
    if simulated.get("framework") == "emoharbor":
        given = simulated["mode"] == "paper"
        yield (
            "Supporters told",
            (
                "who the seeker is, and to keep to 28 words on average and 97 at most (paper)"
                if given
                else "neither who the seeker is nor a length (native)"
            ),
        )
        names = [simulated["seeker"]["name"], (simulated["thinker"] or {}).get("name", "nobody")]
        yield "Seeker", f"{simulated['simulator'].replace('_', ' ')}: {names[1]} thinks, {names[0]} talks"
    if "judging" in scored:
        shown = {"dialogue": "the dialogue alone", "profile": "dialogue and profile", "states": "dialogue, profile and states"}
        yield "Judge shown", shown[scored["judging"]]


def _asked_again(run: Run) -> Iterator[tuple[str, str]]:
    """How many answers were drawn again by name, and why."""
    if again := run.store.asked_again():
        told = ", ".join(f"{count:,} {reason} of the {role} {spec}" for role, spec, reason, count in again)
        yield "Asked again", f"{sum(count for *_, count in again):,} answers by name (--retry): {told}"


def _risks(dialogues: Sequence[Dialogue], risks: Sequence[risk.RiskTurn]) -> dict[str, dict[int, list[str]]]:
    """Dialogue id → place of a turn → what it is about. Thoughts are shown too: one that voices danger counts as its turn does,
    but only here, since no supporter could answer it."""
    about = {(one.dialogue.id, one.turn): list(one.categories) for one in risks}
    for dialogue in dialogues:
        for place, turn in enumerate(dialogue.turns):
            thoughts = "\n".join(map(str, (turn.state or {}).values()))
            for name, _ in risk.load_lexicon(dialogue.language).danger(thoughts) if thoughts else ():
                about.setdefault((dialogue.id, place), []).append(name)
    places: dict[str, dict[int, list[str]]] = {}
    for (id, place), names in about.items():
        places.setdefault(id, {})[place] = [risk.CATEGORIES[name] for name in dict.fromkeys(names)]
    return places


def _records(path: Path, model: type[M]) -> list[M]:
    return read_jsonl(path, model, path.stem, allow_empty=True) if path.exists() else []


def _json(path: Path, default: dict[str, Any]) -> dict[str, Any]:
    return read_object(path, path.name) if path.exists() else default


def _models(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every model of a run by `role name`."""
    simulated, scored = config.get("simulate", {}), config.get("score", {})
    found = {f"supporter {spec['name']}": spec for spec in simulated.get("supporters", [])}
    found |= {"seeker " + simulated["seeker"]["name"]: simulated["seeker"]} if simulated else {}
    if thinker := simulated.get("thinker"):
        found["thinker " + thinker["name"]] = thinker
    return found | ({"judge " + scored["judge"]["name"]: scored["judge"]} if scored else {})


def _warnings(tally: Tally, config: dict[str, Any]) -> Iterator[str]:
    """Which supporters share their base with a judge or the seeker, who may favour their like (ESC-Eval appendix B.3)."""
    supporters = sorted({supporter_of(dialogue) for dialogue in tally.dialogues})
    seekers = sorted({name for dialogue in tally.dialogues for name in _players(dialogue.simulator or "")})
    judges = sorted({judgement.judge for judgement in tally.judgements})
    known = bases([*supporters, *seekers, *judges], config)
    for role, names, harm in (("judge", judges, "its scores may favour"), ("seeker", seekers, "it may draw out the best in")):
        for name in names:
            likes = {supporter: alike(name, supporter, known) for supporter in supporters}
            told = [f"{supporter} ({how})" for supporter, how in likes.items() if how]
            if told:
                whom = "it" if len(told) == 1 else "them"
                yield f"The {role} {name} shares its base with {', '.join(told)}: {harm} {whom}."


def _cut_off(usage: dict[str, Any]) -> str:
    """The sentence on cut-off replies, from usage.json."""
    return cut_off(
        {role: {model: Usage.model_validate(used) for model, used in models.items()} for role, models in stage.items()}
        for stage in usage.values()
    )


def _players(simulator: str) -> list[str]:
    """The models that play a seeker: EmoHarbor's may have two, and names the ablation (`Resolved.simulator`)."""
    return [name for name in re.sub(r" \((one agent|simple profile)\)$", "", simulator).split("+") if name]


def _embedded(config: dict[str, Any]) -> bool:
    return any(str(spec["checkpoint"]).startswith(EMBEDDED_PREFIX) for spec in _models(config).values())


def _fingerprints(config: dict[str, Any]) -> dict[str, str]:
    found = {who: spec["fingerprint"] for who, spec in _models(config).items()}
    if "simulate" in config:
        what = {"cards": "role cards", "profiles": "profiles"}
        found |= {name: config["simulate"][key]["sha256"] for key, name in what.items() if key in config["simulate"]}
    if "gold" in config:
        found["gold set"] = config["gold"]["sha256"]
    return found | {"prompts": config["score"]["prompts"]["fingerprint"]}
