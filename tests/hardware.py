"""What ESC-Eval's models can do on which GPUs, as the planner says it: the table of docs/serve-and-scale.md.

`python -m tests.hardware` writes it there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from core.errors import UserError
from core.machine import Machine
from core.specs import ModelSpec, load_spec
from serve.command import ServerPlan
from serve.placement import phases
from serve.plan import plan_servers
from serve.units import CONTEXT

DOCUMENT = Path(__file__).parent.parent / "docs" / "serve-and-scale.md"
BEGIN, END = "<!-- made by python -m tests.hardware -->\n", "<!-- end -->"
MACHINES = ("24", "48", "80", "2x40", "2x80", "4x80", "8x80", "141")
ROLES = {"esc-role": "seeker", "qwen1.5-7b-chat": "supporter", "esc-rank": "ranker"}
NEEDS = dict.fromkeys(ROLES, CONTEXT)


@dataclass(frozen=True)
class Answer:
    """The planner's answer for a machine: the servers by phase, or why there are none."""

    machine: Machine
    phases: Sequence[Sequence[ServerPlan]] = ()
    refusal: str = ""

    def __str__(self) -> str:
        if self.refusal:
            best = self.refusal.split("Next best: ")[1].split("; or ")[0]
            best = best.split(" in the spec of ")[0] if best.startswith("serve:") else best
            return f"no; with {'`' + best + '`' if best.startswith('serve:') else best.split(' instead')[0] + ' like it'}"
        parts = [" + ".join(map(_server, servers)) for servers in self.phases]
        return f"at once: {parts[0]}" if len(parts) == 1 else f"in phases: {', then '.join(parts)}"


def _server(plan: ServerPlan) -> str:
    assert plan.place is not None
    split = f" over {plan.place.split}" if plan.place.split > 1 else ""
    return f"{ROLES[plan.name]}{split} ({plan.place.dialogues})"


def answers(served: bool) -> Iterator[Answer]:
    """By machine, with the 7B supporter served there or elsewhere."""
    seeker, supporter, ranker = map(load_spec, ROLES)
    for text in MACHINES:
        machine = Machine.parse(text)
        try:
            parts = phases([seeker], [supporter] if served else [], [ranker], machine, NEEDS)
        except UserError as error:
            yield Answer(machine, refusal=str(error))
        else:
            yield Answer(machine, [_plan(part, machine) for part in parts])


def _plan(specs: Sequence[ModelSpec], machine: Machine) -> list[ServerPlan]:
    return plan_servers(specs, Path("logs"), resolve=False, machine=machine, needs=NEEDS)


def table() -> str:
    """In Markdown."""
    lines = ["| GPUs | seeker, supporter and ranker here | supporter behind an endpoint |", "|---|---|---|"]
    lines += [f"| {one.machine} | {one} | {other} |" for one, other in zip(answers(True), answers(False), strict=True)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    text = DOCUMENT.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}", encoding="utf-8")
