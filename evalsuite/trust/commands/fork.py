"""`esc-eval fork`: how a dialogue would have gone on with another reply at one turn."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from core.errors import UserError, near
from core.files import read_jsonl
from core.options import SetOption, console
from core.paths import InFile, InModel, Writes
from core.records import Dialogue
from core.settings import differing_leaves, fields_set
from core.specs import load_spec
from evalsuite.commands.options import InRun, RoleModelOption, resolve
from evalsuite.commands.output import deliver_page, exit_if_lost
from evalsuite.runner.engine import Runner
from evalsuite.runs import shards
from evalsuite.runs.config import load_config
from evalsuite.runs.folder import open_run
from evalsuite.runs.held import Held
from evalsuite.runs.identity import HeldSpec
from evalsuite.runs.run_identity import RunIdentity
from evalsuite.trust.fork import Fork, fork_sheet
from evalsuite.trust.fork import fork as ask

TEMPERATURE = 0.7  # at which seeker and supporter continue, unless theirs is higher
_WHERE = "{0}: its address is missing: give --set supporters={0}@URL"
_GROWS = {"supporters", "languages", "trials", "cards", "profiles", "references", "replay"}  # may differ from the run's config


def fork(
    run: Annotated[InRun, typer.Argument(metavar="RUN", help="Run folder that holds the dialogue.")],
    config: Annotated[InFile, typer.Option("--config", help="The run's config: seeker, prompts, cards, judge.")],
    dialogue: Annotated[str, typer.Option("--dialogue", metavar="ID", help="The dialogue; the report shows its id.")],
    turn: Annotated[int, typer.Option("--turn", min=0, metavar="T", help="The supporter's turn to replace, counted from 0.")],
    supporter: Annotated[InModel, typer.Option(metavar="MODEL", help="Model or floor that replies there instead.")],
    model: RoleModelOption = None,
    settings: SetOption = None,
    draws: Annotated[int, typer.Option("--draws", min=2, max=1000, metavar="N", help="Continuations of each side.")] = 12,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the fork; the same command resumes. Default: runs/fork/DIALOGUE-TURN."),
        Writes(("fork.*", "tables/*", "dialogues.jsonl", "judgements.jsonl")),
    ] = None,
) -> None:
    """Replace one reply of a dialogue and continue to the end N times: what did that reply change?

    The other supporter speaks at that turn only. The original reply is continued equally often, as a control. Writes
    OUT/fork.html, .json and .md: differences in the scores and in the seeker's later turns, and the dialogues as a tree.

    Example: esc-eval fork runs/demo --config configs/eval/demo.yaml --dialogue 0123456789abcdef --turn 2 --supporter lecture
    """
    made_with = shards.whole(run)
    dialogues = {record.id: record for record in read_jsonl(run / "dialogues.jsonl", Dialogue, "dialogues")}
    if dialogue not in dialogues:
        raise UserError(f"--dialogue {dialogue}: not in {run / 'dialogues.jsonl'}: {near(dialogue, dialogues)}")
    source, other = dialogues[dialogue], load_spec(supporter).name
    folder = out or Path("runs", "fork", f"{dialogue}-{turn}")
    overrides: dict[str, Any] = {"model": model, "out": str(folder), "floors": False}
    own_model = _named(config, overrides, settings or [], source)
    changed = [setting for setting in settings or [] if "supporters" not in fields_set([setting])]
    resolved = resolve(config, changed, supporters=list(dict.fromkeys([own_model, supporter])), **overrides)
    with open_run(run) as opened:
        resolved = replace(resolved, held=Held.of(opened, None))
    both = (made_with.root.get("simulate", {}), RunIdentity(resolved).simulate())
    lasting = ({field: value for field, value in simulated.items() if field not in _GROWS} for simulated in both)
    if lines := "; ".join(differing_leaves(*lasting)):
        raise UserError(f"--config {config}: differs from the config of {run}: {lines}")
    own = next((spec for spec in resolved.models.supporters if spec.name == source.supporter), None)
    if own is None or isinstance(own, HeldSpec):
        raise UserError(_WHERE.format(source.supporter))
    RunIdentity(resolved).score()  # problems surface before anything is written or started
    forked = Fork.of(resolved, source, turn, other)
    with open_run(folder) as opened, Runner(opened, resolved, console) as runner:
        result = ask(runner, forked, draws, TEMPERATURE)
        failures = opened.failures()
    judged_by = f"{resolved.models.judge.name}, method {resolved.method}"
    facts = [("Judge", judged_by), ("Draws", f"{draws} per side, at a temperature of at least {TEMPERATURE:g}")]
    supporters = (spec for spec in resolved.models.supporters if spec.name in (source.supporter, other))
    speakers = [*resolved.models.seekers, resolved.models.judge, *supporters]
    sheet = fork_sheet(result, resolved.rubric, facts, [spec.checkpoint for spec in speakers])
    deliver_page("fork", sheet, folder)
    exit_if_lost(sum(branch.lost for branch in result.dialogues), len(result.dialogues), "dialogues", failures)


def _named(config: Path, overrides: dict[str, Any], settings: Sequence[str], source: Dialogue) -> str:
    """The config's name of the dialogue's supporter, else the supporter's own name."""
    own_name = source.supporter or ""
    for name in (*load_config(config, overrides, settings).supporters, own_name):
        with suppress(UserError):
            if load_spec(name).name == own_name:
                return name
    raise UserError(_WHERE.format(own_name))
