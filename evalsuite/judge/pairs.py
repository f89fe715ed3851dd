"""Method `pairs`: which of two dialogues with the same person is better, asked for each dimension in the words of a published
prompt pack (ESC-Judge). A dialogue's verdict is 1 (won), 0.5 (tied) or 0 (lost).

A dialogue is compared with that of every other supporter with the same person in the same trial. In native mode both orders are
asked; in paper mode only one, in which the dialogue that comes first in the run is shown first. Every answer gives both
dialogues of the pair a verdict: `condition` has the opponent (`against`) and the position (`shown`: first or second), which do
not make it another scorer's, and `repeat` numbers the answers.
"""

import asyncio
import re
from collections.abc import Callable, Sequence

from core.errors import UserError
from core.judge_prompts import judge_messages
from core.records import Dialogue, Judgement, Verdict
from core.rubrics import Rubric
from evalsuite.judge.judge import Judge, NoVerdict
from evalsuite.judge.methods import Method, no_tree
from serve.answers import Reply
from serve.batch import together

POINTS = {"a": 1.0, "tie": 0.5, "b": 0.0}
_NAMED = re.compile(r"\bmodel ([ab])\b|\b(tie)\b")
_FAVOURED = re.compile(r"\*\*(?:support\s+)?model\s+([ab])\*\* (?:demonstrates a slightly higher|performs better|outperforms)")


def verdict_in(text: str) -> Verdict | None:
    """Which of "Model A", "Model B" and "Tie" the first line after the last "verdict" names; None unless it is exactly one."""
    _, heading, verdict = text.lower().rpartition("verdict")
    line = next(filter(None, (line.strip(" #*:<>") for line in verdict.splitlines())), "")
    named = {match[1] or match[2] for match in _NAMED.finditer(line)}
    return named.pop() if heading and len(named) == 1 else None  # type: ignore[return-value]


def published_verdict(text: str) -> Verdict | None:
    """The verdict as the published analysis (data_analysis.ipynb) reads the text after the first "# Verdict".

    "tie" counts anywhere, even in "identities". An answer without that heading is a tie, as is one that names both models
    without a phrase that favours one. None if neither a model nor a tie is named; the published code stops there.
    """
    verdict = text.split("# Verdict")[1].strip().lower() if "# Verdict" in text else "tie"
    named = [letter for letter in "ab" if f"model {letter}" in verdict]
    if "tie" in verdict:
        return "tie"
    if len(named) == 1:
        return named[0]  # type: ignore[return-value]
    favoured = _FAVOURED.search(verdict)
    return None if not named else favoured[1] if favoured else "tie"  # type: ignore[return-value]


def partners(dialogue: Dialogue, among: Sequence[Dialogue]) -> list[Dialogue]:
    """The dialogues of other supporters with the same person in the same trial, if they have an exchange and were not lost."""
    person = dialogue.card_id or dialogue.profile_id or dialogue.source_id
    return [
        other
        for other in among
        if (other.card_id or other.profile_id or other.source_id) == person is not None
        and (other.language, other.trial) == (dialogue.language, dialogue.trial)
        and other.supporter != dialogue.supporter
        and not other.lost
        and other.exchanges
    ]


async def _score(judge: Judge, dialogue: Dialogue) -> list[Judgement]:
    names, paper = list(judge.rubric.dimensions), judge.shown.mode == "paper"
    places = {other.id: place for place, other in enumerate(judge.among)}
    pairs: list[tuple[Dialogue, bool]] = []  # the other dialogue, and whether this one is shown first
    for other in partners(dialogue, judge.among):
        earlier = places[dialogue.id] < places[other.id]
        pairs += [(other, earlier)] if paper else [(other, True), (other, False)]
    if not pairs:
        return [judge.judgement(dialogue, name, "", failure="no_partner") for name in names]
    calls = [(number, name, other, first) for number, (other, first) in enumerate(pairs) for name in names]
    answers = await together(_answer(judge, *((dialogue, o) if first else (o, dialogue)), name) for _, name, o, first in calls)
    return [_judgement(judge, dialogue, *call, answer) for call, answer in zip(calls, answers, strict=True)]


async def _answer(judge: Judge, first: Dialogue, second: Dialogue, name: str) -> Reply | NoVerdict:
    """The answer on a pair, which is asked once and awaited by both dialogues."""
    key = first.id, second.id, name
    client, reply = judge.shared.get(key, (None, None))
    if reply is None or client is not judge.client:
        more = {"transcript_a": judge.shown.transcript(first), "transcript_b": judge.shown.transcript(second)}
        messages = judge_messages(judge.prompts, judge.rubric, first, judge.method, [name], more)
        sample = {"other": second.id, "dimension": name}
        asking = judge.ask(first, messages, sample, name, readable=lambda text: _reader(judge)(text) is not None)
        reply = asyncio.ensure_future(asking)
        judge.shared[key] = judge.client, reply
        reply.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be waiting any more
    return await asyncio.shield(reply)  # if one dialogue is cancelled, the other goes on waiting


def _reader(judge: Judge) -> Callable[[str], Verdict | None]:
    return published_verdict if judge.shown.mode == "paper" else verdict_in


def _judgement(
    judge: Judge, dialogue: Dialogue, number: int, name: str, other: Dialogue, first: bool, answer: Reply | NoVerdict
) -> Judgement:
    """The verdict of an answer on a pair for one of its dialogues."""
    if isinstance(answer, NoVerdict):
        judgement = judge.judgement(dialogue, name, answer.raw, failure=answer.reason)
    else:
        verdict = _reader(judge)(answer.text)
        points = None if verdict is None else POINTS[verdict] if first else 1 - POINTS[verdict]
        judgement = judge.judgement(dialogue, name, answer.text, points)
    condition = judgement.condition | {"against": str(other.supporter), "shown": "first" if first else "second"}
    return judgement.model_copy(update={"repeat": number, "condition": condition})


def check(rubric: Rubric) -> None:
    """Raise `UserError` for a dimension whose scale is not lost (0), tied (0.5), won (1)."""
    no_tree(rubric)
    for name, scale in rubric.scales.items():
        if scale.scores != (0, 0.5, 1):
            levels = "{lost: 0, tied: 0.5, won: 1}"
            raise UserError(f"rubric {rubric.name}: {name}: method pairs needs `scale: {{levels: {levels}}}`, not {scale}")


by_pairs = Method(_score, check=check, by_dimension=True, on_scale=False, together=True)
