"""Sharded runs: the parts put together are one run, and what is not all of one run is refused."""

import json
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from typer.testing import CliRunner

import core.files
from core.errors import UserError
from core.files import CONFIGS, write_json, write_jsonl
from core.records import Dialogue, Turn
from evalsuite.commands.reports import merge
from evalsuite.papers import esc_eval as esc_eval_prompts
from evalsuite.papers.esc_eval import EscEval as Framework
from evalsuite.papers.esc_eval import EscEvalConfig
from evalsuite.runs import shards
from evalsuite.runs.shards import Shard
from tests.conftest import EscEval
from tests.demo import demo_config
from tests.endpoint import Endpoint
from tests.evalsuite.records import make_judgement, make_rubric
from tests.evalsuite.test_faults import one_line

RECORDS = ["cards", "dialogues", "judgements", "gold_dialogues", "gold_scores", "gold_judgements"]
FILES = [*(f"{name}.jsonl" for name in RECORDS), "agreement.json", "usage.json", "config.json"]


SEEKERS = ("--config", CONFIGS / "eval" / "role_play.yaml", "--seeker", "a=merged", "--seeker", "b=s2", "--out", "other")
READERS = [  # of finished run folders, s2 being one shard of four
    ("report", "s2"),
    ("leaderboard", "s2", "--against", "merged"),
    ("judge-card", "s2"),
    ("paper", "role-play", *SEEKERS),
    ("paper", "role-play", "--pairs", *SEEKERS),
]


def run_merge(*arguments: object) -> Any:
    app = typer.Typer()
    app.command()(merge)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_four_shards_merged_are_one_run_to_the_byte(esc_eval: EscEval, tmp_path: Path) -> None:
    with Endpoint(models=("embedded",)) as endpoint:
        config = demo_config(languages=["en"], limit=6, exchanges=1, gold={"dialogues": "synthetic_test", "limit": 5})
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
        command = ("run", "--config", "c.yaml", "--set", f"endpoints.embedded={endpoint.url}")
        assert esc_eval(*command, "--out", "whole") == (0, "")
        asked = len(endpoint.requests)
        for index in (3, 1, 4, 2):
            assert esc_eval(*command, "--shard", f"{index}/4", "--out", f"s{index}") == (0, "")
        assert len(endpoint.requests) == 2 * asked, "no dialogue is held or judged twice"
        assert [len(Path(f"s{index}/dialogues.jsonl").read_text().splitlines()) for index in (1, 2, 3, 4)] == [1, 2, 1, 2]
        assert not Path("s1/agreement.json").exists() and not Path("s1/report.html").exists()

        merged = run_merge("s4", "s2", "s1", "s3", "--out", "merged")
        assert merged.exit_code == 0, merged.output
        for name in FILES:
            assert Path("merged", name).read_bytes() == Path("whole", name).read_bytes(), name
        assert Path("merged/report.html").exists()
        assert json.loads(Path("merged/timing.json").read_text())["simulate"]["tries"] == 4

        # Shards of the form that stated no version, beside others and alone: every record is read and written anew.
        for earlier, out in (("s3",), "mixed"), (("s1", "s2", "s3", "s4"), "former"):
            for name in earlier:
                config = json.loads(Path(name, "config.json").read_text())
                config.pop("format", None)
                write_json(Path(name, "config.json"), config)
            assert run_merge("s4", "s2", "s1", "s3", "--out", out).exit_code == 0
            for name in FILES:
                assert Path(out, name).read_bytes() == Path("whole", name).read_bytes(), (out, name)

        before = Path("merged/judgements.jsonl").read_bytes()
        for stage in ("simulate", "score"):
            assert esc_eval(*command, "--only", stage, "--out", "merged") == (0, "")
        assert len(endpoint.requests) == 2 * asked, "the merged run has every finished call"
        assert Path("merged/judgements.jsonl").read_bytes() == before

        for reader in READERS:
            code, err = esc_eval(*reader)
            assert code == 2 and err.count("\n") == 1, (reader, err)
            assert "s2 holds only shard 2/4 of a run: merge all shards with `esc-eval merge`" in err, reader
        for other, said in ((("--shard", "1/4"), "not shard 1/4"), ((), "not a whole run")):
            one_line(esc_eval(*command, *other, "--out", "s2"), 2, "s2 holds shard 2/4", said)
        one_line(esc_eval(*command, "--shard", "1/4", "--out", "whole"), 2, "whole holds a whole run, not shard 1/4")


def test_scores_of_given_dialogues_merge_and_a_shards_own_dialogues_are_not_dealt_again(
    esc_eval: EscEval, tmp_path: Path
) -> None:
    with Endpoint(models=("embedded",)) as endpoint:
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(demo_config(limit=2, exchanges=1, gold=None)))
        given = ("--config", "c.yaml", "--set", f"endpoints.embedded={endpoint.url}")
        for stage in ("simulate", "score"):
            assert esc_eval("run", "--only", stage, *given, "--out", "whole") == (0, "")
        for index in range(1, 6):  # the first has nothing to do
            shard = ("--shard", f"{index}/5", "--out")
            assert esc_eval(
                "run", "--only", "score", *given, "--dialogues", "whole/dialogues.jsonl", *shard, f"given{index}"
            ) == (0, "")
            if index > 1:
                assert esc_eval("run", "--only", "simulate", *given, *shard, f"own{index}") == (0, "")
                assert esc_eval("run", "--only", "score", *given, *shard, f"own{index}") == (0, "")
        assert len(Path("own4/judgements.jsonl").read_text().splitlines()) == 7
        shards.merge([Path(f"given{index}") for index in range(1, 6)], Path("given"))
        for name in ("dialogues.jsonl", "judgements.jsonl"):
            assert Path("given", name).read_bytes() == Path("whole", name).read_bytes()


def test_a_shard_starts_only_the_supporters_of_its_own_dialogues(
    esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = yaml.safe_load((CONFIGS / "models" / "embedded.yaml").read_text())
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(spec | {"name": name}))
    monkeypatch.setattr(
        "serve.plan.plan_servers", lambda specs, logs, **more: pytest.fail(f"starts {[spec.name for spec in specs]}")
    )
    with Endpoint(models=("embedded", "one", "two")) as endpoint:
        config = demo_config(limit=2, languages=["en"], exchanges=1, gold=None, supporters=["one.yaml", "two.yaml"])
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
        command = ("run", "--only", "simulate", "--config", "c.yaml", "--set", f"endpoints.embedded={endpoint.url}", "--shard")
        assert esc_eval(*command, "1/2", "--set", f"endpoints.one={endpoint.url}", "--out", "s1") == (0, "")
        both = ("--set", f"endpoints.one={endpoint.url}", "--set", f"endpoints.two={endpoint.url}")
        assert esc_eval(*command, "2/2", *both, "--out", "s2") == (0, "")
    lines = Path("s1/dialogues.jsonl").read_text().splitlines()
    assert [json.loads(line)["supporter"] for line in lines] == ["one", "one"]


def dialogue(number: int) -> Dialogue:
    return Dialogue(id=f"d{number}", language="en", source="test", turns=(Turn(role="seeker", text="hello"),))


def shard(folder: Path, index: int, of: int, total: int = 5, **config: Any) -> Path:
    """A finished shard's folder, as far as merging looks at it."""
    folder.mkdir()
    write_json(folder / "config.json", {"shard": {"index": index, "of": of}, "simulate": {"mode": "native"}} | config)
    write_jsonl(folder / "dialogues.jsonl", Shard(index, of).take([dialogue(number) for number in range(total)]))
    return folder


def two(t: Path, **config: Any) -> list[Path]:
    return [shard(t / "a", 1, 2, **config), shard(t / "b", 2, 2, **config)]


def changed(t: Path, file: str, content: str | None) -> list[Path]:
    """Two shards, with another content of one file, or without it."""
    folders = two(t)
    (t / file).unlink(missing_ok=True)
    if content is not None:
        (t / file).write_text(content)
    return folders


def lines_of(*numbers: int) -> str:
    return "".join(dialogue(number).model_dump_json() + "\n" for number in numbers)


def scored(t: Path, *judged: str, **config: Any) -> list[Path]:
    """Two shards of a scored run, of which the first judged these dialogues and the second none."""
    folders = two(t, score={"rubric": make_rubric("empathy").model_dump(mode="json")}, **config)
    write_jsonl(t / "a" / "judgements.jsonl", [make_judgement(dialogue, "empathy", 3) for dialogue in judged])
    write_jsonl(t / "b" / "judgements.jsonl", [])
    return folders


def another_part_of_the_gold_set(t: Path) -> list[Path]:
    folders = scored(t, gold={})
    for folder in folders:
        write_jsonl(folder / "gold_dialogues.jsonl", [dialogue(0), dialogue(1)])
        write_jsonl(folder / "gold_judgements.jsonl", [make_judgement("d0", "empathy", 3)])
    return folders


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda t: [shard(t / "a", 1, 4), shard(t / "b", 3, 4)], "missing: shard 2/4, 4/4; all 4 are needed"),
        (lambda t: [shard(t / "a", 1, 2), shard(t / "b", 1, 2)], "shard 1/2 twice: .*a and .*b"),
        (lambda t: [shard(t / "a", 1, 2), shard(t / "b", 2, 3)], "a is shard 1/2, .*b shard 2/3: not of one run"),
        (lambda t: [shard(t / "a", 1, 2)] * 2, "duplicate folders"),
        (
            lambda t: [shard(t / "a", 1, 2), shard(t / "b", 2, 2, simulate={"mode": "paper"})],
            'a and .*b are not of one run: simulate.mode: "native" → "paper"',
        ),
        (lambda t: [shard(t / "a", 1, 2), shard(t / "b", 2, 2, gold={})], "a: stage gold has not begun in shard 1/2"),
        (lambda t: [shard(t / "a", 1, 2), t / "b"], "not a run folder"),
        (lambda t: changed(t, "a/config.json", '{"simulate": {}}'), "a holds a whole run, not a shard"),
        (lambda t: changed(t, "a/config.json", '{"shard": {"index": "one"}}'), r"a/config.json: shard: expected {index, of}"),
        (lambda t: changed(t, "b/cards.jsonl", "{}\n"), "cards.jsonl and .* are not of one run"),
        (
            lambda t: changed(t, "b/dialogues.jsonl", None),
            r"shard 2/2 is not finished \(no dialogues.jsonl in .*b\)",
        ),
        (lambda t: changed(t, "b/dialogues.jsonl", lines_of(1)), r"missing or doubled: .* \(1/2: 2, 2/2: 1\)"),
        (lambda t: changed(t, "b/dialogues.jsonl", lines_of(0, 3, 4)), "duplicate dialogue ids: d0"),
        (lambda t: scored(t, "d4"), "a/judgements.jsonl: judges d4, which is not among this shard's dialogues"),
        (lambda t: scored(t, "d0", "d1"), r"3 dialogues have no judgement while others have \(d2\): score every shard"),
        (another_part_of_the_gold_set, "b/gold_judgements.jsonl: judges d0, which is not among this shard's dialogues"),
        (lambda t: two(t, dialogues={"count": 9}), "9 dialogues were given to be scored, the shards hold 5"),
    ],
)
def test_what_is_not_all_of_one_run_is_refused_before_anything_is_written(make: Any, message: str, tmp_path: Path) -> None:
    folders = make(tmp_path)
    with pytest.raises(UserError, match=message):
        shards.merge(folders, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_shard_is_no_place_to_merge_into(tmp_path: Path) -> None:
    folders = [shard(tmp_path / "a", 1, 2), shard(tmp_path / "b", 2, 2)]
    with pytest.raises(UserError, match="one of the shards"):
        shards.merge(folders, tmp_path / "a")
    shards.merge(folders, tmp_path / "merged")
    shards.merge(folders, tmp_path / "merged")  # again is the same
    (tmp_path / "else").mkdir()
    write_json(tmp_path / "else" / "config.json", {"simulate": {"mode": "paper"}})
    write_jsonl(tmp_path / "else" / "dialogues.jsonl", [])
    with pytest.raises(UserError, match="another simulate config"):
        shards.merge(folders, tmp_path / "else")


@pytest.mark.parametrize(
    "verb",
    [
        ("paper", "respond", "--dialogues", "d.jsonl"),
        ("paper", "role-play", "--seeker", "a=d.jsonl"),
        ("paper", "role-play", "--pairs", "--seeker", "a=d.jsonl", "--seeker", "b=d.jsonl"),
        ("judge-card", "embedded", "--dialogues", "d.jsonl"),
    ],
)
def test_a_config_for_one_shard_is_refused_where_nothing_is_sharded(
    verb: tuple[str, ...], esc_eval: EscEval, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(demo_config(gold=None, shard="1/2")))
    write_jsonl(tmp_path / "d.jsonl", [dialogue(0)])
    code, err = esc_eval(*verb, "--config", "c.yaml", "--out", "r")
    assert code == 2 and err.startswith("error: c.yaml: shard: only `esc-eval run` works on shards") and err.count("\n") == 1
    assert not Path("r").exists()


def test_a_shard_without_any_gold_has_a_forecast(esc_eval: EscEval, tmp_path: Path) -> None:
    config = demo_config(languages=["en"], limit=6, exchanges=1, gold={"dialogues": "synthetic_test", "limit": 2})
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    command = ("run", "--config", "c.yaml", "--set", "endpoints.embedded=http://127.0.0.1:9/v1", "--plan")
    assert esc_eval(*command, "--shard", "1/4") == (0, "")


def test_a_shard_makes_the_prompts_of_its_own_dialogues_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(esc_eval_prompts, "seeker_system", lambda *given: made.append(given) or "play")  # type: ignore[func-returns-value]
    settings = demo_config(languages=["en"], limit=6, exchanges=1) | {"out": "unused"}
    whole, part = (len(list(Framework(EscEvalConfig(**settings, shard=shard)).plans())) for shard in (None, "2/3"))
    assert 3 * part == whole > 0 and len(made) == whole + part


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "1/0", "a/b", "1/4/2", "-1/4", "1/²"])
def test_a_shard_that_is_none(text: str, esc_eval: EscEval) -> None:
    code, err = esc_eval("run", "--config", Path(__file__).parents[2] / "configs/eval/demo.yaml", "--shard", text, "--out", "r")
    assert code == 2 and "command line: shard: " in err and "expected I/N with I from 1 to N, as in 2/4" in err
    assert not Path("r").exists()


@given(st.integers(0, 40), st.integers(1, 12))
def test_the_parts_are_equal_and_make_the_whole(total: int, of: int) -> None:
    parts = [Shard(index, of).take(range(total)) for index in range(1, of + 1)]
    assert [job for part in parts for job in part] == list(range(total))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_records_of_shards_are_read_once_and_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [shard(tmp_path / str(part), part, 3, total=30) for part in (1, 2, 3)]
    parse, read, alive, most = core.files.validated, Counter[str](), 0, 0

    def gone() -> None:
        nonlocal alive
        alive -= 1

    def parsed(model: type[BaseModel], *arguments: Any) -> BaseModel:
        nonlocal alive, most
        record = parse(model, *arguments)
        if model is Dialogue:
            weakref.finalize(record, gone)
            alive, read[model.__name__] = alive + 1, read[model.__name__] + 1
            most = max(most, alive)
        return record

    monkeypatch.setattr(core.files, "validated", parsed)
    dialogues = shards.merge(folders, tmp_path / "merged")
    assert read == {"Dialogue": 30} and most <= 3, "a shard has ten"
    assert [each.id for each in dialogues] == [f"d{number}" for number in range(30)]
