"""Which of two seekers is closer to a human being (ESC-Eval section 2.3.2, figure 3), answered by a judge or by people.

A judge sees every pair in both orders.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations

from core.errors import UserError
from core.judge_prompts import transcript
from core.prompts import load_pack
from core.records import LOST, Dialogue, Order, Preference, Verdict
from core.tables import Table
from evalsuite.papers.role_play import ROLE_PLAY, Field, claim
from evalsuite.papers.win_rates import Choice, Mode, Words, win_rate_tables
from evalsuite.runner.engine import Runner
from evalsuite.runs.run_config import identity
from evalsuite.statistics.correlation import known_dialogue
from evalsuite.statistics.summary import seeker_of
from serve.client import ChatClient
from serve.failures import Unanswered
from serve.questions import Question

QUESTION = "closer_to_human"
CHOICES = ("1", "2", "tie")
TEMPLATES = ("pairwise_system.j2", "pairwise.j2")


class PairAnswer(Preference):
    """One answer on two dialogues shown in one order; `verdict` is null if it could not be read or was not given."""

    verdict: Verdict | None  # type: ignore[assignment]
    raw: str = ""
    failure: str | None = None

    def preference(self) -> Preference | None:
        """The answer as the record used for people's answers; None without a verdict."""
        return None if self.verdict is None else Preference.model_validate(self.model_dump(exclude={"raw", "failure"}))


# --- which pairs ------------------------------------------------------------------------------------------------------------

Pair = tuple[Dialogue, Dialogue]


def pairs_of(seekers: Field) -> tuple[list[Pair], Counter[str]]:
    """Pairs of two seekers' dialogues on the same card or profile, simulated ones with the same supporter in the same trial;
    and how many dialogues of each seeker are left out because they have no exchange or a server failed. Raises `UserError` if
    there is no pair at all."""
    by_card: dict[str, list[Dialogue]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for dialogue in seekers.dialogues:
        if dialogue.lost or not dialogue.exchanges:
            left_out[seeker_of(dialogue)] += 1
        else:
            by_card[seekers.cards[dialogue.id].id].append(dialogue)
    pairs = [
        (a, b)
        for dialogues in by_card.values()
        for a, b in combinations(dialogues, 2)
        if seeker_of(a) != seeker_of(b)
        and a.language == b.language
        and (a.supporter is None or b.supporter is None or (a.supporter, a.trial) == (b.supporter, b.trial))
    ]
    if not pairs:
        raise UserError("no card was played by two seekers (with the same supporter and trial): nothing to compare")
    return pairs, left_out


def shown(pair: Pair, mode: Mode) -> tuple[str, str]:
    """Both transcripts as a judge reads them.

    They begin with the seeker's first line: what the supporter says before is fixed in simulations and absent in corpora. In
    native mode the longer chat is cut to the number of turns of the shorter one, so that length does not tell them apart.
    """
    starts = [next(place for place, turn in enumerate(d.turns) if turn.role == "seeker") for d in pair]
    turns = [dialogue.turns[start:] for dialogue, start in zip(pair, starts, strict=True)]
    length = min(map(len, turns)) if mode == "native" else None
    a, b = (transcript(d.model_copy(update={"turns": part[:length]})) for d, part in zip(pair, turns, strict=True))
    return a, b


# --- asking -----------------------------------------------------------------------------------------------------------------


def read_answer(text: str, order: Order) -> Verdict | None:
    """The verdict of "1", "2" or "tie" on the chats as shown, whatever its case, quotes and full stop; None for other text."""
    answer = text.strip().strip("\"'“”.。").strip().lower()
    if answer not in ("1", "2"):
        return "tie" if answer == "tie" else None
    return "a" if (answer == "1") == (order == "ab") else "b"


def compare_seekers(runner: Runner, seekers: Field, pairs: Sequence[Pair]) -> list[PairAnswer]:
    """The judge's answers on every pair of `seekers` in both orders. A lost server, a rejected call or an overflow gives a
    null verdict with its `failure`."""
    resolved, pack = runner.resolved, runner.resolved.judge_pack
    spec, mode = resolved.models.judge, resolved.config.mode
    prompts = load_pack(pack)  # not `judge_prompts`: the pack need not have prompts for scores
    prompts.require({a.language for a, _ in pairs}, TEMPLATES)
    settings = {"mode": mode, "judge": identity(spec), "question": QUESTION}
    settings["prompts"] = {"pack": pack, "fingerprint": prompts.fingerprint()}
    claim(runner.run, "pairwise", settings, seekers)

    async def answer(client: ChatClient, job: tuple[Pair, Order]) -> PairAnswer:
        pair, order = job
        first, second = shown(pair, mode) if order == "ab" else shown(pair, mode)[::-1]
        values: dict[str, dict[str, str]] = {"pairwise_system.j2": {}, "pairwise.j2": {"first": first, "second": second}}
        system, user = (prompts.render(pair[0].language, name, **value) for name, value in values.items())
        sample = {"dialogue_a": pair[0].id, "dialogue_b": pair[1].id, "order": order, "question": QUESTION}
        question = Question(
            [{"role": "system", "content": system}, {"role": "user", "content": user}],
            sample=sample,
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
        verdict = None if failure else read_answer(text, order)
        answered = {"annotator": spec.name, "verdict": verdict, "raw": text, "failure": failure}
        return PairAnswer.model_validate(sample | answered)

    orders: tuple[Order, ...] = ("ab", "ba")
    jobs = [(pair, order) for pair in pairs for order in orders]
    return runner.judged("role-play pairwise", jobs, answer, "answers").results


# --- from answers to tables ---------------------------------------------------------------------------------------------------

WORDS = Words("role_play", "seeker", "cards", ROLE_PLAY)
TITLES = {QUESTION: "Closer to a human"}


def choices_of(answers: Sequence[Preference], dialogues: Sequence[Dialogue]) -> list[Choice]:
    """Answers on these dialogues as choices between their seekers. Raises `UserError` for a dialogue that is not given, and
    two dialogues of one seeker or on different cards (or profiles)."""
    by_id = {dialogue.id: dialogue for dialogue in dialogues}
    choices = []
    for answer in answers:
        where = f"answer by {answer.annotator} on {answer.dialogue_a} and {answer.dialogue_b}"
        a, b = (known_dialogue(by_id, id, where) for id in (answer.dialogue_a, answer.dialogue_b))
        if seeker_of(a) == seeker_of(b):
            raise UserError(f"{where}: both are of seeker {seeker_of(a)}")
        person, other = a.card_id or a.profile_id, b.card_id or b.profile_id
        if person is None or person != other:
            persons = f"{person or 'none'} and {other or 'none'}"
            raise UserError(f"{where}: card_id or profile_id: {persons}; both dialogues of a pair need the same")
        choice = Choice(
            *(a.language, person, seeker_of(a), seeker_of(b), answer.verdict),
            annotator=answer.annotator,
            question=answer.question,
            outputs=(a.id, b.id),
            first=seeker_of(a if answer.order == "ab" else b),
            lost=isinstance(answer, PairAnswer) and answer.failure in LOST,
        )
        choices.append(choice.sorted())
    return choices


def pairwise_tables(answers: Sequence[Preference], dialogues: Sequence[Dialogue], mode: Mode) -> list[Table]:
    """Win rates of every seeker, every pair of seekers, and the effect of the order shown (figure 3, and beyond)."""
    return [*win_rate_tables(choices_of(answers, dialogues), mode, WORDS, TITLES)]
