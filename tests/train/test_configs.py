"""Every file of configs/ goes through the code that uses it, and the headers of recipes say what is so.

Nothing is trained. The header's lines are run as far as their parsers: accelerate's, TRL's, typer's.
"""

from __future__ import annotations

import fnmatch
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import orjson
import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from core.errors import UserError
from core.files import CONFIGS
from core.prompts import PromptPack
from core.rubrics import load_rubric
from core.specs import load_spec
from core.yaml_files import load_yaml, read_yaml
from data_prep.cards.taxonomy import load_taxonomy
from data_prep.profiles.vocabulary import load_vocabulary
from data_prep.role_play.mix import RoleSftConfig
from data_prep.sources import CorpusList, Quotas
from evalsuite.checks.risk import load_lexicon
from evalsuite.checks.shared_bases import Families
from evalsuite.papers.ecdbench.plan import load_layout
from evalsuite.papers.ecdbench.registry import load_benchmark, load_models
from evalsuite.papers.feel.panel import load_feel_config
from evalsuite.papers.reported.tables import load_reported
from evalsuite.people.commands.people_create import StudyConfig
from evalsuite.runs.config import load_config
from evalsuite.trust.probe import load_injections
from tests.surface import COMMANDS
from tests.vllm_parser import server_parser

ROOT = CONFIGS.parent
CPU = ("--use_cpu", "true")  # without a GPU the trainer's settings refuse bf16 unless they hear of a CPU
RECIPES = sorted((CONFIGS / "train").glob("esc_*.yaml"))
REAL = [path for path in RECIPES if "embedded" not in path.name]
FINE_TUNED = [path for path in REAL if "supporter" not in path.name]
ACCELERATE = sorted((CONFIGS / "accelerate").glob("*.yaml"))


# --- every file has a parser ----------------------------------------------------------------------------------------------


def compile_template(path: Path) -> None:
    pack = PromptPack(str(path.parents[1]))
    pack._environments[path.parent.name].get_template(path.name)


def parse_constraints(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            Requirement(line)


def build_architectures(path: Path) -> None:
    from serve.sizes import shape_of

    assert all(shape_of(fields) for fields in load_yaml(path, "architectures").values())


def parse_recipe_file(path: Path) -> None:
    from train.recipes import read_recipe

    read_recipe(path, CPU)


def launch(path: Path, *words: str) -> tuple[Any, Any]:
    """What `accelerate launch --config_file PATH` makes of the file: (its arguments, the file's own settings)."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    return _validate_launch_command(launch_command_parser().parse_args(["--config_file", str(path), *words, "script.py"]))[:2]


PARSERS: dict[str, Callable[[Path], object]] = {
    "accelerate/*.yaml": launch,
    "chat_templates/*.jinja": lambda path: jinja2.Environment().parse(path.read_text(encoding="utf-8")),
    "score_sheets.yaml": lambda path: load_yaml(path, "wording of score sheets"),
    "card_*.yaml": lambda path: load_yaml(path, "words of role cards"),
    "constraints-*.txt": parse_constraints,
    "containers/*.Containerfile": lambda path: path.read_text(encoding="utf-8"),  # by hadolint in tests/test_habits.py
    "data/corpora.yaml": lambda path: read_yaml(path, CorpusList, "list of corpora"),
    "data/role_*.yaml": lambda path: read_yaml(path, RoleSftConfig, "role-play mix"),
    "data/table5.yaml": lambda path: read_yaml(path, Quotas, "quotas"),
    "ecdbench/local.yaml": load_layout,
    "ecdbench/models.yaml": lambda path: load_models(path.stem),
    "ecdbench/registry.yaml": lambda path: load_benchmark(path.parent.name),
    "ecdbench/tasks/*.yaml": lambda path: load_yaml(path, "task"),  # more in tests/evalsuite/test_ecdbench_files.py
    "eval/*.yaml": lambda path: (load_feel_config if path.stem in ("feel", "feel_panel") else load_config)(path, {}),
    "launch/*.sh": lambda path: subprocess.run(["bash", "-n", str(path)], check=True),  # more in tests/test_launch_files.py
    "launch/*.yaml": lambda path: load_yaml(path, "SkyPilot task"),
    "models/*.yaml": lambda path: load_spec(str(path)),
    "line_checks.yaml": lambda path: [re.compile(phrase) for part in load_yaml(path, "phrases").values() for phrase in part],
    "hashes-*.txt": lambda path: path.read_text(encoding="utf-8"),  # more in tests/test_house.py
    "people/*.yaml": lambda path: read_yaml(path, StudyConfig, "study"),
    "people/*.txt": lambda path: path.read_text(encoding="utf-8"),
    "profiles/labels.yaml": lambda path: load_yaml(path, "labels of profiles"),
    "profiles/sage.yaml": lambda path: load_yaml(path, "words of SAGE's profiles"),
    "profiles/scenarios.yaml": load_vocabulary,
    "prompts/*/*/*": compile_template,
    "rubrics/*.yaml": lambda path: load_rubric(str(path)),
    "serve/[!a]*.yaml": lambda path: load_yaml(path, "words of servers"),
    "serve/answers.yaml": lambda path: load_yaml(path, "words of servers"),
    "taxonomy.yaml": load_taxonomy,
    "health/families.yaml": lambda path: read_yaml(path, Families, "model families"),
    "health/injections.yaml": load_injections,
    "reported/*/*.yaml": lambda path: load_reported(path.parent.name).table(path.stem.removeprefix("table_")),
    "risk/*.yaml": lambda path: load_lexicon("en" if path.stem == "en" else "zh"),
    "serve/architectures.yaml": build_architectures,
    "train/esc_*.yaml": parse_recipe_file,
}
FILES = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*") if path.is_file() and path.suffix != ".pyc")
SLOW = ("accelerate/", "train/")  # these load torch


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n.startswith(SLOW) else ()) for n in FILES])
def test_every_file_is_parsed_by_the_code_that_uses_it(name: str) -> None:
    found = [pattern for pattern in PARSERS if fnmatch.fnmatch(name, pattern) and pattern.count("/") == name.count("/")]
    assert len(found) == 1, f"configs/{name}: name its parser in PARSERS"
    PARSERS[found[0]](CONFIGS / name)


def test_every_parser_has_a_file() -> None:
    assert [pattern for pattern in PARSERS if not fnmatch.filter(FILES, pattern)] == []


# --- recipes --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_servable_and_consistent(path: Path) -> None:
    from train.recipes import lora_config, read_recipe

    recipe = read_recipe(path, CPU)
    assert path.name.startswith(f"esc_{recipe.task}")
    config = lora_config(recipe.model)  # refuses what vLLM would refuse
    assert config.r == load_yaml(path, "recipe")["lora_r"] and config.task_type == "CAUSAL_LM"
    training = recipe.training
    assert training.bf16 is (path.stem != "esc_rank_embedded")  # fp32: as fast on some CPUs, much faster on others
    assert training.report_to == ([] if "embedded" in path.name else ["wandb"])
    assert Path(recipe.data.train_file).parent == Path(recipe.data.valid_file).parent, "one rank-sft or role-sft made both"
    for group in (recipe.data, training, recipe.model):
        for field in vars(type(group))["__dataclass_fields__"].values():
            if (choices := field.metadata.get("choices")) and (value := getattr(group, field.name)) is not None:
                assert value in choices, f"{field.name}: argparse does not check what comes from a file"
    if training.load_best_model_at_end:
        better = {"eval_perplexity": False, "eval_average_acc": True}
        assert training.greater_is_better is better[training.metric_for_best_model]
        assert training.save_steps == training.eval_steps


def test_the_papers_recipe_has_the_published_adapters_shape() -> None:
    """Rank 8 on wqkv, which conversion turns into q, k and v."""
    recipe = load_yaml(CONFIGS / "train" / "esc_rank_internlm2_7b_paper.yaml", "recipe")
    assert recipe["lora_r"] == 8 and sorted(recipe["lora_target_modules"]) == ["k_proj", "q_proj", "v_proj"]


def test_trained_adapters_are_where_the_model_specs_look_for_them() -> None:
    recipe = load_yaml(CONFIGS / "train" / "esc_rank_internlm2_7b.yaml", "recipe")
    spec = load_spec("esc-rank")
    assert spec.adapter == f"{recipe['output_dir']}/adapter" and spec.checkpoint == recipe["model_name_or_path"]
    role = load_yaml(CONFIGS / "train" / "esc_role_qwen1.5_14b.yaml", "recipe")
    own = load_spec("esc-role-own")
    assert own.adapter == f"{role['output_dir']}/adapter" and own.checkpoint == role["model_name_or_path"]
    assert own.learnt == (load_yaml(CONFIGS / "data" / "role_sft.yaml", "config")["prompts"],)


def test_fourteen_adapters_are_trained_where_the_spec_looks_for_them(tmp_path: Path) -> None:
    root = CONFIGS.parent
    (tmp_path / "runs" / "rank_sft_paper").mkdir(parents=True)
    (tmp_path / "runs" / "rank_sft_paper" / "train.jsonl").touch()
    make = ["make", "-n", "-f", str(root / "Makefile"), "train-rank-paper"]
    printed = subprocess.run(make, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    trained = re.findall(r"--dimension (\w+) --language (\w+) +--output_dir (\S+)", printed.replace("\\\n", " "))
    spec = load_spec("esc-rank-paper")
    assert spec.adapters is not None and spec.learnt_methods == ("paper",)
    wanted = {(key, lang): place for lang, places in spec.adapters.items() for key, place in places.items()}
    assert len(trained) == 14 and {(key, lang): f"{out}/adapter" for key, lang, out in trained} == wanted
    assert set(wanted) == {(key, lang) for key in load_rubric("esc_eval").dimensions for lang in ("en", "zh")}
    header = (CONFIGS / "train" / "esc_rank_internlm2_7b_paper.yaml").read_text(encoding="utf-8")
    assert f"--method paper --split random --prompts {spec.learnt[0]}" in header
    assert spec.checkpoint and spec.checkpoint in header


# --- headers --------------------------------------------------------------------------------------------------------------


def header(path: Path) -> list[str]:
    """The comment lines that open a file, without their marks, continued lines joined."""
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line[1:].strip())
    return "\n".join(lines).replace("\\\n", " ").split("\n")


def commands(path: Path) -> list[list[str]]:
    """The header's command lines as words, loop variables filled in with their first value."""
    found, values = [], {}
    for line in header(path):
        if loop := re.fullmatch(r"for (\w+) in (\w+) ?.*; do", line):
            values[loop[1]] = loop[2]
        if re.match(r"(\w+=\S+ )*(accelerate launch|torchrun|python -m) ", line):
            words = shlex.split(re.sub(r"\$(\w+)", lambda name: values[name[1]], line))
            found.append([word for word in words if not re.match(r"[A-Z_]+=", word)])
    return found


def check_recipe_arguments(script: str, arguments: list[str]) -> Any:
    from train.recipes import _known, parse_recipe

    assert (ROOT / script).is_file()
    task: Any = Path(script).stem.removeprefix("esc_")
    given = {word.removeprefix("--") for word in arguments if word.startswith("--")} - {"config"}
    assert given <= _known(task), "argparse would take shortened names; people should read whole ones"
    assert (ROOT / arguments[arguments.index("--config") + 1]).is_file()
    return parse_recipe(task, [*arguments, *CPU])


def launched(words: list[str]) -> tuple[int, Any]:
    """Processes and recipe of an `accelerate launch` or torchrun line."""
    from accelerate.commands.launch import launch_command_parser

    if words[0] == "torchrun":
        at = next(i for i, word in enumerate(words) if word.endswith(".py"))
        return int(words[words.index("--nproc_per_node") + 1]), check_recipe_arguments(words[at], words[at + 1 :])
    given = launch_command_parser().parse_args(words[2:])
    assert given.config_file, "without it accelerate takes what it finds on the machine"
    settings = load_yaml(ROOT / given.config_file, "accelerate config")
    if settings["num_machines"] > 1:
        assert given.machine_rank is not None and given.main_process_ip
    processes = given.num_processes or settings["num_processes"]
    return processes, check_recipe_arguments(given.training_script, given.training_script_args)


@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES + ACCELERATE, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_launch_lines_parse_and_share_one_global_batch(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    runs = [launched(words) for words in commands(path) if words[0] != "python"]
    assert runs, "the header shows how to start it"
    own = path.relative_to(ROOT).as_posix()
    assert any(own in words for words in commands(path))
    batches: dict[Path, set[int]] = {}
    for processes, recipe in runs:
        size = recipe.training.per_device_train_batch_size * recipe.training.gradient_accumulation_steps * processes
        batches.setdefault(recipe.file, set()).add(size)
    for file, sizes in batches.items():
        given = load_yaml(file, "recipe")
        assert sizes == {given["per_device_train_batch_size"] * given["gradient_accumulation_steps"]}, file


@pytest.mark.parametrize("path", FINE_TUNED, ids=lambda path: path.stem)
def test_header_shows_one_gpu_eight_and_two_machines(path: Path) -> None:
    text = " ".join(" ".join(words) for words in commands(path))
    for name in ("single_gpu", "ddp", "zero3", "multi_node"):
        assert f"configs/accelerate/{name}.yaml" in text
    for word in ("Prerequisite:", "Launch", "Override example", "80 GB GPU", "Expected"):
        assert word in "\n".join(header(path))


def test_the_papers_loop_is_over_all_dimensions_and_languages() -> None:
    loops = dict(
        re.findall(r"for (\w+) in (.*); do", "\n".join(header(CONFIGS / "train" / "esc_rank_internlm2_7b_paper.yaml")))
    )
    assert loops["dimension"].split() == list(load_rubric("esc_eval").dimensions)
    assert loops["language"].split() == ["en", "zh"]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_commands_before_training_have_the_options_that_the_header_gives(path: Path) -> None:
    rooms = COMMANDS
    found = [words for words in commands(path) if words[0] == "python"]
    assert found, "the header says where base and data come from"
    for words in found:
        command: Any = rooms[words[2]]
        verb = command.commands[words[3]]
        verb = verb.commands[words[4]] if hasattr(verb, "commands") else verb
        known = {option for parameter in verb.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known
        for option in ("--config", "--rubric", "--prompts"):
            if option in words:
                name = words[words.index(option) + 1]
                place = {"--config": ROOT / name, "--rubric": CONFIGS / f"rubrics/{name}.yaml"}
                assert place.get(option, CONFIGS / "prompts" / name).exists()
    given = load_yaml(path, "recipe")
    made = [words[words.index("--out") + 1] for words in found if words[3] in ("role-sft", "rank-sft")]
    assert made == [str(Path(given["train_file"]).parent)] * (path in FINE_TUNED or path not in REAL), (
        "the recipe reads what the header's command writes"
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", FINE_TUNED, ids=lambda path: path.stem)
def test_headers_figures_are_the_plans(path: Path, tmp_path: Path) -> None:
    from train.plan import make_plan
    from train.recipes import read_recipe

    text = " ".join(header(path))
    asked = [*CPU, "--train_file", str(tmp_path / "none.jsonl")]  # the paper's numbers, whatever lies here
    asked += ["--language", "en"] if "--language en" in text.split("Expected")[1] else []
    one = make_plan(read_recipe(path, asked))
    rows = load_yaml(path, "recipe")["per_device_train_batch_size"]
    asked += ["--gradient_accumulation_steps", str(one["global_batch"] // (8 * rows))]
    eight = make_plan(read_recipe(path, asked), gpus=8)
    sparing = [make_plan(read_recipe(path, [*asked, "--gradient_checkpointing", "true"]), gpus=n) for n in (1, 8)]
    assert eight["global_batch"] == one["global_batch"] and eight["steps"] == one["steps"]
    expected = text.split("Expected")[1]
    for figure in (
        f"{one['trainable_parameters']:,} trainable parameters",
        f"{100 * one['trainable_share']:.2f} %",
        f"{one['memory_bytes']['ddp']['total'] / 2**30:.1f} GiB on each GPU with DDP or one GPU",
        f"with gradient checkpointing {sparing[0]['memory_bytes']['ddp']['total'] / 2**30:.1f} GiB",
        f"and ZeRO-3 on 8 GPUs {sparing[1]['memory_bytes']['zero3']['total'] / 2**30:.1f} GiB",
        f"= {one['steps']} steps",
        f"{one['examples']:,} × {one['epochs']:g} × {one['mean_tokens']:,} = {one['tokens'] / 1e6:.1f} million tokens",
        f"= {one['hours']:.2g} hours on one GPU",
        f"{eight['hours']:.2g} hours on 8",
        f"{one['hours_at_most']:.2g} hours if every",
    ):
        assert figure in expected, figure
    assert one["fits"]["ddp"] and eight["fits"]["zero3"]


@pytest.mark.slow
def test_the_supporters_header_has_the_plans_figures() -> None:
    from train.plan import make_plan
    from train.recipes import read_recipe

    path = CONFIGS / "train" / "esc_supporter.yaml"
    plan = make_plan(read_recipe(path, [*CPU, "--train_file", "nowhere.jsonl"]))
    expected = " ".join(header(path)).split("Expected")[1]
    server = plan["server_memory_bytes"]
    for figure in (
        f"{plan['trainable_parameters']:,} trainable parameters",
        f"{plan['memory_bytes']['ddp']['total'] / 2**30:.1f} GiB on each GPU",
        f"{server['total'] / 2**30:.1f} GiB on the server's",
        f"{plan['steps']} × {plan['global_batch']} × {plan['mean_tokens']:,} = {plan['tokens'] / 1e6:.1f} million tokens",
        f"= {plan['hours']:.2g} hours",
    ):
        assert figure in expected, figure
    spec, given = load_spec("esc-role-own"), load_yaml(path, "recipe")
    assert given["seeker"].startswith(f"{spec.name}@") and given["judge"].startswith(f"{load_spec('esc-rank').name}@")
    # Keys and values of Qwen2.5-7B: 28 layers of 4 heads of 128, 2 bytes each.
    assert server["cache"] == 64 * 2560 * 2 * 28 * 4 * 128 * 2


@pytest.mark.full
def test_the_policys_server_is_started_as_trl_would() -> None:
    """With all that TRL imposes on `vllm serve`, and with nothing that vLLM's own parser does not know."""
    from trl.scripts.vllm_serve import ScriptArguments, build_command

    path = CONFIGS / "train" / "esc_supporter.yaml"
    (line,) = [line for line in header(path) if "vllm serve" in line]
    words = shlex.split(line)
    assert "VLLM_SERVER_DEV_MODE=1" in words
    given = words[words.index("serve") + 1 :]
    asked = build_command(ScriptArguments(model=given[0], max_model_len=8192))
    imposed = asked[asked.index("--enable-scale-out") :]
    assert given[0] == load_yaml(path, "recipe")["model_name_or_path"]
    assert sorted(given[1:]) == sorted([*imposed, "--max-model-len", str(load_yaml(path, "recipe")["vllm_max_model_length"])])
    parsed = server_parser().parse_args(["--model", *given])
    assert parsed.weight_transfer_config.backend == "nccl" and parsed.logprobs_mode == "processed_logprobs"


@pytest.mark.slow
def test_the_extra_has_the_kernels_that_transformers_loads() -> None:
    from transformers.utils.import_utils import KERNELS_MAX_VERSION, KERNELS_MIN_VERSION

    (pinned,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["kernels"]
    assert Requirement(pinned).specifier == SpecifierSet(f">={KERNELS_MIN_VERSION},<{KERNELS_MAX_VERSION}")


@pytest.mark.slow
def test_attention_is_transformers_own_or_a_kernel_on_the_hub() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from train.recipes import ATTENTION, read_recipe

    assert set(ATTENTION) <= {"eager", *ALL_ATTENTION_FUNCTIONS.valid_keys()}
    path = CONFIGS / "train/esc_role_qwen1.5_14b.yaml"
    for name in ("kernels-community/flash-attn2", "kernels-community/flash-attn2@v0.1:forward", "flash_attention_2"):
        assert read_recipe(path, [*CPU, "--attn_implementation", name]).model.attn_implementation == name
    for name in ("flash-attn2", "sdpa2", "a/b/c"):
        with pytest.raises(
            UserError, match=f"attn_implementation: '{name}' is not one of sdpa, eager, .* or a kernel on the hub"
        ):
            read_recipe(path, [*CPU, "--attn_implementation", name])


@pytest.mark.slow
def test_a_kernel_is_explained_by_the_plan_and_refused_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.utils import import_utils

    from train.plan import make_plan
    from train.recipes import read_recipe
    from train.run import check_machine

    kernel = "kernels-community/flash-attn2"
    for name, reads_trees in (("esc_role_qwen1.5_14b", False), ("esc_rank_internlm2_7b", True)):
        recipe = read_recipe(CONFIGS / f"train/{name}.yaml", [*CPU, "--attn_implementation", kernel])
        (note,) = [note for note in make_plan(recipe)["notes"] if note.startswith("attention: ")]
        assert f"{kernel} comes ready built from the hub" in note
        assert ("the ranker then reads a dialogue once a question" in note) is reads_trees
    monkeypatch.setattr(import_utils, "is_kernels_available", lambda: False)
    with pytest.raises(
        UserError, match=r"kernels-community/flash-attn2 is loaded by the package kernels \(from 0\.17\.0 to below"
    ):
        check_machine(recipe)


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in RECIPES if path not in REAL], ids=lambda path: path.stem)
def test_embedded_headers_figures_are_the_plans(path: Path, tmp_path: Path) -> None:
    from train.plan import make_plan
    from train.recipes import read_recipe

    text = " ".join(header(path))
    found = make_plan(read_recipe(path, ["--train_file", str(tmp_path / "none.jsonl")]))
    assert f"{found['trainable_parameters']:,} trainable parameters, {100 * found['trainable_share']:.2f} %" in text
    parts = found["memory_bytes"]["ddp"]
    assert f"{math.ceil((parts['total'] - parts['overhead']) / 2**30)} GiB of memory" in text
    if load_yaml(path, "recipe").get("max_steps"):  # epochs depend on data, which is not here
        assert f"{found['steps']} steps × {found['global_batch']} × {found['max_tokens']:,} tokens at most" in text
        assert f"= {found['tokens_at_most']:,}; / 372 = {found['tokens_at_most'] / 372 / 60:.0f} minutes" in text


# --- accelerate -----------------------------------------------------------------------------------------------------------

LAUNCHES = {  # (several GPUs by DDP, DeepSpeed stage, processes, machines)
    "cpu": (False, None, 1, 1),
    "single_gpu": (False, None, 1, 1),
    "ddp": (True, None, 8, 1),
    "zero2": (False, 2, 8, 1),
    "zero3": (False, 3, 8, 1),
    "fsdp2": (False, None, 8, 1),
    "multi_node": (True, None, 16, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("path", ACCELERATE, ids=lambda path: path.stem)
def test_accelerate_launches_what_the_file_says(path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    load_config_from_file(str(path))
    asked, _ = launch(path)
    assert (asked.multi_gpu, asked.zero_stage, asked.num_processes, asked.num_machines) == LAUNCHES[path.stem]
    assert asked.use_deepspeed == (asked.zero_stage is not None)
    assert asked.use_cpu == (path.stem == "cpu") and asked.use_fsdp == (path.stem == "fsdp2")
    assert asked.mixed_precision == "no", "the recipe's bf16 decides, also where it is overridden"
    for name, value in load_yaml(path, "accelerate config").items():
        if name not in ("compute_environment", "distributed_type", "deepspeed_config", "fsdp_config"):
            assert getattr(asked, name) == value, f"{name}: accelerate does not take it from a file"


@pytest.mark.slow
@pytest.mark.parametrize("path", ACCELERATE, ids=lambda path: path.stem)
@pytest.mark.parametrize(("words", "seen"), [((), "2,5"), (("--gpu_ids", "3,4"), "3,4")])
def test_the_gpus_are_those_of_the_scheduler_unless_the_command_line_says_others(
    path: Path, words: tuple[str, ...], seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a launched process would find in its environment, by accelerate's own code for each kind of launch."""
    from accelerate.utils import launch as launchers

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    asked, _ = launch(path, "--main_process_ip", "127.0.0.1", "--main_process_port", "0", *words)
    if asked.use_deepspeed:
        asked.deepspeed_fields_from_accelerate_config = ""
        _, environment = launchers.prepare_deepspeed_cmd_env(asked)
    elif asked.multi_gpu or asked.use_fsdp:
        environment = launchers.prepare_multi_gpu_env(asked)
    else:
        _, environment = launchers.prepare_simple_launcher_cmd_env(asked)
    assert environment["CUDA_VISIBLE_DEVICES"] == seen


RESOLVE = """
import json, os, sys
from accelerate.state import AcceleratorState
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig
from trl import SFTConfig
from deepspeed.runtime.config import DeepSpeedConfig

for environment in json.loads(sys.argv[2]):
    os.environ.update(environment)
    AcceleratorState._reset_state(reset_partial_state=True)  # as if it were another process: loading torch takes the time
    training = SFTConfig(
        output_dir=sys.argv[1], use_cpu=True, per_device_train_batch_size=2, gradient_accumulation_steps=3, max_grad_norm=0.5
    )
    config = HfTrainerDeepSpeedConfig(training.deepspeed_plugin.hf_ds_config.config)
    config.trainer_config_process(training)
    found = DeepSpeedConfig(config.config)
    print(json.dumps({
        "stage": found.zero_config.stage,
        "gather": found.zero_config.gather_16bit_weights_on_model_save,
        "init": training.deepspeed_plugin.zero3_init_flag,
        "rows": found.train_micro_batch_size_per_gpu,
        "accumulation": found.gradient_accumulation_steps,
        "clipping": found.gradient_clipping,
        "bf16": found.bfloat16_config.enabled,
        "mismatches": config.mismatches,
    }))
"""


def given_by_accelerate(name: str) -> dict[str, str]:
    """What `accelerate launch` with a file of configs/accelerate adds to the environment."""
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    path = CONFIGS / "accelerate" / f"{name}.yaml"
    fields = load_yaml(path, "accelerate config")["deepspeed_config"]
    known = {action.dest for action in launch_command_parser()._actions}
    assert set(fields) <= known, "accelerate takes unknown DeepSpeed fields without a word"
    asked, _ = launch(path, "--main_process_port", "0")
    asked.deepspeed_fields_from_accelerate_config = ",".join(fields)
    _, environment = prepare_deepspeed_cmd_env(asked)
    return {name: value for name, value in environment.items() if os.environ.get(name) != value}


@pytest.mark.full  # trainings under ZeRO-2 and ZeRO-3 (test_strategies.py) go through the same files in every run
def test_deepspeed_takes_what_is_left_open_from_the_recipe(tmp_path: Path) -> None:
    """From the file to DeepSpeed's own config as `accelerate launch` does it; in a process of its own, as it sets globals."""
    given = [given_by_accelerate(name) for name in ("zero2", "zero3")]
    told = subprocess.run(
        [sys.executable, "-c", RESOLVE, str(tmp_path), json.dumps(given)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert told.returncode == 0, told.stderr
    found = [orjson.loads(line) for line in told.stdout.splitlines() if line.startswith("{")]
    of_both = {"rows": 2, "accumulation": 3, "clipping": 0.5, "bf16": True, "mismatches": []}
    assert found == [{"stage": stage, "gather": stage == 3, "init": stage == 3, **of_both} for stage in (2, 3)]
