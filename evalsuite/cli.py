"""The command line of the harness: esc-eval run | simulate | score | agree | report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from data_prep.records import HumanScore, Judgement
from data_prep.scores.human import read_dialogues
from data_prep.tables import to_console
from evalsuite import pipeline
from evalsuite.agreement import agreement, agreement_tables, read_gold, read_judgements
from evalsuite.config import Resolved, load_config
from evalsuite.content import report_run
from evalsuite.pipeline import Outcome
from evalsuite.runs import open_run
from serve.errors import UserError, run_cli

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Evaluate emotional-support dialogue systems: a simulated seeker talks to your model, a ranker scores it.\n\n"
    "Running the identical command again resumes an interrupted run: nothing that was answered is asked again.",
    epilog="Example: esc-eval run --config configs/eval/esc_eval.yaml --supporter my-model --base-url http://127.0.0.1:8000/v1",
)
console = Console()

ConfigOption = Annotated[Path, typer.Option("--config", help="What to run; see configs/eval. Options below override it.")]
OutOption = Annotated[str | None, typer.Option("--out", help="Run folder. The same folder and command resume.")]
SupporterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--supporter", help="Model under test: a name in configs/models, a spec file, or with --base-url any served name."
    ),
]
BaseUrlOption = Annotated[str | None, typer.Option(help="OpenAI-compatible URL at which the supporter answers.")]
KeyOption = Annotated[str | None, typer.Option(help="Environment variable with the key for --base-url.")]
SeekerOption = Annotated[str | None, typer.Option("--seeker", help="Model that plays the seeker.")]
JudgeOption = Annotated[str | None, typer.Option("--judge", help="Model that scores.")]
JudgePromptsOption = Annotated[
    str | None,
    typer.Option(
        "--judge-prompts",
        help="Prompt pack that the judge is asked in, by name (configs/prompts) or folder: for a ranker, the one it learnt.",
    ),
]
CardsOption = Annotated[
    list[Path] | None, typer.Option("--cards", help="Role cards: our JSONL, or ESC-Eval's published card_high_*.json.")
]
LimitOption = Annotated[int | None, typer.Option("--limit", help="At most this many cards a language.")]
LanguageOption = Annotated[str | None, typer.Option("--language", help="en or zh; without it, those of the config.")]
ModeOption = Annotated[
    str | None, typer.Option("--mode", help="paper: as published, odd parts included. native: as we would do it.")
]
EndpointOption = Annotated[
    list[str] | None, typer.Option("--endpoint", metavar="NAME=URL", help="A server that is already up for a model.")
]


@app.command()
def run(
    config: ConfigOption,
    supporter: SupporterOption = None,
    base_url: BaseUrlOption = None,
    api_key_env: KeyOption = None,
    seeker: SeekerOption = None,
    judge: JudgeOption = None,
    judge_prompts: JudgePromptsOption = None,
    cards: CardsOption = None,
    limit: LimitOption = None,
    language: LanguageOption = None,
    mode: ModeOption = None,
    endpoint: EndpointOption = None,
    out: OutOption = None,
) -> None:
    """Simulate, score, measure agreement on the gold set (if the config has one) and write the report."""
    resolved = _resolve(
        config, supporter, base_url, api_key_env, seeker, judge, judge_prompts, cards, limit, language, mode, endpoint, out
    )
    _check_all(resolved, simulate=True, score=True)
    with open_run(Path(resolved.config.out)) as opened:
        with pipeline.Fleet(opened, resolved) as fleet:
            outcome = pipeline.simulate(opened, resolved, fleet, console, score=True)
            if resolved.config.gold is not None:
                pipeline.score_gold(opened, resolved, fleet, console)
        report_run(opened, console)
    _finish(outcome)


@app.command()
def simulate(
    config: ConfigOption,
    supporter: SupporterOption = None,
    base_url: BaseUrlOption = None,
    api_key_env: KeyOption = None,
    seeker: SeekerOption = None,
    cards: CardsOption = None,
    limit: LimitOption = None,
    language: LanguageOption = None,
    mode: ModeOption = None,
    endpoint: EndpointOption = None,
    out: OutOption = None,
) -> None:
    """Only hold the dialogues: writes OUT/dialogues.jsonl."""
    resolved = _resolve(
        config, supporter, base_url, api_key_env, seeker, None, None, cards, limit, language, mode, endpoint, out
    )
    _check_all(resolved, simulate=True, score=False)
    with open_run(Path(resolved.config.out)) as opened, pipeline.Fleet(opened, resolved) as fleet:
        outcome = pipeline.simulate(opened, resolved, fleet, console, score=False)
    _finish(outcome)


@app.command()
def score(
    config: ConfigOption,
    dialogues: Annotated[Path | None, typer.Option(help="Dialogue records (JSONL). Default: OUT/dialogues.jsonl.")] = None,
    judge: JudgeOption = None,
    judge_prompts: JudgePromptsOption = None,
    language: LanguageOption = None,
    mode: ModeOption = None,
    endpoint: EndpointOption = None,
    out: OutOption = None,
) -> None:
    """Only score dialogues: writes OUT/judgements.jsonl, and the gold set's agreement if the config has one."""
    resolved = _resolve(config, None, None, None, None, judge, judge_prompts, None, None, language, mode, endpoint, out)
    _check_all(resolved, simulate=False, score=True)
    given = dialogues or Path(resolved.config.out) / "dialogues.jsonl"
    read_dialogues([given])  # a bad file is refused before the run folder is touched
    with open_run(Path(resolved.config.out)) as opened, pipeline.Fleet(opened, resolved) as fleet:
        outcome = pipeline.score(opened, resolved, fleet, console, given)
        if resolved.config.gold is not None:
            pipeline.score_gold(opened, resolved, fleet, console)
    _finish(outcome)


@app.command()
def agree(
    judgements: Annotated[Path, typer.Option(help="Judgement records (JSONL) of one judge.")],
    gold: Annotated[Path, typer.Option(help="HumanScore records (JSONL); several annotators are averaged.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    mode: Annotated[
        str, typer.Option(help="Which accuracy the table shows: native leaves unreadable verdicts out.")
    ] = "native",
) -> None:
    """ACC, ACC_soft, n, parse rate and the majority baseline per dimension and language."""
    if mode not in ("paper", "native"):
        raise UserError(f"--mode: unknown mode {mode!r}: paper or native")
    verdicts: list[Judgement] = read_judgements(judgements)
    scores: list[HumanScore] = read_gold(gold)
    result = agreement(verdicts, scores)
    if as_json:
        sys.stdout.write(orjson.dumps({"agreement": result}, option=orjson.OPT_INDENT_2).decode() + "\n")
        return
    for table in agreement_tables(result, mode, {}):
        to_console(table, console)


@app.command()
def report(folder: Annotated[Path, typer.Option("--run", help="A run folder.")]) -> None:
    """Write report.html, report.json and report.md of a run folder again, from its records."""
    if not (folder / "config.json").exists():
        raise UserError(f"not a run folder (no config.json): {folder}")
    with open_run(folder) as opened:
        report_run(opened, console)


def _resolve(
    config: Path,
    supporters: list[str] | None,
    base_url: str | None,
    api_key_env: str | None,
    seeker: str | None,
    judge: str | None,
    judge_prompts: str | None,
    cards: list[Path] | None,
    limit: int | None,
    language: str | None,
    mode: str | None,
    endpoints: list[str] | None,
    out: str | None,
) -> Resolved:
    overrides: dict[str, Any] = {
        "supporters": supporters,
        "seeker": seeker,
        "judge": judge,
        "judge_prompts": judge_prompts,
        "cards": [str(path) for path in cards] if cards else None,
        "limit": limit,
        "languages": [language] if language else None,
        "mode": mode,
        "out": out,
    }
    loaded = load_config(config, overrides)
    for pair in endpoints or []:
        name, found, url = pair.partition("=")
        if not found or not url.startswith(("http://", "https://")):
            raise UserError(f"--endpoint {pair!r}: expected NAME=http://HOST:PORT/v1")
        loaded.endpoints[name] = url
    if base_url is not None and not base_url.startswith(("http://", "https://")):
        raise UserError(f"--base-url {base_url!r}: expected http://HOST:PORT/v1")
    if base_url is not None and len(loaded.supporters) != 1:
        raise UserError("--base-url is the address of one supporter: name it with one --supporter")
    return Resolved(loaded, base_url, api_key_env)


def _check_all(resolved: Resolved, simulate: bool, score: bool) -> None:
    """Load and check everything that the stages will use, before anything is written or started."""
    if simulate:
        resolved.simulate_config()
    if score:
        resolved.score_config()
        if resolved.config.gold is not None:
            resolved.gold_config()


def _finish(outcome: Outcome) -> None:
    """Exit code 1 when something is missing because a server was lost; running again asks only for what is missing."""
    lost = sum(d.termination == "infrastructure" for d in outcome.dialogues)
    unscored = len({j.dialogue_id for j in outcome.judgements if j.condition.get("failure") == "infrastructure"}) - lost
    if lost or unscored > 0:
        reason = next(iter(outcome.failures.reasons.values()), "the judge's server was lost")
        print(
            f"error: {lost} dialogues and {max(unscored, 0)} judgements are missing because a server was lost: {reason}. "
            "Run the same command again to ask only for those",
            file=sys.stderr,
        )
        sys.exit(1)


def main() -> None:
    """Entry point of the console script."""
    run_cli(app)


if __name__ == "__main__":
    main()
