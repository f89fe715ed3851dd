"""Replies on real histories (ESC-Eval, figure 1, left): a supporter answers wherever the supporter of a dialogue spoke.

It sees the real dialogue up to that place, never its own earlier replies; the real supporter's turn is the reference.
Consecutive turns of one side are joined. Supporter turns before the seeker's first (a greeting) are neither answered nor shown:
chat templates require the user to begin, and ESC-Eval's dialogues hide their greeting, too.
"""

from collections.abc import Iterable

from core.records import Dialogue, Stopped
from core.specs import ModelSpec
from data_prep.responses import Answered, Response, answered
from evalsuite.dialogues.hold import ModelSide, usage_of, utterance
from serve.answers import Reply
from serve.batch import Batch
from serve.failures import Lost, Unanswered


def respond(batch: Batch, dialogues: Iterable[Dialogue]) -> list[Response]:
    """The replies of the batch's model at every place of the dialogues, in order. Stored replies are not asked for again."""
    spec = batch.spec
    places = [(dialogue, place) for dialogue in dialogues for place in answered(dialogue.turns)]
    questions = [ModelSide(spec, "supporter", dialogue.id).question(place.history, place.turn) for dialogue, place in places]
    replies = batch.ask(questions, "replies")
    return [_response(spec, dialogue, place, reply) for (dialogue, place), reply in zip(places, replies, strict=True)]


def _response(spec: ModelSpec, dialogue: Dialogue, place: Answered, reply: Reply | Unanswered) -> Response:
    termination: Stopped | Lost | None
    if isinstance(reply, Unanswered):
        text, termination, usage = "", reply.outcome, None
    else:
        line = utterance(reply)
        text, termination, usage = line.text, line.stopped, usage_of([("supporter", reply)])
    return Response(
        dialogue_id=dialogue.id,
        language=dialogue.language,
        turn=place.turn,
        supporter=spec.name,
        text=text,
        reference=place.text,
        termination=termination,
        usage=usage,
    )
