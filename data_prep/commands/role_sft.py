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
from data_prep.role_play.mix import STEPS, STEPS_HELD, RoleSet, RoleSftConfig, build_set, check_quotas, prospects
from data_prep.role_play.outputs import write_data_card, write_dataset
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
        list[Path] | None, typer.Option(help="Role cards made from these corpora; they replace heuristic ones."), IN_FILE
    ] = None,
    eval_cards: Annotated[
        list[str] | None, typer.Option(help="Cards that evaluation uses: card files, or `bundled`. Repeat for more."), IN_NAME
    ] = None,
    valid_source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PLACE",
            help="A corpus to hold out whole: its dialogues become valid.jsonl, and near duplicates are not trained on.",
        ),
        IN_PLACES,
    ] = None,
    settings: SetOption = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only print what each quota needs and what its corpus can give; needs no data.")
    ] = False,
    seed: SeedOption = 0,
) -> None:
    """Build the role-play training set: support dialogues with their cards and general role play, by quota.

    Writes train.jsonl and valid.jsonl, the same as a `datasets` folder, a data card (README.md), each evaluation card's best
    match before decontamination (links.jsonl), and the manifest. Dialogues that an evaluation card may have been made from are
    removed: to train a simulator that will play the published cards, give them with --eval-cards. With --valid-source nothing
    is held out at random: all dialogues of that corpus are valid.jsonl, with cards that do not summarise the scored lines.

    With --plan nothing is read or written: the table shows whether the quotas can be met, and the exit code is 1 if not.
    """
    places, valid_places = parse_places(source or []), parse_places(valid_source or [], "--valid-source")
    for name in valid_places:
        check_source(name)
    mix = read_yaml(config, RoleSftConfig, "role-play mix")
    mix = validated(RoleSftConfig, with_settings(mix.model_dump(), settings or [], RoleSftConfig), "--set")
    check_quotas(mix, config, places)
    if plan:
        _print_plan(mix)
        return
    if not places or out is None:
        raise UserError("give the corpora with --source NAME=PLACE and a folder with --out; --plan shows what the mix needs")
    need_modules("datasets", "datasketch", purpose="building the role-play set")
    given_cards = [card for path in cards or [] for card in load_cards(path)]
    eval_names = eval_cards or ["bundled"]
    files = [
        p for name in eval_names for p in ([bundled_cards("en"), bundled_cards("zh")] if name == "bundled" else [Path(name)])
    ]
    evaluation = [card for path in files for card in load_cards(path)]
    build = Build(out, "role-sft", seed, {"config": mix.model_dump(mode="json"), "eval_cards": eval_names})
    build.input(*(cards or []), *files)
    items = {name: read_source(name, place, build, console) for name, place in places.items()}
    held_out: dict[str, list[CorpusItem]] = {}
    for name, place in valid_places.items():
        held_out[name] = read_source(name, place, build, console)
        build.steps[-1].name += " (held out)"
    with Progress(*Progress.get_default_columns(), console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("building", total=STEPS + STEPS_HELD * bool(held_out))
        build.on_step = lambda name: bar.update(task, advance=1, description=name)
        result = build_set(items, given_cards, evaluation, mix, seed, build, held_out)
    if not (result.train or result.valid) or (held_out and not (result.train and result.valid)):
        build.print_steps(console)
        part = " to train on" if result.valid else " in the held-out part" if result.train else ""
        why = "see the steps above for what was dropped and why; nothing was written"
        raise UserError(f"no dialogue is left{part}: {why}" + "".join(f". {line}" for line in _cardless(result)))
    if "cards" in build.figures:
        console.print("role cards: {used} of {given} given ones were used".format_map(build.figures["cards"]))
    build.write("train.jsonl", result.train)
    build.write("valid.jsonl", result.valid)
    build.write("links.jsonl", result.matches)
    write_dataset(result, build, DATASET)
    sources = []
    for name in items | held_out:  # with the languages that were read, since a part of a corpus may have only one
        languages = sorted({item.language for item in (held_out | items)[name]})
        sources.append(source_at(name, (valid_places | places)[name]).model_copy(update={"languages": tuple(languages)}))
    write_data_card(result, mix, evaluation, eval_names, sources, build)
    build.finish(console)
    _print(result, mix)


def _print_plan(mix: RoleSftConfig) -> None:
    """Print the quotas and the dialogues available. Exit code 1 if a corpus has too few."""
    rows = prospects(mix)
    counted = sum(row["Quota"] for row in rows if row["Basis"] == "counted")
    total = {"Source": "all", "Quota": mix.target, "Basis": f"counted: {counted:,}"}
    title = f"Quotas of {mix.target:,} dialogues, and what their corpora can give"
    note = (
        "Basis: counted, the whole corpus went through every step; scaled, a part of it did; size, only its published number "
        "of dialogues is known. Cards by a model: the corpus states no situation, so run `cards extract` first."
    )
    to_console(Table.of("prospects", title, [*rows, total], [note]), console)
    short = [row for row in rows if row["Available"] is not None and row["Available"] < row["Quota"]]
    for row in short:
        quota = f"{row['Quota']:,} dialogues are needed, {row['Available']:,} are available"
        console.print(f"{row['Source']} ({row['Language']}): {quota}", soft_wrap=True)
    if short:
        raise typer.Exit(1)
    unknown = sum(row["Available"] is None for row in rows)
    console.print("every quota can be met" + (f", except {unknown} for your own corpora, which are unknown" if unknown else ""))


def _print(result: RoleSet, mix: RoleSftConfig) -> None:
    """Print the quotas and their shortfall."""
    heads = {"Source": "source", "Language": "language", "Quota": "quota", "Available": "dialogues", "Usable": "usable"}
    heads |= {"Taken": "taken", "Short": "short"}
    rows = [{head: row[key] for head, key in heads.items()} for row in result.shortfall]
    rows = [row if quota["given"] else row | {"Available": None} for row, quota in zip(rows, result.shortfall, strict=True)]
    total = {"Source": "all", "Quota": mix.target, "Taken": result.taken, "Short": mix.target - result.taken}
    note = (
        "Available: dialogues with a card (a dash: the corpus was not given). Usable: those left by all steps but the quotas."
    )
    to_console(Table.of("quotas", "Quotas and their shortfall", [*rows, total], [note, *_cardless(result)]), console)


def _cardless(result: RoleSet) -> list[str]:
    """For every given corpus without cards, the command by which a model writes them."""
    given = dict.fromkeys(row["source"] for row in result.shortfall if row["given"] and not row["dialogues"])
    names = [name for name in given if name in SOURCES and SOURCES[name].kind == "support"]
    return [f"{cardless(name)}; then --cards cards/{name}/cards.jsonl" for name in names]
