"""What cannot be trained is one clear error before the model is loaded, and what was already there stays as it was."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from core.errors import UserError
from core.files import CONFIGS
from core.specs import load_spec
from tests.train.conftest import write_data, write_recipe
from train import esc_rank, esc_role
from train.recipes import parse_recipe
from train.run import checkpoint_problem

pytestmark = pytest.mark.slow

MAIN: dict[str, Callable[[Any], None]] = {"role": esc_role.main, "rank": esc_rank.main}


@pytest.fixture
def refused(tmp_path: Path, tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a script on data that `spoil` has changed; its error. Reaching the model is a failure of its own."""

    def loaded(recipe: object) -> None:
        raise AssertionError("the model was loaded before the data were checked")

    monkeypatch.setattr(esc_role, "load_base", loaded)
    monkeypatch.setattr(esc_rank, "load_base", loaded)

    def call(task: str, spoil: Callable[[Path], object] = lambda _: None, base: Path | None = None, **settings: object) -> str:
        data = write_data(tmp_path, task)
        spoil(tmp_path)
        recipe = write_recipe(tmp_path / "recipe.yaml", task, base or tiny["llama"], data, tmp_path / "out", **settings)
        with pytest.raises(UserError) as error:
            MAIN[task](parse_recipe(task, ["--config", str(recipe)]))  # type: ignore[arg-type]
        assert not list((tmp_path / "out").glob("checkpoint-[13579]"))
        return str(error.value)

    return call


def edit(name: str, change: Callable[[dict[str, Any]], object], line: int = 1) -> Callable[[Path], None]:
    """Change one example of a JSONL file."""

    def spoil(folder: Path) -> None:
        lines = (folder / name).read_bytes().splitlines()
        record = orjson.loads(lines[line - 1])
        change(record)
        lines[line - 1] = orjson.dumps(record)
        (folder / name).write_bytes(b"\n".join(lines) + b"\n")

    return spoil


@pytest.mark.parametrize(("task", "name"), [("role", "valid.jsonl"), ("rank", "train.jsonl")])
def test_data_that_are_not_there(refused: Callable[..., str], task: str, name: str) -> None:
    def put(kind: Callable[[Path], object]) -> Callable[[Path], None]:
        def spoil(folder: Path) -> None:
            (folder / name).unlink()
            kind(folder / name)

        return spoil

    for kind in (lambda path: None, lambda path: path.symlink_to("nowhere"), Path.mkdir):
        message = refused(task, put(kind))
        assert name in message and "\n" not in message


def test_an_output_folder_that_is_a_file(refused: Callable[..., str], tmp_path: Path) -> None:
    message = refused("role", lambda folder: (folder / "out").write_text("kept"))
    assert f"output_dir: {tmp_path / 'out'} cannot be used" in message and (tmp_path / "out").read_text() == "kept"


def test_no_trainable_token(refused: Callable[..., str]) -> None:
    message = refused("role", max_length=8)
    assert "train.jsonl: no token to train on is left" in message and "no seeker line within max_length 8: 16" in message
    message = refused("rank", max_length=8)
    assert "longer than max_length 8: 16" in message


def test_no_seeker_line(refused: Callable[..., str]) -> None:
    def mute(record: dict[str, Any]) -> None:
        record["messages"] = record["messages"][:2]

    message = refused("role", edit("train.jsonl", mute, 3))
    assert "train.jsonl: example 3 (r2): messages: a system message, then" in message and "found system, user" in message


def test_label_off_the_scale(refused: Callable[..., str]) -> None:
    def spoil(record: dict[str, Any]) -> None:
        record["labels"]["empathy"] = 7

    assert "example 2 (k1/joint): labels.empathy: 7 is off the scale (0, 1, 2, 3, 4)" in refused(
        "rank", edit("train.jsonl", spoil, 2)
    )


def test_answer_that_is_not_its_labels(refused: Callable[..., str]) -> None:
    def spoil(record: dict[str, Any]) -> None:
        record["completion"][0]["content"] = "Score: 3"

    assert "completion: 'Score: 3' is not its labels" in refused("rank", edit("valid.jsonl", spoil))


@pytest.mark.parametrize(("task", "field"), [("role", "messages"), ("rank", "labels")])
def test_missing_field_names_file_line_and_field(refused: Callable[..., str], task: str, field: str) -> None:
    assert (
        refused(task, edit("train.jsonl", lambda record: record.pop(field), 4)).split("/")[-1]
        == f"train.jsonl:4: {field}: Field required"
    )


def test_scale_is_never_guessed(refused: Callable[..., str]) -> None:
    assert "rubric.yaml is missing" in refused("rank", lambda folder: (folder / "rubric.yaml").unlink())


@pytest.mark.parametrize("task", ["role", "rank"])
def test_validation_that_was_trained_on(refused: Callable[..., str], task: str) -> None:
    message = refused(task, lambda folder: shutil.copy(folder / "train.jsonl", folder / "valid.jsonl"))
    assert "valid.jsonl: shares" in message


def test_dimension_that_no_example_has(refused: Callable[..., str]) -> None:
    assert "no example for dimension empathy, language any; the file has en all dimensions in one" in refused(
        "rank", dimension="empathy"
    )


def test_base_in_internlm2_layout(refused: Callable[..., str], tmp_path: Path, tiny: dict[str, Path]) -> None:
    base = shutil.copytree(tiny["llama"], tmp_path / "old")
    config = orjson.loads((base / "config.json").read_bytes()) | {"model_type": "internlm2"}
    (base / "config.json").write_bytes(orjson.dumps(config))
    assert f"python -m serve convert {base} {base}-llama" in refused("rank", base=base)


def test_base_half_written(refused: Callable[..., str], tmp_path: Path, tiny: dict[str, Path]) -> None:
    base = shutil.copytree(tiny["llama"], tmp_path / "half")
    weights = base / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    assert "half written" in refused("role", base=base)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"lora_r": 12}, "12"), ({"use_dora": True}, "DoRA"), ({"lora_modules_to_save": ["lm_head"]}, "modules_to_save")],
)
def test_adapter_that_could_not_be_served(refused: Callable[..., str], settings: dict[str, Any], words: str) -> None:
    assert words.lower() in refused("rank", **settings).lower()


def test_folder_of_another_recipe(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "recipe.json").write_bytes(orjson.dumps({"settings": {"lora_r": 64}, "data": []}))
    before = (tmp_path / "out" / "recipe.json").read_bytes()
    assert "was made by another recipe or other data (data" in refused("role")
    assert (tmp_path / "out" / "recipe.json").read_bytes() == before


# What a checkpoint holds beside adapter and state, by who divides the weights, written by two processes but for the first.
STATES = {
    "one process": ["optimizer.pt", "scheduler.pt", "rng_state.pth"],
    "ddp": ["optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"],
    "fsdp": ["pytorch_model_fsdp.bin", "optimizer.bin", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"],
    "deepspeed": [
        *("scheduler.pt", "rng_state_0.pth", "rng_state_1.pth", "global_step4/mp_rank_00_model_states.pt"),
        *(f"global_step4/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)),
    ],
}


def checkpoint(place: Path, kind: str = "one process") -> Path:
    """A checkpoint with every file that resuming needs."""
    import torch
    from safetensors.torch import save_file

    (place / "global_step4").mkdir(parents=True)
    save_file({"a": torch.zeros(4)}, place / "adapter_model.safetensors")
    (place / "adapter_config.json").write_text("{}")
    (place / "trainer_state.json").write_text("{}")
    for name in STATES[kind]:
        torch.save({"state": torch.zeros(8)}, place / name)
    if kind == "deepspeed":
        (place / "latest").write_text("global_step4")
    return place


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


@pytest.mark.parametrize("kind", STATES)
def test_a_checkpoint_is_whole_only_with_every_file_whole(tmp_path: Path, kind: str) -> None:
    processes = 1 if kind == "one process" else 2
    place = checkpoint(tmp_path / "checkpoint-4", kind)
    assert checkpoint_problem(place, processes) is None
    for path in [path for path in place.rglob("*") if path.is_file()]:
        before = path.read_bytes()
        if path.name not in ("adapter_config.json", "trainer_state.json", "latest"):
            cut(path)
            assert str(checkpoint_problem(place, processes)).startswith(f"{path.name} is cut off")
        path.unlink()
        assert checkpoint_problem(place, processes) is not None, path.name
        path.write_bytes(before)
    (place / "trainer_state.json").write_text('{"a": ')
    assert str(checkpoint_problem(place, processes)).startswith("trainer_state.json is no JSON")


def test_a_half_written_checkpoint_is_passed_over(
    tmp_path: Path, tiny: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that was killed while it saved, and is queued again, goes on from the checkpoint before."""
    from tests.train.test_training import here, losses, weights

    data = write_data(tmp_path, "role", train=32)  # the last step is in the middle of an epoch
    for name in ("whole", "cut"):
        here("role", write_recipe(tmp_path / f"{name}.yaml", "role", tiny["llama"], data, tmp_path / name, max_steps=4))
    out = tmp_path / "cut"
    (out / "metrics.json").unlink()
    cut(out / "checkpoint-4" / "optimizer.pt")
    capsys.readouterr()
    here("role", tmp_path / "cut.yaml")
    said = capsys.readouterr().err
    assert f"passed over: {out / 'checkpoint-4'}: optimizer.pt is cut off" in said
    assert f"resuming from {out / 'checkpoint-2'}" in said
    assert losses(out) == losses(tmp_path / "whole") and len(losses(out)) == 4
    whole, resumed = weights(tmp_path / "whole"), weights(out)
    assert all((whole[name] == resumed[name]).all() for name in whole)
    served_as_printed(said, out)
    # Killed after its last step, before the adapter was written: no step is taken beyond `max_steps`.
    (out / "metrics.json").unlink()
    here("role", tmp_path / "cut.yaml")
    assert not (out / "checkpoint-5").exists()
    capsys.readouterr()
    # Where none is whole, it begins again.
    (out / "metrics.json").unlink()
    for step in (2, 4):
        cut(out / f"checkpoint-{step}" / "adapter_model.safetensors")
    here("role", tmp_path / "cut.yaml")
    said = capsys.readouterr().err
    assert said.count("passed over") == 2 and "resuming" not in said and losses(out) == losses(tmp_path / "whole")


def served_as_printed(said: str, out: Path) -> None:
    """The last line's command serves the adapter by a spec beside it (planned, not started)."""
    (line,) = (line for line in said.splitlines() if line.startswith("to serve it: "))
    words = shlex.split(line.removeprefix("to serve it: "))
    assert words[0] == "python" and words[-1] == str(out / "model.yaml")
    done = subprocess.run([sys.executable, *words[1:], "--print"], capture_output=True, text=True, cwd=CONFIGS.parent)
    assert done.returncode == 0, done.stderr
    spec = load_spec(words[-1])
    assert spec.adapter == str((out / "adapter").resolve()) and spec.roles == ("seeker",) and spec.languages == ("en",)
    assert spec.name == out.name and spec.sampling.temperature == 0


def test_a_named_checkpoint_has_to_be_there_and_whole(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "no such folder" in refused("role", resume_from_checkpoint="nowhere/checkpoint-3")
    place = checkpoint(tmp_path / "checkpoint-4")
    cut(place / "optimizer.pt")
    message = refused("role", resume_from_checkpoint=str(place))
    assert f"resume_from_checkpoint: cannot resume from {place}: optimizer.pt is cut off; name an older one" in message
