"""Recipes: a YAML file in configs/train with all settings of a training, which the command line overrides: ours
(`RoleArguments`, `RankArguments` or `SupporterArguments`), TRL's `ModelConfig` (base, LoRA), and TRL's `SFTConfig` or, for the
supporter, `GRPOConfig` (all of transformers' `TrainingArguments`)."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, get_args, get_type_hints

from core.errors import UserError, near
from core.files import CONFIGS
from core.machine import check_gpu
from core.settings import load_yaml
from serve.checkpoints.internlm2 import QKV
from serve.checkpoints.lora import LORA_RANKS, more_than_plain

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel
    from trl import ModelConfig

    from data_prep.scores.rank_sft import RankExample

Task = Literal["role", "rank", "supporter"]
D = TypeVar("D")


def documented(kind: type[D]) -> type[D]:
    """The dataclass with every field's docstring as its `--help`, where TRL's parser looks for it."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(kind)).body if isinstance(node, ast.ClassDef))
    for node, after in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            setting = kind.__dataclass_fields__[ast.unparse(node.target)]  # type: ignore[attr-defined]
            setting.metadata = {**setting.metadata, "help": inspect.cleandoc(str(after.value.value))}
    return kind


@documented
@dataclass
class DataArguments:
    """The data settings of all scripts. Files come from `python -m data_prep role-sft` or `rank-sft`, or are role cards."""

    task: str = ""
    """What this recipe trains: role (esc_role.py), rank (esc_rank.py) or supporter (esc_supporter.py)."""
    train_file: str = ""
    """Training examples: JSONL, Parquet, one part of a folder that `datasets` saved, or OWNER/NAME/SPLIT on the hub."""
    valid_file: str = ""
    """Validation examples, of other dialogues, in the same forms."""
    licence: str = ""
    """Licence of the adapter, for its model card."""
    max_train_examples: int = 0
    """Train on this many examples (ranker: dialogues) drawn by the seed. 0: all."""
    max_valid_examples: int = 0
    """Validate on this many examples (ranker: dialogues) drawn by seed 0. 0: all."""


@documented
@dataclass
class RoleArguments(DataArguments):
    """Settings of the simulator (ESC-Role, ESC-Eval section 2.3)."""


@documented
@dataclass
class RankArguments(DataArguments):
    """Settings of the ranker (ESC-RANK, ESC-Eval section 3.4)."""

    loss: Literal["cross_entropy", "ordinal"] = "cross_entropy"
    """cross_entropy on the answer's tokens, or ordinal: with the squared earth mover's distance over the scale added."""
    ordinal_weight: float = 1.0
    """Weight of the ordinal term."""
    loss_over: Literal["vocabulary", "scale"] = "vocabulary"
    """vocabulary: a score's probability is its share among all tokens, so that the ranker also learns to answer in digits;
    scale: its share among the scale's tokens alone, as in constrained decoding."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced: a score's loss is weighted by how rare it is for its language and dimension in training (mean weight 1)."""
    dimension: str = ""
    """Only examples of this dimension (one adapter per dimension)."""
    fused_qkv: bool = False
    """q_proj, k_proj and v_proj of a layer learn a common A, like a LoRA on InternLM2's wqkv, which is one matrix."""
    language: Literal["", "en", "zh"] = ""
    """Only examples in this language, en or zh (one adapter per language)."""


@documented
@dataclass
class SupporterArguments(DataArguments):
    """Settings of a supporter that learns from the ranker's scores of its dialogues with a seeker (GRPO)."""

    seeker: str = ""
    """The model that plays the seeker, served elsewhere: NAME@URL, or a spec with an endpoint."""
    judge: str = ""
    """The model that scores, served elsewhere."""
    rubric: str = "esc_eval"
    """The rubric: a name in configs/rubrics, or a file."""
    method: Literal["joint", "per_dimension", "json"] = "joint"
    """The judge's method."""
    exchanges: int = 5
    """The most exchanges of a dialogue."""
    free_characters: float = 600.0
    """The mean length of replies, in characters, that costs nothing; judges reward length."""
    length_cost: float = 0.1
    """The cost of each further `free_characters`, of a reward from 0 to 1. 0: length is free."""


UNTRAINED = "untrained"  # the base's name beside its adapters
# Attention in transformers itself, or with the package flash-attn. Prebuilt kernels on the hub are OWNER/NAME.
ATTENTION = ("sdpa", "eager", "flex_attention", "flash_attention_2", "flash_attention_3", "flash_attention_4")
# Those that take an arbitrary mask, unlike FlashAttention.
MASKED_ATTENTION = (None, "sdpa", "eager")
# Settings of places and logging, which do not affect the weights; the trainer resolves some of them for its machine.
NOT_SETTINGS = {
    *("output_dir", "logging_dir", "run_name", "project", "report_to", "disable_tqdm"),
    *("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
    *("resume_from_checkpoint", "local_rank", "hub_token"),
}
# Settings of the libraries that would do nothing here, or not what they say, by the reason for refusing them.
IDLE = {
    "examples are tokenised here, in our own chat template": (
        *("chat_template_path", "eos_token", "pad_token", "dataset_text_field", "dataset_kwargs", "dataset_num_proc"),
        *("completion_only_loss", "assistant_only_loss", "label_names", "remove_unused_columns"),
    ),
    "a dialogue that is too long is cut at its end (the ranker leaves it out)": ("truncation_mode",),
    "the seed and the epoch determine the order of the examples": ("shuffle_dataset", "length_column_name"),
    "the base's own settings apply": ("router_aux_loss_coef", "lora_task_type"),
    "every example is trained on, and figures cover all of them": (
        *("dataloader_drop_last", "prediction_loss_only", "batch_eval_metrics", "eval_do_concat_batches"),
        *("include_for_metrics", "do_train", "do_predict"),
    ),
    "an adapter is published with its model card, by `esc-eval push`": (
        *("push_to_hub", "hub_always_push", "hub_model_id", "hub_revision", "hub_strategy"),
        "trackio_static_space_id",
    ),
    "a base is quantised to 4 bits or not at all, in one piece": ("load_in_8bit", "bnb_4bit_quant_storage"),
}
IDLE_FOR_RANKER = {
    "the ranker has a loss of its own": ("loss_type", "label_smoothing_factor"),
    "it reads one dialogue per row": ("packing", "padding_free", "packing_strategy", "eval_packing", "pad_to_multiple_of"),
}
# A training with 0 or less of these ends in a traceback, trains nothing, or makes its model worse.
ABOVE_ZERO = (
    *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "num_train_epochs"),
    *("learning_rate", "lora_alpha", "max_length", "save_steps"),
)
A = TypeVar("A", bound=DataArguments)
ARGUMENTS: dict[Task, type[DataArguments]] = {"role": RoleArguments, "rank": RankArguments, "supporter": SupporterArguments}


def training_config(task: Task) -> Any:
    """The class of TRL's settings of a task's trainer."""
    from trl import GRPOConfig, SFTConfig

    return GRPOConfig if task == "supporter" else SFTConfig


@dataclass
class Recipe(Generic[A]):
    """A parsed and checked recipe."""

    task: Task
    data: A
    training: Any
    """TRL's `SFTConfig`, or `GRPOConfig` for the supporter."""
    model: ModelConfig
    file: Path | None
    """None if everything came from the command line."""
    overrides: tuple[str, ...] = ()
    """The command line's arguments, without the file and `NOT_SETTINGS`."""

    def settings(self) -> dict[str, Any]:
        """The settings that determine the weights: ours, and those of TRL that are in the file or not at their defaults."""
        from trl import ModelConfig

        named = _mapping(self.file) if self.file else {}
        chosen: dict[str, Any] = {f.name: getattr(self.data, f.name) for f in fields(self.data) if f.name not in NOT_SETTINGS}
        for group, kind in ((self.model, ModelConfig), (self.training, training_config(self.task))):
            for setting in fields(kind):
                default = setting.default if setting.default_factory is MISSING else setting.default_factory()
                value = getattr(group, setting.name)
                if setting.init and setting.name not in NOT_SETTINGS and (setting.name in named or value != default):
                    chosen[setting.name] = value
        return chosen


def lora_config(model: ModelConfig) -> LoraConfig:
    """PEFT's config of a recipe's adapter. Raises `UserError` for settings that PEFT or vLLM would refuse."""
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
    """Raise `UserError` for an adapter that vLLM would refuse. `config` is PEFT's LoraConfig, or the dict in an
    adapter_config.json. Ranks have to be among those that vLLM reserves memory for: 12 would take the memory of 16."""
    settings = config if isinstance(config, dict) else vars(config)
    for rank in (settings["r"], *(settings.get("rank_pattern") or {}).values()):
        if rank not in LORA_RANKS:
            ranks = ", ".join(map(str, LORA_RANKS))
            raise UserError(f"lora_r: {rank}: vLLM reserves memory for ranks {ranks} only: take one of them")
    if problem := more_than_plain(settings):
        raise UserError(problem)


def check_targets(base: PreTrainedModel, config: LoraConfig) -> None:
    """Raise `UserError` for a target module that matches nothing in the base, which PEFT would ignore."""
    names, targets = [name for name, _ in base.named_modules()], config.target_modules or []
    if targets == "all-linear":
        return
    endings = {name.rpartition(".")[2] for name in names}
    for target in [targets] if isinstance(targets, str) else sorted(targets):
        pattern = target if isinstance(targets, str) else rf"(.*\.)?{re.escape(target)}"
        if not any(re.fullmatch(pattern, name) for name in names):
            raise UserError(f"lora_target_modules: {target}: no module of the base matches: {near(target, endings)}")


def may_read_trees(recipe: Recipe[Any], examples: Sequence[RankExample]) -> bool:
    """Whether the ranker can read all questions about a dialogue in one row: each is one digit, and a mask is taken."""
    return recipe.model.attn_implementation in MASKED_ATTENTION and all(len(example.labels) == 1 for example in examples)


def hub_kernel(recipe: Recipe[Any]) -> str | None:
    """The setting (with its value) by which a recipe uses kernels from the hub; None without one."""
    from transformers.integrations.hub_kernels import is_kernel

    if is_kernel(attention := recipe.model.attn_implementation):
        return f"attn_implementation: {attention}"
    return "model_init_kwargs: use_kernels" if (recipe.training.model_init_kwargs or {}).get("use_kernels") else None


def parse_recipe(task: Task, arguments: Sequence[str]) -> Recipe[Any]:
    """The recipe from `--config FILE` and overrides. Raises `UserError` for unknown settings, or another script's."""
    from trl import ModelConfig, TrlParser

    arguments = list(arguments)
    file = next((Path(after) for option, after in pairwise(arguments) if option == "--config"), None)
    if file is not None:
        settings = _mapping(file)
        if (other := settings.get("task")) != task and "--task" not in arguments:
            script = f" (for that one: train/esc_{other}.py)" if other in ARGUMENTS else ""
            raise UserError(f"{file}: task: {other!r}: this script trains {task}{script}")
        for name in settings:
            if name not in _known(task):
                raise UserError(f"{file}: {name}: unknown setting: {near(str(name), _known(task))}")
    elif "--config" in arguments:
        raise UserError("--config: name a recipe, such as configs/train/esc_role_embedded.yaml")
    elif not {"-h", "--help"} & set(arguments):
        bundled = sorted(path.name for path in (CONFIGS / "train").glob(f"esc_{task}*.yaml"))
        raise UserError(f"no recipe: give --config configs/train/FILE.yaml (there are {', '.join(bundled)})")

    class Parser(TrlParser):
        def error(self, message: str) -> NoReturn:
            """Instead of pages of usage."""
            raise ValueError(message)

    parser = Parser((ARGUMENTS[task], training_config(task), ModelConfig), description=ARGUMENTS[task].__doc__)
    try:
        data, training, model = parser.parse_args_and_config(arguments)
    except (ValueError, TypeError) as error:
        if "use_cpu" in str(error):  # by transformers, which finds no GPU for bf16
            need_gpu(file)
        raise UserError(f"{file or 'command line'}: {error}") from None
    overrides, kept = [], True
    for argument in arguments:
        if argument.startswith("--"):
            kept = argument.removeprefix("--").split("=")[0] not in {"config", *NOT_SETTINGS}
        overrides += [argument] if kept else []
    recipe: Recipe[Any] = Recipe(task, data, training, model, file, tuple(overrides))
    _check(recipe)
    return recipe


def need_gpu(file: Path | None) -> None:
    """Raise `UserError` with the likely reason why there is no GPU to train on."""
    import torch

    otherwise = f"torch {torch.__version__} finds none", "pip install 'esc-eval[gpu]' where it was built for CPUs"
    check_gpu(f"{file or 'command line'}: no GPU to train on (--use_cpu true: on the CPU)", otherwise)


def read_recipe(file: Path, overrides: Sequence[str] = ()) -> Recipe[Any]:
    """A recipe file of any task. The files and models that it names need not exist."""
    task = _mapping(file).get("task")
    if task not in ARGUMENTS:
        raise UserError(f"{file}: task: {task!r} is not role, rank or supporter")
    return parse_recipe(task, ["--config", str(file), *overrides])


def _mapping(file: Path) -> dict[str, Any]:
    settings = load_yaml(file, "recipe")
    if not isinstance(settings, dict):
        raise UserError(f"{file}: a recipe is a mapping of settings")
    return settings


@lru_cache
def _known(task: Task) -> frozenset[str]:
    from trl import ModelConfig

    return frozenset(f.name for group in (ARGUMENTS[task], training_config(task), ModelConfig) for f in fields(group)) | {"env"}


def _check(recipe: Recipe[Any]) -> None:
    """Raise `UserError` for settings that are missing, contradictory or without effect."""
    data, training, model, base = recipe.data, recipe.training, recipe.model, recipe.model.model_name_or_path
    supporter = recipe.task == "supporter"
    wrote = "python -m data_prep cards" if supporter else f"python -m data_prep {recipe.task}-sft"
    packed = recipe.task == "role" and (training.packing or training.padding_free)
    given = {
        *(_mapping(recipe.file) if recipe.file else {}),
        *(word.lstrip("-").partition("=")[0] for word in recipe.overrides),
    }
    problems = {
        "model_name_or_path: name the base: a hub id, a folder, or embedded:smollm2-135m-instruct": not base,
        f"train_file: name the JSONL file that `{wrote}` wrote": not data.train_file,
        f"valid_file: name the JSONL file that `{wrote}` wrote": not data.valid_file,
        "train_sampling_strategy: sequential: the seed determines the order: take random or group_by_length": (
            not supporter and training.train_sampling_strategy == "sequential"
        ),
        "eval_packing: without packing the dialogues of a row would see each other: take packing": (
            recipe.task == "role" and bool(training.eval_packing) and not packed
        ),
        "padding_free: without packing it ignores max_length: take packing, or max_length: null": (
            packed and not training.packing and training.max_length is not None
        ),
        "do_eval: eval_strategy decides whether there are evaluations: leave it out": "do_eval" in given,
        "hub_token: no token belongs in a recipe: `hf auth login`, or set HF_TOKEN": bool(training.hub_token),
        "local_rank: the launcher sets it: leave it out": "local_rank" in given,
        "seeker, judge: name the served models, as NAME@URL": supporter and not (data.seeker and data.judge),
        "length_cost, free_characters: not below 0, and above 0": supporter
        and not (data.length_cost >= 0 and data.free_characters > 0),
        f"attn_implementation: {model.attn_implementation!r} is not one of {', '.join(ATTENTION)}, or a kernel on the hub as "
        "kernels-community/flash-attn2": model.attn_implementation not in (None, *ATTENTION) and hub_kernel(recipe) is None,
        f"model_init_kwargs: {training.model_init_kwargs}: only use_kernels: true is allowed, which loads kernels for layers "
        "from the hub": training.model_init_kwargs not in (None, {"use_kernels": True}),
        f"fused_qkv: take lora_target_modules: [{', '.join(QKV)}] and lora_dropout: 0 (wqkv has one mask, not three)": (
            getattr(data, "fused_qkv", False) and (set(model.lora_target_modules or ()) != {*QKV} or model.lora_dropout > 0)
        ),
        "bnb_4bit_quant_type, use_bnb_nested_quant: they need load_in_4bit: true: add it, or leave them out": (
            not model.load_in_4bit and (model.use_bnb_nested_quant or model.bnb_4bit_quant_type != "nf4")
        ),
        "use_liger_kernel: TRL no longer supports it: take model_init_kwargs: {use_kernels: true}, which loads Liger's kernels "
        "and others from the hub": not supporter and training.use_liger_kernel,
        "trust_remote_code: remote code is never run here; convert the base first (serve convert)": (
            training.trust_remote_code
        ),
    }
    for name in ABOVE_ZERO:
        value = next((getattr(group, name) for group in (training, model) if getattr(group, name, None) is not None), 1)
        problems[f"{name}: {value}: give a number above 0"] = not float(value) > 0
    problems[f"lora_dropout: {model.lora_dropout}: give a number from 0 to below 1"] = not 0 <= model.lora_dropout < 1
    problems["max_steps: 0: it would not count: leave it out, or give a number above 0"] = training.max_steps == 0
    for name, kind in get_type_hints(type(data)).items():  # from a file, argparse takes any value
        choices, value = get_args(kind), getattr(data, name)
        kinds = (float, int) if kind is float else kind
        problems[f"{name}: {value!r}: a single {'text' if kind is str else 'number'} is expected"] = (
            not choices and not isinstance(value, kinds)
        )
        problems[f"{name}: {getattr(data, name)!r} is not one of {', '.join(choices)}"] = (
            choices != () and getattr(data, name) not in choices
        )
    for reason, names in (IDLE | (IDLE_FOR_RANKER if recipe.task == "rank" else {})).items():
        for group in [model] if supporter else [model, training]:
            for setting in (setting for setting in fields(group) if setting.name in names):
                if (value := getattr(group, setting.name)) not in (None, [], setting.default):
                    problems[f"{setting.name}: {value!r} would do nothing: {reason}: leave it out"] = True
    if problem := next((problem for problem, holds in problems.items() if holds), None):
        raise UserError(f"{recipe.file or 'command line'}: {problem}")
    model.dtype = model.dtype or "auto"
