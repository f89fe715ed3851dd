"""Runs side by side: what is compared with what, the figures, and the command."""

import asyncio
import csv
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import orjson
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from core.errors import UserError, run_cli
from core.files import write_json, write_jsonl
from core.records import Judgement, RoleCard, Turn
from evalsuite.commands import reports as command
from evalsuite.report.board import comparison_sheet
from evalsuite.report.report import PLUMBING
from evalsuite.report.sheet import Sheet
from evalsuite.runs.records import read_runs
from evalsuite.statistics import paired
from evalsuite.statistics.comparison import RunRecords, as_json, compare, tables
from serve.store import CallOrigin, CallStore
from tests.evalsuite.oracles import GAPS, agrees, corrected, smoothed, student
from tests.evalsuite.records import RUBRIC, Scores, make_dialogue, make_judgement, make_rubric, make_run


def pairs(*folders: Path) -> list[tuple[str, str]]:
    (each,) = compare(read_runs(folders)).languages
    found = [(each.entries[one.first].name, each.entries[one.second].name) for one in each.differences]
    return list(dict.fromkeys(found))


@pytest.mark.slow
def test_a_supporter_in_both_runs_by_hand(tmp_path: Path) -> None:
    old = make_run(tmp_path / "old", {"m": [1, 2, 3, 2, 1, 0, 2, 1, 3, 2, None]})
    new = make_run(tmp_path / "new", {"m": [2, 3, 4, 3, 2, 1, 3, 2, 4, 3, 4]}, exchanges=6)
    found = as_json(compare(read_runs([old, new])))
    english = found["languages"]["en"]
    assert english["cards"] == {"old": 11, "new": 11, "shared": 11}
    assert [one["dimension"] for one in english["differences"]] == ["fluency", "empathy", "average"]
    for one in english["differences"]:
        assert (one["name"], one["against"]) == ("new/m", "old/m"), "the later run's comes first"
        assert (one["mean_first"], one["mean_against"]) == (pytest.approx(67.5), pytest.approx(42.5))
        assert one["difference"] == pytest.approx(25)
        assert (one["low"], one["high"]) == pytest.approx(smoothed([25.0] * 10, GAPS, unseen=1), abs=1.5)
        # Ten shared cards, all better by 25: the rule for cards that are alike. The average is alone, the dimensions are two.
        tests = 1 if one["dimension"] == "average" else 2
        assert (one["cards"], one["p"], one["p_holm"]) == (10, pytest.approx(1.5**-10), pytest.approx(tests * 1.5**-10))
        assert one["holds"] is True
    assert [(s["name"], s["dimension"], s["n"]) for s in english["scores"]][::3] == [
        ("old/m", "fluency", 10),
        ("new/m", "fluency", 11),
    ]
    assert found["config_differences"] == [{"run": "old", "compared_with": "new", "differences": ["simulate.exchanges: 5 → 6"]}]


def test_the_same_dialogues_are_no_test(tmp_path: Path) -> None:
    """Floors, and models at temperature 0, say the same in both runs."""
    scores: Scores = {"m": [1, 2, 3, None, 0, 4, 2, 2, 1, 3, 3, 4], "k": [0] * 12}
    found = compare(read_runs([make_run(tmp_path / name / "run", scores) for name in "ab"]))
    (each,) = found.languages
    assert [(one.estimate.mean, one.p, one.holm, one.holds) for one in each.differences] == [(0, None, None, None)] * 6
    shown = {table.key: table for table in tables(found)}
    assert shown["compare-differences-en"].rows == ()
    assert any(
        note.startswith("Not compared, since the replies are the same") for note in shown["compare-differences-en"].notes
    )


def test_what_is_compared_with_what(tmp_path: Path) -> None:
    both = make_run(tmp_path / "one", {"base": [1, 2], "mine-1": [2, 2]})
    other = make_run(tmp_path / "two", {"base": [1, 2], "mine-2": [3, 3]})
    assert pairs(both, other) == [("two/base", "one/base"), ("mine-2", "mine-1")]
    alone = make_run(tmp_path / "three", {"gpt": [1, 2]})
    assert pairs(alone, other) == [("base", "gpt"), ("mine-2", "gpt")]
    assert pairs(make_run(tmp_path / "four", {"base": [0, 0]}), other) == [("two/base", "four/base")]


def test_two_judges_on_the_same_dialogues(tmp_path: Path) -> None:
    first = make_run(tmp_path / "j" / "run", {"m": [1] * 12, "k": [2] * 12})
    second = make_run(tmp_path / "k" / "run", {"m": [2] * 12, "k": [2] * 12}, judge="k")
    found = compare(read_runs([first, second]))
    (each,) = found.languages
    averages = [one for one in each.differences if one.dimension is None]
    named = {each.entries[one.first].contestant.supporter: (one.estimate.mean, one.holds) for one in averages}
    assert named == {"k": (0, False), "m": (25, True)}, "one judge's scores against the other's are a test"
    shown = {table.key: table for table in tables(found)}
    assert shown["compare-scores-en"].columns[:3] == ("supporter", "run", "judged by")
    assert any("judges differ" in note for note in shown["compare-differences-en"].notes)
    assert 'score.judge.name: "j" → "k"' in [row[-1] for row in shown["compare-config"].rows]


def test_several_judges_in_a_run_are_told_apart(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name, {"m": [1, 2]}) for name in "ab"]
    for folder in folders:
        own = [Judgement.model_validate_json(line) for line in (folder / "judgements.jsonl").read_text().splitlines()]
        write_jsonl(folder / "judgements.jsonl", own + [j.model_copy(update={"judge": "other"}) for j in own])
    assert pairs(*folders) == [("b/m (j · joint)", "a/m (j · joint)"), ("b/m (other · joint)", "a/m (other · joint)")]


def test_cards_that_only_share_their_id_are_not_paired(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name, {"m": [1, 2, 3]}) for name in "ab"]
    for text, folder in zip(("a lost job", "a lost dog"), folders, strict=True):
        card = {"language": "en", "source": "s", "card_method": "written"}
        problems = [text, "same", "same"]
        cards = [RoleCard.model_validate(card | {"id": f"c{n}", "problem": p}) for n, p in enumerate(problems)]
        write_jsonl(folder / "cards.jsonl", cards)
    found = compare(read_runs(folders))
    (each,) = found.languages
    assert each.shared == 2 and {one.estimate.n for one in each.differences} == {2}
    assert any("counted as different cards: 1." in note for note in tables(found)[0].notes)


def test_runs_without_shared_cards_are_compared_unpaired(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a", {"m": [0, 2, 1, None, None]}), make_run(tmp_path / "b", {"m": [*[None] * 3, 4, 3]})]
    found = compare(read_runs(runs))
    assert {(gap.unpaired, gap.estimate.mean, gap.estimate.n) for gap in found.languages[0].differences} == {(True, 62.5, 5)}
    shown = {table.key: table for table in tables(found)}
    assert paired.UNPAIRED in shown["compare-differences-en"].notes
    alone = compare(read_runs([make_run(tmp_path / "c", {"m": [1, None]}), make_run(tmp_path / "d", {"m": [None, 2]})]))
    assert {one["p"] for one in as_json(alone)["languages"]["en"]["differences"]} == {None}, "of one card each nothing is known"


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name / "run", {"m": [1]}) for name in "ab"]
    assert [run.name for run in read_runs(folders)] == [str(folder) for folder in folders]


def test_a_run_that_was_only_scored_has_no_simulate_config(tmp_path: Path) -> None:
    first, second = (make_run(tmp_path / name, {"m": [1, 2]}) for name in "ab")
    config = orjson.loads((second / "config.json").read_bytes())
    write_json(second / "config.json", {"score": config["score"]})
    assert compare(read_runs([first, second])).changed[0][2][0].startswith("simulate: ")


def page_of(*folders: Path) -> Sheet:
    return comparison_sheet(compare(read_runs(folders)))


def test_what_may_mislead_is_said(tmp_path: Path) -> None:
    """The embedded model, a judge that was measured on no gold set, and another seeker beside the supporters."""
    first = make_run(tmp_path / "a", {"m": [1, 2]})
    second = make_run(tmp_path / "b", {"m": [1, 2]}, seeker={"name": "s", "checkpoint": "embedded:x"})
    assert page_of(first, second).cautions == [
        PLUMBING,
        "Do not rely on j: it was measured on no gold set, so nobody knows how well it judges.",
        "b differs from a also in simulate.seeker. The difference may come from there.",
    ]
    measured = {"acc": 0.8, "majority_acc": 0.5, "over_majority_low": 0.1}
    write_json(first / "agreement.json", {"agreement": {"en": {"average": measured}}})
    assert (
        "j does better on its gold set than always giving the most frequent score (English 80.0 % right against 50.0 %)."
        in (page_of(first, make_run(tmp_path / "c", {"m": [2, 1]})).findings)
    )


@pytest.mark.parametrize(
    ("scores", "answer"),
    [
        (
            [3, 2, 3, 4] * 3,
            r"new is better than old by 25\.0 points of 100 \(95 % interval .* to .*\) on 12 cards, judged by j\.",
        ),
        (
            [1, 0, 1, 2] * 3,
            r"old is better than new by 25\.0 points of 100 \(95 % interval 8.* to 3.*\) on 12 cards, judged by j\.",
        ),
        ([2, 1, 2, 4] * 3, r"No difference found between new and old: 6\.2 points of 100 \(.*\) on 12 cards, judged by j\."),
        ([4, 3, 4], r"Too few cards to tell new from old: at least 12 are needed, there are 3, judged by j\."),
        ([None] * 3, r"new and old cannot be compared: a side has no readable verdict .*"),
    ],
)
def test_the_page_begins_with_the_verdict(tmp_path: Path, scores: list[int | None], answer: str) -> None:
    old, new = make_run(tmp_path / "old", {"m": [2, 1, 2, 3] * 3}), make_run(tmp_path / "new", {"m": scores})
    assert re.fullmatch(answer, page_of(old, new).findings[0])


def test_every_pair_has_its_verdict_and_the_found_come_first(tmp_path: Path) -> None:
    old = make_run(tmp_path / "old", {"m": [2] * 12, "k": [1, 2, 3] * 4})
    new = make_run(tmp_path / "new", {"m": [2] * 12, "k": [3, 3, 4] * 4})
    page = page_of(old, new)
    assert [line.partition(" by ")[0].partition(":")[0] for line in page.findings[:2]] == [
        "new/k is better than old/k",
        "No difference found between new/m and old/m",
    ]
    assert page.findings[2].startswith("k, by dimension: Fluency +33.3, Empathy +33.3;")
    averages, dimensions = page.forests
    assert [(line.name, line.said) for line in averages.lines] == [("k", "better"), ("m", "no difference found")]
    assert dimensions.columns == ["Fluency", "Empathy"]


def test_languages_are_decided_together() -> None:
    """Six cards per language decide nothing, the twelve of both do."""
    runs = []
    for name, scores in (("old", [1, 2, 3] * 4), ("new", [2, 3, 4] * 4)):
        run, zh = records(name, [(score, score) for score in scores]), {"language": "zh"}
        dialogues = [d.model_copy(update=zh) if int(d.id[1:]) > 5 else d for d in run.dialogues]
        judgements = [j.model_copy(update=zh) if int(j.dialogue_id[1:]) > 5 else j for j in run.judgements]
        runs.append(replace(run, dialogues=dialogues, judgements=judgements))
    page = comparison_sheet(compare(runs))
    assert page.findings[0].startswith("new is better than old by 25.0 points") and " on 12 cards" in page.findings[0]
    assert [(line.name, line.said) for line in page.forests[0].lines] == [
        ("all languages", "better"),
        ("English", "too few cards to tell"),
        ("Chinese", "too few cards to tell"),
    ]
    differences = {table.key: table.rows[-1] for table in page.tables if table.key.startswith("compare-differences-")}
    assert {key[-3:]: (row[2], row[-1]) for key, row in differences.items()} == {
        "mul": ("average", "yes"),
        "-en": ("average", "no"),
        "-zh": ("average", "no"),
    }


def test_changed_texts_are_shown_as_diffs(tmp_path: Path) -> None:
    """Prompts as they were sent, where their pack changed: of each role one; and long settings, but no hashes."""
    told = {"a": "Be brief.\nYou are {}.\nNever say no.", "b": "Be brief.\nYou are {}.\nSay yes, and mean it."}
    folders = []
    for name, text in told.items():
        floor = {"name": "f", "checkpoint": None, "floor": {"kind": "fixed", "text": {"en": f"{name} " + "hm " * 30}}}
        prompts = {"pack": name, "fingerprint": name * 70}
        folders.append(make_run(tmp_path / name, {"m": [1, 2]}, supporters=[floor], prompts=prompts))
        store = CallStore(folders[-1] / "calls.sqlite")
        for person in ("Ann", "Bo"):
            sent = orjson.dumps([{"role": "system", "content": text.format(person)}, {"role": "user", "content": name}])
            for role in ("judge", "seeker"):
                origin = CallOrigin(role, "s", "s", "s", None, 1, person + name, sent)
                asyncio.run(store.put(f"{role} {person}", {"text": "x"}, 0.1, origin))
        store.close()
    seeker, fixed = page_of(*folders).texts
    assert seeker == (
        "What the seeker was told",
        ["@@ -2,2 +2,2 @@", " You are Ann.", "-Never say no.", "+Say yes, and mean it."],
    )
    assert fixed.what == "simulate.supporters.f.floor.text.en" and [line[:4] for line in fixed.lines[1:]] == ["-a h", "+b h"]
    assert page_of(folders[0], make_run(tmp_path / "c", {"m": [1, 2]})).texts == [], (
        "without the other's store nothing is known"
    )


def records(name: str, given: list[tuple[int | None, int | None]]) -> RunRecords:
    """A run in memory: one supporter's scores on both dimensions, card by card."""
    said = [(Turn(role="seeker", text=f"{card}"), Turn(role="supporter", text=name)) for card in range(len(given))]
    dialogues = [make_dialogue(f"d{card}", card_id=f"c{card}", turns=turns) for card, turns in enumerate(said)]
    judgements = [
        make_judgement(f"d{card}", dimension, value)
        for card, values in enumerate(given)
        for dimension, value in zip(RUBRIC.dimensions, values, strict=True)
    ]
    return RunRecords(name, Path(name), {}, RUBRIC, dialogues, judgements, {})


MARK = st.sampled_from([None, 0, 1, 2, 3, 4])
RUNS = st.integers(1, 6).flatmap(lambda n: st.tuples(*[st.lists(st.tuples(MARK, MARK), min_size=n, max_size=n)] * 2))


@given(RUNS, st.integers(0, 2))
def test_any_two_runs_against_scipy_and_holms_definition(
    runs: tuple[list[tuple[int | None, int | None]], list[tuple[int | None, int | None]]], more: int
) -> None:
    """Means over shared cards, Student's t, Holm's correction of the dimensions; the first run may have further cards."""
    old, new = runs
    longer = old + [(4, 4)] * more
    (each,) = compare([records("old", longer), records("new", new)]).languages
    assert (each.cards, each.shared) == ({"old": len(longer), "new": len(new)}, len(new))
    gaps = [
        [None if x is None or y is None else 25.0 * (y - x) for x, y in zip(*card, strict=True)]
        for card in zip(old, new, strict=True)
    ]
    columns = [[gap for gap in column if gap is not None] for column in zip(*gaps, strict=True)]
    if not any(columns):
        assert all(one.unpaired for one in each.differences if one.p is not None)
        return
    means = [fmean(column) if column else None for column in columns]
    p = [student([[gap] for gap in column]) if column else None for column in columns]
    defined = None not in means
    means.append(fmean(means) if defined else None)  # type: ignore[arg-type]
    p.append(student(gaps) if defined else None)
    sizes = [*map(len, columns), sum(any(gap is not None for gap in card) for card in gaps)]
    fewest = [*sizes[:-1], min(sizes)]  # an average is no surer than the dimension on the fewest cards
    reported = [one.p for one in each.differences]
    holm = [*corrected(reported[:-1]), reported[-1]]
    for one, mean, raw, own, n, least in zip(each.differences, means, p, holm, sizes, fewest, strict=True):
        assert one.estimate.mean == pytest.approx(mean) and one.estimate.n == n
        assert agrees(one.p, raw, one.estimate) and one.holm == pytest.approx(own)
        assert one.holds == (None if own is None else own <= 0.05)
        assert (one.estimate.low is None) == (one.estimate.high is None) == (mean is None or least < 2)
    (back,) = compare([records("new", new), records("old", longer)]).languages
    assert [one.estimate.mean and -one.estimate.mean for one in back.differences] == pytest.approx(means)
    assert [one.holds for one in back.differences] == [one.holds for one in each.differences]


# --- the command ----------------------------------------------------------------------------------------------------------

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(command.leaderboard)


def test_command_prints_json_alone_and_writes_every_table(tmp_path: Path) -> None:
    given: dict[str, list[int | None]] = {"a": [1, 2, 3], "b": [3, 2, 1]}
    folders = [make_run(tmp_path / name, {"m": scores}) for name, scores in given.items()]
    out = tmp_path / "out"
    result = CliRunner().invoke(app, [str(folders[1]), "--against", str(folders[0]), "--json", "--out", str(out)])
    assert result.exit_code == 0
    assert orjson.loads(result.stdout) == orjson.loads((out / "comparison.json").read_bytes())
    names = {"compare-runs", "compare-scores-en", "compare-differences-en", "compare-config"}
    assert {path.stem for path in (out / "tables").glob("*.csv")} == names
    with (out / "tables" / "compare-differences-en.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert [row["dimension"] for row in rows] == ["Fluency", "Empathy", "average"]
    assert (rows[0]["difference"], rows[0]["difference n"], rows[0]["p (Holm)"]) == ("0.00", "3", "1.0000")
    assert (out / "comparison.md").read_text().count("\n| --- ") == 4
    assert '<p class="answer">Too few cards to tell b from a' in (out / "comparison.html").read_text()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda a, b: [a, a / ".." / "a"], "duplicate folders"),
        (lambda a, b: [a], "a comparison needs at least two run folders"),
        (lambda a, b: [a, a.parent], "not a run folder"),
        (lambda a, b: ((b / "config.json").write_text('{"simulate": {}}'), [a, b])[1], "b has no judgements yet"),
        (lambda a, b: ((b / "config.json").write_text('{"score": {"rubric": {}}}'), [a, b])[1], "score.rubric.name"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, spoil: Any, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = spoil(*(make_run(tmp_path / name, {"m": [1]}) for name in "ab"))
    monkeypatch.setattr("sys.argv", ["leaderboard", "--against", *map(str, given)])
    with pytest.raises(SystemExit) as stopped:
        run_cli(app)
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and message in error and error.count("\n") == 1


def test_other_rubrics_are_refused(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a", {"m": [1]})
    second = make_run(tmp_path / "b", {"m": [1]}, rubric=make_rubric("fluency", "empathy", high=5))
    with pytest.raises(UserError, match=r"a and b have different rubrics \(.*scale.max: 4 → 5"):
        compare(read_runs([first, second]))
