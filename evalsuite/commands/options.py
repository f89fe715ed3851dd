"""Options that several verbs share, and what becomes of them: a config file with overrides, resolved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from core.errors import UserError
from core.masking import problem_of
from core.paths import IN_FILE, IN_NAME, Reads, Writes
from evalsuite.runs.config import load_config
from evalsuite.runs.resolved import Resolved, resolve_config

RECORDS = (
    *("cards.jsonl", "profiles.jsonl", "dialogues.jsonl", "judgements.jsonl", "turn_judgements.jsonl"),
    *("gold_dialogues.jsonl", "gold_scores.jsonl", "gold_judgements.jsonl"),
)
# What is read of a run folder, and what a run writes over in one (store, config, usage, timing, failures, versions only grow).
IN_RUN = Reads(
    "folder",
    (*RECORDS, "config.json", "usage.json", "timing.json", "costs.jsonl", "health_dialogues.jsonl", "health_judgements.jsonl"),
)
OUT_RUN = Writes((*RECORDS, "agreement.json", "report.*", "tables/*"))


def out_tables(name: str, *more: str) -> Writes:
    """The folder of `deliver`: NAME.json, every table as CSV, and what else a verb writes there."""
    return Writes((f"{name}.json", "*.csv", *more))


ConfigOption = Annotated[
    Path, typer.Option("--config", help="What to run; see configs/eval. Options below override it."), IN_FILE
]
OutOption = Annotated[str | None, typer.Option("--out", help="Run folder. The same folder and command resume."), OUT_RUN]
SupporterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--supporter", help="Model under test: a name in configs/models, a spec file, or with --base-url any served name."
    ),
    IN_NAME,
]
BaseUrlOption = Annotated[str | None, typer.Option(help="OpenAI-compatible URL at which the supporter answers.")]
KeyOption = Annotated[str | None, typer.Option(help="Environment variable with the key for --base-url.")]
SeekerOption = Annotated[str | None, typer.Option("--seeker", help="Model that plays the seeker."), IN_NAME]
PromptsOption = Annotated[
    str | None,
    typer.Option("--prompts", help="Prompt pack that seekers are told from: a strategy, by name (configs/prompts) or folder."),
    IN_NAME,
]
JudgeOption = Annotated[str | None, typer.Option("--judge", help="Model that scores."), IN_NAME]
JudgePromptsOption = Annotated[
    str | None,
    typer.Option(
        "--judge-prompts",
        help="Prompt pack that the judge is asked in, by name (configs/prompts) or folder: for a ranker, the one it learnt.",
    ),
    IN_NAME,
]
CardsOption = Annotated[
    list[Path] | None, typer.Option("--cards", help="Role cards: our JSONL, or ESC-Eval's published card_high_*.json."), IN_FILE
]
LimitOption = Annotated[int | None, typer.Option("--limit", help="At most this many cards (or profiles) a language.")]
LanguageOption = Annotated[str | None, typer.Option("--language", help="en or zh; without it, those of the config.")]
ProfilesOption = Annotated[
    list[Path] | None, typer.Option("--profiles", help="Profiles (EmoHarbor): our JSONL, or SAGE's file."), IN_FILE
]
ModeOption = Annotated[
    str | None, typer.Option("--mode", help="paper: as published, odd parts included. native: as we would do it.")
]
WandbOption = Annotated[
    bool, typer.Option("--wandb", help="Log the report's tables and plots to Weights & Biases (offline without a key).")
]
AgainstOption = Annotated[
    str | None, typer.Option("--against", metavar="paper|emoharbor|feel", help="A paper's figures beside ours.")
]
FailOnErrorOption = Annotated[
    float | None,
    typer.Option(
        "--fail-on-error",
        metavar="SHARE|N",
        help="End the run early when this many dialogues have failed: a share (below 1) or a number. Default: at the first "
        "401, 403 or 404, and when the first 20 calls to a model were all rejected.",
    ),
]
RetryOption = Annotated[
    str | None,
    typer.Option(
        "--retry",
        metavar="KIND,…",
        help="Ask stored answers of these kinds again: empty, refusal, length (cut off), unreadable (no verdict). An answer is "
        "drawn again only where it is asked for by name like this, by any model: the old one stays in the store, the new one "
        "counts, what follows it is asked anew, and the report says how many there were. At temperature 0 many servers say "
        "the same again.",
    ),
]
EndpointOption = Annotated[
    list[str] | None, typer.Option("--endpoint", metavar="NAME=URL", help="A server that is already up for a model.")
]


def endpoints_of(given: Sequence[str] | None) -> dict[str, str]:
    """What --endpoint says: model name → base URL."""
    found = {}
    for pair in given or []:
        name, _, url = pair.partition("=")
        if problem := problem_of(url):
            raise UserError(f"--endpoint {name}: {problem}")
        if not url.startswith(("http://", "https://")):
            raise UserError(f"--endpoint {pair!r}: expected NAME=http://HOST:PORT/v1")
        found[name] = url
    return found


def resolve(
    config: Path,
    endpoints: Sequence[str] | None = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
    *,
    cards: Sequence[Path] | None = None,
    profiles: Sequence[Path] | None = None,
    language: str | None = None,
    **overrides: Any,
) -> Resolved:
    """The config with what the command line overrides (None: not given); errors name the option."""
    overrides |= {
        "cards": [str(path) for path in cards] if cards else None,
        "profiles": [str(path) for path in profiles] if profiles else None,
        "languages": [language] if language else None,
    }
    loaded = load_config(config, overrides)
    if loaded.shard and "shard" not in overrides:
        raise UserError(f"{config}: shard: only run, simulate and score do a part of the work (--shard I/N): leave it out here")
    loaded.endpoints.update(endpoints_of(endpoints))
    if base_url is not None and (problem := problem_of(base_url)):
        raise UserError(f"--base-url: {problem}")
    if base_url is not None and not base_url.startswith(("http://", "https://")):
        raise UserError(f"--base-url {base_url!r}: expected http://HOST:PORT/v1")
    if base_url is not None and len(loaded.supporters) != 1:
        raise UserError("--base-url is the address of one supporter: name it with one --supporter")
    return resolve_config(loaded, base_url, api_key_env)
