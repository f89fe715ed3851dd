"""Both scripts as they are typed: one process under accelerate, two over gloo, killed and resumed, and a fixed trajectory.
More of two processes: test_strategies.py.

All on tiny random Qwen2 and Llama checkpoints in fp32. What is compared with (one process, never disturbed) runs in the test's
own process, which spares the seconds that importing takes.
"""

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import orjson
import pytest
from transformers.trainer_utils import PredictionOutput

from core.errors import UserError
from core.files import write_json
from core.specs import load_spec
from serve.checkpoints.lora import WEIGHTS
from serve.checkpoints.merge import merge_adapter
from serve.checkpoints.places import base_folder
from tests.train.conftest import Forked, losses, made_recipe, train, weights, write_data, write_recipe
from tests.train.test_bad_input import checkpoint
from train.compare import judge_split
from train.models import load_adapted, load_base
from train.run import checkpoint_problem

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TRAJECTORY = Path(__file__).parent / "trajectory.json"
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("WANDB_")},
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
LAUNCHERS = {
    1: ["-m", "accelerate.commands.launch", "--config_file", str(ROOT / "configs/accelerate/cpu.yaml")],
    2: ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"],
}


def command(task: str, recipe: Path, processes: int) -> list[str]:
    return [sys.executable, *LAUNCHERS[processes], str(ROOT / f"train/esc_{task}.py"), "--config", str(recipe)]


def launch(task: str, recipe: Path, processes: int) -> str:
    """Run the script to its end as its users do; its stderr."""
    env = ENVIRONMENT | ({"ACCELERATE_USE_CPU": "true"} if processes > 1 else {})
    done = subprocess.run(command(task, recipe, processes), env=env, capture_output=True, text=True, cwd=recipe.parent)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def same_adapter(one: Path, other: Path) -> None:
    """The same weights but for rounding, not zero, and the same figures."""
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert any(abs(first[name]).max() > 0 for name in first if "lora_B" in name), "nothing was learnt"
    for name in first:
        assert second[name] == pytest.approx(first[name], rel=1e-3, abs=1e-6), name
    before, after = (orjson.loads((place / "metrics.json").read_bytes())["metrics"] for place in (one, other))
    assert before.keys() == after.keys() and len(before) > 1
    for name, value in before.items():  # an undefined figure is None
        assert after[name] == (value if value is None else pytest.approx(value, rel=1e-3)), name


# Run → task, architecture, the step after which it is killed (in the first epoch, in the second), what else is set.
DISTURBED: dict[str, tuple[str, str, int, dict[str, object]]] = {
    "role": ("role", "llama", 2, {}),
    "rank": ("rank", "qwen2", 6, {"train_sampling_strategy": "group_by_length"}),
}


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory, tiny: dict[str, Path], forked: Forked) -> dict[str, Path]:
    """For each run a folder with `undisturbed.yaml`, not run, and `killed.yaml`, which was killed and then run to its end.

    One ranker goes on as it is typed (the other script: above); nearly all of its time goes into imports.
    """

    def killed(run: str) -> None:
        task, architecture, step, chosen = DISTURBED[run]
        folder = folders[run]
        data = write_data(folder, task)
        settings = {"max_steps": 12, **chosen}
        for name in ("undisturbed", "killed"):
            write_recipe(folder / f"{name}.yaml", task, tiny[architecture], data, folder / name, **settings)
        forked.run(task, folder / "killed.yaml", kill_after=folder / "killed" / f"checkpoint-{step}")
        before = sorted(path.name for path in (folder / "killed").glob("checkpoint-*"))
        assert before and "checkpoint-12" not in before, "the kill came too late to mean anything"
        assert not (folder / "killed" / "adapter").exists()

    folders = {run: tmp_path_factory.mktemp(run) for run in DISTURBED}
    for run in DISTURBED:
        killed(run)
    with ThreadPoolExecutor(1) as pool:
        typed = pool.submit(launch, "rank", folders["rank"] / "killed.yaml", 1)
        for run in DISTURBED:
            if run != "rank":
                assert "resuming from" in forked.run(DISTURBED[run][0], folders[run] / "killed.yaml")
        assert "resuming from" in typed.result()
    return folders


@pytest.mark.parametrize("run", DISTURBED)
def test_killed_and_resumed_ends_as_undisturbed(disturbed: dict[str, Path], run: str) -> None:
    task, folder = DISTURBED[run][0], disturbed[run]
    train(task, folder / "undisturbed.yaml")
    whole, resumed = weights(folder / "undisturbed"), weights(folder / "killed")
    assert whole.keys() == resumed.keys()
    for name in whole:
        assert (whole[name] == resumed[name]).all(), name
    # Equal weights get equal names, and a third time there is nothing to do.
    assert (folder / "undisturbed" / "adapter").resolve().name == (folder / "killed" / "adapter").resolve().name
    stamp = (folder / "killed" / "metrics.json").stat().st_mtime_ns
    train(task, folder / "killed.yaml")
    assert (folder / "killed" / "metrics.json").stat().st_mtime_ns == stamp


# What `role-sft` and `rank-sft` write into the manifest beside their examples: the prompt pack among it.
MANIFESTS = {
    "role": {"config": {"prompts": "esc_eval", "target": 14}},
    "rank": {"method": "joint", "prompts": {"pack": "esc_rank"}},
}


@pytest.mark.parametrize(("task", "pack"), [("role", "esc_eval"), ("rank", "esc_rank")])
def test_trajectory_of_a_fixed_seed(tmp_path: Path, tiny: dict[str, Path], task: str, pack: str) -> None:
    """The losses of eight steps against a committed file: what is learnt from the same data with the same seed does not drift.
    The spec that serves the adapter has learnt the prompt pack of its examples.

    To record it anew after a wanted change: delete the entry, run this test twice, and say in the commit why it moved.
    """
    out = tmp_path / "out"
    settings: dict[str, object] = {"lora_dropout": 0.0, "save_steps": 8}
    if task == "rank":
        settings |= {"loss": "ordinal"}  # without class weights, which move a batch's loss more than eight steps do
    data = write_data(tmp_path, task)
    write_json(tmp_path / "manifest.json", {"settings": MANIFESTS[task]})
    train(task, write_recipe(tmp_path / "recipe.yaml", task, tiny["llama"], data, out, **settings))
    found = losses(out)
    assert found[-1] < found[0] - 0.1, "nothing was learnt"
    recorded = orjson.loads(TRAJECTORY.read_bytes()) if TRAJECTORY.is_file() else {}
    if task not in recorded:
        write_json(TRAJECTORY, recorded | {task: found})
        pytest.fail(f"recorded the trajectory of {task}: look at it and commit it")
    assert found == pytest.approx(recorded[task], rel=2e-3)
    assert load_spec(str(out / "model.yaml")).learnt == (pack,)
    assert f"learnt:\n- {pack}" in (out / "adapter" / "README.md").read_text()


WILD = {"optim": "sgd", "learning_rate": 3e38, "max_grad_norm": 0, "lora_dropout": 0.0}


def with_nan(source: Path, target: Path, name: str = "model.safetensors") -> Path:
    """A copy of a model folder with one NaN in one tensor, in the middle of the file."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, target)
    tensors = load_file(target / name)
    chosen = sorted(tensors)[len(tensors) // 2]
    tensors[chosen].view(-1)[-1] = math.nan
    save_file(tensors, target / name, {"format": "pt"})
    return target


@pytest.mark.parametrize(
    ("task", "settings", "step", "kept"),
    [
        ("rank", {}, "step 2: the loss is nan", []),
        ("role", {"save_steps": 1, "learning_rate": 1e30, "logging_nan_inf_filter": False}, "step 2", ["checkpoint-1"]),
        ("rank", {"max_steps": 1}, "step 1: ", ["checkpoint-1"]),  # found when it is evaluated or saved
    ],
)
def test_a_training_that_diverges_stops_there_and_leaves_no_adapter_and_no_figure(
    tmp_path: Path, tiny: dict[str, Path], task: str, settings: dict[str, Any], step: str, kept: list[str]
) -> None:
    data = write_data(tmp_path, task, train=8, valid=2)
    out = tmp_path / "out"
    recipe = write_recipe(tmp_path / "r.yaml", task, tiny["llama"], data, out, **WILD | {"max_steps": 2} | settings)
    with pytest.raises(UserError, match=f"training diverged at {step}"):
        train(task, recipe)
    assert not (out / "metrics.json").exists() and not list(out.glob("adapter*"))
    assert [place.name for place in out.glob("checkpoint-*")] == kept


def test_weights_that_are_not_finite_are_refused_by_whatever_would_use_them(tmp_path: Path, tiny: dict[str, Path]) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    data = write_data(tmp_path, "rank", train=2, valid=2)
    base, adapter = with_nan(tiny["llama"], tmp_path / "base"), tmp_path / "whole"
    model = AutoModelForCausalLM.from_pretrained(tiny["llama"])
    get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj"])).save_pretrained(str(adapter))
    broken = with_nan(adapter, tmp_path / "broken", WEIGHTS)
    recipe = made_recipe(tmp_path, "rank", base, data)
    uses: dict[str, Callable[[], object]] = {
        "train, test": lambda: load_base(recipe),
        "test": lambda: load_adapted(recipe, {"broken": broken}),
        "merge, base": lambda: merge_adapter(base, adapter, tmp_path / "merged"),
        "merge, adapter": lambda: merge_adapter(tiny["llama"], broken, tmp_path / "merged"),
        "serve up": lambda: base_folder(str(base), None, "model m: checkpoint"),
    }
    for name, use in uses.items():
        with pytest.raises(UserError, match="contains infinite or undefined numbers"):
            use()
            pytest.fail(name)
    assert not (tmp_path / "merged").exists()
    merge_adapter(tiny["llama"], adapter, tmp_path / "merged")


def test_no_score_is_made_of_what_is_no_number(tmp_path: Path, tiny: dict[str, Path]) -> None:
    """The base is whole, but overflows on the way."""
    data = write_data(tmp_path, "rank", train=2, valid=2)
    write_json(tmp_path / "manifest.json", {"settings": {"method": "joint"}})
    recipe = made_recipe(tmp_path, "rank", tiny["llama"], data)
    wild = PredictionOutput(np.full((2, 3, 5), np.nan), np.arange(2.0)[:, None, None] * np.ones((2, 3, 2)), {})
    with (
        patch("train.trainers.RankTrainer.predict", lambda *_: wild),
        pytest.raises(UserError, match="untrained: its numbers are infinite or undefined"),
    ):
        judge_split(recipe, tmp_path / "valid.jsonl", {}, True, tmp_path / "tested")
    assert not list((tmp_path / "tested").glob("judgements*"))


def test_a_checkpoint_is_judged_by_what_it_holds(tmp_path: Path) -> None:
    """transformers writes NaN into trainer_state.json, as a gradient's norm; weights that are NaN are passed over."""
    place = checkpoint(tmp_path / "checkpoint-4")
    (place / "trainer_state.json").write_text('{"log_history": [{"grad_norm": NaN, "loss": Infinity}]}')
    assert checkpoint_problem(place) is None
    (place / "trainer_state.json").write_bytes(orjson.dumps({}))
    broken = with_nan(place, tmp_path / "checkpoint-6", WEIGHTS)
    problem = str(checkpoint_problem(broken))
    assert "contains infinite or undefined numbers" in problem and "cut off" not in problem
