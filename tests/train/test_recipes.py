"""A recipe that cannot be meant is one clear error, for a training and its plan alike, before anything is loaded."""

import ast
import importlib
import inspect
import json
import shutil
import textwrap
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from core.errors import UserError
from serve.checkpoints.lora import LORA_RANKS
from tests.train.conftest import made_recipe, tiny_checkpoint, write_data, write_recipe
from train import esc_rank, esc_role, esc_supporter, plan
from train.recipes import ABOVE_ZERO, check_servable, lora_config, parse_recipe, read_recipe

DATA = {"train_file": "train.jsonl", "valid_file": "valid.jsonl"}


def recipe(folder: Path, task: str = "role", leave_out: str = "", **settings: Any) -> Path:
    path = write_recipe(folder / "recipe.yaml", task, Path("base"), DATA, folder / "out", **settings)
    given = yaml.safe_load(path.read_text())
    given.pop(leave_out, None)
    path.write_text(yaml.safe_dump(given))
    return path


def refused(path: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as error:
        read_recipe(path, overrides)
    return str(error.value)


@pytest.mark.slow
def test_file_and_command_line_make_one_recipe(tmp_path: Path) -> None:
    path = recipe(tmp_path, learning_rate="1e-4", warmup_steps=0.03)
    found = read_recipe(path, ["--lora_r", "16", "--max_steps", "3"])
    assert found.task == "role" and found.file == path
    assert found.training.learning_rate == pytest.approx(1e-4), "YAML reads 1e-4 as text"
    assert (found.model.lora_r, found.training.max_steps, found.training.seed) == (16, 3, 5)
    assert found.model.lora_target_modules == "all-linear"


@pytest.mark.slow
@pytest.mark.parametrize("override", [("lora_r", 16), ("lora_r", 32), ("weight_decay", 0.25), ("max_steps", 3)])
def test_settings_tell_overrides(tmp_path: Path, override: tuple[str, Any]) -> None:
    """Also one that is the library's default: a run folder and a model card would else show the file's value."""
    name, value = override
    settings = read_recipe(recipe(tmp_path), [f"--{name}", str(value)]).settings()
    assert settings.get(name) == value
    assert "output_dir" not in settings, "where a run lies does not decide its weights"


# Case → task, what is left out, settings, command line, and words of the error.
CASES: dict[str, tuple[str, str, dict[str, Any], list[str], str]] = {
    "an unknown setting": ("role", "", {"lora_rang": 8}, [], "recipe.yaml: lora_rang: unknown setting: did you mean lora_r"),
    "an unknown override": ("role", "", {}, ["--lora_rang", "8"], "--lora_rang"),
    # argparse checks choices on the command line only: from a file, the wrong loss would train without a word.
    "no choice of ours": ("rank", "", {"loss": "ordnal"}, [], "loss: 'ordnal' is not one of cross_entropy, ordinal"),
    "another script's setting": ("role", "", {"ordinal_weight": 2.0}, [], "ordinal_weight: unknown setting"),
    "no task": ("", "", {}, [], "task: '' is not role, rank or supporter"),
    "no such task": ("rang", "", {}, [], "task: 'rang' is not role, rank or supporter"),
    "remote code": ("role", "", {"trust_remote_code": True}, [], "remote code is never run"),
    "remote code, asked for": ("role", "", {}, ["--trust_remote_code", "true"], "remote code is never run"),
    "no training data": (
        "role",
        "train_file",
        {},
        [],
        "train_file: name the JSONL file that `python -m data_prep role-sft` wrote",
    ),
    "no validation": (
        "rank",
        "valid_file",
        {},
        [],
        "valid_file: name the JSONL file that `python -m data_prep rank-sft` wrote",
    ),
    "no number": ("role", "", {"learning_rate": "fast"}, [], "learning-rate: invalid float value: 'fast'"),
    "a list of files": ("role", "", {"train_file": ["a", "b"]}, [], "train_file: ['a', 'b']: a single text is expected"),
    "a share above 1": ("role", "", {"lora_dropout": 2}, [], "lora_dropout: 2: give a number from 0 to below 1"),
    "no steps": ("role", "", {"max_steps": 0}, [], "max_steps: 0: it would not count"),
    **{
        f"{name} {value}": ("role", "", {name: value}, [], f"{name}: {value}: give a number above 0")
        for name in ABOVE_ZERO
        for value in (0, -1)
    },
    "no base": ("role", "model_name_or_path", {}, [], "model_name_or_path: name the base"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, case: str) -> None:
    task, leave_out, settings, overrides, words = CASES[case]
    assert words in refused(recipe(tmp_path, task, leave_out, **settings), *overrides)


@pytest.mark.slow
def test_a_recipe_has_to_be_there_and_of_this_script(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"this script trains role \(for that one: train/esc_rank\.py\)"):
        parse_recipe("role", ["--config", str(recipe(tmp_path, "rank"))])
    assert "nowhere.yaml" in refused(tmp_path / "nowhere.yaml")
    with pytest.raises(UserError, match=r"no recipe: give --config .*esc_rank_embedded\.yaml"):
        parse_recipe("rank", [])
    with pytest.raises(UserError, match="--config: name a recipe"):
        parse_recipe("rank", ["--config"])
    (tmp_path / "recipe.yaml").write_text("- task\n- role\n")
    assert "a recipe is a mapping of settings" in refused(tmp_path / "recipe.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("instructions", [True, False])
def test_slow_bf16_is_noted(
    tmp_path: Path, instructions: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from train import run

    monkeypatch.setattr(run, "bf16_instructions", lambda: instructions)
    for bf16, noted in ((True, not instructions), (False, False)):
        run.check_machine(read_recipe(recipe(tmp_path, bf16=bf16)))
        assert ("--bf16 false" in capsys.readouterr().err) == noted


@pytest.mark.slow
@pytest.mark.parametrize("task", ["role", "rank"])
def test_one_process_with_several_gpus_is_refused(tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers would wrap the model in DataParallel and multiply the batch by the number of GPUs."""
    script = importlib.import_module(f"train.esc_{task}")
    made = read_recipe(recipe(tmp_path, task))
    monkeypatch.setattr(type(made.training), "n_gpu", 8)
    with pytest.raises(UserError, match=r"one process sees 8 GPUs.*--gpu_ids 0"):
        script.main(made)


@pytest.mark.slow
def test_a_limit_draws_whole_dialogues(tmp_path: Path) -> None:
    from core.files import write_jsonl
    from tests.train.conftest import per_dimension, rank_examples
    from train.example_files import read_rank

    write_jsonl(tmp_path / "train.jsonl", per_dimension(rank_examples(6)))
    found = read_rank(tmp_path / "train.jsonl", limit=2, seed=1)
    assert len({e.dialogue_id for e in found}) == 2 and len(found) == 6
    assert len(read_rank(tmp_path / "train.jsonl", limit=7)) == 18


SCRIPTS = {"role": esc_role, "rank": esc_rank, "supporter": esc_supporter}


def called(source: str) -> set[str]:
    return {
        ast.unparse(node.func).split(".")[-1]
        for node in ast.walk(ast.parse(textwrap.dedent(source)))
        if isinstance(node, ast.Call)
    }


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_what_a_script_checks_before_its_output_folder_is_what_a_plan_checks(script: Any) -> None:
    before, marked, _ = inspect.getsource(script.main).partition("    # Output folder")
    checks = {name for name in called(before) if name in vars(script) and not isinstance(vars(script)[name], type)} | {
        "check_machine"
    }
    assert marked and {"check_machine", "lora_config", "load_tokenizer", "load_examples"} <= checks
    planned = set().union(*(called(inspect.getsource(step)) for step in (plan.make_plan, plan.refuse, plan.read_examples)))
    assert checks - planned == {"check_machine"}, "a plan is for another machine"


def edit(path: str, change: Callable[[list[Any]], None]) -> None:
    rows = [orjson.loads(line) for line in Path(path).read_bytes().splitlines()]
    change(rows)
    Path(path).write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))


def without_markers(base: Path) -> None:
    """A tokenizer that knows no family's markers."""
    (base / "chat_template.jinja").unlink()
    file = base / "tokenizer.json"
    told = file.read_text(encoding="utf-8").replace("<|im_start|>", "<|start|>").replace("<|im_end|>", "<|end|>")
    file.write_text(told, encoding="utf-8")
    config = json.loads((base / "tokenizer_config.json").read_text())
    (base / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in config.items() if not k.endswith("_token")}))


WRONG: dict[str, tuple[str, Callable[[Path, dict[str, str]], object], str]] = {
    "no chat template": ("role", lambda base, data: without_markers(base), "no chat template that marks"),
    "no tokenizer": ("role", lambda base, data: (base / "tokenizer.json").unlink(), "cannot be loaded"),
    "too long": ("role", lambda base, data: edit(data["train_file"], lambda rows: rows.clear()), "is empty"),
    "roles": ("role", lambda base, data: edit(data["valid_file"], lambda rows: rows[1]["messages"].pop()), "example 2"),
    "off the scale": (
        "rank",
        lambda base, data: edit(data["train_file"], lambda rows: rows[3]["labels"].update(empathy=7)),
        "(k3/joint): labels.empathy: 7 is off the scale (0, 1, 2, 3, 4)",
    ),
    "no rubric": (
        "rank",
        lambda base, data: Path(data["train_file"]).with_name("rubric.yaml").unlink(),
        "rubric.yaml is missing",
    ),
    "shared": ("rank", lambda base, data: shutil.copy(data["train_file"], data["valid_file"]), "shares examples with"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG)
def test_plan_and_script_refuse_alike(tmp_path: Path, case: str) -> None:
    task, spoil, message = WRONG[case]
    base, data = tiny_checkpoint(tmp_path / "base", "llama"), write_data(tmp_path, task, train=5, valid=2)
    spoil(base, data)
    recipe = made_recipe(tmp_path, task, base, data)
    refused = []
    for use in (SCRIPTS[task].main, plan.make_plan):
        with pytest.raises(UserError) as error:
            use(recipe)
        refused.append(str(error.value))
    assert refused[0] == refused[1] and message in refused[0] and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_plan_says_what_it_could_not_look_at(tmp_path: Path, tiny: dict[str, Path]) -> None:
    data = {"train_file": str(tmp_path / "none.jsonl"), "valid_file": str(tmp_path / "none.jsonl")}
    for base, unseen in (
        (tiny["llama"], "the examples (no "),
        ("Qwen/Qwen3-8B", "the base's tokenizer and the examples (Qwen"),
    ):
        notes = plan.make_plan(made_recipe(tmp_path, "role", Path(base), data))["notes"]
        assert any(note.startswith(f"not checked, as training will: {unseen}") for note in notes)


@pytest.mark.slow
def test_a_quantised_base_needs_its_package_and_is_not_divided(
    tmp_path: Path, tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.models import load_base

    data = write_data(tmp_path, "role", train=4, valid=2)
    made = made_recipe(tmp_path, "role", tiny["llama"], data, load_in_4bit=True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="load_in_4bit needs bitsandbytes"):
        load_base(made)
    monkeypatch.undo()
    monkeypatch.setattr("train.models.need_modules", lambda *_, **__: None)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(UserError, match="load_in_4bit: a quantised base cannot be sharded"):
        load_base(made)


@pytest.mark.slow
@pytest.mark.full
def test_qlora_trains(tmp_path: Path) -> None:
    """bitsandbytes has 4 bits on a CPU, too; with AVX-512 it evaluates only in widths that 64 divides."""
    pytest.importorskip("bitsandbytes", reason="pip install 'esc-eval[qlora]'")
    from tests.train.conftest import losses, train

    base, data, out = tiny_checkpoint(tmp_path / "base", "llama", 128), write_data(tmp_path, "role", 8, 2), tmp_path / "out"
    given = {"load_in_4bit": True, "use_bnb_nested_quant": True, "packing": True, "gradient_checkpointing": True}
    train("role", write_recipe(tmp_path / "r.yaml", "role", base, data, out, **given))
    found = losses(out)
    assert found[-1] < found[0] and (out / "adapter" / "adapter_model.safetensors").is_file()


PLAIN: dict[str, Any] = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj"]}
REFUSED: dict[str, dict[str, Any]] = {
    "rank above all": {"r": 1024},
    "rank pattern above all": {"rank_pattern": {"q_proj": 1024}},
    "dora": {"use_dora": True},
    "bias in B": {"lora_bias": True},
    "bias": {"bias": "all"},
    "pissa": {"init_lora_weights": "pissa"},
    "pissa, fast": {"init_lora_weights": "pissa_niter_16"},
    "olora": {"init_lora_weights": "olora"},
    "corda": {"init_lora_weights": "corda"},
    "loftq": {"init_lora_weights": "loftq"},
    "activated": {"alora_invocation_tokens": [1, 2]},
    "replicated layers": {"layer_replication": [[0, 2], [1, 3]]},
    "block-diagonal": {"use_bdlora": {"nblocks": 2}},
    "qalora": {"use_qalora": True},
    "lm_head": {"modules_to_save": ["lm_head"]},
}
SERVED: dict[str, dict[str, Any]] = {
    "plain": {},
    "rank-stabilised": {"use_rslora": True},
    "gaussian": {"init_lora_weights": "gaussian"},
    "eva": {"init_lora_weights": "eva"},
    "zero start": {"init_lora_weights": False},
    "largest rank": {"r": 512},
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_unservable_adapters_are_refused(change: dict[str, Any]) -> None:
    setting = {"r": "lora_r", "rank_pattern": "lora_r"}
    name = next(iter(change))
    with pytest.raises(UserError, match=f"^{setting.get(name, name)}: .*[:;] (take|leave|train) "):
        check_servable({**PLAIN, **change})


@pytest.mark.parametrize("change", SERVED.values(), ids=SERVED)
def test_servable_adapters_pass(change: dict[str, Any]) -> None:
    check_servable({**PLAIN, **change})


@pytest.mark.slow
@pytest.mark.parametrize("change", [*REFUSED.values(), *SERVED.values()], ids=[*REFUSED, *SERVED])
def test_vllm_agrees(change: dict[str, Any]) -> None:
    from vllm.config.lora import LoRAConfig
    from vllm.lora.peft_helper import PEFTHelper

    helper = PEFTHelper.from_dict({**PLAIN, **change})
    limits = LoRAConfig(max_lora_rank=max(LORA_RANKS))
    if change in REFUSED.values():
        with pytest.raises(ValueError, match="not support|only supports|greater than|not yet"):
            helper.validate_legal(limits)
    else:
        helper.validate_legal(limits)


@pytest.mark.slow
def test_vllm_takes_these_ranks_as_its_limit_and_no_others() -> None:
    from vllm.config.lora import LoRAConfig

    for rank in (*LORA_RANKS, 4, 12, 1024):
        with nullcontext() if rank in LORA_RANKS else pytest.raises(ValueError):
            assert LoRAConfig(max_lora_rank=rank).max_lora_rank == rank


@pytest.mark.slow
def test_a_recipes_settings_are_refused_as_the_config_is() -> None:
    from trl import ModelConfig

    for settings, words in (({"lora_r": 0}, "^lora"), ({"lora_modules_to_save": ["lm_head"]}, "^modules_to_save: .*lm_head")):
        with pytest.raises(UserError, match=words):
            lora_config(ModelConfig(use_peft=True, **settings))
