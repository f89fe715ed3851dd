"""`profiles`: seekers for EmoHarbor, built from questionnaires or role cards, and inspected."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError, near
from core.files import check_unique
from core.ledger import Build
from core.options import ModelOption, OutOption, SeedOption, console, writes
from core.paths import IN_FILE, SHEET
from core.prompts import load_pack
from core.tables import to_console
from core.verbs import Verbs
from data_prep.cards.sheets import refuse_to_overwrite
from data_prep.commands.cards import batch_of, exit_if_silent
from data_prep.profiles import Profile, inspection, load_profiles
from data_prep.profiles import build as profile_build
from data_prep.profiles.build import Seed, load_seeds
from data_prep.profiles.check import check_profiles, table
from data_prep.profiles.vocabulary import load_vocabulary

app = Verbs(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Profiles of seekers (EmoHarbor section 2.1): build, inspect.",
)
PROFILES, REJECTED, UNBUILT = "profiles.jsonl", "rejected.jsonl", "unbuilt.jsonl"

ProfilesOption = Annotated[
    list[Path], typer.Option("--profiles", help="Profiles: our JSONL, or SAGE's profile file. Repeat for more."), IN_FILE
]


@app.command("build")
def build(
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
    """Make a profile of every questionnaire or role card in the paper's four steps (appendix B), then let the model review it.

    Writes OUT/profiles.jsonl, rejected.jsonl (what the review found inconsistent) and unbuilt.jsonl (replies that cannot be
    read, raw), and prints what the checks find. Calls are in OUT/calls.sqlite: the same command again asks only what is
    missing. Go on with `profiles inspect`. Example:

    python -m data_prep profiles build --seeds data_prep/bundled/questionnaire.jsonl --model gpt-4 --out runs/profiles
    """
    people = [seed for path in seeds for seed in load_seeds(path)]
    check_unique("--seeds", (seed.id for seed in people), "ids")
    _known_topics(people)
    prompts = load_pack(profile_build.PACK).fingerprint()
    settings = {"model": model, "temperature": profile_build.TEMPERATURE, "prompts": prompts}
    made = Build(out, "profiles build", settings=settings)
    made.input(*seeds)
    steps = {name: made.step(name) for name in profile_build.STEPS}
    with batch_of(model, out, "people") as batch:
        kept, rejected, unbuilt = profile_build.build(people, batch, steps)
    made.write(PROFILES, kept)
    made.write(REJECTED, rejected)
    made.write(UNBUILT, unbuilt)
    made.finish(console)
    to_console(table(check_profiles(kept, load_vocabulary()), len(kept)), console)
    exit_if_silent(unbuilt)


@app.command("inspect")
def inspect(
    profiles: ProfilesOption,
    out: Annotated[OutOption, writes(PROFILES, f"{inspection.NAME}.*")],
    sample: Annotated[int, typer.Option("--sample", min=1, help="How many profiles to draw for the sheet.")] = 20,
    seed: SeedOption = 0,
    sheet: Annotated[
        Path | None, typer.Option("--sheet", help="The sheet, filled in (CSV or XLSX): rejected profiles are left out."), SHEET
    ] = None,
) -> None:
    """Let a person look at a random sample: write OUT/inspection.csv and .xlsx; with --sheet, OUT/profiles.jsonl without the
    rejected ones.

    Fill in one of the two files: keep is yes or no. The share rejected in the sample says what to expect of the rest.
    """
    loaded = _load(profiles)
    made = Build(out, "profiles inspect", seed)
    made.input(*profiles, *([sheet] if sheet else []))
    if sheet is None:
        refuse_to_overwrite(out, [inspection.NAME], inspection.LAYOUT)
        drawn = inspection.draw(loaded, sample, seed)
        for name in inspection.write_inspection(made.folder, drawn, check_profiles(loaded, load_vocabulary())):
            made.output(name, len(drawn))
    else:
        decisions = inspection.read_inspection(sheet, loaded)
        inspected = [profile for profile in loaded if profile.id in decisions]
        made.step("inspected").sieve(inspected, lambda profile: None if decisions[profile.id] else inspection.REJECTED)
        made.write(PROFILES, [profile for profile in loaded if decisions.get(profile.id, True)])
    made.finish(console)


def _load(files: list[Path]) -> list[Profile]:
    loaded = [profile for path in files for profile in load_profiles(path)]
    check_unique("--profiles", (profile.id for profile in loaded), "profile ids over all files")
    return loaded


def _known_topics(seeds: list[Seed]) -> None:
    keys = load_vocabulary().keys
    for seed in seeds:
        if seed.topic and seed.topic not in keys:
            raise UserError(f"seed {seed.id}: topic: unknown kind of problem {seed.topic!r}: {near(seed.topic, keys)}")
