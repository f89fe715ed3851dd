"""Runs side by side: scores of several run folders on one rubric, paired differences, and other changes, as tables and JSON."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric
from core.settings import differing_leaves
from core.statistics.bootstrap import LEVEL
from core.tables import Cell, Table
from evalsuite.statistics import paired
from evalsuite.statistics.contestants import POOLED, Contestant, contestants_of, design_of, pooled, row_key, stack
from evalsuite.statistics.leaderboard import FAMILIES, Score, cells_of, family, score_cells, score_notes
from evalsuite.statistics.paired import Difference
from evalsuite.statistics.summary import SCORES, checked, dimension_at, dimension_label, languages_of, scorer_of

CONFIGS = "Configuration"  # heading of the report
Rival = tuple[str, Contestant]  # a run's name and one of its contestants


@dataclass(frozen=True)
class RunRecords:
    """A run folder's records. `cards` maps card or profile id → hash of its contents, as far as the folder has them; `floors`
    need no model; `stage` is that of the verdicts in usage.json and similar files; `agreement` is the judge's with the run's
    gold set: language → dimension or `average` → figures, empty without one. `level` is that of intervals and tests: above 0.95
    for a run that may have ended early."""

    name: str
    folder: Path
    config: dict[str, Any]
    rubric: Rubric
    dialogues: list[Dialogue]
    judgements: list[Judgement]
    cards: dict[str, str]
    floors: Collection[str] = ()
    turn_judgements: Sequence[Judgement] = ()
    stage: str = "score"
    agreement: Mapping[str, Any] = field(default_factory=dict)
    level: float = LEVEL


@dataclass(frozen=True)
class Entry:
    """A contestant of a run under its name in the comparison."""

    run: str
    name: str
    contestant: Contestant
    scores: list[Score]


Pair = tuple[Entry, Entry, Difference]  # a later run's contestant, an earlier one's, and the first minus the second


@dataclass(frozen=True)
class LanguageComparison:
    """The contestants of all runs in one language or all of them (`POOLED`), and the differences between those that belong
    together (places in `entries`). `cards` maps run → the number of cards with verdicts; `shared` is how many all runs have."""

    language: Language
    entries: list[Entry]
    differences: list[Difference]
    cards: dict[str, int]
    shared: int

    @property
    def name(self) -> str:
        """The language as tables name it."""
        return "all languages" if self.language == POOLED else self.language


@dataclass(frozen=True)
class RunComparison:
    """Runs side by side, in each language and over all. `changed`: first run, other run, differences between their configs."""

    runs: list[RunRecords]
    languages: list[LanguageComparison]
    pooled: LanguageComparison | None
    changed: list[tuple[str, str, list[str]]]

    @property
    def rubric(self) -> Rubric:
        return self.runs[0].rubric

    @property
    def parts(self) -> list[LanguageComparison]:
        """All languages together, and each of them if there are several."""
        return [self.pooled, *self.languages] if self.pooled and len(self.languages) > 1 else self.languages

    def models(self, part: LanguageComparison | None) -> list[Pair]:
        """The differences between models (not floors) in one part, each with its two sides."""
        floors = {name for run in self.runs for name in run.floors}
        pairs = [(part.entries[gap.first], part.entries[gap.second], gap) for gap in part.differences] if part else []
        return [pair for pair in pairs if not floors & {side.contestant.supporter for side in pair[:2]}]

    @property
    def decisive(self) -> list[Pair]:
        """The differences that decide: between models, in the average over all languages, significant ones first."""
        averages = [pair for pair in self.models(self.pooled) if pair[2].dimension is None]
        return sorted(averages, key=lambda pair: (not pair[2].holds, -abs(pair[2].estimate.mean or 0)))


def compare(runs: Sequence[RunRecords], cluster: str | None = None) -> RunComparison:
    """Every language's contestants with their scores, and paired tests between those that belong together: of different runs,
    and with the same supporter, or such that neither's supporter is in the other's run; likewise for their scorers (so one
    supporter under two judges is compared). The later run's contestant comes first: a positive difference is a gain. Raises
    `UserError` if the runs' rubrics differ."""
    first = runs[0]
    for run in runs[1:]:
        if run.rubric != first.rubric:
            old, new = (other.rubric.model_dump(mode="json") for other in (first, run))
            changes = "; ".join(differing_leaves(old, new)[:3])
            raise UserError(f"{first.name} and {run.name} have different rubrics ({changes}): score one again in a new folder")
    ambiguous, row = ambiguous_cards(runs), row_key(cluster)
    rivals: list[Rival] = []
    for run in runs:

        def unit(dialogue: Dialogue, run: RunRecords = run) -> str:
            card = dialogue.card_id or dialogue.profile_id
            return row(dialogue) + (f" {run.cards.get(card, '')}" if card and card in ambiguous else "")

        rivals += [(run.name, rival) for rival in contestants_of(run.dialogues, run.judgements, run.rubric, unit)]
    present = languages_of(dialogue for run in runs for dialogue in run.dialogues)
    groups = [[rival for rival in rivals if rival[1].language == language] for language in present]
    languages = [_side_by_side(runs, group) for group in groups if group]
    overall = next(iter(languages), None)
    if len(languages) > 1:
        of_runs = {run.name: pooled([rival for name, rival in rivals if name == run.name]) for run in runs}
        overall = _side_by_side(runs, [(name, rival) for name, group in of_runs.items() for rival in group])
    changed = [(first.name, run.name, differing_leaves(first.config, run.config)) for run in runs[1:]]
    return RunComparison(list(runs), languages, overall, changed)


def _side_by_side(runs: Sequence[RunRecords], rivals: Sequence[Rival]) -> LanguageComparison:
    """The contestants of one language, or of all languages pooled."""
    contestants, floors = [rival for _, rival in rivals], {name for run in runs for name in run.floors}
    level = max(run.level for run in runs)
    columns = zip(rivals, _names(rivals), cells_of(contestants, runs[0].rubric, level), strict=True)
    entries = [Entry(run_name, name, rival, scores) for (run_name, rival), name, scores in columns]
    cards = {run.name: {card for name, rival in rivals if name == run.name for card in rival.cards} for run in runs}
    pairs = _partners(rivals)
    families = [family(contestants[late], contestants[early], floors) for late, early in pairs]
    design = design_of(contestants)
    differences = paired.differences(*stack(contestants), pairs, families=families, design=design, level=level)
    counts = {name: len(of_run) for name, of_run in cards.items()}
    shared = len(set.intersection(*cards.values()))
    return LanguageComparison(contestants[0].language, entries, differences, counts, shared)


def _partners(rivals: Sequence[Rival]) -> list[tuple[int, int]]:
    """Places of the contestants that belong together, the later run's first."""
    present = {(run, name) for run, earlier in rivals for name in (earlier.supporter, earlier.scorer)}

    def together(first: Rival, second: Rival) -> bool:
        (run, earlier), (later_run, later) = first, second
        names = (earlier.supporter, later.supporter), (earlier.scorer, later.scorer)
        return all(own == other or not {(later_run, own), (run, other)} & present for own, other in names)

    pairs = combinations(enumerate(rivals), 2)
    return [(late, early) for (early, first), (late, second) in pairs if first[0] != second[0] and together(first, second)]


def _names(rivals: Sequence[Rival]) -> Iterator[str]:
    """`supporter`; `run/supporter` if several runs have it, followed by the scorer if the run has several."""
    times = Counter(name for run, rival in rivals for name in ((rival.supporter,), (run, rival.supporter)))
    for run, rival in rivals:
        scorer = f" ({rival.scorer.name})" if times[run, rival.supporter] > 1 else ""
        yield rival.supporter if times[rival.supporter,] == 1 else f"{run}/{rival.supporter}{scorer}"


def agreements_of(runs: Sequence[RunRecords]) -> dict[str, Mapping[str, Any]]:
    """Judge → its agreement with the gold set of the first run that has one."""
    return {run.config["score"]["judge"]["name"]: run.agreement for run in reversed(runs) if run.agreement}


def ambiguous_cards(runs: Sequence[RunRecords]) -> set[str]:
    """Ids under which the runs have different cards, which must not be paired."""
    times = Counter(card for card, _ in {pair for run in runs for pair in run.cards.items()})
    return {card for card, count in times.items() if count > 1}


# --- tables and JSON ---------------------------------------------------------------------------------------------------------


def tables(comparison: RunComparison) -> list[Table]:
    """The runs, the scores and differences over all languages and in each, and what else changed."""
    rows: list[dict[str, Cell]] = []
    for run in comparison.runs:
        rows.append({"run": run.name, "dialogues": len(run.dialogues)})
        rows[-1] |= {f"cards, {part.language}": part.cards.get(run.name, 0) for part in comparison.languages}
        scorers = {scorer_of(judgement).name for judgement in checked(run.judgements, run.rubric)}
        rows[-1]["judged by"] = "; ".join(sorted(scorers))
    shared = ", ".join(f"{part.language} {part.shared}" for part in comparison.languages)
    notes = [f"Cards (dialogues without a card: themselves) that all runs have: {shared}."]
    if ambiguous := ambiguous_cards(comparison.runs):
        notes.append(f"Cards with the same id but different contents, counted as different cards: {len(ambiguous)}.")
    result = [Table.of("compare-runs", "Runs", rows, notes, SCORES)]
    for part in comparison.parts:
        several = len({entry.contestant.scorer for entry in part.entries}) > 1
        scores = [
            {"supporter": entry.name, "run": entry.run, **entry.contestant.scorer.column(several)}
            | score_cells(entry.scores, comparison.rubric)
            for entry in part.entries
        ]
        of_scores = score_notes([cell for entry in part.entries for cell in entry.scores], comparison.rubric)
        title = f"Scores side by side, {part.name}"
        result.append(Table.of(f"compare-scores-{part.language}", title, scores, of_scores, SCORES))
        result += [_differences_table(comparison, part)] * bool(part.differences)
    heads = ("run", "compared with", "setting: old → new")
    changes = ((name, other, line) for name, other, lines in comparison.changed for line in lines or ["no difference"])
    return [*result, Table("compare-config", "What else changed", heads, tuple(changes), section=CONFIGS)]


def _differences_table(comparison: RunComparison, part: LanguageComparison) -> Table:
    """Pairs with the same dialogues differ in nothing: a note names them."""
    rows: list[dict[str, Cell]] = []
    identical: dict[str, None] = {}
    mixed = unpaired = False
    for gap in part.differences:
        first, second = part.entries[gap.first], part.entries[gap.second]
        if first.contestant.alike(second.contestant):
            identical[first.name if first.name == second.name else f"{first.name} and {second.name}"] = None
            continue
        unpaired |= gap.unpaired and gap.dimension is None
        mixed |= first.contestant.scorer != second.contestant.scorer
        label = dimension_label(comparison.rubric, dimension_at(comparison.rubric, gap.dimension))
        rows.append({"supporter": first.name, "against": second.name, "dimension": label})
        rows[-1] |= {"mean": gap.first_mean, "mean against": gap.second_mean} | paired.by_column(gap)
    over_shared = "Both means are over the shared cards only, so they may differ from the scores side by side."
    notes = [paired.NOTE, over_shared, FAMILIES, *[paired.UNPAIRED] * unpaired] if rows else []
    notes += ["Where the judges differ, a difference is due to the judges as well as the supporters."] * mixed
    if identical:
        notes.append(f"Not compared, since the replies are the same in both runs: {', '.join(identical)}.")
    heads = ("supporter", "against", "dimension", "mean", "mean against", *paired.COLUMNS)
    title = f"Differences between runs, {part.name}"
    return Table.of(f"compare-differences-{part.language}", title, rows, notes, SCORES, heads=heads)


def as_json(comparison: RunComparison) -> dict[str, Any]:
    """The comparison as JSON values in full precision."""
    return {
        "rubric": comparison.rubric.name,
        "runs": [{"name": r.name, "dialogues": len(r.dialogues), "judgements": len(r.judgements)} for r in comparison.runs],
        "languages": {
            part.language: {
                "cards": part.cards | {"shared": part.shared},
                "scores": [
                    {"name": entry.name, "run": entry.run, "supporter": cell.supporter, "judged_by": cell.scorer.name}
                    | {"dimension": cell.dimension, "asked": cell.asked, "read": cell.read}
                    | asdict(cell.estimate)
                    for entry in part.entries
                    for cell in entry.scores
                ],
                "differences": [
                    {"name": part.entries[gap.first].name, "against": part.entries[gap.second].name}
                    | {"dimension": dimension_at(comparison.rubric, gap.dimension)}
                    | {"mean_first": gap.first_mean, "mean_against": gap.second_mean}
                    | {"difference": gap.estimate.mean, "low": gap.estimate.low, "high": gap.estimate.high}
                    | {"cards": gap.estimate.n, "p": gap.p, "p_holm": gap.holm, "holds": gap.holds}
                    for gap in part.differences
                ],
            }
            for part in comparison.parts
        },
        "config_differences": [dict(zip(("run", "compared_with", "differences"), c, strict=True)) for c in comparison.changed],
    }
