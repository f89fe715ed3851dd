"""What cannot be trained is one clear error before the model is loaded; an output folder belongs to what its training reads."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson
import pytest

from core.errors import UserError
from core.files import CONFIGS, locked, write_json
from core.specs import load_spec
from data_prep.role_play.examples import RoleExample
from tests.train.conftest import losses, made_recipe, role_examples, train, weights, write_data, write_recipe
from train import esc_rank, esc_role
from train.example_files import read_role
from train.examples import Prepared, encode, prepare_role
from train.recipes import ARGUMENTS, IDLE, NOT_SETTINGS, training_config
from train.run import DATA_FILES, PATHS, checkpoint_problem, open_output

pytestmark = pytest.mark.slow


@pytest.fixture
def refused(tmp_path: Path, tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a script on data that `spoil` has changed; its error. Reaching the model is a failure of its own."""

    def loaded(recipe: object) -> None:
        raise AssertionError("the model was loaded before the data were checked")

    monkeypatch.setattr(esc_role, "load_base", loaded)
    monkeypatch.setattr(esc_rank, "load_base", loaded)

    def call(task: str, spoil: Callable[[Path], object] | None = None, base: Path | None = None, **settings: object) -> str:
        data = write_data(tmp_path, task)
        if spoil:
            spoil(tmp_path)
        recipe = write_recipe(tmp_path / "recipe.yaml", task, base or tiny["llama"], data, tmp_path / "out", **settings)
        with pytest.raises(UserError) as error:
            train(task, recipe)
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


# Case → task, what is changed in the data, settings, and words of the error.
CASES: dict[str, tuple[str, Callable[[Path], object] | None, dict[str, Any], str]] = {
    "an output folder that is a file": ("role", lambda folder: (folder / "out").write_text("kept"), {}, "out cannot be used"),
    "no seeker line that fits": ("role", None, {"max_length": 8}, "left (no seeker line within max_length 8: 16)"),
    "no example that fits": ("rank", None, {"max_length": 8}, "longer than max_length 8: 16"),
    "no seeker line": (
        *("role", edit("train.jsonl", lambda record: record.update(messages=record["messages"][:2]), 3), {}),
        "train.jsonl: example 3 (r2): messages: system, then user and assistant in turn",
    ),
    "an answer that is not its labels": (
        *("rank", edit("valid.jsonl", lambda record: record["completion"][0].update(content="Score: 3")), {}),
        "completion: 'Score: 3' is not its labels",
    ),
    "a missing field": ("rank", edit("train.jsonl", lambda r: r.pop("labels"), 4), {}, "train.jsonl:4: labels: Field req"),
    "a dimension that no example has": (
        *("rank", None, {"dimension": "empathy"}),
        "no example for dimension empathy, language any; the file has en all dimensions in one",
    ),
    "an adapter that could not be served": ("rank", None, {"lora_r": 12}, "lora_r: 12"),
    "a folder of another recipe": (
        *("role", lambda folder: write_json(folder / "out" / "recipe.json", {"settings": {"lora_r": 64}, "data": []}), {}),
        "was made by another recipe or other data (data",
    ),
    "a named checkpoint that is not there": ("role", None, {"resume_from_checkpoint": "no/3"}, "no such folder: no/3"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_named_before_the_model_is_loaded(refused: Callable[..., str], tmp_path: Path, case: str) -> None:
    task, spoil, settings, words = CASES[case]
    assert words in refused(task, spoil, **settings)
    if "folder" in case and spoil:  # what was there stays
        place = tmp_path / "out"
        assert b"kept" in place.read_bytes() if place.is_file() else b"64" in (place / "recipe.json").read_bytes()


@pytest.mark.parametrize("task", ["role", "rank"])
def test_a_base_that_cannot_be_trained(refused: Callable[..., str], tmp_path: Path, tiny: dict[str, Path], task: str) -> None:
    base = shutil.copytree(tiny["llama"], tmp_path / "old")
    weights = base / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    assert "half written" in refused(task, base=base)
    config = orjson.loads((base / "config.json").read_bytes()) | {"model_type": "internlm2"}
    (base / "config.json").write_bytes(orjson.dumps(config))
    shutil.copy(tiny["llama"] / "model.safetensors", weights)
    assert f"python -m serve convert {base} {base}-llama" in refused(task, base=base)


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
    data = write_data(tmp_path, "role", train=32)  # the last step is in the middle of an epoch
    out, recipe = tmp_path / "out", tmp_path / "r.yaml"
    train("role", write_recipe(recipe, "role", tiny["llama"], data, out, max_steps=4))
    whole, curve = weights(out), losses(out)
    (out / "metrics.json").unlink()
    cut(out / "checkpoint-4" / "optimizer.pt")
    capsys.readouterr()
    train("role", recipe)
    said = capsys.readouterr().err
    assert f"skipped: {out / 'checkpoint-4'}: optimizer.pt is cut off" in said
    assert f"resuming from {out / 'checkpoint-2'}" in said
    assert losses(out) == curve and len(curve) == 4
    resumed = weights(out)
    assert all((whole[name] == resumed[name]).all() for name in whole)
    served_as_printed(said, out)
    # Killed after its last step, before the adapter was written: no step is taken beyond `max_steps`.
    (out / "metrics.json").unlink()
    train("role", recipe)
    assert not (out / "checkpoint-5").exists()
    capsys.readouterr()
    # Where none is whole, it begins again.
    (out / "metrics.json").unlink()
    for step in (2, 4):
        cut(out / f"checkpoint-{step}" / "adapter_model.safetensors")
    train("role", recipe)
    said = capsys.readouterr().err
    assert said.count("skipped: ") == 2 and "resuming" not in said and losses(out) == curve


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


def test_a_named_checkpoint_has_to_be_whole(refused: Callable[..., str], tmp_path: Path) -> None:
    place = checkpoint(tmp_path / "checkpoint-4")
    cut(place / "optimizer.pt")
    message = refused("role", resume_from_checkpoint=str(place))
    assert f"resume_from_checkpoint: cannot resume from {place}: optimizer.pt is cut off; name an older one" in message


def claim(folder: Path, base: str, data: Path) -> None:
    """What both scripts do before the model is loaded."""
    files = {f"{name}_file": str(data / f"{name}.jsonl") for name in ("train", "valid")}
    recipe = made_recipe(folder, "role", Path(base), files)
    open_output(recipe, *(Prepared(Path(file), read_role(Path(file)), []) for file in files.values()))


@pytest.fixture
def claimed(tmp_path: Path, tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data").mkdir()
    write_data(tmp_path / "data", "role", train=3, valid=2)
    (tmp_path / "deepspeed.json").write_text("{}")
    shutil.copytree(tiny["llama"], tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    claim(tmp_path, str(tmp_path / "base"), tmp_path / "data")
    return tmp_path


def test_the_same_bytes_at_another_place_are_resumed(claimed: Path) -> None:
    claim(claimed, "base", Path("data"))  # relative, where it was absolute
    shutil.copytree(claimed / "data", claimed / "moved data")
    (claimed / "base").rename(claimed / "moved base")
    claim(claimed, "moved base", claimed / "moved data")


def test_other_bytes_at_the_same_place_are_refused(claimed: Path) -> None:
    (claimed / "base" / "config.json").write_bytes((claimed / "base" / "config.json").read_bytes() + b"\n")
    with pytest.raises(UserError, match="made by another recipe or other data .*files.model_name_or_path"):
        claim(claimed, "base", Path("data"))
    shutil.rmtree(claimed / "base")
    with (claimed / "data" / "train.jsonl").open("ab") as file:
        file.write(b"\n")
    with pytest.raises(UserError, match="made by another recipe or other data"):
        claim(claimed, "base", Path("data"))


def test_every_setting_that_is_a_path_is_known_by_its_content() -> None:
    """Whatever names a file or folder is hashed, or does not decide the weights (where results go)."""
    refused = {name for names in IDLE.values() for name in names}
    for task, ours in ARGUMENTS.items():
        for kind in (ours, training_config(task)):
            for setting in fields(kind):
                said = f"{setting.metadata.get('help') or ''} {setting.name}"
                if re.search(r"\bpath to\b|_(file|path|dir)$", said, re.IGNORECASE):
                    assert setting.name in PATHS | DATA_FILES | NOT_SETTINGS | refused, setting.name


def test_a_second_training_in_one_folder_is_refused(claimed: Path) -> None:
    claim(claimed, "base", Path("data"))  # once more in the same process: the first has ended
    (claimed / "other").mkdir()
    with locked(claimed / "other" / "out" / ".lock", "x"), pytest.raises(UserError, match="output_dir: .*out is in use by"):
        claim(claimed / "other", "base", claimed / "data")


def test_the_marker_before_a_line_that_begins_with_white_space_carries_no_loss(tmp_path: Path, tiny: dict[str, Path]) -> None:
    from transformers import AutoTokenizer

    from core.files import write_jsonl

    tokenizer = AutoTokenizer.from_pretrained(tiny["llama"])
    (example,) = role_examples(1)
    assert isinstance(example, RoleExample)
    spaced = [m | {"content": f" \n{m['content']}"} if m["role"] == "assistant" else m for m in example.messages]
    write_jsonl(tmp_path / "train.jsonl", [example.model_copy(update={"messages": tuple(spaced)})])
    prepared = prepare_role(tmp_path / "train.jsonl", read_role(tmp_path / "train.jsonl"), tokenizer, None)
    ids, labels = encode(tokenizer, example.messages)
    assert prepared.rows == [{"input_ids": ids, "labels": labels}]
