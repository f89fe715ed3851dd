"""How long requests can get: what the caches of a run's servers must hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from core.files import CONFIGS
from core.side_prompts import seeker_system
from core.specs import load_spec
from data_prep.scores import synthetic
from evalsuite.commands.options import resolve
from evalsuite.papers.esc_eval import EscEval
from evalsuite.runner.lengths import BYTES_A_TOKEN, MARKS, counter, needs
from serve.checkpoints.embedded import materialise

CONFIG = CONFIGS / "eval" / "esc_eval.yaml"
SEEKER = "esc-role-own"  # the published one needs a clone's prompts


def test_both_sides_and_the_judge_by_hand() -> None:
    """Five exchanges of 512 tokens a reply, without a tokenizer here."""
    resolved = resolve(CONFIG, seeker=SEEKER, supporters=["qwen1.5-7b-chat"], language="en", limit=2)
    assert isinstance(resolved, EscEval)
    found = needs(resolved, resolved.plans(), score=True)
    said = 5 * 2 * (512 + MARKS)
    systems = [seeker_system(resolved.prompts, card).encode() for card in resolved.cards]
    assert found[SEEKER] == max(-(-len(system) // BYTES_A_TOKEN) for system in systems) + MARKS + said
    assert found["qwen1.5-7b-chat"] == MARKS + said, "it has no system prompt"
    assert said < found["esc-rank"] < 8192
    assert "esc-rank" not in needs(resolved, resolved.plans(), score=False)


@pytest.mark.parametrize(("exchanges", "more"), [(5, 0), (10, 5 * 2 * (512 + MARKS))])
def test_more_exchanges_need_more(exchanges: int, more: int, tmp_path: Path) -> None:
    settings = yaml.safe_load(CONFIG.read_text()) | {"exchanges": exchanges, "limit": 1, "languages": ["en"]}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(settings))
    resolved = resolve(tmp_path / "c.yaml", seeker=SEEKER, supporters=["qwen1.5-7b-chat"])
    assert needs(resolved, resolved.plans(), score=False)["qwen1.5-7b-chat"] == 5 * 2 * (512 + MARKS) + MARKS + more


@pytest.mark.slow
def test_given_dialogues_are_counted_as_they_are() -> None:
    dialogues, _ = synthetic.build(languages=("en",))
    resolved = resolve(CONFIG, language="en", out="somewhere")
    whole = needs(resolved, dialogues, score=True)["esc-rank"]
    assert needs(resolved, dialogues[:1], score=True)["esc-rank"] <= whole < 8192


@pytest.mark.slow
def test_the_models_own_tokenizer_counts() -> None:
    materialise()
    text = "I have not slept well since I lost my job. 我很难过。"
    from transformers import AutoTokenizer

    expected = len(AutoTokenizer.from_pretrained(materialise())(text, add_special_tokens=False)["input_ids"])
    assert counter(load_spec("embedded"))(text) == expected
    assert counter(load_spec("gpt-4"))(text) == -(-len(text.encode()) // BYTES_A_TOKEN)
