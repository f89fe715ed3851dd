"""Floors: supporters that need no model, on every board, so that a bad judge shows.

A judge that rates one kind sentence, or the seeker's own words, as highly as a model's replies does not tell supporters apart.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from core.languages import of, texts
from core.records import Dialogue, Language, Turn
from core.specs import Floor
from evalsuite.dialogues.hold import Plan, Utterance
from serve.questions import Models

FLOORS = ("silent", "parrot", "lecture")  # specs in configs/models
REFERENCE = "reference"  # a further one, if source dialogues are given

Source = tuple[str, str]  # a corpus and the id of a dialogue in it


@dataclass(frozen=True)
class FloorSide:
    """A floor as the supporter of one dialogue. It asks no model."""

    floor: Floor
    text: str
    """Its reply in the dialogue's language."""
    replies: Sequence[str] = ()
    """The replies of the source dialogue's supporter."""
    given: int = 0
    """The number of supporter turns that the dialogue begins with."""

    async def speak(self, client: Models, turns: Sequence[Turn]) -> Utterance:
        if self.floor.kind == "reference":
            return Utterance(self.replies[sum(turn.role == "supporter" for turn in turns) - self.given])
        return Utterance(_line(self.floor, self.text, turns))


def _line(floor: Floor, text: str, turns: Sequence[Turn]) -> str:
    """The floor's reply to these turns."""
    lines = [turn.text for turn in turns if turn.role == "seeker"]
    return lines[-1] if lines and floor.kind == "parrot" else text


def text_of(floor: Floor, name: str, language: Language) -> str:
    """A floor's reply in a language, from its spec or floors.yaml in the language's folder; "" for a floor without a text."""
    own = texts(language, "floors.yaml")
    if name in own and language not in floor.text:
        return str(own[name])
    return of(floor.text, language, f"text of floor {name}") if floor.text else ""


def answered_by(floor: Floor, name: str, dialogue: Dialogue) -> Dialogue:
    """A finished dialogue with the supporter's answers replaced by the floor's. The seeker's turns stay as they were."""
    text, turns = text_of(floor, name, dialogue.language), list(dialogue.turns)
    for place, turn in enumerate(turns):
        if turn.role == "supporter" and any(before.role == "seeker" for before in turns[:place]):
            turns[place] = turn.model_copy(update={"text": _line(floor, text, turns[:place])})
    return dialogue.model_copy(update={"turns": tuple(turns)})


def replies_by_source(dialogues: Iterable[Dialogue]) -> dict[Source, list[str]]:
    """The supporter's answers in each source dialogue, by corpus and id. Dialogues without a source id are left out."""
    from data_prep.responses import answered

    return {(d.source, d.source_id): [place.text for place in answered(d.turns)] for d in dialogues if d.source_id}


def with_floor(plan: Plan, floor: Floor | None, replies: Mapping[Source, Sequence[str]]) -> Plan:
    """The plan with the floor, if there is one, as its supporter. A reference speaks as often as it did in its source dialogue,
    which must be among the `replies`."""
    if floor is None:
        return plan
    opening = plan.opening
    source = replies.get((opening.source, opening.source_id or ""), ())
    given = sum(turn.role == "supporter" for turn in opening.turns)
    side = FloorSide(floor, text_of(floor, opening.supporter, opening.language), source, given)
    exchanges = min(plan.exchanges, len(source)) if floor.kind == "reference" else plan.exchanges
    return replace(plan, supporter_side=side, exchanges=exchanges)
