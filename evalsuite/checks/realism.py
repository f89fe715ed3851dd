"""How real simulated seekers are: their lines compared with people's, by a classifier, by counted words and by a model's tags.

The rows other than the classifier's are means over dialogues. They cover the nine features by which Heo et al. 2026 (arXiv
2601.07698) control a seeker. Three are counted: verbosity (words per line), the number of turns and profanity. In the paper a
model tags the other six: coping strategy, engagement, resistance, utterance style, self-disclosure and the distribution of
reactions. Here the tags are a judge's verdicts on the rubric `TAGS`; without them, words count resistance, self-disclosure and,
of reactions, thanks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import nan
from typing import Any, NamedTuple

import numpy as np

from core.errors import UserError
from core.files import digest
from core.grouping import group_by
from core.languages import in_order, name_of
from core.records import Dialogue, Judgement, Language
from core.rubrics import load_rubric
from core.statistics.bootstrap import POINTS, SEED, SHARES, SMOOTHED, Floats, estimate, scale_levels, smoothed_means
from core.tables import Cell, Estimate, Table
from data_prep.line_checks import knows, terms, units
from evalsuite.checks.simulator import SECTION, cheerful, lines_of
from evalsuite.statistics.contestants import card_of
from evalsuite.statistics.paired import by_card
from evalsuite.statistics.summary import scorer_of, seeker_of, short_names

TAGS = "seeker_features"  # the rubric of the tags
CLASSIFIED = "lines that a classifier assigns to the right side, %"
MOST = 150  # dialogues per side that the classifier reads, at random
FOLDS = 5
FIRST = 50  # words among which distinct ones are counted
_ME = re.compile(r"\b(?:i|me|my|mine|myself)\b|我|咱", re.I)
_SWEARS = re.compile(
    r"\b(?:damn(?:ed|it)?|hell|crap(?:py)?|(?:bull)?shit\w*|\w*fuck\w*|bitch\w*|bastards?|ass(?:hole)?s?|pissed)\b"
    r"|他妈|妈的|操你|傻[逼B]|混蛋|该死|狗屁",
    re.I,
)
# A line that resists the supporter: it begins with a no or a but, or doubts that something helps.
_AGAINST = re.compile(
    r"^\W*(?:no\b|nope|nah|but\b|not really|i (?:don't|do not) (?:think|know|want|see)|i (?:can't|cannot|won't))"
    r"|^\W*i(?:'ve| have) tried|\bwhat's the point\b"
    r"|\b(?:won't|will not|doesn't|does not|didn't|did not|can't|cannot) (?:really )?(?:help|work|change|matter)\b"
    r"|^\W*(?:不[,，是会想行]|没用|可是|但是|但|我不|算了)|没(?:什么)?用|有什么用|帮不了",
    re.I,
)


class SeekerFigures(NamedTuple):
    """One side's dialogues as figures [dialogues, measures], NaN where a measure is undefined; and each dialogue's card."""

    values: Floats
    cards: list[str]


class Lines(NamedTuple):
    """A seeker's lines: texts, words (zh: characters), and the share (%) of all content words (zh: pairs of characters) that
    each line is the first to say (NaN without any)."""

    texts: list[str]
    words: list[list[str]]
    new: Floats

    @classmethod
    def of(cls, texts: list[str], language: Language) -> Lines:
        earlier, counts = set[str](), []
        for text in texts:
            new = set(terms(text, language)) - earlier
            earlier |= new
            counts.append(len(new))
        return cls(texts, [units(text, language) for text in texts], 100 * np.array(counts) / (len(earlier) or nan))

    def share(self, found: Callable[[str], Any]) -> float:
        """The share of lines (%) in which `found` finds something."""
        return 100 * sum(bool(found(text)) for text in self.texts) / len(self.texts)


def _first_words(seeker: Lines) -> float:
    words = [word for line in seeker.words for word in line]
    return len(set(words[:FIRST])) if len(words) >= FIRST else nan


def against(line: str) -> bool:
    """Whether a line resists the supporter, in plain words."""
    return bool(_AGAINST.search(line.replace("’", "'")))


PHRASED = ("self-disclosure", "resistance", "profanity", "thanks")  # these look for English and Chinese words
MEASURES: dict[str, tuple[str, Callable[[Lines], float]]] = {
    "lines": ("lines per dialogue", lambda seeker: len(seeker.texts)),
    "length": ("words per line (zh: characters)", lambda seeker: float(np.mean([*map(len, seeker.words)]))),
    "spread": ("spread of words per line", lambda seeker: float(np.std([*map(len, seeker.words)]))),
    "vocabulary": (f"different words among the first {FIRST}", _first_words),
    "told first": ("told in the first line, % of content words", lambda seeker: seeker.new[0]),
    "told early": (
        "told in the first half of the lines, %",
        lambda seeker: seeker.new[: -(-len(seeker.new) // 2)].sum() if len(seeker.new) > 1 else nan,
    ),
    "questions": ("lines with a question, %", lambda seeker: seeker.share(re.compile("[?？]").search)),
    "self-disclosure": (
        "self-disclosure: I, me, my per 100 words",
        lambda seeker: 100 * len(_ME.findall("\n".join(seeker.texts))) / max(sum(map(len, seeker.words)), 1),
    ),
    "resistance": (
        "resistance: lines that go against the supporter's, %",
        lambda seeker: seeker._replace(texts=seeker.texts[1:] or seeker.texts).share(against),
    ),
    "profanity": ("lines with swearing, %", lambda seeker: seeker.share(_SWEARS.search)),
    "thanks": ("lines with thanks, relief or a farewell, %", lambda seeker: seeker.share(cheerful)),
}
Tags = Mapping[str, Mapping[str, float]]  # a row of the table → dialogue's id → 100 with the tag, 0 with another


def side_of(dialogues: Iterable[Dialogue], language: Language, tags: Tags | None = None) -> SeekerFigures:
    """The figures of the dialogues in which the seeker says something: all `MEASURES`, then all `tags`."""
    tags, undefined = tags or {}, () if knows(language) else PHRASED
    values, cards = [], []
    for dialogue in dialogues:
        if texts := [text for _, text in lines_of(dialogue)]:
            lines = Lines.of(texts, language)
            values.append([nan if name in undefined else measure(lines) for name, (_, measure) in MEASURES.items()])
            values[-1] += [tagged.get(dialogue.id, nan) for tagged in tags.values()]
            cards.append(card_of(dialogue))
    return SeekerFigures(np.array(values, dtype=float).reshape(-1, len(MEASURES) + len(tags)), cards)


def tags_of(verdicts: Iterable[Judgement]) -> dict[str, dict[str, float]]:
    """Every judge's tags by row of the table, from verdicts on `TAGS` (the first of repeats); others are left out."""
    rubric, tags = load_rubric(TAGS), dict[str, dict[str, float]]()
    chosen = [verdict for verdict in verdicts if verdict.rubric == TAGS and not verdict.repeat]
    names = short_names(dict.fromkeys(map(scorer_of, chosen)))
    for verdict in sorted(chosen, key=lambda verdict: [*rubric.dimensions].index(verdict.dimension)):
        judge = f", by {names[scorer_of(verdict)]}" if len(names) > 1 else ""
        for level, number in (rubric.scale_of(verdict.dimension).levels or {}).items():
            row = tags.setdefault(f"{rubric.label(verdict.dimension).lower()} tagged {level}, %{judge}", {})
            if verdict.value is not None:
                row[verdict.dialogue_id] = 100.0 * (verdict.value == number)
    return tags


def _mean(values: Floats, cards: Sequence[str], levels: Floats, seed: int = SEED) -> tuple[float, Floats, int, int]:
    """The mean of dialogues' figures without NaN, its draws (of whole cards), and the numbers of dialogues and cards."""
    finite = ~np.isnan(values)
    if not finite.any():
        return nan, np.array([nan]), 0, 0
    sums, counts = by_card(values[finite, None], np.array(cards)[finite].tolist())
    return float(values[finite].mean()), smoothed_means(sums, counts, levels, seed)[:, 0], int(finite.sum()), len(sums)


def compared(people: SeekerFigures, seekers: SeekerFigures) -> Iterator[tuple[Estimate, Estimate, Estimate]]:
    """For every column: people's mean, the simulated seekers', and the difference of the two independent samples. Intervals
    allow for an unseen card with any share; of other measures, with any figure in the range of both sides."""
    labels = [label for label, _ in MEASURES.values()]
    for place in range(people.values.shape[1]):
        both = np.concatenate([people.values[:, place], seekers.values[:, place]])
        levels = POINTS if place < len(labels) else 100 * SHARES
        if place < len(labels) and "%" not in labels[place] and not np.isnan(both).all():
            levels = scale_levels(np.nanmin(both), np.nanmax(both))
        own, other = (_mean(side.values[:, place], side.cards, levels, SEED + n) for n, side in enumerate((people, seekers)))
        gap = estimate(other[0] - own[0], other[1] - own[1], other[2], min(own[3], other[3]))
        yield estimate(*own), estimate(*other), gap


def told_apart(people: Sequence[Dialogue], seekers: Sequence[Dialogue]) -> Estimate:
    """The share of lines (%) that a classifier gives to the right side, both sides weighted equally; n counts the lines.

    Logistic regression on runs of one to three characters, tested on other cards than those it was trained on (`FOLDS` folds).
    The interval draws cards whole and is widened for what the folds share. None with fewer than `FOLDS` cards on a side."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline

    texts, labels, cards = [], [], []
    for label, side in enumerate((people, seekers)):
        for dialogue in sorted(side, key=lambda dialogue: digest(dialogue.id))[:MOST]:
            for _, text in lines_of(dialogue):
                texts.append(text)
                labels.append(label)
                cards.append(f"{label} {card_of(dialogue)}")
    truth, groups = np.array(labels), np.array(cards)
    if min((len(np.unique(groups[truth == side])) for side in (0, 1)), default=0) < FOLDS:
        return Estimate(None, None, None, len(texts))
    model = make_pipeline(
        TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 3), min_df=2, sublinear_tf=True, max_features=20_000),
        LogisticRegression(class_weight="balanced", max_iter=1000),
    )
    folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=0)
    right = 100.0 * (cross_val_predict(model, texts, truth, groups=groups, cv=folds) == truth)
    sides = [_mean(right[truth == side], groups[truth == side].tolist(), POINTS, SEED + side) for side in (0, 1)]
    mean, draws = (sides[0][0] + sides[1][0]) / 2, (sides[0][1] + sides[1][1]) / 2
    # Classifiers of overlapping folds err together: their variance is 1 + K / (K - 1) times as large (Nadeau and Bengio 2003).
    draws = np.clip(mean + (draws - mean) * (1 + FOLDS / (FOLDS - 1)) ** 0.5, 0, 100)
    return estimate(mean, draws, len(texts), min(sides[0][3], sides[1][3]))


def realism_tables(
    people: Sequence[Dialogue], simulated: Sequence[Dialogue], verdicts: Sequence[Judgement] = ()
) -> Iterator[Table]:
    """A table per language: every seeker compared with people, with the tags among the `verdicts`. Raises `UserError` if people
    speak none of the languages."""
    with_lines = {dialogue.language for dialogue in people if any(lines_of(dialogue))}
    shared = [language for language in in_order(dialogue.language for dialogue in simulated) if language in with_lines]
    if not shared:
        languages = ", ".join(in_order(dialogue.language for dialogue in simulated))
        raise UserError(f"--seekers: no line of a seeker in {languages or 'any language'}")
    tags = tags_of(verdicts)
    labels = [*(label for label, _ in MEASURES.values()), *tags]
    for language in shared:
        of_people = [dialogue for dialogue in people if dialogue.language == language]
        rows: list[tuple[Cell, ...]] = []
        halves = group_by(of_people, lambda dialogue: int(digest(card_of(dialogue), 2), 16) % 2)
        among = told_apart(halves.get(0, []), halves.get(1, []))
        for seeker, talks in group_by((d for d in simulated if d.language == language), seeker_of).items():
            rows.append((seeker, CLASSIFIED, among, told_apart(of_people, talks), None))
            pairs = zip(labels, compared(side_of(of_people, language, tags), side_of(talks, language, tags)), strict=True)
            rows += [(seeker, label, *cells) for label, cells in pairs if cells[1].n]
        notes = [
            f"[{SMOOTHED} over cards or, without any, dialogues], n = dialogues; for the classifier, lines. Difference: the "
            "seeker's mean minus people's; if its interval excludes 0, the seeker differs from people in this measure.",
            f"The classifier reads lines of at most {MOST} dialogues per side and is tested on cards it was not trained on: at "
            "50 % it cannot distinguish the sides. In the column of people: two halves of people. It also learns topics: "
            "compare with people who have the same kinds of trouble.",
            "Counted words miss other wordings, on both sides. Told: of all content words of a seeker, those first said there.",
            *_tags_note(verdicts, {dialogue.id for dialogue in (*of_people, *simulated) if dialogue.language == language}),
        ]
        columns, title = ("seeker", "measure", "people", "simulated", "difference"), "Seekers against people"
        yield Table(f"realism-{language}", f"{title}, {name_of(language)}", columns, tuple(rows), tuple(notes), SECTION)


def _tags_note(verdicts: Sequence[Judgement], ids: set[str]) -> Iterator[str]:
    """A note per judge that tagged these dialogues, with the number of unreadable tags."""
    tagged = [verdict for verdict in verdicts if verdict.rubric == TAGS and not verdict.repeat and verdict.dialogue_id in ids]
    for scorer, tags in group_by(tagged, scorer_of).items():
        unread = len({tag.dialogue_id for tag in tags if tag.value is None})
        yield (
            f"Tags by {scorer.name}, one per dialogue and feature (rubric {TAGS}); {unread} of "
            f"{len({tag.dialogue_id for tag in tags})} dialogues lack a readable tag. They are a model's and were not checked "
            "against people's: they compare the two sides, and describe neither."
        )
