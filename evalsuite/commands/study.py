"""`esc-eval study`: ESC-Eval, EmoHarbor and FEEL on the same supporters, and whether they agree."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from core.errors import UserError
from core.files import CONFIGS, read_jsonl
from core.options import choice, console
from core.paths import InModel, InModels, Writes
from core.records import Dialogue
from core.specs import EMBEDDED_PREFIX
from core.tables import Table
from evalsuite.commands.options import EndpointOption, LanguageOption, endpoints_of, resolve
from evalsuite.commands.output import deliver_sheet, exit_if_lost
from evalsuite.frameworks.feel import Feel, load_feel_config
from evalsuite.frameworks.feel import score as ask_panel
from evalsuite.report.report import PLUMBING
from evalsuite.report.sheet import Sheet
from evalsuite.runner import pipeline
from evalsuite.runner.engine import Runner
from evalsuite.runs.folder import Run, open_run
from evalsuite.runs.resolved import Resolved
from evalsuite.statistics.between_frameworks import STUDY, Framework, as_one_judge, call_table, dimension_table, rank_table
from evalsuite.statistics.feel_tables import Cost
from evalsuite.statistics.summary import languages_of, sums_of

_PERSONAS = ("psychologist", "peer", "editor")
_RUN = ("dialogues.jsonl", "judgements.jsonl", "cards.jsonl", "profiles.jsonl", "costs.jsonl")


def study(
    supporter: Annotated[InModels, typer.Option("--supporter", metavar="MODEL", help="Model under test. Repeat for more.")],
    model: Annotated[
        InModel, typer.Option("--model", metavar="MODEL", help="Plays the seeker, and judges in every framework.")
    ],
    limit: Annotated[int, typer.Option("--limit", min=2, metavar="N", help="Cards, and profiles, a language.")] = 5,
    trials: Annotated[
        int, typer.Option("--trials", min=1, metavar="N", help="Dialogues on each; from 2 on reliability is known.")
    ] = 2,
    exchanges: Annotated[int, typer.Option("--exchanges", min=1, metavar="N", help="Length of dialogues, at most.")] = 5,
    rounds: Annotated[int, typer.Option("--rounds", min=1, metavar="N", help="How often each of FEEL's judges is asked.")] = 1,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0, max=2, help="Of the supporters: at 0 trials may be the same.")
    ] = 0.7,
    floors: Annotated[bool, typer.Option("--floors/--no-floors", help="Also supporters without a model.")] = True,
    language: LanguageOption = None,
    endpoint: EndpointOption = None,
    out: Annotated[
        Path,
        typer.Option("--out", help="Folder of the study; the same command resumes."),
        Writes(("study.*", "tables/*", *(f"*/{name}" for name in _RUN))),
    ] = Path("runs/study"),
) -> None:
    """ESC-Eval, EmoHarbor and FEEL's panel on the same supporters: do they rank them alike, do their dimensions go together,
    and which parts supporters with the fewest calls?

    ESC-Eval plays role cards, EmoHarbor profiles; FEEL's panel (one model as three personas) judges the dialogues that ESC-Eval
    held. The three run folders lie in OUT, and can be reported and grown like any other. Writes OUT/study.html, .json and .md.
    Example:

    esc-eval study --supporter a@http://127.0.0.1:8000/v1 --supporter b@http://127.0.0.1:8001/v1
    --model gpt-4.1@https://api.openai.com/v1#OPENAI_API_KEY
    """
    if language is not None:
        choice("--language", language, ("en", "zh"))
    played: dict[str, Any] = {"supporters": supporter, "limit": limit, "trials": trials, "exchanges": exchanges}
    played |= {"floors": floors, "temperature": temperature, "seeker": model, "judge": model, "language": language}
    runs = {
        "esc_eval": resolve(CONFIGS / "eval" / "api.yaml", endpoint, out=str(out / "esc_eval"), **played),
        "emoharbor": resolve(CONFIGS / "eval" / "study_emoharbor.yaml", endpoint, out=str(out / "emoharbor"), **played),
    }
    panel = load_feel_config(
        CONFIGS / "eval" / "feel.yaml",
        {
            "judges": [{"model": model, "persona": persona} for persona in _PERSONAS],
            "rounds": rounds,
            "languages": [language] if language else None,
            "out": str(out / "feel"),
        },
    )
    judge = runs["esc_eval"].judge.name
    panel.endpoints.update({name: url for name, url in endpoints_of(endpoint).items() if name == judge})
    feel = Feel(panel)
    for resolved in runs.values():  # whatever is wrong is told before anything is written or started
        resolved.simulate_identity()
        resolved.score_identity()
    frameworks = [_held(name, resolved) for name, resolved in runs.items()]
    frameworks.append(_panel(feel, out / "feel", frameworks[0].dialogues))
    sheet = _sheet(frameworks, runs["esc_eval"])
    deliver_sheet(out, "study", sheet, [table for table in sheet.tables if not table.key.startswith("study-dimensions")])
    verdicts = [judgement for one in frameworks for judgement in one.judgements]
    exit_if_lost(sum(judgement.lost for judgement in verdicts), len(verdicts), "judgements")


def _held(name: str, resolved: Resolved) -> Framework:
    """A framework's dialogues and verdicts, asked or from its folder."""
    with open_run(resolved.out) as run, Runner(run, resolved, console) as runner:
        outcome = pipeline.simulate(runner, score=True)
        people = "cards" if name == "esc_eval" else "profiles"
        return Framework(
            resolved.title, people, list(outcome.dialogues), list(outcome.judgements), resolved.rubric, _calls(run)
        )


def _panel(feel: Feel, folder: Path, held: Sequence[Dialogue]) -> Framework:
    """FEEL's verdicts on dialogues that are held already; the panel counts as one judge."""
    whole = [dialogue for dialogue in held if not dialogue.lost and dialogue.exchanges]
    if not whole:
        raise UserError(f"{folder}: no dialogue was held to its end: there is nothing for FEEL's panel to judge")
    with open_run(folder) as run:
        judgements = ask_panel(run, feel, whole, lambda resolved: Runner(run, resolved, console))
    calls = sum(cost.calls for cost in read_jsonl(folder / "costs.jsonl", Cost, "costs"))
    return Framework(feel.title, "cards", whole, [*as_one_judge(judgements)], feel.members[0].rubric, calls)


def _calls(run: Run) -> int:
    """All calls of a run."""
    return sum(used.calls for used in sums_of(run.usage().values()).values())


def _sheet(frameworks: Sequence[Framework], resolved: Resolved) -> Sheet:
    """The page."""
    esc_eval, _, feel = frameworks
    tables: list[Table] = []
    for language in languages_of(esc_eval.dialogues):
        found = [*rank_table(frameworks, language), call_table(frameworks, language)]
        found.append(dimension_table(esc_eval, feel, language))
        tables += [table for table in found if table is not None]
    models = [*resolved.seekers, resolved.judge, *resolved.supporters]
    plumbing = any(str(spec.checkpoint).startswith(EMBEDDED_PREFIX) for spec in models)
    return Sheet(
        title=STUDY,
        cautions=[PLUMBING] if plumbing else [],
        facts=[
            ("Supporters", ", ".join(spec.name for spec in resolved.supporters)),
            ("Seeker and judge", resolved.judge.name),
            *((one.title, f"{len(one.dialogues):,} dialogues, {one.calls:,} calls") for one in frameworks),
            ("Generated", time.strftime("%Y-%m-%d %H:%M")),
        ],
        tables=tables,
        figures={"plumbing": plumbing},
    )
