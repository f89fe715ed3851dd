"""The stages through the command line, against a scripted endpoint: what is asked, written, resumed and reported."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from core.files import CONFIGS, write_jsonl
from core.judge_prompts import judge_messages
from core.prompts import load_pack
from core.records import Dialogue, HumanScore, Turn
from core.rubrics import load_rubric
from data_prep.cards import bundled_cards, load_cards
from evalsuite.commands.setup import EXAMPLE, FILES
from evalsuite.runs.config import load_config
from tests.conftest import EscEval
from tests.demo import DEMO, EMBEDDED_JUDGE, demo_config
from tests.endpoint import Answer, Endpoint, echo
from tests.evalsuite.records import make_judgement

CARDS = bundled_cards("en")


def of_mine(endpoint: Endpoint, limit: int) -> tuple[str, ...]:
    """The demo in English with a supporter of one's own, on so many cards, into `run`."""
    mine = ("--supporter", f"my-model@{endpoint.url}", "--limit", str(limit), "--language", "en", "--out", "run")
    return "--config", str(DEMO), "--set", "floors=false", "--set", f"endpoints.embedded={endpoint.url}", *mine


def test_stages_alone_equal_one_run_and_a_finished_run_asks_nothing(esc_eval: EscEval, tmp_path: Path) -> None:
    with Endpoint(models=("embedded", "org/my model")) as endpoint:
        config = demo_config(limit=2, gold=None)
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
        given = ("--config", "c.yaml", "--set", f"endpoints.embedded={endpoint.url}")
        mine = ("--supporter", f"org/my model@{endpoint.url}")
        assert esc_eval("run", *given, *mine, "--out", "whole") == (0, "")
        assert {body["model"] for body in endpoint.requests} == {"embedded", "org/my model"}
        asked = len(endpoint.requests)
        assert esc_eval("run", *given, *mine, "--out", "whole")[0] == 0
        assert len(endpoint.requests) == asked
        assert esc_eval("run", "--only", "simulate", *given, *mine, "--out", "parts")[0] == 0
        assert esc_eval("run", "--only", "score", *given, "--out", "parts")[0] == 0
        assert esc_eval("report", "parts")[0] == 0
    for name in ("cards.jsonl", "dialogues.jsonl", "judgements.jsonl"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    for kind in ("html", "json", "md"):
        assert (tmp_path / "parts" / f"report.{kind}").stat().st_size > 1000
    dialogue = orjson.loads((tmp_path / "whole" / "dialogues.jsonl").read_bytes().splitlines()[0])
    assert dialogue["supporter"] == "org-my-model" and len(dialogue["turns"]) == 11
    assert not {"seconds", "date", "time"} & set(dialogue)


def test_a_score_folder_keeps_to_its_dialogues(esc_eval: EscEval, tmp_path: Path) -> None:
    with Endpoint(models=("embedded",)) as endpoint:
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(demo_config(limit=1, gold=None)))
        given = ("--config", "c.yaml", "--set", f"endpoints.embedded={endpoint.url}")
        assert esc_eval("run", "--only", "simulate", *given, "--out", "run")[0] == 0
        whole = (tmp_path / "run" / "dialogues.jsonl").read_bytes()
        assert len(whole.splitlines()) == 2
        assert esc_eval("run", "--only", "score", *given, "--language", "zh", "--out", "run")[0] == 0
        assert (tmp_path / "run" / "dialogues.jsonl").read_bytes() == whole, "one language is scored, none is lost"
        (tmp_path / "one.jsonl").write_bytes(whole.splitlines(keepends=True)[0])
        (tmp_path / "two.jsonl").write_bytes(whole)
        code, err = esc_eval("run", "--only", "score", *given, "--dialogues", "one.jsonl", "--out", "run")
        assert code == 2 and "run holds a run's own dialogues; use another --out" in err
        assert esc_eval("run", "--only", "score", *given, "--dialogues", "one.jsonl", "--out", "scored")[0] == 0
        code, err = esc_eval("run", "--only", "score", *given, "--dialogues", "two.jsonl", "--out", "scored")
        assert code == 2 and "another dialogues config: count: 1 → 2" in err


def test_the_supporter_never_sees_the_greeting_or_the_card(esc_eval: EscEval, tmp_path: Path) -> None:
    with Endpoint(models=("embedded", "my-model")) as endpoint:
        command = of_mine(endpoint, 1)
        assert esc_eval("run", "--only", "simulate", *command)[0] == 0
    greeting = (CONFIGS / "prompts" / "esc_eval" / "en" / "greeting.txt").read_text().strip()
    problem = json.loads(CARDS.read_text().splitlines()[0])["problem"]
    for body in endpoint.requests:
        texts = [message["content"] for message in body["messages"]]
        if body["model"] == "my-model":
            assert body["messages"][0]["role"] == "user" and greeting not in texts and problem not in "".join(texts)
        else:
            assert texts[1] == greeting and problem in texts[0]
            assert [m["role"] for m in body["messages"][:2]] == ["system", "user"]
    assert [len(body["messages"]) for body in endpoint.requests] == [2, 1, 4, 3, 6, 5, 8, 7, 10, 9]


def test_the_judge_can_be_asked_in_its_own_pack(esc_eval: EscEval, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    shutil.copytree(CONFIGS / "prompts" / "esc_rank" / "en", tmp_path / "mine" / "en")
    rubric = load_rubric("esc_eval")
    dialogue = Dialogue(id="d", language="en", source="test", turns=(Turn(role="supporter", text="Hello."),))
    systems = {
        name: judge_messages(load_pack(pack), rubric, dialogue, "joint", list(rubric.dimensions))[0]["content"]
        for name, pack in (("own", str(tmp_path / "mine")), ("seekers'", "esc_eval"))
    }
    config = demo_config(limit=1, gold=None, languages=["en"])
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "short.yaml").write_text(yaml.safe_dump(config | {"judge_prompts": "./mine"}))
    with Endpoint(models=("embedded",)) as endpoint:
        url = ("--set", f"endpoints.embedded={endpoint.url}")

        def asked(*command: str) -> list[str]:
            """The judge's system messages that a command sent."""
            before = len(endpoint.requests)
            assert esc_eval(*command, *url) == (0, "")
            sent = (body["messages"][0]["content"] for body in endpoint.requests[before:])
            return [text for text in sent if text in systems.values()]

        assert asked("run", "--config", "c.yaml", "--out", "a") == [systems["seekers'"]]
        assert asked("run", "--config", "c.yaml", "--set", "judge_prompts=./mine", "--out", "b") == [systems["own"]]
        assert asked("run", "--only", "score", "--config", "short.yaml", "--dialogues", "b/dialogues.jsonl", "--out", "c") == [
            systems["own"]
        ]
        runs = [json.loads(Path(f"{name}/config.json").read_text()) for name in "abc"]
        assert runs[0]["simulate"] == runs[1]["simulate"], "seekers are told what they were told"
        assert runs[0]["score"]["prompts"]["pack"] == "esc_eval"
        assert runs[1]["score"] == runs[2]["score"] and runs[1]["score"]["prompts"]["pack"] == "./mine"

        (tmp_path / "mine" / "en" / "judge_system.j2").write_text("Score it.")
        code, err = esc_eval("run", "--config", "c.yaml", "--set", "judge_prompts=./mine", "--out", "b", *url)
        assert code == 2 and "another score config: prompts.fingerprint" in err


@pytest.mark.parametrize(
    ("pack", "problem"),
    [
        ("esc_rang", "unknown prompt pack 'esc_rang': did you mean esc_rank"),
        ("cards", "prompt pack has no file .*judge_system.j2: (did you mean|known: ).*\\.j2"),
    ],
)
def test_a_pack_that_no_judge_can_be_asked_in_is_refused_before_anything_starts(
    esc_eval: EscEval, pack: str, problem: str
) -> None:
    code, err = esc_eval("run", "--config", DEMO, "--judge", "embedded", "--set", f"judge_prompts={pack}", "--out", "run")
    assert code == 2 and re.search(problem, err) and not Path("run").exists()


def test_reasoning_reaches_neither_side_nor_judge_nor_record(esc_eval: EscEval, tmp_path: Path) -> None:
    def behave(body: dict[str, Any], count: int) -> Answer:
        if body["model"] == "my-model":
            return Answer(f"<think>SECRET {count}</think>That sounds hard.", message={"reasoning_content": "SECRET too"})
        return echo(body, count)

    with Endpoint(behave, models=("embedded", "my-model")) as endpoint:
        command = of_mine(endpoint, 1)
        assert esc_eval("run", *command, *EMBEDDED_JUDGE) == (0, "")
    assert not any("SECRET" in orjson.dumps(body).decode() for body in endpoint.requests)
    dialogue = json.loads(Path("run/dialogues.jsonl").read_text())
    assert "SECRET" not in json.dumps(dialogue["turns"]) and dialogue["usage"]["reasoning_characters"] > 0


def test_replies_that_were_cut_off_are_counted_wherever_they_are_of_interest(esc_eval: EscEval) -> None:
    """The supporter's second reply in each dialogue is cut off, and kept; the judge's only one too."""

    def behave(body: dict[str, Any], count: int) -> Answer:
        answer = echo(body, count)
        second = body["model"] == "my-model" and len(body["messages"]) == 3
        return replace(answer, finish_reason="length") if second or "structured_outputs" in body else answer

    with Endpoint(behave, models=("embedded", "my-model")) as endpoint:
        Path("c.yaml").write_text(yaml.safe_dump(demo_config(limit=2, languages=["en"], gold=None, exchanges=3)))
        mine = ("--supporter", f"my-model@{endpoint.url}", "--out", "run")
        told: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("evalsuite.commands.run.console.print", lambda *what, **_: told.extend(map(str, what)))
            assert esc_eval("run", "--config", "c.yaml", "--set", f"endpoints.embedded={endpoint.url}", *mine) == (0, "")
    sentence = "Replies cut off at their token limit: 2 of 6 by the supporter my-model, 2 of 2 by the judge embedded."
    assert told[-3] == sentence
    assert told[-2:] == [
        "warning: 2 of 6 replies of the supporter my-model were cut off: raise max_tokens",
        "warning: 2 of 2 replies of the judge embedded were cut off: raise sampling.max_tokens in its spec",
    ]
    dialogues = [json.loads(line) for line in Path("run/dialogues.jsonl").read_text().splitlines()]
    assert [(len(d["turns"]), d["usage"]["cut_off"]) for d in dialogues] == [(7, {"supporter": 1})] * 2
    usage = json.loads(Path("run/usage.json").read_text())
    assert usage["score"]["judge"]["embedded"]["cut_off"] == {"judge": 2}
    assert "cut_off" not in usage["simulate"]["seeker"]["embedded"]
    report = Path("run/report.md").read_text()
    assert sentence not in report, "what is warned of is said once"
    assert "2 of 6 replies of the supporter my-model were cut off" in report
    assert "cut off (supporter)" in Path("run/tables/terminations.csv").read_text()


# What a minimal container or a cron job has; Python is kept from choosing UTF-8 by itself.
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
ROOT = CONFIGS.parent


def chinese(body: dict[str, Any], count: int) -> Answer:
    found = echo(body, count)
    return found if "structured_outputs" in body else Answer(f"我听到了 – {found.text} 😀")


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "evalsuite.cli", *arguments]
    environment = {key: value for key, value in os.environ.items() if key not in ("LANG", "PYTHONIOENCODING")} | ASCII
    return subprocess.run(command, cwd=folder, capture_output=True, env=environment | {"PYTHONPATH": str(ROOT)}, timeout=120)


@pytest.mark.slow
def test_without_utf_8_the_report_is_written_and_printing_does_not_die(tmp_path: Path) -> None:
    settings = demo_config(limit=1, gold=None, languages=["en", "zh"], exchanges=1, out="run")
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    with Endpoint(chinese, models=("embedded", "my-model")) as endpoint:
        given = ("--supporter", f"my-model@{endpoint.url}", "--set", f"endpoints.embedded={endpoint.url}")
        done = call(tmp_path, "run", "--config", "c.yaml", *given)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii() and b"Leaderboard" in done.stdout
    assert "我听到了" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    bad = call(tmp_path, "report", "名字")
    assert bad.returncode == 2 and bad.stderr.startswith(b"error: ") and bad.stderr.count(b"\n") == 1


@pytest.mark.slow
def test_json_is_utf_8_in_any_locale(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "j.jsonl", [make_judgement("d", "fluency", 3, judge="评委")])
    write_jsonl(
        tmp_path / "g.jsonl",
        [HumanScore(dialogue_id="d", language="en", annotator="a", rubric="test", dimension="fluency", value=3)],
    )
    shown = call(tmp_path, "agree", "--judgements", "j.jsonl", "--gold", "g.jsonl", "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout.decode("utf-8"))["judges"].keys() == {"评委"}


def test_what_it_writes_runs_at_once(esc_eval: EscEval, capsys: pytest.CaptureFixture[str]) -> None:
    assert esc_eval("init", "my work/mine") == (0, "")
    with Endpoint() as endpoint:
        line = ("run", "--config", "my work/mine/config.yaml", "--model", f"my-model@{endpoint.url}", "--out", "run")
        assert esc_eval(*line) == (0, "")
    prompt = Path("my work/mine/prompt.txt").read_text().strip()
    assert sum(body["messages"][0]["content"] == prompt for body in endpoint.requests) == 4 * 4
    cards = [json.loads(line) for line in Path("run/cards.jsonl").read_text().splitlines()]
    assert len(cards) == 4 and {card["source"] for card in cards} == {"cards"}
    report = Path("run/report.md").read_text()
    assert all(name in report for name in ("my-model.prompt", "silent", "parrot", "lecture"))
    rubric = load_rubric("my work/mine/rubric.yaml")
    judged = {json.loads(line)["dimension"] for line in Path("run/judgements.jsonl").read_text().splitlines()}
    assert judged == set(rubric.dimensions) and len(judged) == 4


def test_it_replaces_nothing(esc_eval: EscEval) -> None:
    Path("mine").mkdir()
    Path("mine/cards.csv").write_text("mine\n")
    code, said = esc_eval("init", "mine")
    assert (code, [path.name for path in Path("mine").iterdir()]) == (2, ["cards.csv"])
    assert "cards.csv: exists already and is not replaced" in " ".join(said.split())
    assert Path("mine/cards.csv").read_text() == "mine\n"


def test_the_example_is_whole_and_sound() -> None:
    assert {path.name for path in EXAMPLE.iterdir()} == set(FILES)
    assert all(card.category for card in load_cards(EXAMPLE / "cards.csv", "en"))
    assert "#" in (EXAMPLE / "config.yaml").read_text()


def test_a_config_names_the_files_beside_it_and_then_those_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EXAMPLE, "there")
    spec, config = {"name": "m", "endpoint": {"base_url": "http://127.0.0.1:9/v1"}}, Path("there/config.yaml")
    Path("there/m.yaml").write_text(yaml.safe_dump(spec))
    Path("here.yaml").write_text(yaml.safe_dump(spec))
    Path("cards.csv").write_text("problem\nShe cannot sleep.\n")
    changes = {
        "supporters": ["m.yaml", "here.yaml", "m.yaml@http://127.0.0.1:9/v1", "esc-role"],
        "gold": {"dialogues": "cards.csv"},
    }
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | changes))
    loaded = load_config(config, {})
    assert loaded.supporters == ["there/m.yaml", "here.yaml", "there/m.yaml@http://127.0.0.1:9/v1", "esc-role"]
    assert (loaded.rubric, loaded.gold and loaded.gold.dialogues) == ("there/rubric.yaml", "there/cards.csv")
    typed = load_config(config, {"cards": ["cards.csv"]}, ["rubric=rubric.yaml"])
    assert (getattr(typed, "cards"), typed.rubric) == (["cards.csv"], "rubric.yaml"), "what is typed is meant from here"  # noqa: B009


def test_bundled_configs_mean_what_they_did() -> None:
    from evalsuite.runs.config import _beside

    for path in (CONFIGS / "eval").glob("*.yaml"):
        values = yaml.safe_load(path.read_text())
        assert _beside(values, path.parent) == values
