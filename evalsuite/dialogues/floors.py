"""Supporters that need no model: what every board needs beside the models, so that a judge can be seen through.

A judge that rates one kind sentence, or the seeker's own words, as highly as a model's replies does not tell supporters apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from core.records import Dialogue, Turn
from core.specs import Floor, ModelSpec
from evalsuite.dialogues.hold import Plan, Utterance
from evalsuite.statistics.text_metrics import answered
from serve.questions import Models

FLOORS = ("silent", "parrot", "lecture")  # specs in configs/models
REFERENCE = "reference"  # one more, where source dialogues are given

Source = tuple[str, str]  # corpus and the dialogue's id in it


@dataclass(frozen=True)
class FloorSide:
    """A floor as the supporter of one dialogue. Nothing is asked."""

    floor: Floor
    text: str
    """What it says in the dialogue's language."""
    replies: Sequence[str] = ()
    """What the supporter of the source dialogue said."""
    given: int = 0
    """Supporter turns that the dialogue begins with."""

    async def speak(self, client: Models, turns: Sequence[Turn]) -> Utterance:
        if self.floor.kind == "reference":
            return Utterance(self.replies[sum(turn.role == "supporter" for turn in turns) - self.given])
        heard = [turn.text for turn in turns if turn.role == "seeker"]
        return Utterance(heard[-1] if heard and self.floor.kind == "parrot" else self.text)


def replies_by_source(dialogues: Iterable[Dialogue]) -> dict[Source, list[str]]:
    """What supporters answered in source dialogues, by corpus and id there. Dialogues without a source id are left out."""
    return {(d.source, d.source_id): [place.text for place in answered(d.turns)] for d in dialogues if d.source_id}


def with_floors(
    plans: Iterable[Plan], supporters: Iterable[ModelSpec], replies: Mapping[Source, Sequence[str]]
) -> Iterator[Plan]:
    """The plans, with floors speaking where the supporter is one.

    A reference speaks as often as it did in the source dialogue; plans whose source dialogue is not there are left out.
    """
    floors = {spec.name: spec.floor for spec in supporters if spec.floor}
    for plan in plans:
        dialogue = plan.dialogue
        floor = floors.get(dialogue.supporter or "")
        if floor is None:
            yield plan
            continue
        said = replies.get((dialogue.source, dialogue.source_id or ""), ())
        if floor.kind == "reference" and not said:
            continue
        given = sum(turn.role == "supporter" for turn in dialogue.turns)
        side = FloorSide(floor, floor.text.get(dialogue.language, ""), said, given)
        exchanges = min(plan.exchanges, len(said)) if floor.kind == "reference" else plan.exchanges
        yield replace(plan, supporter_side=side, exchanges=exchanges)
