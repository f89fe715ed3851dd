"""Role cards by a model (ESC-Eval section 2.2.2, figures 4 and 6 to 8): extraction, the event filter and categories.

Replies are kept in the caller's store, so no question is asked twice. A reply that cannot be parsed is not lost: it becomes an
`Unread` with its raw text. The prompts are in configs/prompts/cards, in our own words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from core.judge_prompts import transcript
from core.languages import asked_in
from core.ledger import BuildStep
from core.prompts import load_pack
from core.records import Identifier, Language, Number, Post, Record, RoleCard, SupportDialogue
from data_prep.cards import Labelled, card_text, load_taxonomy, parse_card_text
from data_prep.cards.heuristic import card_id
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


def ask(
    batch: Batch,
    prompts: Mapping[str, Prompt],
    name: str,
    steps: Mapping[str, BuildStep],
    read: Callable[[str, Reply], T | Unread],
    temperature: float = 0.0,
    tokens: int = CARD_TOKENS,
    unit: str = "cards",
) -> tuple[dict[str, T], list[Unread]]:
    """The values that `read` makes of the replies, by id, and the calls without a value; each counts in the step of its id. A
    rerun asks only what is missing. Replies may have `tokens` tokens, or more if the model's spec allows it."""
    spec = batch.spec
    limits = {"temperature": temperature, "max_tokens": max(tokens, spec.sampling.max_tokens)}
    questions = [
        Question(
            [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.text}],
            sample={"item": key, "step": name},
            sampling=spec.sampling.model_copy(update=limits),
            served_name=spec.served_name(),
            purpose="extraction",
            choices=prompt.choices,
            regex=prompt.regex,
            logprobs=prompt.choices is not None,
        )
        for key, prompt in prompts.items()
    ]
    values: dict[str, T] = {}
    unread: list[Unread] = []
    for key, reply in zip(prompts, batch.ask(questions, unit) if questions else [], strict=True):
        value: T | Unread
        if isinstance(reply, Unanswered):
            raw = str(reply) if reply.outcome == "rejected" else ""
            value = _unread(key, name, UNANSWERED[reply.outcome], raw)
        elif reply.finish_reason == "context_overflow":
            value = _unread(key, name, "context overflow")
        else:
            value = _unread(key, name, "refused", reply.text) if reply.refused else read(key, reply)
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
    items: Sequence[SupportDialogue | Post], batch: Batch, steps: Mapping[Language, BuildStep]
) -> tuple[list[RoleCard], list[Unread]]:
    """A card for every item whose reply can be read, in the items' order; one prompt for posts, another for dialogues."""
    by_id = {item.id: item for item in items}
    prompts = {key: extraction_prompt(item) for key, item in by_id.items()}
    steps_of = {key: steps[item.language] for key, item in by_id.items()}
    cards, unread = ask(batch, prompts, "extract", steps_of, lambda key, reply: read_card(by_id[key], reply))
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
    try:
        fields = parse_card_text(reply.text)
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
    cards: Sequence[RoleCard], batch: Batch, steps: Mapping[Language, BuildStep]
) -> tuple[list[RoleCard], list[RoleCard], list[Verdict], list[Unread]]:
    """Cards kept and dropped (figure 8: feelings without an event), all verdicts, and cards without a readable verdict. The
    last count as drops of their step until a rerun or a person decides."""
    by_id, choices = {card.id: card for card in cards}, ("0", "1")
    verdicts: list[Verdict] = []

    def read(key: str, reply: Reply) -> RoleCard | Unread:
        choice = read_choice(reply, choices, key, "filter")
        if isinstance(choice, Unread):
            return choice
        verdicts.append(Verdict(card_id=key, keep=choice == "1", probability=probability(reply, "1", choices)))
        return by_id[key] if choice == "1" else _unread(key, "filter", NO_EVENT)

    prompts = {key: _choice_prompt(card, "filter", choices) for key, card in by_id.items()}
    kept, lost = ask(batch, prompts, "filter", {key: steps[card.language] for key, card in by_id.items()}, read)
    dropped = [by_id[reply.id] for reply in lost if reply.reason == NO_EVENT]
    return list(kept.values()), dropped, verdicts, [reply for reply in lost if reply.reason != NO_EVENT]


def categorise(cards: Sequence[RoleCard], batch: Batch, steps: Mapping[int, BuildStep]) -> tuple[list[RoleCard], list[Unread]]:
    """Every card with its path of three levels: one question for level 1, one for level 3 among its leaves (figure 4). A card
    with an unreadable answer keeps its earlier category and is among the unread. `steps` are those of the two levels."""
    unread: list[Unread] = []
    areas = load_taxonomy().categories

    def choose(options: Mapping[str, Sequence[Labelled]], level: int) -> dict[str, int]:
        """The index (from 0) of the option chosen for every card, by its id."""
        numbers = {key: tuple(map(str, range(1, len(offered) + 1))) for key, offered in options.items()}
        prompts = {}
        for card in (card for card in cards if card.id in options):
            labels = [option.label(card.language) for option in options[card.id]]
            prompts[card.id] = _choice_prompt(card, "categorise", numbers[card.id], options=labels)
        name = f"level {level}"
        chosen, unreadable = ask(
            batch,
            prompts,
            name,
            dict.fromkeys(prompts, steps[level]),
            lambda key, reply: read_choice(reply, numbers[key], key, name),
        )
        unread.extend(unreadable)
        return {key: int(number) - 1 for key, number in chosen.items()}

    first = choose({card.id: areas for card in cards}, 1)
    leaves = {key: areas[place].leaves for key, place in first.items()}
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
    """The probability of one of the (one-token) choices, 0 to 1; None where the server reported none for this answer."""
    for token, alternatives in reply.tokens or []:
        if token.strip() in choices:
            probabilities = choice_probabilities(token, alternatives, choices)
            return probabilities[wanted] if probabilities and reply.text.strip().startswith(token.strip()) else None
    return None
