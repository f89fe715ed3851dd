"""Adapters that vLLM would refuse are refused before training; vLLM's own loader is the oracle."""

from contextlib import nullcontext
from typing import Any

import pytest

from core.errors import UserError
from serve.checkpoints.lora import LORA_RANKS
from train.recipes import check_servable, lora_config

PLAIN: dict[str, Any] = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj"]}
REFUSED: dict[str, dict[str, Any]] = {
    "rank above all": {"r": 1024},
    "rank pattern above all": {"rank_pattern": {"q_proj": 1024}},
    "dora": {"use_dora": True},
    "bias in B": {"lora_bias": True},
    "bias": {"bias": "all"},
    "pissa": {"init_lora_weights": "pissa"},
    "pissa, fast": {"init_lora_weights": "pissa_niter_16"},
    "olora": {"init_lora_weights": "olora"},
    "corda": {"init_lora_weights": "corda"},
    "loftq": {"init_lora_weights": "loftq"},
    "activated": {"alora_invocation_tokens": [1, 2]},
    "replicated layers": {"layer_replication": [[0, 2], [1, 3]]},
    "block-diagonal": {"use_bdlora": {"nblocks": 2}},
    "qalora": {"use_qalora": True},
    "lm_head": {"modules_to_save": ["lm_head"]},
}
SERVED: dict[str, dict[str, Any]] = {
    "plain": {},
    "rank-stabilised": {"use_rslora": True},
    "gaussian": {"init_lora_weights": "gaussian"},
    "eva": {"init_lora_weights": "eva"},
    "zero start": {"init_lora_weights": False},
    "largest rank": {"r": 512},
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_unservable_adapters_are_refused(change: dict[str, Any]) -> None:
    setting = {"r": "lora_r", "rank_pattern": "lora_r"}
    name = next(iter(change))
    with pytest.raises(UserError, match=f"^{setting.get(name, name)}: .*[:;] (take|leave|train) "):
        check_servable({**PLAIN, **change})


@pytest.mark.parametrize("change", SERVED.values(), ids=SERVED)
def test_servable_adapters_pass(change: dict[str, Any]) -> None:
    check_servable({**PLAIN, **change})


@pytest.mark.slow
@pytest.mark.parametrize("change", [*REFUSED.values(), *SERVED.values()], ids=[*REFUSED, *SERVED])
def test_vllm_agrees(change: dict[str, Any]) -> None:
    from vllm.config.lora import LoRAConfig
    from vllm.lora.peft_helper import PEFTHelper

    helper = PEFTHelper.from_dict({**PLAIN, **change})
    limits = LoRAConfig(max_lora_rank=max(LORA_RANKS))
    if change in REFUSED.values():
        with pytest.raises(ValueError, match="not support|only supports|greater than|not yet"):
            helper.validate_legal(limits)
    else:
        helper.validate_legal(limits)


@pytest.mark.slow
def test_vllm_takes_these_ranks_as_its_limit_and_no_others() -> None:
    from vllm.config.lora import LoRAConfig

    for rank in (*LORA_RANKS, 4, 12, 1024):
        with nullcontext() if rank in LORA_RANKS else pytest.raises(ValueError):
            assert LoRAConfig(max_lora_rank=rank).max_lora_rank == rank


@pytest.mark.slow
def test_a_recipes_settings_are_refused_as_the_config_is() -> None:
    from trl import ModelConfig

    for settings, words in (({"lora_r": 0}, "^lora"), ({"lora_modules_to_save": ["lm_head"]}, "^modules_to_save: .*lm_head")):
        with pytest.raises(UserError, match=words):
            lora_config(ModelConfig(use_peft=True, **settings))
