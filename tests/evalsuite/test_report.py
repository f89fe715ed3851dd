"""The report: three files with the same content, nothing in them that runs, and a size that holds for a full benchmark."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import random
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import pytest

from data_prep.records import Dialogue, Judgement, Language, RoleCard, Termination, Turn, Usage
from data_prep.rubrics import load_rubric
from data_prep.tables import Table
from evalsuite import report
from evalsuite.report import PLUMBING, SYNTHETIC_GOLD, ReportContent, write_report
from evalsuite.summary import AGREEMENT, costs, distributions, leaderboard, scores, terminations
from serve.errors import UserError

RUBRIC = load_rubric("esc_eval")
SEEKER = {
    "en": (
        "I moved for this job in March and I still eat lunch alone every single day.",
        "My sister says I should just get over it, which makes me want to call her even less.",
        "I don't know. Some evenings I rehearse what to say and then say nothing.",
        "Last week they all went out and nobody thought of asking me.",
        "Maybe. I suppose the one in the corner office did smile once.",
    ),
    "zh": (
        "三月份为了这份工作搬过来，到现在每天中午还是一个人吃饭。",
        "姐姐总说我想太多，听完我更不想给她打电话了。",
        "说不清。有几个晚上我把要说的话练了好几遍，最后什么也没说。",
        "上周他们一起出去聚餐，没有人想到叫我。",
        "也许吧，靠窗那位同事倒是冲我笑过一次。",
    ),
}
SUPPORTER = {
    "en": (
        "That sounds lonely, and half a year is a long time to carry it. What does lunchtime look like, hour by hour?",
        "It hurts when the person who should be on your side waves it away. You are allowed to find this hard.",
        "Rehearsing shows how much you want it. Could a smaller step do, such as asking one person where they buy coffee?\n\n"
        "1. Pick somebody who works near you.\n2. Ask one thing.\n3. Leave it there, and be proud of it.",
        "Being left out stings. It may say more about their habits than about you, though I see why it does not feel so.",
        "That smile could be your coffee question. I would be glad to hear how it goes.",
    ),
    "zh": (
        "听起来很孤单，半年一直这样确实不容易。能说说中午那一个小时是怎么过的吗？",
        "本该站在你这边的人却轻轻带过，难免让人难受。你觉得难，是可以的。",
        "反复练习说明你很在意。要不要换一小步：先问问旁边的同事咖啡在哪儿买？",
        "被落下的滋味不好受。这也许更多是他们的习惯，而不是你的问题。",
        "那个微笑也许就是开口的机会，等你的好消息。",
    ),
}
VOCABULARY = sorted({word for text in (*SEEKER["en"], *SUPPORTER["en"]) for word in text.split()})
SKILL = {"harbour-8b": 0.72, "lantern-7b-chat": 0.64, "plainspoken-base": 0.35, "tide-1.5b-instruct-zh": 0.5}
INJECTIONS = (
    "</script><script>window.__pwned = 1</script>",
    '<img src=x onerror="window.__pwned = 1">',
    "]]><!-- --!><script>window.__pwned = 1</script>",
    "{{7*7}} {% raw %} ${7*7}",
    "\u202egnp.exe\u202c \u2066isolated",
    "a\x00b\x1b[31mred",
    "javascript:window.__pwned=1//'\"><svg onload=window.__pwned=1>",
    "line\u2028separator\u2029 &lt;b&gt; <!--<script>",
)


def make_content(cards: int = 6, supporters: dict[str, float] = SKILL, poison: bool = False, words: int = 0) -> ReportContent:
    """A realistic run: every supporter on every card in both languages, judged on seven dimensions.

    `poison` puts the injection list wherever a model, a corpus or a user can put text. `words` makes replies of that many
    random words instead (they compress no better than what a model writes).
    """
    draw = random.Random(7)
    bad = "".join(INJECTIONS) if poison else ""
    own_cards: dict[str, RoleCard] = {}
    dialogues: list[Dialogue] = []
    judgements: list[Judgement] = []
    for language in get_args(Language):
        for number in range(cards):
            name = f"card-{language}-{number:03d}" + (INJECTIONS[number] if poison else "")
            problem = SEEKER[language][number % 5] + bad
            own_cards[name] = RoleCard(
                id=name, language=language, age="31", gender="female", problem=problem, source="test", card_method="written"
            )
            for supporter, skill in supporters.items():
                end: Termination = draw.choices(get_args(Termination), (90, 5, 2, 2, 1, 1))[0]
                stop = 10 if end == "max_turns" else draw.randint(2, 9)
                texts = [(SUPPORTER if turn % 2 else SEEKER)[language][turn // 2] for turn in range(stop)]
                if words:
                    texts[1::2] = [" ".join(draw.choices(VOCABULARY, k=words)) for _ in texts[1::2]]
                dialogue = Dialogue(
                    id=f"{number:04d}{language}{supporter}",
                    language=language,
                    framework="esc_eval",
                    source="simulated",
                    card_id=name,
                    supporter=supporter + bad,
                    simulator="seeker-135m",
                    turns=tuple(
                        Turn(role="supporter" if turn % 2 else "seeker", text=text + bad) for turn, text in enumerate(texts)
                    ),
                    termination=end,
                    usage=Usage(prompt_tokens=2300, completion_tokens=640, calls=stop),
                )
                dialogues.append(dialogue)
                judgements += [_verdict(draw, dialogue, dimension, skill, bad) for dimension in RUBRIC.dimensions]
    tables = [
        *leaderboard(dialogues, judgements, RUBRIC),
        distributions(judgements, RUBRIC),
        Table("agreement_en", "Agreement with gold, en", ("dimension", "ACC"), (("Fluency", 61.0),), (), AGREEMENT),
        terminations(dialogues),
        costs(dialogues, {"ranker": Usage(prompt_tokens=91234, completion_tokens=672, calls=96)}, {"dialogues": 41.25}),
    ]
    figures = {"acc": 0.61, "acc_low": 0.5, "acc_high": 0.71, "acc_soft": 0.93, "majority_acc": 0.42, "majority_acc_soft": 0.88}
    return ReportContent(
        title="ESC-Eval demonstration" + bad,
        framework="esc_eval",
        mode="paper",
        plumbing=True,
        synthetic_gold=True,
        rubric=RUBRIC,
        cards=own_cards,
        dialogues=dialogues,
        judgements=judgements,
        tables=tables,
        generated="2024-06-19",
        agreement={language: {name: figures for name in [*RUBRIC.dimensions, "average"]} for language in ("en", "zh")},
        config={
            "fingerprints": {"harbour-8b": "9f2c41d07be35a68", "ranker": "31be0c55ad90f7e2"},
            "supporters": [name + bad for name in supporters],
            "dialogue": {"exchanges": 5, "language": ["en", "zh"]},
        },
        timing={"dialogues": 41.25},
    )


def _verdict(draw: random.Random, dialogue: Dialogue, dimension: str, skill: float, bad: str) -> Judgement:
    weights = [draw.random() * 0.8 + max(0.0, 1.3 - 0.6 * abs(4 * skill - score)) for score in range(5)]
    shares = [weight / sum(weights) for weight in weights]
    read = draw.random() > 0.04
    return Judgement(
        dialogue_id=dialogue.id,
        language=dialogue.language,
        judge="ranker",
        rubric=RUBRIC.name,
        dimension=dimension,
        value=float(shares.index(max(shares))) if read else None,
        expected=sum(score * share for score, share in enumerate(shares)) if read else None,
        distribution={str(score): share for score, share in enumerate(shares)} if read else None,
        method="joint",
        raw="3" if read else "I would rather not put a number on this dialogue." + bad,
    )


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


def test_writes_three_files(tmp_path: Path) -> None:
    paths = write_report(tmp_path, make_content())
    assert paths == {kind: tmp_path / f"report.{kind}" for kind in ("html", "json", "md")}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json", "report.md"]


def test_same_content_gives_same_bytes(tmp_path: Path) -> None:
    content = make_content()
    first, second = write_report(tmp_path / "a", content), write_report(tmp_path / "b", content)
    assert all(first[kind].read_bytes() == second[kind].read_bytes() for kind in first)


def test_json_holds_records_and_figures_without_clock_time(tmp_path: Path) -> None:
    content = make_content()
    data = json.loads(write_report(tmp_path, content)["json"].read_bytes())
    assert [Dialogue.model_validate(record) for record in data["dialogues"]] == content.dialogues
    assert [Judgement.model_validate(record) for record in data["judgements"]] == content.judgements
    assert data["timing"] == {"dialogues": 41.25}
    assert data["plumbing"] == PLUMBING and data["synthetic_gold"] == SYNTHETIC_GOLD
    own = scores(content.dialogues, content.judgements, RUBRIC)
    assert [cell["estimate"]["mean"] for cell in data["scores"]] == [cell.estimate.mean for cell in own]
    assert data["agreement"]["zh"]["average"]["acc_soft"] == 0.93


def test_labels_are_shown_when_they_apply_and_only_then(tmp_path: Path) -> None:
    plain = replace(make_content(), plumbing=False, synthetic_gold=False)
    for content, expected in ((make_content(), True), (plain, False)):
        paths = write_report(tmp_path, content)
        for kind in ("html", "md"):
            text = paths[kind].read_text(encoding="utf-8")
            assert (PLUMBING in text) is expected
            assert (SYNTHETIC_GOLD in text) is expected
    sections = report._sections(make_content())
    assert [s.title for s in sections if s.label == SYNTHETIC_GOLD] == [AGREEMENT]
    assert all(SYNTHETIC_GOLD.capitalize() in c.caption for s in sections for c in s.charts if c.key.startswith("agreement"))


def test_every_cell_of_every_table_is_on_the_page(tmp_path: Path) -> None:
    content = make_content()
    page, _ = built(tmp_path, content)
    text = re.sub(r"\s+", " ", " ".join(page.text))
    for table in content.tables:
        assert table.title in text
    first = scores(content.dialogues, content.judgements, RUBRIC)[0].estimate
    assert f"{first.mean:.2f} [{first.low:.2f}, {first.high:.2f}] n={first.n}" in text
    for fact in (
        "esc_eval, paper mode",
        "English, Chinese",
        "48 on 12 role cards",
        "seeker-135m",
        "9f2c41d07be35a68",
        "exchanges: 5",
    ):
        assert fact in text


def test_sections_follow_the_tables_and_charts_stand_with_theirs() -> None:
    content = make_content()
    extra = Table("odd", "Something else", ("a",), ((1,),))
    sections = report._sections(replace(content, tables=[extra, *content.tables]))
    assert [s.title for s in sections] == ["Scores", "Agreement", "Terminations", "Costs", "Further tables"]
    charts = {s.title: [c.key for c in s.charts] for s in sections}
    assert charts["Scores"] == ["scores-en", "scores-zh", "distribution-0", "distribution-1"]
    assert charts["Agreement"] == ["agreement-en", "agreement-zh"] and charts["Terminations"] == ["terminations"]
    assert charts["Costs"] == charts["Further tables"] == []
    order = ["leaderboard-en", "scores-en", "leaderboard-zh", "scores-zh", "distributions", "distribution-0", "distribution-1"]
    assert [block.key for block in sections[0].blocks] == order
    assert [block.key for block in sections[1].blocks] == ["agreement_en", "agreement-en", "agreement-zh"]


def test_charts_show_the_figures_of_the_tables() -> None:
    content = make_content()
    charts = {chart.key: chart.data for section in report._sections(content) for chart in section.charts}
    cells = scores(content.dialogues, content.judgements, RUBRIC)
    own = [cell for cell in cells if cell.language == "zh" and cell.dimension == "empathy"]
    panel = next(p for p in charts["scores-zh"]["panels"] if p["title"] == "Empathy")
    assert [point[1:4] for point in panel["marks"][0]["points"]] == [
        [s.estimate.mean, s.estimate.low, s.estimate.high] for s in own
    ]
    assert charts["scores-zh"]["rows"] == [s.supporter for s in own]
    judge, majority = charts["agreement-en"]["panels"][0]["marks"]
    assert judge["points"][0][:4] == pytest.approx([0, 61, 50, 71]) and majority["points"][0][:4] == [0, 42, None, None]
    shares = [series["values"] for series in charts["distribution-0"]["series"]]
    assert [sum(column) for column in zip(*shares, strict=True)] == pytest.approx([100] * 7)
    assert charts["distribution-0"]["series"][-1]["name"] == "unreadable"
    assert sum(sum(series["values"]) for series in charts["terminations"]["series"]) == len(content.dialogues)


def test_native_mode_shows_agreement_over_readable_verdicts() -> None:
    figures = {
        "acc": 0.5,
        "acc_read": 0.8,
        "acc_soft": 0.6,
        "acc_soft_read": 0.9,
        "majority_acc": 0.4,
        "majority_acc_soft": 0.7,
    }
    content = replace(make_content(), mode="native", agreement={"en": {"fluency": figures}})
    (chart,) = report._agreement_charts(content)
    assert [panel["marks"][0]["points"][0][1] for panel in chart.data["panels"]] == [80, 90]


def test_no_agreement_no_judgements_no_config(tmp_path: Path) -> None:
    bare = replace(make_content(), agreement=None, judgements=[], tables=[], config={}, timing={})
    page, source = built(tmp_path, bare)
    assert "Configuration" not in " ".join(page.text)
    assert [s.title for s in report._sections(bare)] == ["Terminations"]
    assert "agreement-" not in source.split('id="chart-data"')[1][:2000]


def test_imported_corpus_without_models_or_terminations(tmp_path: Path) -> None:
    dialogue = Dialogue(id="d", language="en", source="corpus", turns=(Turn(role="supporter", text="Hello."),))
    page, _ = built(tmp_path, replace(make_content(), dialogues=[dialogue], judgements=[], tables=[], agreement=None))
    assert page.data("transcript-data")["rows"] == [["d", "en", "corpus", "", "", "", 0, "", "Hello.", 0]]
    assert page.data("chart-data") == {}


def test_wrong_judgements_are_refused(tmp_path: Path) -> None:
    content = make_content()
    stray = content.judgements[0].model_copy(update={"dialogue_id": "nowhere"})
    with pytest.raises(UserError, match="no dialogue 'nowhere'"):
        write_report(tmp_path, replace(content, judgements=[stray]))
    assert not list(tmp_path.iterdir())


def test_transcripts_hold_every_turn_and_raw_text_of_unreadable_verdicts_only(tmp_path: Path) -> None:
    content = make_content()
    page, _ = built(tmp_path, content)
    data = page.data("transcript-data")
    bodies = [body for chunk in data["chunks"] for body in chunk]
    assert [[text for _, text in turns] for turns, _ in bodies] == [[t.text for t in d.turns] for d in content.dialogues]
    raws = [mark[5] for _, marks in bodies for mark in marks if mark[2] is None]
    assert len(raws) == sum(j.value is None for j in content.judgements) > 0 and all(raws)
    assert all(mark[5] is None for _, marks in bodies for mark in marks if mark[2] is not None)


def test_long_transcripts_are_packed_and_unpack_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = make_content(cards=20)
    plain = built(tmp_path, content)[0].data("transcript-data")
    monkeypatch.setattr(report, "PACK_ABOVE", 1000)
    packed = built(tmp_path, content)[0].data("transcript-data")
    assert (plain["packed"], packed["packed"]) == (False, True)
    assert [json.loads(gzip.decompress(base64.b64decode(chunk))) for chunk in packed["chunks"]] == plain["chunks"]
    assert len(plain["chunks"]) == 2  # 160 dialogues in chunks of 100


@pytest.mark.parametrize("pack_above", [0, 10**9], ids=["packed", "plain"])
def test_injected_text_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack_above: int) -> None:
    monkeypatch.setattr(report, "PACK_ABOVE", pack_above)
    clean, _ = built(tmp_path / "clean", make_content())
    page, source = built(tmp_path / "poisoned", make_content(poison=True))
    # The same elements with the same attributes but for what is text: nothing that was injected became markup.
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in clean.elements]
    assert [sorted(attributes) for _, attributes in page.elements] == [sorted(attributes) for _, attributes in clean.elements]
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert "\x00" not in source and "\x1b" not in source
    text = "".join(page.text)
    for injected in INJECTIONS:
        assert report.clean(injected) in text  # in titles, tables and configuration
    data = page.data("transcript-data")
    bodies = data["chunks"] if pack_above else [json.loads(gzip.decompress(base64.b64decode(c))) for c in data["chunks"]]
    assert bodies[0][0][0][0][1].endswith(report.clean("".join(INJECTIONS)))


def test_policy_names_exactly_the_scripts_of_the_page(tmp_path: Path) -> None:
    page, source = built(tmp_path, make_content(poison=True))
    (policy,) = [
        a["content"] or "" for tag, a in page.elements if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    ]
    runnable = [body for attributes, body in page.scripts if attributes.get("type") != "application/json"]
    hashes = ["'sha256-" + base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() + "'" for body in runnable]
    assert re.search(r"script-src ([^;]*);", policy).group(1).split() == hashes  # type: ignore[union-attr]
    assert policy.startswith("default-src 'none';") and "unsafe-eval" not in policy and "http" not in policy
    assert source.count("plotly.js v") == 1
    assert not [a for _, a in page.elements if a.get("src") or (a.get("href") or "#").startswith(("http", "//"))]


def test_scripts_never_write_markup() -> None:
    for name in ("browse.js", "charts.js"):
        code = (report.TEMPLATES / name).read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|createContextualFragment", code
        )


def test_markdown_has_tables_and_no_html(tmp_path: Path) -> None:
    text = write_report(tmp_path, make_content(poison=True))["md"].read_text(encoding="utf-8")
    lines = text.splitlines()
    assert "## Scores" in lines and "## Configuration" in lines
    configuration = lines.index("## Configuration")
    assert not [line for line in lines[:configuration] if "<" in line.replace("<br>", "")]
    assert all(line.startswith(("    ", "- ")) for line in lines[configuration + 1 :] if line)


@pytest.mark.slow
def test_full_benchmark_stays_below_40_mb(tmp_path: Path) -> None:
    """8,512 dialogues of about 1,300 tokens, as many as ESC-Eval's own evaluation had."""
    content = make_content(cards=304, supporters={f"model-{n:02d}": n / 14 for n in range(14)}, words=190)
    assert len(content.dialogues) == 8512
    assert sum(len(turn.text) for dialogue in content.dialogues for turn in dialogue.turns) / 8512 > 4500
    paths = write_report(tmp_path, content)
    assert paths["html"].stat().st_size < 40e6
