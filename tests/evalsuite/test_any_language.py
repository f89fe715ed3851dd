"""Languages with and without texts of their own, one of them from the right, through everything that takes dialogues."""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

import core.languages
from core.files import CONFIGS, write_text
from evalsuite import cli
from evalsuite.people import pages
from evalsuite.people.pages import render
from tests.conftest import EscEval
from tests.endpoint import Endpoint
from tests.evalsuite.browsing import opened, screen
from tests.evalsuite.test_faults import one_line
from tests.people_study import links, served
from tests.surface import VERBS

pytestmark = pytest.mark.slow
API = CONFIGS / "eval" / "api.yaml"
PROBLEMS = {
    "de": "Mein Hund ist gestorben, und niemand versteht das.",
    "fr": "Ma sœur ne me parle plus depuis l'enterrement.",
    "ar": "أختي لا تكلمني منذ الجنازة، ولا أعرف السبب.",
}
# Verbs that take dialogues, or a run with them, and that need no model or the scripted one alone (URL): what is typed.
TYPED: dict[str, tuple[str, ...]] = {
    "esc-eval report": ("RUN",),
    "esc-eval status": ("RUN",),
    "esc-eval leaderboard": ("RUN",),
    "esc-eval power": ("RUN",),
    "esc-eval agree": ("--gold", "scores.jsonl", "--judgements", "RUN", "--dialogues", "RUN", "--only-shared"),
    "esc-eval people create": ("study", "--dialogues", "RUN", "--rubric", "esc_eval", "--raters", "2"),
    "esc-eval people suggest": ("RUN", "--budget", "12", "--out", "suggested"),
    "esc-eval paper respond": ("--config", str(API), "--supporter", "URL", "--dialogues", "RUN", "--out", "replies"),
    "esc-eval paper feel score": ("--config", str(CONFIGS / "eval" / "feel.yaml"), "--dialogues", "RUN", "--out", "feel",
                                  "--set", "judges=[{model: URL}]", "--set", "rounds=1"),
    "esc-eval judge-card": ("URL", "--dialogues", "RUN", "--limit", "2", "--out", "card"),
    "data_prep check": ("cards.jsonl", "--data", "RUN/dialogues.jsonl", "--out", "checked"),
    "data_prep sheet export": ("--dialogues", "RUN", "--annotator", "ann", "--each", "1", "--out", "sheets"),
    "data_prep cards extract": ("--source", "generic=corpus.jsonl", "--out", "extracted"),
    "data_prep cards label": ("--cards", "cards.jsonl", "--model", "URL", "--out", "labelled"),
}  # fmt: skip


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def typed(esc_eval: EscEval, monkeypatch: pytest.MonkeyPatch, verb: str, *arguments: str) -> tuple[int, str]:
    """What one types, of any of the programs."""
    if verb.startswith("esc-eval "):
        return esc_eval(*verb.split()[1:], *arguments)
    from data_prep.__main__ import main

    monkeypatch.setattr("evalsuite.cli.main", main)
    return esc_eval(*verb.split()[1:], *arguments)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        yield server


@pytest.fixture(scope="module")
def played(endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cards in the languages, and a run on them with floors."""
    folder = tmp_path_factory.mktemp("played")
    common = {"source": "own", "card_method": "written"}
    cards = [{"id": f"c-{code}", "language": code, "problem": text} | common for code, text in PROBLEMS.items()]
    lines(folder / "cards.jsonl", cards)
    arguments = ["run", "--config", str(API), "--model", f"my-model@{endpoint.url}", "--cards", "cards.jsonl", "--out", "run"]
    for setting in ("floors=true", "exchanges=2", "gold=null"):
        arguments += ["--set", setting]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("core.languages._told", set())
        patch.setattr("sys.argv", ["esc-eval", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
    assert not end.value.code
    return folder


def test_cards_in_other_languages_are_all_played_and_judged(played: Path, endpoint: Endpoint) -> None:
    dialogues = [json.loads(line) for line in (played / "run" / "dialogues.jsonl").read_text().splitlines()]
    judgements = [json.loads(line) for line in (played / "run" / "judgements.jsonl").read_text().splitlines()]
    assert {dialogue["language"] for dialogue in dialogues} == {*PROBLEMS} == {one["language"] for one in judgements}
    assert len(dialogues) == 4 * len(PROBLEMS) and all(one["value"] is not None for one in judgements)
    silent = {one["language"]: one["turns"][2]["text"] for one in dialogues if one["supporter"] == "silent"}
    english = "I hear you, and I'm here with you."
    assert silent == {"de": "Ich höre dir zu, und ich bin für dich da.", "ar": english, "fr": english}
    told = [body["messages"][0]["content"] for body in endpoint.requests]
    for asked in ("Write in Arabic, and only", "Write in French, and only", "Schreibe auf Deutsch"):
        assert any(asked in text for text in told)
    assert not any("Write in German" in text or "Write in English" in text for text in told)


def test_the_report_says_whose_texts_these_are(played: Path) -> None:
    page = (played / "run" / "report.md").read_text()
    assert "- Texts in German: not reviewed by a native clinician\n" in page
    for language in ("Arabic", "French"):
        lacking = "words, greeting.txt, seeker_system.j2, rubric, judge_system.j2, judge_joint.j2"
        assert f"- Texts in {language}: no texts of its own; in English: {lacking}\n" in page
    for unsearched in ("No danger is looked for in", "There are no phrases to look for in"):
        assert f"{unsearched} Arabic, German, French" in page


def test_every_verb_that_takes_dialogues_is_typed_here_or_has_a_reason() -> None:
    takes = {verb for verb, function in VERBS.items() if {"dialogues", "cards"} & {*inspect.signature(function).parameters}}
    # run: above. import, sheet import: read what people gave. ensemble, rank, role-play, pairwise: two papers' own studies on
    # records that are there. rank-sft, role-sft: training sets of more dialogues than these.
    elsewhere = {"esc-eval run", "data_prep import", "data_prep sheet import", "esc-eval paper feel ensemble",
                 "esc-eval paper role-play", "data_prep rank-sft",
                 "data_prep role-sft"}  # fmt: skip
    assert takes - {*TYPED} == elsewhere


@pytest.mark.parametrize("verb", TYPED)
def test_a_verb_takes_dialogues_in_any_language(
    esc_eval: EscEval, played: Path, endpoint: Endpoint, verb: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cards.jsonl").write_bytes((played / "cards.jsonl").read_bytes())
    records = [json.loads(line) for line in (played / "run" / "judgements.jsonl").read_text().splitlines()]
    fields = ("dialogue_id", "language", "rubric", "dimension", "value")
    lines(tmp_path / "scores.jsonl", [{field: one[field] for field in fields} | {"annotator": "ann"} for one in records])
    turns = [{"role": "seeker", "text": "…"}, {"role": "supporter", "text": "…"}]
    corpus = [{"id": code, "language": code, "situation": text, "turns": turns} for code, text in PROBLEMS.items()]
    lines(tmp_path / "corpus.jsonl", [{"source": "own", "licence": "own"}, *corpus])
    places = {"RUN": str(played / "run"), "URL": f"my-model@{endpoint.url}"}
    arguments = [argument.replace("URL", places["URL"]).replace("RUN", places["RUN"]) for argument in TYPED[verb]]
    code, err = typed(esc_eval, monkeypatch, verb, *arguments)
    assert code == (verb == "data_prep check"), err  # the run was made from these cards: 1 says that they are found
    assert "error" not in err


@pytest.mark.parametrize(
    "settings",
    [
        ("method=per_dimension",),
        ("mode=paper",),
        ("method=json", "judge_prompts=emoharbor", "rubric=emoharbor"),
        ("method=bands", "judge_prompts=feel", "rubric=feel"),
        ("rubric=rubric.yaml",),
    ],
)
def test_a_judge_can_be_asked_in_every_way_about_dialogues_in_any_language(
    esc_eval: EscEval, played: Path, endpoint: Endpoint, settings: tuple[str, ...]
) -> None:
    rubric = "dimensions: {warmth: How warm the supporter is.}\nscale: {min: 1, max: 10, step: 0.5}\n"
    write_text(Path("rubric.yaml"), f"name: own\nsource: own\nlanguages: [en]\n{rubric}")
    given = ["--only", "score", "--dialogues", played / "run", "--judge", f"my-model@{endpoint.url}", "--out", "run"]
    changes = [part for setting in ("gold=null", *settings) for part in ("--set", setting)]
    code, err = esc_eval("run", "--config", API, "--model", f"my-model@{endpoint.url}", *given, *changes)
    assert code == 0, err
    judgements = [json.loads(line) for line in Path("run/judgements.jsonl").read_text().splitlines()]
    assert {one["language"] for one in judgements if one["value"] is not None} == {*PROBLEMS}


def test_a_thinking_seeker_plays_profiles_in_any_language(esc_eval: EscEval, endpoint: Endpoint) -> None:
    common = {"demographics": {"age": 30}, "source": "own"}
    profiles = [{"id": code, "language": code, "counselling": {"problem": text}} | common for code, text in PROBLEMS.items()]
    lines(Path("profiles.jsonl"), profiles)
    config, url = CONFIGS / "eval" / "emoharbor.yaml", f"my-model@{endpoint.url}"
    models = ["--seeker", url, "--supporter", url, "--judge", url, "--set", "exchanges=2", "--out", "run"]
    played = ["--set", "profiles=[profiles.jsonl]", "--set", "languages=[ar, de, fr]"]
    code, err = esc_eval("run", "--config", config, *models, *played)
    assert code == 0, err
    judgements = [json.loads(line) for line in Path("run/judgements.jsonl").read_text().splitlines()]
    assert {one["language"] for one in judgements if one["value"] is not None} == {*PROBLEMS}


def test_a_language_without_bundled_cards_is_refused_with_what_there_is(esc_eval: EscEval) -> None:
    url = "my-model@http://127.0.0.1:9/v1"
    code, err = esc_eval("run", "--config", API, "--model", url, "--language", "fr", "--out", "run")
    assert code == 2 and "no bundled cards in fr (there are en, zh, de, es, hi): give a file of yours with --cards" in err
    code, err = esc_eval("run", "--config", API, "--model", url, "--language", "pt_br")
    assert (code, err) == (2, "error: --language pt_br: not a language code: write pt-BR\n")


def test_a_language_is_added_to_a_run_and_its_texts_stay_the_same(esc_eval: EscEval, played: Path, endpoint: Endpoint) -> None:
    Path("cards.jsonl").write_bytes((played / "cards.jsonl").read_bytes())
    url = f"my-model@{endpoint.url}"
    typed = ["run", "--config", API, "--model", url, "--cards", "cards.jsonl", "--out", "run", "--set", "exchanges=1", "--set"]
    assert esc_eval(*typed, "gold=null", "--language", "de")[0] == 0
    asked = len(endpoint.requests)
    assert esc_eval(*typed, "gold=null", "--language", "de")[0] == 0 and len(endpoint.requests) == asked
    assert esc_eval(*typed, "gold=null", "--language", "ar")[0] == 0
    config = json.loads(Path("run/config.json").read_text())
    assert config["simulate"]["languages"] == ["de", "ar"] == [one["name"] for one in config["score"]["texts"]]
    judged = ["run", "--config", API, "--model", url, "--only", "score", "--out", "run", "--set", "gold=null"]
    assert esc_eval(*judged) == (0, ""), "the languages are those of the folder"
    write_text(Path("languages/de/prompts/esc_eval/greeting.txt"), "Moin.")
    one_line(esc_eval(*typed, "gold=null", "--language", "de"), 2, "was made with another simulate config: texts.de.sha256")


def test_raters_read_a_dialogue_in_its_own_direction(
    browser: webdriver.Chrome, esc_eval: EscEval, played: Path, tmp_path: Path
) -> None:
    rates = ["--dialogues", played / "run", "--rubric", "esc_eval", "--raters", "ann=ar", "--set", "overlap=1"]
    assert esc_eval("people", "create", "study", *rates, "--raters", "bob=de,fr")[0] == 0
    with served(tmp_path / "study") as (address, _), screen(browser, 400, "light"):
        browser.get(f"http://{address}{links(tmp_path / 'study')['ann']}")
        browser.get(f"http://{address}/task/1")
        assert browser.execute_script("return [document.documentElement.lang, document.documentElement.dir]") == ["en", "ltr"]
        talk = "document.querySelector('.talk')"
        assert browser.execute_script(f"return [{talk}.lang, getComputedStyle({talk}).direction]") == ["ar", "rtl"]
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert not browser.find_elements(By.ID, "language"), "there are English words alone"


def test_pages_in_ones_own_words_are_in_that_language(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert '<html lang="en" dir="ltr">' in render("message.html", "ar", text="x", wait=None)
    write_text(Path("languages/ar/pages.yaml"), "overview: نظرة عامة\n")
    pages.words.cache_clear()
    monkeypatch.setattr("core.languages._texts", core.languages._texts.__wrapped__)
    page = render("message.html", "ar", text="x", wait=None)
    pages.words.cache_clear()
    assert '<html lang="ar" dir="rtl">' in page and "نظرة عامة" in page and "Sign out" not in page.split("<script")[0]


@pytest.mark.parametrize("width", [1280, 400])
def test_a_transcript_in_arabic_runs_from_the_right(browser: webdriver.Chrome, played: Path, width: int) -> None:
    with screen(browser, width, "light"):
        opened(browser, played / "run" / "report.html")
        browser.execute_script(
            "const one = document.getElementById('filter-language'); one.value = 'ar'; one.dispatchEvent(new Event('change'))"
        )
        talk = "document.querySelector('.talk[lang=ar]')"
        browser.implicitly_wait(0)
        assert browser.execute_script(f"return getComputedStyle({talk}).direction") == "rtl"
        left, right = (
            browser.execute_script(f"return {talk}.querySelector('.bubble.{role}').getBoundingClientRect().left")
            for role in ("supporter", "seeker")
        )
        assert left < right or width < 600, "sides change places"
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert browser.execute_script("return document.documentElement.dir || 'ltr'") == "ltr"
