"""Role cards without a model: from what a corpus says about its seekers, never from the dialogue's turns.

A card made so carries `card_method: heuristic`. Its problem is the seeker's own situation with the corpus's labels behind it,
so it is shorter and rougher than one that a model writes; age and gender are there only where they are stated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from core.files import digest
from core.ledger import BuildStep
from core.records import Language, Post, RoleCard, SupportDialogue

NO_SITUATION = "no situation"
TOO_SHORT = "situation too short"
FEELING_ONLY = "situation names a feeling only"
# What a situation needs before it can say who did what. Of ESConv's 1,300 situations 63 have fewer than five words, and nearly
# all of those repeat the label ("academic pressure"); from five on most say that something happened.
LEAST = {"en": 5, "zh": 8}  # words; Chinese characters

# Words that tell of a state and of no event. A situation made of nothing else is dropped, as figure 8's filter would do.
_FEELINGS = (
    "anxiety anxious bad blue depressed depression down emotional empty feel feeling feelings feels felt good happy "
    "heavy hopeless horrible loneliness lonely low mood nervous overwhelmed overwhelming sad sadness scared stress "
    "stressed struggle struggling stuck terrible tired unhappy upset worried worry worthless"
)
_FILLERS = (
    "a about all also always am an and are at be been being but can't cannot cant constantly day days don't dont "
    "everyday everything for general generally get getting had has have having i i'm i've im in is it it's just kind "
    "life like little lot me mind more most much my myself never no not nothing now of often ongoing really seem "
    "seems so some sometimes still such that the thing things this time times to today too usually very want was way "
    "week weeks well what why with without years"
)
FEELING_WORDS = frozenset(f"{_FEELINGS} {_FILLERS}".split())

_AGE_EN = (
    re.compile(r"\bI(?:'m| am)(?: an?)? (?P<age>\d{2})[- ]?(?:years?[- ]old|y/?o|yrs?[- ]old)\b", re.I),
    re.compile(r"\bI ?[(\[](?P<age>\d{2}) ?[MF][)\]]", re.I),
    re.compile(r"\bI(?:'m| am)(?: now| currently)? (?P<age>\d{2})(?= and\b|[.,;!]|$)(?!,\d)", re.I),
    re.compile(r"\bmy age (?:is )?\(?(?P<age>\d{2})\b", re.I),
)
_YEARS = r"(?:\d{2}[- ]?(?:years?[- ]old|y/?o|yrs?[- ]old) )?"
_ADJECTIVES = r"(?:(?:young|younger|old|older|single|married|divorced|widowed|gay|straight|stay[- ]at[- ]home|working) )*"
_FEMALE = r"(?P<female>woman|girl|female|mother|mom|mum|wife|widow|lady)"
_MALE = r"(?P<male>man|guy|boy|male|father|dad|husband|widower)"
_GENDER_EN = (
    re.compile(rf"\bI(?:'m| am) an? {_YEARS}{_ADJECTIVES}(?:{_FEMALE}|{_MALE})\b(?!['’]s)(?! of an?\b)(?! friend)", re.I),
    re.compile(r"\bI ?[(\[]\d{2} ?(?:(?P<female>F)|(?P<male>M))[)\]]", re.I),
)
_MEASURE = r"(?:是)?(?:一?[个名位])?"
_AGE_ZH = (
    re.compile(rf"我(?:今年|现在|已经|刚满|刚)?{_MEASURE}(?P<age>\d{{2}})岁(?![时那以之]|的时候)"),
    re.compile(r"本人(?:[男女][,，])?(?P<age>\d{2})岁"),
    re.compile(r"^[男女][,，] ?(?P<age>\d{2})岁?(?=[,，。])"),
)
_GENDER_ZH = (
    re.compile(
        r"我(?:今年)?是(?:一?[个名位])?(?:\d{2}岁的?)?"  # 是 is needed: 我妈妈 is somebody else
        r"(?:(?P<female>女生|女孩|女性|女人|妈妈|母亲)|(?P<male>男生|男孩|男性|男人|爸爸|父亲))(?=[,，。！;；\s]|$)"
    ),
    re.compile(r"本人(?:(?P<female>女)|(?P<male>男))(?![朋友友生孩])"),
    re.compile(r"^(?:(?P<female>女)|(?P<male>男))[,，]"),
)
_AGES = {"en": _AGE_EN, "zh": _AGE_ZH}
_GENDERS = {"en": _GENDER_EN, "zh": _GENDER_ZH}
_GENDER_WORDS = {"en": {"female": "female", "male": "male"}, "zh": {"female": "女", "male": "男"}}


def card_id(source: str, source_id: str) -> str:
    """`card-SOURCE-SOURCE_ID`, safe in file names: `/` becomes `_`; unusual and long ids keep apart by eight hex digits."""
    if re.fullmatch(r"[A-Za-z0-9.-]+(/[A-Za-z0-9.-]+)*", source_id) and len(source_id) <= 100:
        return f"card-{source}-{source_id.replace('/', '_')}"
    return f"card-{source}-{re.sub(r'[^A-Za-z0-9.-]+', '_', source_id)[:80]}_{digest(source_id, 8)}"


def heuristic_cards(items: Iterable[SupportDialogue | Post], steps: Mapping[Language, BuildStep]) -> list[RoleCard]:
    """A card for every item whose corpus states a situation that can hold an event; the others are dropped with a reason.

    A post has no situation beside its text, so it makes no card here. `steps` count each language by itself.
    """
    return [card for item in items for card in steps[item.language].make([item], heuristic_card)]


def heuristic_card(item: SupportDialogue | Post) -> RoleCard | str:
    """An item's card, or the reason (as text) why it makes none."""
    if isinstance(item, Post):
        return NO_SITUATION
    situation = " ".join(item.situation.split())
    return unfit(situation, item.language) or card_of_situation(item, situation)


def unfit(situation: str, language: Language) -> str | None:
    """Why a situation makes no card: none there, fewer than `LEAST` words (characters), feelings only (en). None if fit."""
    if not situation:
        return NO_SITUATION
    words = re.findall(r"[\w'-]+", situation.lower().replace("’", "'"))
    size = len(words) if language == "en" else len(re.findall(r"[一-鿿]", situation))
    if size < LEAST[language]:
        return TOO_SHORT
    return FEELING_ONLY if language == "en" and FEELING_WORDS.issuperset(words) else None


def stated_age(text: str, language: Language) -> str:
    """The age that the writer gives as their own, 10 to 99 in digits; "" where none or several are given."""
    if not re.search(r"\d\d", text):  # as most texts, in a third of the time
        return ""
    ages = {match["age"] for pattern in _AGES[language] for match in pattern.finditer(text)}
    return ages.pop() if len(ages) == 1 else ""


def stated_gender(text: str, language: Language) -> str:
    """female or male (女, 男) where the writer says so of themselves in plain words; "" otherwise."""
    matches = [match for pattern in _GENDERS[language] for match in pattern.finditer(text)]
    genders = {"female" if match["female"] else "male" for match in matches}
    return _GENDER_WORDS[language][genders.pop()] if len(genders) == 1 else ""


def card_of_situation(item: SupportDialogue, situation: str) -> RoleCard:
    dialogue, language = item.dialogue, item.language
    source_id = dialogue.source_id or dialogue.id
    return RoleCard(
        id=card_id(dialogue.source, source_id),
        language=language,
        age=item.age or stated_age(situation, language),
        gender=item.gender or stated_gender(situation, language),
        occupation=item.occupation,
        problem=_problem(situation, item.problem, item.emotion, language),
        source=dialogue.source,
        source_id=source_id,
        card_method="heuristic",
    )


def _problem(situation: str, problem: str, emotion: str, language: Language) -> str:
    """The situation as a sentence, then the corpus's labels as sentences of their own."""
    names = ("Kind of trouble", "Main feeling") if language == "en" else ("烦恼的种类", "主要情绪")
    colon, stop = (": ", ".") if language == "en" else ("：", "。")
    closed = situation if situation[-1] in ".!?…。！？\"'”" else situation + stop
    said = [label.strip().rstrip(".。") for label in (problem, emotion)]  # some corpora's labels are sentences
    labels = [f"{name}{colon}{label}{stop}" for name, label in zip(names, said, strict=True) if label]
    return (" " if language == "en" else "").join([closed, *labels])
