"""The real libraries of peers: Inspect (our runs as its logs, and ESC-Eval held with its models), and verifiers, which rolls
out a policy in our environment and is installed in one of its own (`make setup-peers`)."""

import hashlib
import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from inspect_ai.log import EvalLog, read_eval_log

from core.files import read_jsonl
from core.grouping import exact_mean
from core.prompts import greeting, load_pack
from core.records import Dialogue, Judgement, Turn
from data_prep.cards import bundled_cards, load_cards
from data_prep.dialogue_files import read_given
from evalsuite import Results, score
from evalsuite.statistics.summary import AVERAGE
from tests.conftest import EscEval
from tests.demo import demo_config
from tests.endpoint import Answer, Endpoint
from tests.peers import python_with

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def scripted(messages: Sequence[dict[str, str]]) -> str:
    """An answer that depends on all that is asked: seven digits for the judge, now and then none, else a line."""
    seed = hashlib.sha256(json.dumps([[m["role"], m["content"]] for m in messages]).encode()).digest()
    if "seven digits" not in (asked := messages[-1]["content"]) and "digit" not in asked:
        return f"line {seed.hex()[:12]}"
    return "no score" if seed[0] % 2 else "".join(str(byte % 5) for byte in seed[:7])


@pytest.fixture
def run(esc_eval: EscEval) -> Path:
    """A scored run of ours: three cards, two exchanges, a model and a floor as supporters."""
    settings: dict[str, Any] = {"languages": ["en"], "limit": 3, "exchanges": 2, "gold": None}
    settings["supporters"] = ["embedded", "silent"]
    with Endpoint(lambda body, _: Answer(scripted(body["messages"])), models=("embedded",)) as started:
        Path("c.yaml").write_text(yaml.safe_dump(demo_config(**settings, endpoints={"embedded": started.url})))
        assert esc_eval("run", "--config", "c.yaml", "--out", "run")[0] == 0
    return Path("run")


def test_a_run_is_exported_as_logs_that_inspect_reads(esc_eval: EscEval, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from inspect_ai.model import ChatMessageUser

    assert esc_eval("report", run, "--inspect", "logs") == (0, "")
    assert {path.name for path in Path("logs").iterdir()} == {"esc_eval_embedded.eval", "esc_eval_silent.eval"}
    log = read_eval_log("logs/esc_eval_embedded.eval")
    dialogues = [d for d in read_jsonl(run / "dialogues.jsonl", Dialogue, "dialogues") if d.supporter == "embedded"]
    verdicts = read_jsonl(run / "judgements.jsonl", Judgement, "judgements")
    assert log.status == "success" and log.eval.model == "embedded" and log.eval.tags == ["plumbing"]
    assert log.eval.model_roles and set(log.eval.model_roles) == {"seeker", "judge"}
    assert log.samples and len(log.samples) == len(dialogues) == 3
    for sample, dialogue in zip(log.samples, dialogues, strict=True):
        said = [("seeker" if isinstance(m, ChatMessageUser) else "supporter", m.text) for m in sample.messages]
        assert said == [(turn.role, turn.text) for turn in dialogue.turns]
        assert sample.scores
        values = sample.scores["embedded"].as_dict()
        for verdict in (v for v in verdicts if v.dialogue_id == dialogue.id):
            value = float(values[verdict.dimension])
            assert math.isnan(value) if verdict.value is None else value == verdict.value
        assert dialogue.usage and sample.model_usage["embedded"].input_tokens == dialogue.usage.prompt_tokens
    assert log.results and len(log.results.scores) == 7
    ids = {dialogue.id for dialogue in dialogues}
    for figure in log.results.scores:
        read = [v.value for v in verdicts if v.dialogue_id in ids and v.dimension == figure.name and v.value is not None]
        assert (figure.scored_samples, figure.unscored_samples) == (len(read), 3 - len(read))
        assert not read or figure.metrics["mean"].value == pytest.approx(sum(read) / len(read))
    read_again = read_given(Path("logs/esc_eval_embedded.eval")).dialogues
    assert read_again == [dialogue.model_copy(update={"usage": None}) for dialogue in dialogues]
    assert any(score.unscored_samples for score in log.results.scores), "the script has unreadable verdicts: draw another"
    used = json.loads((run / "usage.json").read_text())["simulate"]["supporter"]["embedded"]
    assert log.stats.role_usage["supporter"].output_tokens == used["completion_tokens"]
    assert esc_eval("report", run, "--inspect", "logs")[0] == 0
    again = read_eval_log("logs/esc_eval_embedded.eval")
    assert again.model_dump_json() == log.model_dump_json(), "the same run, another log"
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    missing = "error: --inspect: inspect_ai is not installed: pip install 'esc-eval[inspect]'\n"
    assert esc_eval("report", run, "--inspect", "more") == (2, missing)


def is_our_run(log: EvalLog, run: Path) -> None:
    """Assert that a log of the task has the dialogues and verdicts of our run with the model."""
    assert log.status == "success", log.error
    ours = {d.card_id: d for d in read_jsonl(run / "dialogues.jsonl", Dialogue, "dialogues") if d.supporter == "embedded"}
    verdicts = read_jsonl(run / "judgements.jsonl", Judgement, "judgements")
    assert log.samples and len(log.samples) == 3
    for sample in log.samples:
        dialogue = ours[str(sample.id)]
        assert [m.text for m in sample.messages] == [turn.text for turn in dialogue.turns]
        (score,) = (sample.scores or {}).values()
        theirs = {name: None if math.isnan(float(value)) else value for name, value in score.as_dict().items()}
        assert theirs == {v.dimension: v.value for v in verdicts if v.dialogue_id == dialogue.id}


def test_the_task_holds_the_dialogues_of_ours_and_gives_its_scores(run: Path) -> None:
    from inspect_ai import eval as inspect_eval
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    from evalsuite.inspect_task import esc_eval as task

    def answer(messages: Sequence[Any], *_: Any) -> ModelOutput:
        output = ModelOutput.from_content("mockllm/model", scripted([{"role": m.role, "content": m.text} for m in messages]))
        # Else it is counted, with a tokenizer from afar.
        output.usage = ModelUsage(input_tokens=3, output_tokens=2, total_tokens=5)
        return output

    models = {
        role: get_model("mockllm/model", memoize=False, custom_outputs=answer) for role in ("supporter", "seeker", "judge")
    }
    (log,) = inspect_eval(
        task(limit=3, exchanges=2), model=models.pop("supporter"), model_roles=dict(models), log_dir="task", display="none"
    )
    is_our_run(log, run)
    assert log.stats.role_usage.keys() >= {"seeker", "judge"}


@pytest.mark.full
def test_the_command_asks_servers_over_http_and_gives_our_scores(run: Path) -> None:
    """`inspect eval` as documented, with two of Inspect's providers: supporter and seeker each by an address of its own, the
    judge as a model of vLLM."""
    inspect = python_with("Inspect's command with its providers").with_name("inspect")
    log = Path("net").resolve()

    def behave(body: dict[str, Any], count: int) -> Answer:
        return Answer(scripted(body["messages"]), model=body["model"])

    with Endpoint(behave, models=("supporter", "seeker", "judge")) as started:
        names = ("MINE", "THEIRS", "VLLM")
        environment = {f"{name}_BASE_URL": started.url for name in names} | {f"{name}_API_KEY": "none" for name in names}
        command = ["eval", "evalsuite/inspect_task.py", "--model", "openai-api/mine/supporter"]
        command += ["--model-role", "seeker=openai-api/theirs/seeker", "--model-role", "judge=vllm/judge"]
        command += ["-T", "limit=3", "-T", "exchanges=2", "--log-dir", str(log), "--display", "none"]
        environment |= {"PYTHONPATH": str(ROOT)}
        how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 200}
        done = subprocess.run([str(inspect), *command], cwd=ROOT, env=os.environ | environment, **how)  # from the checkout
        assert not done.returncode, done.stdout + done.stderr
        asked = Counter(request["model"] for request in started.requests)
    assert asked["supporter"] == asked["seeker"] == 6 and asked["judge"] >= 3
    (path,) = log.glob("*.eval")
    is_our_run(read_eval_log(str(path)), run)


ROLLOUTS = """
import asyncio, json, os, sys
import verifiers as vf
from verifiers.types import ClientConfig

url, several = sys.argv[1], json.loads(sys.argv[2])
os.environ["POLICY_KEY"] = "none"
kept = ("prompt", "completion", "reward", "judged", "brevity", "error", "info", "num_turns")
plain = lambda value: value.model_dump() if hasattr(value, "model_dump") else str(value)

async def rollouts(settings):
    env = vf.load_environment("esc-eval", **settings)
    client = ClientConfig(api_key_var="POLICY_KEY", api_base_url=url, max_retries=0)
    made = await env.evaluate(client, "policy", rollouts_per_example=2, sampling_args={"max_tokens": 64})
    await env.close()
    return [{name: rollout.get(name) for name in kept} for rollout in made["outputs"]]

async def main():
    print(json.dumps([await rollouts(settings) for settings in several], default=plain))

asyncio.run(main())
"""
Rollout = dict[str, Any]


def answers(body: dict[str, Any], count: int) -> Answer:
    """A policy that talks more from turn to turn, a seeker that counts, a ranker that scores by what was said, and one that
    does not."""
    messages = body["messages"]
    if body["model"] == "policy":
        return Answer("Tell me more. " * len(messages), model="policy")
    if body["model"] == "seeker":
        return Answer(f"Line {len(messages)}: I cannot sleep.")
    if body["model"] == "mute":
        return Answer("no idea")
    seed = hashlib.sha256(messages[-1]["content"].encode()).digest()
    return Answer("".join(str(byte % 5) for byte in seed[:7]))


@dataclass(frozen=True)
class Made:
    """Rollouts by two judges, and our own scoring of the same dialogues by the first."""

    judged: list[Rollout]
    unread: list[Rollout]
    dialogues: list[Dialogue]
    scored: Results


@pytest.fixture(scope="module")
def made() -> Made:
    """In one process that has verifiers."""
    python = python_with("verifiers")
    with Endpoint(behave=answers, models=("policy", "seeker", "judge", "mute")) as endpoint:
        url = endpoint.url
        common = {"seeker": f"seeker@{url}", "limit": 2, "exchanges": 3, "free_characters": 20, "length_cost": 0.05}
        several = [common | {"judge": f"{judge}@{url}"} for judge in ("judge", "mute")]
        command = [str(python), "-c", ROLLOUTS, url, orjson.dumps(several).decode()]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr[-3000:]
        judged, unread = orjson.loads(done.stdout.splitlines()[-1])
        dialogues = [dialogue_of(rollout, number) for number, rollout in enumerate(judged)]
        return Made(judged, unread, dialogues, score(dialogues, judge=f"judge@{url}", quiet=True))


def dialogue_of(rollout: dict[str, Any], number: int) -> Dialogue:
    """What a rollout says, as a record of ours."""
    said = [*rollout["prompt"], *rollout["completion"]]
    roles = {"user": "seeker", "assistant": "supporter"}
    turns = [Turn(role="supporter", text=greeting(load_pack("esc_eval"), "en"))]
    turns += [Turn(role=roles[message["role"]], text=message["content"].strip()) for message in said]
    return Dialogue(id=f"rollout-{number}", language="en", source="verifiers", supporter="policy", turns=tuple(turns))


@pytest.mark.full
def test_the_real_library_rolls_out_and_gets_the_reward_of_our_own_scoring(made: Made) -> None:
    assert len(made.judged) == 4 and {rollout["info"]["person"] for rollout in made.judged} == {
        card.id for card in load_cards(bundled_cards("en"))[:2]
    }
    for rollout, dialogue in zip(made.judged, made.dialogues, strict=True):
        assert rollout["error"] is None and rollout["num_turns"] == 3
        assert [message["role"] for message in rollout["completion"]] == ["assistant", "user"] * 2 + ["assistant"]
        mine = [verdict.value for verdict in made.scored.judgements if verdict.dialogue_id == dialogue.id]
        replies = [turn.text for turn in dialogue.turns[1:] if turn.role == "supporter"]
        length = sum(map(len, replies)) / len(replies)
        assert rollout["judged"] == pytest.approx(sum(value or 0 for value in mine) / 7 / 4)
        assert rollout["brevity"] == pytest.approx(-0.05 * (length / 20 - 1)) and length > 20
        assert rollout["reward"] == pytest.approx(rollout["judged"] + rollout["brevity"])
    average = made.scored.leaderboard[0].scores[AVERAGE].mean
    assert average == pytest.approx(exact_mean(100 * rollout["judged"] for rollout in made.judged))


@pytest.mark.slow
def test_a_rollout_whose_judge_cannot_be_read_is_one_that_failed(made: Made) -> None:
    assert len(made.unread) == 4
    assert all("InfraError" in str(rollout["error"]) and rollout["reward"] == 0 for rollout in made.unread)
