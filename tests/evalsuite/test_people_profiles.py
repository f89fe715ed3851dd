"""EmoHarbor's study with people (appendix I): who takes part, how they feel before and after, and a judge that is shown it."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from selenium import webdriver

from core.errors import UserError
from core.files import CONFIGS, read_jsonl
from core.records import Dialogue, HumanScore, Judgement
from core.rubrics import load_rubric
from core.settings import read_yaml
from data_prep.profiles.record import LEVELS, TRAITS, Profile
from evalsuite.people.commands.people_create import StudyConfig
from evalsuite.people.store import StudyStore
from evalsuite.people.study import Questionnaire
from evalsuite.statistics.correlation import correlations
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint
from tests.evalsuite.browsing import no_errors, screen, text_of, until
from tests.evalsuite.records import make_dialogue, make_judgement
from tests.evalsuite.test_emoharbor import config, speaks
from tests.evalsuite.test_people_browser import accessible, click, enter, saved, submit
from tests.people_study import Client, links, served, url_of

RECIPE = CONFIGS / "people" / "emoharbor.yaml"
ASKED = read_yaml(RECIPE, StudyConfig, "recipe").questionnaire
KEYS = list(load_rubric("emoharbor").dimensions)
WORDS = {"age": "34", "occupation": "baker", "interests": "rowing, chess", "problem": "My bakery burnt down."}


@pytest.fixture
def study(esc_eval: EscEval, tmp_path: Path) -> Iterator[Path]:
    """The recipe with two scripted models, rated after the first of two exchanges."""
    (tmp_path / "consent.txt").write_text("We keep what you tell us.")
    with Endpoint(lambda body, count: Answer("I hear you."), models=("alpha", "beta")) as endpoint:
        models = ("--supporter", f"alpha@{endpoint.url}", "--supporter", f"beta@{endpoint.url}")
        recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8")) | {"least": 1, "most": 2, "rate_after": [1]}
        (tmp_path / "shorter.yaml").write_text(yaml.safe_dump(recipe))
        given = ("--config", "shorter.yaml", "--consent", "consent.txt", "--raters", "ann=en")
        assert esc_eval("people", "create", "s", *given, *models) == (0, "")
        yield tmp_path / "s"


def tells(rater: Client, task: int, group: str, value: int) -> None:
    """Answers to all questions of a group, the same place on every scale."""
    assert ASKED is not None
    for name, ask in ASKED.named().items():
        key = name.partition(".")[2]
        if name.startswith(group) and (ask.scale or (key in WORDS and group == "person")):
            answer = {"value": min(value, len(ASKED.words(ask, "en")))} if ask.scale else {"text": WORDS[key]}
            assert rater.put(task, name, **answer)[0] == 200, name


def test_the_recipe_is_the_papers_study_in_words_of_our_own() -> None:
    recipe = read_yaml(RECIPE, StudyConfig, "recipe")
    assert (len(recipe.supporters), recipe.least, recipe.rate_after) == (5, 10, (5, 10))
    assert ASKED is not None and {*WORDS, "gender", "relationship"} <= {*ASKED.person}
    statements = [(ask.trait, ask.reversed) for ask in ASKED.person.values() if ask.trait]
    assert sorted(statements) == sorted((trait, turned) for trait in TRAITS["en"] for turned in (False, True))
    for ask in ASKED.named().values():
        assert set(ask.text) == {"en", "zh"} and (ask.scale is None or {"en", "zh"} == set(ASKED.scales[ask.scale]))


def test_who_talks_is_asked_before_and_after_and_becomes_a_profile_that_a_judge_is_shown(
    study: Path, esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalsuite.people.guard.RequestRate.allows", lambda *client: True)  # nobody clicks as fast
    with served(study) as (address, _):
        ann = Client(address).enter(links(study)["ann"])
        profile, first, second = StudyStore(url_of(study), "s").tasks("ann")
        assert (profile.purpose, first.purpose, second.purpose) == ("profile", "talk", "talk")
        assert ann.request("GET", f"/task/{profile.id}")[0] == 303 and ann.submit(profile.id)[0] == 403
        refused = ann.put(profile.id, "person.age", text="34")
        assert (refused[0], refused[1]["word"]) == (403, "no_consent"), "nothing is kept of who has not agreed"
        assert ann.request("POST", "/api/me", {"consented": True})[0] == 200
        assert ann.request("GET", f"/task/{first.id}")[0] == 303, "who they are comes first"
        assert ann.talk(first.id, "say", {"text": "Hello", "turn": 0})[1]["word"] == "profile_first"
        for wrong in ({"value": 6}, {"value": 1.5}, {"choice": "a"}, {"text": "much"}, {}):
            assert ann.put(profile.id, "person.ideas", **wrong)[0] == 422, wrong
        assert ann.put(profile.id, "before.sad", value=1)[0] == 422, "a feeling belongs to a talk"
        ann.put(profile.id, "person.age", text="")
        assert "How old are you?" in ann.submit(profile.id)[1]["message"]
        tells(ann, profile.id, "person", 5)
        ann.put(profile.id, "person.planned", value=1)
        assert ann.submit(profile.id)[0] == 200, "what is optional may be left out"
        assert ann.talk(first.id, "say", {"text": "Hello", "turn": 0})[1]["word"] == "bad_form", "feelings come before"
        for task, problem in ((first.id, ""), (second.id, "My cat is ill.")):
            tells(ann, task, "before", 4)
            ann.put(task, "before.problem", text=problem)
            ann.talk(task, "say", {"text": "It burnt.", "turn": 0})
            assert ann.put(task, "before.sad", value=1)[0] == 422, "what was felt before is not changed after"
            assert ann.talk(task, "reply", {})[1]["reload"], "the first exchange is rated"
            for name in KEYS:
                assert ann.put(task, name, 1, value=3)[0] == 200
            ann.talk(task, "say", {"text": "All of it.", "turn": 2})
            ann.talk(task, "reply", {})
            for name in KEYS:
                assert ann.put(task, name, value=2 + (task == second.id))[0] == 200
            assert "Sad" in ann.submit(task)[1]["message"], "and how they feel after it"
            tells(ann, task, "after", 2)
            assert ann.submit(task)[0] == 200
    assert esc_eval("people", "results", "s", "--out", "out") == (0, "")
    dialogues = read_jsonl(tmp_path / "out/dialogues.jsonl", Dialogue, "dialogues")
    profiles = {one.id: one for one in read_jsonl(tmp_path / "out/profiles.jsonl", Profile, "profiles")}
    burnt, ill = (profiles[str(dialogue.profile_id)] for dialogue in dialogues)
    assert (burnt.counselling.problem, ill.counselling.problem) == ("My bakery burnt down.", "My cat is ill.")
    assert (burnt.demographics.age, burnt.demographics.gender, burnt.demographics.occupation) == (34, "another", "baker")
    assert burnt.preferences.hobbies == ("rowing", "chess") and "Anxious: quite" in burnt.counselling.state
    big_five = burnt.preferences.big_five
    assert big_five and big_five.model_dump() == dict.fromkeys(TRAITS["en"], "middle") | {"conscientiousness": "low"}
    with (tmp_path / "out/moods.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12 and {(row["before"], row["after"]) for row in rows} == {("4", "2")}
    scores = read_jsonl(tmp_path / "out/scores.jsonl", HumanScore, "scores")
    assert {score.turn for score in scores} == {1, None} and {score.dimension for score in scores} == set(KEYS)
    judge_shown_it(esc_eval, tmp_path)
    assert esc_eval("people", "delete", "s", "--rater", "ann", "--yes")[0] == 0
    left = StudyStore(url_of(study), "s")
    assert not left.tasks() and not left.answers(), "whoever withdraws takes along what they told"
    left.close()
    assert esc_eval("people", "delete", "s", "--yes")[0] == 0 and not study.exists(), "all that they told is deleted"


def test_a_rating_of_the_whole_talk_stands_above_those_in_the_middle() -> None:
    spoken = [make_dialogue(name) for name in ("d1", "d2", "d3")]
    judged = [make_judgement(one.id, "empathy", place) for place, one in enumerate(spoken)]
    given: dict[str, Any] = {"language": "en", "annotator": "ann", "rubric": "test", "dimension": "empathy"}
    whole = [HumanScore(dialogue_id=one.id, value=place, **given) for place, one in enumerate(spoken)]
    along = [HumanScore(dialogue_id=one.id, value=-5 * place, turn=1, **given) for place, one in enumerate(spoken)]
    for gold, value in ((whole, 1), (along, -1), ([*along, *whole], 1)):
        rows, _ = correlations(judged, gold, None, levels=("dataset",))
        assert {round(row.estimate.mean or 0, 6) for row in rows} == {value}


@pytest.mark.browser
def test_the_pages_on_a_desktop_and_a_phone(browser: webdriver.Chrome, study: Path, tmp_path: Path) -> None:
    with served(study) as (address, _):
        enter(browser, address, links(study)["ann"])
        assert "We keep what you tell us." in browser.page_source and not text_of(browser, "fieldset")
        click(browser, "#agree")
        until(browser, "return document.getElementById('go') !== null")
        click(browser, "#go")
        until(browser, "return document.querySelectorAll('fieldset').length === 16")
        seen(browser)
        assert text_of(browser, "h2") == ["About you"] and "How old are you?" in text_of(browser, "legend")
        fill(browser)
        submit(browser)
        assert text_of(browser, "h2")[:1] == ["Before the talk: how do you feel now?"] and not browser.find_elements(
            "id", "say"
        )
        seen(browser)
        fill(browser)
        click(browser, "#on")
        until(browser, "return document.getElementById('say') !== null")
        browser.find_element("id", "line").send_keys("It burnt down.")
        click(browser, "#send")
        until(browser, "return [...document.querySelectorAll('h2')].some((one) => one.textContent === 'turn 2')")
        fill(browser)
        click(browser, "#on")
        until(browser, "return document.getElementById('leave') !== null")
        click(browser, "#leave")
        until(browser, "return document.getElementById('submit') !== null")
        assert text_of(browser, "h2:not(.of-turn)") == ["After the talk: how do you feel now?"]
        seen(browser)
        fill(browser)
        submit(browser)
        click(browser, "#language")
        until(browser, "return document.documentElement.lang === 'zh'")
        browser.get(f"http://{address}/task/1")
        assert text_of(browser, "h2") == ["关于你"] and browser.find_element("tag name", "textarea").get_attribute("disabled")
        no_errors(browser)


def fill(browser: webdriver.Chrome) -> None:
    """The first choice of every question that has none yet, and words where words are asked for."""
    for field in browser.find_elements("css selector", "textarea[data-question]:not(#comment)"):
        if field.is_enabled() and not field.get_attribute("value"):
            field.send_keys("34")
    browser.execute_script(
        "document.querySelectorAll('fieldset.question:not(:has(input:checked))')"
        ".forEach((one) => one.querySelector('input')?.click())"
    )
    saved(browser)


def seen(browser: webdriver.Chrome) -> None:
    """Nothing is wider than the screen, and everybody can use it."""
    accessible(browser)
    for width in (1280, 400):
        with screen(browser, width, "light"):
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def judge_shown_it(esc_eval: EscEval, folder: Path) -> None:
    """Table 1's three ways of judging, on the exported talks."""
    for judging, shown in (("dialogue", []), ("profile", ["My cat is ill."]), ("states", ["My cat is ill.", "THOUGHT"])):
        with Endpoint(speaks, ("thinker", "talker", "judge")) as endpoint:
            own = {} if judging == "states" else {"thinker": ""}
            settings = config(folder, endpoint, {"judging": judging} | own)
            given = ("--dialogues", "out/dialogues.jsonl", "--set", "profiles=out/profiles.jsonl", "--out", f"judged-{judging}")
            assert esc_eval("run", "--only", "score", "--config", settings, *given) == (0, "")
            texts = ["".join(m["content"] for m in body["messages"]) for body in endpoint.requests if body["model"] == "judge"]
        assert all(any(text in asked for asked in texts) for text in shown)
        assert bool(shown) or not any("My cat is ill." in asked for asked in texts)
        verdicts = read_jsonl(folder / f"judged-{judging}/judgements.jsonl", Judgement, "judgements")
        assert {verdict.condition["strategy"] for verdict in verdicts} == {judging}
        gold = ("--gold", "out/scores.jsonl", "--dialogues", "out/dialogues.jsonl", "--against", "emoharbor")
        assert esc_eval("agree", "--correlate", "dialogue", "--judgements", f"judged-{judging}/judgements.jsonl", *gold)[0] == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scales": {}}, "no scale"),
        ({"person": {"problem": {"text": {"en": "What?"}, "optional": True}}}, "ask for the problem"),
        ({"mood": {"sad": {"text": {"en": "Sad"}, "trait": "sadness"}}}, "trait 'sadness'"),
        ({"talk": {"ages": {"text": {"en": "Old?"}}}}, "before.ages: no field of a profile"),
    ],
)
def test_a_questionnaire_that_makes_no_profile_is_refused(change: dict[str, object], said: str, tmp_path: Path) -> None:
    recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    recipe["questionnaire"] |= change
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(UserError, match=said):
        read_yaml(tmp_path / "r.yaml", StudyConfig, "recipe")


def test_levels_of_traits_are_those_of_both_statements() -> None:
    assert isinstance(ASKED, Questionnaire)
    told = {f"person.{key}": (3.0, "") for key, ask in ASKED.person.items() if ask.trait} | {"person.problem": (None, "x")}
    for given, level in (((5, 1), "high"), ((1, 5), "low"), ((4, 3), "high"), ((3, 3), "middle"), ((5, 5), "middle")):
        asked = told | {"person.ideas": (given[0], ""), "person.usual": (given[1], "")}
        big_five = ASKED.profile("p", "zh", asked).preferences.big_five
        assert big_five and big_five.openness == level and level in LEVELS["zh"]
    assert ASKED.profile("p", "en", {"person.problem": (None, "x")}).preferences.big_five is None
