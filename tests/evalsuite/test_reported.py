"""The papers' tables: what follows from what in them, worked by hand and against scipy and statsmodels."""

import shutil
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from core.errors import UserError
from core.files import CONFIGS
from core.settings import load_yaml
from evalsuite.papers.reported import Reported, load_reported
from evalsuite.papers.reported.against import TITLES, disagreement_table
from evalsuite.papers.reported.recomputation import Checked, ReportedSpread, check, combine

# Every figure of the paper that does not follow from the others: table, row, column, printed, recomputed.
DISAGREEMENTS = [
    # English metrics of two Baichuan-NPC rows sum to 46.5 and 46.6: 7.75 and 7.77.
    ("1", "Baichuan-NPC zero-shot", "Aver. EN", 8.0, 7.8),
    ("1", "Baichuan-NPC CoT", "Aver. EN", 8.1, 7.8),
    # Cut off, not rounded: 955/331 × 25 = 72.1299, 842/331 × 25 = 63.595 and so on.
    ("2", "EN / Close / ChatGPT", "Empathy", 72.12, 72.13),
    ("2", "EN / Open / LLaMa3-8B-Instruct", "Fluency", 63.59, 63.6),
    ("2", "EN / Open / LLaMa3-8B-Instruct", "Empathy", 72.65, 72.66),
    ("2", "EN / Open / LLaMa3-8B-Instruct", "Skillful", 74.69, 74.7),
    ("2", "EN / Open / LLaMa3-8B-Instruct", "Humanoid", 40.55, 40.56),
    ("2", "EN / Domain / ChatCounselor", "Fluency", 74.54, 74.55),
    ("2", "EN / Domain / ChatCounselor", "Expression", 66.61, 66.62),
    ("2", "EN / Domain / ChatCounselor", "Overall", 47.5, 47.51),
    # Not tuned in English, says section 3.2, and inferior in its fluency; ExTES-LLaMa, named beside it as good, is less fluent.
    ("2", "EN / Domain / MindChat", "Fluency", 74.4, 74.32),
    ("2", "ZH / Open / Vicuna-7B-1.5", "Humanoid", 35.41, 35.42),
    # Cut off as well: the seven sums of 324 scores are 5,872 together, and 25 × 5,872 / (7 × 324) = 64.7266.
    ("2", "ZH / Domain / ChatCounselor", "Average", 64.72, 64.73),
    # Cut off: 512/779, 924/927, 252/779, 255/927, 8/779. Not cut off: 62/779 is 7.96 and 63/779 is 8.09.
    ("4", "Exp. / ESC-RANK", "ACC ZH", 65.72, 65.73),
    ("4", "Exp. / ESC-RANK", "ACC_soft EN", 99.67, 99.68),
    ("4", "Ski. / InternLM2", "ACC ZH", 32.34, 32.35),
    ("4", "Ski. / InternLM2", "ACC EN", 27.5, 27.51),
    ("4", "Hum. / GPT-4", "ACC ZH", 1.02, 1.03),
    ("4", "Ove. / InternLM2", "ACC ZH", 8.04, 8.09),
    # (1,320 / 7.79 + 8.04) / 7, and the counts 3,879 of 7 × 779, 4,691 of 7 × 927, 3,849 of 7 × 779.
    ("4", "Avg. / InternLM2", "ACC ZH", 25.5, 25.36),
    ("4", "Avg. / InternLM2", "ACC_soft ZH", 79.59, 71.14),
    ("4", "Avg. / InternLM2", "ACC_soft EN", 76.56, 72.29),
    ("4", "Avg. / ESC-RANK", "ACC ZH", 70.53, 70.58),
    # Cut off: 5,395 of 7 × 779 are 98.9364.
    ("4", "Avg. / ESC-RANK", "ACC_soft ZH", 98.93, 98.94),
    # 1,708 − 331, and 2,146 − 769.
    ("6", "English", "Middle", 1455, 1377),
    # More cards than the 1,000 items of PsyQA and the 1,000 of Smile (table 5).
    ("6", "Chinese", "Extract", 2023, 2000),
    # Two lost minus signs.
    ("13", "Rouge-L", "Average", 37.24, -37.24),
    ("14", "ESC-humanoid", "Empathy Spear.", 8.59, -8.59),
    # 35 rows of table 9; 70.53 − 32.15; 98.93 is not over 99; 3,390 are not 3.5 thousand.
    ("text", "Categories of life problems", "Printed", 37, 35),
    ("text", "ESC-RANK above GPT-4 in ACC (points), Chinese", "Printed", 35, 38),
    ("text", "ESC-RANK's ACC_soft is over (per cent), Chinese", "Printed", 99, 98.93),
    ("text", "Role-play dialogues of the domain (thousands)", "Printed", 3.5, 3.4),
    # The abstract has domain-specific models above general ones: in English six averages of 59.675 against eight of 61.70375.
    ("findings", "Domain-specific models over general ones / EN", "Average", 0, -2.03),
    # Section 3.4 has InternLM2 above GPT-4 in ACC_soft, by averages that do not follow: 72.29, 71.14 against 75.03, 72.07.
    ("findings", "InternLM2 over GPT-4 as judges / EN", "ACC_soft", 0, -2.74),
    ("findings", "InternLM2 over GPT-4 as judges / ZH", "ACC_soft", 0, -0.94),
]


@pytest.fixture(scope="module")
def paper() -> Reported:
    return load_reported("esc_eval")


@pytest.fixture(scope="module")
def checked(paper: Reported) -> Checked:
    return check(paper)


def rows_of(checked: Checked) -> list[tuple[Any, ...]]:
    return [(d.table, d.row, d.column, d.printed, d.recomputed) for d in checked.disagreements]


# --- the bundled tables ---------------------------------------------------------------------------------------------------


def test_all_tables_are_there(paper: Reported) -> None:
    sizes = {"1": 9 * 7 * 2, "2": 26 * 8, "3": 8 * 6 * 2, "4": 24 * 2 * 2, "5": 7, "6": 2 * 5, "9": 35 * 2, "13": 8 * 6}
    sizes |= {"14": 8 * 6 * 3, "15": 8 * 6 * 3, "text": 13, "findings": 6 * 8}
    assert [(name, len(cells)) for name, cells in paper.cells.items()] == list(sizes.items())


@pytest.mark.slow
def test_the_disagreements_are_these(checked: Checked) -> None:
    assert rows_of(checked) == DISAGREEMENTS
    notes = {(d.table, d.row, d.column): d.notes for d in checked.disagreements}
    middle = notes["6", "English", "Middle"]
    assert len(middle) == 3 and "table 9" in middle[1] and "1,377" in middle[2]  # two rules, one disagreement
    assert notes["2", "EN / Close / ChatGPT", "Empathy"] == ("whole multiple of 25/331; cut off, not rounded",)
    assert "cut off" not in notes["4", "Ove. / InternLM2", "ACC ZH"][0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["esc_eval", "emoharbor", "feel", "ecdbench"])
def test_what_the_documents_say_of_the_check(name: str) -> None:
    found = check(load_reported(name))
    (row,) = (
        line
        for line in (CONFIGS.parent / "docs" / "reproduce.md").read_text(encoding="utf-8").splitlines()
        if line.startswith(f"| {TITLES[name]} | {len(found.disagreements)} of {found.figures}")
    )
    assert row


def test_the_output_says_what_is_exact(paper: Reported, checked: Checked) -> None:
    assert {(d.table, d.column, d.slack) for d in checked.disagreements if d.slack != 0} == {
        ("1", "Aver. EN", 0.05),
        ("4", "ACC ZH", 0.005 / 7),  # one of its seven shares is no whole count
        ("13", "Average", None),
        ("14", "Empathy Spear.", None),
        ("text", "Printed", 0.01),
        ("text", "Printed", 0.005),
        ("findings", "Average", 0.01),
    }
    shown = disagreement_table(paper, checked)
    figures = {row[:3]: row[4] for row in shown.rows}
    assert figures["1", "Baichuan-NPC CoT", "Aver. EN"] == "7.8 ± 0.05"
    assert figures["4", "Avg. / InternLM2", "ACC ZH"] == "25.36 ± 0.0007"
    assert figures["4", "Avg. / ESC-RANK", "ACC_soft ZH"] == "98.94"
    assert figures["13", "Rouge-L", "Average"] == "-37.24"


def test_table_5_is_what_cards_are_drawn_by(paper: Reported) -> None:
    quotas = load_yaml(CONFIGS / "data" / "table5.yaml", "quotas")["quotas"]
    ours = {cell.at["Dataset"].lower().replace(" ", "_"): cell.value for cell in paper.cells["5"]}
    assert ours == quotas


def test_table_9_is_that_of_the_taxonomy(paper: Reported) -> None:
    tree = load_yaml(CONFIGS / "taxonomy.yaml", "taxonomy")["categories"]
    leaves = [[a["en"], b["en"], c["en"], c["high"], c["middle"]] for a in tree for b in a["children"] for c in b["children"]]
    assert paper.tables["9"].rows == leaves


# --- recomputation --------------------------------------------------------------------------------------------------------

spreads = st.tuples(st.integers(-90, 90), st.integers(1, 9)).map(
    lambda given: ReportedSpread(*(Fraction(given[0] * 10 + step * given[1], 100) for step in (-1, 0, 1)))
)


@given(st.sampled_from(["sum", "mean", "minus", "times", "ratio"]), st.lists(spreads, min_size=2, max_size=3))
def test_a_spread_is_as_wide_as_the_inputs_allow(operation: str, inputs: list[ReportedSpread]) -> None:
    inputs = inputs[:2] if operation in ("minus", "ratio") else inputs
    if operation == "ratio" and inputs[1].low <= 0 <= inputs[1].high:
        return  # no range to divide by
    apply = {
        "sum": sum,
        "mean": lambda v: sum(v) / len(v),
        "minus": lambda v: v[0] - v[1],
        "times": lambda v: np.prod(np.array(v, dtype=object)),
        "ratio": lambda v: v[0] / v[1],
    }[operation]
    corners = [apply(list(chosen)) for chosen in product(*((s.low, s.mid, s.high) for s in inputs))]
    found = combine(operation, inputs)
    assert (found.low, found.high) == (min(corners), max(corners))
    assert found.mid == apply([s.mid for s in inputs])


SMALL: dict[str, Any] = {
    "paper": "toy",
    "table": "1",
    "section": "2",
    "title": "toy",
    "decimals": 1,
    "heads": ["Model"],
    "columns": ["A", "B", "Mean"],
    "rows": [["x", 1.0, 2.0, 1.5], ["y", 3.0, None, 3.0]],
}
MEAN = {"why": "mean", "cells": {"column": "Mean", "Model": "x"}, "equals": {"mean": [{"column": ["A", "B"]}]}}


def toy(folder: Path, **changes: Any) -> Reported:
    (folder / "toy").mkdir()
    (folder / "toy" / "t.yaml").write_text(yaml.safe_dump(SMALL | changes))
    return load_reported(str(folder / "toy"))


def shares(*columns: str, **more: Any) -> dict[str, Any]:
    return {"why": "n = 7", "share_of": 7, **({"cells": {"column": list(columns)}} if columns else {}), **more}


def bound(relation: str, limit: Any) -> dict[str, Any]:
    return {"why": "bound", "cells": {"column": "Mean"}, relation: limit}


SIGN = {"why": "sign", "cells": {"column": "Mean"}, "sign_of": [{"column": "A"}, {"column": "B"}]}
CUT = "; cut off, not rounded"


# Rows of A, B, Mean; the rules; and of each cell that does not follow its row and column, recomputed, slack and reasons.
@pytest.mark.parametrize(
    ("rows", "rules", "found"),
    [
        # A and B are each known to ±0.05, so is their mean, and so is what is printed.
        ([[1.0, 2.0, 1.4]], [MEAN], []),
        ([[1.0, 2.0, 1.6]], [MEAN], []),
        ([[1.0, 2.0, 1.3]], [MEAN], [("x0 Mean", 1.5, 0.05, "mean")]),
        ([[1.0, 2.0, 1.7]], [MEAN], [("x0 Mean", 1.5, 0.05, "mean")]),
        # 2 of 7 are 28.571 and 4 of 7 are 57.143, so their mean is 42.857. 28.5 is 2 of 7 cut off.
        ([[28.6, 57.1, 42.9]], [shares("A", "B", items="dialogues"), MEAN], []),
        ([[28.6, 57.1, 42.8]], [shares("A", "B"), MEAN], []),
        ([[28.6, 57.1, 42.8]], [shares("A", "B", items="dialogues"), MEAN], [("x0 Mean", 42.9, 0, f"mean{CUT}")]),
        ([[28.6, 57.1, 42.7]], [shares("A", "B", items="dialogues"), MEAN], [("x0 Mean", 42.9, 0, "mean")]),
        # No whole count is printed 28.1: (28.1 ± 0.05 + 57.143) / 2.
        ([[28.1, 57.1, 42.6]], [shares("B", items="dialogues"), MEAN], []),
        ([[28.1, 57.1, 42.5]], [shares("B", items="dialogues"), MEAN], [("x0 Mean", 42.6, 0.025, "mean")]),
        # 1/7 = 14.286, 2/7 = 28.571, 4/7 = 57.143.
        (
            [[14.3, 28.6, 28.5], [14.2, 57.1, 50.0]],
            [shares()],
            [("x0 Mean", 28.6, 0, f"n = 7{CUT}"), ("x1 A", 14.3, 0, f"n = 7{CUT}"), ("x1 Mean", 57.1, 0, "n = 7")],
        ),
        ([[3.0, None, 3.0]], [bound("at_most", 3), bound("at_most", {"column": "A"}), bound("at_least", 3)], []),
        ([[3.0, None, 3.0]], [bound("at_least", {"times": [2, {"count": [{"column": "A"}]}]})], []),
        ([[3.0, None, 3.0]], [bound("at_most", 2.8)], [("x0 Mean", 2.8, 0, "bound")]),
        ([[3.0, None, 3.0]], [bound("at_least", {"sum": [{"column": "A"}, 0.2]})], [("x0 Mean", 3.2, 0.05, "bound")]),
        ([[-40.0, -45.0, 37.0]], [SIGN], [("x0 Mean", -37.0, None, "sign")]),
        ([[-40.0, -45.0, -37.0]], [SIGN], []),
        ([[-40.0, 45.0, 37.0]], [SIGN], []),  # the others do not agree
        ([[-4.0, -45.0, 37.0], [-40.0, -45.0, 3.0]], [SIGN], []),  # near 0
    ],
)
def test_rules_by_hand(tmp_path: Path, rows: list[Any], rules: list[dict[str, Any]], found: list[tuple[Any, ...]]) -> None:
    rules = [rule | {"cells": {"column": "Mean"}} if rule is MEAN else rule for rule in rules]
    paper = toy(tmp_path, rows=[[f"x{place}", *row] for place, row in enumerate(rows)], derived=rules)
    disagreements = check(paper).disagreements
    assert [(f"{d.row} {d.column}", d.recomputed, d.slack, *d.notes) for d in disagreements] == found


def test_counts_are_exact(tmp_path: Path) -> None:
    rule = {"why": "sum", "cells": {"column": "Mean"}, "equals": {"sum": [{"column": ["A", "B"]}]}}
    found = check(toy(tmp_path, rows=[["x", 1, 2, 3], ["y", 1, 2, 4]], exact=True, decimals=0, derived=[rule]))
    assert rows_of(found) == [("1", "y", "Mean", 4, 3)] and found.figures == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": [["x", 1.0, 2.0]]}, r"rows.0 \(x\): 2 cells for 3 columns"),
        ({"rows": [["x", 1.0, "2", 1.5]]}, r"rows.0 \(x\), B: '2' is not a number"),
        ({"rows": [["x", 1.0, 2.05, 1.5]]}, "2.05 is not a number of at most 1 decimals"),
        ({"rows": [["x", 1.0, [2.0, 3.0], 1.5]]}, "B: .* is not one number"),
        ({"rows": [["x", [1.0], [2.0, 1.0], [1.0, 1.0]]], "parts": ["EN", "ZH"]}, r"A: \[1.0\] is not EN and ZH"),
        ({"rows": [["x", 1.0, 2.0, 1.5]] * 2}, "rows.1 .*a row starts with its own Model"),
        ({"derived": [MEAN | {"at_most": 1}]}, "derived.0: .*exactly one of equals"),
        ({"derived": [MEAN | {"cells": {"kolumn": "A"}}]}, r"derived.0.cells: table 1 has no axis 'kolumn'.*column"),
        ({"derived": [MEAN | {"cells": {"column": "C"}}]}, "derived.0.cells: table 1 has no column 'C'"),
        ({"derived": [MEAN | {"cells": {"column": "Mean"}}]}, "derived.0.equals: y, B has no figure; `lost: skip`"),
        ({"derived": [MEAN | {"equals": {"column": ["A", "B"]}}]}, "derived.0.equals: one value is needed"),
        (
            {"derived": [{"why": "n", "share_of": 700, "items": "cards"}]},
            "items: with a step of 0.143, several counts are printed alike",
        ),
        ({"remarks": [{"cells": {"Model": "z"}, "note": "?"}]}, "remarks.0.cells: table 1 has no Model 'z'"),
    ],
)
def test_malformed_tables_are_refused_with_file_and_field(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"toy/t\.yaml(:\d+)?: .*{message}"):
        check(toy(tmp_path, **changes))


def test_a_table_twice_and_an_unknown_paper(tmp_path: Path) -> None:
    toy(tmp_path)
    shutil.copy(tmp_path / "toy" / "t.yaml", tmp_path / "toy" / "u.yaml")
    with pytest.raises(UserError, match=r"u\.yaml: table: '1' is also in .*t\.yaml"):
        load_reported(str(tmp_path / "toy"))
    with pytest.raises(UserError, match="unknown paper 'esceval': did you mean esc_eval"):
        load_reported("esceval")
    with pytest.raises(UserError, match="no reported tables in"):
        load_reported(str(tmp_path))
