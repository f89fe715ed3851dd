"""Run folders that grow: only what is new is asked, and a grown run is a run made at once, byte for byte."""

import json
import re
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.files import write_jsonl
from data_prep.cards import bundled_cards, load_cards
from evalsuite.runs.config import load_config
from evalsuite.runs.dialogue_framework import resolve_config
from tests.conftest import EscEval
from tests.demo import demo_config
from tests.endpoint import Answer, Endpoint, echo
from tests.evalsuite import test_emoharbor
from tests.evalsuite.test_faults import one_line
from tests.processes import started

pytestmark = pytest.mark.slow

MODELS = ("embedded", "a", "b", "d")
MANY = [  # the paper's, without chatgpt
    *("gpt-4", "vicuna-7b-1.5", "wizardlm2-7b", "qwen1.5-7b-chat", "chatglm3-6b", "yi-6b-chat", "chatcounselor", "mindchat"),
    *("soulchat", "emollm", "mechat", "llama3-8b-instruct", "extes-llama"),
]
_KEPT = ("config.json", "usage.json", "agreement.json")
DIALOGUE = 3 * 2 + 1  # calls of a dialogue of three exchanges and of its judgement


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    """An endpoint that serves seeker, judge and the supporters a, b and d, which have a spec file each."""
    with Endpoint(models=MODELS) as up:
        for name in ("a", "b", "d"):
            write_spec(tmp_path / f"{name}.yaml", name, up.url)
        write_config(tmp_path / "c.yaml", up.url)
        yield up


def write_spec(path: Path, name: str, url: str, **changes: Any) -> None:
    spec = {"name": name, "about": "scripted", "roles": ["supporter"], "languages": ["en", "zh"], "endpoint": {"base_url": url}}
    path.write_text(yaml.safe_dump(spec | changes))


def write_config(path: Path, url: str, **changes: Any) -> None:
    settings = {"gold": None, "languages": ["en"], "limit": 2, "exchanges": 3, "supporters": [], "endpoints": {"embedded": url}}
    path.write_text(yaml.safe_dump(demo_config(**settings | changes)))


def run(out: str, *options: object, only: str | None = None) -> tuple[str, ...]:
    config = () if "--config" in options else ("--config", "c.yaml")
    return "run", *(("--only", only) if only else ()), *config, *map(str, options), "--out", out


def left(folder: Path) -> dict[str, Any]:
    """What a run left, without clock times and what depends on its folder's history (store, versions, logs)."""
    kept = [*folder.rglob("*.jsonl"), *(path for name in _KEPT for path in folder.rglob(name))]  # other judges' too
    records = {str(path.relative_to(folder)): path.read_bytes() for path in kept}
    tables = {path.name: path.read_bytes() for path in (folder / "tables").glob("*.csv") if not path.name.endswith("costs.csv")}
    report = json.loads((folder / "report.json").read_text())
    del report["generated"], report["timing"]
    report["tables"] = [table for table in report["tables"] if table["key"] != "dialogue-costs"]
    return records | tables | {"report.json": report}


def supporters(folder: str) -> Counter[str]:
    """How many dialogues of each supporter a folder holds."""
    return Counter(json.loads(line)["supporter"] for line in Path(folder, "dialogues.jsonl").read_text().splitlines())


@pytest.mark.parametrize(
    ("first", "then", "at_once", "new"),
    [
        pytest.param("a --limit 3", "a --limit 5", "a --limit 5", 2 * DIALOGUE, id="cards"),
        pytest.param("a", "a b", "a b", 2 * DIALOGUE, id="a supporter"),
        pytest.param("a", "b", "a b", 2 * DIALOGUE, id="a supporter named alone"),
        pytest.param("a b", "d a", "a b d", 2 * DIALOGUE, id="one of three"),
        pytest.param("a", "a parrot", "a parrot", 2 * (3 + 1), id="a floor"),
        pytest.param("a --language en", "a --config two.yaml", "a --config two.yaml", 2 * DIALOGUE, id="a language"),
        pytest.param("a --language en", "a --language zh", "a --config two.yaml", 2 * DIALOGUE, id="a language alone"),
        pytest.param("a", "a --config trials.yaml", "a --config trials.yaml", 4 * DIALOGUE, id="trials"),
    ],
)
def test_a_grown_run_asks_only_what_is_new_and_is_a_run_made_at_once(
    esc_eval: EscEval,
    tmp_path: Path,
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    then: str,
    at_once: str,
    new: int,
) -> None:
    """Commands by their supporters' names, and their options."""
    gold = {"dialogues": "synthetic_test", "limit": 2}
    write_config(tmp_path / "c.yaml", endpoint.url, gold=gold)
    write_config(tmp_path / "two.yaml", endpoint.url, gold=gold, languages=["en", "zh"])
    write_config(tmp_path / "trials.yaml", endpoint.url, gold=gold, trials=3)

    def command(line: str, out: str) -> tuple[str, ...]:
        names, dashes, options = line.partition(" --")
        specs = [f"--supporter={name}" + ".yaml" * (name != "parrot") for name in names.split()]
        return run(out, *specs, *f"{dashes}{options}".split())

    def unreported(*arguments: str) -> int:
        """How many calls a command makes that leaves the report as it is."""
        before = len(endpoint.requests)
        with monkeypatch.context() as patch:
            patch.setattr("evalsuite.report.content.report_run", lambda *given: None)
            assert esc_eval(*arguments) == (0, "")
        return len(endpoint.requests) - before

    unreported(*command(first, "grown/r"))
    before = len(endpoint.requests)
    assert esc_eval(*command(then, "grown/r")) == (0, "")
    gold_calls = 2 * ("two" in at_once)
    assert len(endpoint.requests) - before == new + gold_calls
    assert esc_eval(*command(at_once, "once/r")) == (0, "")
    assert left(Path("grown/r")) == left(Path("once/r"))
    for again in (first, then):
        assert unreported(*command(again, "grown/r")) == 0
        assert left(Path("grown/r")) == left(Path("once/r")), "the folder is kept whole, whatever part of it is asked for"


def test_a_folder_holds_what_each_command_asked_for(esc_eval: EscEval, endpoint: Endpoint) -> None:
    """What was asked of one supporter is not asked of another: each has the cards that its commands named."""
    assert esc_eval(*run("r", "--supporter", "a.yaml", "--limit", 3, only="simulate")) == (0, "")
    assert esc_eval(*run("r", "--supporter", "b.yaml", "--limit", 5, only="simulate")) == (0, "")
    assert supporters("r") == {"a": 3, "b": 5}
    assert len(endpoint.requests) == 8 * (DIALOGUE - 1)
    assert esc_eval(*run("r", "--supporter", "b.yaml", "--limit", 1, only="simulate")) == (0, "")
    assert supporters("r") == {"a": 3, "b": 5}


def test_what_is_kept_is_said_in_one_line(endpoint: Endpoint, tmp_path: Path) -> None:
    for limit in (3, 1):
        log = tmp_path / f"log{limit}"
        process = started(*run("r", "--supporter", "a.yaml", "--limit", limit, only="simulate"), folder=tmp_path, log=log)
        process.join()
        assert process.exitcode == 0, log.with_suffix(".err").read_text()
    assert log.read_text().splitlines()[1:] == ["r has 2 dialogues that this command does not ask for: they are kept"]


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (("--set", "mode=paper"), 'mode: "native" → "paper"'),
        (("--config", "exchanges.yaml"), "exchanges: 3 → 2"),
        (("--set", "prompts=role_play_cot"), "prompts.fingerprint"),
        (("--seeker", "seeker.yaml"), 'seeker.name: "embedded" → "s"'),
        (("--supporter", "hot.yaml"), "supporters.a.sampling.temperature: 0.0 → 0.7"),
        (("--cards", "cards.jsonl"), '"Another problem."'),
    ],
)
def test_what_changes_the_meaning_of_what_is_there_is_refused_with_the_difference(
    esc_eval: EscEval, tmp_path: Path, endpoint: Endpoint, change: tuple[str, ...], difference: str
) -> None:
    write_config(tmp_path / "c.yaml", endpoint.url, supporters=["a.yaml"])
    write_config(tmp_path / "exchanges.yaml", endpoint.url, supporters=["a.yaml"], exchanges=2)
    write_spec(tmp_path / "hot.yaml", "a", endpoint.url, sampling={"temperature": 0.7})
    write_spec(tmp_path / "seeker.yaml", "s", endpoint.url, roles=["seeker"])
    cards = load_cards(bundled_cards("en"))
    write_jsonl(tmp_path / "cards.jsonl", [*cards[5:], cards[0].model_copy(update={"problem": "Another problem."})])
    assert esc_eval(*run("r", only="simulate")) == (0, "")
    before, asked = {path: path.read_bytes() for path in Path("r").glob("*.json*")}, len(endpoint.requests)
    grown = esc_eval(*run("r", "--limit", 60, *change, only="simulate"))
    one_line(grown, 2, "r was made with another ", difference)
    assert {path: path.read_bytes() for path in Path("r").glob("*.json*")} == before and len(endpoint.requests) == asked


def test_what_was_never_answered_leaves_no_folder(esc_eval: EscEval, tmp_path: Path, endpoint: Endpoint) -> None:
    """A ranker that is not trained, a dead URL, a model that is not served, a key that is refused."""
    write_spec(tmp_path / "dead.yaml", "dead", "http://127.0.0.1:9/v1")
    write_spec(tmp_path / "unserved.yaml", "unserved", endpoint.url)
    for options, told in (
        (("--supporter", "a.yaml", "--judge", "esc-rank"), "checkpoint missing"),
        (("--supporter", "dead.yaml"), "cannot be reached"),
        (("--supporter", "unserved.yaml"), "does not list 'unserved'"),
    ):
        endpoint.behave = lambda body, count: Answer(status=404)
        one_line(esc_eval(*run("deep/r", *options)), 2, told)
        assert not Path("deep").exists() and len(endpoint.requests) == ("unserved.yaml" in options)
    endpoint.behave = lambda body, count: Answer(status=401)
    one_line(esc_eval(*run("deep/r", "--supporter", "a.yaml")), 2, "nothing was answered", "deep/r", "401")
    assert not Path("deep").exists()
    Path("mine").mkdir()
    one_line(esc_eval(*run("mine", "--supporter", "a.yaml")), 2, "401")
    assert list(Path("mine").iterdir()) == [], "what somebody made stays"


def test_a_supporter_that_never_answers_leaves_a_run_as_it_was(esc_eval: EscEval, tmp_path: Path, endpoint: Endpoint) -> None:
    assert esc_eval(*run("r", "--supporter", "a.yaml", only="simulate")) == (0, "")
    before = {name: Path("r", name).read_bytes() for name in ("config.json", "dialogues.jsonl", "usage.json")}
    endpoint.behave = lambda body, count: Answer(status=404) if body["model"] == "b" else echo(body, count)
    one_line(esc_eval(*run("r", "--supporter", "b.yaml", only="simulate")), 1, "404")
    endpoint.behave = echo
    write_spec(tmp_path / "b.yaml", "b", endpoint.url, sampling={"temperature": 0.5})
    assert esc_eval(*run("r", "--supporter", "a.yaml", only="simulate")) == (0, "")
    assert {name: Path("r", name).read_bytes() for name in before} == before, "nothing is left of it"
    assert esc_eval(*run("r", "--supporter", "b.yaml", only="simulate")) == (0, ""), "its spec may be mended"
    assert supporters("r") == {"a": 2, "b": 2}


def test_a_folder_whose_first_run_was_killed_before_an_answer_is_anybodys(
    esc_eval: EscEval, tmp_path: Path, endpoint: Endpoint
) -> None:
    """Such a folder is what older versions left behind, too."""
    Path("r").mkdir()
    Path("r/config.json").write_text('{"simulate": {"mode": "paper"}, "score": {"mode": "paper"}}')
    assert esc_eval(*run("r", "--supporter", "a.yaml", only="simulate")) == (0, "")
    assert json.loads(Path("r/config.json").read_text())["simulate"]["mode"] == "native"


def test_a_run_that_is_killed_while_it_grows_goes_on(esc_eval: EscEval, tmp_path: Path, endpoint: Endpoint) -> None:
    config = run("grown", "--supporter", "a.yaml", only="simulate")
    assert esc_eval(*config) == (0, "")
    start = len(endpoint.requests)
    growing = run("grown", "--supporter", "a.yaml", "--supporter", "b.yaml", "--limit", 4, only="simulate")
    process: ForkServerProcess

    def kill(body: dict[str, Any], count: int) -> Answer:
        if count == start + 17:
            process.kill()
        return echo(body, count)

    endpoint.behave = kill
    process = started(*growing, folder=tmp_path, log=tmp_path / "log")
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    endpoint.behave = echo
    assert esc_eval(*config) == (0, ""), "the part that was there is as it was"
    assert supporters("grown") == {"a": 2}
    assert esc_eval(*growing) == (0, "")
    assert esc_eval(*run("once", "--supporter", "a.yaml", "--supporter", "b.yaml", "--limit", 4, only="simulate")) == (0, "")
    for name in ("config.json", "cards.jsonl", "dialogues.jsonl", "usage.json"):
        assert Path("grown", name).read_bytes() == Path("once", name).read_bytes(), name


def test_records_stay_where_stored_answers_do_not_reach(esc_eval: EscEval, tmp_path: Path, endpoint: Endpoint) -> None:
    """As in a folder of a version that asked in other words: its records are kept, and none of it is asked again."""
    assert esc_eval(*run("r", "--supporter", "a.yaml", only="simulate")) == (0, "")
    before, asked = Path("r/dialogues.jsonl").read_bytes(), len(endpoint.requests)
    with sqlite3.connect("r/calls.sqlite") as store:
        store.execute("UPDATE calls SET key = 'old ' || key")
    assert esc_eval(*run("r", "--supporter", "b.yaml", only="simulate")) == (0, "")
    assert Path("r/dialogues.jsonl").read_bytes().startswith(before) and supporters("r") == {"a": 2, "b": 2}
    assert len(endpoint.requests) - asked == 2 * (DIALOGUE - 1)


def test_a_shard_does_not_grow_and_the_merged_run_does(esc_eval: EscEval, tmp_path: Path, endpoint: Endpoint) -> None:
    parts = [run(f"s{n}", "--supporter", "a.yaml", "--shard", f"{n}/2", only="simulate") for n in (1, 2)]
    for part in parts:
        assert esc_eval(*part) == (0, "")
    one_line(esc_eval(*parts[0], "--limit", 3), 2, "s1 was made with another simulate config", "a shard does not grow")
    assert esc_eval("merge", "s1", "s2", "--out", "r") == (0, "")
    assert esc_eval(*run("r", "--supporter", "a.yaml", "--limit", 3, only="simulate")) == (0, "")
    assert supporters("r") == {"a": 3} and len(endpoint.requests) == 3 * (DIALOGUE - 1)


def test_a_run_folder_is_named_by_framework_and_supporters(esc_eval: EscEval, endpoint: Endpoint) -> None:
    settings = yaml.safe_load(Path("c.yaml").read_text())
    del settings["out"]
    Path("c.yaml").write_text(yaml.safe_dump(settings))
    common = ("--config", "c.yaml", "--limit", "1")
    simulate = ("run", "--only", "simulate", *common)
    assert esc_eval(*simulate, "--supporter", "a.yaml", "--supporter", "silent") == (0, "")
    assert esc_eval(*simulate, "--supporter", "a.yaml", "--supporter", "b.yaml") == (0, "")
    assert esc_eval(*simulate, "--supporter", "a.yaml", "--out", "mine") == (0, "")
    assert sorted(str(path.parent) for path in Path().rglob("config.json")) == ["mine", "runs/esc_eval/a", "runs/esc_eval/a+b"]
    one_line(
        esc_eval("run", "--only", "score", *common, "--dialogues", "mine/dialogues.jsonl"), 2, "no supporter given", "--out"
    )
    many = load_config(Path("c.yaml"), {"supporters": ["a.yaml", "b.yaml", *MANY]})
    assert re.fullmatch(r"a\+14-[0-9a-f]{8}", resolve_config(many).out.name)


def test_a_card_of_a_run_is_not_written_over_by_a_folder_of_its_own_name(esc_eval: EscEval, endpoint: Endpoint) -> None:
    settings = yaml.safe_load(Path("c.yaml").read_text())
    del settings["out"]
    Path("c.yaml").write_text(yaml.safe_dump(settings))
    Path("runs/esc_eval/a").mkdir(parents=True)
    write_jsonl(Path("runs/esc_eval/a/cards.jsonl"), load_cards(bundled_cards("en")))
    command = "run --only simulate --config c.yaml --supporter a.yaml --cards runs/esc_eval/a/cards.jsonl"
    one_line(esc_eval(*command.split()), 2, "runs/esc_eval/a/cards.jsonl is read from there and would be replaced")


def test_a_run_that_an_older_version_left_unfinished_grows(esc_eval: EscEval, endpoint: Endpoint) -> None:
    """Such a run wrote cards and records at its end only; its answers are used."""
    assert esc_eval(*run("r", "--supporter", "a.yaml", only="simulate")) == (0, "")
    for name in ("cards.jsonl", "dialogues.jsonl", "usage.json"):
        Path("r", name).unlink()
    asked = len(endpoint.requests)
    assert esc_eval(*run("r", "--supporter", "a.yaml", "--limit", 3, only="simulate")) == (0, "")
    assert supporters("r") == {"a": 3} and len(endpoint.requests) - asked == DIALOGUE - 1


def test_emoharbor_grows_by_profiles_and_by_a_language(esc_eval: EscEval, tmp_path: Path) -> None:
    with Endpoint(test_emoharbor.speaks, models=test_emoharbor.MODELS) as endpoint:
        config = test_emoharbor.config(tmp_path, endpoint, own={"judging": "profile"}, languages=["en", "zh"])
        both = ("--config", config)
        for stage in ("simulate", "score"):
            assert esc_eval("run", "--only", stage, *both, "--language", "en", "--out", "grown") == (0, "")
        asked = len(endpoint.requests)
        for out in ("grown", "once"):
            assert esc_eval("run", "--only", "simulate", *both, "--limit", "2", "--out", out) == (0, "")
            assert esc_eval("run", "--only", "score", *both, "--out", out) == (0, "")
        assert len(endpoint.requests) == (1 + 3 + 4) * asked, "of four dialogues three are new in the one, all in the other"
    for name in ("config.json", "profiles.jsonl", "dialogues.jsonl", "judgements.jsonl", "usage.json"):
        assert Path("grown", name).read_bytes() == Path("once", name).read_bytes(), name


def test_a_reader_that_goes_away_costs_a_run_nothing(endpoint: Endpoint, tmp_path: Path) -> None:
    """`esc-eval run … | head -1`: everything is asked, every file is written, and the exit code is that of the run."""
    command = [sys.executable, "-m", "evalsuite.cli", *run("r", "--supporter", "a.yaml", "--set", "floors=true")]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() and not endpoint.requests
        process.stdout.close()
        assert (process.wait(100), process.stderr.read()) == (0, "")
    assert len(endpoint.requests) == 2 * DIALOGUE + 3 * 2 * (3 + 1)
    report = json.loads((tmp_path / "r" / "report.json").read_text())
    assert (tmp_path / "r" / "report.html").exists() and all(
        (tmp_path / "r" / "tables" / f"{table['key']}.csv").exists() for table in report["tables"]
    )
