"""Secrets stay secret, nothing is run that was meant to be read, and no name or text reaches out of the run folder."""

import ast
import base64
import gzip
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from core import machine
from core.errors import UserError, clean
from core.files import CONFIGS, write_jsonl
from core.specs import ModelSpec, load_spec
from core.tables import write_csv
from data_prep.cards import bundled_cards, load_cards
from evalsuite import cli
from evalsuite.commands.options import resolve
from evalsuite.report import transcripts
from evalsuite.report.charts import TEMPLATES
from serve import plan
from serve.checkpoints.places import local_path, resolve_checkpoint
from serve.client import ChatClient
from serve.store import CallStore
from tests.conftest import EscEval
from tests.demo import demo_config
from tests.endpoint import Answer, Endpoint, echo
from tests.evalsuite.test_report import built
from tests.generated_report import INJECTIONS, make_content
from tests.serve.test_client import spec

ROOMS = [CONFIGS.parent / room for room in ("serve", "data_prep", "evalsuite", "train")]
KEY = "sk-9f2c71d05be84a63"
MODELS = ("embedded", "my-model")


@pytest.mark.slow
def test_the_key_is_nowhere_but_in_the_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The endpoint gives the key back wherever it can: in errors of every length, in answers, in the error of a refusal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLANTED", KEY)
    monkeypatch.setattr("serve.transport.random.uniform", lambda low, high: 0.0)  # no waiting between attempts
    caplog.set_level("DEBUG")
    refusing = False

    def behave(body: dict[str, Any], count: int) -> Answer:
        if refusing:
            return Answer(status=401, body=json.dumps({"error": {"message": f"Incorrect key {KEY}"}}).encode())
        if body["model"] != "my-model":
            return echo(body, count)
        if len(body["messages"]) == 3:  # dialogues are lost here, with the key at another place of every message
            told = json.dumps({"error": {"message": "x" * (250 + count) + KEY}}) if count % 2 else "x" * (170 + count) + KEY
            return Answer(status=503, body=told.encode())
        return Answer(f"You sent me {KEY}, did you not? {echo(body, count).text}")

    config = demo_config(limit=6, languages=["en"], gold=None, concurrency=1, patience=0)
    Path("c.yaml").write_text(yaml.safe_dump(config))
    said = ""

    def run(key: str, *extra: str) -> int:
        nonlocal said
        given = ["--supporter", f"my-model@{endpoint.url}#{key}", "--set", f"endpoints.embedded={endpoint.url}", *extra]
        monkeypatch.setattr("sys.argv", ["esc-eval", "run", "--config", "c.yaml", "--out", "run", *given])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said += "".join(capsys.readouterr())
        return int(end.value.code or 0)

    with Endpoint(behave, models=MODELS) as endpoint:
        assert run("PLANTED") == 1 and "503" in said and "***" in said
        assert f"Bearer {KEY}" in {headers.get("Authorization") for headers in endpoint.headers}
        refusing = True
        assert run("PLANTED", "--set", "mode=paper") == 2  # another config
        assert run("PLANTED") == 1 and "the run ended early" in said and "401" in said
        assert run(KEY) == 2 and "never the key itself" in said
        monkeypatch.setenv("PLANTED", f"{KEY}\n")
        assert run("PLANTED") == 2 and "line break" in said
    assert "You sent me ***, did you not?" in Path("run/dialogues.jsonl").read_text()
    assert Path("run/report.html").exists()
    parts = [KEY[start : start + 9] for start in range(len(KEY) - 8)]  # a half of it is too much as well
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert not [part for part in parts if part.encode() in content], path
    assert not [part for part in parts if part in said or part in caplog.text]


SECRET = ["http://user:hunter2@host/v1", "http://hunter2@host/v1", "http://host/v1?api_key=hunter2", "http://host/v1#hunter2"]


@pytest.mark.parametrize("url", SECRET)
async def test_an_address_with_a_password_is_refused_everywhere_with_the_way_to_give_it(tmp_path: Path, url: str) -> None:
    way = "name the key's variable in endpoint.api_key_env"
    (tmp_path / "m.yaml").write_text(f"name: m\nabout: ''\nroles: []\nlanguages: []\nendpoint:\n  base_url: {url!r}\n")
    (tmp_path / "c.yaml").write_text(f"seeker: a\njudge: b\nout: o\nendpoints: {{a: {url!r}}}\n")
    store = CallStore(tmp_path / "calls.sqlite")
    async with ChatClient(store, {"my-model": url}) as client:
        tries = {
            "m.yaml:6: endpoint.base_url": lambda: load_spec(str(tmp_path / "m.yaml")),
            "c.yaml:4: endpoints.a": lambda: resolve(tmp_path / "c.yaml"),
            "model x": lambda: load_spec(f"x@{url}"),
            "model my-model": lambda: client.base_url(spec()),
        }
        for where, refused in tries.items():
            # Behind an address, # names a key's variable.
            expected = "never the key itself" if "#" in url and where == "model x" else way
            with pytest.raises(UserError) as caught:
                refused()
            assert where in str(caught.value) and expected in str(caught.value) and "hunter2" not in str(caught.value)
        store.close()


def calls_and_imports(path: Path) -> tuple[list[ast.Call], set[str]]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return [node for node in nodes if isinstance(node, ast.Call)], {module.split(".")[0] for module in modules}


@pytest.mark.slow
def test_nothing_that_is_read_can_run() -> None:
    """No pickle, no code made from text, no shell, no remote code, and YAML by its safe loader only."""
    # `import` runs two scripts of a user's own clone when told to, in a process of its own and without imports, files
    # or builtins beyond a list (tests/data_prep/test_import.py holds what it refuses).
    of_the_users = {"data_prep/published/stand_ins.py": {"exec", "compile"}}
    runs = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.load", "np.load", "yaml.unsafe_load"}
    for path in (path for room in ROOMS for path in room.rglob("*.py")):
        allowed = of_the_users.get(path.relative_to(CONFIGS.parent).as_posix(), set())
        calls, modules = calls_and_imports(path)
        assert not modules & {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}, path
        for call in calls:
            name = ast.unparse(call.func)
            assert name not in runs - allowed, f"{path}:{call.lineno}: {name}"
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            for risky in ("shell", "trust_remote_code", "allow_pickle"):
                assert given.get(risky, "False") == "False", f"{path}:{call.lineno}: {risky}"
            if name == "yaml.load":
                assert given["Loader"] == "_OnceLoader", f"{path}:{call.lineno}"
    from core.settings import _OnceLoader

    assert issubclass(_OnceLoader, (yaml.SafeLoader, yaml.CSafeLoader))


def test_servers_listen_on_loopback_and_run_no_remote_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for gpu in (True, False):
        monkeypatch.setattr(machine, "has_gpu", lambda gpu=gpu: gpu)
        monkeypatch.setattr(machine, "visible_gpus", lambda: ["0"])
        monkeypatch.setattr(machine, "listed_gpus", list)
        plans = plan.plan_servers([load_spec("embedded"), load_spec("qwen1.5-7b-chat")], tmp_path, resolve=False)
        for each in plans:
            assert each.argv[each.argv.index("--host") + 1] == "127.0.0.1" and each.argv.count("--host") == 1
            assert "--trust-remote-code" not in each.argv
    everywhere = [path for room in ROOMS for path in room.rglob("*.py") if "0.0.0.0" in path.read_text(encoding="utf-8")]
    assert not everywhere, "nothing of ours listens on all addresses"


NAMES = ["../../escaped", "/tmp/escaped", "..", "a/../../escaped", "escaped\x00.txt", "x" * 5000, "\x1b[31mred"]
NAMES += ["line\nbreak", "\u202egnp.exe", "C:\\escaped", "-rf", "~root", "$(touch escaped)", "名字" * 60]


def listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_no_name_reaches_out_of_the_run_folder(esc_eval: EscEval, tmp_path: Path) -> None:
    """Card ids, the supporter's name, the rubric and its dimensions, and what models say, all of them hostile at once."""
    inside = tmp_path / "deep" / "inner"
    inside.mkdir(parents=True)
    cards = load_cards(bundled_cards("en"))
    bad = [name[:200] for name in NAMES if not re.search(r"[\x00-\x1f]", name)]  # readers refuse the others
    write_jsonl(inside / "cards.jsonl", [card.model_copy(update={"id": name}) for card, name in zip(cards, bad, strict=False)])
    rubric = yaml.safe_load((CONFIGS / "rubrics" / "esc_eval.yaml").read_text())
    rubric |= {"name": "../../escaped", "dimensions": dict(zip(bad, rubric["dimensions"].values(), strict=False))}
    (inside / "rubric.yaml").write_text(yaml.safe_dump(rubric, allow_unicode=True))
    settings = demo_config(
        gold=None, languages=["en"], limit=None, cards=["cards.jsonl"], rubric="rubric.yaml", exchanges=1, out="run"
    )
    (inside / "c.yaml").write_text(yaml.safe_dump(settings))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(inside)

        def behave(body: dict[str, Any], count: int) -> Answer:
            found = echo(body, count)
            return found if "structured_outputs" in body else Answer(f"{NAMES[count % len(NAMES)]} {found.text}")

        with Endpoint(behave, models=("embedded", *NAMES)) as endpoint:
            before = listing(tmp_path)
            common = ("run", "--config", "c.yaml", "--set", f"endpoints.embedded={endpoint.url}")
            mine = ("--supporter", f"{NAMES[0]}@{endpoint.url}")
            assert esc_eval(*common, *mine) == (0, "")
            made = listing(tmp_path) - before
            assert "deep/inner/run/report.html" in made and "deep/inner/run/tables/leaderboard-en.csv" in made
            assert {name for name in made if not name.startswith("deep/inner/run")} == set()
            # Other names: used safely, or refused in one line.
            for name in NAMES[1:]:
                simulate = ("run", "--only", "simulate", *common[1:], "--limit", "1", "--out", "other")
                code, err = esc_eval(*simulate, "--supporter", f"{name}@{endpoint.url}")
                assert (code, err) == (0, "") or (code == 2 and err.startswith("error: ") and err.count("\n") == 1), (name, err)
            made = listing(tmp_path) - before
            assert {name for name in made if not name.startswith(("deep/inner/run", "deep/inner/other"))} == set()
            for name in (NAMES[0], NAMES[5], NAMES[6]):  # no command line can hold NAMES[4]
                for option in (("--supporter", ""), ("--seeker", ""), ("--judge", ""), ("--set", "prompts="), ("--cards", "")):
                    code, err = esc_eval(*common, "--out", "third", option[0], option[1] + name)
                    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1, (option, name, err)
                    assert not [c for c in err[:-1] if not c.isprintable()]
            for name in ("\x00", "x" * 300):
                code, err = esc_eval(*common, *mine, "--out", name)
                assert code == 2 and err.count("\n") == 1 and ("run folder" in err or "--out" in err)
            assert {name for name in listing(tmp_path) - made - before if "third" not in name} == set()


OUTSIDE = ["bundled:../../escaped", "bundled:/etc", "embedded:../../escaped", "../escaped", "~no-such-user/x", "x\x00y"]


@pytest.mark.parametrize("place", OUTSIDE)
def test_checkpoints_that_reach_out_are_refused(place: str) -> None:
    with pytest.raises(UserError):
        resolve_checkpoint(place, "model my-model: checkpoint")


def test_bundled_names_are_names() -> None:
    """A path that would be found, were it taken for one."""
    assert local_path("bundled:esc-rank-embedded", "adapter") is not None
    with pytest.raises(UserError, match="takes the name of an adapter"):
        local_path("bundled:../adapters/esc-rank-embedded", "adapter")


@pytest.mark.parametrize("name", ["", " ", "..", "../x", "a/b", "-rf", "~root", "a b", "a\n", "名字", "x" * 101])
def test_a_models_name_is_a_plain_name(name: str) -> None:
    """It is part of ids, of the names of logs and of what is sent to servers."""
    with pytest.raises(ValidationError, match="name"):
        ModelSpec.model_validate(spec().model_dump() | {"name": name})


def test_the_log_of_a_server_stays_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is the name that the server is asked by, which may be anything."""
    monkeypatch.setattr("core.machine.has_gpu", lambda: False)
    for name in NAMES:
        model = spec(None, endpoint={"model": name}, checkpoint="org/model", context_length=1024)
        (server,) = plan.plan_servers([model], tmp_path, resolve=False)
        assert server.log.parent == tmp_path and server.log.name.isprintable() and len(server.log.name) < 255


def test_a_list_of_tables_removes_nothing_outside(tmp_path: Path) -> None:
    (tmp_path / "kept.csv").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.csv").write_text("yesterday's")
    (tmp_path / "out" / ".agree.tables").write_text(f"../kept {tmp_path}/kept old\n")
    write_csv("agree", [], tmp_path / "out")
    assert (tmp_path / "kept.csv").exists() and not (tmp_path / "out" / "old.csv").exists()


def test_what_an_error_quotes_cannot_steer_a_terminal(esc_eval: EscEval, tmp_path: Path) -> None:
    card = json.loads(bundled_cards("en").read_text().splitlines()[0])
    (tmp_path / "c.jsonl").write_text(json.dumps(card | {"\x1b]0;title\x07\u202e\nsecond": 1}))
    code, err = esc_eval("run", "--config", CONFIGS / "eval" / "demo.yaml", "--out", "run", "--cards", "c.jsonl")
    assert code == 2 and "c.jsonl:1: \\x1b]0;title" in err and "unknown field" in err and err.count("\n") == 1
    assert sys.stderr is not None and all(c.isprintable() for c in err.rstrip("\n"))


# --- the page of a report -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("pack_above", [0, 10**9], ids=["packed", "plain"])
def test_injected_text_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack_above: int) -> None:
    monkeypatch.setattr(transcripts, "PACK_ABOVE", pack_above)
    plain, _ = built(tmp_path / "clean", make_content())
    page, source = built(tmp_path / "poisoned", make_content(poison=True))
    # The same elements with the same attributes but for what is text: nothing that was injected became markup.
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    assert [sorted(attributes) for _, attributes in page.elements] == [sorted(attributes) for _, attributes in plain.elements]
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert "\x00" not in source and "\x1b" not in source
    text = "".join(page.text)
    for injected in INJECTIONS:
        assert clean(injected) in text  # in titles, tables and configuration
    data = page.data("transcript-data")
    bodies = data["chunks"] if pack_above else [json.loads(gzip.decompress(base64.b64decode(c))) for c in data["chunks"]]
    assert bodies[0][0][0][0][1].endswith(clean("".join(INJECTIONS)))


@pytest.mark.slow
def test_policy_names_exactly_the_scripts_of_the_page(tmp_path: Path) -> None:
    page, _ = built(tmp_path, make_content(poison=True))
    (policy,) = [
        a["content"] or "" for tag, a in page.elements if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    ]
    runnable = [body for attributes, body in page.scripts if attributes.get("type") is None]
    (packed,) = (body for attributes, body in page.scripts if attributes.get("id") == "plotly")
    runnable.append(gzip.decompress(base64.b64decode(packed)).decode())
    hashes = ["'sha256-" + base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() + "'" for body in runnable]
    assert re.search(r"script-src ([^;]*);", policy).group(1).split() == hashes  # type: ignore[union-attr]
    assert policy.startswith("default-src 'none';") and "unsafe-eval" not in policy and "http" not in policy
    assert runnable[-1].count("plotly.js v") == 1 and len(packed) < 2.3e6
    assert not [a for _, a in page.elements if a.get("src") or (a.get("href") or "#").startswith(("http", "//"))]


def test_scripts_never_write_markup() -> None:
    for name in sorted(path.name for path in TEMPLATES.glob("*.js")):
        code = (TEMPLATES / name).read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|createContextualFragment", code
        )
