"""`profiles`: seekers for EmoHarbor, which a model builds from questionnaires or role cards."""

from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError, near
from core.files import check_unique
from core.ledger import Build
from core.options import ModelOption, OutOption, console, writes
from core.paths import IN_FILE
from core.prompts import load_pack
from core.tables import to_console
from core.verbs import Verbs
from data_prep.commands.cards import batch_of, exit_if_silent
from data_prep.profiles import build as profile_build
from data_prep.profiles.build import load_seeds
from data_prep.profiles.check import check_profiles, table
from data_prep.profiles.vocabulary import load_vocabulary

app = Verbs(no_args_is_help=True, pretty_exceptions_enable=False, help="Profiles of seekers (EmoHarbor section 2.1): build.")
PROFILES, REJECTED, UNBUILT = "profiles.jsonl", "rejected.jsonl", "unbuilt.jsonl"


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
    to_console(table(check_profiles(kept, load_vocabulary()), len(kept)), console)
    exit_if_silent(unbuilt)
