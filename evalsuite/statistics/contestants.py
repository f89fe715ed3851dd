"""Supporters as scorers see them: their scores (0–100) card by card, from which boards, differences and trends are made.

Clusters are what every interval and test draws whole; by default a card with all its dialogues and scores, since these are
correlated: an interval that took thirty cards with thirteen dialogues each as 390 independent scores could be half as wide as
it should be.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from core.errors import UserError, near
from core.grouping import exact_mean, means_by
from core.languages import in_order
from core.records import Dialogue, HumanScore, Judgement, Language
from core.rubrics import Rubric
from core.statistics.bootstrap import BELOW, Floats
from evalsuite.statistics import paired
from evalsuite.statistics.summary import AVERAGE, Scorer, checked, scorer_of, supporter_of

CARD, DIALOGUE = "card", "dialogue"
USERS = ("user", "user_id")  # fields of given dialogues that say whose they are


@dataclass(frozen=True)
class Clusters:
    """Dialogue id → cluster; a dialogue that is not listed is its own cluster. `name` is what tables call the clusters."""

    of: Mapping[str, str] = field(default_factory=dict)
    name: str = "dialogues"

    def __getitem__(self, dialogue_id: str) -> str:
        return self.of.get(dialogue_id, dialogue_id)


DIALOGUES = Clusters()


def card_of(dialogue: Dialogue) -> str:
    """What dialogues are paired by: the card or profile, else the corpus item, else the dialogue itself."""
    if dialogue.card_id or dialogue.profile_id:
        return f"card {dialogue.card_id or dialogue.profile_id}"
    return f"item {dialogue.source} {dialogue.source_id}" if dialogue.source_id else f"dialogue {dialogue.id}"


def cards_of(dialogues: Iterable[Dialogue]) -> int:
    """The number of cards; the same card in two languages counts twice."""
    return len({(dialogue.language, card_of(dialogue)) for dialogue in dialogues})


def cluster_key(by: str | None = None) -> Callable[[Dialogue], str]:
    """The cluster of a dialogue: its card (the default), itself (`dialogue`), or the value of the field `by`, without which it
    is its own cluster. Raises `UserError` if dialogues have no such field."""
    if by is None or by == CARD:
        return card_of
    if by not in (fields := {DIALOGUE, *Dialogue.model_fields, *USERS}):
        raise UserError(f"--cluster {by}: not a field of a dialogue: {near(by, {CARD, *fields})}")

    def key(dialogue: Dialogue) -> str:
        value = dialogue.fields.get(by, getattr(dialogue, by, None))
        return f"{DIALOGUE} {dialogue.id}" if value is None else f"{by} {value}"

    return key


def users_of(dialogues: Iterable[Dialogue]) -> str | None:
    """The field that names the user of given dialogues, by which intervals cluster them; None if there is none."""
    return next((name for dialogue in dialogues for name in USERS if name in dialogue.fields), None)


def clusters_of(dialogues: Iterable[Dialogue], by: str | None = None) -> Clusters:
    """The clusters of these dialogues by `cluster_key`; called dialogues if no cluster has two of them."""
    key = cluster_key(by)
    by_id = {dialogue.id: key(dialogue) for dialogue in dialogues}
    name = "cards" if by in (None, CARD) else f"dialogues of one {by}"
    return Clusters(by_id, name) if len(set(by_id.values())) < len(by_id) else DIALOGUES


_WITHIN = "\x1f"  # between the cluster and the card in the name of a row


def row_key(by: str | None = None) -> Callable[[Dialogue], str]:
    """What dialogues are paired by, prefixed with their cluster where that is not the card."""
    key = cluster_key(by)
    return key if by in (None, CARD, DIALOGUE) else lambda dialogue: f"{key(dialogue)}{_WITHIN}{card_of(dialogue)}"


def first_draws(dialogues: Iterable[Dialogue]) -> dict[str, str]:
    """Dialogue id → id of the first dialogue of the same supporter and card with the same texts: mostly itself."""
    first: dict[str, str] = {}
    ids: dict[tuple[object, ...], str] = {}
    for d in dialogues:
        first[d.id] = ids.setdefault((d.language, supporter_of(d), card_of(d), *(turn.text for turn in d.turns)), d.id)
    return first


def distinct(dialogues: Sequence[Dialogue]) -> list[Dialogue]:
    """The dialogues that do not repeat an earlier one."""
    kept = {*first_draws(dialogues).values()}
    return [dialogue for dialogue in dialogues if dialogue.id in kept]


def repeats(dialogues: Sequence[Dialogue], floors: Collection[str]) -> Iterator[str]:
    """A sentence if dialogues repeat earlier trials; dialogues with floors, which never vary, do not count."""
    with_models = [dialogue for dialogue in dialogues if supporter_of(dialogue) not in floors]
    first = first_draws(with_models)
    if again := [dialogue for dialogue in with_models if first[dialogue.id] != dialogue.id]:
        names = ", ".join(sorted({supporter_of(dialogue) for dialogue in again}))
        yield (
            f"{len(again):,} of {len(with_models):,} dialogues repeat an earlier trial word for word ({names}), as happens at "
            "temperature 0: they count once. For different draws, give the supporters a temperature (--set temperature=0.7)."
        )


POOLED: Language = "mul"  # ISO 639-2: several languages together
Key = tuple[Language, Scorer, str]  # language, scorer, supporter


@dataclass
class Contestant:
    """One supporter as one scorer sees it, in one language or in several (`POOLED`): its scores (0–100) card by card.

    `cards` maps card → two rows [2, dimensions]: the sum of its dialogues' means, and how many dialogues have one; `dialogues`
    maps dialogue id → the rows that these sum (empty for `POOLED`), `texts` card → the texts of its dialogues. `readable`
    counts a card's dialogues with any readable verdict; `asked` and `read` count verdicts by dimension, and all under
    `average`. `design` has the weights of the average, and the scores that an unseen card may have."""

    language: Language
    scorer: Scorer
    supporter: str
    cards: dict[str, Floats] = field(default_factory=dict)
    readable: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    read: Counter[str] = field(default_factory=Counter)
    texts: dict[str, set[tuple[str, ...]]] = field(default_factory=dict)
    dialogues: dict[str, Floats] = field(default_factory=dict)
    design: paired.Design = paired.PLAIN

    def complete(self, counts: Floats) -> bool:
        """Whether counts [dimensions] are positive on all dimensions that the average needs."""
        weights = self.design.weights
        return bool((counts if weights is None else counts[weights > 0]).all())

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
    Raises `UserError` for a judgement of a dialogue that is not among `dialogues`, or one that does not fit the rubric."""
    by_id = {dialogue.id: dialogue for dialogue in dialogues}
    texts = {dialogue.id: tuple(turn.text for turn in dialogue.turns) for dialogue in dialogues}
    first_draw = first_draws(dialogues)
    levels = BELOW if any(scale.least is not None for scale in rubric.scales.values()) else None
    design = paired.Design(weights=None if rubric.weights is None else np.array(rubric.weights), levels=levels)
    columns = {name: index for index, name in enumerate(rubric.dimensions)}
    contestants: dict[Key, Contestant] = {}
    verdicts = defaultdict[Key, dict[str, list[list[float]]]](lambda: defaultdict(lambda: [[] for _ in columns]))
    for judgement in checked(judgements, rubric):
        dialogue = by_id.get(judgement.dialogue_id)
        if dialogue is None:
            raise UserError(f"judgement by {judgement.judge}: dialogue_id: no dialogue {judgement.dialogue_id!r} in this run")
        key = dialogue.language, scorer_of(judgement), supporter_of(dialogue)
        contestant = contestants.get(key) or contestants.setdefault(key, Contestant(*key, design=design))
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
    names = [row.partition(_IN)[0].partition(_WITHIN) for row in rows]
    clusters = np.unique([name for name, _, _ in names], return_inverse=True)[1] if any(card for *_, card in names) else None
    return contestants[0].design._replace(clusters=clusters, strata=languages if languages.any() else None)


def pooled(contestants: Sequence[Contestant]) -> list[Contestant]:
    """Every scorer × supporter over all languages."""
    by_key: dict[tuple[Scorer, str], Contestant] = {}
    for part in contestants:
        key = part.scorer, part.supporter
        whole = by_key.setdefault(key, Contestant(POOLED, *key, design=part.design))
        for card in part.cards:
            row = f"{card}{_IN}{part.language}"
            whole.cards[row], whole.readable[row], whole.texts[row] = part.cards[card], part.readable[card], part.texts[card]
        whole.asked += part.asked
        whole.read += part.read
    return [by_key[key] for key in sorted(by_key)]


# --- people as contestants' scorer ----------------------------------------------------------------------------------------


PEOPLE = "people"


def verdicts_of_people(scores: Sequence[HumanScore]) -> list[Judgement]:
    """A verdict for each score. Annotators count as repeats, so that a dialogue's scores on a dimension are averaged first."""
    places = {name: place for place, name in enumerate(sorted({score.annotator for score in scores}))}
    method = f"{len(places)} annotator{'s' * (len(places) > 1)}"
    fields = {"dialogue_id", "language", "rubric", "dimension", "value", "turn"}
    common = ((score.annotator, score.model_dump(include=fields)) for score in scores)
    return [Judgement(judge=PEOPLE, method=method, repeat=places[name], **values) for name, values in common]


def scores_of_judges(verdicts: Sequence[Judgement]) -> list[HumanScore]:
    """Readable verdicts as people's scores: each judge is an annotator, whose repeats are averaged."""
    fields = ("dialogue_id", "rubric", "dimension", "turn", "language")
    read = [(verdict, verdict.value) for verdict in verdicts if verdict.value is not None]
    means = means_by(((verdict.judge, *attrgetter(*fields)(verdict)), value) for verdict, value in read)
    return [
        HumanScore(annotator=judge, value=mean, **dict(zip(fields, values, strict=True)))
        for (judge, *values), mean in means.items()
    ]
