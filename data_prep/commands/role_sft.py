"""`role-sft` builds the simulator's training set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from core.errors import UserError, need_modules
from core.files import CONFIGS, validated
from core.ledger import Build
from core.options import OutIfAnyOption, SeedOption, SetOption, SourceIfAnyOption, console, writes
from core.paths import IN_FILE, IN_NAME, IN_PLACES
from core.rows import CorpusItem
from core.settings import with_settings
from core.tables import Table, to_console
from core.yaml_files import read_yaml
from data_prep.cards import bundled_cards, cardless, load_cards
from data_prep.role_play.held_out import check_source
from data_prep.role_play.mix import (
    STEPS,
    STEPS_HELD,
    RoleSet,
    RoleSftConfig,
    build_set,
    check_quotas,
    prospects,
)
from data_prep.role_play.outputs import as_read, write_data_card, write_dataset
from data_prep.sources import SOURCES, parse_places, read_source, source_at

CONFIG = CONFIGS / "data" / "role_sft.yaml"
DATASET = "dataset"


def role_sft(
    source: SourceIfAnyOption = None,
    out: Annotated[
        OutIfAnyOption, writes("*.jsonl", "README.md", f"{DATASET}/*", f"{DATASET}/train/*", f"{DATASET}/valid/*")
    ] = None,
    config: Annotated[Path, typer.Option(help="The mix: quotas, length cap, prompts, tokenizer."), IN_FILE] = CONFIG,
    cards: Annotated[
        list[Path] | None,
        typer.Option(help="Role cards made from these corpora; they win over heuristic ones."),
        IN_FILE,
    ] = None,
    eval_cards: Annotated[
        list[str] | None, typer.Option(help="Cards that evaluation uses: card files, or `bundled`. Repeat for more."), IN_NAME
    ] = None,
    valid_source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PLACE",
            help="A corpus to hold out whole: its dialogues are valid.jsonl, and what repeats one of them is not trained on.",
        ),
        IN_PLACES,
    ] = None,
    settings: SetOption = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only say what each quota asks for and what its corpus can give; needs no data.")
    ] = False,
    seed: SeedOption = 0,
) -> None:
    """Build the role-play training set: support dialogues with their cards and general role play, by quota.

    Writes train.jsonl and valid.jsonl, the same as a `datasets` folder, a data card (README.md), each evaluation card's best
    match before the drop (links.jsonl), and the manifest. What an evaluation card may have been made from is taken out: give
    the published cards with --eval-cards to train a simulator that will play them. With --valid-source nothing is held out at
    random: all dialogues of that corpus are valid.jsonl, on cards that do not sum up the lines that are scored.

    With --plan nothing is read or written: the table says whether the quotas can be met, and the exit code is 1 if not.
    """
    places, held_places = parse_places(source or []), parse_places(valid_source or [], "--valid-source")
    for name in held_places:
        check_source(name)
    mix = read_yaml(config, RoleSftConfig, "role-play mix")
    mix = validated(RoleSftConfig, with_settings(mix.model_dump(), settings or [], RoleSftConfig), "--set")
    check_quotas(mix, config, places)
    if plan:
        _print_plan(mix)
        return
    if not places or out is None:
        raise UserError("give the corpora with --source NAME=PLACE and a folder with --out; --plan says what the mix needs")
    need_modules("datasets", "datasketch", purpose="building the role-play set")
    made = [card for path in cards or [] for card in load_cards(path)]
    eval_names = eval_cards or ["bundled"]
    files = [
        p for name in eval_names for p in ([bundled_cards("en"), bundled_cards("zh")] if name == "bundled" else [Path(name)])
    ]
    evaluation = [card for path in files for card in load_cards(path)]
    build = Build(out, "role-sft", seed, {"config": mix.model_dump(mode="json"), "eval_cards": eval_names})
    build.input(*(cards or []), *files)
    items = {name: read_source(name, place, build, console) for name, place in places.items()}
    held: dict[str, list[CorpusItem]] = {}
    for name, place in held_places.items():
        held[name] = read_source(name, place, build, console)
        build.steps[-1].name += " (held out)"
    with Progress(*Progress.get_default_columns(), console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("building", total=STEPS + STEPS_HELD * bool(held))
        build.on_step = lambda name: bar.update(task, advance=1, description=name)
        result = build_set(items, made, evaluation, mix, seed, build, held)
    if not (result.train or result.valid) or (held and not (result.train and result.valid)):
        build.print_steps(console)
        part = " to train on" if result.valid else " in the held-out part" if result.train else ""
        why = "see the steps above for what was dropped and why; nothing was written"
        raise UserError(f"no dialogue is left{part}: {why}" + "".join(f". {line}" for line in _cardless(result)))
    if "cards" in build.figures:
        console.print("role cards: {used} of {given} given ones were used".format_map(build.figures["cards"]))
    if result.held:
        figures = result.held
        text = f"held out: {figures['examples']} of {figures['dialogues']} dialogues, {len(figures['cut'])} of them cut"
        left = f"; no example of {', '.join(figures['left_out'])}" if figures["left_out"] else ""
        console.print(text + left, soft_wrap=True)
    build.write("train.jsonl", result.train)
    build.write("valid.jsonl", result.valid)
    build.write("links.jsonl", result.matches)
    write_dataset(result, build, DATASET)
    places_read = places | {name: place for name, place in held_places.items() if name not in places}
    sources = [as_read(source_at(name, place), (held | items)[name]) for name, place in places_read.items()]
    write_data_card(result, mix, evaluation, eval_names, sources, build)
    build.finish(console)
    _print(result, mix)


def _print_plan(mix: RoleSftConfig) -> None:
    """Print what the quotas ask for and what there is. Exit code 1 where a corpus cannot give so much."""
    rows = prospects(mix)
    counted = sum(row["Quota"] for row in rows if row["Known by"] == "counted")
    total = {"Source": "all", "Quota": mix.target, "Known by": f"counted: {counted:,}"}
    title = f"Quotas of {mix.target:,} dialogues, and what their corpora can give"
    note = (
        "Known by: counted, the whole corpus went through every step; scaled, a part of it did; size, only its "
        "published number of dialogues is known. Cards by a model: no situation is stated, so `cards extract` comes first."
    )
    to_console(Table.of("prospects", title, [*rows, total], [note]), console)
    short = [row for row in rows if row["Gives"] is not None and row["Gives"] < row["Quota"]]
    for row in short:
        quota = f"{row['Quota']:,} dialogues are asked for, {row['Gives']:,} are there"
        console.print(f"{row['Source']} ({row['Language']}): {quota}", soft_wrap=True)
    if short:
        raise typer.Exit(1)
    unknown = sum(row["Gives"] is None for row in rows)
    console.print("every quota can be met" + (f", but {unknown} of corpora of your own are not known" if unknown else ""))


def _print(result: RoleSet, mix: RoleSftConfig) -> None:
    """The quotas, and what they lack."""
    heads = {"Source": "source", "Language": "language", "Quota": "quota", "There": "dialogues", "Usable": "usable"}
    heads |= {"Taken": "taken", "Short": "short"}
    rows = [{head: row[key] for head, key in heads.items()} for row in result.shortfall]
    for shown, row in zip(rows, result.shortfall, strict=True):
        if not row["given"]:
            shown["There"] = None
    total = {"Source": "all", "Quota": mix.target, "Taken": result.taken, "Short": mix.target - result.taken}
    note = "There: dialogues with a card (a dash: the corpus was not given). Usable: what every step but the quotas leaves."
    to_console(Table.of("quotas", "Quotas and what they lack", [*rows, total], [note, *_cardless(result)]), console)


def _cardless(result: RoleSet) -> list[str]:
    """For every corpus that was given and has no card, how a model makes them."""
    given = dict.fromkeys(row["source"] for row in result.shortfall if row["given"] and not row["dialogues"])
    names = [name for name in given if name in SOURCES and SOURCES[name].kind == "support"]
    return [f"{cardless(name)}; then --cards cards/{name}/cards.jsonl" for name in names]
