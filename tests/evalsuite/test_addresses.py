"""Models by address: any of them in any role, what is assumed, and one line for what is wrong, with no folder left behind."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.endpoints import check_key_variable
from core.errors import UserError
from core.files import CONFIGS
from core.specs import load_spec
from evalsuite.runs.config import load_config
from evalsuite.runs.dialogue_framework import resolve_config
from evalsuite.runs.run_config import identity
from tests.conftest import EscEval
from tests.dialects import Dialect, DialectName, Speaker
from tests.endpoint import Endpoint

pytestmark = pytest.mark.slow

API = CONFIGS / "eval" / "api.yaml"
SMALL = ("run", "--config", API, "--limit", "1", "--language", "en", "--set", "floors=false")
LLAMA = "meta-llama/Llama-3-8B"


@contextmanager
def speaking(dialect: DialectName, *models: str, key: str | None = None) -> Iterator[Endpoint]:
    kind = Dialect(dialect)
    with Endpoint(Speaker(kind), models, dialect=kind, key=key) as endpoint:
        yield endpoint


def root(endpoint: Endpoint) -> str:
    return endpoint.url.removesuffix("/v1")


@pytest.fixture(autouse=True)
def small_gold(tmp_path: Path) -> None:
    """`SMALL` as a config of its own, with fewer gold dialogues."""
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(yaml.safe_load(API.read_text()) | {"gold": {"limit": 2}}))


def small(*more: object) -> tuple[object, ...]:
    return ("run", "--config", "small.yaml", *SMALL[3:], *more)


@pytest.mark.parametrize("text", ["a@http://h/v1", "a@http://h/v1#A_KEY", "a/b@c@https://h:8/x/", "@cf/a@http://h/v1"])
def test_a_name_and_an_address_are_a_model(text: str) -> None:
    spec = load_spec(text)
    assert spec.roles == ("seeker", "supporter", "judge") and spec.languages == ("en", "zh")
    name, _, rest = text.rpartition("@")
    assert spec.served_name() == name and "/" not in spec.name and "@" not in spec.name
    assert spec.endpoint.base_url == rest.partition("#")[0].rstrip("/")
    assert spec.endpoint.api_key_env == (rest.partition("#")[2] or None)


def test_a_minimal_spec_file_is_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("name: m\nendpoint: {base_url: 'http://h/v1'}\n")
    assert identity(load_spec(str(tmp_path / "m.yaml"))) == identity(load_spec("m@http://elsewhere/v1"))


def test_a_spec_at_an_address_keeps_what_it_says_but_not_its_key() -> None:
    spec = load_spec("gpt-4@http://127.0.0.1:1/v1")
    assert (spec.context_length, spec.endpoint.base_url, spec.endpoint.api_key_env) == (8192, "http://127.0.0.1:1/v1", None)
    assert identity(spec) == identity(load_spec("gpt-4"))
    with pytest.raises(UserError, match="a floor has no model"):
        load_spec("silent@http://127.0.0.1:1/v1")


@pytest.mark.parametrize(
    ("variable", "named"),
    [("MY_KEY", True), ("my_key", False), ("my_set_key", True), ("odd-but-set", False), ("sk-abc", False)],
    ids=["capitals", "small letters", "small letters, set", "a hyphen, set", "a key"],
)
def test_what_is_taken_for_the_name_of_a_variable(variable: str, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("my_set_key", "x")
    monkeypatch.setenv("odd-but-set", "x")
    refused = nullcontext() if named else pytest.raises(UserError, match="never the key itself")
    with refused:
        check_key_variable(variable, "here")


@pytest.mark.parametrize("dialect", ["openai", "vllm"])
def test_one_url_is_enough_and_what_is_assumed_is_said_once(
    esc_eval: EscEval, dialect: DialectName, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("evalsuite.runner.engine.Runner.say", lambda self, text: said.append(text))
    with speaking(dialect, LLAMA) as endpoint:
        command = ("run", "--config", "small.yaml", "--limit", "1", "--model", f"{LLAMA}@{root(endpoint)}")
        code, err = esc_eval(*command)
        assert (code, err) == (0, "")
        assert {body["model"] for body in endpoint.requests} == {LLAMA}
        asked = len(endpoint.requests)
        assert esc_eval(*command)[0] == 0 and len(endpoint.requests) == asked, "a resumed run asks nothing"
    run = Path("runs/esc_eval/meta-llama-Llama-3-8B")
    report = (run / "report.md").read_text()
    assert "Majority ACC" in report
    assert all(name in report for name in ("silent", "parrot", "lecture", "meta-llama-Llama-3-8B"))
    assert all(json.loads(line)["value"] is not None for line in (run / "judgements.jsonl").read_text().splitlines())
    once = [line for line in said if "assumed: it speaks any language" in line]
    assert len(once) == 1 and ("a context of 32768 tokens" in once[0]) == (dialect == "vllm")
    assert any(f"no API there; using {endpoint.url}, which has one" in line for line in said)
    assert any("judges itself" in line for line in said) and any("--limit N plays more" in line for line in said)


_BASE = """
import importlib.machinery, sys
ABSENT = {"accelerate", "datasets", "datasketch", "huggingface_hub", "krippendorff", "lm_eval", "nltk", "openpyxl", "peft",
          "sklearn", "tokenizers", "torch", "transformers", "trl", "vllm", "wandb"}

class BaseInstall(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else super().find_spec(name, path, target)

sys.meta_path = [BaseInstall if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
from evalsuite.cli import main
main()
"""


def test_the_first_run_needs_nothing_but_the_base_install(tmp_path: Path) -> None:
    """README's command, with its gold set, floors and report, where no extra is installed."""
    with speaking("openai", "my-model") as endpoint:
        command = ("run", "--config", str(API), "--limit", "1", "--model", f"my-model@{endpoint.url}")
        done = subprocess.run([sys.executable, "-c", _BASE, *command], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    first, *_ = (line for line in done.stdout.splitlines() if line.startswith(("Agreement", "Leaderboard")))
    assert first.startswith("Agreement with gold"), "how good the judge is comes first"
    assert (tmp_path / "runs/esc_eval/my-model/report.html").exists()


def test_every_role_has_its_own_model_key_and_sampling(esc_eval: EscEval, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "key-of-mine")
    monkeypatch.setenv("THEIRS", "key-of-theirs")
    with speaking("openai", "mine", key="key-of-mine") as mine, speaking("vllm", "s", "j", key="key-of-theirs") as theirs:
        others = ("--seeker", f"s@{theirs.url}#THEIRS", "--judge", f"j@{theirs.url}#THEIRS")
        roles = ("--supporter", f"mine@{mine.url}#MINE", *others)
        sampling = ("--set", "temperature=0.5", "--set", "max_tokens=77", "--set", "trials=2", "--set", "concurrency=2")
        assert esc_eval(*small(*roles, *sampling)) == (0, "")
        assert {(body["temperature"], body["max_tokens"]) for body in mine.requests} == {(0.5, 77)}
        assert {body["temperature"] for body in theirs.requests} == {0} and 77 not in {b["max_tokens"] for b in theirs.requests}
        assert len(mine.requests) == 2 * 5 and max(mine.most, theirs.most) <= 2
        code, err = esc_eval(*small(*roles, *sampling[2:]))
        assert code == 2 and "temperature: 0.5 → 0.0" in err, "sampling is part of the run"


def test_a_model_that_is_judge_and_supporter_is_asked_as_one(esc_eval: EscEval) -> None:
    with speaking("vllm", "a", "b") as endpoint:
        a, b = f"a@{endpoint.url}", f"b@{endpoint.url}"
        assert esc_eval(*small("--supporter", a, "--judge", a, "--seeker", b)) == (0, "")
        usage = json.loads(Path("runs/esc_eval/a/usage.json").read_text())
        assert set(usage["score"]["judge"]) == set(usage["simulate"]["supporter"]) == {"a"}
        assert set(usage["simulate"]["seeker"]) == {"b"}


def test_a_supporter_that_reasons_has_room_and_one_that_never_ends_is_told_of(
    esc_eval: EscEval, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As OpenAI's reasoning models are: 512 tokens would be gone before the first word."""
    said: list[str] = []
    monkeypatch.setattr("evalsuite.commands.run._say", said.append)
    kind = Dialect("openai", reasoning_model=True)
    with (
        speaking("openai", "judge") as judge,
        Endpoint(Speaker(kind, reasoning=900), ("think",), dialect=kind) as think,
        Endpoint(Speaker(kind, reasoning=90_000), ("endless",), dialect=kind) as endless,
    ):
        models = ("--supporter", f"think@{think.url}", "--supporter", f"endless@{endless.url}", "--model", f"judge@{judge.url}")
        assert esc_eval(*small(*models, "--out", "r")) == (0, "")
    verdicts = [json.loads(line) for line in Path("r/judgements.jsonl").read_text().splitlines()]
    spoken = {dialogue["id"]: dialogue for dialogue in map(json.loads, Path("r/dialogues.jsonl").read_text().splitlines())}
    read = {spoken[verdict["dialogue_id"]]["supporter"]: verdict["value"] is not None for verdict in verdicts}
    assert read == {"think": True, "endless": False}
    assert said == [
        "7 of 14 verdicts have no value (null in judgements.jsonl): 7 no_supporter_turn",
        "Replies cut off at their token limit: 1 of 1 by the supporter endless.",
        "warning: 1 of 1 replies of the supporter endless were cut off: raise max_tokens, or sampling.reasoning_tokens, as "
        "it reasons",
    ]


@contextmanager
def a_web_page(status: int) -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html>welcome</html>")

        do_POST = do_GET

        def log_message(self, *what: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Page))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()


def refused(esc_eval: EscEval, *more: object) -> str:
    """What a run says that is refused; nothing but the inputs is there afterwards."""
    before = {path for path in Path().rglob("*")}
    code, err = esc_eval(*small(*more))
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1, (code, err)
    assert {path for path in Path().rglob("*")} == before
    return err


def test_what_is_wrong_with_an_address(esc_eval: EscEval, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "expected NAME@http://HOST:PORT/v1" in refused(esc_eval, "--model", "m@127.0.0.1:8000/v1")
    assert "before its address" in refused(esc_eval, "--model", "http://127.0.0.1:8000/v1")
    assert "leave out /chat/completions" in refused(esc_eval, "--model", "m@http://127.0.0.1:8000/v1/chat/completions")
    assert refused(esc_eval, "--model", "m@http://127.0.0.1:9/v1").endswith("cannot be reached: Connection refused\n")
    assert "(for a served model: NAME@http" in refused(esc_eval, "--judge", "gpt-4o-mini", "--model", "m@http://127.0.0.1:9/v1")
    with a_web_page(200) as url:
        assert "answers with a web page" in (err := refused(esc_eval, "--model", f"m@{url}"))
        assert "gave up after 3 attempts: a web page" in err  # not eight: no API answers so
    with a_web_page(404) as url:
        assert "HTTP 404" in refused(esc_eval, "--model", f"m@{url}")
    with speaking("openai", "m", key="right") as endpoint:
        at = f"m@{endpoint.url}"
        assert "HTTP 401" in (err := refused(esc_eval, "--model", at)) and "#VARIABLE" in err
        monkeypatch.setenv("WRONG", "wrong-key-of-mine")
        assert "the key in WRONG" in (err := refused(esc_eval, "--model", f"{at}#WRONG")) and "wrong-key" not in err
        assert "set the environment variable NOT_THERE" in refused(esc_eval, "--model", f"{at}#NOT_THERE")
        monkeypatch.setenv("EMPTY_KEY", "")
        assert "EMPTY_KEY" in refused(esc_eval, "--model", f"{at}#EMPTY_KEY")
        for key in ("sk-abc123", "gsk_abcdefghijklmnop1234"):
            assert "never the key itself" in (err := refused(esc_eval, "--model", f"{at}#{key}")) and key not in err
    with speaking("vllm", "other", "another") as endpoint:
        assert "does not list 'm'" in (err := refused(esc_eval, "--model", f"m@{endpoint.url}"))
        assert "another" in err and "other" in err
        assert "leave no room in its context of 32768" in refused(
            esc_eval, "--set", "max_tokens=40000", "--model", f"other@{endpoint.url}"
        )


def test_what_is_wrong_with_roles(esc_eval: EscEval, tmp_path: Path) -> None:
    with speaking("vllm", "m") as one, speaking("vllm", "m") as two:
        err = refused(esc_eval, "--supporter", f"m@{one.url}", "--model", f"m@{two.url}")
        assert "two models are named m, which differ in endpoint" in err
        assert "the same name twice" in refused(esc_eval, "--supporter", f"m@{one.url}", "--supporter", f"m@{two.url}")
        assert "limit" in refused(esc_eval, "--limit", "0", "--model", f"m@{one.url}")
        (tmp_path / "x.yaml").write_text("name: x\nendpoint: {base_url: 'http://h/v1'}\ntemperatur: 1\n")
        assert "x.yaml:3: temperatur: unknown field" in refused(esc_eval, "--model", "x.yaml")
        (tmp_path / "f.yaml").write_text("name: f\nroles: [supporter]\nfloor: {kind: fixed, text: {en: Hello.}}\n")
        assert "floor.text: none in zh" in refused(esc_eval, "--supporter", "f.yaml", "--model", f"m@{one.url}")
        (tmp_path / "f.yaml").write_text(
            "name: f\nroles: [supporter]\nlanguages: [zh]\nfloor: {kind: fixed, text: {zh: 你好。}}\n"
        )
        assert "no supporter speaks en (f speaks zh): choose" in refused(
            esc_eval, "--supporter", "f.yaml", "--model", f"m@{one.url}"
        )
        assert not one.requests and not two.requests
    alone = refused(esc_eval, "--supporter", "m@http://127.0.0.1:9/v1")
    assert "no seeker given: name one with --seeker" in alone
    assert "no seeker given" in refused(
        esc_eval, *("--supporter", "m@http://127.0.0.1:9/v1", "--judge", "j@http://127.0.0.1:9/v1")
    )
    code, err = esc_eval("run", "--config", CONFIGS / "eval" / "demo.yaml", "--model", "m@http://127.0.0.1:9/v1")
    assert code == 2 and "names a model for every role" in err


def packs(judge: str, **changes: Any) -> str:
    settings = {"supporters": ["embedded"], "seeker": "embedded", "judge": judge} | changes
    return resolve_config(load_config(CONFIGS / "eval" / "esc_eval.yaml", settings)).judge_pack


def test_the_pack_follows_from_the_judge(tmp_path: Path) -> None:
    assert packs("esc-rank") == packs("embedded-ranker") == "esc_rank"
    assert packs("m@http://h/v1") == packs("embedded") == "esc_eval", "a plain model is told the rules"
    with pytest.raises(
        UserError, match="embedded-ranker has learnt the prompt pack esc_rank and is not asked in esc_eval: leave"
    ):
        packs("embedded-ranker", judge_prompts="esc_eval")
    with pytest.raises(UserError, match="m has not learnt the prompt pack esc_rank, which leaves the rules out .* leave out"):
        packs("m@http://h/v1", judge_prompts="esc_rank")
    (tmp_path / "r.yaml").write_text("name: r\nendpoint: {base_url: 'http://h/v1'}\nlearnt: [esc_rank, esc_eval]\n")
    mine = str(tmp_path / "r.yaml")
    assert packs(mine) == "esc_rank" and packs(mine, judge_prompts="esc_eval") == "esc_eval"


def test_models_are_listed_and_asked_whether_they_answer(
    esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed(*arguments: str) -> tuple[int, str]:
        code = 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["esc-eval", "models", *arguments])
            from evalsuite import cli

            try:
                cli.main()
            except SystemExit as end:
                code = int(end.code or 0)
        return code, capsys.readouterr().out

    code, out = listed("--json")
    known = {model["name"]: model for model in json.loads(out)}
    assert code == 0 and known["gpt-4"]["key"] == "OPENAI_API_KEY" and known["esc-rank"]["learnt"] == ["esc_rank"]
    assert 25 < known["esc-role"]["gpu_gib"] < 60, "Qwen1.5-14B in bf16"
    assert "OPENAI_API_KEY" in listed()[1]
    code, out = listed("mindchat", "vicuna-7b-1.5", "silent")
    assert code == 0 and "mindchat (QWenLMHeadModel): nothing here can serve it: vLLM dropped" in out
    assert "vicuna-7b-1.5 (LlamaForCausalLM): vLLM, in the template vicuna; its tokenizer carries none" in " ".join(out.split())
    with speaking("vllm", LLAMA) as endpoint:
        code, out = listed(f"{LLAMA}@{endpoint.url}", "--check", "--json")
        (model,) = json.loads(out)
        assert code == 0 and model["answers"] == {"served": True, "said": "yes", "context": 32768}
        code, out = listed(f"{LLAMA}@{endpoint.url}", f"nobody@{endpoint.url}", "--check", "--json")
        assert code == 1 and [model["answers"]["served"] for model in json.loads(out)] == [True, False]
        assert not endpoint.requests, "costs nothing"
    with Endpoint(models=("models/gemini-2.5-pro",)) as google:
        monkeypatch.setenv("GEMINI_KEY", "a-key-of-the-test")
        code, out = listed(f"gemini-2.5-pro@{google.url}#GEMINI_KEY", "--check", "--json")
        assert code == 0 and json.loads(out)[0]["answers"]["served"], "listed by its path"
    with Endpoint(models=("m",), key="another") as refusing:
        (tmp_path / "m.yaml").write_text(f"name: m\nendpoint: {{base_url: {refusing.url}, lists_models: false}}\n")
        code, out = listed(str(tmp_path / "m.yaml"), "--check", "--json")
        assert code == 0 and json.loads(out)[0]["answers"]["said"] == "it does not list its models"
