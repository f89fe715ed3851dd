"""The models of a recipe: its base and tokenizer, and LoRA adapters on that base."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import UserError, at, need_modules
from core.files import read_object
from serve.checkpoints.internlm2 import QKV
from serve.checkpoints.lora import CONFIG, WEIGHTS, adapter_rank
from serve.checkpoints.model_card import read_training
from serve.checkpoints.places import resolve_checkpoint
from serve.checkpoints.tensors import check_finite, stored_tensors, weight_files
from train.examples import serves_alike, template_of
from train.recipes import Recipe, check_targets, lora_config
from train.run import is_main_process, say

if TYPE_CHECKING:
    import torch
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def base_folder(recipe: Recipe[Any]) -> str:
    """Where transformers finds the base: a checked local folder, or an unchanged hub id."""
    name = recipe.model.model_name_or_path
    assert name is not None
    place = resolve_checkpoint(name, "model_name_or_path")
    config = Path(place) / "config.json"
    if config.is_file() and read_object(config, "a model's config").get("model_type") == "internlm2":
        remedy = f"python -m serve convert {place} {place}-llama"
        raise UserError(f"model_name_or_path: {place} is in InternLM2's layout, which transformers no longer loads: {remedy}")
    return place


def load_tokenizer(recipe: Recipe[Any]) -> PreTrainedTokenizerBase:
    """The base's tokenizer, with a padding token and a chat template to train in (`template_of`)."""
    from transformers import AutoTokenizer

    with _loading(recipe):
        tokenizer = AutoTokenizer.from_pretrained(base_folder(recipe), revision=recipe.model.model_revision)
    with at(f"base {recipe.model.model_name_or_path}"):
        template_of(tokenizer)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if not serves_alike(tokenizer, recipe.task != "supporter"):
        say("note: the base's own chat template gives other prompts; serve the adapter with chat_template in its spec")
    return tokenizer


def load_base(recipe: Recipe[Any]) -> PreTrainedModel:
    """The base model, from safetensors, without remote code. Raises `UserError` for weights that are not finite."""
    from transformers import AutoModelForCausalLM
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
    from trl import get_quantization_config

    if is_main_process() and (folder := Path(base_folder(recipe))).is_dir():
        check_finite(weight_files(folder), "model_name_or_path")
    # If each process holds a part of every weight, DeepSpeed or FSDP places the weights.
    fsdp = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true" or recipe.training.fsdp
    divided = fsdp or is_deepspeed_zero3_enabled()
    if recipe.model.load_in_4bit:
        need_modules("bitsandbytes", purpose="load_in_4bit")
        if divided:
            raise UserError("load_in_4bit: a quantised base cannot be sharded: take configs/accelerate/ddp.yaml or zero2.yaml")
    with _loading(recipe):
        model = AutoModelForCausalLM.from_pretrained(
            base_folder(recipe),
            revision=recipe.model.model_revision,
            dtype=recipe.model.dtype,
            attn_implementation=recipe.model.attn_implementation,
            use_safetensors=True,
            quantization_config=get_quantization_config(recipe.model),
            **(recipe.training.model_init_kwargs or {}),  # TRL passes them only to models that it loads itself
            device_map=None if divided else {"": recipe.training.device},
        )
    if recipe.model.use_peft:
        check_targets(model, lora_config(recipe.model))
    return model


@contextmanager
def _loading(recipe: Recipe[Any]) -> Iterator[None]:
    """Raise the libraries' errors for a missing base or package as `UserError` with one line."""
    try:
        yield
    except (OSError, ImportError, ValueError, TypeError) as error:
        line = " ".join(str(error).split())
        raise UserError(f"model_name_or_path: {recipe.model.model_name_or_path} cannot be loaded: {line[:300]}") from error


def share_qkv(model: torch.nn.Module) -> None:
    """Let q_proj, k_proj and v_proj of each layer train one common A, as if they were one matrix. They share the module that
    holds it, since FSDP2 replaces each module's weight and would separate weights that are shared alone."""
    for layer in [module for module in model.modules() if all(hasattr(module, name) for name in QKV)]:
        first, *others = (getattr(layer, name).lora_A for name in QKV)
        for other in others:
            other["default"] = first["default"]


def load_adapted(recipe: Recipe[Any], folders: Mapping[str, Path]) -> PreTrainedModel | PeftModel:
    """The recipe's base with its adapters, by name, the n-th under the name `an` (from 0), in evaluation mode.

    Warns about an adapter that was trained on another base. Raises `UserError` for a folder that is no complete adapter or of
    another task, and for modules, shapes or tensors that do not fit the base (PEFT would use untrained values).
    """
    from peft import PeftModel, get_peft_model_state_dict

    kinds = {"role": "a seeker simulator", "rank": "a ranker", "supporter": "a supporter"}
    cards = {}
    for name, folder in folders.items():
        adapter_rank(folder, "--adapter")
        card = cards[name] = read_training(folder)
        if card is not None and card.kind != recipe.task:
            raise UserError(f"--adapter: {folder} is {kinds[card.kind]}, not {kinds[recipe.task]}")
    model: Any = load_base(recipe)
    for number, (name, folder) in enumerate(folders.items()):
        card, config = cards[name], read_object(folder / CONFIG, "an adapter's config")
        trained_on = card.base if card else config.get("base_model_name_or_path")
        if trained_on not in (recipe.model.model_name_or_path, base_folder(recipe)):
            say(f"warning: {name}: {folder} was trained on {trained_on}, but is used on {recipe.model.model_name_or_path}")
        misfit = f"--adapter: base and adapter do not fit: {name}: {folder} on {recipe.model.model_name_or_path}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about missing keys, which are an error below
                if number == 0:
                    model = PeftModel.from_pretrained(model, str(folder), adapter_name="a0")
                else:
                    model.load_adapter(str(folder), adapter_name=f"a{number}")
        except (ValueError, RuntimeError, TypeError, KeyError) as error:
            # The first line of PEFT's errors says only that loading failed.
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise UserError(f"{misfit}: {lines[min(1, len(lines) - 1)] if lines else type(error).__name__}") from None
        wanted = set(get_peft_model_state_dict(model, adapter_name=f"a{number}", save_embedding_layers=False))
        stored = set(stored_tensors([folder / WEIGHTS]))
        for what, tensors in (("lacks", wanted - stored), ("has, and its config does not adapt,", stored - wanted)):
            if tensors:
                raise UserError(f"{misfit}: {WEIGHTS} {what} {len(tensors)} tensors, for example {min(tensors)}")
    result: PreTrainedModel | PeftModel = model.to(recipe.training.device).eval()
    return result


def adapter_switched_on(model: Any, number: int | None) -> AbstractContextManager[Any]:
    """The model of `load_adapted` with one adapter switched on; with None (or a model without adapters) the base alone."""
    if number is not None:
        model.set_adapter(f"a{number}")
        return nullcontext()
    return model.disable_adapter() if hasattr(model, "peft_config") else nullcontext()
