"""Models of known true quality, for a scripted endpoint: `QUALITY-name` supports with that quality, a noisy judge sees it.

A model that is named `0.85-good` writes replies of quality 0.85 of 1. Whoever is asked for scores sees the quality of the
supporter's turns, what the card makes easy or hard, what the dialogue has of its own, and noise in each dimension; of the
bundled gold set it knows the scores, and is one level off in a quarter of them. Everything depends on the seed and on what is
asked, so that a run that is repeated is answered alike.
"""

import hashlib
import re
from functools import cached_property
from typing import Any

import numpy as np

from core.rubrics import load_rubric
from data_prep.scores import synthetic
from tests.endpoint import Answer

CARD, DIALOGUE, OWN = 0.3, 0.4, 0.5  # standard deviations in levels of 0–4
OFF = 0.25  # share of gold scores that the judge gets wrong by one level
_QUALITY = re.compile(r"\(quality (\d\.\d+), case (\w+)\)")


class Qualities:
    """The behaviour of an `Endpoint`."""

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
