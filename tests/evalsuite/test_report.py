"""The report: three files with the same content, nothing in them that runs, and a size that holds for a full benchmark."""

import base64
import gzip
import json
import re
from collections import Counter
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from core.errors import UserError
from core.records import Dialogue, HumanScore, Judgement, Turn
from core.tables import Table, to_csv
from evalsuite.report import transcripts
from evalsuite.report.charts import SYNTHETIC_GOLD, agreement_charts, calibration_charts, confusion_charts
from evalsuite.report.report import PLUMBING, ReportContent, write_report
from evalsuite.statistics.judges import calibration, confusion
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.summary import AGREEMENT, BREAKDOWNS, terminations
from tests.evalsuite.oracles import smoothed
from tests.evalsuite.records import make_dialogue
from tests.generated_report import RUBRIC, benchmark_content, make_content


class Page(HTMLParser):
    """The page as a parser sees it: elements, text by element, and script bodies."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            attributes, body = self.scripts[-1]
            self.scripts[-1] = (attributes, body + data)
        else:
            self.text.append(data)

    def data(self, name: str) -> Any:
        return next(json.loads(body) for attributes, body in self.scripts if attributes.get("id") == name)


def built(tmp_path: Path, content: ReportContent) -> tuple[Page, str]:
    source = write_report(tmp_path, content)["html"].read_text(encoding="utf-8")
    return Page(source), source


def judged(content: ReportContent, judgements: list[Judgement]) -> ReportContent:
    return replace(content, tally=Tally(content.tally.dialogues, judgements, RUBRIC))


@pytest.mark.slow
def test_writes_three_files_and_every_table(tmp_path: Path) -> None:
    content = make_content()
    paths = write_report(tmp_path, content)
    assert paths == {kind: tmp_path / f"report.{kind}" for kind in ("html", "json", "md")} | {"tables": tmp_path / "tables"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json", "report.md", "tables"]
    assert {path.stem: path.read_text(encoding="utf-8") for path in (tmp_path / "tables").glob("*.csv")} == {
        table.key: to_csv(table) for table in content.tables
    }


@pytest.mark.slow
def test_same_content_gives_same_bytes(tmp_path: Path) -> None:
    content = make_content()
    first, second = write_report(tmp_path / "a", content), write_report(tmp_path / "b", content)
    assert all(first[kind].read_bytes() == second[kind].read_bytes() for kind in ("html", "json", "md"))


@pytest.mark.slow
def test_json_holds_records_and_figures_without_clock_time(tmp_path: Path) -> None:
    content = make_content()
    data = json.loads(write_report(tmp_path, content)["json"].read_bytes())
    assert [Dialogue.model_validate(record) for record in data["dialogues"]] == content.tally.dialogues
    assert [Judgement.model_validate(record) for record in data["judgements"]] == content.tally.judgements
    assert data["timing"] == {"dialogues": 41.25}
    assert data["plumbing"] == PLUMBING and data["synthetic_gold"] == SYNTHETIC_GOLD
    own = content.tally.scores
    assert [cell["estimate"]["mean"] for cell in data["scores"]] == [cell.estimate.mean for cell in own]
    assert data["agreement"]["zh"]["average"]["acc_soft"] == 0.93


@pytest.mark.slow
def test_labels_are_shown_when_they_apply_and_only_then(tmp_path: Path) -> None:
    plain = replace(make_content(), plumbing=False, synthetic_gold=False, charts=[])
    for content, expected in ((make_content(), True), (plain, False)):
        paths = write_report(tmp_path, content)
        for kind in ("html", "md"):
            text = paths[kind].read_text(encoding="utf-8")
            assert (PLUMBING in text) is expected
            assert (SYNTHETIC_GOLD in text) is expected
    sections = make_content().sections
    assert [heading for heading in sections if make_content().label(heading) == SYNTHETIC_GOLD] == [AGREEMENT]
    drawn = {table.key for table in sections[AGREEMENT]}
    captions = [chart.caption for chart in make_content().charts if chart.after in drawn]
    assert len(captions) == 5 and all(SYNTHETIC_GOLD in caption for caption in captions)


@pytest.mark.slow
def test_every_cell_of_every_table_is_on_the_page(tmp_path: Path) -> None:
    content = make_content()
    page, _ = built(tmp_path, content)
    text = re.sub(r"\s+", " ", " ".join(page.text))
    for table in content.tables:
        assert table.title in text
    first = content.tally.scores[0].estimate
    assert f"{first.mean:.1f} [{first.low:.1f}, {first.high:.1f}] n={first.n}" in text
    for fact in (
        "esc_eval, paper mode",
        "English, Chinese",
        "48 on 12 role cards",
        "seeker-135m",
        "9f2c41d07be35a68",
        "exchanges: 5",
    ):
        assert fact in text


def test_sections_follow_the_tables_and_charts_stand_with_theirs(tmp_path: Path) -> None:
    content = make_content()
    extra = Table("odd", "Something else", ("a",), ((1,),))
    content = replace(content, tables=[extra, *content.tables])
    assert [*content.sections] == ["Scores", BREAKDOWNS, "Agreement", "Terminations", "Costs", "Further tables"]
    shown = [
        attributes.get("download") or attributes.get("data-chart") for _, attributes in built(tmp_path, content)[0].elements
    ]
    assert [name for name in shown if name] == [
        *("leaderboard-en.csv", "leaderboard-zh.csv", "differences-en.csv", "differences-zh.csv"),
        *("distributions.csv", "distribution-0", "distribution-1"),
        *("categories-en.csv", "categories-zh.csv", "reply-length.csv"),
        *("agreement_en.csv", "agreement-en", "agreement_zh.csv", "agreement-zh"),
        *("confusion_en.csv", "confusion-en", "confusion_zh.csv", "confusion-zh", "calibration.csv", "calibration"),
        *("terminations.csv", "terminations", "model-costs.csv", "odd.csv"),
    ]


def test_two_tables_of_one_name_and_a_chart_without_its_table_are_errors(tmp_path: Path) -> None:
    content = make_content()
    without = [table for table in content.tables if table.key != "distributions"]
    twice = [*content.tables, terminations(content.tally.dialogues)]
    for tables, problem in ((twice, "two tables with the key terminations"), (without, "distribution-0 stands below no table")):
        with pytest.raises(ValueError, match=problem):
            write_report(tmp_path, replace(content, tables=tables))


def test_charts_show_the_figures_of_the_tables() -> None:
    content = make_content()
    charts = {chart.key: chart.figure["data"] for chart in content.charts}
    judge, majority = charts["agreement-en"][:2]
    assert [judge["x"][0], judge["error_x"]["arrayminus"][0], judge["error_x"]["array"][0]] == pytest.approx([61, 11, 10])
    assert [majority["x"][0], majority["error_x"]["arrayminus"][0], majority["error_x"]["array"][0]] == [42, 0, 0]
    shares = [trace["x"] for trace in charts["distribution-0"]]
    assert [sum(column) for column in zip(*shares, strict=True)] == pytest.approx([100] * 7)
    assert charts["distribution-0"][-1]["name"] == "unreadable"
    assert sum(sum(trace["x"]) for trace in charts["terminations"]) == len(content.tally.dialogues)


def test_native_mode_shows_agreement_over_readable_verdicts() -> None:
    figures = {
        "acc": 0.5,
        "acc_read": 0.8,
        "acc_soft": 0.6,
        "acc_soft_read": 0.9,
        "majority_acc": 0.4,
        "majority_acc_soft": 0.7,
    }
    (chart,) = agreement_charts({"en": {"fluency": figures}}, RUBRIC, "native", False)
    assert [trace["x"] for trace in chart.figure["data"] if trace["name"] == "judge"] == [[80], [90]]


def test_no_agreement_no_judgements_no_config(tmp_path: Path) -> None:
    content = judged(make_content(), [])
    endings = {"tables": [terminations(content.tally.dialogues)], "charts": content.charts[-1:]}
    bare = replace(content, agreement=None, config={}, timing={}, **endings)  # type: ignore[arg-type]
    page, source = built(tmp_path, bare)
    assert "Configuration" not in " ".join(page.text)
    assert [*bare.sections] == ["Terminations"]
    assert "agreement-" not in source.split('id="chart-data"')[1][:2000]


def test_imported_corpus_without_models_or_terminations_and_a_dialogue_that_never_began(tmp_path: Path) -> None:
    imported = Dialogue(id="d", language="en", source="corpus", turns=(Turn(role="supporter", text="Hello."),))
    lost = Dialogue(id="e", language="en", source="simulated", turns=(), termination="infrastructure")
    none: Any = {"tables": [], "charts": [], "agreement": None, "warnings": []}
    content = replace(make_content(), tally=Tally([imported, lost], [], RUBRIC), plumbing=False, **none)
    page, _ = built(tmp_path, content)
    rows = page.data("transcript-data")["rows"]
    assert rows[0] == ["d", "en", "corpus", "", "", "", 0, "", "Hello.", 0, [], [], 0]
    assert rows[1][4:9] == ["infrastructure", "supporter", 0, "", ""] and page.data("chart-data") == {}


def test_wrong_judgements_are_refused(tmp_path: Path) -> None:
    content = make_content()
    stray = content.tally.judgements[0].model_copy(update={"dialogue_id": "nowhere"})
    with pytest.raises(UserError, match="no dialogue 'nowhere'"):
        write_report(tmp_path, judged(content, [stray]))
    assert not list(tmp_path.iterdir())


def test_transcripts_hold_every_turn_and_raw_text_of_unreadable_verdicts_only(tmp_path: Path) -> None:
    content = make_content()
    page, _ = built(tmp_path, content)
    data = page.data("transcript-data")
    bodies = [body for chunk in data["chunks"] for body in chunk]
    assert [[turn[1] for turn in turns] for turns, _ in bodies] == [[t.text for t in d.turns] for d in content.tally.dialogues]
    raws = [mark[5] for _, marks in bodies for mark in marks if mark[2] is None]
    assert len(raws) == sum(j.value is None for j in content.tally.judgements) > 0 and all(raws)
    assert all(mark[5] is None for _, marks in bodies for mark in marks if mark[2] is not None)


@pytest.mark.slow
def test_long_transcripts_are_packed_and_unpack_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = make_content(cards=20)
    plain = built(tmp_path, content)[0].data("transcript-data")
    monkeypatch.setattr(transcripts, "PACK_ABOVE", 1000)
    packed = built(tmp_path, content)[0].data("transcript-data")
    assert (plain["packed"], packed["packed"]) == (False, True)
    assert [json.loads(gzip.decompress(base64.b64decode(chunk))) for chunk in packed["chunks"]] == plain["chunks"]
    assert len(plain["chunks"]) == 2  # 160 dialogues in chunks of 100


def test_gold_charts_count_verdicts_by_gold_and_measure_calibration() -> None:
    def verdict(dialogue: str, value: int | None, sure: float, gold: float) -> tuple[Judgement, HumanScore]:
        spread = {str(score): sure if score == value else (1 - sure) / 4 for score in range(5)}
        shared: Any = {"dialogue_id": dialogue, "language": "en", "rubric": RUBRIC.name, "dimension": "skill"}
        given = {"value": value, "distribution": None if value is None else spread}
        return Judgement(judge="ranker", **given, **shared), HumanScore(annotator="anna", value=gold, **shared)

    pairs = [verdict("a", 3, 0.9, 3), verdict("b", 3, 0.86, 1.5), verdict("c", 4, 0.6, 4), verdict("d", None, 0.5, 0)]
    judgements, gold = zip(*pairs, strict=True)
    (confused,) = confusion_charts(confusion(judgements, gold, RUBRIC.scales), RUBRIC, synthetic=False)
    (calibrated,) = calibration_charts(calibration(judgements, gold), synthetic=False)
    (skill, pooled) = confused.figure["data"]
    assert confused.figure["layout"]["annotations"][0]["text"] == "<b>Skill</b>"
    assert (skill["x"], skill["y"]) == (["0", "1", "2", "3", "4", "–"], ["0", "1", "2", "3", "4"])
    expected = [[0] * 6 for _ in range(5)]
    expected[3][3] = expected[2][3] = expected[4][4] = expected[0][5] = 1  # 1.5 counts as 2
    assert skill["customdata"] == expected == pooled["customdata"]
    assert skill["z"][1] == [0] * 6 and skill["z"][4][4] == 1
    points = calibrated.figure["data"][1]
    assert calibrated.figure["layout"]["annotations"][0]["text"] == "<b>English, n = 3</b>"
    assert points["x"] == pytest.approx([60, 88]) and (points["y"], points["text"]) == ([100, 50], ["n = 1", "n = 2"])
    half = 100 * (0.5 - smoothed([1, 0], [0, 1])[0])  # of one hit of two
    assert points["error_y"]["arrayminus"][1] == pytest.approx(half, abs=2)
    assert points["error_y"]["array"][1] == pytest.approx(half, abs=2)


def test_repeats_are_averaged_and_scorers_kept_apart_in_rows() -> None:
    content = make_content(cards=1, supporters={"one": 0.5})
    first = content.tally.judgements[0].model_copy(update={"value": 2.0})
    own = [
        first,
        first.model_copy(update={"repeat": 1, "value": 3.0}),
        first.model_copy(update={"judge": "other", "value": None}),
    ]
    data = transcripts.transcripts(Tally(content.tally.dialogues, own, RUBRIC), content.cards, {})
    place = list(RUBRIC.dimensions).index(first.dimension)
    row = next(row for row in data["rows"] if row[0] == first.dialogue_id)
    kept = {number: figure for number, figure in enumerate(row[11]) if figure is not None}
    assert len(row[11]) == 2 * 8 and kept == {data["scorers"].index("ranker · joint") * 8 + place: 2.5}


@drawn(st.lists(st.tuples(st.integers(0, 1), st.none() | st.integers(0, 4)), max_size=6))
def test_scores_of_the_filter_are_plain_means(marks: list[tuple[int, int | None]]) -> None:
    shared: Any = {"language": "en", "rubric": RUBRIC.name}
    names = list(RUBRIC.dimensions)[:2]
    rubric = RUBRIC.model_copy(update={"dimensions": {name: RUBRIC.dimensions[name] for name in names}})
    given = [
        Judgement(dialogue_id="d", judge="j", dimension=names[place], value=value, repeat=repeat, **shared)
        for repeat, (place, value) in enumerate(marks)
    ]
    (row,) = transcripts.transcripts(Tally([make_dialogue("d")], given, rubric), {}, {})["rows"]
    read = [[value for at, value in marks if at == place and value is not None] for place in (0, 1)]
    means = [sum(values) / len(values) if values else None for values in read]
    average = None if None in means else sum(means) / 2  # type: ignore[arg-type]
    assert row[11] == (pytest.approx([*means, average], abs=0.0051) if marks else [])


def test_risk_turns_are_marked_and_their_opening_is_not_in_the_list(tmp_path: Path) -> None:
    content = make_content()
    data = built(tmp_path, content)[0].data("transcript-data")
    assert [row[0] for row in data["rows"] if row[10]] == [content.tally.dialogues[1].id]
    row = data["rows"][1]
    assert row[8] == "" and row[10] == ["self-harm"]
    turns = data["chunks"][0][1][0]
    assert turns[0][2] == ["self-harm"] and all(len(turn) == 2 for turn in turns[1:])


def test_risks_of_several_turns_are_named_once_and_risky_cards_are_listed() -> None:
    content = make_content(cards=1, supporters={"one": 0.5})
    first = content.tally.dialogues[0]
    risks = {first.id: {0: ["self-harm", "abuse"], 2: ["self-harm"]}}
    own = {**content.cards, "dark": content.cards[str(first.card_id)].model_copy(update={"problem": "I want to kill myself."})}
    data = transcripts.transcripts(Tally(content.tally.dialogues, [], RUBRIC), own, risks)
    assert data["rows"][0][10] == ["abuse", "self-harm"] and data["risky_cards"] == ["dark"]


def test_tables_can_be_saved_from_the_page(tmp_path: Path) -> None:
    content = make_content()
    page, _ = built(tmp_path, content)
    links = {a["download"]: a["href"] or "" for tag, a in page.elements if tag == "a" and "download" in a}
    prefix = "data:text/csv;charset=utf-8;base64,"
    assert {name: base64.b64decode(link.removeprefix(prefix)).decode() for name, link in links.items()} == {
        f"{table.key}.csv": to_csv(table) for table in content.tables
    }


@pytest.mark.slow
def test_the_answer_comes_first_and_three_cautions_are_seen(tmp_path: Path) -> None:
    content = replace(make_content(), warnings=["one", "two", "three"])
    assert content.cautions[0] == PLUMBING and content.cautions[-1].startswith(SYNTHETIC_GOLD)
    lost = sum(j.value is None for j in content.tally.judgements)
    assert f"{lost} of 336 verdicts ({100 * lost / 336:.1f} %) could not be read: they are in no mean." in content.cautions
    ends = Counter(d.termination for d in content.tally.dialogues)
    told = content.findings[-1]
    assert told.startswith(f"48 dialogues (24 English, 24 Chinese): {ends['max_turns']} ended after the planned exchanges")
    assert all(str(count) in told for count in ends.values())
    paths = write_report(tmp_path, content)
    assert paths["md"].read_text(encoding="utf-8").splitlines()[2] == content.findings[0]
    _, source = built(tmp_path, content)
    places = [source.index(f"<p>{escape(text)}</p>") for text in content.cautions]
    assert places[2] < source.index("<summary>3 more</summary>") < places[3]
    order = [f'<p class="answer">{content.findings[0]}', 'id="board"', 'role="note"', 'id="dimensions"', 'id="references"']
    order += ['id="transcripts"', 'id="section-1"', 'id="run"', 'id="configuration"']
    found = [source.index(part) for part in order]
    assert found == sorted(found), "what decides comes first"


@pytest.mark.slow
def test_markdown_has_tables_and_no_html(tmp_path: Path) -> None:
    text = write_report(tmp_path, make_content(poison=True))["md"].read_text(encoding="utf-8")
    lines = text.splitlines()
    assert "## Scores" in lines and "## Configuration" in lines
    configuration = lines.index("## Configuration")
    assert not [line for line in lines[:configuration] if "<" in line.replace("<br>", "")]
    assert all(line.startswith(("    ", "- ")) for line in lines[configuration + 1 :] if line)


@pytest.mark.slow
def test_full_benchmark_stays_below_40_mb(benchmark: tuple[Path, int]) -> None:
    page, count = benchmark
    content = benchmark_content(count)
    assert len(content.tally.dialogues) == count
    assert sum(len(turn.text) for dialogue in content.tally.dialogues for turn in dialogue.turns) / count > 4500
    assert page.stat().st_size < 4.3e6 + 35.7e6 * count / 8512  # plotly, and what grows with the run
