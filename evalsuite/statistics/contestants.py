"""Supporters as scorers see them: their scores (0–100) card by card, from which boards, differences and trends are made."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from core.errors import UserError
from core.grouping import exact_mean
from core.languages import in_order
from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric
from core.statistics.bootstrap import BELOW, Floats
from evalsuite.statistics import paired
from evalsuite.statistics.clusters import card_of as card_of
from evalsuite.statistics.clusters import clusters_in, first_draws
from evalsuite.statistics.summary import AVERAGE, Scorer, checked, scorer_of, supporter_of

POOLED: Language = "mul"  # ISO 639-2: several languages together
Key = tuple[Language, Scorer, str]  # language, scorer, supporter


@dataclass
class Contestant:
    """One supporter as one scorer sees it, in one language or in several (`POOLED`): its scores (0–100) card by card.

    `cards` maps card → two rows [2, dimensions]: the sum of its dialogues' means, and how many dialogues have one; `dialogues`
    maps dialogue id → the rows that these sum (empty for `POOLED`), `texts` card → the texts of its dialogues. `readable`
    counts a card's dialogues with any readable verdict; `asked` and `read` count verdicts by dimension, and all under
    `average`. `weights` and `levels` are those of `paired.Design`."""

    language: Language
    scorer: Scorer
    supporter: str
    cards: dict[str, Floats] = field(default_factory=dict)
    readable: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    read: Counter[str] = field(default_factory=Counter)
    texts: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)
    dialogues: dict[str, Floats] = field(default_factory=dict)
    weights: Floats | None = None
    levels: Floats | None = None

    def complete(self, counts: Floats) -> bool:
        """Whether counts [dimensions] are positive on all dimensions that the average needs."""
        return bool((counts if self.weights is None else counts[self.weights > 0]).all())

    def alike(self, other: Contestant) -> bool:
        """Whether the scorers are the same, and the dialogues have the same texts on every shared card."""
        shared = self.texts.keys() & other.texts.keys()
        return self.scorer == other.scorer and bool(shared) and all(self.texts[card] == other.texts[card] for card in shared)


def contestants_of(
    dialogues: Sequence[Dialogue],
    judgements: Sequence[Judgement],
    rubric: Rubric,
    card_of: Callable[[Dialogue], str] = card_of,
) -> list[Contestant]:
    """Every language × scorer × supporter with its scores, in that order (English first).

    A dialogue's repeats and turns are averaged first; trials with identical texts are one dialogue. Scores are mapped to 0
    (worst) to 100 (best) of their dimension's scale.
    Raises `UserError` for a judgement of a dialogue that is not among `dialogues`, or one that does not fit the rubric.
    """
    by_id = {dialogue.id: dialogue for dialogue in dialogues}
    texts = {dialogue.id: tuple(turn.text for turn in dialogue.turns) for dialogue in dialogues}
    first_draw = first_draws(dialogues)
    weights = None if rubric.weights is None else np.array(rubric.weights)
    levels = BELOW if any(scale.least is not None for scale in rubric.scales.values()) else None
    columns = {name: index for index, name in enumerate(rubric.dimensions)}
    contestants: dict[Key, Contestant] = {}
    verdicts = defaultdict[Key, dict[str, list[list[float]]]](lambda: defaultdict(lambda: [[] for _ in columns]))
    for judgement in checked(judgements, rubric):
        dialogue = by_id.get(judgement.dialogue_id)
        if dialogue is None:
            raise UserError(f"judgement by {judgement.judge}: dialogue_id: no dialogue {judgement.dialogue_id!r} in this run")
        key = dialogue.language, scorer_of(judgement), supporter_of(dialogue)
        contestant = contestants.get(key) or contestants.setdefault(key, Contestant(*key, weights=weights, levels=levels))
        contestant.asked[judgement.dimension] += not (judgement.lost or judgement.unasked)
        contestant.read[judgement.dimension] += judgement.value is not None
        figures = verdicts[key][first_draw[dialogue.id]]
        if judgement.value is not None:
            figures[columns[judgement.dimension]].append(judgement.value)
    for key, contestant in contestants.items():
        for counts in (contestant.asked, contestant.read):
            counts[AVERAGE] = counts.total()
        # Sorted, so that no figure depends on the order of the records.
        for id, figures in sorted(verdicts[key].items()):
            card = card_of(by_id[id])
            means = zip(rubric.dimensions, figures, strict=True)
            scores = [rubric.normalised(name, exact_mean(values)) if values else 0 for name, values in means]
            row = contestant.dialogues[id] = np.array([scores, [bool(values) for values in figures]], dtype=float)
            contestant.cards[card] = contestant.cards.get(card, 0.0) + row
            contestant.readable[card] += any(figures)
            contestant.texts.setdefault(card, set()).add(texts[id])
    order = in_order(language for language, *_ in contestants)
    return [contestants[key] for key in sorted(contestants, key=lambda key: (order.index(key[0]), *key[1:]))]


def stack(contestants: Sequence[Contestant]) -> tuple[Floats, Floats]:
    """The contestants' sums and counts on the union of their cards, each [cards, contestants, dimensions]."""
    cards = {name: row for row, name in enumerate(sorted({card for contestant in contestants for card in contestant.cards}))}
    width = next(iter(contestants[0].cards.values())).shape[1]
    sums, counts = np.zeros((2, len(cards), len(contestants), width))
    for place, contestant in enumerate(contestants):
        for card, row in contestant.cards.items():
            sums[cards[card], place], counts[cards[card], place] = row
    return sums, counts


_IN = "\x1e"  # separates a card from its language in the names of a pooled contestant's cards


def design_of(contestants: Sequence[Contestant]) -> paired.Design:
    """How the rows of `stack` were drawn; where languages are pooled, they are the strata."""
    rows = sorted({card for contestant in contestants for card in contestant.cards})
    languages = np.unique([row.partition(_IN)[2] for row in rows], return_inverse=True)[1]
    clusters = clusters_in([row.partition(_IN)[0] for row in rows])
    return weighed(contestants)._replace(clusters=clusters, strata=languages if languages.any() else None)


def weighed(contestants: Sequence[Contestant]) -> paired.Design:
    """A design whose rows are clusters, with the weights of the average."""
    return paired.Design(None, None, contestants[0].weights, contestants[0].levels) if contestants else paired.PLAIN


def pooled(contestants: Sequence[Contestant]) -> list[Contestant]:
    """Every scorer × supporter over all languages."""
    by_key: dict[tuple[Scorer, str], Contestant] = {}
    for part in contestants:
        empty = Contestant(POOLED, part.scorer, part.supporter, weights=part.weights, levels=part.levels)
        whole = by_key.setdefault((part.scorer, part.supporter), empty)
        for card in part.cards:
            row = f"{card}{_IN}{part.language}"
            whole.cards[row], whole.readable[row], whole.texts[row] = part.cards[card], part.readable[card], part.texts[card]
        whole.asked += part.asked
        whole.read += part.read
    return [by_key[key] for key in sorted(by_key)]
