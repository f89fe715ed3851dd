"""The simulator audit: rates of what simulators do and people in trouble do not (beyond the paper, whose B.3 names some), by
fixed phrases and counted words. They miss other wordings, and are sometimes wrong about real people: a rate is meaningful only
compared with that of human seekers."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from math import nan

import numpy as np

from core.grouping import group_by
from core.languages import in_order, name_of, texts
from core.records import Count, Dialogue, Identifier, Language, Record, RoleCard
from core.settings import Patterns
from core.statistics.bootstrap import SHARES, SMOOTHED
from core.tables import Cell, Estimate, Table
from data_prep.cards.heuristic import stated_age, stated_gender, statements
from data_prep.line_checks import MACHINE, SUPPORTER, knows, phrase, searched, terms, units
from evalsuite.statistics.contestants import card_of
from evalsuite.statistics.paired import over_cards
from evalsuite.statistics.summary import seeker_of, supporter_of

EVERYTHING = 0.5  # share of the card's words in the first line from which it says all at once
REPEATED = 0.6  # share of a line's three-word runs in one earlier line from which it repeats it
_SHORT = 4  # words or characters: shorter lines ("thanks", "I don't know") may be repeated
EARLY = 2  # exchanges in which it is too soon for thanks or a farewell

# Thanks, relief and farewell, except "no thanks" and "thanks to him". Both languages' lists are tried on every line.
CHEERFUL = (
    r"(?<!no )\b(?:thanks|thank you|thx)\b(?! to\b(?! you\b))",
    r"\bi(?:'m| am)? (?:already |actually )?(?:feel(?:ing)?|am feeling) (?:so |much |a lot |a bit |a little |already )*"
    r"(?:better|relieved|lighter|hopeful|calmer|grateful)\b",
    r"\byou(?:'ve| have)? (?:really |already )?(?:helped|made my day|cheered me up)\b",
    r"\b(?:that|this|it)(?:'s| is| was|'s been| has been) (?:really |very |so |such )*"
    r"(?:helpful|great advice|good advice|comforting)\b",
    r"\bi(?:'ll| will) (?:definitely |certainly )?(?:try (?:that|it|this|your)|give (?:that|it) a (?:try|go))\b",
    r"\b(?:good ?bye(?! to\b)|bye(?: bye)?)\b",
    r"(?<!\bi )(?<!\bwe )(?<!n't )(?<!not )(?<!to )(?<!ever )(?<!even )\bhave a (?:nice|great|good) (?:day|evening|night)\b",
    r"(?<!to )\btake care\b(?! of (?!yourself))",
    r"(?:谢谢|感谢|多谢)(?![不他她它])",
    r"(?:好受|好|舒服|轻松|开心|放心|安心)(?:了)?(?:很)?多了|心情好(?:了|多)|豁然开朗|茅塞顿开",
    r"(?:很|非常|太|真)?(?:有帮助|受用)|我会(?:去)?(?:试试|试一试|尝试)",
    r"(?:再见|拜拜)(?=[了啦吧哦呀]?(?:[\s,，.。!！?？;；~～…、]|$))",
)
_REVEALING = (r"</?think(?:ing)?>", *MACHINE)
# What sounds like it but is not: an answer to "how are you?", or thanks denied, asked for, wished for or reported of others.
_THANK = r"(?:thank you|thanks?)\b"
_BYE = r"(?:good ?)?byes?\b"
_NOT = r"(?:\w*n't|not|never|nobody|no one|without|hardly|rarely|barely)"
_IF = r"(?:when|whenever|if|until|till|unless|before|once|how|why|will|would|can|could|should|do|did|wish|hope)"
_SMALL = (  # words that may come between a denial and what it denies
    r"(?:有|很|太|真|那么|这么|怎么|什么|任何|觉得|感觉|感到|变得|心情|心里|是|会|能|敢|想|再|更|比以前|就|才|可以|让|我|你|说|"
    r"得到|用了?|必|做|来得及|机会|好好)*"
)
_RELIEF_ZH = r"(?:有帮助|受用|(?:好受|好|舒服|轻松|开心|放心|安心)了?很?多了|心情好[了多]|豁然开朗)"
_UNMEANT = re.compile(
    "|".join(
        (
            rf"\b(?:fine|ok(?:ay)?|good|well|alright)[,.]? ?{_THANK}(?: for asking\b)?",
            rf"\b{_NOT} (?:(?:even|ever|once|really|bother(?:s|ed)? to|get to|got to|want to|have to) )*"
            rf"(?:say|says|saying|said|hear|heard|get|gets|got|getting|receive[ds]?) (?:\w+ ){{0,3}}?(?:{_THANK}|{_BYE})",
            rf"\b{_NOT} (?:(?:even|ever|once|really) )*{_THANK}",
            rf"\b(?:says|said|saying) (?:\w+ ){{0,2}}?(?:{_THANK}|{_BYE})",
            rf"\b(?:say|tell|told|wav(?:e[ds]?|ing)|kiss(?:ed|es|ing)?) (?:\w+ ){{0,3}}?{_BYE}",
            rf"\b(?:a|the|my|our|his|her|last|final|proper) {_BYE}",
            rf"\b(?:a|any) (?:simple |single |proper )?{_THANK}|\bthanks (?:me|him|her|us|them)\b",
            rf"\b{_IF} (?:i|it|that|this|you)\b",
            rf"\b{_NOT} (?:say|think|believe|feel like|know|see|sure)(?: (?:if|that|how))* (?:i|it|that|this|you)\b",
            rf"(?:没|(?<![得能])不|未|(?<!特)别|无法|难以|谁){_SMALL}(?:{_RELIEF_ZH}|再见|拜拜|谢谢|感谢|多谢)",
            rf"(?:什么时候|啥时候|何时|怎么|怎样|如何|如果|要是|希望|[能会]不[能会]){_SMALL}{_RELIEF_ZH}",
            r"(?:没人|没有人|从来?[不没]|从未|(?<![得能])[不没]曾?)(?:[跟对和给向]?我)?[说道讲]?[过声句一]*(?:谢谢|感谢|再见)",
            r"[说连一][过声句个一]*(?:谢谢|感谢|再见)[都也]",
        )
    ),
    re.I,
)

_AGES = (  # words on cards, and the ages they may mean at most
    (r"teen|adolescent|少年", 10, 19),
    (r"young|青年|青壮年|年轻", 15, 44),
    (r"middle|中年|中老年", 35, 65),
    (r"\bold\b|elder|senior|老", 55, 120),
)
_GENDERS = {"female": r"\b(?:female|wom[ae]n|girl)\b|女", "male": r"\b(?:male|m[ae]n|boy)\b|男"}


class Finding(Record):
    """A finding of a check. `turn` counts all turns from 0; null for a judge's verdict on the whole dialogue."""

    check: Identifier
    dialogue_id: Identifier
    turn: Count | None
    text: str
    detail: str


# --- rules: a dialogue and its card → places among all turns with details, None if the rule does not apply -----------------

Found = list[tuple[int, str]]


def lines_of(dialogue: Dialogue) -> Iterator[tuple[int, str]]:
    """The seeker's non-empty lines, with their places among all turns."""
    return ((place, turn.text) for place, turn in enumerate(dialogue.turns) if turn.role == "seeker" and turn.text.strip())


def leaves_card(dialogue: Dialogue, card: RoleCard | None) -> Found | None:
    """Lines in which the seeker states another age, gender or trade than the card's. None if the card has none of them."""
    if card is None or not (card.age or card.gender or card.occupation):
        return None
    lines = _suspected(_statements(card.language), [*lines_of(dialogue)])
    return [(place, detail) for place, text in lines for detail in _contradictions(text.replace("’", "'"), card)]


@lru_cache
def _statements(language: Language) -> Patterns:
    """Patterns that may state an age, a gender or a trade."""
    trades = [_any_trade(language).pattern] if texts(language, "trades.yaml") else []
    return Patterns.model_validate([*statements("age", language), *statements("gender", language), *trades])


def _contradictions(text: str, card: RoleCard) -> Iterator[str]:
    if (age := stated_age(text, card.language)) and (ages := age_range(card.age)) and not ages[0] <= int(age) <= ages[1]:
        yield f"age {age}, card: {card.age}"
    stated, gender = _gender(stated_gender(text, card.language)), _gender(card.gender)
    if stated and gender and gender != stated:
        yield f"gender {stated}, card: {card.gender}"
    trades = texts(card.language, "trades.yaml")
    if card.occupation and trades and _any_trade(card.language).search(text):
        for trade, fits in trades["trades"].items():
            match = re.search(trades["self"] % trade, text, re.I)
            if match and not re.search(fits, f"{card.occupation} {card.problem}", re.I):
                yield f"occupation {match['trade']}, card: {card.occupation}"


@lru_cache
def _any_trade(language: Language) -> re.Pattern[str]:
    trades = texts(language, "trades.yaml")
    return re.compile(trades["self"] % "|".join(trades["trades"]), re.I)


def age_range(text: str) -> tuple[int, int] | None:
    """The ages that a card's age may mean: a number ± 1, the decade of "30s", the years of a word like teenage; else None."""
    if decades := [int(number) for number in re.findall(r"\b(\d0)(?:'?s\b|多)", text)]:
        return min(decades), max(decades) + 9
    if numbers := [int(number) for number in re.findall(r"\d{1,3}", text)]:
        return min(numbers) - 1, max(numbers) + 1
    spans = [(low, high) for pattern, low, high in _AGES if re.search(pattern, text, re.I)]
    return (min(low for low, _ in spans), max(high for _, high in spans)) if spans else None


def _gender(text: str) -> str | None:
    genders = {name for name, pattern in _GENDERS.items() if re.search(pattern, text, re.I)}
    return genders.pop() if len(genders) == 1 else None


def _with_phrases(dialogue: Dialogue, card: RoleCard | None, phrases: tuple[str, ...]) -> Found:
    """The seeker's lines with one of the phrases."""
    lines = _suspected(searched(phrases), [*lines_of(dialogue)])
    return [(place, words) for place, text in lines if (words := phrase(phrases, text))]


def _suspected(patterns: Patterns, lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """The lines, if any of the patterns may match in them. One search over all takes a fifth of the time of one per line."""
    text = "\n".join(text for _, text in lines).replace("’", "'")
    return lines if patterns.candidates(text) else []


def cheers_up_early(dialogue: Dialogue, card: RoleCard | None) -> Found:
    """Thanks, relief or a farewell in the seeker's first `EARLY` lines."""
    lines = _suspected(searched(CHEERFUL), [*islice(lines_of(dialogue), EARLY)])
    return [(place, words) for place, text in lines if (words := cheerful(text))]


def cheerful(text: str) -> str | None:
    """The first words of genuine thanks, relief or farewell in a line; None without any."""
    plain = text.replace("’", "'")
    return phrase(CHEERFUL, _UNMEANT.sub("…", plain)) if searched(CHEERFUL).candidates(plain) else None


def told_at_once(dialogue: Dialogue, card: RoleCard | None) -> float | None:
    """The share (0–1) of the content words (zh: character pairs) of the card's problem that the seeker's first line has."""
    card_terms = _terms(card.problem, card.language) if card else frozenset()
    first = next(lines_of(dialogue), None)
    if not card_terms or first is None or card is None:
        return None
    return len(card_terms & _terms(first[1], card.language)) / len(card_terms)


@lru_cache
def _terms(text: str, language: Language) -> frozenset[str]:
    return frozenset(terms(text, language))


def says_everything(dialogue: Dialogue, card: RoleCard | None) -> Found | None:
    """A first line with `EVERYTHING` or more of the card's words. None without a card."""
    share = told_at_once(dialogue, card)
    if share is None:
        return None
    place, _ = next(lines_of(dialogue))
    return [(place, f"{100 * share:.0f} % of the card's words")] * (share >= EVERYTHING)


def repeats_itself(dialogue: Dialogue, card: RoleCard | None) -> Found:
    """Lines that repeat an earlier one: `REPEATED` or more of their runs of three words (zh: characters) occur in it."""
    findings: Found = []
    earlier: list[set[tuple[str, str, str]]] = []
    for place, text in lines_of(dialogue):
        words = units(text, dialogue.language)
        if len(words) < _SHORT:
            continue
        runs = set(zip(words, islice(words, 1, None), islice(words, 2, None), strict=False))
        if any(len(runs & before) >= REPEATED * len(runs) for before in earlier):
            findings.append((place, "an earlier line again"))
        earlier.append(runs)
    return findings


reveals_model = partial(_with_phrases, phrases=_REVEALING)  # also reasoning that should not leave the simulator
plays_supporter = partial(_with_phrases, phrases=SUPPORTER)  # the seeker gives advice or comfort
Check = Callable[[Dialogue, RoleCard | None], Found | None]
COUNTED = ("says_everything", "repeats_itself")  # checks without phrases, which work in any language
CHECKS: dict[str, tuple[str, Check]] = {
    "leaves_card": ("leaves the card %", leaves_card),
    "reveals_model": ("reveals a model %", reveals_model),
    "cheers_up_early": ("cheers up too soon %", cheers_up_early),
    "says_everything": ("says all at once %", says_everything),
    "repeats_itself": ("repeats itself %", repeats_itself),
    "plays_supporter": ("plays the supporter %", plays_supporter),
}


SECTION = "Simulator audit"


@dataclass(frozen=True)
class Audited:
    """A dialogue's findings by check (None: the check does not apply), and the share of the card told in the first line."""

    dialogue: Dialogue
    findings: Mapping[str, Found | None]
    told: float | None


def audit(dialogues: Sequence[Dialogue], cards: Mapping[str, RoleCard]) -> list[Audited]:
    """Every check on every dialogue with a seeker's line, sorted by dialogue id. `cards` maps dialogue id → its card."""
    audited = []
    for dialogue in sorted(dialogues, key=lambda dialogue: dialogue.id):
        if any(lines_of(dialogue)):
            card, has_phrases = cards.get(dialogue.id), knows(dialogue.language)
            checks = ((name, check, has_phrases or name in COUNTED) for name, (_, check) in CHECKS.items())
            findings = {name: check(dialogue, card) if applies else None for name, check, applies in checks}
            audited.append(Audited(dialogue, findings, told_at_once(dialogue, card)))
    return audited


def findings(audited: Iterable[Audited]) -> list[Finding]:
    """Every finding, dialogue by dialogue."""
    return [
        Finding(check=check, dialogue_id=of.dialogue.id, turn=turn, text=of.dialogue.turns[turn].text, detail=detail)
        for of in audited
        for check, found in of.findings.items()
        for turn, detail in found or ()
    ]


def audit_table(audited: Sequence[Audited]) -> Table:
    """The share of dialogues with a finding, by seeker, supporter, language and check."""
    groups = group_by(audited, lambda a: (seeker_of(a.dialogue), supporter_of(a.dialogue), a.dialogue.language))
    rows: list[dict[str, Cell]] = []
    for (seeker, supporter, language), members in sorted(groups.items()):
        rows.append({"seeker": seeker, "supporter": supporter, "language": language})
        heads = (*(label for label, _ in CHECKS.values()), "card told in first line %")
        rows[-1] |= dict(zip(heads, _shares(members), strict=True))
    notes = [
        f"Share of dialogues with at least one finding, n = dialogues that the check applies to, [{SMOOTHED} over cards]. The "
        "checks are fixed phrases and counted words: they miss other wordings, and their share among human seekers is their "
        "rate of false alarms.",
        "Leaves the card: states another age, gender or trade than the card. Applies where the card has one of them.",
        f"Cheers up too soon: thanks, relief or a farewell in the first {EARLY} lines.",
        f"Says all at once: the first line has {EVERYTHING:.0%} or more of the content words (zh: pairs of characters) of the "
        f"card's problem. The last column is the mean share.",
        f"Repeats itself: {REPEATED:.0%} or more of a line's runs of three words (zh: characters) occur in one earlier line.",
    ]
    lacking = in_order(member.dialogue.language for member in audited if not knows(member.dialogue.language))
    if lacking:
        notes.append(f"There are no phrases to look for in {', '.join(map(name_of, lacking))}: those checks are left out.")
    return Table.of("simulator_audit", "What seekers do that people do not", rows, notes, SECTION)


def _shares(members: Sequence[Audited]) -> list[Estimate]:
    """The shares of dialogues with a finding by check, and last the mean share of the card that is told, in per cent; cards are
    drawn whole. Checks that apply to the same dialogues are computed together."""
    flags = [[nan if (f := m.findings.get(name)) is None else bool(f) for name in CHECKS] for m in members]
    told_shares = [nan if member.told is None else member.told for member in members]
    shares = 100 * np.column_stack([np.array(flags, dtype=float), told_shares])
    cells = [Estimate(None, None, None, 0)] * shares.shape[1]
    for columns in group_by(range(len(cells)), lambda column: tuple(np.isnan(shares[:, column]))).values():
        applies = ~np.isnan(shares[:, columns[0]])
        if applies.any():
            cards = [card_of(member.dialogue) for member, counted in zip(members, applies, strict=True) if counted]
            estimates = over_cards(shares[applies][:, columns], cards, 100 * SHARES)
            cells = [estimates[columns.index(place)] if place in columns else cell for place, cell in enumerate(cells)]
    return cells
