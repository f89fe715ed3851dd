"""What a run asks of each model: what the caches of its servers must hold, and how much there is to read and to write."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.files import CONFIGS
from core.prompts import greeting, seeker_system
from core.specs import load_spec
from core.tables import Table
from data_prep.cards import PUBLISHED
from data_prep.scores import synthetic
from evalsuite.commands.options import resolve
from evalsuite.papers.esc_eval import EscEval
from evalsuite.runner.forecast import BYTES_A_TOKEN, LONG, MARKS, REPLY, counter, workloads
from serve.checkpoints.places import materialise
from serve.units import Workload
from tests.conftest import EscEval as Command

CONFIG = CONFIGS / "eval" / "esc_eval.yaml"
SEEKER = "esc-role-own"  # the published one needs a clone's prompts
SUPPORTER = "qwen1.5-7b-chat"


def tokens(text: str) -> int:
    return -(-len(text.encode()) // BYTES_A_TOKEN)


def test_both_sides_and_the_judge_by_hand() -> None:
    """Five exchanges, without a tokenizer here, in which a word of the stand-in's is a token and a blank less than one."""
    resolved = resolve(CONFIG, seeker=SEEKER, supporters=[SUPPORTER], language="en", limit=20)
    assert isinstance(resolved, EscEval)
    found = workloads(resolved, resolved.plans(), score=True)
    systems = sorted(tokens(seeker_system(resolved.prompts, card)) for card in resolved.people())
    greeted = tokens(greeting(resolved.prompts, "en"))
    # The supporter's last request: the seeker's five lines and four replies of its own; and its fifth.
    assert found[SUPPORTER].context == 9 * (512 + MARKS) + 512
    said = 5 * REPLY["seeker"] + 5 * REPLY["supporter"] + 9 * MARKS
    assert found[SUPPORTER].length == pytest.approx(LONG * (said - 9 * MARKS) + 9 * MARKS, rel=0.01)
    # The seeker's: its system message, the greeting, four lines of its own and four replies; and its fifth line.
    assert found[SEEKER].context == pytest.approx(systems[-1] + greeted + 8 * 512 + 512 + 10 * MARKS, abs=3)
    work = found[SUPPORTER]
    assert (work.dialogues, work.written, work.kept) == (18, 5 * REPLY["supporter"], True)
    assert work.read == pytest.approx(5 * REPLY["seeker"], abs=10), "what it said itself is in its cache"
    usual = systems[len(systems) // 2]
    assert found[SEEKER].read == pytest.approx(usual + greeted + 4 * REPLY["supporter"], abs=60)
    judge = found["esc-rank"]
    assert not judge.kept and judge.written == 7 * 2 and said < judge.read < judge.length < judge.context < 8192
    assert "esc-rank" not in workloads(resolved, resolved.plans(), score=False)


def test_a_model_in_every_role_has_part_in_each_dialogue_once() -> None:
    resolved = resolve(CONFIGS / "eval" / "api.yaml", model="my@http://127.0.0.1:9/v1", language="en", limit=2)
    (work,) = workloads(resolved, resolved.plans(), score=True).values()
    assert (work.dialogues, work.kept) == (2 * (1 + 3), True), "its own, and those of three floors"
    two = Workload(9, 9, 8, of=8, read=100, written=10) + Workload(9, 9, 8, of=8, read=50, written=20)
    assert (two.dialogues, two.read, two.written) == (8, 150, 30), "seeker and supporter on one server"
    two = Workload(9, 9, 4, of=8, read=100, written=10) + Workload(9, 9, 4, of=8, read=50, written=20)
    assert (two.dialogues, two.read, two.written) == (8, 75, 15), "two supporters on one server"


@pytest.mark.parametrize("exchanges", [1, 10])
def test_more_exchanges_need_more(exchanges: int, tmp_path: Path) -> None:
    settings = yaml.safe_load(CONFIG.read_text()) | {"exchanges": exchanges, "limit": 1, "languages": ["en"]}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(settings))
    resolved = resolve(tmp_path / "c.yaml", seeker=SEEKER, supporters=[SUPPORTER])
    found = workloads(resolved, resolved.plans(), score=False)
    assert found[SUPPORTER].context == (2 * exchanges - 1) * (512 + MARKS) + 512
    assert found[SUPPORTER].written == exchanges * REPLY["supporter"]


@pytest.mark.slow
def test_given_dialogues_are_counted_as_they_are() -> None:
    dialogues, _ = synthetic.build(languages=("en",))
    resolved = resolve(CONFIG, language="en", out="somewhere")
    whole = workloads(resolved, dialogues, score=True)["esc-rank"]
    assert workloads(resolved, dialogues[:1], score=True)["esc-rank"].context <= whole.context < 8192
    assert whole.dialogues == len(dialogues)


@pytest.mark.slow
@pytest.mark.parametrize("config", ["esc_eval.yaml", "esc_eval_full.yaml"])
def test_a_plan_needs_neither_published_prompts_nor_cards_nor_weights(
    config: str, esc_eval: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of docs/serve-and-scale.md as it is printed there, and the whole of table 2."""
    told: list[Table] = []
    monkeypatch.setattr("evalsuite.commands.run.to_console", lambda table, console: told.append(table))
    shutil.copy(CONFIGS / "eval" / config, tmp_path)
    monkeypatch.chdir(tmp_path)
    command = ("run", "--config", config, "--plan", "--gpus", "8xh100")
    address = ("--supporter", "my-model@http://127.0.0.1:8000/v1") if config == "esc_eval.yaml" else ()
    assert esc_eval(*command, *address) == (0, "")
    servers, hours, forecast = told
    assert {row[0] for row in hours.rows[:-1]} == {row[0] for row in servers.rows}
    of_all = sum(count * {"en": 14, "zh": 12}[language] for language, count in PUBLISHED.items())
    assert config == "esc_eval.yaml" or forecast.title == f"Calls, tokens and cost of {of_all:,} dialogues"
    total: Any = hours.rows[-1]
    assert float(total[-2]) == pytest.approx(8 * float(total[-3]), abs=0.05), "GPU hours"
    assert list(tmp_path.iterdir()) == [tmp_path / config], "nothing is written"


def test_a_plan_says_why_servers_are_as_they_are(esc_eval: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Table] = []
    monkeypatch.setattr("evalsuite.commands.run.to_console", lambda table, console: told.append(table))
    command = ("run", "--config", CONFIGS / "eval" / "esc_eval.yaml", "--seeker", "esc-role-own")
    for gpus in ("8xh100", "1xh100"):
        assert esc_eval(*command, "--supporter", "qwen1.5-7b-chat", "--plan", "--gpus", gpus) == (0, "")
    many, few = ("\n".join(table.notes) for table in told if table.key == "hours")
    assert re.search(r"hours with all at once, .* hours in 2 phases", many) and "GPUs are idle: another server" in many
    assert re.search(r"qwen1.5-7b-chat × \d, behind a router: each makes the phase 2% faster or more", many)
    assert re.search(r"fp8: \[weights, cache\].* doubles the dialogues in flight", few) and "fp8" not in many


@pytest.mark.slow
def test_the_models_own_tokenizer_counts() -> None:
    materialise()
    text = "I have not slept well since I lost my job. 我很难过。"
    from transformers import AutoTokenizer

    expected = len(AutoTokenizer.from_pretrained(materialise())(text, add_special_tokens=False)["input_ids"])
    assert counter(load_spec("embedded").checkpoint)(text) == expected
    assert counter(None)(text) == -(-len(text.encode()) // BYTES_A_TOKEN)
