"""Bad input through the command line: one clear line on stderr, exit code 2, nothing half-written."""

import json
from pathlib import Path

import pytest
import yaml

from core.files import CONFIGS
from data_prep.cards import bundled_cards
from tests.conftest import EscEval
from tests.demo import DEMO, demo_config


def refused(result: tuple[int, str], *parts: str) -> None:
    code, err = result
    assert code == 2, err
    assert err.startswith("error: ") and err.count("\n") == 1, err
    for part in parts:
        assert part in err, err


def run_with(esc_eval: EscEval, *extra: object) -> tuple[int, str]:
    config = () if "--config" in extra else ("--config", DEMO)
    endpoint = ("--set", "endpoints.embedded=http://127.0.0.1:9/v1")  # nothing must get as far as asking it
    result: tuple[int, str] = esc_eval("run", *config, "--out", "run", *endpoint, *extra)
    assert not Path("run").exists(), "a refused run must leave nothing behind"
    return result


FIRST, SECOND, THIRD = (json.loads(line) for line in bundled_cards("en").read_text().splitlines()[:3])
FILES = {
    "cards": [FIRST, SECOND, THIRD],
    "again": [FIRST],
    "twice": [FIRST, FIRST],
    "field": [FIRST, SECOND | {"mood": "sad"}],
    "kind": [FIRST | {"problem": ""}],
}
BUNDLED = "configs/eval/demo.yaml"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--config", "nowhere.yaml"), ["--config nowhere.yaml: no such file"]),
        (("--config", BUNDLED), [f"--config {BUNDLED}: no such file here; the bundled one is {DEMO}"]),
        (("--config", CONFIGS / "eval" / "esc_eval.yaml"), ["no supporter given", "--supporter"]),
        (("--config", "broken.yaml"), ["broken.yaml:", "malformed YAML"]),
        (("--config", "field.yaml"), [f"field.yaml:{len(DEMO.read_text().splitlines()) + 1}: temprature: unknown field"]),
        (("--config", "off.yaml"), ["rubric.yaml", "empathy (zh)", "score 5 is off the scale, 0 to 4"]),
        (("--cards", "published.json"), ["published.json: entry 0: base: 0 headings Occupation"]),
        (("--cards", "nowhere.jsonl"), ["--cards nowhere.jsonl: no such file"]),
        (("--cards", "broken.jsonl"), ["broken.jsonl:2: malformed JSON"]),
        (("--cards", "empty.jsonl"), ["empty.jsonl: no row"]),
        (("--cards", "field.jsonl"), ["field.jsonl:2: mood: unknown field"]),
        (("--cards", "kind.jsonl"), ["kind.jsonl:1: problem:"]),
        (("--cards", "twice.jsonl"), ["duplicate card ids: card-en-01"]),
        (
            ("--cards", "cards.jsonl", "--cards", "again.jsonl"),
            ["again.jsonl: card card-en-01 is also in ", "cards.jsonl: leave one out ("],
        ),
        (("--cards", "cards.jsonl", "--language", "zh"), ["no card in zh (the file has en): give --language"]),
        (("--language", "french"), ["--language french", "did you mean fr?"]),
        (("--set", "mode=papr"), ["mode", "'papr'"]),
        (("--supporter", "chatglm9-6b"), ["unknown model 'chatglm9-6b'", "did you mean", "chatglm3-6b"]),
        (("--seeker", "esc-rank"), ["esc-rank cannot be the seeker", "judge"]),
        (("--set", "endpoints.embedded"), ["--set endpoints.embedded: write FIELD=VALUE"]),
        (("--set", "endpoints.embedded=http://h/v1"), ["--set endpoints.embedded: given twice: keep one"]),
        (
            ("--supporter", "x@127.0.0.1:8000"),
            ["model x@…: no http:// or https:// after the @: expected NAME@http://HOST:PORT/v1"],
        ),
    ],
)
def test_what_cannot_be_run_is_one_line(
    esc_eval: EscEval, tmp_path: Path, arguments: tuple[object, ...], parts: list[str]
) -> None:
    for name, cards in FILES.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(card) + "\n" for card in cards))
    (tmp_path / "broken.jsonl").write_text(json.dumps(FIRST) + '\n{"id": "x",\n')
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "broken.yaml").write_text("seeker: embedded\njudge: [embedded\n")
    (tmp_path / "field.yaml").write_text(DEMO.read_text() + "temprature: 1\n")
    rubric = yaml.safe_load((CONFIGS / "rubrics" / "esc_eval.yaml").read_text())
    rubric["dimensions"]["empathy"]["levels"]["zh"][5] = "?"
    (tmp_path / "rubric.yaml").write_text(yaml.safe_dump(rubric, allow_unicode=True))
    (tmp_path / "off.yaml").write_text(yaml.safe_dump(demo_config(rubric="rubric.yaml")))
    card = {"id": 1, "base": "Age: 3\nGender: f\nProblem: p", "base_biaozhu": "", "res": "家庭生活", "source": "s"}
    (tmp_path / "published.json").write_text(json.dumps([card | {"language": "english"}]))
    refused(run_with(esc_eval, *arguments), *parts)
