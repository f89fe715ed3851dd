"""A supporter's system prompt, and several prompts or parameters of one model as several supporters."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from core.errors import UserError
from core.files import CONFIGS
from core.records import Turn
from core.settings import with_settings
from core.specs import ModelSpec, load_spec
from evalsuite.api import simulate
from evalsuite.dialogues.hold import ModelSide
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.dialogue_framework import resolve_config
from evalsuite.runs.framework import framework_of
from evalsuite.runs.run_config import identity
from serve.units import units_of
from tests.conftest import EscEval
from tests.demo import demo_config
from tests.endpoint import Answer, Endpoint, echo
from tests.evalsuite.test_faults import one_line

KIND, COLD = "Be kind.\nAsk one question.", "Be cold.\nAsk one question."


def by_prompt(body: dict[str, Any], count: int) -> Answer:
    """A supporter that is as kind as its system message says, and a judge that gives more for kindness."""
    told, last = body["messages"][0]["content"], body["messages"][-1]["content"]
    if body["model"] == "judge":
        return Answer(("4" if "kindly" in str(body["messages"]) else "1") * 7)
    if body["model"] == "a":
        return Answer(f"{'kindly' if told == KIND else 'plainly'} {len(last)} at {body['temperature']}")
    return echo(body, count)


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    with Endpoint(by_prompt, models=("a", "b", "seeker", "judge")) as up:
        settings = {"gold": None, "languages": ["en"], "limit": 2, "exchanges": 2, "supporters": [], "out": None}
        models = {"seeker": f"seeker@{up.url}", "judge": f"judge@{up.url}"}
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(demo_config(**settings, **models)))
        (tmp_path / "kind.txt").write_text(f"\n{KIND}\n")
        (tmp_path / "cold.txt").write_text(COLD)
        yield up


def told(endpoint: Endpoint) -> set[tuple[str | None, float]]:
    """What the model a was told as a system message, and at which temperature."""
    asked = [body for body in endpoint.requests if body["model"] == "a"]
    firsts = [(body["messages"][0], body["temperature"]) for body in asked]
    return {(first["content"] if first["role"] == "system" else None, temperature) for first, temperature in firsts}


def test_two_prompts_are_two_supporters_on_one_board(esc_eval: EscEval, endpoint: Endpoint, tmp_path: Path) -> None:
    given = ("run", "--config", "c.yaml", "--supporter", f"a@{endpoint.url}", "--out", "run")
    assert esc_eval(*given, "--system", "kind.txt")[0] == 0
    assert told(endpoint) == {(KIND, 0)}
    first = len(endpoint.requests)
    assert esc_eval(*given, "--system", "kind.txt", "--system", "cold.txt")[0] == 0
    assert told(endpoint) == {(KIND, 0), (COLD, 0)}
    assert len(endpoint.requests) - first == first, "only the second prompt's dialogues are asked"
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    means = {s["supporter"]: s["estimate"]["mean"] for s in report["scores"] if s["dimension"] == "average"}
    assert means == {"a.kind": 100, "a.cold": 25}
    page, text = ((tmp_path / "run" / f"report.{kind}").read_text() for kind in ("html", "md"))
    assert "<del>-Be kind.</del><ins>+Be cold.</ins>" in page and "a.kind → a.cold" in page
    assert "    -Be kind.\n    +Be cold." in text and "     Ask one question." in text
    asked = len(endpoint.requests)
    assert esc_eval(*given, "--system", "kind.txt", "--system", "cold.txt")[0] == 0
    assert len(endpoint.requests) == asked, "the same command resumes"
    (tmp_path / "cold.txt").write_text("Be cool.")
    one_line(esc_eval(*given, "--system", "cold.txt"), 2, "simulate config: supporters.a.cold.system")


def test_a_prompt_may_come_from_another_program(esc_eval: EscEval, endpoint: Endpoint) -> None:
    read, write = os.pipe()
    os.write(write, COLD.encode())
    os.close(write)
    models = [f"--supporter={name}@{endpoint.url}" for name in ("a", "b")]
    assert esc_eval("run", "--config", "c.yaml", *models, "--system", f"/dev/fd/{read}", "--out", "run")[0] == 0
    os.close(read)
    assert told(endpoint) == {(COLD, 0)}


def test_prompts_are_told_apart_as_soon_as_that_is_decided(esc_eval: EscEval, endpoint: Endpoint) -> None:
    given = ("run", "--config", "c.yaml", "--set", "limit=18", "--supporter", f"a@{endpoint.url}", "--until", "decided")
    prompts = ("--system", "kind.txt", "--system", "cold.txt")
    assert esc_eval(*given, *prompts)[0] == 0
    folder = Path("runs/esc_eval/a")  # one folder, whatever the prompts
    assert len((folder / "dialogues.jsonl").read_text().splitlines()) == 2 * 12
    assert json.loads((folder / "report.json").read_text())["summary"]["found"][0].startswith("a.kind is ahead of a.cold")


def test_two_temperatures_are_two_supporters_of_every_model(esc_eval: EscEval, endpoint: Endpoint) -> None:
    models = [text for name in "ab" for text in ("--supporter", f"{name}@{endpoint.url}")]
    variants = ("--set", "variants.warm.temperature=0.7", "--set", "variants.v1.0.system=kind.txt")
    assert esc_eval("run", "--config", "c.yaml", *models, *variants, "--set", "floors=true", "--out", "run")[0] == 0
    assert told(endpoint) == {(None, 0.7), (KIND, 0)}
    rows = [json.loads(line) for line in Path("run/dialogues.jsonl").read_text().splitlines()]
    models_played = ["a.warm", "a.v1.0", "b.warm", "b.v1.0"]
    assert list(dict.fromkeys(row["supporter"] for row in rows))[:4] == models_played
    assert {row["supporter"] for row in rows} == {*models_played, "silent", "parrot", "lecture"}, "floors have no variants"


def test_a_judge_of_its_own_variants_is_told_of(esc_eval: EscEval, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("evalsuite.runner.engine.Runner.say", lambda _, text: said.append(text))
    given = ("run", "--config", "c.yaml", "--supporter", f"judge@{endpoint.url}", "--system", "kind.txt", "--out", "run")
    assert esc_eval(*given)[0] == 0
    assert any(line.startswith("judge judges itself too") for line in said)
    shared = "The judge judge shares its base with judge.kind (same checkpoint): its scores may favour it."
    assert shared in json.loads(Path("run/report.json").read_text())["summary"]["warnings"]


@pytest.mark.slow
def test_python_takes_variants_too(endpoint: Endpoint) -> None:
    heard = []

    def mine(messages: list[dict[str, str]]) -> str:
        heard.append(messages[0])
        return "well"

    variants = {"kind": {"system": KIND}, "plain": {}}
    seeker = f"seeker@{endpoint.url}"
    results = simulate("bundled", supporter=mine, seeker=seeker, languages=["en"], limit=1, exchanges=1, variants=variants)
    assert [one.supporter for one in results.dialogues] == ["mine.kind", "mine.plain"]
    assert heard[0] == {"role": "system", "content": KIND} and heard[1]["role"] == "user"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--system", "kind.txt", "--system", "x/kind.txt"], "--system x/kind.txt: two prompts are named kind"),
        (["--system", "none.txt"], "system prompt not found: none.txt"),
        (["--system", "  "], "system prompt '  ': empty"),
        (["--system", "x"], "system prompt cannot be read: x: Is a directory"),
        (["--system", KIND, "--set", "mode=paper"], "mode paper has published system messages only"),
        (["--system", KIND, "--set", "variants.a.temperature=0"], "--set variants: also given as an option: keep one"),
        (["--system", KIND, "--only", "score"], "--system: no supporter is asked with --only score"),
        (["--set", "variants.a.temprature=0"], "--set variants.a.temprature: unknown field 'temprature'"),
        (["--set", "variants.a.temperature=3"], "variants.a.temperature: Input should be less than or equal to 2"),
        (["--set", f"variants.{'x' * 51}.temperature=0"], "String should have at most 50 characters"),
    ],
)
def test_what_cannot_be_a_prompt_or_a_variant_is_refused(
    options: list[str], said: str, esc_eval: EscEval, endpoint: Endpoint, tmp_path: Path
) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "kind.txt").write_text("Be very kind.")
    one_line(esc_eval("run", "--config", "c.yaml", "--supporter", f"a@{endpoint.url}", *options, "--out", "run"), 2, said)
    assert not endpoint.requests and not (tmp_path / "run").exists()


def test_a_spec_names_its_prompt_by_text_or_file_and_is_as_before_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kind.txt").write_text(KIND)
    spec: dict[str, Any] = {"name": "m", "endpoint": {"base_url": "http://127.0.0.1:1/v1"}}
    for system, text in (("kind.txt", KIND), ("Be kind.", "Be kind."), (KIND, KIND)):
        Path("m.yaml").write_text(yaml.safe_dump(spec | {"system": system}))
        assert load_spec("m.yaml").system == identity(load_spec("m.yaml"))["system"] == text
    plain = ModelSpec.model_validate(spec)
    assert "system" not in plain.model_dump() and "system" not in identity(plain)
    assert plain.fingerprint() == load_spec("m.yaml").fingerprint()
    for wrong in ({"floor": {"kind": "parrot", "text": {"en": "-", "zh": "-"}}, "roles": ["supporter"]}, {"agent": True}):
        turn = {"path": "/", "request": {"text": "{message}"}, "response": "/x"}
        agent = {"endpoint": spec["endpoint"] | {"kind": "agent", "turn": turn}, "roles": ["supporter"]}
        changed = {"name": "m", "system": KIND} | (agent if "agent" in wrong else wrong)
        with pytest.raises(ValueError, match="system: leave it out"):
            ModelSpec.model_validate(changed)


def test_a_prompt_replaces_what_a_framework_tells_supporters_and_nobody_else() -> None:
    spec = ModelSpec.model_validate({"name": "m", "endpoint": {"base_url": "http://127.0.0.1:1/v1"}, "system": KIND})
    turns = [Turn(role="seeker", text="hello")]
    for role, system in (("supporter", KIND), ("seeker", "the framework's")):
        side = ModelSide(spec, role, "d", system="the framework's")  # type: ignore[arg-type]
        assert side.system == side.messages(turns)[0]["content"] == system


@pytest.mark.parametrize("config", ["demo", "emoharbor"])
def test_every_framework_tells_supporters_the_prompt(config: str) -> None:
    settings = yaml.safe_load((CONFIGS / "eval" / f"{config}.yaml").read_text())
    settings |= {"out": "run", "mode": "native", "gold": None}
    models: dict[str, Any] = {role: "a@http://127.0.0.1:1/v1" for role in ("model", "seeker", "judge")} | {"supporters": []}
    variants = {"kind": {"system": KIND}, "plain": {}}
    model = framework_of(settings.get("framework", "esc_eval")).config_model
    chosen = model.model_validate(settings | models | {"floors": False, "variants": variants})
    resolved = resolve_config(cast(EvalConfig, chosen))
    told = {plan.opening.supporter: cast(ModelSide, plan.supporter_side).system for plan in resolved.plans()}
    assert told.pop("a.kind") == KIND and KIND not in told.values() and list(told) == ["a.plain"]


def test_variants_of_a_checkpoint_share_its_server() -> None:
    variants = {"kind": {"system": KIND}, "warm": {"temperature": 0.7}}
    config = EvalConfig.model_validate({"supporters": ["embedded"], "seeker": "embedded", "variants": variants})
    models = resolve_config(config).models
    unit, *others = units_of([models.seeker, *models.supporters], split_adapters=True)
    assert not others and unit.base_names == ["embedded"]
    assert [spec.served_name() for spec in unit.specs] == ["embedded"] * 3


def test_a_setting_of_one_variant_leaves_the_others() -> None:
    values = {"variants": {"warm": {"temperature": 0.7}}}
    settings = ["variants.v1.0.temperature=0", "variants.warm.system=x", "variants.v1.0.top_p=0.5"]
    changed = with_settings(values, settings, EvalConfig)["variants"]
    assert changed == {"warm": {"temperature": 0.7, "system": "x"}, "v1.0": {"temperature": 0, "top_p": 0.5}}
    with pytest.raises(UserError, match="unknown field 'temprature'"):
        with_settings(values, ["variants.warm.temprature=0"], EvalConfig)
