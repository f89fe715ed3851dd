"""Role cards without a model: from a corpus's fields about its seekers, never from the dialogue's turns.

Such a card has `card_method: heuristic`. Its problem is the seeker's own situation followed by the corpus's labels, so it is
shorter and rougher than one written by a model; age and gender are given only where they are stated.
"""

import re
from typing import Literal

from core.files import CONFIGS, digest
from core.languages import counts, cut, lineage, texts, words
from core.records import Language, Post, RoleCard, SupportDialogue
from core.settings import load_yaml

NO_SITUATION = "no situation"
TOO_SHORT = "situation too short"
FEELING_ONLY = "situation names a feeling only"
# The shortest situation that can say who did what. Of ESConv's 1,300 situations 63 have fewer than five words, and nearly all
# of those repeat the label ("academic pressure"); most of those with five or more words tell of an event.
LEAST = {"words": 5, "characters": 8}

_WORDS = load_yaml(CONFIGS / "card_situations.yaml", "words of situations")
# A situation that consists of these alone names a state and no event: it is dropped, as figure 8's filter would do.
_FEELING_WORDS = frozenset(f"{_WORDS['feelings']} {_WORDS['fillers']}".split())


def card_id(source: str, source_id: str) -> str:
    """`card-SOURCE-SOURCE_ID`, safe in file names: `/` becomes `_`; eight hex digits keep unusual and long ids distinct."""
    if re.fullmatch(r"[A-Za-z0-9.-]+(/[A-Za-z0-9.-]+)*", source_id) and len(source_id) <= 100:
        return f"card-{source}-{source_id.replace('/', '_')}"
    return f"card-{source}-{re.sub(r'[^A-Za-z0-9.-]+', '_', source_id)[:80]}_{digest(source_id, 8)}"


def heuristic_card(item: SupportDialogue | Post) -> RoleCard | str:
    """An item's card, or the reason (as text) why it gives none: its corpus states no situation that can hold an event."""
    if isinstance(item, Post):  # it has no situation apart from its text
        return NO_SITUATION
    situation = " ".join(item.situation.split())
    return unfit(situation, item.language) or card_of_situation(item, situation)


def unfit(situation: str, language: Language) -> str | None:
    """Why a situation gives no card: empty, fewer than `LEAST` words (characters), feelings only (en). None if it does."""
    if not situation:
        return NO_SITUATION
    tokens = re.findall(r"[\w'-]+", situation.lower().replace("’", "'")) if language == "en" else cut(situation, language)
    size = sum(not token.isascii() for token in tokens) if counts(language) == "characters" else len(tokens)
    if size < LEAST[counts(language)]:
        return TOO_SHORT
    return FEELING_ONLY if language == "en" and _FEELING_WORDS.issuperset(tokens) else None


def statements(field: Literal["age", "gender"], language: Language) -> list[str]:
    """The patterns by which people state their age or gender; [] for a language without any (`statements.yaml`)."""
    own: list[str] = texts(language, "statements.yaml").get(field, [])
    return next((_WORDS[field][code] for code in lineage(language) if code in _WORDS[field]), own)


def stated_age(text: str, language: Language) -> str:
    """The age that the writer gives as their own, 10 to 99 in digits; "" where none or several are given."""
    if not re.search(r"\d\d", text):  # true of most texts, and three times as fast
        return ""
    ages = {match["age"] for pattern in statements("age", language) for match in re.finditer(pattern, text)}
    return ages.pop() if len(ages) == 1 else ""


def stated_gender(text: str, language: Language) -> str:
    """female or male (女, 男) where the writer says so of themselves in plain words; "" otherwise."""
    matches = [match for pattern in statements("gender", language) for match in re.finditer(pattern, text)]
    genders = {"female" if match["female"] else "male" for match in matches}
    return words(language)[genders.pop()] if len(genders) == 1 else ""


def card_of_situation(item: SupportDialogue, situation: str) -> RoleCard:
    """A card whose problem is the situation as a sentence, then the corpus's labels as sentences of their own."""
    dialogue, language = item.dialogue, item.language
    wording = words(language)
    sentences = [situation if situation[-1] in ".!?…。！？।؟\"'”’" else situation + wording.stop]
    for name, label in ((wording.trouble, item.problem), (wording.feeling, item.emotion)):
        if bare := label.strip().rstrip(".。"):  # some corpora's labels are sentences
            sentences.append(f"{name}{wording.colon}{bare}{wording.stop}")
    source_id = dialogue.source_id or dialogue.id
    return RoleCard(
        id=card_id(dialogue.source, source_id),
        language=language,
        age=item.age or stated_age(situation, language),
        gender=item.gender or stated_gender(situation, language),
        occupation=item.occupation,
        problem=wording.space.join(sentences),
        source=dialogue.source,
        source_id=source_id,
        card_method="heuristic",
    )
