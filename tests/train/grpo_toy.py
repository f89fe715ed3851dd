"""The smallest training of a supporter: a random model that spells, a scripted seeker, and a judge that counts one letter.

The reward is the share of the policy's letters that are the wanted one, in the seven digits of a joint verdict: it is known to
be reachable (1), and random letters are rewarded with almost nothing. `python -m tests.bench reward-curve` draws three seeds.
"""

import re
from pathlib import Path
from typing import Any

import orjson

from core.files import write_json, write_jsonl
from core.records import RoleCard
from tests.endpoint import Answer

WANTED = "k"
MARKS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
LETTERS = (*"abcdefghijklmnopqrstuvwxyz.", "Ġ", "Ċ")  # the last two: how byte-level tokenizers write a blank and a line end
DIGITS = 7


def toy_checkpoint(folder: Path) -> Path:
    """A random Qwen2 of one layer, with one token a letter."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    from train.examples import TEMPLATES, Template, unmarked

    vocabulary = {token: number for number, token in enumerate((*MARKS, *LETTERS))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
    )
    fast.chat_template = unmarked(Template((TEMPLATES / "chatml.jinja").read_text(), 1))
    fast.save_pretrained(folder)
    torch.manual_seed(1)
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.12,  # with the usual 0.02 no logit can grow large enough for one letter to be sure
        eos_token_id=vocabulary["<|im_end|>"],
        pad_token_id=vocabulary["<|endoftext|>"],
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def toy_cards(folder: Path, train: int = 8, valid: int = 4) -> dict[str, str]:
    """Role cards as a recipe names them."""
    for name, count in (("train", train), ("valid", valid)):
        cards = [
            RoleCard(id=f"{name}-{n}", language="en", problem=f"I worry, {n} times.", source="toy", card_method="written")
            for n in range(count)
        ]
        write_jsonl(folder / f"{name}.jsonl", cards)
    return {"train_file": str(folder / "train.jsonl"), "valid_file": str(folder / "valid.jsonl")}


def share(transcript: str) -> float:
    """Which share of the supporter's letters is the wanted one, the greeting aside."""
    said = re.findall(r"^\[\d+\] Supporter: ((?:.|\n    )*)$", transcript, re.MULTILINE)[1:]
    letters = re.sub(r"\s", "", "".join(said))
    return letters.count(WANTED) / len(letters) if letters else 0.0


def behave(body: dict[str, Any], count: int) -> Answer:
    """The seeker says one of two lines; the judge gives 28 points by the share."""
    if body["model"] == "seeker":
        return Answer("i lie awake." if len(body["messages"]) < 4 else "it is the work.")
    points = round(share(body["messages"][-1]["content"]) * 4 * DIGITS)
    return Answer("".join(str(min(4, max(0, points - 4 * digit))) for digit in range(DIGITS)))


def toy_recipe(folder: Path, url: str, seed: int, steps: int, **changes: Any) -> Path:
    """A recipe of so many steps of 16 dialogues, in groups of 8."""
    base = folder / "base"
    if not base.exists():
        toy_checkpoint(base)
    recipe: dict[str, Any] = {
        "task": "supporter",
        "model_name_or_path": str(base),
        "dtype": "float32",
        "use_peft": True,
        "lora_r": 8,
        "lora_alpha": 32,
        "lora_target_modules": "all-linear",
        **toy_cards(folder),
        "seeker": f"seeker@{url}",
        "judge": f"judge@{url}",
        "exchanges": 2,
        "length_cost": 0.1,
        "output_dir": str(folder / f"out-{seed}"),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "num_generations": 8,
        "num_generations_eval": 2,
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 8,
        "max_completion_length": 8,
        "max_steps": steps,
        "learning_rate": 0.02,
        "lr_scheduler_type": "constant",
        "beta": 0.0,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": 2,
        "save_total_limit": 1,
        "report_to": "none",
        "seed": seed,
        **changes,
    }
    path = folder / f"recipe-{seed}.yaml"
    path.write_bytes(orjson.dumps(recipe))  # JSON is YAML
    return path


def rewards(out: Path) -> list[float]:
    """The mean reward of each step, from the last checkpoint."""
    last = max(out.glob("checkpoint-*/trainer_state.json"), key=lambda path: int(path.parent.name.split("-")[1]))
    history = orjson.loads(last.read_bytes())["log_history"]
    return [entry["reward"] for entry in history if "reward" in entry]


def train_toy(folder: Path, url: str, seed: int, steps: int, **changes: Any) -> list[float]:
    """Train in this process; the mean reward of each step."""
    from train import esc_supporter
    from train.recipes import parse_recipe

    recipe = toy_recipe(folder, url, seed, steps, **changes)
    esc_supporter.main(parse_recipe("supporter", ["--config", str(recipe)]))
    figures = rewards(folder / f"out-{seed}")
    write_json(folder / f"rewards-{seed}.json", figures)
    return figures
