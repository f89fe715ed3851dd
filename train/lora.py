"""The one place where a recipe's LoRA settings become an adapter config, checked against what vLLM can serve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.errors import UserError
from serve.checkpoints.lora import LORA_RANKS, lora_rank_limit

if TYPE_CHECKING:
    from peft import LoraConfig
    from trl import ModelConfig

# As in vllm.lora.peft_helper: these inits only set the first values of A and B. The others (PiSSA, OLoRA, CorDA, LoftQ) also
# change the base's weights, which the server would not know.
SERVABLE_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
SERVABLE_MODULES = ("classifier", "score")
# PEFT's name → what is refused; each is falsy in an ordinary LoRA.
REFUSED = {
    "use_dora": "DoRA",
    "lora_bias": "a bias in B",
    "alora_invocation_tokens": "activated LoRA",
    "layer_replication": "layer replication",
    "use_bdlora": "block-diagonal LoRA",
    "use_qalora": "QALoRA",
}


def lora_config(model: ModelConfig) -> LoraConfig:
    """PEFT's config of the adapter that a recipe asks for.

    Raises `UserError` without `use_peft`, for settings that PEFT refuses, and for what `check_servable` refuses.
    """
    from trl import get_peft_config

    if not model.use_peft:
        raise UserError("use_peft: set it to true: these recipes train LoRA adapters, not whole models")
    try:
        config = get_peft_config(model)
    except (ValueError, TypeError) as error:
        raise UserError(f"lora settings: {error}") from None
    check_servable(config)
    return config


def check_servable(config: LoraConfig | dict[str, Any]) -> None:
    """Refuse an adapter that vLLM would refuse: found out before training, not after it.

    `config` is PEFT's LoraConfig, or the dict of an adapter_config.json. Ranks have to be among those that vLLM reserves memory
    for (its --max-lora-rank), so that none is wasted: 12 would be served in the place of 16.

    Raises `UserError` that names the recipe's setting and says what to take.
    """
    given = config if isinstance(config, dict) else {**vars(config)}
    for rank in (given["r"], *(given.get("rank_pattern") or {}).values()):
        _check_rank(rank)
    for name, what in REFUSED.items():
        if given.get(name):
            raise UserError(f"{name}: vLLM does not serve {what}: leave it out")
    if given.get("bias", "none") != "none":
        raise UserError(f"bias: {given['bias']}: vLLM serves adapters without biases only: take none")
    init = given.get("init_lora_weights", True)
    if isinstance(init, str) and init.lower() not in SERVABLE_INITS:
        raise UserError(
            f"init_lora_weights: {init}: it changes the base's weights, so vLLM refuses the adapter: take true or one of "
            + ", ".join(SERVABLE_INITS)
        )
    if refused := [name for name in given.get("modules_to_save") or () if name not in SERVABLE_MODULES]:
        raise UserError(
            f"lora_modules_to_save: {', '.join(refused)}: vLLM serves no fully trained modules beside an adapter (but "
            "classifier and score, which these models lack): leave it out"
        )


def _check_rank(rank: int) -> None:
    if rank in LORA_RANKS:
        return
    known = ", ".join(map(str, LORA_RANKS))
    if not 1 <= rank <= LORA_RANKS[-1]:
        take = LORA_RANKS[-1] if rank > 0 else LORA_RANKS[1]
        raise UserError(f"lora_r: {rank}: vLLM serves ranks {known}: take {take}")
    above = lora_rank_limit(rank)
    below = max(each for each in LORA_RANKS if each < rank)
    raise UserError(f"lora_r: {rank}: vLLM reserves memory for ranks {known} only: take {above} (it costs the same) or {below}")
