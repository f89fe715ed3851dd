"""Role cards by a model (ESC-Eval section 2.2.2, figures 4 and 6 to 8): extraction, the event filter and categories.

Replies are kept in the caller's store, so no question is asked twice. A reply that cannot be parsed is not lost: it becomes an
`Unread` with its raw text. The prompts are in configs/prompts/cards, in our own words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from core.judge_prompts import transcript
from core.languages import asked_in
from core.ledger import BuildStep
from core.prompts import load_pack
from core.records import Identifier, Language, Number, Post, Record, RoleCard, SupportDialogue
from data_prep.cards import card_text, parse_card_text
from data_prep.cards.heuristic import card_id
from data_prep.cards.taxonomy import Labelled, Taxonomy
from serve.answers import Reply, choice_probabilities
from serve.batch import Batch
from serve.failures import Unanswered
from serve.questions import Question

T = TypeVar("T")
PACK = "cards"
NO_EVENT = "feelings without an event"
UNANSWERED: dict[str, str] = {"infrastructure": "no answer", "rejected": "rejected by the server"}  # a rerun asks these again
CARD_TOKENS = 900  # the longest card at one token per character; specs of simulators and judges allow less
# Guided decoding allows the four lines that `parse_card_text` reads, bounded so that a weak model stops, too. No published card
# is longer.
_LONGEST = {"words": (90, 130, 600), "characters": (20, 40, 200)}  # characters of age, occupation, problem


class Unread(Record):
    """A call without a usable answer: the item, card or seed that it was about, the step, the reason, and the raw reply."""

    id: Identifier
    step: str
    reason: str
    raw: str = ""


class Verdict(Record):
    """The filter's verdict on a card. `probability` is that of keeping it, 0 to 1; null without log-probabilities."""

    card_id: Identifier
    keep: bool
    probability: Number | None = None


@dataclass(frozen=True)
class Prompt:
    """System and user message of one question, and the answers that are allowed."""

    system: str
    text: str
    choices: tuple[str, ...] | None = None
    regex: str | None = None


class Asker:
    """Asks one model about items, cards or seeds by their ids. Replies may have `tokens` tokens, or more if the model's spec
    allows it; `unit` is what the progress line counts."""

    def __init__(self, batch: Batch, tokens: int = CARD_TOKENS, unit: str = "cards") -> None:
        self._batch, self._tokens, self._unit = batch, tokens, unit

    def ask(self, prompts: Mapping[str, Prompt], step: str, temperature: float = 0.0) -> dict[str, Reply | Unread]:
        """A reply, or the reason why there is none, for every prompt by its id. A rerun asks only what is missing."""
        spec = self._batch.spec
        limits = {"temperature": temperature, "max_tokens": max(self._tokens, spec.sampling.max_tokens)}
        questions = [
            Question(
                [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.text}],
                sample={"item": key, "step": step},
                sampling=spec.sampling.model_copy(update=limits),
                served_name=spec.served_name(),
                purpose="extraction",
                choices=prompt.choices,
                regex=prompt.regex,
                logprobs=prompt.choices is not None,
            )
            for key, prompt in prompts.items()
        ]
        answers: dict[str, Reply | Unread] = {}
        for key, reply in zip(prompts, self._batch.ask(questions, self._unit) if questions else [], strict=True):
            if isinstance(reply, Unanswered):
                raw = str(reply) if reply.outcome == "rejected" else ""
                answers[key] = _unread(key, step, UNANSWERED[reply.outcome], raw)
            elif reply.finish_reason == "context_overflow":
                answers[key] = _unread(key, step, "context overflow")
            else:
                answers[key] = _unread(key, step, "refused", reply.text) if reply.refused else reply
        return answers


def _parsed(
    answers: Mapping[str, Reply | Unread], steps: Mapping[str, BuildStep], read: Callable[[str, Reply], T | Unread]
) -> tuple[dict[str, T], list[Unread]]:
    """The answers' values as `read` parses them, by key, and the unreadable ones; each counts in the step of its key."""
    values: dict[str, T] = {}
    unread: list[Unread] = []
    for key, answer in answers.items():
        value = answer if isinstance(answer, Unread) else read(key, answer)
        steps[key].taken += 1
        if isinstance(value, Unread):
            steps[key].drop(value.reason, key)
            unread.append(value)
        else:
            steps[key].kept += 1
            values[key] = value
    return values, unread


def _unread(key: str, step: str, reason: str, raw: str = "") -> Unread:
    return Unread(id=key, step=step, reason=reason, raw=raw)


# --- extraction -----------------------------------------------------------------------------------------------------------


def extract(
    items: Sequence[SupportDialogue | Post], asker: Asker, steps: Mapping[Language, BuildStep]
) -> tuple[list[RoleCard], list[Unread]]:
    """A card for every item whose reply can be read, in the items' order; one prompt for posts, another for dialogues."""
    by_id = {item.id: item for item in items}
    answers = asker.ask({key: extraction_prompt(item) for key, item in by_id.items()}, "extract")
    steps_of = {key: steps[item.language] for key, item in by_id.items()}
    cards, unread = _parsed(answers, steps_of, lambda key, reply: read_card(by_id[key], reply))
    return list(cards.values()), unread


def extraction_prompt(item: SupportDialogue | Post) -> Prompt:
    """The prompt about an item: figures 6 (post) and 7 (dialogue, with its situation where the corpus has one)."""
    language, pack, wording = item.language, load_pack(PACK), asked_in(item.language)
    system, colon = pack.render(language, "extract_system.j2"), wording.colon
    if isinstance(item, Post):
        text = pack.render(language, "extract_post.j2", data=item.text)
    else:
        head = f"{wording.situation}{colon}{item.situation}\n\n" if item.situation else ""
        data = head + transcript(item.dialogue)
        text = pack.render(language, "extract_dialogue.j2", data=data, situated=bool(item.situation))
    age, occupation, problem = _LONGEST[wording.counts]
    lines = (
        rf"{wording.age}{colon}[^\n]{{1,{age}}}\n{wording.gender}{colon}({wording.male}|{wording.female}|{wording.unknown})\n"
        rf"{wording.occupation}{colon}[^\n]{{1,{occupation}}}\n{wording.problem}{colon}[^\n]{{1,{problem}}}"
    )
    return Prompt(system, text, regex=lines)


def read_card(item: SupportDialogue | Post, reply: Reply) -> RoleCard | Unread:
    """The reply's four lines as a card; list marks and bold type are allowed. A reply that was cut off is unread."""
    if reply.finish_reason == "length":
        return _unread(item.id, "extract", "cut off", reply.text)
    lines = (re.sub(r"^[\s>#*•-]+", "", line).replace("**", "") for line in reply.text.splitlines())
    try:
        fields = parse_card_text("\n".join(lines))
    except ValueError:
        return _unread(item.id, "extract", "unreadable", reply.text)
    if not fields["problem"]:
        return _unread(item.id, "extract", "no problem named", reply.text)
    origin = item if isinstance(item, Post) else item.dialogue
    source_id = origin.source_id or item.id
    return RoleCard(
        id=card_id(origin.source, source_id),
        language=item.language,
        **fields,
        source=origin.source,
        source_id=source_id,
        card_method="llm",
    )


# --- filter and categories -------------------------------------------------------------------------------------------------


def filter_cards(
    cards: Sequence[RoleCard], asker: Asker, steps: Mapping[Language, BuildStep]
) -> tuple[list[RoleCard], list[RoleCard], list[Verdict], list[Unread]]:
    """Cards kept and dropped (figure 8: feelings without an event), all verdicts, and cards without a readable verdict. The
    last count as drops of their step until a rerun or a person decides."""
    choices = ("0", "1")
    answers = asker.ask({card.id: _choice_prompt(card, "filter", choices) for card in cards}, "filter")
    kept: list[RoleCard] = []
    dropped: list[RoleCard] = []
    verdicts, unread = [], []
    faults: dict[str, str | None] = {}
    for card in cards:
        answer = answers[card.id]
        choice = answer if isinstance(answer, Unread) else read_choice(answer, choices, card.id, "filter")
        if isinstance(choice, Unread):
            faults[card.id] = choice.reason
            unread.append(choice)
        else:
            assert isinstance(answer, Reply)
            keep = choice == "1"
            faults[card.id] = None if keep else NO_EVENT
            (kept if keep else dropped).append(card)
            verdicts.append(Verdict(card_id=card.id, keep=keep, probability=probability(answer, "1", choices)))
    for language, step in steps.items():
        step.sieve([card for card in cards if card.language == language], lambda card: faults[card.id])
    return kept, dropped, verdicts, unread


def categorise(
    cards: Sequence[RoleCard], taxonomy: Taxonomy, asker: Asker, steps: Mapping[int, BuildStep]
) -> tuple[list[RoleCard], list[Unread]]:
    """Every card with its path of three levels: one question for level 1, one for level 3 among its leaves (figure 4). A card
    with an unreadable answer keeps its earlier category (often none) and is among the unread. `steps` are those of levels 1 and
    3."""
    unread: list[Unread] = []

    def choose(options: Mapping[str, Sequence[Labelled]], level: int) -> dict[str, int]:
        """The index (from 0) of the option chosen for every card, by its id."""
        numbers = {key: tuple(str(number) for number, _ in enumerate(offered, start=1)) for key, offered in options.items()}
        prompts = {}
        for card in (card for card in cards if card.id in options):
            labels = [option.label(card.language) for option in options[card.id]]
            prompts[card.id] = _choice_prompt(card, "categorise", numbers[card.id], options=labels)
        name = f"level {level}"
        chosen, unreadable = _parsed(
            asker.ask(prompts, name),
            dict.fromkeys(prompts, steps[level]),
            lambda key, reply: read_choice(reply, numbers[key], key, name),
        )
        unread.extend(unreadable)
        return {key: int(number) - 1 for key, number in chosen.items()}

    first = choose({card.id: taxonomy.categories for card in cards}, 1)
    leaves = {key: taxonomy.categories[place].leaves for key, place in first.items()}
    second = choose({key: [leaf for _, leaf in below] for key, below in leaves.items()}, 3)
    paths = {key: leaves[key][place][0] for key, place in second.items()}
    placed = [card.model_copy(update={"category": paths[card.id]}) if card.id in paths else card for card in cards]
    return placed, unread


def _choice_prompt(card: RoleCard, name: str, choices: tuple[str, ...], **values: object) -> Prompt:
    pack = load_pack(PACK)
    text = pack.render(card.language, f"{name}.j2", data=card_text(card), **values)
    return Prompt(pack.render(card.language, f"{name}_system.j2"), text, choices=choices)


def read_choice(reply: Reply, choices: Sequence[str], key: str, step: str) -> str | Unread:
    """The choice that a reply states, perhaps with a full stop or bracket after it; anything longer is unread, not guessed."""
    text = reply.text.strip().rstrip(".。)）").strip()
    if text in choices:
        return text
    return _unread(key, step, "cut off" if reply.finish_reason == "length" and not text else "unreadable", reply.text)


def probability(reply: Reply, wanted: str, choices: Sequence[str]) -> float | None:
    """The probability of one choice among the (one-token) choices, 0 to 1; None where the server reported none that fits this
    answer."""
    for token, alternatives in reply.tokens or []:
        if token.strip() in choices:
            probabilities = choice_probabilities(token, alternatives, choices)
            return probabilities[wanted] if probabilities and reply.text.strip().startswith(token.strip()) else None
    return None
