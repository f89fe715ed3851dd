"""`python -m train VERB`: the steps before and after training. Training itself: `accelerate launch train/esc_….py`."""

from core.starting import interrupted  # noqa: F401 - before the slow imports

from core.errors import run_cli
from core.verbs import program
from train.plan import plan
from train.test import test

app = program(
    "Before and after training. Training itself: accelerate launch train/esc_role.py (or esc_rank.py) --config RECIPE."
)
OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}  # --learning_rate 1e-4 and the like go to the recipe
app.command("plan", context_settings=OVERRIDES)(plan)
app.command("test", context_settings=OVERRIDES)(test)


def main() -> None:
    """Entry point of the console script."""
    run_cli(app)


if __name__ == "__main__":
    main()
