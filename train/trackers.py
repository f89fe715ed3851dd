"""Where a training's figures are shown: Weights & Biases or trackio, as the recipe's `report_to` says.

Both keep them on this machine unless somebody asks for more: wandb writes offline without a key, trackio into its own SQLite
files (TRACKIO_DIR), from which `trackio show` makes a page. A resumed training goes on in the same run.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import UserError
from core.files import digest
from core.wandb_offline import offline_without_key
from train.examples import Prepared
from train.recipes import Recipe
from train.run import is_main_process, say

if TYPE_CHECKING:
    from transformers import TrainerCallback


def set_up_trackers(recipe: Recipe[Any], *data: Prepared) -> None:
    """Name the project and the run, once the output folder is claimed, and open trackio's. Neither tracker asks for a key.

    Raises `UserError` where the recipe reports to trackio and it is not installed: no extra for training brings it.
    """
    wanted = recipe.training.report_to or []
    claim = Path(recipe.training.output_dir).absolute() / "recipe.json"
    run = digest([str(claim), claim.read_text(encoding="utf-8")], 12)
    if "wandb" in wanted:
        os.environ.setdefault("WANDB_PROJECT", f"esc-{recipe.task}")
        os.environ.setdefault("WANDB__DISABLE_META", "true")  # wandb's own metadata holds the command line
        offline_without_key(say)
        os.environ.setdefault("WANDB_RUN_ID", run)
        os.environ.setdefault("WANDB_RESUME", "allow")
    if "trackio" in wanted:
        if importlib.util.find_spec("trackio") is None:
            raise UserError("report_to: trackio is not installed: pip install 'esc-eval[trackio]', or take wandb or none")
        if recipe.training.project == "huggingface":  # transformers' default
            recipe.training.project = f"esc-{recipe.task}"
        # trackio knows a run by its name alone, and goes on in one that has it.
        recipe.training.run_name = f"{recipe.training.run_name or claim.parent.name}-{run}"
        _open_trackio(recipe, data)


def _open_trackio(recipe: Recipe[Any], data: Sequence[Prepared]) -> None:
    """Open trackio's run, or go on in it, until the process ends.

    Transformers would open it when training begins and close it when it ends, but TRL's trainer logs in the evaluations before
    and after, too, and fails where there is no run.
    """
    import trackio
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK, TrackioCallback

    class Opened(TrackioCallback):
        def setup(self, *args: Any, **kwargs: Any) -> None:
            """Nothing: the run is open."""

    INTEGRATION_TO_CALLBACK["trackio"] = Opened
    if is_main_process():
        training = recipe.training
        trackio.init(
            project=training.project,
            name=training.run_name,
            space_id=training.trackio_space_id,
            bucket_id=training.trackio_bucket_id,
            private=training.hub_private_repo,
            resume="allow",
            config=_run_settings(recipe, data),
        )


def _run_settings(recipe: Recipe[Any], data: Sequence[Prepared]) -> dict[str, Any]:
    """What a run is known by: the recipe and the data's hashes."""
    return {"recipe": recipe.settings(), "data": [prepared.identity() for prepared in data]}


def wandb_run() -> Any | None:
    """The wandb run that the trainer has opened, if any."""
    wandb = sys.modules.get("wandb")
    return wandb.run if wandb is not None else None


def settings_log(recipe: Recipe[Any], *data: Prepared) -> TrainerCallback:
    """A callback that puts the recipe and the data's hashes into the wandb run, once the trainer has opened it."""
    from transformers import TrainerCallback

    class SettingsLog(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            if run := wandb_run():
                run.config.update(_run_settings(recipe, data), allow_val_change=True)

    return SettingsLog()
