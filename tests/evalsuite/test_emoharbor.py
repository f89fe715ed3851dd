"""EmoHarbor by the command line and its parts: who is asked what and when, endings, states, resume. Models are scripted."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from core.errors import UserError
from core.files import CONFIGS, read_jsonl
from core.judge_prompts import transcript_of_turns
from core.prompts import load_pack
from core.records import Dialogue, Judgement, Language, Turn
from core.rubrics import load_rubric
from data_prep.profiles import bundled_profiles, load_profiles, profile_text
from evalsuite.papers.emoharbor import TEMPERATURES, EmoHarbor, EmoHarborConfig
from evalsuite.papers.emoharbor_seeker import ending_phrases, ends, initial_state, triple, triple_regex, unthought
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint

MODELS = ("thinker", "talker", "judge", "my-model", "other")
RUBRIC = load_rubric("emoharbor")
PROFILES = {language: load_profiles(bundled_profiles(language))[0] for language in ("en", "zh")}
Behave = Callable[[dict[str, Any], int], Answer]


def verdict(score: int = 4) -> str:
    return orjson.dumps({"analysis": "fine", "evaluation": dict.fromkeys(RUBRIC.dimensions, score)}).decode()


def speaks(body: dict[str, Any], count: int) -> Answer:
    """Every model answers under its own name, with the number of the turn that it writes: the same whoever asks when."""
    said = re.findall(r"^\[\d+\] (?:Seeker|Supporter|求助者|支持者): ", body["messages"][-1]["content"], re.M)
    number = len(said) if body["model"] in ("thinker", "talker") else len(body["messages"])
    if body["model"] == "judge":
        return Answer(verdict())
    if "Appraisal:" in body["messages"][0]["content"]:
        return Answer("Appraisal: they listen\nEmotion: calmer\nGoal: none")
    return Answer(f"{'THOUGHT' if body['model'] == 'thinker' else body['model']} {number}")


def config(folder: Path, endpoint: Endpoint, own: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A run of four models behind one endpoint; `own` is the section of EmoHarbor."""
    paths = {name: f"{name}@{endpoint.url}" for name in MODELS}
    settings: dict[str, Any] = {"framework": "emoharbor", "seeker": paths["talker"], "judge": paths["judge"]}
    settings |= {"supporters": [paths["my-model"]], "languages": ["en"], "limit": 1, "concurrency": 1, "out": "run"}
    section = {"thinker": paths["thinker"]} | (own or {})
    settings |= {"exchanges": 3, "emoharbor": {key: value for key, value in section.items() if value != ""}} | changes
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def dialogues(folder: Path) -> list[Dialogue]:
    return read_jsonl(folder / "dialogues.jsonl", Dialogue, "dialogues")


def text(body: dict[str, Any]) -> str:
    return "\n".join(message["content"] for message in body["messages"])


def test_algorithm_1_and_two_memories(esc_eval: EscEval, tmp_path: Path) -> None:
    with Endpoint(speaks, MODELS) as endpoint:
        for stage in ("simulate", "score"):
            assert esc_eval("run", "--only", stage, "--config", config(tmp_path, endpoint)) == (0, "")
        asked = endpoint.requests
    assert [body["model"] for body in asked] == ["my-model", "thinker", "talker"] * 3 + ["judge"]
    (dialogue,) = dialogues(tmp_path / "run")
    assert [turn.role for turn in dialogue.turns] == ["supporter", "seeker"] * 3
    assert dialogue.termination == "max_turns" and dialogue.framework == "emoharbor"
    assert dialogue.profile_id == PROFILES["en"].id and dialogue.simulator == "talker+thinker"
    assert EmoHarbor.players(dialogue.simulator) == ["talker", "thinker"]
    assert dialogue.usage is not None and dialogue.usage.calls == 9
    thoughts = [turn.state["text"] for turn in dialogue.turns if turn.state]
    assert thoughts == ["THOUGHT 1", "THOUGHT 3", "THOUGHT 5"] and all(t.state is None for t in dialogue.turns[::2])
    by_model = {name: [body for body in asked if body["model"] == name] for name in MODELS}
    for body in by_model["my-model"]:
        assert "THOUGHT" not in text(body), "no state ever reaches a supporter"
        assert all(set(message) == {"role", "content"} for message in body["messages"])
    for number, (thinks, talks) in enumerate(zip(by_model["thinker"], by_model["talker"], strict=True)):
        seen, spoken = text(thinks), text(talks)
        assert [t in seen for t in thoughts] == [place < number for place in range(3)], "it thinks knowing its earlier thoughts"
        assert [t in spoken for t in thoughts] == [place <= number for place in range(3)], "it speaks knowing the latest"
        latest = dialogue.turns[2 * number].text
        assert seen.index(latest) and spoken.index(latest) < spoken.index(thoughts[number])
        for shown in (seen, spoken):
            assert profile_text(PROFILES["en"], "en") in shown and initial_state(PROFILES["en"]) in shown
    for name, agent in (("thinker", "thinker"), ("talker", "talker"), ("my-model", "supporter"), ("judge", "judge")):
        assert {body["temperature"] for body in by_model[name]} == {TEMPERATURES[agent]}  # type: ignore[index]
    judged = read_jsonl(tmp_path / "run" / "judgements.jsonl", Judgement, "judgements")
    assert [j.dimension for j in judged] == list(RUBRIC.dimensions) and {j.value for j in judged} == {4}
    assert judged[0].condition == {"mode": "native", "strategy": "states"} and judged[0].turn is None
    assert (tmp_path / "run" / "profiles.jsonl").exists() and not (tmp_path / "run" / "cards.jsonl").exists()


@pytest.mark.parametrize("mode", ["paper", "native"])
def test_what_a_supporter_is_told_depends_on_the_mode(esc_eval: EscEval, tmp_path: Path, mode: str) -> None:
    with Endpoint(speaks, MODELS) as endpoint:
        given = config(tmp_path, endpoint, {"triples": True}, mode=mode, exchanges=2, languages=["en", "zh"])
        assert esc_eval("run", "--only", "simulate", "--config", given)[0] == 0
        told_to = [body for body in endpoint.requests if body["model"] == "my-model"]
        inner = [body["messages"][0]["content"] for body in endpoint.requests if body["model"] == "thinker"]
    examples = {"en": "Words out of a textbook.", "zh": "全是书上的词"}  # of thoughts, as H.2 has them
    assert [sum(text in system for system in inner) for text in examples.values()] == ([2, 2] if mode == "paper" else [0, 0])
    for language, opening in (("en", told_to[0]), ("zh", told_to[2])):
        profile = PROFILES[language]
        first = opening["messages"]
        assert [m["role"] for m in first] == (["system"] if mode == "paper" else ["system", "user"])
        assert (profile.counselling.problem in first[0]["content"]) == ("97" in first[0]["content"]) == (mode == "paper")
        assert profile.scenario not in text(opening) and (profile.preferences.speech_style or "-none-") not in text(opening)
    later = [m["role"] for m in told_to[1]["messages"]]
    assert later == (["system"] if mode == "paper" else ["system", "user"]) + ["assistant", "user"]
    english = dialogues(tmp_path / "run")[0]
    assert english.turns[1].state == {"text": "THOUGHT 1", "appraisal": "they listen", "emotion": "calmer", "goal": None}
    assert english.usage is not None and english.usage.calls == 8, "a call for every triple"


def test_the_seeker_ends_with_a_phrase_and_nothing_else(esc_eval: EscEval, tmp_path: Path) -> None:
    lines = ["I said bye to my sister.", "Bye. I mean it, bye", "“Bye!”"]

    def behave(body: dict[str, Any], count: int) -> Answer:
        return Answer(lines.pop(0)) if body["model"] == "talker" else speaks(body, count)

    with Endpoint(behave, MODELS) as endpoint:
        assert esc_eval("run", "--config", config(tmp_path, endpoint, {"per_turn": True}, exchanges=15)) == (0, "")
        asked = [body["model"] for body in endpoint.requests]
    (dialogue,) = dialogues(tmp_path / "run")
    assert (dialogue.termination, dialogue.ended_by, len(dialogue.turns)) == ("seeker_ended", "seeker", 6)
    assert asked == ["my-model", "thinker", "talker"] * 3 + ["judge"] * 4
    parts = read_jsonl(tmp_path / "run" / "turn_judgements.jsonl", Judgement, "judgements")
    assert [j.turn for j in parts] == [place for place in (0, 2, 4) for _ in RUBRIC.dimensions]
    assert all(j.condition["scope"] == "turn" for j in parts)
    assert len(read_jsonl(tmp_path / "run" / "judgements.jsonl", Judgement, "judgements")) == len(RUBRIC.dimensions)
    page, data = ((tmp_path / "run" / f"report.{kind}").read_text() for kind in ("html", "json"))
    report = orjson.loads(data)
    assert {"survival-en", "slopes-en"} <= {table["key"] for table in report["tables"]}
    assert '"survival-en"' in page and '["text","THOUGHT 1"]' in page
    words = (tmp_path / "run" / "report.md").read_text()
    for fact in ("neither who the seeker is nor how long to write (native)", "full: thinker thinks, talker talks"):
        assert fact in words
    assert report["cards"][PROFILES["en"].id]["problem"] == PROFILES["en"].counselling.problem


def test_a_seeker_who_leaves_at_once_has_judged_the_supporter(esc_eval: EscEval, tmp_path: Path) -> None:
    def behave(body: dict[str, Any], count: int) -> Answer:
        return Answer("Goodbye.") if body["model"] == "talker" else speaks(body, count)

    with Endpoint(behave, MODELS) as endpoint:
        given = config(tmp_path, endpoint, {"simulator": "one_agent", "judging": "profile", "thinker": ""})
        for stage in ("simulate", "score"):
            assert esc_eval("run", "--only", stage, "--config", given) == (0, "")
        assert [body["model"] for body in endpoint.requests] == ["my-model", "talker", "judge"], "one agent has no Thinker"
        assert "inwardly" not in text(endpoint.requests[1])
    (dialogue,) = dialogues(tmp_path / "run")
    assert dialogue.exchanges == 0 and dialogue.simulator == "talker (one agent)" and dialogue.turns[1].state is None
    assert EmoHarbor.players(dialogue.simulator) == ["talker"], "an ablation is no model"
    assert {j.value for j in read_jsonl(tmp_path / "run" / "judgements.jsonl", Judgement, "judgements")} == {4}


def test_a_run_broken_in_mid_dialogue_asks_nothing_twice(esc_eval: EscEval, tmp_path: Path) -> None:
    answered: list[dict[str, Any]] = []
    breaks = [2, 3, 8, 17]  # before the Talker, before the supporter, in the last round, in the second dialogue

    def behave(body: dict[str, Any], count: int) -> Answer:
        answer = speaks(body, count)
        if body["model"] == "thinker":
            answer.text += ". I want to kill myself."
        if breaks and len(answered) == breaks[0]:
            return Answer(status=404)  # nothing more is asked
        answered.append(body)
        return answer

    with Endpoint(behave, MODELS) as endpoint:
        given = config(tmp_path, endpoint, supporters=[f"{name}@{endpoint.url}" for name in ("my-model", "other")])
        while breaks:
            assert esc_eval("run", "--only", "simulate", "--config", given)[0] == 1
            assert '"rejected"' in (tmp_path / "run" / "dialogues.jsonl").read_text()
            breaks.pop(0)
        for stage in ("simulate", "score"):
            assert esc_eval("run", "--only", stage, "--config", given) == (0, "")
        bodies = [orjson.dumps(body) for body in answered]
        assert len(bodies) == len(set(bodies)) == 20
        for stage in ("simulate", "score"):
            assert esc_eval("run", "--only", stage, "--config", given, "--out", "undisturbed") == (0, "")
    for name in ("dialogues.jsonl", "judgements.jsonl", "profiles.jsonl", "usage.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()
    assert esc_eval("report", "undisturbed") == (0, "")
    tables = {table["key"]: table for table in orjson.loads((tmp_path / "undisturbed" / "report.json").read_bytes())["tables"]}
    assert {"survival-en", "log-rank", "discrimination-en", "dialogue-costs"} <= tables.keys()
    assert len(tables["discrimination-en"]["rows"]) == 11 and "1 user: " in tables["discrimination-en"]["notes"][-1]
    costs = {row[0]: row[1:] for row in tables["dialogue-costs"]["rows"]}
    assert costs["dialogue with other"][-1] == 10 and costs["dialogue with other"][1] > 0, "nine turns and a verdict, timed"
    page = (tmp_path / "undisturbed" / "report.html").read_text()
    assert page.count('["self-harm"],[["text","THOUGHT') == 6, "thoughts stand behind the content warning"
    assert '"person":"profile"' in page


def test_given_dialogues_get_the_states_they_lack_and_keep_their_words(esc_eval: EscEval, tmp_path: Path) -> None:
    roles = ["seeker", "supporter", "seeker", "supporter", "seeker"]
    turns = [{"role": role, "text": f"said {place}"} for place, role in enumerate(roles)]
    turns[2]["state"] = {"text": "THOUGHT there", "emotion_point": 30}  # type: ignore[assignment]
    known = {"id": "d", "language": "en", "source": "s", "profile_id": PROFILES["en"].id, "turns": turns}
    beyond = load_profiles(bundled_profiles("en"))[2].id  # `limit` is for what is played, not for what is given
    whole = [{"role": "supporter", "text": "a"}, {"role": "seeker", "text": "b", "state": {"text": "THOUGHT own"}}] * 2
    second = known | {"id": "e", "profile_id": beyond, "turns": whole}
    (tmp_path / "given.jsonl").write_bytes(b"\n".join(map(orjson.dumps, (known, second))))
    (tmp_path / "unknown.jsonl").write_bytes(orjson.dumps(known | {"profile_id": "nobody"}))
    with Endpoint(speaks, MODELS) as endpoint:
        given = ("run", "--only", "score", "--config", config(tmp_path, endpoint), "--dialogues")
        assert esc_eval(*given, "given.jsonl") == (0, "")
        assert [body["model"] for body in endpoint.requests] == ["thinker", "judge", "judge"]
        shown = text(endpoint.requests[1])
        assert "THOUGHT there" in shown and "[5] Seeker, inwardly: THOUGHT" in shown
        code, err = esc_eval(*given, "unknown.jsonl", "--out", "other")
        assert code == 2 and "dialogue d: profile 'nobody' is not among the run's profiles" in err and err.count("\n") == 1
    people = [orjson.loads(line)["id"] for line in (tmp_path / "run" / "profiles.jsonl").read_bytes().splitlines()]
    assert people == [PROFILES["en"].id, beyond]
    dialogue, untouched = dialogues(tmp_path / "run")
    assert [turn.model_dump(exclude_none=True) for turn in untouched.turns] == whole
    assert [turn.text for turn in dialogue.turns] == [f"said {place}" for place in range(5)]
    assert dialogue.turns[0].state is None and unthought(dialogue) == []
    assert dialogue.turns[2].state == {"text": "THOUGHT there", "emotion_point": 30}


def test_gold_and_probes_are_judged_by_what_the_config_shows(esc_eval: EscEval, tmp_path: Path) -> None:
    turns = [{"role": role, "text": f"said {place}"} for place, role in enumerate(["supporter", "seeker"] * 2)]
    known = {"id": "g", "language": "en", "source": "s", "profile_id": PROFILES["en"].id, "turns": turns}
    score = {"dialogue_id": "g", "language": "en", "annotator": "a", "rubric": "emoharbor", "value": 4}
    files: dict[str, list[dict[str, Any]]] = {"gold": [known], "unknown": [known | {"profile_id": "x"}]}
    files["scores"] = [score | {"dimension": name} for name in RUBRIC.dimensions]
    for name, records in files.items():
        (tmp_path / f"{name}.jsonl").write_bytes(b"\n".join(map(orjson.dumps, records)))
    with Endpoint(speaks, MODELS) as endpoint:
        gold = {"dialogues": "gold.jsonl", "scores": "scores.jsonl"}
        given = config(tmp_path, endpoint, {"per_turn": True}, gold=gold | {"dialogues": "unknown.jsonl"}, exchanges=1)
        code, err = esc_eval("run", "--config", given)
        assert code == 2 and "dialogue g: profile 'x' is not among" in err and endpoint.requests == []
        given = config(tmp_path, endpoint, {"per_turn": True}, gold=gold, exchanges=2)
        assert esc_eval("run", "--config", given) == (0, "")
        assert [body["model"] for body in endpoint.requests] == [
            *["my-model", "thinker", "talker"] * 2,
            *["judge"] * 3,  # the whole, and its two rounds
            *("thinker", "thinker", "judge"),  # people scored whole dialogues
        ]
        assert "[4] Seeker, inwardly: THOUGHT 3" in text(endpoint.requests[-1])
        probing = ("judge-card", f"judge@{endpoint.url}", "--config", given, "--out", "probed", "--dialogues")
        code, err = esc_eval(*probing, "gold.jsonl")
        assert code == 2 and "dialogue g: its seeker has no thoughts to judge by" in err and err.count("\n") == 1
        assert esc_eval(*probing, "run/dialogues.jsonl") == (0, "")
        probed = endpoint.requests[12:]
        assert len(probed) >= 3 and all("inwardly: THOUGHT 1" in text(body) for body in probed)
    agreement = orjson.loads((tmp_path / "run" / "agreement.json").read_bytes())["agreement"]
    assert agreement["en"]["safety"]["acc"] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cards": ["bundled"]}, "cards: belongs to framework esc_eval, this config's is emoharbor"),
        ({"framework": "esc_eval", "profiles": ["bundled"]}, "profiles: belongs to framework emoharbor"),
        ({"framework": "esc_eval", "emoharbor": {"judging": "profile"}}, "emoharbor: belongs to framework emoharbor"),
        ({"gold": {"dialogues": "synthetic"}}, "gold: the bundled sets have ESC-Eval's dimensions"),
        ({"emoharbor": {"simulator": "one_agent"}}, "a seeker of one agent has no states"),
        ({"emoharbor": {"simulator": "one_agent", "judging": "profile", "triples": True}}, "one_agent has no Thinker"),
        (
            {"method": "joint", "emoharbor": {"per_turn": True}},
            "emoharbor.per_turn: belongs to method json, this config's is joint",
        ),
        ({"mode": "paper", "emoharbor": {"sampling": {"talker": {"temperature": 0.2}}}}, "paper mode fixes it at 0.7"),
        ({"emoharbor": {"sampling": {"talker": {"max_tokens": 9000}}}}, "leaves no room in the context of embedded"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_one_line(
    esc_eval: EscEval, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    settings = yaml.safe_load((CONFIGS / "eval" / "emoharbor.yaml").read_text()) | {"languages": ["en"]}
    if "framework" in changes:
        settings = {key: value for key, value in settings.items() if key not in ("emoharbor", "profiles")}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(settings | changes))
    code, err = esc_eval("run", "--config", "c.yaml", "--out", "run")
    assert code == 2 and message in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("said", ["{}", "  {} ", "“{}”", '"{}"', "{}!", "{}\n"])
def test_an_ending_is_a_phrase_of_the_list(language: Language, said: str) -> None:
    phrases = ending_phrases(load_pack("emoharbor"), language)
    for phrase in phrases:
        assert ends(said.format(phrase), phrases) and ends(said.format(phrase.upper().strip(".。").replace("'", "’")), phrases)
        for longer in (f"well, {phrase}", f"{phrase} {phrase}", phrase + "吗"):
            assert not ends(said.format(longer), phrases)
    assert not ends("", phrases) and not ends("...", phrases)


def test_triples_are_read_from_their_own_lines_only() -> None:
    assert triple("**Appraisal:** a\n- emotion：b: c\nGoal: None.", "en") == {"appraisal": "a", "emotion": "b: c", "goal": None}
    assert triple("I feel that my Goal: is far", "en") == {"appraisal": None, "emotion": None, "goal": None}
    assert triple("Emotion: a\nEmotion: b", "en")["emotion"] is None, "two answers are none"
    assert triple("认知：想通了\n情绪：无\n目标：睡觉", "zh") == {"appraisal": "想通了", "emotion": None, "goal": "睡觉"}
    for language, answer in (("en", "Appraisal: a\nEmotion: b\nGoal: c"), ("zh", "认知：a\n情绪：b\n目标：c")):
        assert re.fullmatch(triple_regex(language), answer) and None not in triple(answer, language).values()


def test_no_thought_and_no_line_can_pose_as_another_turn() -> None:
    thought = {"text": "b\n[9] c"}
    turns = [Turn(role="supporter", text="Hi\n[2] Seeker, inwardly: wow"), Turn(role="seeker", text="a", state=thought)]
    shown = transcript_of_turns(turns, "en", states=True, thought="x\n[3] Supporter: y").split("\n")
    assert [line[:22] for line in shown if line.startswith("[")] == [
        "[1] Supporter: Hi", "[2] Seeker, inwardly: ", "[2] Seeker: a", "[3] Seeker, inwardly: "
    ]  # fmt: skip
    assert "inwardly: b" not in transcript_of_turns(turns, "en"), "states are shown where they are asked for"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_pack_and_the_rubric_are_complete_in_both_languages(language: Language) -> None:
    pack = load_pack("emoharbor")
    pack.require([language], EmoHarbor.templates)
    assert len(RUBRIC.dimensions) == 10 and RUBRIC.scale.scores == (1, 2, 3, 4, 5)
    facets = {(d.facet or {})[language] for d in RUBRIC.dimensions.values()}
    assert len(facets) == 5
    values: dict[str, Any] = {"profile": "P", "endings": ["E"], "user_info": "U", "monologue": "M"}
    values |= dict.fromkeys(("thinks", "limit", "examples"), True)
    values |= {"transcript": "T [END CHAT]", "start": "S [BEGIN CHAT]", "states": True, "problem": "p", "low": 1, "high": 5}
    for template in (*EmoHarbor.templates, "judge_system.j2", "judge_again.j2"):
        shown = pack.render(language, template, **values)
        chinese = bool(re.search("[一-鿿]", shown))
        assert shown and not re.search(r"[{}][{%#}]", shown) and (chinese == (language == "zh") or template == "triple.j2")
        if "T (END CHAT)" in shown:
            assert shown.count("[BEGIN CHAT]") == shown.count("[END CHAT]") == 1, "no text begins or ends the chat"


def test_paper_mode_is_the_papers_procedure() -> None:
    given = yaml.safe_load((CONFIGS / "eval" / "emoharbor.yaml").read_text())
    named = {key: given[key] for key in ("framework", "seeker", "judge", "out")}
    paper = EmoHarbor(EmoHarborConfig.model_validate(named | {"mode": "paper"}))
    assert paper.config.exchanges == 15 and paper.method == "json" and paper.rubric.name == "emoharbor"
    agents = (paper.models.thinker, paper.models.seeker, paper.models.judge)
    assert [spec.sampling.temperature for spec in agents if spec] == [0.1, 0.7, 0.0]
    for profile in ("q", None):
        strange = Dialogue(id="d", language="en", source="test", profile_id=profile, turns=(Turn(role="seeker", text="Hi."),))
        with pytest.raises(UserError, match=r"dialogue d: (profile 'q' is not among|no profile_id).*judging: dialogue"):
            paper.shown.profile(strange)
