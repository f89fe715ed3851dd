"""Which of two seekers is closer to a human being (ESC-Eval section 2.3.2, figure 3), asked of a judge or answered by people.

A judge sees every pair in both orders.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from core.errors import UserError
from core.judge_prompts import transcript
from core.prompts import PromptPack, load_pack
from core.records import LOST, Annotator, Dialogue, Identifier, Message, Order, Preference, Record, Verdict
from core.tables import Table
from evalsuite.papers.role_play.seekers import ROLE_PLAY, Field, claim
from evalsuite.papers.role_play.win_rates import Choice, Mode, Words, win_rate_tables
from evalsuite.runner.engine import Runner
from evalsuite.runs.identity import identity
from evalsuite.statistics.summary import seeker_of
from serve.client import ChatClient
from serve.failures import Unanswered
from serve.questions import Question

QUESTION = "closer_to_human"
CHOICES = ("1", "2", "tie")
TEMPLATES = ("pairwise_system.j2", "pairwise.j2")


class PairAnswer(Record):
    """One answer on two dialogues shown in one order; `verdict` is null where it could not be read or was not given."""

    dialogue_a: Identifier
    dialogue_b: Identifier
    annotator: Annotator
    question: str
    verdict: Verdict | None
    order: Order
    raw: str = ""
    failure: str | None = None

    def preference(self) -> Preference | None:
        """The answer as the record that people's answers have too; None without a verdict."""
        if self.verdict is None:
            return None
        return Preference.model_validate(self.model_dump(exclude={"raw", "failure"}))


def given_answers(preferences: Sequence[Preference]) -> list[PairAnswer]:
    """Preferences from elsewhere as answers. Raises `UserError` for answers on several questions."""
    questions = sorted({preference.question for preference in preferences})
    if len(questions) > 1:
        raise UserError(f"preferences on several questions: {', '.join(questions[:5])}; give one file a question")
    return [PairAnswer.model_validate(preference.model_dump()) for preference in preferences]


# --- which pairs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """Two dialogues on one card or profile, of two seekers; simulated ones had the same supporter in the same trial."""

    a: Dialogue
    b: Dialogue


def pairs_of(seekers: Field) -> tuple[list[Pair], Counter[str]]:
    """Every pair, card by card, and how many dialogues of each seeker are in none because nobody answered them or a server
    failed. Raises `UserError` when there is no pair at all."""
    by_card: dict[str, list[Dialogue]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for dialogue in seekers.dialogues:
        if dialogue.lost or not dialogue.exchanges:
            left_out[seeker_of(dialogue)] += 1
        else:
            by_card[seekers.cards[dialogue.id].id].append(dialogue)
    pairs = [
        Pair(a, b)
        for dialogues in by_card.values()
        for a, b in combinations(dialogues, 2)
        if seeker_of(a) != seeker_of(b)
        and a.language == b.language
        and (a.supporter is None or b.supporter is None or (a.supporter, a.trial) == (b.supporter, b.trial))
    ]
    if not pairs:
        raise UserError("nobody was played by two seekers (with the same supporter and trial): nothing to compare")
    return pairs, left_out


def shown(pair: Pair, mode: Mode) -> tuple[str, str]:
    """Both transcripts as a judge reads them.

    What the supporter says before the seeker's first line is left out: it is fixed in simulations and absent in corpora. In
    native mode the longer chat is cut to the turns of the shorter one, so that length does not tell them apart.
    """
    turns = []
    for dialogue in (pair.a, pair.b):
        first = next(place for place, turn in enumerate(dialogue.turns) if turn.role == "seeker")
        turns.append(dialogue.turns[first:])
    length = min(map(len, turns)) if mode == "native" else None
    cut = zip((pair.a, pair.b), turns, strict=True)
    a, b = (transcript(dialogue.model_copy(update={"turns": spoken[:length]})) for dialogue, spoken in cut)
    return a, b


def messages(prompts: PromptPack, pair: Pair, order: Order, mode: Mode) -> list[Message]:
    """What a judge is asked about a pair in one order."""
    a, b = shown(pair, mode)
    language = pair.a.language
    first, second = (a, b) if order == "ab" else (b, a)
    return [
        {"role": "system", "content": prompts.render(language, TEMPLATES[0])},
        {"role": "user", "content": prompts.render(language, TEMPLATES[1], first=first, second=second)},
    ]


# --- asking -----------------------------------------------------------------------------------------------------------------


def read_answer(text: str, order: Order) -> Verdict | None:
    """The verdict of "1", "2" or "tie" on the chats as shown (case, quotes and a full stop do not matter); None for others."""
    said = text.strip().strip("\"'“”.。").strip().lower()
    if said not in CHOICES:
        return None
    if said == "tie":
        return "tie"
    return "a" if (said == "1") == (order == "ab") else "b"


def compare_seekers(runner: Runner, seekers: Field, pairs: Sequence[Pair]) -> list[PairAnswer]:
    """Both orders of every pair of `seekers`, asked of the judge. A lost server, a rejected call or an overflow is a null
    verdict with its `failure`."""
    resolved, pack = runner.resolved, runner.resolved.judge_pack
    spec, mode = resolved.models.judge, resolved.config.mode
    prompts = load_pack(pack)  # it need not hold a judge's prompts for scores
    prompts.require({pair.a.language for pair in pairs}, TEMPLATES)
    claim(
        runner.run,
        "pairwise",
        {
            "mode": mode,
            "judge": identity(spec),
            "question": QUESTION,
            "prompts": {"pack": pack, "fingerprint": prompts.fingerprint()},
        },
        seekers,
    )

    async def answer(client: ChatClient, job: tuple[Pair, Order]) -> PairAnswer:
        pair, order = job
        question = Question(
            messages(prompts, pair, order, mode),
            sample={"dialogue_a": pair.a.id, "dialogue_b": pair.b.id, "order": order, "question": QUESTION},
            sampling=spec.sampling,
            served_name=spec.served_name(),
            purpose="judge",
            choices=CHOICES,
            held_tokens=4,
        )
        text, failure = "", None
        try:
            reply = await client.ask(spec, question)
            text = reply.text
            failure = "context_overflow" if reply.finish_reason == "context_overflow" else "refusal" if reply.refused else None
        except Unanswered as error:
            failure = error.outcome
        return PairAnswer(
            dialogue_a=pair.a.id,
            dialogue_b=pair.b.id,
            annotator=spec.name,
            question=QUESTION,
            verdict=None if failure else read_answer(text, order),
            order=order,
            raw=text,
            failure=failure,
        )

    orders: tuple[Order, ...] = ("ab", "ba")
    jobs = [(pair, order) for pair in pairs for order in orders]
    return runner.judged("role-play pairwise", jobs, answer, "answers").results


# --- what the answers come to -------------------------------------------------------------------------------------------------


WORDS = Words("role_play", "seeker", "cards", ROLE_PLAY)
TITLES = {QUESTION: "Closer to a human"}


def choices_of(answers: Sequence[PairAnswer], dialogues: Sequence[Dialogue]) -> list[Choice]:
    """Answers on these dialogues as choices between their seekers.

    Raises `UserError` for a dialogue that is not given, or two dialogues on different cards (or profiles) or of one seeker.
    """
    known = {dialogue.id: dialogue for dialogue in dialogues}
    choices = []
    for answer in answers:
        for id in (answer.dialogue_a, answer.dialogue_b):
            if id not in known:
                raise UserError(f"answer by {answer.annotator}: no dialogue {id!r} among those given")
        a, b = known[answer.dialogue_a], known[answer.dialogue_b]
        where = f"answer by {answer.annotator} on {a.id} and {b.id}"
        if seeker_of(a) == seeker_of(b):
            raise UserError(f"{where}: both are of seeker {seeker_of(a)}")
        person, other = a.card_id or a.profile_id, b.card_id or b.profile_id
        if person is None or person != other:
            both = f"{person or 'none'} and {other or 'none'}"
            raise UserError(f"{where}: card_id or profile_id: {both}; a pair is on one of them")
        first, lost = seeker_of(a if answer.order == "ab" else b), answer.failure in LOST
        choice = Choice(a.language, person, seeker_of(a), seeker_of(b), answer.verdict, first=first, lost=lost)
        choice = replace(choice, annotator=answer.annotator, question=answer.question, outputs=(a.id, b.id))
        choices.append(choice.sorted())
    return choices


def pairwise_tables(answers: Sequence[PairAnswer], dialogues: Sequence[Dialogue], mode: Mode) -> list[Table]:
    """Win rates of every seeker, every pair of seekers, and what annotators make of the order (figure 3, and beyond)."""
    return [*win_rate_tables(choices_of(answers, dialogues), mode, WORDS, TITLES)]
