"""`esc-eval judge-card`: every check of a judge in one go, and the card that can be published with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from core.errors import UserError
from core.files import CONFIGS
from core.options import console
from core.paths import InModel, MaybeFile, MaybeFiles, Writes
from core.specs import load_spec
from data_prep.scores.human import read_dialogues
from evalsuite.checks.health import AS_IS
from evalsuite.checks.probe import Probe, card_probes, drawn, load_injections, probe
from evalsuite.commands.options import EndpointOption, JudgePromptsOption, LanguageOption, ModeOption, resolve
from evalsuite.commands.output import deliver_page, exit_if_lost
from evalsuite.report.judge_card import Asked, judge_card
from evalsuite.runner import pipeline
from evalsuite.runner.engine import Runner
from evalsuite.runs.folder import open_run
from evalsuite.runs.versions import versions

NAME = "judge_card"


def judge_card_verb(
    judge: Annotated[InModel, typer.Argument(metavar="JUDGE", help="A name in configs/models, a spec file, or NAME@URL.")],
    config: Annotated[
        MaybeFile, typer.Option("--config", help="Rubric, method, prompts and gold set. Default: configs/eval/judge_card.yaml.")
    ] = None,
    gold: Annotated[
        MaybeFile, typer.Option("--gold", help="People's scores (JSONL) to measure agreement on. With --dialogues.")
    ] = None,
    dialogues: Annotated[MaybeFile, typer.Option("--dialogues", help="The dialogues (JSONL) that --gold scores.")] = None,
    further: Annotated[
        MaybeFiles,
        typer.Option(
            "--further",
            help="Dialogues (JSONL) of named supporters, some of the judge's own base: for its taste for its own kind. Repeat.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=2, metavar="N", help="Dialogues a language that the checks beside agreement are on.")
    ] = 20,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, metavar="N", help="How many times each of these is asked again.")
    ] = 2,
    method: Annotated[
        str | None, typer.Option("--method", help="joint, per_dimension, json or bands; without it, that of the config.")
    ] = None,
    judge_prompts: JudgePromptsOption = None,
    language: LanguageOption = None,
    mode: ModeOption = None,
    endpoint: EndpointOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Run folder. The same command resumes. Default: runs/judge-card/JUDGE."),
        Writes((f"{NAME}.*", "tables/*", "gold_*.jsonl", "health_*.jsonl", "agreement.json")),
    ] = None,
) -> None:
    """How far a judge can be trusted, on one page and in one JSON: OUT/judge_card.html, .json and .md.

    Asked about gold dialogues: is it right more often than the majority class, can its probabilities be believed. About some of
    them, changed: does it rate replies above those of supporters that need no model, does it reward a sentence of no use,
    follow an order to score high, change with the order of dimensions, say the same again. With --further: does it favour
    supporters of its own base.

    A joint judge gets about 10 calls for each of the --limit dialogues, and one for every gold dialogue. Examples:

    esc-eval judge-card my-judge@http://127.0.0.1:8000/v1

    esc-eval judge-card embedded-ranker --method per_dimension --limit 8 --out runs/judge-card/embedded-ranker
    """
    if (gold is None) != (dialogues is None):
        raise UserError("--gold and --dialogues go together: people's scores, and the dialogues that they scored")
    folder = out or Path("runs", "judge-card", load_spec(judge).name)
    overrides: dict[str, Any] = {"judge": judge, "judge_prompts": judge_prompts, "method": method, "mode": mode}
    if gold is not None:
        overrides["gold"] = {"dialogues": str(dialogues), "scores": str(gold)}
    chosen = config or CONFIGS / "eval" / "judge_card.yaml"
    resolved = resolve(chosen, endpoint, language=language, out=str(folder), **overrides)
    if resolved.config.gold is None:
        raise UserError(f"{chosen}: gold: name a gold set, or give --gold and --dialogues")
    resolved.score_identity()  # whatever is wrong is told before anything is written or started
    known, scores = resolved.gold
    picked = [*drawn(known, resolved.config.languages, limit)]
    if not picked or not scores:
        raise UserError(f"gold: no scored dialogue with an answer in {', '.join(resolved.config.languages)}")
    spoken = [d for d in read_dialogues(further or []) if d.language in resolved.config.languages and d.exchanges]
    more = [*card_probes(picked, resolved.rubric, repeats), *(Probe(d, resolved.rubric, {"variant": AS_IS}) for d in spoken)]
    with open_run(folder) as run, Runner(run, resolved, console) as runner:
        outcome = pipeline.score_gold(runner)
        probed = probe(runner, picked, load_injections(), more)
        run.keep_versions(versions({resolved.judge_pack: resolved.judge_prompts}, resolved.rubric, {}, [resolved.judge]))
        gold_set = resolved.config.gold
        synthetic = gold_set.scores is None
        asked = Asked(
            judge=resolved.judge.name,
            dialogues=known,
            gold=scores,
            given=list(outcome.judgements),
            probed_dialogues=[*picked, *spoken],
            probed=probed,
            rubric=resolved.rubric,
            mode=resolved.config.mode,
            synthetic=synthetic,
            config=run.config(),
            versions=run.versions(),
            facts=[
                ("Asked", f"method {resolved.method}, {resolved.config.mode} mode, prompts {resolved.judge_pack}"),
                ("Gold", f"{gold_set.dialogues}: {len(known):,} dialogues, {len(scores):,} scores"),
                ("Other checks on", f"{len(picked):,} of them" + (f" and {len(spoken):,} further dialogues" if spoken else "")),
            ],
        )
        sheet = judge_card(asked)
        deliver_page(NAME, sheet, folder, printed=sheet.tables[:1])
        failures = run.failures()
    verdicts = [*outcome.judgements, *probed]
    exit_if_lost(sum(judgement.lost for judgement in verdicts), len(verdicts), "judgements", failures)
