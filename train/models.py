"""The models of a recipe: its base and tokenizer, and LoRA adapters put on that base."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from core.errors import UserError
from core.files import read_object
from serve.checkpoints.lora import CONFIG, WEIGHTS, adapter_rank
from serve.checkpoints.model_card import read_training
from serve.checkpoints.places import resolve_checkpoint
from serve.checkpoints.tensors import stored_tensors
from train.examples import check_tokenizer, serves_alike
from train.recipes import Recipe
from train.run import say

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def base_folder(recipe: Recipe[Any]) -> str:
    """Where transformers finds the base: a checked local folder, or a hub id as it is."""
    name = recipe.model.model_name_or_path
    assert name is not None
    place = resolve_checkpoint(name, "model_name_or_path")
    config = Path(place) / "config.json"
    if config.is_file() and orjson.loads(config.read_bytes()).get("model_type") == "internlm2":
        raise UserError(
            f"model_name_or_path: {place} is in InternLM2's layout, which transformers no longer loads: "
            f"python -m serve convert-internlm2 {place} {place}-llama"
        )
    return place


def load_tokenizer(recipe: Recipe[Any]) -> PreTrainedTokenizerBase:
    """The base's tokenizer, with a padding token and ChatML's markers as single tokens."""
    from transformers import AutoTokenizer

    with _loading(recipe):
        tokenizer = AutoTokenizer.from_pretrained(base_folder(recipe), revision=recipe.model.model_revision)
    check_tokenizer(tokenizer, f"base {recipe.model.model_name_or_path}")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if not serves_alike(tokenizer):
        say("note: the base's own chat template prompts otherwise than ours; serve the adapter with chat_template in its spec")
    return tokenizer


def load_base(recipe: Recipe[Any]) -> PreTrainedModel:
    """The base model in the recipe's dtype, without remote code, from safetensors."""
    from transformers import AutoModelForCausalLM

    rate = recipe.data.attention_dropout
    with _loading(recipe):
        return AutoModelForCausalLM.from_pretrained(
            base_folder(recipe),
            revision=recipe.model.model_revision,
            dtype=recipe.model.dtype,
            attn_implementation=recipe.model.attn_implementation,
            use_safetensors=True,
            **({"attention_dropout": rate} if rate else {}),  # not every architecture's config knows it
        )


@contextmanager
def _loading(recipe: Recipe[Any]) -> Iterator[None]:
    """What the libraries raise for a base that is not there, or that needs a package which is not, as one line."""
    try:
        yield
    except (OSError, ImportError, ValueError, TypeError) as error:
        line = " ".join(str(error).split())
        raise UserError(f"model_name_or_path: {recipe.model.model_name_or_path} cannot be loaded: {line[:300]}") from error


def check_adapters(recipe: Recipe[Any], folders: Iterable[Path]) -> None:
    """Raise `UserError` for a folder that is no adapter, or half written, and for an adapter of the other task."""
    kinds = {"role": "a seeker simulator", "rank": "a ranker"}
    for folder in folders:
        adapter_rank(folder, "--adapter")
        training = read_training(folder)
        if training is not None and training.kind != recipe.task:
            raise UserError(f"--adapter: {folder} is {kinds[training.kind]}, not {kinds[recipe.task]}")


def load_adapters(base: PreTrainedModel, recipe: Recipe[Any], folders: Mapping[str, Path]) -> PeftModel:
    """The recipe's base with one or more checked adapters on it, the n-th under the name `an` (from 0).

    Says so when an adapter was trained on another base. Raises `UserError` when its modules or shapes are not the base's, and
    when its file lacks a tensor or has one too many (PEFT goes on with untrained values then).
    """
    from peft import PeftModel, get_peft_model_state_dict

    model: Any = base
    for number, (name, folder) in enumerate(folders.items()):
        training = read_training(folder)
        config = read_object(folder / CONFIG, "an adapter's config")
        trained_on = training.base if training else config.get("base_model_name_or_path")
        if trained_on not in (recipe.model.model_name_or_path, base_folder(recipe)):
            say(f"warning: {name}: {folder} was trained on {trained_on}, and is put on {recipe.model.model_name_or_path}")
        misfit = f"--adapter: base and adapter do not fit: {name}: {folder} on {recipe.model.model_name_or_path}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of missing keys: they are an error below
                if number == 0:
                    model = PeftModel.from_pretrained(base, str(folder), adapter_name="a0")
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
    return model.eval()


def adapter_switched_on(model: Any, number: int | None) -> AbstractContextManager[Any]:
    """The model of `load_adapters` with one of its adapters on; with None (or a model without adapters) the base alone."""
    if number is not None:
        model.set_adapter(f"a{number}")
        return nullcontext()
    return model.disable_adapter() if hasattr(model, "peft_config") else nullcontext()


def precision(recipe: Recipe[Any]) -> AbstractContextManager[Any]:
    """Autocast as the recipe trains: bf16, fp16, or none."""
    import torch

    dtype = torch.bfloat16 if recipe.training.bf16 else torch.float16 if recipe.training.fp16 else None
    return torch.autocast(recipe.training.device.type, dtype) if dtype else nullcontext()


def greedy_lines(
    model: Any, tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]], limit: int
) -> list[tuple[str, bool]]:
    """The greedy continuation of each prompt (token ids), and whether it ended within `limit` tokens. All in one batch."""
    import torch

    from train.batches import left_padded

    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    ends = sorted({end, tokenizer.eos_token_id} - {None})
    ids, mask = left_padded(prompts, end)
    with torch.no_grad():
        generated = model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=limit,
            do_sample=False,
            num_beams=1,
            repetition_penalty=1.0,  # some bases' generation config sets one, and it applies to greedy search, too
            eos_token_id=ends,
            pad_token_id=end,
        )
    lines = []
    for tokens in generated[:, ids.shape[1] :].tolist():
        stop = next((place for place, token in enumerate(tokens) if token in ends), None)
        lines.append((tokenizer.decode(tokens[:stop], skip_special_tokens=True).strip(), stop is not None))
    return lines
