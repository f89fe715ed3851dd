"""Method `pairs`: which of two dialogues with one person is the better one, asked dimension by dimension in the words of a
published pack (ESC-Judge). A verdict is what the dialogue made of it: 1 won, 0.5 tied, 0 lost.

A dialogue is put beside that of every other supporter with the same person in the same trial. Natively both orders are asked;
in paper mode one, with the dialogue first that comes first in the run. Both dialogues of a pair have a verdict of every answer:
`condition` says against whom (`against`) and whether this one was shown first or second (`shown`), which makes no other scorer;
`repeat` counts the answers.
"""

from __future__ import annotations

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
from serve.questions import Question

POINTS = {"a": 1.0, "tie": 0.5, "b": 0.0}
_SAID = re.compile(r"\bmodel ([ab])\b|\b(tie)\b")
_FAVOURED = re.compile(r"\*\*(?:support\s+)?model\s+([ab])\*\* (?:demonstrates a slightly higher|performs better|outperforms)")


def verdict_in(text: str) -> Verdict | None:
    """Which of "Model A", "Model B" and "Tie" the last verdict of an answer names first, if it names no other."""
    line = next(filter(None, (line.strip(" #*:<>") for line in text.lower().rpartition("verdict")[2].splitlines())), "")
    found = {match[1] or match[2] for match in _SAID.finditer(line)}
    return found.pop() if "verdict" in text.lower() and len(found) == 1 else None  # type: ignore[return-value]


def published_verdict(text: str) -> Verdict | None:
    """As the published analysis reads it (data_analysis.ipynb): what stands after the first "# Verdict".

    Odd: "tie" counts anywhere, in "identities" too; without that heading, or with both models and no phrase that favours one of
    them, it is a tie. None where neither a model nor a tie is named, at which the published code stops.
    """
    said = text.split("# Verdict")[1].strip().lower() if "# Verdict" in text else "tie"
    named = [letter for letter in "ab" if f"model {letter}" in said]
    if "tie" in said:
        return "tie"
    if len(named) == 1:
        return named[0]  # type: ignore[return-value]
    favoured = _FAVOURED.search(said)
    return None if not named else favoured[1] if favoured else "tie"  # type: ignore[return-value]


def partners(dialogue: Dialogue, among: Sequence[Dialogue]) -> list[Dialogue]:
    """The dialogues of other supporters with the same person in the same trial, where somebody was answered."""
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
    shown: list[tuple[Dialogue, bool]] = []  # the other dialogue, and whether this one comes first
    for other in partners(dialogue, judge.among):
        earlier = places[dialogue.id] < places[other.id]
        shown += [(other, earlier)] if paper else [(other, True), (other, False)]
    if not shown:
        return [judge.judgement(dialogue, name, "", failure="no_partner") for name in names]
    asked = [(number, name, other, first) for number, (other, first) in enumerate(shown) for name in names]
    answers = await together(_answer(judge, *((dialogue, o) if first else (o, dialogue)), name) for _, name, o, first in asked)
    return [_judgement(judge, dialogue, *what, answer) for what, answer in zip(asked, answers, strict=True)]


async def _answer(judge: Judge, first: Dialogue, second: Dialogue, name: str) -> Reply | NoVerdict:
    """The answer on a pair. Both its dialogues wait for it, it is asked once."""
    key, known = (first.id, second.id, name), None
    if (known := judge.asked.get(key)) is None or known[0] is not judge.client:
        known = judge.asked[key] = judge.client, asyncio.ensure_future(judge.reply(_question(judge, first, second, name)))
        known[1].add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits any more
    return await asyncio.shield(known[1])  # who stops waiting leaves it to the other


def _question(judge: Judge, first: Dialogue, second: Dialogue, name: str) -> Question:
    more = {"transcript_a": judge.shown.transcript(first), "transcript_b": judge.shown.transcript(second)}
    return Question(
        judge_messages(judge.prompts, judge.rubric, first, judge.method, [name], more),
        sample={"dialogue": first.id, "other": second.id, "dimension": name, "repeat": judge.repeat},
        sampling=judge.spec.sampling,
        served_name=judge.spec.served_name(first.language, name),
        purpose="judge",
        session=first.id,
        readable=lambda text: _reader(judge)(text) is not None,
    )


def _reader(judge: Judge) -> Callable[[str], Verdict | None]:
    return published_verdict if judge.shown.mode == "paper" else verdict_in


def _judgement(
    judge: Judge, dialogue: Dialogue, number: int, name: str, other: Dialogue, first: bool, answer: Reply | NoVerdict
) -> Judgement:
    """What the dialogue made of a pair."""
    if isinstance(answer, NoVerdict):
        made = judge.judgement(dialogue, name, answer.raw, failure=answer.reason)
    else:
        verdict = _reader(judge)(answer.text)
        points = None if verdict is None else POINTS[verdict] if first else 1 - POINTS[verdict]
        made = judge.judgement(dialogue, name, answer.text, points)
    said = {"against": str(other.supporter), "shown": "first" if first else "second"}
    return made.model_copy(update={"repeat": number, "condition": made.condition | said})


def check(rubric: Rubric) -> None:
    """Raise `UserError` for a rubric whose dimensions are not on a scale of lost (0), tied (0.5) and won (1)."""
    no_tree(rubric)
    for name, scale in rubric.scales.items():
        if scale.scores != (0, 0.5, 1):
            levels = "{lost: 0, tied: 0.5, won: 1}"
            raise UserError(f"rubric {rubric.name}: {name}: method pairs needs `scale: {{levels: {levels}}}`, not {scale}")


by_pairs = Method(_score, check=check, by_dimension=True, on_scale=False, together=True)
