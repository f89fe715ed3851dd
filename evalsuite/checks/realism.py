"""How real simulated seekers are: their lines against those of people, by a classifier and by counted words.

The classifier is shown single lines and says whose they are; it is trained on other dialogues than those it is shown. At 50 %
it cannot tell them apart. It also learns what dialogues are about: both sides should have the same kinds of trouble, and what
it makes of people against people, in two random halves, stands beside it.

The other rows are means over dialogues. Of the nine features by which Heo et al. 2026 (arXiv 2601.07698) control a seeker, five
are among them: verbosity (words per line), the number of turns, profanity, self-disclosure and resistance, by rules and counted
words. Coping strategy, engagement, style and the distribution of reactions take a model that tags lines; of reactions, thanks
and lines that go against what was said are counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import nan
from typing import NamedTuple

import numpy as np

from core.errors import UserError
from core.files import digest
from core.grouping import group_by
from core.languages import in_order, name_of
from core.records import Dialogue, Language
from core.statistics.bootstrap import POINTS, SEED, SMOOTHED, Floats, estimate, scale_levels, smoothed_means
from core.tables import Cell, Estimate, Table
from data_prep.line_checks import knows, units
from data_prep.role_play.contamination import terms
from evalsuite.checks.simulator import SECTION
from evalsuite.checks.simulator_rules import cheerful, lines_of
from evalsuite.statistics.clusters import card_of
from evalsuite.statistics.paired import by_card
from evalsuite.statistics.summary import seeker_of

MOST = 150  # dialogues of a side that the classifier reads, at random
FOLDS = 5
FIRST = 50  # words, among which different ones are counted
_ME = re.compile(r"\b(?:i|me|my|mine|myself)\b|我|咱", re.I)
_SWEARS = re.compile(
    r"\b(?:damn(?:ed|it)?|hell|crap(?:py)?|(?:bull)?shit\w*|\w*fuck\w*|bitch\w*|bastards?|ass(?:hole)?s?|pissed)\b"
    r"|他妈|妈的|操你|傻[逼B]|混蛋|该死|狗屁",
    re.I,
)
# A line that goes against what was said: it begins with a no or a but, or doubts that something helps.
_AGAINST = re.compile(
    r"^\W*(?:no\b|nope|nah|but\b|not really|i (?:don't|do not) (?:think|know|want|see)|i (?:can't|cannot|won't))"
    r"|^\W*i(?:'ve| have) tried|\bwhat's the point\b"
    r"|\b(?:won't|will not|doesn't|does not|didn't|did not|can't|cannot) (?:really )?(?:help|work|change|matter)\b"
    r"|^\W*(?:不[,，是会想行]|没用|可是|但是|但|我不|算了)|没(?:什么)?用|有什么用|帮不了",
    re.I,
)


class SeekerFigures(NamedTuple):
    """One side's dialogues as figures: [dialogues, measures], NaN where one is not defined, and the card of each."""

    values: Floats
    cards: list[str]


def _share(lines: Sequence[str], what: Callable[[str], object]) -> float:
    return 100 * sum(bool(what(line)) for line in lines) / len(lines)


def _new(lines: Sequence[str], language: Language) -> Floats:
    """How many content words (zh: pairs of characters) each line says that none before it did, in per cent of all."""
    known, counts = set[str](), []
    for line in lines:
        new = set(terms(line, language)) - known
        known |= new
        counts.append(len(new))
    return 100 * np.array(counts) / len(known) if known else np.full(len(lines), nan)


Measure = Callable[[Sequence[str], Language], float]
PHRASED = ("self-disclosure", "resistance", "profanity", "thanks")  # these look for words of English and Chinese


def _first_words(lines: Sequence[str], language: Language) -> float:
    words = [word for line in lines for word in units(line, language)]
    return len(set(words[:FIRST])) if len(words) >= FIRST else nan


MEASURES: dict[str, tuple[str, Measure]] = {
    "lines": ("lines per dialogue", lambda lines, language: len(lines)),
    "length": ("words per line (zh: characters)", lambda lines, lang: float(np.mean([len(units(one, lang)) for one in lines]))),
    "spread": ("spread of words per line", lambda lines, lang: float(np.std([len(units(one, lang)) for one in lines]))),
    "vocabulary": (f"different words among the first {FIRST}", _first_words),
    "told first": ("told in the first line, % of content words", lambda lines, language: float(_new(lines, language)[0])),
    "told early": (
        "told in the first half of the lines, %",
        lambda lines, language: float(_new(lines, language)[: -(-len(lines) // 2)].sum()) if len(lines) > 1 else nan,
    ),
    "questions": ("lines with a question, %", lambda lines, language: _share(lines, re.compile("[?？]").search)),
    "self-disclosure": (
        "self-disclosure: I, me, my per 100 words",
        lambda lines, lang: 100 * sum(len(_ME.findall(one)) for one in lines) / max(sum(len(units(o, lang)) for o in lines), 1),
    ),
    "resistance": (
        "resistance: lines that go against what was said, %",
        lambda lines, lang: _share(lines[1:] or lines, against),
    ),
    "profanity": ("lines with swearing, %", lambda lines, language: _share(lines, _SWEARS.search)),
    "thanks": ("lines with thanks, relief or a farewell, %", lambda lines, language: _share(lines, cheerful)),
}


def against(line: str) -> bool:
    """Whether a line goes against what was said, in plain words."""
    return bool(_AGAINST.search(line.replace("’", "'")))


def side_of(dialogues: Iterable[Dialogue], language: Language) -> SeekerFigures:
    """The figures of the dialogues in which the seeker says something."""
    spoken = [(one, lines) for one in dialogues if (lines := [text for _, text in lines_of(one)])]
    known = knows(language)
    values = [
        [nan if name in PHRASED and not known else measure(lines, language) for name, (_, measure) in MEASURES.items()]
        for _, lines in spoken
    ]
    return SeekerFigures(np.array(values, dtype=float).reshape(len(spoken), len(MEASURES)), [card_of(one) for one, _ in spoken])


def _mean(values: Floats, cards: Sequence[str], levels: Floats, seed: int = SEED) -> tuple[float, Floats, int, int]:
    """The mean of dialogues' figures, its draws (cards are drawn whole), and how many dialogues and cards there are."""
    there = ~np.isnan(values)
    if not there.any():
        return nan, np.array([nan]), 0, 0
    sums, counts = by_card(values[there, None], [card for card, known in zip(cards, there, strict=True) if known])
    return float(values[there].mean()), smoothed_means(sums, counts, levels, seed)[:, 0], int(there.sum()), len(sums)


def compared(people: SeekerFigures, seekers: SeekerFigures) -> Iterator[tuple[Estimate, Estimate, Estimate]]:
    """Of every measure: people's mean, the simulated seekers', and the difference, two samples apart. A card that nobody has
    seen may have any share, or of what is no share anything from the least to the most that was seen on either side."""
    for place, (label, _) in enumerate(MEASURES.values()):
        both = np.concatenate([people.values[:, place], seekers.values[:, place]])
        seen = both[~np.isnan(both)]
        levels = POINTS if "%" in label or not len(seen) else scale_levels(seen.min(), seen.max())
        own, other = (_mean(side.values[:, place], side.cards, levels, SEED + n) for n, side in enumerate((people, seekers)))
        gap = estimate(other[0] - own[0], other[1] - own[1], other[2], min(own[3], other[3]))
        yield estimate(*own), estimate(*other), gap


def told_apart(people: Sequence[Dialogue], seekers: Sequence[Dialogue]) -> Estimate:
    """How many lines in 100 a classifier gives to the right side, both sides counting the same; n counts lines of both.

    Logistic regression on runs of one to three characters, trained on other cards than those of the lines that it is shown
    (`FOLDS` folds). Interval: cards are drawn whole, with what the classifiers said of their lines, and it is made wider for
    what the folds share. None with fewer than `FOLDS` cards on a side.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline

    texts, labels, cards = [], [], []
    for label, side in enumerate((people, seekers)):
        for one in sorted(side, key=lambda one: digest(one.id))[:MOST]:
            for _, text in lines_of(one):
                texts.append(text)
                labels.append(label)
                cards.append(f"{label} {card_of(one)}")
    wanted = np.array(labels)
    if min((len({card for card in cards if card[0] == side}) for side in "01"), default=0) < FOLDS:
        return Estimate(None, None, None, len(texts))
    model = make_pipeline(
        TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 3), min_df=2, sublinear_tf=True, max_features=20_000),
        LogisticRegression(class_weight="balanced", max_iter=1000),
    )
    folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=0)
    right = 100.0 * (cross_val_predict(model, texts, wanted, groups=cards, cv=folds) == wanted)
    sides = [
        _mean(right[wanted == side], [card for card in cards if card[0] == str(side)], POINTS, SEED + side) for side in (0, 1)
    ]
    seen, draws = (sides[0][0] + sides[1][0]) / 2, (sides[0][1] + sides[1][1]) / 2
    # Classifiers of overlapping folds err together: their variance is 1 + K / (K - 1) times as large (Nadeau and Bengio 2003).
    draws = np.clip(seen + (draws - seen) * (1 + FOLDS / (FOLDS - 1)) ** 0.5, 0, 100)
    return estimate(seen, draws, len(texts), min(sides[0][3], sides[1][3]))


def realism_tables(people: Sequence[Dialogue], simulated: Sequence[Dialogue]) -> Iterator[Table]:
    """A table per language: every seeker against people. Raises `UserError` where people speak none of the languages."""
    spoken = {one.language for one in people if any(lines_of(one))}
    shared = [language for language in in_order(one.language for one in simulated) if language in spoken]
    if not shared:
        raise UserError(
            f"--seekers: no line of a seeker in {', '.join(in_order(d.language for d in simulated)) or 'any language'}"
        )
    for language in shared:
        own = [one for one in people if one.language == language]
        rows: list[tuple[Cell, ...]] = []
        halves = group_by(own, lambda one: int(digest(card_of(one), 2), 16) % 2)
        among = told_apart(halves.get(0, []), halves.get(1, []))
        for seeker, talks in group_by((d for d in simulated if d.language == language), seeker_of).items():
            rows.append((seeker, "told apart from people by a classifier, %", among, told_apart(own, talks), None))
            pairs = zip(MEASURES.values(), compared(side_of(own, language), side_of(talks, language)), strict=True)
            rows += [(seeker, label, *cells) for (label, _), cells in pairs if cells[1].n]
        notes = (
            f"[{SMOOTHED} over cards or, without any, dialogues], n = dialogues; of the classifier, lines. Difference: the "
            "seeker's mean less people's; where its interval does not contain 0, the seeker differs from people in this.",
            f"The classifier reads lines of at most {MOST} dialogues a side and is tested on cards that it was not trained on: "
            "at 50 % it cannot tell. Beside it: people against people, in two halves. It also learns what dialogues are about: "
            "give people's dialogues on the same kinds of trouble.",
            "Counted words miss what is put otherwise, on both sides. Told: of all content words of a seeker, those first said "
            "there.",
        )
        columns = ("seeker", "measure", "people", "simulated", "difference")
        yield Table(f"realism-{language}", f"Seekers against people, {name_of(language)}", columns, tuple(rows), notes, SECTION)
