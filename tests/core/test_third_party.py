"""What libraries fail with becomes one line that names the cause and the way on; what is our own fault keeps its traceback."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.errors import DEBUG, run_cli
from core.third_party import LIBRARIES, ROOMS, explained

ROOT = Path(__file__).parents[2]


def calls(library: str, error: Exception, room: str = ROOMS[-1]) -> Callable[[], None]:
    """Our code calls a library, which calls another one, which fails."""

    def compiled(file: str, source: str, **names: Any) -> Callable[[], None]:
        scope: dict[str, Any] = {"__name__": "x", **names}
        exec(compile(source, file, "exec"), scope)
        function: Callable[[], None] = scope["call"]
        return function

    fail = compiled("/env/site-packages/httpx/x.py", "def call(): raise error", error=error)
    deep = compiled("/env/site-packages/httpx/_client.py", "def call(): fail()", fail=fail)
    inside = compiled(f"/env/site-packages/{library}/inner.py", "def call(): deep()", deep=deep)
    return compiled(f"{room}somewhere.py", "def call(): inside()", inside=inside)


def failure(function: Callable[[], None]) -> Exception:
    with pytest.raises(Exception) as caught:
        function()
    return caught.value


@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_a_failure_in_every_library_is_one_line(
    library: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(DEBUG, raising=False)
    with pytest.raises(SystemExit) as ended:
        run_cli(calls(library, ValueError("no such\nthing")))
    err = capsys.readouterr().err
    assert ended.value.code == 1 and err.count("\n") == 1
    assert err.startswith(f"error: {library} failed: ValueError: no such thing. What to do: ") and DEBUG in err
    monkeypatch.setenv(DEBUG, "1")
    with pytest.raises(ValueError, match="no such"):
        run_cli(calls(library, ValueError("no such\nthing")))


@pytest.mark.parametrize(
    ("error", "way_on"),
    [
        (ConnectionError("couldn't connect to 'https://hub' to load the files"), "network or the hub cannot be reached"),
        (OSError("nobody/nothing is not a valid model identifier"), "check the name"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "less memory"),
        (ModuleNotFoundError("No module named 'sentencepiece'"), "a package is missing"),
        (OSError("[Errno 28] No space left on device"), "make room"),
    ],
)
def test_the_way_on_fits_the_cause(error: Exception, way_on: str) -> None:
    text = explained(failure(calls("transformers", error)))
    assert text and way_on in text
    wrapped = failure(calls("transformers", RuntimeError("it did not work")))
    wrapped.__cause__ = error
    text = explained(wrapped)
    assert text and way_on in text and "it did not work" in text


def test_a_fault_of_our_own_keeps_its_traceback_and_keys_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert explained(failure(calls("numpy", ValueError("shapes")))) is None
    assert explained(failure(lambda: [][1])) is None
    memory = explained(failure(calls("torch", RuntimeError("DefaultCPUAllocator: can't allocate memory"))))
    assert memory and "less memory" in memory and memory.startswith("this machine failed")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-0123456789")
    text = explained(failure(calls("lm_eval", RuntimeError("Authorization: Bearer sk-planted-0123456789"))))
    assert text and "sk-planted" not in text


def long(*given: str) -> Any:
    """A library that takes seconds to import."""
    return pytest.param(*given, marks=pytest.mark.full)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "told"),
    [
        long("from transformers import AutoTokenizer; AutoTokenizer.from_pretrained('nobody/nothing')", "transformers failed"),
        long("from datasets import load_dataset; load_dataset('nobody/nothing')", "datasets failed"),
        ("from huggingface_hub import snapshot_download; snapshot_download('nobody/nothing')", "huggingface_hub failed"),
        long("from peft import PeftModel; PeftModel.from_pretrained(None, 'nobody/nothing')", "peft failed"),
        ("from safetensors.torch import load_file; load_file('/dev/null')", "safetensors failed"),
    ],
)
def test_the_libraries_themselves(code: str, told: str, tmp_path: Path) -> None:
    """Offline, as on a cluster's nodes: what each really raises is understood."""
    file = ROOMS[0] + "x.py"
    script = f"""
from core.errors import run_cli
scope = {{}}
exec(compile({f"def call(): {code}"!r}, {file!r}, "exec"), scope)
run_cli(scope["call"])
"""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 1 and told in run.stderr and "Traceback" not in run.stderr, run.stderr
    assert run.stderr.strip().splitlines()[-1].startswith("error: ")
