"""The command line of the harness: every verb of `esc-eval`."""

from __future__ import annotations

from core.errors import run_cli
from core.options import program
from evalsuite.commands import ecdbench, feel, health, people, push, role_play
from evalsuite.commands.abstain import abstain
from evalsuite.commands.agree import agree, correlate
from evalsuite.commands.doctor import doctor
from evalsuite.commands.export import export
from evalsuite.commands.fork import fork
from evalsuite.commands.health import risk
from evalsuite.commands.judge_card import judge_card_verb
from evalsuite.commands.models import models
from evalsuite.commands.pairwise import pairwise
from evalsuite.commands.power import power
from evalsuite.commands.reported import reported
from evalsuite.commands.respond import metrics, respond
from evalsuite.commands.run import merge, migrate, report, run, score, simulate, status
from evalsuite.commands.scored_runs import compare, discriminate, leaderboard, trajectories
from evalsuite.commands.study import study

app = program(
    "Evaluate emotional-support dialogue systems: a simulated seeker talks to your model, a ranker scores it.\n\n"
    "Running the identical command again resumes an interrupted run: nothing that was answered is asked again.",
    "Example: esc-eval run --config configs/eval/api.yaml --model my-model@http://127.0.0.1:8000/v1",
)

RUNS, PEOPLE, CHECKS = "Runs", "Judges and people", "Checks"
for panel, verbs in {
    RUNS: (
        run,
        models,
        simulate,
        score,
        status,
        merge,
        migrate,
        report,
        leaderboard,
        compare,
        trajectories,
        fork,
        study,
        export,
    ),
    PEOPLE: (agree, correlate, pairwise, discriminate, power, abstain, respond, metrics),
    CHECKS: (doctor, risk, role_play.audit_simulator),
}.items():
    for verb in verbs:
        app.command(rich_help_panel=panel)(verb)
app.command("judge-card", rich_help_panel=CHECKS)(judge_card_verb)
app.add_typer(reported, name="reported", rich_help_panel=PEOPLE)
app.add_typer(push.app, name="push", rich_help_panel=RUNS)
app.add_typer(ecdbench.app, name="ecdbench", rich_help_panel=RUNS)
app.add_typer(feel.app, name="feel", rich_help_panel=PEOPLE)
app.add_typer(role_play.app, name="role-play", rich_help_panel=PEOPLE)
app.add_typer(people.app, name="people", rich_help_panel=PEOPLE)
app.add_typer(health.app, name="health", rich_help_panel=CHECKS)


def main() -> None:
    """Entry point of the console script."""
    run_cli(app)


if __name__ == "__main__":
    main()
