"""`python -m train plan` refuses what training refuses, by the same functions, as far as base and examples are here."""

import ast
import inspect
import json
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from core.errors import UserError
from tests.train.conftest import tiny_checkpoint, write_data, write_recipe
from train import esc_rank, esc_role, esc_supporter, plan
from train.recipes import parse_recipe

pytestmark = pytest.mark.slow
SCRIPTS = {"role": esc_role, "rank": esc_rank, "supporter": esc_supporter}


def called(source: str) -> set[str]:
    return {
        ast.unparse(node.func).split(".")[-1]
        for node in ast.walk(ast.parse(textwrap.dedent(source)))
        if isinstance(node, ast.Call)
    }


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


@pytest.mark.parametrize("case", WRONG)
def test_plan_and_script_refuse_alike(tmp_path: Path, case: str) -> None:
    task, spoil, message = WRONG[case]
    base, data = tiny_checkpoint(tmp_path / "base", "llama"), write_data(tmp_path, task, train=5, valid=2)
    spoil(base, data)
    recipe = parse_recipe(task, ["--config", str(write_recipe(tmp_path / "r.yaml", task, base, data, tmp_path / "out"))])  # type: ignore[arg-type]
    refused = []
    for use in (SCRIPTS[task].main, plan.make_plan):
        with pytest.raises(UserError) as error:
            use(recipe)
        refused.append(str(error.value))
    assert refused[0] == refused[1] and message in refused[0] and not (tmp_path / "out").exists()


def test_a_plan_says_what_it_could_not_look_at(tmp_path: Path, tiny: dict[str, Path]) -> None:
    data = {"train_file": str(tmp_path / "none.jsonl"), "valid_file": str(tmp_path / "none.jsonl")}
    for base, unseen in (
        (tiny["llama"], "the examples (no "),
        ("Qwen/Qwen3-8B", "the base's tokenizer and the examples (Qwen"),
    ):
        path = write_recipe(tmp_path / "r.yaml", "role", Path(base), data, tmp_path / "out")
        notes = plan.make_plan(parse_recipe("role", ["--config", str(path)]))["notes"]
        assert any(note.startswith(f"not checked, as training will: {unseen}") for note in notes)


def test_a_quantised_base_needs_its_package_and_is_not_divided(
    tmp_path: Path, tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.models import load_base

    data = write_data(tmp_path, "role", train=4, valid=2)
    path = write_recipe(tmp_path / "r.yaml", "role", tiny["llama"], data, tmp_path / "out", load_in_4bit=True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="load_in_4bit needs bitsandbytes"):
        load_base(parse_recipe("role", ["--config", str(path)]))
    monkeypatch.undo()
    monkeypatch.setattr("train.models.need_modules", lambda *_, **__: None)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(UserError, match="load_in_4bit: a quantised base cannot be sharded"):
        load_base(parse_recipe("role", ["--config", str(path)]))


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
