"""The headers of recipes say what is so: their lines are run as far as the parsers of accelerate, TRL and typer.

Nothing is trained.
"""

import math
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from core.errors import UserError
from core.files import CONFIGS
from core.rubrics import load_rubric
from core.settings import load_yaml
from core.specs import load_spec
from tests.surface import COMMANDS
from tests.vllm_parser import server_parser

ROOT = CONFIGS.parent
CPU = ("--use_cpu", "true")  # without a GPU the trainer's settings refuse bf16 unless they hear of a CPU
RECIPES = sorted((CONFIGS / "train").glob("esc_*.yaml"))
REAL = [path for path in RECIPES if "embedded" not in path.name]
FINE_TUNED = [path for path in REAL if not re.search("supporter|qlora", path.name)]
ACCELERATE = sorted((CONFIGS / "accelerate").glob("*.yaml"))


# --- recipes --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_servable_and_consistent(path: Path) -> None:
    from train.recipes import lora_config, read_recipe

    recipe = read_recipe(path, CPU)
    assert path.name.startswith(f"esc_{recipe.task}")
    config = lora_config(recipe.model)  # refuses what vLLM would refuse
    assert config.r == load_yaml(path, "recipe")["lora_r"] and config.task_type == "CAUSAL_LM"
    assert recipe.model.dtype == load_yaml(path, "recipe").get("dtype", "auto")
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


@pytest.mark.slow
def test_the_papers_recipe_has_the_published_adapters_shape() -> None:
    """Rank 8 without dropout on wqkv, from 4,096 inputs to 6,144 outputs in 32 layers: q, k and v with one A."""
    from train.plan import make_plan
    from train.recipes import read_recipe

    path = CONFIGS / "train" / "esc_rank_internlm2_7b_paper.yaml"
    plan = make_plan(read_recipe(path, CPU))
    assert plan["trainable_parameters"] == 32 * 8 * (4096 + 6144) == 2_621_440
    assert plan["lora_rank"] == 8 and load_yaml(path, "recipe")["lora_dropout"] == 0
    apart = make_plan(read_recipe(path, [*CPU, "--fused_qkv", "false"]))
    assert apart["trainable_parameters"] == 4_718_592
    for change in (["--lora_dropout", "0.1"], ["--lora_target_modules", "all-linear"]):
        with pytest.raises(UserError, match="fused_qkv: take lora_target_modules"):
            read_recipe(path, [*CPU, *change])


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
    assert made == [str(Path(given["train_file"]).parent)] * (path.stem != "esc_supporter"), (
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
def test_qlora_fits_24_gb() -> None:
    """Half a byte and its share of a scale for each weight of a linear layer inside; embeddings and output layer in bf16."""
    from train.plan import make_plan
    from train.recipes import read_recipe

    path = CONFIGS / "train" / "esc_role_qwen3_8b_qlora.yaml"
    plan = make_plan(read_recipe(path, [*CPU, "--train_file", "nowhere.jsonl"]), "rtx4090")
    inner = 36 * (4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 12288)
    norms = 36 * (2 * 4096 + 2 * 128) + 4096
    nested = inner * (0.5 + (1 + 4 / 256) / 64)
    memory = plan["memory_bytes"]["ddp"]
    assert memory["weights"] == pytest.approx(nested + 2 * (2 * 151936 * 4096 + norms), rel=1e-6) and plan["fits"]["ddp"]
    expected = " ".join(header(path)).split("Expected")[1]
    for figure in (
        f"{plan['trainable_parameters']:,} trainable parameters, {100 * plan['trainable_share']:.2f} %",
        f"{memory['total'] / 2**30:.1f} GiB of {plan['gpu_memory_bytes'] / 2**30:g}: weights {memory['weights'] / 2**30:.1f}",
        f"= {plan['steps']} steps; {plan['hours']:.2g} hours on one RTX 4090",
    ):
        assert figure in expected, figure


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


@pytest.mark.slow
def test_the_extra_has_the_kernels_that_transformers_loads() -> None:
    from transformers.utils.import_utils import KERNELS_MAX_VERSION, KERNELS_MIN_VERSION

    (pinned,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["kernels"]
    bounds = {bound.operator: Version(bound.version) for bound in Requirement(pinned).specifier}
    assert Version(KERNELS_MIN_VERSION) <= bounds[">="] < bounds["<"] <= Version(KERNELS_MAX_VERSION)


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
        (note,) = [note for note in make_plan(recipe)["notes"] if note.startswith("attn_implementation: ")]
        assert f"{kernel}: comes from the hub" in note
        assert ("the ranker then reads a dialogue once per question" in note) is reads_trees
    monkeypatch.setattr(import_utils, "is_kernels_available", lambda: False)
    with pytest.raises(UserError, match=r"kernels-community/flash-attn2 needs the package kernels \(from 0\.17\.\d to below"):
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
