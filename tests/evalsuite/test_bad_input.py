"""Bad input through the command line: one clear line on stderr, exit code 2, nothing half-written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.files import CONFIGS
from data_prep.cards import bundled_cards
from tests.conftest import EscEval
from tests.demo import DEMO, demo_config
from tests.endpoint import Endpoint

CARDS = bundled_cards("en")


def refused(result: tuple[int, str], *parts: str) -> None:
    code, err = result
    assert code == 2, err
    assert err.startswith("error: ") and err.count("\n") == 1, err
    for part in parts:
        assert part in err, err


def run_with(esc_eval: EscEval, *extra: object, config: object = DEMO) -> tuple[int, str]:
    endpoint = ("--set", "endpoints.embedded=http://127.0.0.1:9/v1")  # nothing must get as far as asking it
    result: tuple[int, str] = esc_eval("run", "--config", config, "--out", "run", *endpoint, *extra)
    assert not Path("run").exists(), "a refused run must leave nothing behind"
    return result


def card_file(tmp_path: Path, change: Any) -> Path:
    lines = [json.loads(line) for line in CARDS.read_text().splitlines()][:3]
    path = tmp_path / "cards.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))
    return path


def test_missing_config(esc_eval: EscEval) -> None:
    refused(run_with(esc_eval, config="nowhere.yaml"), "--config nowhere.yaml: no such file")


def test_a_bundled_config_is_named_to_whoever_is_elsewhere(esc_eval: EscEval) -> None:
    told = f"--config configs/eval/demo.yaml: no such file here; the bundled one is {DEMO}"
    refused(run_with(esc_eval, config="configs/eval/demo.yaml"), told)


def test_missing_cards(esc_eval: EscEval) -> None:
    refused(run_with(esc_eval, "--cards", "nowhere.jsonl"), "--cards nowhere.jsonl: no such file")


def test_malformed_json_line(esc_eval: EscEval, tmp_path: Path) -> None:
    path = card_file(tmp_path, lambda cards: cards)
    path.write_text(path.read_text() + '{"id": "x",\n')
    refused(run_with(esc_eval, "--cards", path), "cards.jsonl:4: malformed JSON")


def test_unknown_field(esc_eval: EscEval, tmp_path: Path) -> None:
    path = card_file(tmp_path, lambda cards: [cards[0], cards[1] | {"mood": "sad"}])
    refused(run_with(esc_eval, "--cards", path), "cards.jsonl:2: mood: unknown field")


def test_wrong_type(esc_eval: EscEval, tmp_path: Path) -> None:
    path = card_file(tmp_path, lambda cards: [cards[0] | {"problem": ""}])
    refused(run_with(esc_eval, "--cards", path), "cards.jsonl:1: problem:")


def test_duplicate_ids(esc_eval: EscEval, tmp_path: Path) -> None:
    path = card_file(tmp_path, lambda cards: [cards[0], cards[0]])
    refused(run_with(esc_eval, "--cards", path), "duplicate card ids: card-en-01")
    path = card_file(tmp_path, lambda cards: [cards[0]])
    (tmp_path / "again.jsonl").write_text(path.read_text())
    doubled = run_with(esc_eval, "--cards", path, "--cards", tmp_path / "again.jsonl")
    refused(doubled, "again.jsonl: card card-en-01 is also in ", f"{path}: leave one out (")


def test_empty_card_file(esc_eval: EscEval, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    refused(run_with(esc_eval, "--cards", "empty.jsonl"), "empty.jsonl: no row")


def test_no_card_in_the_language(esc_eval: EscEval, tmp_path: Path) -> None:
    path = card_file(tmp_path, lambda cards: cards)
    refused(run_with(esc_eval, "--cards", path, "--language", "zh"), "no card in zh (the file has en): give --language")


def test_wrong_language_code(esc_eval: EscEval) -> None:
    refused(run_with(esc_eval, "--language", "french"), "--language french", "did you mean fr?")


def test_wrong_mode(esc_eval: EscEval) -> None:
    refused(run_with(esc_eval, "--set", "mode=papr"), "mode", "'papr'")


def test_unknown_model_offers_near_ones(esc_eval: EscEval) -> None:
    refused(run_with(esc_eval, "--supporter", "chatglm9-6b"), "unknown model 'chatglm9-6b'", "did you mean", "chatglm3-6b")


def test_a_model_in_a_role_it_cannot_play(esc_eval: EscEval) -> None:
    refused(run_with(esc_eval, "--seeker", "esc-rank"), "esc-rank cannot be the seeker", "judge")


def test_config_with_an_unknown_field_names_its_line(esc_eval: EscEval, tmp_path: Path) -> None:
    text = DEMO.read_text()
    (tmp_path / "c.yaml").write_text(text + "temprature: 1\n")
    line = text.count("\n") + 1
    refused(run_with(esc_eval, config="c.yaml"), f"c.yaml:{line}: temprature: unknown field")


def test_config_that_is_not_yaml(esc_eval: EscEval, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("seeker: embedded\njudge: [embedded\n")
    refused(run_with(esc_eval, config="c.yaml"), "c.yaml:", "malformed YAML")


def test_rubric_with_a_level_off_its_scale(esc_eval: EscEval, tmp_path: Path) -> None:
    rubric = yaml.safe_load((CONFIGS / "rubrics" / "esc_eval.yaml").read_text())
    rubric["dimensions"]["empathy"]["levels"]["zh"][5] = "?"
    (tmp_path / "off.yaml").write_text(yaml.safe_dump(rubric, allow_unicode=True))
    config = demo_config(rubric="off.yaml")
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    refused(run_with(esc_eval, config="c.yaml"), "off.yaml", "empathy (zh)", "score 5 is off the scale, 0 to 4")


def test_no_supporter(esc_eval: EscEval) -> None:
    refused(run_with(esc_eval, config=CONFIGS / "eval" / "esc_eval.yaml"), "no supporter given", "--supporter")


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        (("--set", "endpoints.embedded"), "--set endpoints.embedded: write FIELD=VALUE"),
        (("--set", "endpoints.embedded=http://127.0.0.1:10/v1"), "--set endpoints.embedded: given twice: keep one"),
        (
            ("--supporter", "x@127.0.0.1:8000"),
            "model x@…: no http:// or https:// after the @: expected NAME@http://HOST:PORT/v1",
        ),
    ],
)
def test_malformed_addresses(esc_eval: EscEval, option: tuple[str, ...], problem: str) -> None:
    refused(run_with(esc_eval, *option), problem)


def test_published_cards_with_a_missing_heading(esc_eval: EscEval, tmp_path: Path) -> None:
    card = {"id": 1, "base": "Age: 3\nGender: f\nProblem: p", "base_biaozhu": "", "res": "家庭生活", "source": "s"}
    (tmp_path / "cards.json").write_text(json.dumps([card | {"language": "english"}]))
    refused(run_with(esc_eval, "--cards", "cards.json"), "cards.json: entry 0: base: 0 headings for occupation")


def test_a_run_folder_made_with_another_config_is_refused_and_kept(esc_eval: EscEval, tmp_path: Path) -> None:
    with Endpoint(models=("embedded", "my-model")) as endpoint:
        config = demo_config(gold=None, limit=1, languages=["en"])
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
        common = ("run", "--config", "c.yaml", "--out", "run", "--set", f"endpoints.embedded={endpoint.url}")
        assert esc_eval(*common)[0] == 0
        before = {p.name: p.read_bytes() for p in Path("run").glob("*.jsonl")}
        asked = len(endpoint.requests)
        refused(
            esc_eval(*common, "--set", "mode=paper"), "run was made with another simulate config", 'mode: "native" → "paper"'
        )
        assert {p.name: p.read_bytes() for p in Path("run").glob("*.jsonl")} == before
        assert len(endpoint.requests) == asked
