"""`python -m train plan RECIPE`: what a training needs, told before anything is downloaded: parameters, memory, steps, hours.

The arithmetic is that of `train.sizes`; here are the GPUs, the data, and the tables.
"""

import math
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from core.errors import at, say
from core.machine import CARDS, TRAINS, CardName
from core.paths import IN_FILE
from core.records import Language
from core.settings import load_yaml
from core.specs import EMBEDDED_PREFIX
from core.tables import Screen, Table, to_console
from data_prep.cards import PUBLISHED, load_cards
from serve.checkpoints.places import cached, on_hub
from serve.sizes import GIB
from train.example_files import read_rank, read_role
from train.examples import load_examples
from train.models import load_tokenizer
from train.recipes import Recipe, Task, hub_kernel, lora_config, may_read_trees, read_recipe
from train.sizes import OVERHEAD, STRATEGIES, architecture, count_steps, flops_per_token, memory, shape_of

BYTES_A_TOKEN = 4  # UTF-8 bytes: English has about 4 letters a token, Chinese about 1.4 characters of 3 bytes
MARKS = 5  # ChatML's tokens around one message
ROLE_EXAMPLES = int(14_000 * 0.95)  # ESC-Eval section 2.3, and our validation share of 5 %
# ESC-Eval section 3.4: 331 English cards × 14 models and 324 Chinese × 12 = 8,522 dialogues per dimension, split 7:1:2.
RANK_DIALOGUES: dict[Language, int] = {"en": PUBLISHED["en"] * 14, "zh": PUBLISHED["zh"] * 12}
# Assumed without data: our role-play set; a dialogue under the rubric (the other dimensions' questions add 6 %).
MEAN_TOKENS: dict[Task, int] = {"role": 690, "rank": 1340}
TURN_TOKENS = 100  # assumed of a line of the seeker's and of a reply of a supporter in training


def read_examples(recipe: Recipe[Any]) -> tuple[int, float, str, str]:
    """How many training examples, their mean tokens before cutting, and where each figure is from, in words.

    From the recipe's train_file when it is there (tokens: UTF-8 bytes / 4 and 5 per message), else the paper's. Where the
    ranker reads trees, an example is the tree of a dialogue, as it is a row in training, and what its questions share counts
    once. A supporter's is one dialogue of a group on a card.
    """
    data, path, limit, seed = recipe.data, Path(recipe.data.train_file), recipe.data.max_train_examples, recipe.training.seed
    if recipe.task == "supporter":
        cards, origin = (
            (len(load_cards(path)), path) if path.is_file() else (sum(PUBLISHED.values()), f"the paper's (no {path} here)")
        )
        cards, group = min(cards, limit or cards), recipe.training.num_generations
        mean, assumed = data.exchanges * 2 * TURN_TOKENS, f"assumed: {TURN_TOKENS} per turn"
        return cards * group, mean, f"{origin}: {cards:,} cards × {group}", assumed
    if not path.exists():
        count, origin = ROLE_EXAMPLES, "the paper's 14,000 × 0.95"
        if recipe.task == "rank":
            dialogues = sum(n for language, n in RANK_DIALOGUES.items() if data.language in ("", language))
            count, origin = dialogues * 7 // 10, f"the paper's {dialogues:,} dialogues per dimension × 0.7, one example each"
        return min(count, limit or count), MEAN_TOKENS[recipe.task], f"{origin} (no {path} here)", "assumed"
    from train.steps import shared  # loads torch, which `--help` does not need

    rows = defaultdict[str, list[bytes]](list)
    if recipe.task == "role":
        examples = [(str(number), example.messages) for number, example in enumerate(read_role(path, limit, seed))]
    else:
        ranked = read_rank(path, data.dimension, data.language, limit, seed)
        names = [row.dialogue_id if may_read_trees(recipe, ranked) else row.id for row in ranked]
        examples = [(name, (*row.prompt, *row.completion)) for name, row in zip(names, ranked, strict=True)]
    marks = bytes(MARKS * BYTES_A_TOKEN)
    for row, messages in examples:
        rows[row].append(b"".join(marks + message["content"].encode() for message in messages))
    read = sum(sum(map(len, texts)) - (len(texts) - 1) * shared(min(texts), max(texts)) for texts in rows.values())
    origin = f"{path}: {len(examples):,} in trees" if len(rows) < len(examples) else str(path)
    return len(rows), read / BYTES_A_TOKEN / len(rows), origin, f"UTF-8 bytes / {BYTES_A_TOKEN}, + {MARKS} per message"


def refuse(recipe: Recipe[Any]) -> str:
    """Raise `UserError` for what training would refuse; returns, in words, what is not on this machine and so not checked."""
    name, data = recipe.model.model_name_or_path or "", recipe.data
    here = on_hub(name) and cached(name, "tokenizer_config.json", None)
    if not (here or name.startswith(EMBEDDED_PREFIX) or Path(name).expanduser().is_dir()):
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
    training, model, card, supporter = recipe.training, recipe.model, CARDS[gpu], recipe.task == "supporter"
    lora, unchecked, shape = lora_config(model), refuse(recipe), shape_of(recipe)
    config, origin = architecture(model.model_name_or_path or "")
    longest = config.max_position_embeddings
    if supporter:  # both sides' longest turns
        longest = int(min(recipe.data.exchanges * 2 * training.max_completion_length, longest))
    else:
        longest = training.max_length or longest
    examples, mean, examples_from, tokens_from = read_examples(recipe)
    mean = min(mean, longest)
    packed = not supporter and training.packing
    lines = math.ceil(examples * mean / longest) if packed else examples  # rows of the trainer's table
    rows, accumulation = training.per_device_train_batch_size, training.gradient_accumulation_steps
    steps = count_steps(lines, rows, accumulation, gpus, training.num_train_epochs, training.max_steps)
    batch = rows * accumulation * gpus
    # Whole epochs see each example once; max_steps fills its batches anew.
    seen = math.ceil(steps * batch * examples / lines if training.max_steps > 0 else examples * training.num_train_epochs)
    passes = math.ceil(seen * lines / examples / rows)
    checkpointing = bool(training.gradient_checkpointing)
    parts = {
        strategy: memory(shape, recipe.task, rows, longest, checkpointing, model.lora_dropout > 0, strategy, gpus)
        for strategy in STRATEGIES
    }
    server = dict[str, int]()
    if supporter and training.use_vllm and training.vllm_mode == "server":
        cache = batch * longest * 2 * shape.layers * shape.keys * shape.weight_bytes
        weights = shape.total * shape.weight_bytes  # the adapter is merged into them at each step
        server = {"weights": weights, "cache": cache, "overhead": OVERHEAD, "total": weights + cache + OVERHEAD}
    flops = {n: float(seen) * n * flops_per_token(shape, n, checkpointing) for n in (mean, longest)}
    hours = {n: total / (gpus * card.peak * 1e12 * TRAINS) / 3600 for n, total in flops.items()}
    cost = "6 N per token, with gradient checkpointing" if checkpointing else "4 N per token, without gradient checkpointing"
    notes = [
        f"hours: ({cost}, + the adapter's and attention's) / (GPUs × {card.peak:g} TFLOP/s × {TRAINS:g} reached); without "
        "evaluations, padding and loading",
        "memory: at the longest examples; activations for sdpa or FlashAttention; overhead assumed",
    ]
    if unchecked:
        notes.append(f"not checked, as training will: {unchecked}")
    if supporter:
        notes.append("the training alone: sampling, the seeker's lines and the verdicts, and the servers for these come on top")
    if packed:
        notes.append(
            f"packing: {passes:,} passes with {examples * rows / lines:.1f} dialogues each in place of "
            f"{math.ceil(seen / rows):,} with {rows}"
        )
    if kernel := hub_kernel(recipe):
        once = "; the ranker then reads a dialogue once per question, as it takes no mask" if "attn" in kernel else ""
        notes.append(f"{kernel}: comes from the hub, by the package kernels{once if recipe.task == 'rank' else ''}")
    if recipe.file and load_yaml(recipe.file, "recipe").get("use_cpu"):
        notes.append("this recipe trains on a CPU (use_cpu): memory and hours are what the GPU would take")
    return {
        "recipe": str(recipe.file),
        "task": recipe.task,
        "base": model.model_name_or_path,
        "architecture_from": origin,
        "total_parameters": shape.total,
        "trainable_parameters": shape.trainable,
        "trainable_share": shape.trainable_share,
        "lora_rank": lora.r,
        "gpu": f"{card.label} {card.gigabytes} GB",
        "gpus": gpus,
        "gpu_memory_bytes": int(card.gib * GIB),
        "memory_bytes": {strategy: {**part, "total": sum(part.values())} for strategy, part in parts.items()},
        "fits": {strategy: sum(part.values()) <= card.gib * GIB for strategy, part in parts.items()},
        "server_memory_bytes": server,
        "examples": examples,
        "examples_from": examples_from,
        "rows": lines,
        "passes": passes,
        "epochs": seen / examples,
        "global_batch": batch,
        "steps": steps,
        "mean_tokens": mean,
        "mean_tokens_from": tokens_from,
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
    """A plan as tables: the totals, and memory by part (GiB per GPU)."""
    packed = f", packed into {plan['rows']:,} rows" if plan["rows"] < plan["examples"] else ""
    whole = {
        "base": f"{plan['base']} ({plan['architecture_from']})",
        "total parameters": f"{plan['total_parameters']:,}",
        "trainable parameters": (f"{plan['trainable_parameters']:,} ({plan['trainable_share']:.2%}, rank {plan['lora_rank']})"),
        "examples": f"{plan['examples']:,} ({plan['examples_from']})" + packed,
        "epochs": f"{plan['epochs']:.4g}",
        "global batch": f"{plan['global_batch']} {'examples' if not packed else 'rows'} on {plan['gpus']} GPU(s)",
        "steps": f"{plan['steps']:,}",
        "tokens per example": f"{plan['mean_tokens']:,.0f} ({plan['mean_tokens_from']}), {plan['max_tokens']:,} at most",
        "tokens": f"{plan['tokens']:,} expected, {plan['tokens_at_most']:,} at most",
        "hours": f"{plan['hours']:.3g} expected, {plan['hours_at_most']:.3g} at most, on {plan['gpus']} × {plan['gpu']}",
    }
    memory, server = plan["memory_bytes"], plan["server_memory_bytes"]
    rows = [(part, *(memory[strategy][part] / GIB for strategy in STRATEGIES)) for part in memory["ddp"]]
    fits = ("fits", *("yes" if plan["fits"][strategy] else "no" for strategy in STRATEGIES))
    title = f"GiB on each of {plan['gpus']} × {plan['gpu']} ({plan['gpu_memory_bytes'] / GIB:g} GiB usable)"
    served = f"GiB on the GPU of the policy's vLLM server, {plan['global_batch']} dialogues at once"
    return [
        Table("plan", f"Plan of {plan['recipe']} ({plan['task']})", ("", "value"), tuple(whole.items())),
        Table("memory", title, ("part", *STRATEGIES.values()), (*rows, fits), notes=tuple(plan["notes"])),
        *([Table("server", served, ("part", "GiB"), tuple((part, n / GIB) for part, n in server.items()))] if server else []),
    ]


def plan(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A recipe: a YAML file of configs/train."), IN_FILE],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (bytes, not GiB).")] = False,
    gpu: Annotated[CardName, typer.Option(help="GPU that memory and hours are for.")] = "h100",
    gpus: Annotated[int, typer.Option(min=1, help="How many of them.")] = 1,
) -> None:
    """Show what a training needs: parameters, memory by part and GPU, steps, tokens, hours. Nothing is loaded or downloaded.

    The recipe's settings can be overridden as for training. A recipe whose adapter vLLM could not serve is refused. Example:

    python -m train plan configs/train/esc_role_qwen1.5_14b.yaml --gpus 8 --lora_r 32
    """
    # Machines without a GPU plan for one, too; there the trainer refuses bf16 unless use_cpu is set.
    recipe = read_recipe(config, [*context.args, "--use_cpu", "true"])
    with at(config):
        figures = make_plan(recipe, gpu, gpus)
    if as_json:
        say(orjson.dumps(figures, option=orjson.OPT_INDENT_2).decode())
        return
    console = Screen()
    for table in tables(figures):
        to_console(table, console)
