"""The environment of `verifiers`: the real library rolls out a policy with scripted seeker and ranker, all of them over HTTP.

It has an environment of its own (`make setup-peers`).
"""

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from core.grouping import exact_mean
from core.prompts import greeting, load_pack
from core.records import Dialogue, Turn
from data_prep.cards import bundled_cards, load_cards
from evalsuite import Results, score
from evalsuite.statistics.summary import AVERAGE
from tests.endpoint import Answer, Endpoint
from tests.peers import python_with

ROOT = Path(__file__).parents[2]
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


def scripted(body: dict[str, Any], count: int) -> Answer:
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
    with Endpoint(behave=scripted, models=("policy", "seeker", "judge", "mute")) as endpoint:
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
