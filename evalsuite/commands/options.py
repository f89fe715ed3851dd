"""Options that several verbs share, and what becomes of them: a config file with overrides, resolved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from core.addresses import url_problem
from core.errors import UserError
from core.options import choice
from core.paths import InFile, InFiles, MaybeFiles, MaybeModel, MaybeModels, MaybeName, Reads, Writes, check_config
from core.rubrics import Rubric
from evalsuite.report.gates import Gates
from evalsuite.runs.config import EvalConfig, load_config
from evalsuite.runs.people import PEOPLE
from evalsuite.runs.resolved import Resolved, resolve_config
from evalsuite.statistics.summary import Value

RECORDS = (
    *(*PEOPLE, "dialogues.jsonl", "judgements.jsonl", "turn_judgements.jsonl"),
    *("gold_dialogues.jsonl", "gold_scores.jsonl", "gold_judgements.jsonl"),
)
# What is read of a run folder, and what a run writes over in one (store, config and what is told of a run in JSON only grow).
IN_RUN = Reads(
    "folder",
    (
        *(*RECORDS, "config.json", "usage.json", "timing.json", "agreement.json"),
        *("costs.jsonl", "health_dialogues.jsonl", "health_judgements.jsonl"),
    ),
    made="`esc-eval run --config CONFIG --out {path}` makes a run",
)
InRun = Annotated[Path, IN_RUN]
InRuns = Annotated[list[Path], IN_RUN]
MaybeRun = Annotated[Path | None, IN_RUN]
MaybeRuns = Annotated[list[Path] | None, IN_RUN]
OUT_RUN = Writes((*RECORDS, "agreement.json", "report.*", "tables/*", "judges/*/*"))


def out_tables(name: str, *more: str) -> Writes:
    """The folder of `deliver`: NAME.json, every table as CSV, and what else a verb writes there."""
    return Writes((f"{name}.json", "*.csv", *more))


def out_page(name: str, *more: str) -> Writes:
    """The folder of `deliver_page`: the page NAME.html, the same as JSON and Markdown, tables/, and what else a verb writes
    there."""
    return Writes((f"{name}.*", "tables/*", *more))


_LIMITS = "Limits"
_SERVERS = "Servers that are started"
_GATES = "Gates for CI (JUnit's XML beside the report)"


def _setting(field: str, *names: str, panel: str | None = None, metavar: str | None = None) -> Any:
    """The option of a run's config field, explained by the field's own text."""
    return typer.Option(*names, help=EvalConfig.model_fields[field].description, metavar=metavar, rich_help_panel=panel)


OutOption = Annotated[
    str | None, typer.Option("--out", help="Run folder. The same command resumes; one that asks for more grows it."), OUT_RUN
]
ResumedOption = Annotated[str, typer.Option("--out", help="Run folder. The same folder and command resume.")]
MaybeResumedOption = Annotated[str | None, typer.Option("--out", help="Run folder. The same folder and command resume.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Set any field of the config, as YAML: --set exchanges=3 --set gold.limit=5. Repeat for more.",
    ),
]
_MODELS = "Models: a name in configs/models, a spec file, or NAME@URL (NAME@URL#VARIABLE: with the key in that variable)"
SupporterOption = Annotated[
    MaybeModels,
    typer.Option("--supporter", metavar="MODEL", help="Model under test. Repeat for more.", rich_help_panel=_MODELS),
]
JudgeOption = Annotated[MaybeModel, _setting("judge", "--judge", panel=_MODELS, metavar="MODEL")]
JudgePromptsOption = Annotated[MaybeName, _setting("judge_prompts", "--judge-prompts")]
LanguageOption = Annotated[str | None, typer.Option("--language", help="en or zh; without it, those of the config.")]
JudgedByOption = Annotated[
    str | None, typer.Option("--judge", help="Whose verdicts: a judge of the run. Needed where several scored it.")
]
ModeOption = Annotated[str | None, _setting("mode", "--mode")]
WandbOption = Annotated[
    bool, typer.Option("--wandb", help="Log the report's tables and plots to Weights & Biases (offline without a key).")
]
AgainstOption = Annotated[
    str | None, typer.Option("--against", metavar="paper|emoharbor|feel", help="A paper's figures beside ours.")
]
HarbourOption = Annotated[str | None, typer.Option("--against", metavar="emoharbor", help="The paper's figures below ours.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the figures as JSON, and nothing else.")]
TablesOption = Annotated[  # with `out_tables(…)`
    Path | None, typer.Option("--out", help="Folder for the figures as JSON and every table as CSV.")
]
PageOption = Annotated[  # with `out_page(…)`
    Path | None,
    typer.Option("--out", help="Folder for a page with charts, the same as JSON and Markdown, and the tables as CSV."),
]
DialoguesOption = Annotated[MaybeFiles, typer.Option("--dialogues", help="Dialogue records (JSONL). Repeat for more.")]
GoldOption = Annotated[
    InFiles,
    typer.Option(
        "--gold",
        help="HumanScore records (JSONL, or CSV with its columns), or a run folder for its gold set. Annotators are averaged. "
        "Repeat for more.",
    ),
]
PeopleOption = Annotated[
    MaybeFiles,
    typer.Option(
        "--gold",
        help="People's scores (HumanScore records, JSONL or CSV with their columns): a leaderboard by people. Repeat for more.",
    ),
]
LabelsOption = Annotated[
    MaybeFiles,
    typer.Option(
        "--people",
        help="People's scores of some of the dialogues (as for --gold, or a study's export folder): judge alone, people alone "
        "and both side by side, and how many labels the judge saves. Repeat for more.",
    ),
]
OwnRubricOption = Annotated[
    MaybeFiles, typer.Option("--rubric", help="Rubric file of your own that people's scores name. Repeat for more.")
]
AnnotatorOption = Annotated[
    list[str] | None, typer.Option("--annotator", help="Only the scores that this annotator gave. Repeat for more.")
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="card|dialogue|FIELD",
        help="What intervals and tests draw whole: a card (profile, source item) with all its dialogues, which is the default; "
        "each dialogue by itself; all dialogues that are equal in a field of their record.",
    ),
]
ValueOption = Annotated[
    str, typer.Option(help="value: the verdicts. expected: their means by the judge's token probabilities.")
]
EndpointOption = Annotated[
    list[str] | None,
    typer.Option(
        "--endpoint",
        metavar="NAME=URL",
        help="Where a model that the config names answers already, in all its roles, so that no server is started for it.",
        rich_help_panel=_MODELS,
    ),
]


def value_of(text: str) -> Value:
    """What --value says."""
    return choice("--value", text, get_args(Value))


@dataclass(kw_only=True)
class RunOptions:
    """What run, simulate and score share: a config and what the command line overrides of it (None: not given)."""

    config: Annotated[InFile, typer.Option("--config", help="What to run; see configs/eval. Options below override it.")]
    profiles: Annotated[MaybeFiles, typer.Option("--profiles", help="Profiles (EmoHarbor): our JSONL, or SAGE's file.")] = None
    language: LanguageOption = None
    mode: ModeOption = None
    model: Annotated[MaybeModel, _setting("model", "--model", panel=_MODELS, metavar="MODEL")] = None
    endpoint: EndpointOption = None
    concurrency: Annotated[int | None, _setting("concurrency", "--concurrency", metavar="N", panel=_LIMITS)] = None
    fail_on_error: Annotated[float | None, _setting("fail_on_error", "--fail-on-error", metavar="SHARE|N")] = None
    retry: Annotated[
        str | None,
        typer.Option(
            "--retry",
            metavar="KIND,…",
            help="Ask stored answers of these kinds again: empty, refusal, length (cut off), context_overflow, unreadable (no "
            "verdict). They are drawn again only where they are asked for by name like this, by any model: the old one stays "
            "in the store, the new one counts, what follows it is asked anew, and the report says how many there were. At "
            "temperature 0 many servers say the same again.",
        ),
    ] = None
    call_timeout: Annotated[str | None, _setting("call_timeout", metavar="TIME", panel=_LIMITS)] = None
    attempts: Annotated[int | None, _setting("attempts", metavar="N", panel=_LIMITS)] = None
    patience: Annotated[str | None, _setting("patience", metavar="TIME", panel=_LIMITS)] = None
    max_time: Annotated[str | None, _setting("max_time", metavar="TIME", panel=_LIMITS)] = None
    max_calls: Annotated[int | None, _setting("max_calls", metavar="N", panel=_LIMITS)] = None
    max_cost: Annotated[float | None, _setting("max_cost", metavar="SUM", panel=_LIMITS)] = None
    shard: Annotated[str | None, _setting("shard", "--shard", metavar="I/N")] = None
    plan: Annotated[
        bool,
        typer.Option("--plan", rich_help_panel=_SERVERS, help="Print which servers run where and what they take; end."),
    ] = False
    gpus: Annotated[
        str | None,
        typer.Option(
            metavar="GB,…", rich_help_panel=_SERVERS, help="With --plan: for a machine with these GPUs (80,80 or 2x80)."
        ),
    ] = None
    phases: Annotated[bool | None, _setting("phases", "--phases/--no-phases", panel=_SERVERS)] = None
    start_timeout: Annotated[str | None, _setting("start_timeout", metavar="TIME", panel=_SERVERS)] = None
    out: OutOption = None

    def resolved(self) -> list[Resolved]:
        """The config with its overrides, resolved, with each of the judges."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("retry", "plan", "gpus"):
            del values[name]
        values["supporters"] = values.pop("supporter", None)
        judges = values.pop("judge", None) or [None]
        config, endpoint = values.pop("config"), values.pop("endpoint")
        return [resolve(config, endpoint, **values, **({"judge": judge} if judge else {})) for judge in judges]


@dataclass(kw_only=True)
class SimulateOptions(RunOptions):
    """What decides the dialogues."""

    supporter: SupporterOption = None
    seeker: Annotated[MaybeModel, _setting("seeker", "--seeker", panel=_MODELS, metavar="MODEL")] = None
    temperature: Annotated[float | None, _setting("temperature", "--temperature", panel=_MODELS)] = None
    max_tokens: Annotated[int | None, _setting("max_tokens", "--max-tokens", metavar="N", panel=_MODELS)] = None
    prompts: Annotated[MaybeName, _setting("prompts", "--prompts")] = None
    cards: Annotated[
        MaybeFiles, typer.Option("--cards", help="Role cards: our JSONL, or ESC-Eval's published card_high_*.json.")
    ] = None
    limit: Annotated[int | None, _setting("limit", "--limit", metavar="N")] = None
    trials: Annotated[int | None, _setting("trials", "--trials", metavar="N")] = None
    floors: Annotated[bool | None, _setting("floors", "--floors/--no-floors")] = None
    references: Annotated[MaybeFiles, _setting("references", "--references")] = None


@dataclass(kw_only=True)
class ScoreOptions(RunOptions):
    """What decides the judgements."""

    judge: Annotated[
        MaybeModels,
        typer.Option("--judge", metavar="MODEL", help="Model that scores. Repeat for more.", rich_help_panel=_MODELS),
    ] = None
    judge_prompts: JudgePromptsOption = None


@dataclass(kw_only=True)
class WholeRunOptions(SimulateOptions, ScoreOptions):
    """What decides both."""

    replay: Annotated[MaybeName, _setting("replay", "--replay", metavar="RUN")] = None
    until: Annotated[str | None, _setting("until", "--until", metavar="decided", panel=_LIMITS)] = None


@dataclass(kw_only=True)
class GateOptions:
    """What a run must reach in CI; nothing of it is part of the run."""

    fail_under: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIMENSION=SCORE",
            help="Exit code 1 where a model's mean on 0–100 is below this: average=60. Repeat for more.",
            rich_help_panel=_GATES,
        ),
    ] = None
    fail_if_worse: Annotated[
        MaybeRun,
        typer.Option(
            metavar="RUN",
            help="Exit code 1 where a model's average is worse than in this run by a difference that holds.",
            rich_help_panel=_GATES,
        ),
    ] = None

    def parse(self, rubric: Rubric, judge: str | None) -> Gates | None:
        """The gates, if there are any, for the verdicts of a judge. Raises `UserError` as `Gates.parse` does."""
        return Gates.parse(self.fail_under or [], self.fail_if_worse, rubric, judge)


def grouped(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with every parameter that is a dataclass of options written out on the command line.

    What is required comes first, then what a class adds to the classes that it derives from.
    """
    hints = get_type_hints(verb, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: dict[str, Parameter] = {}
    for name, parameter in signature(verb).parameters.items():
        if name not in groups:
            parameters[name] = parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[name])
            continue
        members, types = signature(groups[name]).parameters, get_type_hints(groups[name], include_extras=True)
        classes = groups[name].__mro__[-2::-1]  # the one that all derive from comes first
        added = {field: -depth for depth, group in enumerate(classes) for field in vars(group).get("__annotations__", ())}
        for field in sorted(members, key=lambda field: (members[field].default is not Parameter.empty, added[field])):
            parameters[field] = members[field].replace(annotation=types[field])

    def spread(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        verb(**values)

    spread.__name__, spread.__doc__, spread.__module__ = verb.__name__, verb.__doc__, verb.__module__
    spread.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    spread.__signature__ = Signature(list(parameters.values()))  # type: ignore[attr-defined]
    return spread


def endpoints_of(pairs: Sequence[str] | None) -> dict[str, str]:
    """What --endpoint says: model name → base URL."""
    endpoints = dict[str, str]()
    for pair in pairs or []:
        name, _, url = pair.partition("=")
        if problem := url_problem(url):
            raise UserError(f"--endpoint {name}: {problem}" if url else f"--endpoint {pair}: write NAME=http://HOST:PORT/v1")
        if endpoints.get(name, url) != url:
            raise UserError(f"--endpoint {name}: given twice, as {endpoints[name]} and {url}: keep one")
        endpoints[name] = url
    return endpoints


def resolve(
    config: Path,
    endpoints: Sequence[str] | None = None,
    *,
    language: str | None = None,
    **overrides: Any,
) -> Resolved:
    """The config with what the command line overrides (None: not given); errors name the option."""
    for name in ("cards", "profiles", "references"):
        overrides[name] = [str(path) for path in overrides.get(name) or ()] or None
    overrides["languages"] = [language] if language else None
    loaded = load_config(config, overrides)
    if loaded.shard and "shard" not in overrides:
        raise UserError(f"{config}: shard: only run, simulate and score do a part of the work (--shard I/N): leave it out here")
    loaded.endpoints.update(endpoints_of(endpoints))
    if overrides.get("until") and overrides.get("limit") is None:
        loaded.limit = None  # the config's is that of a run of a fixed size
    if overrides.get("model") and loaded.seeker and loaded.judge and loaded.supporters:
        raise UserError(f"--model: {config} names a model for every role: use --supporter, --seeker and --judge")
    resolved = resolve_config(loaded)
    if loaded.out is None:
        loaded.out = str(resolved.out)
        check_config(loaded)
    return resolved
