"""The command line of the harness: every verb of `esc-eval`, one line each."""

import os
from functools import partial

from core.errors import run_cli
from core.verbs import program

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # our matrices are too small for several threads
app = program(
    "Evaluate emotional-support dialogue systems: a simulated seeker talks to your model, and a judge scores the dialogue.\n\n"
    "The same command resumes an interrupted run and does not ask again for what was answered.",
    "Example: esc-eval run --config configs/eval/api.yaml --model my-model@http://127.0.0.1:8000/v1",
)

for panel, verbs in {
    "Runs": (
        ("init", "commands.setup:init", "Write the files of a first run, for you to adapt."),
        ("run", "commands.run:run", "Hold dialogues, judge them, measure the judge on the gold set and write the report."),
        ("models", "commands.setup:models", "List the models that a role can be given, and what each needs."),
        ("status", "commands.run:status", "Show the progress of a run, and what is missing."),
        ("merge", "commands.reports:merge", "Join the shards of one run."),
        ("report", "commands.reports:report", "Write the report of a run folder again, from its records."),
        ("leaderboard", "commands.reports:leaderboard", "Rank the supporters of several runs, or compare two runs."),
        ("fork", "trust.commands.fork:fork", "Replace one reply of a dialogue and continue it, to see what the reply changed."),
        ("study", "trust.commands.study:study", "Run several frameworks on the same supporters and compare their results."),
        ("push", "commands.push:push", "Publish an adapter, a data set, or a run's report or scores on the Hugging Face hub."),
        (
            "paper",
            "papers.commands.paper:app",
            "Run the further procedures of papers: ECDBench, FEEL, role play, replies, tables.",
        ),
    ),
    "Judges and people": (
        ("agree", "commands.agree:agree", "Compare judges with people's scores: ACC, kappa, correlations and more."),
        ("power", "trust.commands.power:power", "Plan how many cards it takes to detect a difference."),
        ("people", "people.commands.people:app", "Run studies in the browser: people score, choose or talk to supporters."),
    ),
    "Checks": (
        ("doctor", "commands.setup:doctor", "Show what this machine has and lacks for serving and training."),
        ("judge-card", "trust.commands.judge_card:judge_card_verb", "Show on one page how far a judge can be trusted."),
    ),
}.items():
    for name, place, about in verbs:
        app.add(name, f"evalsuite.{place}", about, panel)


main = partial(run_cli, app)  # the entry point of the console script


if __name__ == "__main__":
    main()
