"""A recipe at full shape without its base: random weights of the real widths, in as many layers as a GPU has room for, and rows
of the recipe's full length."""

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.files import CONFIGS, write_json, write_jsonl, write_text
from core.records import Message, Record
from core.settings import load_yaml
from data_prep.role_play.examples import RoleExample
from data_prep.scores.rank_sft import RankExample
from serve.checkpoints.places import materialise
from serve.sizes import ARCHITECTURES

TINY: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "vocab_size": 49152, "max_position_embeddings": 512, "dtype": "float32"}


@dataclass(frozen=True)
class Recipe:
    """A recipe of configs/train, by its task."""

    task: str
    file: Path
    base: str
    """As configs/serve/architectures.yaml names it."""
    tiny: bool = False

    @property
    def max_length(self) -> int:
        return 256 if self.tiny else int(load_yaml(self.file, "recipe")["max_length"])

    @property
    def rows(self) -> int:
        return int(load_yaml(self.file, "recipe")["per_device_train_batch_size"])

    def architecture(self, layers: int | None = None) -> dict[str, Any]:
        """The base's config.json, with so many layers (None: all)."""
        given = load_yaml(ARCHITECTURES, "architectures")[self.base] | (TINY if self.tiny else {})
        tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}  # of the embedded model's tokenizer
        return given | tokens | ({"num_hidden_layers": layers} if layers else {})


RECIPES = (
    Recipe("role", CONFIGS / "train" / "esc_role_qwen1.5_14b.yaml", "Qwen/Qwen1.5-14B-Chat"),
    Recipe("rank", CONFIGS / "train" / "esc_rank_internlm2_7b.yaml", "internlm/internlm2-chat-7b"),
)


def layers_that_fit(total: Callable[[int], int], room: int, most: int) -> int:
    """The most layers whose planned memory is within `room` bytes, 0 where not even one is; `total` plans for so many, and
    grows evenly from layer to layer."""
    one = total(1)
    each = total(2) - one
    return 0 if one > room else min(most, 1 + math.floor((room - one) / each))


def write_config(folder: Path, architecture: Mapping[str, Any]) -> None:
    """A folder with a config.json, the embedded model's tokenizer and one number for weights: all that a plan needs."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig

    AutoConfig.for_model(**architecture).save_pretrained(folder)
    save_file({"number": torch.zeros(1)}, folder / "model-rest.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(materialise() / name, folder / name)


def write_checkpoint(folder: Path, architecture: Mapping[str, Any]) -> int:
    """A whole checkpoint of random weights, a file a layer; its bytes. The tokenizer is the embedded model's.

    Every matrix repeats the same million random numbers: neither time nor memory depends on them, and drawing billions takes
    minutes.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    write_config(folder, architecture)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**architecture))
    dtype = getattr(torch, architecture["dtype"])
    noise = (torch.randn(2**20, generator=torch.Generator().manual_seed(0)) * 0.02).to(dtype)
    files: dict[str, dict[str, torch.Size]] = {}
    for name, weight in model.state_dict().items():
        place = name.split(".layers.")[1].split(".")[0] if ".layers." in name else "rest"
        files.setdefault(f"model-{place}.safetensors", {})[name] = weight.shape
    total = 0
    for file, shapes in files.items():
        tensors = {}
        for name, shape in shapes.items():
            count = shape.numel()
            is_norm = len(shape) == 1 and name.endswith("weight")
            repeated = noise.repeat(-(-count // len(noise)))[:count].clone()  # safetensors wants no ends left over
            tensors[name] = torch.ones(shape, dtype=dtype) if is_norm else repeated.view(shape)
        save_file(tensors, folder / file, {"format": "pt"})
        total += sum(tensor.nbytes for tensor in tensors.values())
    index = {name: file for file, shapes in files.items() for name in shapes}
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})
    return total


def write_rows(folder: Path, task: str, count: int, length: int) -> float:
    """train.jsonl and valid.jsonl (and the rubric, for a ranker) of examples that fill `length` tokens of the embedded model's
    tokenizer; the mean number of tokens that training reads of one."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(materialise())

    def size(messages: list[Message]) -> int:
        return len(tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"])

    make = _role if task == "role" else _rank
    rows, sizes = [], []
    for example, messages in make(count + 2, length, size):
        rows.append(example)
        sizes.append(min(length, size(messages)))
    write_jsonl(folder / "train.jsonl", rows[:count])
    write_jsonl(folder / "valid.jsonl", rows[count:])
    if task == "rank":
        shutil.copy(CONFIGS / "rubrics" / "esc_eval.yaml", folder / "rubric.yaml")
    return sum(sizes[:count]) / count


Made = Iterator[tuple[Record, list[Message]]]


def _role(count: int, length: int, size: Callable[[list[Message]], int]) -> Made:
    """Dialogues that are longer than `length`, which training cuts there."""
    line = "Tired. It is on my mind from the morning on, and nobody at home wants to hear of it."
    exchange: list[Message] = [{"role": "user", "content": "How have you been?"}, {"role": "assistant", "content": line}]
    for number in range(count):
        messages: list[Message] = [{"role": "system", "content": f"You are person {number}, who worries about work."}]
        need = length - size(messages)
        messages += exchange * (need // (size([*messages, *exchange]) - size(messages)) + 1)
        given: dict[str, Any] = {"id": f"r{number}", "language": "en", "kind": "support", "source": "gpu-check"}
        given |= {"source_id": str(number)}
        given |= {"turns": len(messages) - 1, "tokens": size(messages), "messages": messages}
        yield RoleExample.model_validate(given), messages


def _rank(count: int, length: int, size: Callable[[list[Message]], int]) -> Made:
    """One question each about a dialogue of its own that just fits: longer ones are left out of training."""
    for number in range(count):
        label = number % 5
        completion: list[Message] = [{"role": "assistant", "content": str(label)}]

        def prompt(words: int, number: int = number) -> list[Message]:
            text = f"Dialogue {number}. Seeker: I am low." + " again" * words + " Empathy:"
            return [{"role": "system", "content": "Rate the supporter."}, {"role": "user", "content": text}]

        words = length - size([*prompt(0), *completion]) - 1
        words -= max(0, size([*prompt(words), *completion]) - length)
        given: dict[str, Any] = {
            "id": f"k{number}/empathy",
            "language": "en",
            "dialogue_id": f"k{number}",
            "group": f"g{number}",
        }
        given |= {"dimension": "empathy", "labels": {"empathy": label}, "target": {"empathy": float(label)}}
        given |= {"prompt": prompt(words), "completion": completion}
        yield RankExample.model_validate(given), [*prompt(words), *completion]


def write_recipe(path: Path, recipe: Recipe, base: Path, data: Path, out: Path, steps: int, accumulation: int) -> None:
    """The recipe's file with this base, these rows and so few steps of smaller batches; all else as it stands there."""
    import yaml

    given = load_yaml(recipe.file, "recipe")
    for name in ("num_train_epochs", "metric_for_best_model", "greater_is_better", "eval_steps", "save_steps"):
        given.pop(name, None)
    given |= {"model_name_or_path": str(base), "train_file": str(data / "train.jsonl"), "valid_file": str(data / "valid.jsonl")}
    given |= {"output_dir": str(out), "max_steps": steps, "gradient_accumulation_steps": accumulation, "logging_steps": 1}
    given |= {"per_device_eval_batch_size": 1, "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
    given |= {"report_to": "none", "max_length": recipe.max_length}
    if recipe.tiny:
        given |= {"dtype": "float32", "bf16": False, "use_cpu": True, "lora_r": 8}
    write_text(path, yaml.safe_dump(given, sort_keys=False))
