"""Paper mode against scripts of the published shape: what an endpoint is asked is what they would have sent."""

import os
import shlex
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from typer.testing import CliRunner

from core.files import CONFIGS, write_jsonl
from core.records import HumanScore, Language
from core.rubrics import load_rubric
from core.specs import ModelSpec, Sampling, load_spec
from data_prep.__main__ import app as data_prep_app
from data_prep.published.comparison import _REPLIES, _run
from data_prep.scores.human import read_dialogues
from evalsuite import cli
from serve.dialect import assumed
from serve.plan import plan_servers
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint
from tests.paper_desk import commands_of
from tests.published_clone import INTERNLM2, make_clone, published_card
from tests.test_docs import APPS, COMMANDS

CARDS = {"en": 1, "zh": 7}
LEFT_TO_THE_CHECKPOINT = Sampling(temperature=None, top_p=None)
OURS = "the seeker's prompt, the greeting, the supporter's system message"


def behave(body: dict[str, Any], count: int) -> Answer:
    """What the scripts' stand-ins answer at the same place of a dialogue; a judge answers 3."""
    if body["model"] in ("ranker", "baseline"):
        return Answer("3")
    place = (len(body["messages"]) - 2) + (body["model"] == "helper")
    return Answer(_REPLIES[place % len(_REPLIES)])


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone beside the pack that was imported from it (out/prompts)."""
    monkeypatch.chdir(tmp_path)
    clone = make_clone(tmp_path / "clone")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "modeling_internlm2.py").write_text(INTERNLM2)
    arguments = ["import", "--source", "esc_eval=clone", "--source", "internlm2=base", "--out", "out"]
    assert CliRunner().invoke(data_prep_app, arguments).exit_code == 0
    return clone


def write_config(folder: Path, url: str, **changes: Any) -> Path:
    """A run in paper mode: seeker and ranker have learnt the imported pack."""
    roles = {"player": "seeker", "helper": "supporter", "ranker": "judge"}
    for name, role in roles.items():
        learnt = {} if role == "supporter" else {"learnt": ["out/prompts"]}
        spec = {"name": name, "roles": [role], "languages": ["en", "zh"], "endpoint": {"base_url": url}, **learnt}
        spec |= {"paper_sampling": LEFT_TO_THE_CHECKPOINT.model_dump()} if role != "judge" else {}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(spec))
    settings = {"framework": "esc_eval", "mode": "paper", "seeker": "player.yaml", "supporters": ["helper.yaml"]}
    settings |= {"judge": "ranker.yaml", "languages": ["en", "zh"], "out": "run", "cards": ["cards_en.json", "cards_zh.json"]}
    for language, number in CARDS.items():
        cards = [published_card(number, language)]
        (folder / f"cards_{language}.json").write_bytes(orjson.dumps(cards))
    (folder / "c.yaml").write_text(yaml.safe_dump(settings | changes))
    return folder / "c.yaml"


def test_an_endpoint_is_asked_what_the_scripts_would_have_sent(esc_eval: EscEval, imported: Path, tmp_path: Path) -> None:
    with Endpoint(behave, models=("player", "helper", "ranker")) as endpoint:
        assert esc_eval("run", "--config", write_config(tmp_path, endpoint.url)) == (0, "")
        asked = [(body["model"], body) for body in endpoint.requests]
    sent: list[list[dict[str, str]]] = []
    judged: list[list[dict[str, str]]] = []
    languages: tuple[Language, ...] = ("en", "zh")
    for language in languages:
        script = imported / "evaluate.py"
        cards = {"cards.json": orjson.dumps([published_card(CARDS[language], language)]).decode()}
        argv = [script.name, "-ef", "cards.json", "-rf", "r/", "-lang", language]
        calls, (held,) = _run(script, argv, cards, _REPLIES)
        sent += [call["messages"] for call in calls]
        calls, _ = _run(imported / "score.py", ["score.py"], {f"x_{language}.json": held}, ("3",))
        judged += [call["messages"] for call in calls]
    talk = [body["messages"] for name, body in asked if name != "ranker"]
    assert sorted(map(str, talk)) == sorted(map(str, sent)) and len(talk) == 2 * 10
    of_ranker = [body["messages"] for name, body in asked if name == "ranker"]
    assert {messages[0]["role"] for messages in of_ranker} == {"system"}, "InternLM2's own code adds it"
    assert sorted(str(messages[1:]) for messages in of_ranker) == sorted(map(str, judged)) and len(judged) == 2 * 7
    for name, body in asked:
        drawn = {"temperature", "top_p"} & body.keys()
        assert (not drawn and body["max_tokens"] == 512) if name != "ranker" else body["temperature"] == 0
    assert "Wording: as published, every part" in (tmp_path / "run" / "report.md").read_text()
    held_turns = orjson.loads((tmp_path / "run" / "dialogues.jsonl").read_bytes().splitlines()[0])["turns"]
    assert [turn["text"] for turn in held_turns[1:4]] == list(_REPLIES[:3]), "with the white space that they came with"


def test_who_is_in_no_script_answers_at_temperature_0(esc_eval: EscEval, imported: Path, tmp_path: Path) -> None:
    with Endpoint(behave, models=("player", "helper", "ranker")) as endpoint:
        config = write_config(tmp_path, endpoint.url, supporters=["helper.yaml", "other.yaml"], languages=["en"])
        spec = yaml.safe_load((tmp_path / "helper.yaml").read_text())
        other = {key: value for key, value in spec.items() if key != "paper_sampling"} | {"name": "other"}
        other["endpoint"] |= {"model": "helper", "lists_models": False}
        (tmp_path / "other.yaml").write_text(yaml.safe_dump(other))
        assert esc_eval("run", "--config", config)[0] == 0
        drawn = [(body["model"], body.get("temperature")) for body in endpoint.requests if body["model"] != "ranker"]
        assert Counter(drawn) == {("player", None): 10, ("helper", None): 5, ("helper", 0): 5}
        del endpoint.requests[:]
        assert esc_eval("run", "--config", config, "--set", "temperature=0", "--out", "zero")[0] == 0
        assert {body.get("temperature") for body in endpoint.requests} == {0}
        code, error = esc_eval("run", "--config", config, "--set", "temperature=0.7", "--out", "warm")
        assert code == 2 and "temperature: paper mode samples" in error and "at temperature 0, as appendix C.2 says" in error
    told = {out: (tmp_path / out / "report.md").read_text() for out in ("run", "zero")}
    assert "Replies sampled: as in the script: player, helper; at temperature 0, in no script: other\n" in told["run"]
    zero = "Replies sampled: at temperature 0, unlike the script: player, helper; at temperature 0, in no script: other\n"
    assert zero in told["zero"]
    assert "Differences from the script: an empty reply ends a dialogue; reasoning" in told["run"]


def test_table_2_is_drawn_as_the_paper_says_but_for_the_two_supporters_of_the_script() -> None:
    config = yaml.safe_load((CONFIGS / "eval" / "esc_eval_full.yaml").read_text())
    script = {name: spec for name in config["supporters"] if (spec := load_spec(name).paper_sampling)}
    assert script == {"qwen1.5-7b-chat": LEFT_TO_THE_CHECKPOINT, "llama3-8b-instruct": Sampling(temperature=0, max_tokens=256)}
    assert len(config["supporters"]) == 14 and load_spec("esc-role").paper_sampling == LEFT_TO_THE_CHECKPOINT


def test_what_is_in_our_words_is_said(esc_eval: EscEval, imported: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "prompts" / "zh" / "greeting.txt").write_text("早。\n")
    with Endpoint(behave, models=("player", "helper", "ranker")) as endpoint:
        config = write_config(tmp_path, endpoint.url)
        assert esc_eval("run", "--config", config, "--language", "en", "--out", "english")[0] == 0
        assert "Wording: as published, every part" in (tmp_path / "english" / "report.md").read_text()
        assert esc_eval("run", "--config", config)[0] == 0
        assert "Wording: in our words: the greeting\n" in (tmp_path / "run" / "report.md").read_text()
        for name in ("player", "ranker"):
            spec = yaml.safe_load((tmp_path / f"{name}.yaml").read_text())
            (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({key: spec[key] for key in spec if key != "learnt"}))
        assert esc_eval("run", "--config", config, "--out", "ours")[0] == 0
        ours = f"{OURS}, the judge's prompt, the judge's system message"
        assert f"Wording: in our words: {ours}\n" in (tmp_path / "ours" / "report.md").read_text()
        # This ranker says one score, which is no verdict on all dimensions: a judge that cannot be read at all is exit 1.
        assert esc_eval("run", "--config", config, "--out", "native", "--set", "mode=native")[0] == 1
        assert "Wording" not in (tmp_path / "native" / "report.md").read_text()


@pytest.mark.slow
def test_the_console_says_what_is_in_our_words(imported: Path, tmp_path: Path) -> None:
    with Endpoint(behave, models=("player", "helper", "ranker", "other")) as endpoint:
        config = write_config(tmp_path, endpoint.url)
        told = [
            CliRunner().invoke(cli.app, ["run", "--only", "simulate", "--config", str(config), "--out", out, *more])
            for out, more in (("a", []), ("b", ["--seeker", f"other@{endpoint.url}"]))
        ]
    assert [one.exit_code for one in told] == [0, 0] and "in our words" not in told[0].output
    published = "`python -m data_prep import` reads the published wording from your clone"
    assert f"paper mode, in our words: {OURS}; {published}" in " ".join(told[1].output.split())


@pytest.mark.parametrize("mode", ["native", "paper"])
def test_a_seeker_is_asked_in_what_it_has_learnt_or_refused(
    esc_eval: EscEval, imported: Path, tmp_path: Path, mode: str
) -> None:
    with Endpoint(behave, models=("player", "helper", "ranker")) as endpoint:
        config = write_config(tmp_path, endpoint.url, mode=mode, languages=["en"])
        assert esc_eval("run", "--only", "simulate", "--config", config)[0] == 0
        (system,) = {body["messages"][0]["content"] for body in endpoint.requests if body["model"] == "player"}
        assert system.startswith("Be somebody in trouble.")
        code, error = esc_eval("run", "--only", "simulate", "--config", config, "--set", "prompts=esc_eval", "--out", "other")
        assert code == 2 and "seeker player has learnt the prompt pack out/prompts and is not asked in esc_eval" in error
        (tmp_path / "out" / "prompts").rename(tmp_path / "gone")
        code, error = esc_eval("run", "--only", "simulate", "--config", config, "--out", "other")
        assert code == 2 and "import --source esc_eval=CLONE --out out" in error and not (tmp_path / "other").exists()


def test_a_judge_is_asked_by_the_method_that_it_has_learnt(esc_eval: EscEval, imported: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, "http://127.0.0.1:9/v1", mode="native")
    spec = yaml.safe_load((tmp_path / "ranker.yaml").read_text())
    (tmp_path / "ranker.yaml").write_text(yaml.safe_dump(spec | {"learnt": ["esc_eval"], "learnt_methods": ["paper"]}))
    code, error = esc_eval("run", "--config", config)
    assert code == 2 and "ranker was not trained to be asked by method joint, but paper: mode: paper" in error


def test_sampling_that_is_left_is_left_to_the_checkpoint(tmp_path: Path) -> None:
    spec = ModelSpec(name="m", checkpoint="org/m", context_length=4096)
    left = spec.model_copy(update={"sampling": LEFT_TO_THE_CHECKPOINT})
    for specs, wanted in (([spec], "vllm"), ([left], "auto"), ([spec, left.model_copy(update={"name": "n"})], "auto")):
        (server,) = plan_servers(specs, tmp_path, resolve=False)
        words = server.argv
        assert words[words.index("--generation-config") + 1] == wanted
    remote = ModelSpec(name="m", endpoint={"base_url": "http://h/v1"}, sampling=LEFT_TO_THE_CHECKPOINT)
    assert "the server's own temperature and at most 512 tokens" in assumed(remote, None)


@pytest.mark.slow
def test_table_4_asks_ranker_and_baselines_in_the_same_prompts(
    imported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make reproduce-table4`, each of its commands in this process."""
    pack = tmp_path / "out" / "prompts"
    talks = [dialogue for dialogue in read_dialogues([tmp_path / "out" / "dialogues.jsonl"]) if dialogue.language == "en"]
    write_jsonl(tmp_path / "talks.jsonl", talks)
    score = {"language": "en", "annotator": "ann", "rubric": "esc_eval", "value": 3}
    dimensions = load_rubric("esc_eval").dimensions
    gold = [HumanScore(dialogue_id=talk.id, dimension=key, **score) for talk in talks for key in dimensions]
    write_jsonl(tmp_path / "gold.jsonl", gold)
    with Endpoint(behave, models=("ranker", "baseline")) as endpoint:
        for name, learnt in (("ranker", {"learnt": [str(pack)]}), ("baseline", {})):
            spec = {"name": name, "roles": ["judge"], "languages": ["en"], "endpoint": {"base_url": endpoint.url}, **learnt}
            (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(spec))
        settings = {"RANKER": "ranker.yaml", "JUDGES": "baseline.yaml", "SCORES": "gold.jsonl", "DIALOGUES": "talks.jsonl"}
        given = [f"{name}={tmp_path / file}" for name, file in (settings | {"TABLE4": "table4"}).items()]
        given += ["MODE=paper", "LANGUAGE=en", f"BIN={Path(sys.executable).parent}"]
        command = ["make", "--no-print-directory", "reproduce-table4", *given]
        run = partial(subprocess.run, cwd=CONFIGS.parent, env=os.environ | {"PYTHONPATH": str(CONFIGS.parent)}, text=True)
        refused = run(command, capture_output=True)
        assert refused.returncode == 2 and "asks the ranker and JUDGES in the same prompts: give PROMPTS=" in refused.stderr
        assert endpoint.requests == []
        planned = run([*command, "-n", f"PROMPTS={pack}"], capture_output=True, check=True).stdout
        monkeypatch.chdir(CONFIGS.parent)
        for words in map(shlex.split, commands_of(planned)):
            start = next(start for start in COMMANDS if tuple(words[: len(start)]) == start)
            result = CliRunner().invoke(APPS[start], words[len(start) :])
            assert result.exit_code == 0, (words, result.output)
    sent = [sorted(str(b["messages"]) for b in endpoint.requests if b["model"] == name) for name in ("ranker", "baseline")]
    assert len(sent[0]) == 2 * 7 and sent[0] == sent[1]
    assert (tmp_path / "table4" / "table4.md").exists()
