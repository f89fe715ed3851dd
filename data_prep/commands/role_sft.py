"""`role-sft` builds the simulator's training set."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from core.errors import UserError, need_modules
from core.files import CONFIGS, validated, write_text
from core.grouping import group_by
from core.ledger import Build
from core.options import OutIfAnyOption, SeedOption, SetOption, SourceIfAnyOption, console, writes
from core.paths import IN_FILE, IN_NAME, IN_PLACES
from core.records import RoleCard
from core.rows import CorpusItem, Source
from core.settings import read_yaml, with_settings
from core.tables import Table, to_console
from data_prep.cards import bundled_cards, cardless, load_cards
from data_prep.role_play.contamination import THRESHOLD
from data_prep.role_play.mix import (
    CAUTIOUS,
    CAUTIOUS_OWN,
    GENERAL_PROMPTS,
    RoleSet,
    RoleSftConfig,
    build_set,
    check_sources,
    prospects,
)
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
    mix = read_yaml(config, RoleSftConfig, "role-play mix")
    mix = validated(RoleSftConfig, with_settings(mix.model_dump(), settings or [], RoleSftConfig), "--set")
    check_sources(mix, config, places, valid_places)
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
    with console.status("building the set") as status:
        build.on_step = status.update
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
    _write_dataset(result, build)
    sources = []
    for name in items | held_out:  # with the languages that were read, since a part of a corpus may have only one
        languages = sorted({item.language for item in (held_out | items)[name]})
        sources.append(source_at(name, (valid_places | places)[name]).model_copy(update={"languages": tuple(languages)}))
    _write_data_card(result, mix, evaluation, eval_names, sources, build)
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
    unknown = sum(row["Available"] is None for row in rows)
    short = [f"{row['Source']} ({row['Language']})" for row in rows if (row["Available"] or row["Quota"]) < row["Quota"]]
    if short:
        console.print(f"too few dialogues: {', '.join(short)}", soft_wrap=True)
        raise typer.Exit(1)
    console.print("every quota can be met" + (f", except {unknown} for your own corpora, which are unknown" if unknown else ""))


def _print(result: RoleSet, mix: RoleSftConfig) -> None:
    heads = {"Source": "source", "Language": "language", "Quota": "quota", "Available": "dialogues", "Usable": "usable"}
    heads |= {"Taken": "taken", "Short": "short"}
    rows = [
        {head: None if head == "Available" and not row["given"] else row[key] for head, key in heads.items()}
        for row in result.shortfall
    ]
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


# --- files beside the records -------------------------------------------------------------------------------------------------


def _write_dataset(result: RoleSet, build: Build) -> None:
    from datasets import Dataset, DatasetDict, disable_progress_bars

    disable_progress_bars()
    parts = {"train": result.train, "valid": result.valid}
    rows = {part: [example.model_dump(mode="json") for example in examples] for part, examples in parts.items() if examples}
    folder = build.folder / DATASET
    DatasetDict({part: Dataset.from_list(values) for part, values in rows.items()}).save_to_disk(str(folder))
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            build.output(path.relative_to(build.folder).as_posix())


def _write_data_card(
    result: RoleSet,
    mix: RoleSftConfig,
    evaluation: Sequence[RoleCard],
    eval_names: Sequence[str],
    sources: Sequence[Source],
    build: Build,
) -> None:
    source_of = {card.id: card.source for card in evaluation}
    scores: dict[str, list[float]] = defaultdict(list)
    for match in result.matches:
        scores[f"cards from {source_of[match.card_id]}, before"].append(match.score)
    if result.left:
        scores["all cards, in the finished set"] = [match.score for match in result.left]
    values = {
        "config": mix,
        "general": GENERAL_PROMPTS,
        "result": result,
        "manifest": build.manifest(),
        "rows": _rows(result),
        "evaluation": len(evaluation),
        "evaluation_files": ", ".join(Path(name).name for name in eval_names),
        "threshold": THRESHOLD,
        "cautious": CAUTIOUS,
        "cautious_own": CAUTIOUS_OWN,
        "scores": {name: _quantiles(values) for name, values in sorted(scores.items())},
        "sources": sources,
    }
    template = Environment(loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True)
    write_text(build.folder / "README.md", template.get_template("data_card.md.j2").render(values) + "\n")
    build.output("README.md")


def _rows(result: RoleSet) -> list[dict[str, Any]]:
    train = {example.id for example in result.train}
    rows = []
    for (source, language), group in group_by([*result.train, *result.valid], lambda e: (e.source, e.language)).items():
        tokens = _quantiles([example.tokens for example in group])
        of_train = sum(example.id in train for example in group)
        rows.append(
            {
                "source": source,
                "language": language,
                "kind": group[0].kind,
                "cards": ", ".join(sorted({example.card_method for example in group if example.card_method})),
                "train": of_train,
                "valid": len(group) - of_train,
                "turns": f"{_quantiles([example.turns for example in group])['median']:g}",
                "tokens": f"{tokens['median']:g}, {tokens['p95']:g}, {tokens['max']:g}",
            }
        )
    return rows


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    """n, minimum, quartiles, 95th percentile and maximum (empty without values)."""
    if not values:
        return {"n": 0}
    low, first, median, third, high, top = np.quantile(np.asarray(values, dtype=float), [0, 0.25, 0.5, 0.75, 0.95, 1])
    named = {"min": low, "q25": first, "median": median, "q75": third, "p95": high, "max": top}
    return {"n": len(values)} | {name: round(float(value), 4) for name, value in named.items()}
