"""`cards`: role cards of your own (import, template), or from corpora (extract), sorted by a model (label). `profiles`: seekers
for EmoHarbor, which a model builds from questionnaires or role cards (build)."""

from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

import typer

from core.errors import UserError, near
from core.files import CONFIGS, check_unique
from core.languages import check_language, in_order
from core.ledger import Build, BuildStep
from core.options import ModelIfAnyOption, ModelOption, OutOption, SeedOption, SourceOption, console, name_and_value, writes
from core.paths import IN_FILE, IN_NAME, OUT_FILE
from core.people_tables import table_lines
from core.prompts import load_pack
from core.records import Language, Post, RoleCard, SupportDialogue
from core.specs import EMBEDDED_PREFIX, load_spec
from core.tables import to_console
from core.verbs import Verbs
from data_prep.cards import cardless, load_cards
from data_prep.cards import llm as card_llm
from data_prep.cards.heuristic import heuristic_card
from data_prep.cards.sheets import write_csv, write_xlsx
from data_prep.profiles import build as profile_build
from data_prep.profiles.build import load_seeds
from data_prep.profiles.check import check_profiles, table
from data_prep.profiles.record import load_vocabulary
from data_prep.sources import draw, parse_places, read_source, source_at, wanted_items
from serve.batch import Batch

app = Verbs(no_args_is_help=True, help="Role cards: your own (import, template), or by a model (extract, label).")
CardsOption = Annotated[
    Path,
    typer.Option("--cards", help="Role cards: our JSONL, your own sheet, or a JSON file that ESC-Eval published."),
    IN_FILE,
]
CARDS, CARDS_SHEET, DROPPED, UNREADABLE, CALLS = "cards.jsonl", "cards.csv", "dropped.jsonl", "unreadable.jsonl", "calls.sqlite"


@app.command("import")
def import_cards(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Your own role cards: CSV, TSV, XLSX, JSON or JSON lines with a column problem."),
        IN_FILE,
    ],
    out: Annotated[OutOption, writes(CARDS)],
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="OURS=YOURS",
            help="Which column holds a field: problem=Situation; none=Notes leaves one out. Repeat for more.",
        ),
    ] = None,
    language: Annotated[
        str | None, typer.Option("--language", help="The language of cards that name none (default: en).")
    ] = None,
) -> None:
    """Make role cards from a sheet with column names of your own. All problems of the file are reported at once.

    With our names (see `cards template`), `esc-eval run --cards FILE` reads such a file without this step. Example:

    esc-data cards import cards.xlsx --map problem=Situation --map age=Alter --language de --out runs/cards
    """
    pairs = (name_and_value("--map", text, "OURS=YOURS, as in problem=Situation") for text in columns or ())
    language = check_language("--language", language) if language else None
    cards = load_cards(file, language, {column: field for field, column in pairs})
    build = Build(out, "cards import", settings={"language": language, "map": columns})
    build.input(file)
    build.step("cards", len(cards))
    build.write(CARDS, cards)
    build.finish(console)


@app.command()
def template(
    out: Annotated[Path, typer.Option("--out", help="The file: .csv, or .xlsx for a spreadsheet."), OUT_FILE] = Path(
        CARDS_SHEET
    ),
) -> None:
    """Write a sheet with four role cards, to be replaced by your own: only the column problem has to be filled in."""
    if out.suffix.lower() not in (".csv", ".xlsx"):
        raise UserError(f"--out {out}: name a .csv or .xlsx file")
    if out.exists():
        raise UserError(f"--out {out}: the file exists and is not replaced: choose another name")
    (_, header), *rows = table_lines(CONFIGS / "init" / CARDS_SHEET)
    records = [dict(zip(header, cells, strict=True)) for _, cells in rows]
    if out.suffix.lower() == ".xlsx":
        write_xlsx(out, "cards", header, records)
    else:
        write_csv(out, header, records)
    console.print(f"written: {out}\nesc-eval run --config CONFIG --cards {quote(str(out))}", soft_wrap=True)


@app.command()
def extract(
    source: SourceOption,
    out: Annotated[OutOption, writes(CARDS, UNREADABLE)],
    model: ModelIfAnyOption = None,
    limit: Annotated[
        str | None,
        typer.Option(
            "--limit",
            metavar="N|FILE",
            help="At most this many items per corpus, or a YAML file with a number for each (configs/data/table5.yaml).",
        ),
        IN_NAME,
    ] = None,
    seed: SeedOption = 0,
) -> None:
    """Make role cards from corpora: written by a model or, without --model, taken from the corpus's own fields (heuristic).

    Writes OUT/cards.jsonl and unreadable.jsonl (the raw text of replies that are no card). Calls are kept in
    OUT/calls.sqlite: the same command again resumes, and no call is made twice. Example:

    python -m data_prep cards extract --source esconv=DIR --model gpt-4 --limit configs/data/table5.yaml --out runs/extract
    """
    places = parse_places(source)
    wanted = wanted_items(list(places), limit)
    settings: dict[str, Any] = {"method": "llm" if model else "heuristic", "model": model, "quotas": wanted}
    build = Build(out, "cards extract", seed, settings)
    if limit and not limit.isdecimal():
        build.input(Path(limit))
    items: list[SupportDialogue | Post] = []
    for name, place in places.items():
        if source_at(name, place).kind == "role_play":
            raise UserError(f"--source {name}: a role-play corpus has no seeker; cards come from support dialogues and posts")
        available = [item for item in read_source(name, place, build, console) if isinstance(item, SupportDialogue | Post)]
        items += draw(available, wanted[name], seed, name, build.step(f"sample {name}"))
        if (short := (wanted[name] or 0) - len(available)) > 0:
            console.print(f"{name}: {short} short of {wanted[name]}")
    steps = steps_of(build, "extract", (item.language for item in items))
    if model is None:
        cards = [card for item in items for card in steps[item.language].make([item], heuristic_card)]
        build.write(CARDS, cards)
        build.finish(console)
        for name in places:
            if name not in {card.source for card in cards}:
                console.print(cardless(name, places[name]), soft_wrap=True)
        return
    settings["prompts"] = load_pack(card_llm.PACK).fingerprint()  # edited prompts give other cards
    with batch_of(model, out) as batch:
        _finish(build, *card_llm.extract(items, batch, steps))


@app.command()
def label(
    cards: CardsOption,
    model: ModelOption,
    out: Annotated[OutOption, writes("*")],
    only: Annotated[
        Literal["event", "category"] | None,
        typer.Option("--only", help="Ask only one question: does a card tell of an event, or which category is it?"),
    ] = None,
) -> None:
    """Ask a model whether each card tells of an event, drop those with feelings only (figure 8), and categorise the others.

    The category is asked at level 1, then at level 3 among its leaves; a card with an unreadable answer keeps its earlier
    category. Writes OUT/cards.jsonl, unreadable.jsonl (replies that are no answer, with the card's id) and, for the question
    on events, dropped.jsonl and verdicts.jsonl (with probabilities). Calls are kept in OUT/calls.sqlite: the same command again
    asks only what is missing. Example:

    python -m data_prep cards label --cards runs/extract/cards.jsonl --model gpt-4 --out runs/label
    """
    kept = load_cards(cards)
    build = Build(
        out, "cards label", settings={"model": model, "prompts": load_pack(card_llm.PACK).fingerprint(), "only": only}
    )
    build.input(cards)
    unread: list[card_llm.Unread] = []
    with batch_of(model, out) as batch:
        if only != "category":
            steps = steps_of(build, "filter", (card.language for card in kept))
            kept, dropped, verdicts, unread = card_llm.filter_cards(kept, batch, steps)
            build.write(DROPPED, dropped)
            build.write("verdicts.jsonl", verdicts)
        if only != "event":
            levels = {level: build.step(f"level {level}") for level in (1, 3)}
            kept, unsorted = card_llm.categorise(kept, batch, levels)
            unread += unsorted
    _finish(build, kept, unread)


def steps_of(build: Build, stage: str, languages: Any) -> dict[Language, BuildStep]:
    """A step for each language that occurs; `check` finds stages by these names."""
    return {language: build.step(f"{stage} {language}") for language in in_order(languages)}


def batch_of(model: str, out: Path, subject: str = "cards") -> Batch:
    """A batch of calls to a model that writes cards (or another subject), stored in `out`."""
    spec = load_spec(model)
    if (spec.checkpoint or "").startswith(EMBEDDED_PREFIX):
        console.print(f"Plumbing: the output of the embedded 135M model says nothing about {subject}.")
    return Batch(spec, out / CALLS, console)


def _finish(build: Build, cards: list[RoleCard], unread: list[card_llm.Unread]) -> None:
    build.write(CARDS, cards)
    build.write(UNREADABLE, unread)
    build.finish(console)
    exit_if_silent(unread)


def exit_if_silent(unread: list[card_llm.Unread]) -> None:
    """Exit with code 1 if a server did not answer: the output is incomplete, and `&&` should not continue with it."""
    silent = sum(reply.reason in card_llm.UNANSWERED.values() for reply in unread)
    if silent:
        console.print(f"{silent} without an answer: run the same command again to ask them")
        raise typer.Exit(1)


profiles_app = Verbs(no_args_is_help=True, help="Profiles of seekers (EmoHarbor section 2.1): build.")
PROFILES, REJECTED, UNBUILT = "profiles.jsonl", "rejected.jsonl", "unbuilt.jsonl"


@profiles_app.command("build")
def build_profiles(
    out: Annotated[OutOption, writes(PROFILES, REJECTED, UNBUILT)],
    model: ModelOption,
    seeds: Annotated[
        list[Path],
        typer.Option(
            "--seeds",
            help="Filled-in questionnaires, JSONL (data_prep/bundled/questionnaire.jsonl), or role cards. Repeat for more.",
        ),
        IN_FILE,
    ],
) -> None:
    """Make a profile from every questionnaire or role card in the paper's four steps (appendix B), then let the model review
    it.

    Writes OUT/profiles.jsonl, rejected.jsonl (inconsistent according to the review) and unbuilt.jsonl (the raw text of
    unreadable replies), and prints what the checks find. Calls are kept in OUT/calls.sqlite: the same command again asks only
    what is missing. The next step is `sheet export --profiles`. Example:

    python -m data_prep profiles build --seeds data_prep/bundled/questionnaire.jsonl --model gpt-4 --out runs/profiles
    """
    people = [seed for path in seeds for seed in load_seeds(path)]
    check_unique("--seeds", (seed.id for seed in people), "ids")
    keys = load_vocabulary().keys
    for seed in people:
        if seed.topic and seed.topic not in keys:
            raise UserError(f"seed {seed.id}: topic: unknown kind of problem {seed.topic!r}: {near(seed.topic, keys)}")
    prompts = load_pack(profile_build.PACK).fingerprint()
    settings = {"model": model, "temperature": profile_build.TEMPERATURE, "prompts": prompts}
    ledger = Build(out, "profiles build", settings=settings)
    ledger.input(*seeds)
    steps = {name: ledger.step(name) for name in profile_build.STEPS}
    with batch_of(model, out, "people") as batch:
        kept, rejected, unbuilt = profile_build.build(people, batch, steps)
    ledger.write(PROFILES, kept)
    ledger.write(REJECTED, rejected)
    ledger.write(UNBUILT, unbuilt)
    ledger.finish(console)
    to_console(table(check_profiles(kept), len(kept)), console)
    exit_if_silent(unbuilt)
