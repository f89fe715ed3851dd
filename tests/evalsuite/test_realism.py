"""Seekers against people: figures by hand, a classifier that can and cannot tell, coverage with known truth, the report."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.files import write_jsonl
from core.records import Dialogue, Judgement, Turn
from core.tables import Estimate, Table
from evalsuite.checks.realism import (
    MEASURES,
    PHRASED,
    TAGS,
    SeekerFigures,
    against,
    compared,
    realism_tables,
    side_of,
    told_apart,
)
from tests.conftest import EscEval
from tests.evalsuite.records import make_judgement, make_run

WORDS = np.array(
    ["sleep", "job", "mother", "night", "rent", "exam", "friend", "lonely", "cat", "school", "train", "money", "noise"]
)


def talk(id: str, *lines: str, **more: object) -> Dialogue:
    """A seeker's lines, each answered."""
    turns = [Turn(role=role, text=text) for line in lines for role, text in (("seeker", line), ("supporter", "Go on."))]
    return Dialogue.model_validate({"id": id, "language": "en", "source": "people", "source_id": id, "turns": turns} | more)


def drawn(rng: np.random.Generator, count: int, tilt: float, side: str, lines: int = 3) -> list[Dialogue]:
    """Dialogues of random words, each with favourites of its own; `tilt` draws some words more often."""
    weights = np.exp(tilt * np.linspace(-1, 1, len(WORDS)))
    made = []
    for number in range(count):
        own = weights * rng.gamma(2, size=len(WORDS))
        said = [" ".join(rng.choice(WORDS, 1 + rng.poisson(4), p=own / own.sum())) for _ in range(lines)]
        made.append(talk(f"{side}{number}", *said, simulator="bot" if side == "s" else None))
    return made


def test_every_measure_by_hand() -> None:
    side = side_of(
        [talk("a", "I lost my job.", "No. My cat died, too.", "Why me? Thank you so much."), talk("mute", " ")], "en"
    )
    found = dict(zip(MEASURES, side.values[0], strict=True))
    assert len(side.cards) == 1, "who says nothing is left out"
    assert found["lines"] == 3 and found["length"] == pytest.approx((4 + 5 + 6) / 3)
    assert found["spread"] == pytest.approx(np.std([4, 5, 6])) and np.isnan(found["vocabulary"]), "fewer than 50 words"
    assert found["questions"] == pytest.approx(100 / 3) and found["thanks"] == pytest.approx(100 / 3)
    assert found["self-disclosure"] == pytest.approx(100 * 4 / 15), "I, my, my, me"
    assert found["resistance"] == 50, "of the lines after the first"
    # Content words: lost, job | cat, died | … : what is said early is a share of all.
    assert 0 < found["told first"] < found["told early"] < 100
    again = side_of([talk("b", "rent and exam", "exam, rent!")], "en").values[0]
    assert again[list(MEASURES).index("told first")] == 100, "nothing new came later"


AGAINST = ("No, he left.", "But I tried that", "That won't help", "I don't think so", "没用的", "可是我睡不着")
NOT_AGAINST = ("Nobody came.", "Notes are all I have", "It helps a bit", "I think so", "不在家里长大", "好的")


@pytest.mark.parametrize("line", [*AGAINST, *NOT_AGAINST])
def test_what_goes_against(line: str) -> None:
    assert against(line) == (line in AGAINST)


def test_what_is_swearing() -> None:
    side = side_of([talk("a", "This is bullshit.", "Hello, what a shell!", "他妈的", "I assess the class")], "en")
    assert dict(zip(MEASURES, side.values[0], strict=True))["profanity"] == 50


def test_a_language_without_words_has_the_counted_measures_alone() -> None:
    side = side_of([talk("a", "Ich schlafe nicht.", "Nein.", language="de")], "de")
    missing = {name for name, value in zip(MEASURES, side.values[0], strict=True) if np.isnan(value)}
    assert missing == {*PHRASED, "vocabulary"}


def test_tags_are_shares_of_dialogues_and_what_cannot_be_read_is_told() -> None:
    """Of four people two are reserved, one is plain and one has no tag; the seeker is plain, and a repeat does not count."""
    people, bot = [talk(f"p{n}", "I lost my job.") for n in range(4)], talk("s", "Hello there.", simulator="bot")

    def tagged(id: str, value: float | None, **more: Any) -> Judgement:
        return make_judgement(id, "style", value).model_copy(update={"rubric": TAGS} | more)

    verdicts = [tagged("p0", 3), tagged("p1", 3), tagged("p2", 0), tagged("p3", None), tagged("s", 0), tagged("s", 3, repeat=1)]
    (table,) = realism_tables(people, [bot], [*verdicts, make_judgement("s", "fluency", 4)])
    rows = estimates(table)
    assert [label for label in rows if "tagged" in label] == [
        f"style tagged {level}, %" for level in ("plain", "upset", "verbose", "reserved", "tangential", "pleasing")
    ]
    own, other, gap = rows["style tagged reserved, %"]
    assert (own.mean, own.n, other.mean, other.n, gap.mean) == (pytest.approx(200 / 3), 3, 0, 1, pytest.approx(-200 / 3))
    assert 0 < (own.low or 0) < (own.high or 0) < 100 and gap.low is None, "one simulated dialogue has no interval"
    assert "1 of 5 dialogues lack a readable tag" in table.notes[-1]
    (table,) = realism_tables(people, [bot], [*verdicts, tagged("s", 3, judge="other"), tagged("p0", 0, judge="other")])
    assert estimates(table)["style tagged plain, %, by other"][1].mean == 0 and len(table.notes) == 5, "each judge by itself"


def estimates(table: Table) -> dict[str, tuple[Estimate, ...]]:
    """Measure → people, simulated, difference."""
    return {str(row[1]): tuple(cell for cell in row[2:] if isinstance(cell, Estimate)) for row in table.rows}


def test_a_classifier_tells_others_words_and_cannot_tell_the_same() -> None:
    rng = np.random.default_rng(0)
    people, same, other = drawn(rng, 40, 0, "p"), drawn(rng, 40, 0, "s"), drawn(rng, 40, 4, "s")
    alike, apart = told_apart(people, same), told_apart(people, other)
    assert alike.low is not None and alike.high is not None and alike.low < 50 < alike.high and alike.n == 240
    assert apart.mean is not None and apart.low is not None and apart.mean > 75 and apart.low > 65


def test_lines_of_one_dialogue_are_never_on_both_sides_of_a_fold() -> None:
    """Every dialogue says a word of its own in all lines: whoever had seen one of its lines would know all others."""
    names = [f"{a}{b}x" for a in "bdfgk" for b in "aeiou"]
    people = [talk(f"p{n}", *[f"{name} {name}"] * 4) for n, name in enumerate(names[:12])]
    bots = [talk(f"s{n}", *[f"{name} {name}"] * 4) for n, name in enumerate(names[12:24])]
    found = told_apart(people, bots)
    assert found.mean is not None and found.mean < 80


def test_too_few_dialogues_have_no_figure() -> None:
    rng = np.random.default_rng(1)
    assert told_apart(drawn(rng, 4, 0, "p"), drawn(rng, 40, 0, "s")).mean is None


STUDIES = [pytest.param(200, marks=pytest.mark.slow), pytest.param(2000, marks=pytest.mark.full)]


@pytest.mark.parametrize("studies", STUDIES)
def test_intervals_of_differences_cover_the_true_difference(studies: int) -> None:
    """Skewed lengths in dialogues of their own: 12 of people with a mean of 5 words, 20 simulated with 7."""
    rng, hits = np.random.default_rng(8), 0
    place = list(MEASURES).index("length")
    for _ in range(studies):
        sides = []
        for number, words in ((12, 5.0), (20, 7.0)):
            values = np.full((number, len(MEASURES)), np.nan)
            values[:, place] = rng.gamma(2, words / 2, number)
            sides.append(side_of([], "en")._replace(values=values, cards=[f"c{n}" for n in range(number)]))
        gap = list(compared(*sides))[place][2]
        hits += (gap.low or 0) <= 2.0 <= (gap.high or 0)
    assert hits / studies >= 0.94 - 1.65 * (0.95 * 0.05 / studies) ** 0.5


@pytest.mark.parametrize("studies", STUDIES)
@pytest.mark.parametrize("shares", [(0.1, 0.1), (0.1, 0.5), (0.02, 0.9)])
def test_intervals_of_tags_cover_the_true_difference(shares: tuple[float, float], studies: int) -> None:
    """One tag: 12 dialogues of people, 20 simulated on ten cards."""
    rng, hits = np.random.default_rng(9), 0
    for _ in range(studies):
        sides = []
        for cards, each, share in ((12, 1, shares[0]), (10, 2, shares[1])):
            by_card = rng.beta(4 * share, 4 * (1 - share), cards).repeat(each)
            values = np.full((cards * each, len(MEASURES) + 1), np.nan)
            values[:, -1] = 100 * (rng.random(cards * each) < by_card)
            sides.append(SeekerFigures(values, [f"c{n // each}" for n in range(cards * each)]))
        gap = [*compared(*sides)][-1][2]
        hits += (gap.low or 0) <= 100 * (shares[1] - shares[0]) <= (gap.high or 0)
    assert hits / studies >= 0.94 - 1.65 * (0.95 * 0.05 / studies) ** 0.5


def test_the_report_sets_the_seekers_beside_people(esc_eval: EscEval, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    run = make_run(tmp_path / "run", {"one": [1, 2]}, framework="esc_eval")
    talks = [one.model_copy(update={"supporter": "one", "framework": "esc_eval"}) for one in drawn(rng, 12, 4, "s")]
    write_jsonl(run / "dialogues.jsonl", talks)
    write_jsonl(run / "judgements.jsonl", [make_judgement(one.id, "fluency", 3) for one in talks])
    write_jsonl(tmp_path / "people.jsonl", drawn(rng, 20, 0, "p"))
    assert esc_eval("report", "run", "--seekers", "people.jsonl") == (0, "")
    table = (run / "tables" / "realism-en.csv").read_text()
    assert 'bot,"lines that a classifier assigns to the right side, %"' in table and "self-disclosure" in table
    assert "Seekers against people" in (run / "report.html").read_text()
    tags = tmp_path / "tags"
    write_jsonl(tags / "dialogues.jsonl", [*drawn(rng, 20, 0, "p"), *talks])
    verdicts = [make_judgement(f"{side}{n}", "engagement", value) for side, value in (("p", 1), ("s", 2)) for n in range(12)]
    write_jsonl(tags / "judgements.jsonl", [verdict.model_copy(update={"rubric": TAGS}) for verdict in verdicts])
    assert esc_eval("report", "run", "--seekers", "tags") == (0, "")
    assert 'bot,"engagement tagged high, %",0.0' in (run / "tables" / "realism-en.csv").read_text()
    assert esc_eval("report", "run") == (0, "") and not (run / "tables" / "realism-en.csv").exists()
    write_jsonl(tmp_path / "zh.jsonl", [talk("z", "我睡不着。", language="zh")])
    code, err = esc_eval("report", "run", "--seekers", "zh.jsonl")
    assert code == 2 and err == "error: --seekers: no line of a seeker in en\n"


def test_seekers_are_set_apart_by_language() -> None:
    rng = np.random.default_rng(3)
    zh = [one.model_copy(update={"language": "zh"}) for one in drawn(rng, 6, 0, "p")]
    tables = [*realism_tables([*drawn(rng, 6, 0, "q"), *zh], drawn(rng, 6, 0, "s"))]
    assert [table.key for table in tables] == ["realism-en"] and len(tables[0].rows) == 1 + len(MEASURES) - 1
