"""Options that several verbs share, and the config that a run's options resolve to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from core.endpoints import record_name
from core.errors import UserError
from core.files import digest, read_text
from core.languages import check_language
from core.paths import InFiles, MaybeFiles, MaybeModel, MaybeModels, Reads, Writes, check_config
from core.records import RoleCard
from core.settings import fields_set
from core.specs import prompt_file
from data_prep.profiles import Profile
from evalsuite.runs.config import EvalConfig, load_config
from evalsuite.runs.dialogue_framework import DialogueFramework, resolve_config
from evalsuite.runs.people import PEOPLE, languages_with

RECORDS = (
    *(*PEOPLE, "dialogues.jsonl", "judgements.jsonl", "turn_judgements.jsonl"),
    *("gold_dialogues.jsonl", "gold_scores.jsonl", "gold_judgements.jsonl"),
)
# The files that verbs read in a run folder. A run replaces those of `OUT_RUN`; store, config and JSON files about the run only
# grow.
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
    """The folder of `deliver`: NAME.json, every table as CSV, and `more` files of the verb."""
    return Writes((f"{name}.json", "*.csv", *more))


def out_page(name: str, *more: str) -> Writes:
    """The folder of `deliver_page`: NAME.html, the same as JSON and Markdown, tables/, and `more` files of the verb."""
    return Writes((f"{name}.*", "tables/*", *more))


def setting(field: str, *names: str, panel: str | None = None, metavar: str | None = None) -> Any:
    """An option for a field of a run's config, with the field's description as help."""
    return typer.Option(*names, help=EvalConfig.model_fields[field].description, metavar=metavar, rich_help_panel=panel)


OutOption = Annotated[
    str | None, typer.Option("--out", help="Run folder. The same command resumes; a larger one extends the run."), OUT_RUN
]
MaybeResumedOption = Annotated[str | None, typer.Option("--out", help="Run folder. The same folder and command resume.")]
MODELS = "Models: a name in configs/models, a spec file, or NAME@URL (NAME@URL#VARIABLE: the key is in that variable)"
SupporterOption = Annotated[
    MaybeModels,
    typer.Option("--supporter", metavar="MODEL", help="Model under test. Repeat for more.", rich_help_panel=MODELS),
]
RoleModelOption = Annotated[MaybeModel, setting("model", "--model", panel=MODELS, metavar="MODEL")]
CardsOption = Annotated[
    MaybeFiles,
    typer.Option(
        "--cards",
        help="Role cards: your own sheet (CSV, XLSX, JSON with a column `problem`), our JSONL, or ESC-Eval's card_high_*.json.",
    ),
]
LanguageOption = Annotated[
    str | None,
    typer.Option("--language", help="Only this language (en, zh, de, pt-BR). Default: those of the config, or of your cards."),
]
JudgedByOption = Annotated[
    str | None, typer.Option("--judge", help="Use the verdicts of this judge; required if several scored the run.")
]
ModeOption = Annotated[str | None, setting("mode", "--mode")]
AgainstOption = Annotated[
    str | None, typer.Option("--against", metavar="paper|emoharbor|feel", help="Show a paper's figures next to ours.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print only the figures, as JSON.")]
PageOption = Annotated[  # with `out_page(…)`
    Path | None,
    typer.Option("--out", help="Folder for a page with charts, the same as JSON and Markdown, and the tables as CSV."),
]
DialoguesOption = Annotated[MaybeFiles, typer.Option("--dialogues", help="Dialogue records (JSONL). Repeat for more.")]
GoldOption = Annotated[
    InFiles,
    typer.Option(
        "--gold",
        help="People's scores: HumanScore records (JSONL, or CSV with their columns), or a run folder for its gold set. "
        "Annotators are averaged. Repeat for more.",
    ),
]
PeopleOption = Annotated[
    MaybeFiles,
    typer.Option(
        "--gold",
        help="People's scores (HumanScore records, JSONL or CSV with their columns), for a leaderboard by people. Repeat for "
        "more.",
    ),
]
OwnRubricOption = Annotated[
    MaybeFiles, typer.Option("--rubric", help="Your own rubric file, if people's scores are on it. Repeat for more.")
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="card|dialogue|FIELD",
        help="The unit that intervals and tests resample. card (default): all dialogues of a card, profile or source item. "
        "dialogue: each dialogue by itself. FIELD: all dialogues with the same value in this field of their records.",
    ),
]


def refuse(why: str, **options: object) -> None:
    """Raise `UserError` for the first of these options that was given; `why` says why it has no meaning here."""
    for name, value in options.items():
        if value:
            raise UserError(f"--{name.replace('_', '-')}: {why}")


def _variants(prompts: Sequence[str]) -> dict[str, dict[str, str]] | None:
    """The prompts of `--system` as variants, named after the file or a text's hash; `-` is standard input."""
    variants: dict[str, dict[str, str]] = {}
    for prompt in prompts:
        if prompt == "-" or prompt.startswith("/dev/"):  # can be read once, and `<(program)` of a shell has no name
            prompt = read_text(Path("/dev/stdin" if prompt == "-" else prompt), "system prompt")
        file, own = prompt_file(prompt), f"system-{digest(prompt, 6)}"
        name = record_name(file.stem, own)[:50] if file else own
        if name in variants:
            raise UserError(f"--system {prompt}: two prompts are named {name}: rename one of the files")
        variants[name] = {"system": prompt}
    return variants or None


def resolve(
    config: Path,
    settings: Sequence[str] | None = None,
    *,
    language: str | None = None,
    system: Sequence[str] | None = None,
    dialogues: Sequence[Path] = (),
    **overrides: Any,
) -> DialogueFramework:
    """The config with the changes from the command line; None is an option that was not given, and errors name the option.
    Without --language, cards, profiles and `dialogues` may bring languages of their own (`languages_with`)."""
    settings = settings or ()
    for name in ("cards", "profiles", "references"):
        overrides[name] = [str(path) for path in overrides.get(name) or ()] or None
    overrides["languages"] = [check_language("--language", language)] if language else None
    overrides["variants"] = _variants(system or ())
    loaded = load_config(config, overrides, settings)
    if loaded.shard and "shard" not in overrides:
        raise UserError(f"{config}: shard: only `esc-eval run` works on shards (--shard I/N): leave it out here")
    if overrides.get("until") and overrides.get("limit") is None and "limit" not in fields_set(settings):
        loaded.limit = None  # the config's limit is for a run of fixed size
    if overrides.get("model") and loaded.seeker and loaded.judge and loaded.supporters:
        raise UserError(f"--model: {config} names a model for every role: use --supporter, --seeker and --judge")
    resolved = resolve_config(loaded)
    if not language and "languages" not in fields_set(settings):
        people: dict[type[Any], Sequence[str]] = {RoleCard: overrides["cards"] or (), Profile: overrides["profiles"] or ()}
        given = [given for path in dialogues if path.exists() for given in resolved.given_dialogues(path, True).dialogues]
        loaded.languages = languages_with(loaded.languages, people, given, resolved._read)
    if loaded.out is None:
        loaded.out = str(resolved.out)
        check_config(loaded)
    return resolved
