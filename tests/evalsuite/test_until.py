"""`run --until decided`: cards are played until the differences are decided, and the same command asks nothing again.

Models have a known true quality: `0.85-good` writes replies of quality 0.85 of 1, and a noisy judge sees it.
"""

import hashlib
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from core.files import CONFIGS
from core.rubrics import load_rubric
from data_prep.scores import synthetic
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint
from tests.evalsuite.test_faults import one_line

pytestmark = pytest.mark.slow

CARD, DIALOGUE, OWN = 0.3, 0.4, 0.5  # standard deviations in levels of 0–4
OFF = 0.25  # share of gold scores that the judge gets wrong by one level
_QUALITY = re.compile(r"\(quality (\d\.\d+), case (\w+)\)")


class Qualities:
    """The behaviour of an `Endpoint`. Whoever is asked for scores sees the quality of the supporter's turns, what the card
    makes easy or hard, what the dialogue has of its own, and noise in each dimension; of the bundled gold set it knows the
    scores, and is one level off in a quarter of them. All depends on the seed and the prompt: the same is answered alike."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def __call__(self, body: dict[str, Any], count: int) -> Answer:
        prompt = body["messages"][-1]["content"]
        if re.search(r"from 0 to 4, in \w+ digits?|0 到 4 分，共 \d+ 个数字", prompt):
            return Answer("".join(map(str, self._scores(prompt))))
        if quality := re.match(r"(\d\.\d+)-", body["model"]):
            case = re.findall(r"case (\w+)", str(body["messages"]))[0]
            return Answer(f"{body['model']} hears you, turn {len(body['messages'])}. (quality {quality[1]}, case {case})")
        case = hashlib.sha256(str(body["messages"][0]).encode()).hexdigest()[:12]
        return Answer(f"Something happened, turn {len(body['messages'])}, case {case}.")

    def _scores(self, prompt: str) -> list[int]:
        rng = self._noise(prompt)
        if (found := next((scores for text, scores in self._gold.items() if text in prompt), None)) is not None:
            wrong = rng.random(len(found)) < OFF
            return [int(np.clip(score + off * rng.choice([-1, 1]), 0, 4)) for score, off in zip(found, wrong, strict=True)]
        turns = _QUALITY.findall(prompt)
        quality = float(turns[0][0]) if turns else 0.05  # floors show none
        case = turns[0][1] if turns else next(iter(re.findall(r"case (\w+)", prompt)), "none")
        level = 4 * quality + self._noise(case).normal(0, CARD) + rng.normal(0, DIALOGUE)
        return [int(score) for score in np.clip(np.round(level + rng.normal(0, OWN, 7)), 0, 4)]

    def _noise(self, text: str) -> np.random.Generator:
        return np.random.default_rng(int(hashlib.sha256(f"{self.seed} {text}".encode()).hexdigest()[:16], 16))

    @cached_property
    def _gold(self) -> dict[str, list[int]]:
        """What supporters say in the gold set → the scores of the dialogue, in the rubric's order."""
        dialogues, scores = synthetic.build()
        order = list(load_rubric("esc_eval").dimensions)
        of: dict[str, dict[str, int]] = {}
        for score in scores:
            of.setdefault(score.dialogue_id, {})[score.dimension] = int(score.value)
        return {
            turn.text: [of[dialogue.id][name] for name in order]
            for dialogue in dialogues
            for turn in dialogue.turns
            if turn.role == "supporter" and len(turn.text) > 20
        }


def command(url: str, out: Path, *models: str) -> list[str]:
    named = [part for model in models for part in ("--supporter", f"{model}@{url}")]
    return ["run", "--config", str(CONFIGS / "eval" / "api.yaml"), *named, "--model", f"judge@{url}", "--out", str(out)]


def figures(out: Path) -> dict[str, object]:
    report: dict[str, object] = orjson.loads((out / "report.json").read_bytes())
    return report


def test_a_run_ends_when_it_is_decided_and_resumes_for_nothing(
    esc_eval: EscEval, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, models = tmp_path / "run", ("0.9-good", "0.2-bad")
    with Endpoint(Qualities(1), (*models, "judge")) as endpoint:
        run = command(endpoint.url, out, *models)
        assert esc_eval(*run, "--until", "decided") == (0, "")
        requests = len(endpoint.requests)
        assert esc_eval(*run, "--until", "decided") == (0, "") and len(endpoint.requests) == requests
    assert orjson.loads((out / "looks.json").read_bytes()) == {"planned": [12, 18, 28, 36], "seen": [12]}
    assert len((out / "cards.jsonl").read_text(encoding="utf-8").splitlines()) == 12
    notes = (out / "report.md").read_text(encoding="utf-8")
    assert "its intervals are at 98.3 % and its tests at 0.017" in notes


def test_equal_models_are_played_to_the_end_and_no_difference_is_found(esc_eval: EscEval, tmp_path: Path) -> None:
    out, models = tmp_path / "run", ("0.5-one", "0.5-other")
    with Endpoint(Qualities(2), (*models, "judge")) as endpoint:
        run = command(endpoint.url, out, *models)
        assert esc_eval(*run, "--until", "decided", "--limit", "9", "--set", "floors=false") == (0, "")
    assert orjson.loads((out / "looks.json").read_bytes()) == {"planned": [12, 18], "seen": [18]}


def test_a_run_that_grows_without_a_plan_says_so(esc_eval: EscEval, tmp_path: Path) -> None:
    """Sixteen cards, then all of them: whoever goes on until something is found finds it by chance, too."""
    out, models = tmp_path / "run", ("0.9-good", "0.2-bad")
    with Endpoint(Qualities(3), (*models, "judge")) as endpoint:
        run = command(endpoint.url, out, *models)
        assert esc_eval(*run, "--set", "floors=false", "--limit", "6") == (0, "")
        assert "was looked at on" not in (out / "report.md").read_text(encoding="utf-8")
        assert esc_eval(*run, "--set", "floors=false", "--limit", "7") == (0, "")
    assert "was looked at on 12, 14 cards and grew in between" in (out / "report.html").read_text(encoding="utf-8")


def test_what_a_budget_cut_short_is_no_look(esc_eval: EscEval, tmp_path: Path) -> None:
    """Nobody chose to look there: a run that goes on afterwards has kept its plan."""
    out, models = tmp_path / "run", ("0.9-good", "0.2-bad")
    with Endpoint(Qualities(1), (*models, "judge")) as endpoint:
        run = [*command(endpoint.url, out, *models), "--set", "floors=false", "--until", "decided"]
        assert esc_eval(*run, "--set", "max_calls=110")[0] == 1
        assert "seen" not in orjson.loads((out / "looks.json").read_bytes())
        assert esc_eval(*run) == (0, "")
    assert orjson.loads((out / "looks.json").read_bytes()) == {"planned": [12, 18, 28, 36], "seen": [12]}
    assert "was looked at on" not in (out / "report.md").read_text(encoding="utf-8")


def test_a_shard_cannot_tell_when_to_stop(esc_eval: EscEval, tmp_path: Path) -> None:
    run = command("http://127.0.0.1:9/v1", tmp_path / "run", "0.9-good")
    one_line(esc_eval(*run, "--until", "decided", "--shard", "1/2"), 2, "--until", "leave --shard")
    one_line(esc_eval(*run, "--until", "never"), 2, "until", "decided")
