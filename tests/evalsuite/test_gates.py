"""Gates of a run for CI: thresholds and a baseline, as exit code, one line on stderr and JUnit's XML."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from core.errors import UserError
from core.files import read_jsonl, write_jsonl
from core.records import Dialogue, Judgement
from evalsuite.report.gates import JUNIT, GateCase, Gates, junit
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint, echo
from tests.evalsuite.records import RUBRIC, make_rubric, make_run
from tests.evalsuite.test_faults import one_line
from tests.evalsuite.test_growth import endpoint, run, write_config

__all__ = ["endpoint"]


def shown(folder: Path) -> dict[tuple[str, str], str | None]:
    """What report.junit.xml says: gate and name → what failed."""
    (suite,) = ElementTree.parse(folder / JUNIT).getroot()
    failures: dict[tuple[str, str], str | None] = {}
    for case in suite:
        message = [failure.get("message") for failure in case]
        failures[case.get("classname", ""), case.get("name", "")] = message[0] if message else None
    assert (suite.get("tests"), suite.get("failures")) == (str(len(suite)), str(sum(map(bool, failures.values()))))
    return failures


def failed(folder: Path, *under: str, baseline: Path | None = None) -> bool:
    gates = Gates.parse(under, baseline, RUBRIC, "j")
    assert gates
    return gates.failed(folder)


def test_every_threshold_is_held_against_every_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "r", {"good": [3, 4], "bad": [1, 2]})
    assert failed(folder, "average=60", "empathy=30")
    assert capsys.readouterr().err == "error: 1 of 6 checks failed: bad: average 37.5 is 22.5 below 60\n"
    assert shown(folder) == {
        ("all dialogues held and judged", "bad"): None,
        ("all dialogues held and judged", "good"): None,
        ("average at least 60", "bad"): "bad: average 37.5 is 22.5 below 60",
        ("average at least 60", "good"): None,
        ("empathy at least 30", "bad"): None,
        ("empathy at least 30", "good"): None,
    }
    assert not failed(folder, "average=37.5"), "what is reached is not under it"
    assert capsys.readouterr().err == ""


def test_what_is_missing_fails_and_is_counted(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", {"m": [3, 4, 4, 4], "mute": [None, None]})
    dialogues = read_jsonl(folder / "dialogues.jsonl", Dialogue, "dialogues")
    judgements = read_jsonl(folder / "judgements.jsonl", Judgement, "judgements")
    lost = {"value": None, "condition": {"failure": "infrastructure"}}
    write_jsonl(folder / "dialogues.jsonl", [dialogues[0].model_copy(update={"termination": "infrastructure"}), *dialogues[1:]])
    write_jsonl(
        folder / "judgements.jsonl",
        [one.model_copy(update=lost) if one.dialogue_id == "m-1" else one for one in judgements if one.dialogue_id != "m-0"],
    )
    assert failed(folder, "average=1")
    assert [message for message in shown(folder).values() if message] == [
        "m: 2 of 4 dialogues are missing or not judged",
        "mute: no average for lack of readable verdicts",
    ]


WORSE = "not worse than old"


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ([3] * 12, None),  # better
        ([1, 2, 3, 2] * 3, None),  # lower by no difference that holds
        ([1] * 12, "new/m against old/m: average worse by 25.0 [{low}, {high}] on 12 cards"),
        ([1], "new/m against old/m: too few shared cards to compare (1)"),
    ],
)
def test_worse_than_the_baseline_is_a_difference_that_holds(tmp_path: Path, new: list[int | None], message: str | None) -> None:
    old, folder = make_run(tmp_path / "old", {"m": [2] * 12}), make_run(tmp_path / "new", {"m": new})
    assert failed(folder, baseline=old) == (message is not None)
    found = shown(folder)[WORSE, "new/m against old/m"]
    if message is None or found is None:
        assert found is message
        return
    before, _, after = message.partition("[{low}, {high}]")
    assert found.startswith(before) and found.endswith(after)


def test_the_same_dialogues_are_not_worse_and_no_comparison_is_a_failure(tmp_path: Path) -> None:
    old, same = (make_run(tmp_path / name / "r", {"m": [2] * 12}) for name in "ab")
    assert not failed(same, baseline=old)
    floors = [{"name": "f", "floor": {"kind": "silent"}}]
    floored = make_run(tmp_path / "floored", {"f": [2] * 12}, supporters=floors)
    assert failed(floored, baseline=old)
    assert shown(floored)["not worse than r", "any model"] == "no model of this run could be compared with one of r"


@pytest.mark.parametrize(
    ("under", "message"),
    [
        ("60", "--fail-under 60: write DIMENSION=SCORE, such as average=60"),
        ("empaty=60", "'empaty' is no dimension of rubric test: did you mean empathy?"),
        ("average=high", "high is no score on 0–100"),
        ("average=101", "101 is no score on 0–100"),
    ],
)
def test_a_threshold_that_is_none_is_refused(under: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        Gates.parse([under], None, RUBRIC, "j")


def test_any_text_is_xml() -> None:
    (suite,) = ElementTree.fromstring(junit("r", [GateCase("g", "a\x00<&>\"' \x1b 好", "\x0b]]>")]).encode())
    assert suite[0].get("name") == "a\ufffd<&>\"' \ufffd 好" and suite[0][0].get("message") == "\ufffd]]>"


def scores(digit: str) -> Any:
    """A server whose judge gives one score to all, and whose supporters say what depends on it."""

    def behave(body: dict[str, Any], count: int) -> Answer:
        said = echo(body, count)
        return Answer(digit * len(said.text)) if "structured_outputs" in body else Answer(f"{digit}: {said.text}")

    return behave


def test_a_run_is_gated_by_its_baseline_and_asks_nothing_for_it(esc_eval: EscEval, tmp_path: Path, endpoint: Endpoint) -> None:
    write_config(tmp_path / "c.yaml", endpoint.url, supporters=["a.yaml"], limit=6)
    endpoint.behave = scores("4")
    assert esc_eval(*run("old")) == (0, "")
    assert esc_eval("report", "old", "--fail-under", "average=100", "--fail-under", "empathy=90") == (0, "")
    endpoint.behave = scores("1")
    assert esc_eval(*run("new")) == (0, "")
    config, asked = Path("new/config.json").read_bytes(), len(endpoint.requests)
    one_line(esc_eval("report", "new", "--fail-if-worse", "old"), 1, "new/a against old/a: average worse by 75.0 [")
    one_line(esc_eval("report", "new", "--fail-under", "average=60"), 1, "a: average 25.0 is 35.0 below 60")
    assert len(shown(Path("new"))) == 2
    assert len(endpoint.requests) == asked and Path("new/config.json").read_bytes() == config, "gates are no part of a run"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--fail-under", "averge=60"), "did you mean average?"),
        (("--fail-if-worse", "empty"), "not a run folder (no config.json): empty"),
        (("--fail-if-worse", "other-judge"), "--judge embedded: did not score other-judge"),
        (("--fail-if-worse", "other-rubric"), "--fail-if-worse other-rubric: scored on another rubric"),
    ],
)
def test_a_gate_that_cannot_be_is_told(esc_eval: EscEval, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    (tmp_path / "empty").mkdir()
    make_run(tmp_path / "other-judge", {"a": [1]})
    make_run(tmp_path / "other-rubric", {"a": [1]}, judge="embedded", rubric=make_rubric("fluency", "empathy", high=5))
    make_run(tmp_path / "r", {"a": [1]}, judge="embedded")
    one_line(esc_eval("report", "r", *options), 2, message)
    assert not Path("r/report.html").exists()
