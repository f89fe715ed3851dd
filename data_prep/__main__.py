"""`python -m data_prep VERB`: build the data that training and evaluation use."""

from core.starting import interrupted  # noqa: F401 - before the slow imports

from core.errors import run_cli
from core.verbs import program

app = program("Build the data that training and evaluation use.")
for name, place, about in (
    ("fetch", "corpora:fetch", "Download corpora; without a name, list them."),
    ("read", "corpora:read", "Turn corpora in their published formats into records."),
    ("import", "imports:import_", "Convert published benchmarks, profiles, scores and dialogues to our records."),
    ("cards", "cards:app", "Role cards: your own (import, template), or by a model (extract, label)."),
    ("profiles", "cards:profiles_app", "Profiles of seekers by a model: build."),
    ("language", "language:language", "Prepare the texts of another language (new), or list what is missing (check)."),
    ("check", "check:check", "Describe role cards or profiles, and find dialogues that they may have been made from."),
    ("sheet", "sheet:app", "Sheets that people fill in: export, import."),
    ("role-sft", "role_sft:role_sft", "Build the simulator's training set."),
    ("rank-sft", "rank_sft:rank_sft", "Build the ranker's training, validation and test sets."),
):
    app.add(name, f"data_prep.commands.{place}", about)


def main() -> None:
    """Entry point of the console script."""
    run_cli(app)


if __name__ == "__main__":
    main()
