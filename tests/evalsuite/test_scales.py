"""Dimensions with scales of their own, and rubrics that leave out texts of levels: asked, read, averaged, shown or refused."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from openpyxl import load_workbook
from pydantic import ValidationError

from core.errors import UserError
from core.judge_prompts import judge_messages
from core.ledger import BuildStep
from core.prompts import load_pack
from core.records import HumanScore
from core.rubrics import Rubric, load_rubric
from data_prep.cards.sheets import write_csv
from data_prep.scores import annotation
from data_prep.scores.human import check_scale
from data_prep.scores.rank_sft import cases
from evalsuite.judge.bands import answer_regex as bands_regex
from evalsuite.judge.bands import check_labels, read_bands
from evalsuite.judge.json_answers import answer_regex, read_answer
from evalsuite.judge.scores import digits_regex
from evalsuite.papers.role_play import role_play_tables
from evalsuite.report.charts import confusion_charts, distribution_charts
from evalsuite.report.transcripts import transcripts
from evalsuite.statistics.correlation import correlations
from evalsuite.statistics.judges import POOLED, confusion, confusion_tables
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.rounds import trends_of
from evalsuite.statistics.summary import checked, distributions
from evalsuite.trust.commands.judge_card import load_injections, probes
from serve.answers import choice_probabilities
from tests.evalsuite.records import fed_rubric, make_dialogue, make_judgement

FED = fed_rubric()
PACK = load_pack("esc_eval")
TALK = make_dialogue("d")
ROOT = Path(__file__).resolve().parents[2]


def judged(dialogue: str = "d", *, lively: float = 1, consistent: float = 1, overall: float = 1, **more: Any) -> list[Any]:
    values = {"lively": lively, "consistent": consistent, "overall": overall}
    return [make_judgement(dialogue, key, value, rubric="fed_like", **more) for key, value in values.items()]


def human(dimension: str, value: float, dialogue: str = "d", who: str = "a") -> HumanScore:
    fields = {"dialogue_id": dialogue, "language": "en", "annotator": who, "rubric": "fed_like"}
    return HumanScore.model_validate(fields | {"dimension": dimension, "value": value})


# --- the file -------------------------------------------------------------------------------------------------------------


def test_a_rubric_says_what_is_on_which_scale(tmp_path: Path) -> None:
    (tmp_path / "fed.yaml").write_text(yaml.safe_dump(FED.model_dump(mode="json")))
    read = load_rubric(str(tmp_path / "fed.yaml"))
    assert read == FED
    assert {key: scale.scores for key, scale in read.scales.items()} == {
        "lively": (0, 1, 2),
        "consistent": (0, 1),
        "overall": (0, 1, 2, 3, 4),
    }
    assert read.shared_scale is None and read.scores == (0, 1, 2, 3, 4)
    assert read.texts("lively", "en") == {0: "dull", 1: "", 2: "lively"} and set(read.texts("overall", "en").values()) == {""}
    assert load_rubric("feel").shared_scale == load_rubric("feel").one_scale("x")
    assert '"scale":null' not in load_rubric("feel").model_dump_json(), "configs of earlier runs stay as they were"


@pytest.mark.parametrize(
    ("key", "own", "problem"),
    [
        ("consistent", {"scale": {"min": 1, "max": 1}}, "dimension consistent: scale: min 1 is not below max 1"),
        ("consistent", {"levels": {"en": {2: "?"}}}, r"dimension consistent \(en\): score 2 is off the scale, 0 to 1"),
        ("lively", {"levels": {"en": {3: "?"}}}, r"dimension lively \(en\): score 3 is off the scale, 0 to 2"),
    ],
)
def test_what_does_not_fit_its_scale_is_an_error(key: str, own: dict[str, Any], problem: str) -> None:
    raw = FED.model_dump(mode="json")
    raw["dimensions"][key] |= own
    with pytest.raises(ValidationError, match=problem):
        Rubric.model_validate(raw)


def test_nobody_reads_the_default_scale_for_that_of_a_dimension() -> None:
    """`rubric.scale` is that of dimensions without one: everything outside asks `scale_of`, `scales` or `one_scale`."""
    paths = [path for room in ("data_prep", "evalsuite", "train", "serve") for path in (ROOT / room).rglob("*.py")]
    assert len(paths) > 100
    users = [str(p.relative_to(ROOT)) for p in paths if re.search(r"\b(rubric|rules|known|asked)\.scale\b", p.read_text())]
    assert users == []


def test_nobody_turns_scores_into_points_by_hand() -> None:
    """Points run from the worst end to the best (`Rubric.normalised`): a module that divides by a span does not know which."""
    back = {"statistics/leaderboard.py", "papers/role_play.py", "statistics/suggestions.py"}  # to a scale; distances
    paths = (path for room in ("data_prep", "evalsuite", "train", "serve") for path in (ROOT / room).rglob("*.py"))
    users = {str(p.relative_to(ROOT)) for p in paths if re.search(r"\.span\b(?!\()", p.read_text())}
    assert users == {f"evalsuite/{name}" for name in back}


# --- asking and reading -----------------------------------------------------------------------------------------------------


def test_prompts_name_every_scale_and_a_dash_where_there_is_no_text() -> None:
    joint = judge_messages(PACK, FED, TALK, "joint", list(FED.dimensions))
    assert "Lively (0-2), Consistent (0-1), Overall (0-4)" in joint[1]["content"]
    assert "0: dull\n1: –\n2: lively" in joint[0]["content"]
    one = judge_messages(PACK, FED, TALK, "per_dimension", ["consistent"])
    assert "from 0 to 1, in one digit: Consistent." in one[1]["content"] and "0: –\n1: –" in one[0]["content"]
    bands = judge_messages(load_pack("feel"), FED, TALK, "bands", list(FED.dimensions))[1]["content"]
    assert "Consistent: 0=p 1=p\n" in bands and "Overall: 0=p 1=p 2=p 3=p 4=p" in bands


def test_digits_are_each_of_their_own_scale() -> None:
    scales = list(FED.scales.values())
    assert digits_regex(scales) == "[0-2]{1}[0-1]{1}[0-4]{1}" and digits_regex(scales[:1] * 2) == "[0-2]{2}"
    alternatives = {"1": -0.5, "2": -1.4, "4": -2.4}
    found = [
        choice_probabilities(str(score), alternatives, map(str, scale.scores))
        for score, scale in zip((1, 1, 4), scales, strict=True)
    ]
    assert [list(spread or {}) for spread in found] == [list("012"), list("01"), list("01234")]
    assert found[1] == {"0": 0, "1": 1} and (found[2] or {})["4"] == pytest.approx(0.0957, abs=1e-3)


def test_json_and_bands_are_read_dimension_by_dimension() -> None:
    def answer(*values: int) -> str:
        return json.dumps({"analysis": "so", "evaluation": dict(zip(FED.dimensions, values, strict=True))})

    assert read_answer(answer(2, 1, 4), FED).scores == {"lively": 2, "consistent": 1, "overall": 4}
    wrong = read_answer(answer(3, 2, 4), FED)
    assert wrong.scores == {"overall": 4}
    assert wrong.problem == "no whole number from 0 to 2 for lively; no whole number from 0 to 1 for consistent"
    regex = answer_regex(FED, "en")
    assert re.fullmatch(regex, answer(2, 1, 4)) and not re.fullmatch(regex, answer(2, 2, 4))
    check_labels(FED)
    lines = "Lively: 0=0.10 1=0.20 2=0.70\nConsistent: 0=0.40 1=0.60\nOverall: 0=0.20 1=0.20 2=0.20 3=0.20 4=0.20"
    assert re.fullmatch(bands_regex(FED, "en"), lines)
    assert all(read_bands(lines, FED, "en").values())
    assert read_bands(lines.replace("1=0.60", "1=0.30 2=0.30"), FED, "en")["consistent"] is None


def test_scores_are_held_against_their_dimensions_scale() -> None:
    check_scale(human("overall", 3.5), FED)
    with pytest.raises(UserError, match="value: 2 is off the scale of consistent in rubric fed_like, 0 to 1"):
        check_scale(human("consistent", 2), FED)
    assert len(list(checked(judged(overall=4), FED))) == 3
    with pytest.raises(UserError, match="value: 2 is off the scale 0 to 1 of rubric fed_like"):
        list(checked(judged(consistent=2), FED))


# --- figures --------------------------------------------------------------------------------------------------------------


def test_averages_are_over_0_to_100() -> None:
    """1 of 0–2 is 50, 1 of 0–1 is 100, 1 of 0–4 is 25: 58.33."""
    cells = {cell.dimension: cell.estimate.mean for cell in Tally([TALK], judged(), FED).scores}
    assert cells == {"lively": 50, "consistent": 100, "overall": 25, "average": pytest.approx(175 / 3)}
    (trend,) = trends_of([TALK], judged(turn=1), FED)
    assert {name: rounds[0].mean for name, rounds in trend.means.items()} == pytest.approx(cells)
    played = make_dialogue("d", simulator="bot", card_id="c")
    (table,) = role_play_tables([played], FED, judged())
    row: dict[str, Any] = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["average"].mean == pytest.approx(175 / 30) and not any(name.startswith("average on") for name in table.columns)
    assert "each dimension's lowest score → 0" in table.notes[0]


def test_the_correlated_average_is_over_0_to_100_where_scales_differ() -> None:
    """Yes on 0–1 and 1 on 0–4 are 62.5 on average, no and 2 are 25; raw, both would be 1."""
    values = {"d0": (0, 2), "d1": (1, 1), "d2": (0, 0)}  # consistent, overall
    verdicts = [j for d, (c, o) in values.items() for j in judged(d, consistent=c, overall=o) if j.dimension != "lively"]
    gold = [human("overall", value, d) for d, value in {"d0": 1, "d1": 2, "d2": 0}.items()]
    found = {}
    for name, rubrics in (("raw", {}), ("scaled", {"fed_like": FED})):
        rows, _ = correlations(verdicts, gold, None, levels=("dataset",), rubrics=rubrics)
        found[name] = {r.coefficient: r.estimate.mean for r in rows if r.dimension == "average"}
    assert found["scaled"]["spearman"] == pytest.approx(1) and found["raw"]["spearman"] == pytest.approx(0.866, abs=1e-3)
    assert found["scaled"]["pearson"] == pytest.approx(float(np.corrcoef([25, 62.5, 0], [1, 2, 0])[0, 1]))
    other = [j.model_copy(update={"dimension": "unheard_of"}) if j.dimension == "consistent" else j for j in verdicts]
    rows, _ = correlations(other, gold, None, levels=("dataset",), rubrics={"fed_like": FED})
    assert {r.dimension for r in rows} == {"overall", "unheard_of"}, "no average without the scale of one part"


def test_matrices_have_each_dimensions_own_scores_and_are_not_pooled() -> None:
    gold = [human(key, 1) for key in FED.dimensions]
    found = confusion(judged(), gold, FED.scales)["en"]
    assert {key: matrix.scores for key, matrix in found.items()} == {
        "lively": [0, 1, 2],
        "consistent": [0, 1],
        "overall": [0, 1, 2, 3, 4],
    }
    (table,) = confusion_tables({"en": found}, {})
    rows = {row[:2]: row[2:] for row in table.rows}
    assert len(rows) == 10 and rows["consistent", "1"] == (0, 1, None, None, None, 0, 1)
    with pytest.raises(UserError, match="dimension consistent: j gave 2.0, gold is 1, but rubric fed_like runs from 0 to 1"):
        confusion(judged(consistent=2), gold, FED.scales)
    same = {key: FED.scales["overall"] for key in FED.dimensions}
    assert POOLED in confusion(judged(), gold, same)["en"]
    (chart,) = confusion_charts(confusion(judged(), gold, FED.scales), FED, synthetic=False)
    assert [trace["x"] for trace in chart.figure["data"]] == [
        ["0", "1", "2", "–"],
        ["0", "1", "–"],
        ["0", "1", "2", "3", "4", "–"],
    ]


def test_tables_charts_and_transcripts_show_each_scale() -> None:
    table = distributions(judged(), FED)
    assert [row[2:-2] for row in table.rows] == [(0, 1, 0, None, None), (0, 1, None, None, None), (0, 1, 0, 0, 0)]
    (chart,) = distribution_charts(table, FED)
    assert [trace["x"] for trace in chart.figure["data"]] == [[0, 0, 0], [100, 100, 100], *[[0, 0, 0]] * 3]
    data = transcripts(Tally([TALK], judged(), FED), {}, {})
    assert [about["scores"] for about in data["dimensions"]] == [[0, 1, 2], [0, 1], [0, 1, 2, 3, 4]]
    assert data["dimensions"][0]["levels"] == {"en": ["dull", "", "lively"]}
    assert data["rows"][0][-2] == [1, 1, 1, None] and not data["averaged"]


def test_sheets_offer_each_dimensions_scores(tmp_path: Path) -> None:
    sheets = annotation.ScoreSheets([TALK], FED)
    sheets.write(tmp_path, "anna", [TALK])
    book = load_workbook(tmp_path / "anna.xlsx")
    offered = {}
    sheet = next(sheet for sheet in book if sheet.title != "rules")
    for rule in sheet.data_validations.dataValidation:
        row, area = str(rule.sqref)[1:], rule.formula1.removeprefix("rules!").replace("$", "")
        offered[str(sheet[f"A{row}"].value).split()[-1]] = [cell.value for (cell,) in book["rules"][area]]
    assert offered == {"lively": ["0", "1", "2"], "consistent": ["0", "1"], "overall": ["0", "1", "2", "3", "4"]}
    with (tmp_path / "anna.csv").open(newline="", encoding="utf-8-sig") as handle:
        rows = list(csv.DictReader(handle))

    def read(**values: str) -> list[float]:
        filled = [row | {"score": values.get(row["row"].split()[-1], "")} for row in rows]
        write_csv(tmp_path / "ben.csv", tuple(rows[0]), filled)
        return [score.value for score in sheets.read_scores(tmp_path / "ben.csv", BuildStep("s"))]

    assert read(lively="2", consistent="1", overall="4") == [2, 1, 4]
    with pytest.raises(UserError, match=r"column score: '2' is not a whole number from 0 to 1 \(consistent\)"):
        read(lively="2", consistent="2", overall="4")


def test_what_needs_one_scale_is_refused_with_the_reason() -> None:
    where = "lively runs from 0 to 2 and consistent from 0 to 1"
    with pytest.raises(UserError, match=f"rubric fed_like: a ranker needs all dimensions on one scale, but {where}"):
        cases([TALK], {}, FED, "per_dimension", BuildStep("s"))
    with pytest.raises(UserError, match=f"a probe, which .* needs all dimensions on one scale, but {where}"):
        next(probes([TALK], load_injections(), FED, reverse=False))
