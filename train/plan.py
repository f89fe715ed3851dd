"""`python -m train plan RECIPE`: what a recipe takes, before anything is downloaded: parameters, memory, steps, tokens, hours.

The arithmetic is that of `train.sizes`; here are the GPUs, the data, and the tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from core.errors import at, say
from core.machine import CARDS, TRAINS, CardName
from core.paths import IN_FILE
from core.records import Language, Message
from core.specs import EMBEDDED_PREFIX
from core.tables import Screen, Table, to_console
from core.yaml_files import load_yaml
from data_prep.cards import PUBLISHED, load_cards
from serve.checkpoints.places import on_hub
from train.example_files import read_rank, read_role
from train.examples import load_examples
from train.models import load_tokenizer
from train.prefix_tree import alike, tree
from train.recipes import Recipe, Task, hub_kernel, lora_config, may_read_trees, read_recipe
from train.sizes import GIB, STRATEGIES, architecture, count_steps, flops_per_token, memory, serving_memory, shape_of

LAUNCHES = 224  # operations that a layer with seven adapters starts in a pass, forward and backward
BYTES_A_TOKEN = 4  # UTF-8 bytes: English has about 4 letters a token, Chinese about 1.4 characters of 3 bytes
_WORD = re.compile(r"[a-zA-Z']+|\S")
MARKS = 5  # ChatML's tokens around one message
ROLE_EXAMPLES = int(14_000 * 0.95)  # ESC-Eval section 2.3, and our validation share of 5 %
# ESC-Eval section 3.4: 331 English cards × 14 models and 324 Chinese × 12 = 8,522 dialogues per dimension, split 7:1:2.
RANK_DIALOGUES: dict[Language, int] = {"en": PUBLISHED["en"] * 14, "zh": PUBLISHED["zh"] * 12}
MEAN_TOKENS: dict[Task, int] = {
    "role": 690,
    "rank": 1340,
}  # assumed without data: our role-play set, and a dialogue under the rubric (the other dimensions' questions add 6 %)
TURN_TOKENS = 100  # assumed of a line of the seeker's and of a reply of a supporter in training


def read_examples(recipe: Recipe[Any]) -> tuple[int, float, str, str]:
    """How many training examples, their mean tokens before cutting, and where each figure is from, in words.

    From the recipe's train_file when it is there (tokens: UTF-8 bytes / 4 and 5 a message), else the paper's. Where
    the ranker reads trees, an example is one tree, as it is a row in training; its share of tokens is that of words. A
    supporter's is one dialogue of a group on a card.
    """
    data, path, limit, seed = recipe.data, Path(recipe.data.train_file), recipe.data.max_train_examples, recipe.training.seed
    if recipe.task == "supporter":
        cards, origin = (
            (len(load_cards(path)), str(path)) if path.is_file() else (sum(PUBLISHED.values()), f"the paper's (no {path} here)")
        )
        cards, group = min(cards, limit or cards), recipe.training.num_generations
        mean, assumed = data.exchanges * 2 * TURN_TOKENS, f"assumed: {TURN_TOKENS} a turn"
        return cards * group, mean, f"{origin}: {cards:,} cards × {group}", assumed
    if not path.exists():
        count, origin = ROLE_EXAMPLES, "the paper's 14,000 × 0.95"
        if recipe.task == "rank":
            dialogues = sum(n for language, n in RANK_DIALOGUES.items() if data.language in ("", language))
            count, origin = dialogues * 7 // 10, f"the paper's {dialogues:,} dialogues per dimension × 0.7, one example each"
        return min(count, limit or count), MEAN_TOKENS[recipe.task], f"{origin} (no {path} here)", "assumed"
    groups: list[list[int]] = []
    if recipe.task == "role":
        prompts: list[Sequence[Message]] = [example.messages for example in read_role(path, limit, seed)]
    else:
        examples = read_rank(path, data.dimension, data.language, limit, seed)
        prompts = [(*example.prompt, *example.completion) for example in examples]
        if may_read_trees(recipe, examples):
            number: dict[str, int] = {}  # of a word; of a character in Chinese
            texts = ([word for message in prompt for word in _WORD.findall(message["content"])] for prompt in prompts)
            words = [[number.setdefault(word, len(number)) for word in text] for text in texts]
            groups = alike(words, [example.dialogue_id for example in examples])
    tokens = sum(len(m["content"].encode()) / BYTES_A_TOKEN + MARKS for prompt in prompts for m in prompt)
    origin = f"{path}: UTF-8 bytes / {BYTES_A_TOKEN}, + {MARKS} a message"
    if not groups or len(groups) == len(prompts):
        return len(prompts), tokens / len(prompts), str(path), origin
    left = sum(len(tree([words[n] for n in group]).ids) for group in groups) / sum(map(len, words))
    return len(groups), left * tokens / len(groups), f"{path}: {len(prompts):,} in trees", f"{origin}; what examples share once"


def refuse(recipe: Recipe[Any]) -> str:
    """Raise `UserError` for what training would refuse in the base's tokenizer and the examples, as far as they are here; what
    is not, in words."""
    from huggingface_hub import try_to_load_from_cache  # not in the base install, which has `plan --help`

    name, data = recipe.model.model_name_or_path or "", recipe.data
    cached = on_hub(name) and isinstance(try_to_load_from_cache(name, "tokenizer_config.json"), str)
    if not (cached or name.startswith(EMBEDDED_PREFIX) or Path(name).expanduser().is_dir()):
        return f"the base's tokenizer and the examples ({name} is not here)"
    tokenizer = load_tokenizer(recipe)
    if absent := [file for file in (data.train_file, data.valid_file) if not Path(file).exists()]:
        return f"the examples (no {absent[0]} here)"
    load_examples(recipe, tokenizer)
    return ""


def make_plan(recipe: Recipe[Any], gpu: CardName = "h100", gpus: int = 1) -> dict[str, Any]:
    """Everything that is printed, as JSON: parameters, bytes by part for each strategy, steps, tokens, hours.

    Hours assume that the share `TRAINS` of the GPUs' peak is reached. Raises `UserError` for recipes that vLLM could not serve,
    what `refuse` finds, and what `architecture` and `measure` refuse.
    """
    training, model = recipe.training, recipe.model
    lora = lora_config(model)
    unseen = refuse(recipe)
    config, known_from = architecture(model.model_name_or_path or "")
    shape = shape_of(recipe)
    card = CARDS[gpu]
    capacity, peak = card.gib, card.peak
    longest, supporter = config.max_position_embeddings, recipe.task == "supporter"
    if not supporter:
        longest = training.max_length or longest
    else:  # both sides' longest turns
        longest = int(min(recipe.data.exchanges * 2 * training.max_completion_length, longest))
    examples, mean, counted_in, lengths_from = read_examples(recipe)
    mean = min(mean, longest)
    packed = not supporter and training.packing
    lines = math.ceil(examples * mean / longest) if packed else examples  # rows of the trainer's table
    rows, accumulation = training.per_device_train_batch_size, training.gradient_accumulation_steps
    epochs = training.num_train_epochs
    steps = count_steps(lines, rows, accumulation, gpus, epochs, training.max_steps)
    batch = rows * accumulation * gpus
    # Whole epochs see each example once; max_steps fills its batches anew.
    seen = math.ceil(steps * batch * examples / lines if training.max_steps > 0 else examples * epochs)
    passes = math.ceil(seen * lines / examples / rows)
    checkpointing = bool(training.gradient_checkpointing)
    parts = {
        strategy: memory(shape, recipe.task, rows, longest, checkpointing, model.lora_dropout > 0, strategy, gpus)
        for strategy in STRATEGIES
    }
    flops = {n: float(seen) * n * flops_per_token(shape, n, checkpointing) for n in (mean, longest)}
    served = supporter and training.use_vllm and training.vllm_mode == "server"
    server = serving_memory(shape, batch, longest) if served else {}
    hours = {n: total / (gpus * peak * 1e12 * TRAINS) / 3600 for n, total in flops.items()}
    cost = "6 N a token, with gradient checkpointing" if checkpointing else "4 N a token, without gradient checkpointing"
    notes = [
        f"hours: ({cost}, + the adapter's and attention's) / (GPUs × {peak:g} TFLOP/s × {TRAINS:g} reached); without "
        "evaluations, padding and loading",
        "memory: at the longest examples; activations for sdpa or FlashAttention; overhead assumed",
        "trainable share: of base and adapter together",
    ]
    if unseen:
        notes.append(f"not looked at, as training will: {unseen}")
    if supporter:
        notes.append(
            "supporter: hours are of the training alone: sampling, the seeker's lines and the verdicts come beside them; the "
            "servers of seeker and judge take memory of their own"
        )
    if packed:
        notes.append(
            f"packing: {passes:,} passes with {examples * rows / lines:.1f} dialogues each in place of "
            f"{math.ceil(seen / rows):,} with {rows}; a pass starts about {shape.layers * LAUNCHES:,} operations on the GPU, "
            "however many tokens it has"
        )
    if kernel := hub_kernel(recipe):
        once = "; the ranker then reads a dialogue once a question, as it takes no mask" if "attn" in kernel else ""
        once = once if recipe.task == "rank" else ""
        notes.append(f"{kernel}: comes ready built from the hub, by the package kernels; not looked for here{once}")
    if recipe.file and load_yaml(recipe.file, "recipe").get("use_cpu"):
        notes.append("this recipe trains on CPU (use_cpu): memory and hours are what the GPU would take")
    return {
        "recipe": str(recipe.file),
        "task": recipe.task,
        "base": model.model_name_or_path,
        "architecture_from": known_from,
        "total_parameters": shape.total,
        "trainable_parameters": shape.trainable,
        "trainable_share": shape.trainable_share,
        "lora_rank": lora.r,
        "gpu": f"{card.label} {card.gigabytes} GB",
        "gpus": gpus,
        "gpu_memory_bytes": int(capacity * GIB),
        "memory_bytes": {strategy: {**part, "total": sum(part.values())} for strategy, part in parts.items()},
        "fits": {strategy: sum(part.values()) <= capacity * GIB for strategy, part in parts.items()},
        "server_memory_bytes": server and server | {"total": sum(server.values())},
        "examples": examples,
        "examples_from": counted_in,
        "rows": lines,
        "passes": passes,
        "epochs": seen / examples,
        "global_batch": batch,
        "steps": steps,
        "mean_tokens": mean,
        "mean_tokens_from": lengths_from,
        "max_tokens": longest,
        "tokens": round(seen * mean),
        "tokens_at_most": seen * longest,
        "flops": flops[mean],
        "mfu": TRAINS,
        "hours": hours[mean],
        "hours_at_most": hours[longest],
        "notes": notes,
    }


def tables(plan: dict[str, Any]) -> list[Table]:
    """A plan as two tables: what it comes to, and memory by part (GiB a GPU)."""
    packed = f", packed into {plan['rows']:,} rows" if plan["rows"] < plan["examples"] else ""
    whole = {
        "base": f"{plan['base']} ({plan['architecture_from']})",
        "total parameters": f"{plan['total_parameters']:,}",
        "trainable parameters": (f"{plan['trainable_parameters']:,} ({plan['trainable_share']:.2%}, rank {plan['lora_rank']})"),
        "examples": f"{plan['examples']:,} ({plan['examples_from']})" + packed,
        "epochs": f"{plan['epochs']:.4g}",
        "global batch": f"{plan['global_batch']} {'examples' if not packed else 'rows'} on {plan['gpus']} GPU(s)",
        "steps": f"{plan['steps']:,}",
        "tokens an example": (
            f"{plan['mean_tokens']:,.0f} expected ({plan['mean_tokens_from']}), {plan['max_tokens']:,} at most"
        ),
        "tokens": f"{plan['tokens']:,} expected, {plan['tokens_at_most']:,} at most",
        "hours": f"{plan['hours']:.3g} expected, {plan['hours_at_most']:.3g} at most, on {plan['gpus']} × {plan['gpu']}",
    }
    memory = plan["memory_bytes"]
    limit = plan["gpu_memory_bytes"] / GIB
    server = plan["server_memory_bytes"]
    served = f"GiB on the GPU of the policy's vLLM server, {plan['global_batch']} dialogues at once"
    servers = [Table("server", served, ("part", "GiB"), tuple((part, size / GIB) for part, size in server.items()))]
    return [
        Table("plan", f"Plan of {plan['recipe']} ({plan['task']})", ("", "value"), tuple(whole.items())),
        Table(
            "memory",
            f"GiB on each of {plan['gpus']} × {plan['gpu']} ({limit:g} GiB usable)",
            ("part", *STRATEGIES.values()),
            (
                *((part, *(memory[strategy][part] / GIB for strategy in STRATEGIES)) for part in memory["ddp"]),
                ("fits", *("yes" if plan["fits"][strategy] else "no" for strategy in STRATEGIES)),
            ),
            notes=tuple(plan["notes"]),
        ),
        *(servers if server else []),
    ]


def plan(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A recipe: a YAML file of configs/train."), IN_FILE],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (bytes, not GiB).")] = False,
    gpu: Annotated[CardName, typer.Option(help="GPU that memory and hours are for.")] = "h100",
    gpus: Annotated[int, typer.Option(min=1, help="How many of them.")] = 1,
) -> None:
    """What a recipe takes: parameters, memory by part and GPU, steps, tokens, hours. Nothing is loaded or downloaded.

    The recipe's settings can be overridden as for training. A recipe whose adapter vLLM could not serve is refused. Example:

    python -m train plan configs/train/esc_role_qwen1.5_14b.yaml --gpus 8 --lora_r 32
    """
    # A plan for GPUs is made without one, where the trainer's settings refuse bf16 unless they hear of a CPU.
    recipe = read_recipe(config, [*context.args, "--use_cpu", "true"])
    with at(config):
        figures = make_plan(recipe, gpu, gpus)
    if as_json:
        say(orjson.dumps(figures, option=orjson.OPT_INDENT_2).decode())
        return
    console = Screen()
    for table in tables(figures):
        to_console(table, console)
