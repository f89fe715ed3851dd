"""What a file says is what is read: nothing that looks like a number, a key or a name is taken for another one in silence.

On the command line, bad input is one clear line on stderr, exit code 2, and nothing half-written.
"""

import importlib
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

import data_prep
import evalsuite
import train
from core import names
from core.errors import UserError
from core.files import CONFIGS, load_json, read_object
from core.ledger import BuildStep
from core.names import number
from core.records import Count, Judgement, Number, Record
from core.rows import CorpusReader, RowModel
from core.rubrics import load_rubric
from data_prep.cards import bundled_cards
from data_prep.role_play.contamination import read_documents
from data_prep.scores.human import COLUMNS
from data_prep.scores.human import read_scores as read_gold
from evalsuite.papers.ecdbench.plan import FORMS
from evalsuite.papers.ecdbench.registry import load_benchmark
from evalsuite.papers.ecdbench.scores import read_scores
from evalsuite.statistics.discrimination import read_ratings
from evalsuite.statistics.summary import checked
from tests.conftest import EscEval
from tests.demo import DEMO, demo_config
from tests.evalsuite.test_bad_files import DIALOGUE, DIMENSION, READERS, RUBRIC, Reader, changed
from tests.evalsuite.test_faults import one_line

SCORE = {"model": "m", "dataset": "wic", "metric": "accuracy", "value": 0.5, "n": 3}
READ: dict[str, Reader] = READERS | {
    "documents": Reader(read_documents, ".jsonl", [DIALOGUE | {"id": "d1"}]),
    "ecdbench scores": Reader(lambda path: read_scores([path], load_benchmark(), draws=False), ".jsonl", [SCORE]),
}
TRUE = "a number is expected, not true or false"
NAME = "a control character"
SILENT: list[tuple[str, str, Any, str]] = [
    ("judgements", "value", True, f"value: {TRUE}"),
    ("judgements", "value", "1_0", "value: a number is expected"),
    ("judgements", "value", 1e300, "value: Input should be less than or equal to 1000"),
    ("judgements", "expected", True, f"expected: {TRUE}"),
    ("judgements", "turn", True, f"turn: {TRUE}"),
    ("judgements", "repeat", True, f"repeat: {TRUE}"),
    ("judgements", "judge", "a\x00b", f"judge: {NAME}"),
    ("judgements", "condition", {"mode": "a\nb"}, f"condition.mode: {NAME}"),
    ("judgements", "distribution", {"2": 1.5, "3": -0.5}, "distribution.3: Input should be greater than or equal to 0"),
    ("judgements", "distribution", {"3": True}, f"distribution.3: {TRUE}"),
    ("judgements", "distribution", {"high": 1.0}, "distribution.high.[key]: the key is not a score"),
    ("judgements", "distribution", {"0.50": 1.0}, "distribution.0.50.[key]: the key is not a score"),
    ("judgements", "distribution", {"03": 1.0}, "distribution.03.[key]: the key is not a score"),
    ("judgements", "distribution", {"\u0663": 1.0}, "[key]: the key is not a score"),
    ("gold", "value", True, f"value: {TRUE}"),
    ("gold", "turn", True, f"turn: {TRUE}"),
    ("gold", "annotator", "a\x00", f"annotator: {NAME}"),
    ("dialogues", "trial", True, f"trial: {TRUE}"),
    ("dialogues", "supporter", "a\x1bb", f"supporter: {NAME}"),
    ("dialogues", "usage", {"calls": True}, f"usage.calls: {TRUE}"),
    ("cards", "source", "a\x00", f"source: {NAME}"),
    ("published cards", "id", True, f"id: {TRUE}"),
    ("preferences", "annotator", "a\tb", f"annotator: {NAME}"),
    ("replies", "turn", True, f"turn: {TRUE}"),
    ("profiles", "demographics", {"age": True}, f"demographics.age: {TRUE}"),
    ("held dialogues", "trial", True, f"trial: {TRUE}"),
    ("ecdbench scores", "n", True, f"n: {TRUE}"),
    ("ecdbench scores", "chance", True, f"chance: {TRUE}"),
    ("ecdbench scores", "model", "a\x00", f"model: {NAME}"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "field", "value", "message"), SILENT)
def test_what_was_once_taken_for_something_else(name: str, field: str, value: Any, message: str, tmp_path: Path) -> None:
    reader = READ[name]
    path = tmp_path / f"given{reader.suffix}"
    reader.write(path, reader.sound)
    reader.read(path)
    reader.write(path, changed(reader.sound, (0, field), value))
    with pytest.raises(UserError) as caught:
        reader.read(path)
    assert str(caught.value).startswith(f"{path}:") and message in str(caught.value)


@pytest.mark.parametrize("name", [name for name, reader in READ.items() if reader.suffix != ".yaml"])
def test_a_key_that_an_object_has_twice(name: str, tmp_path: Path) -> None:
    reader = READ[name]
    path = tmp_path / f"given{reader.suffix}"
    reader.write(path, reader.sound)
    key = next(iter(reader.sound[0]))
    path.write_text(path.read_text().replace("{", f'{{"{key}": 0, ', 1))
    with pytest.raises(UserError, match=f":1: malformed JSON: the key '{key}' is given twice"):
        reader.read(path)


@pytest.mark.parametrize(
    ("marked", "key"),
    [
        ('{"a": 1, §"a": 1}', "a"),
        ('{"a": 1,\n "b": {"c": 1, "d": [{},\n {"c": 1, §"c": 2}]}}', "c"),
        ('[{"a": "}{\\"a\\": "}, {"a\\u0062": 1, §"ab" : 2}]', "ab"),
        ('{"": 0, §"": 0}', ""),
        ('{"a": {"a": {"a": 1}}, "b": "\\"a\\": ", §"a": 1}', "a"),
    ],
)
def test_where_a_doubled_key_stands(marked: str, key: str) -> None:
    """§ is where."""
    with pytest.raises(json.JSONDecodeError) as caught:
        load_json(marked.replace("§", ""))
    assert (caught.value.msg, caught.value.pos) == (f"the key {key!r} is given twice", marked.index("§"))
    assert caught.value.lineno == marked[: marked.index("§")].count("\n") + 1


@pytest.mark.parametrize(
    "text", ['[{"a": 1}, {"a": 1}]', '{"a": {"a": 1}, "A": "\\"a\\": 1"}', '{"a": "{", "b": "a\\\\"}', "7", '"{"']
)
def test_keys_of_several_objects_and_braces_in_texts_are_no_doubled_keys(text: str) -> None:
    assert load_json(text) == load_json(text.encode()) == json.loads(text)


def test_json_is_as_deep_as_can_be_written_again(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    path.write_text('{"a":' * 254 + "1" + "}" * 254)
    assert read_object(path, "a thing")
    path.write_text('{"a":' * 255 + "1" + "}" * 255)
    with pytest.raises(UserError, match=r"d\.json:1: malformed JSON: nested too deeply"):
        read_object(path, "a thing")


@pytest.mark.parametrize("name", ["a\x00b", "a\nb", "x" * 300])
def test_a_dimension_that_no_verdict_could_name_is_refused_with_its_rubric(name: str, tmp_path: Path) -> None:
    """Before a run, not when the first paid verdict on it becomes a record."""
    READ["rubric"].write(tmp_path / "r.yaml", RUBRIC | {"dimensions": {"ok": DIMENSION, name: DIMENSION}})
    with pytest.raises(UserError, match=r"r\.yaml:\d+: dimensions\..*(a control character|at most 200 characters)"):
        load_rubric(str(tmp_path / "r.yaml"))


# --- numbers in text ------------------------------------------------------------------------------------------------------

CELLS = {"3": 3, " 3 ": 3, "+3": 3, "-0.5": -0.5, ".5": 0.5, "3.": 3, "1e1": 10, "1E-2": 0.01, "03": 3, "1,5": 1.5, "2,50": 2.5}
CELLS |= {"\uff13": 3, "\uff11\uff0e\uff15": 1.5}
NO_NUMBERS = [
    "",
    " ",
    "1_0",
    "nan",
    "NaN",
    "inf",
    "-Infinity",
    "0x10",
    "\u0661",
    "1,500",
    "1,",
    "1 0",
    "--1",
    "1e",
    "true",
    "½",
]
NO_NUMBERS += ["9" * 5_000, "1e999"]


@pytest.mark.parametrize("text", CELLS)
def test_what_a_cell_may_hold(text: str) -> None:
    assert number(text) == CELLS[text] == TypeAdapter(Number).validate_python(text)


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="a number is expected"):
        number(text)
    with pytest.raises(ValidationError, match="a number is expected"):
        TypeAdapter(Count).validate_python(text)


@pytest.mark.parametrize("text", ["1_0", "nan", "\u0663", "1,500"])
def test_scores_in_tables(text: str, tmp_path: Path) -> None:
    cell = f'"{text}"'
    (tmp_path / "g.csv").write_text(",".join(COLUMNS) + f"\nd1,en,a,esc_eval,empathy,{cell},\n")
    with pytest.raises(UserError, match=r"g\.csv:2: value: a number is expected"):
        read_gold(tmp_path / "g.csv")
    (tmp_path / "g.csv").write_text(",".join(COLUMNS) + f"\nd1,en,a,esc_eval,empathy,3,{cell}\n")
    with pytest.raises(UserError, match=r"g\.csv:2: turn: a number is expected"):
        read_gold(tmp_path / "g.csv")
    (tmp_path / "r.csv").write_text(f"user,model,score\nu,m,{cell}\n")
    with pytest.raises(UserError, match=r"r\.csv:2.*score.*number"):
        read_ratings(tmp_path / "r.csv")


def test_names_in_a_table_of_ratings(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("user,model,score\nu,m\x00,3\n")
    with pytest.raises(UserError, match=r"r\.csv:2.*model.*control character"):
        read_ratings(tmp_path / "r.csv")


def test_a_turn_that_a_spreadsheet_wrote_as_a_float_is_whole(tmp_path: Path) -> None:
    (tmp_path / "g.csv").write_text(",".join(COLUMNS) + "\nd1,en,a,esc_eval,empathy, 3.50 ,2.0\n")
    (score,) = read_gold(tmp_path / "g.csv")
    assert (score.value, score.turn) == (3.5, 2)


# --- all records ----------------------------------------------------------------------------------------------------------


def kinds(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for kind in base.__subclasses__():
        yield kind
        yield from kinds(kind)


def bare(schema: Any) -> Iterator[str]:
    """Every place of a pydantic schema that would take true for a number: no `Number` or `Whole`."""
    if isinstance(schema, dict):
        if schema.get("type") == "function-before" and schema["function"]["function"] is names.number_of:
            return
        if schema.get("type") in ("int", "float") and not schema.get("strict"):
            yield str(schema["type"])
        if schema.get("type") == "literal" and any(type(one) is int for one in schema["expected"]):
            yield "a literal number"
        for key, value in schema.items():
            yield from bare(value) if key not in ("metadata", "serialization") else ()
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from bare(value)


@pytest.mark.slow
def test_no_record_and_no_row_of_a_corpus_takes_true_for_a_number() -> None:
    for package in (data_prep, evalsuite, train):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__") and "verifiers_" not in module.name:  # which need verifiers
                importlib.import_module(module.name)
    found = {kind for base in (Record, RowModel) for kind in kinds(base)}
    assert Judgement in found and len(found) > 100
    assert {
        kind.__name__: list(bare(kind.__pydantic_core_schema__)) for kind in found if any(bare(kind.__pydantic_core_schema__))
    } == {}


# --- benchmarks' own files ------------------------------------------------------------------------------------------------

HELLASWAG = {"activity_label": "a", "ctx_a": "b", "ctx_b": "c", "endings": ["d", "e", "f", "g"], "label": True}


@pytest.mark.parametrize(
    ("form", "files", "message"),
    [
        ("lcqmc", [f"{'x' * 200_000}\tb\t2\n"], "label: Input should be '0' or '1' (got '2')"),
        ("goemotions", ["joy\nanger\n", "text\t²\tid\n"], "expected numbers below 2, found '²'"),
        ("goemotions", ["joy\nanger\n", f"text\t{'9' * 5_000}\tid\n"], "expected numbers below 2"),
        ("hellaswag", [json.dumps(HELLASWAG)], f"label: {TRUE}"),
        (
            "safetybench",
            [json.dumps([{"id": 1, "question": "q", "options": ["a", "b"], "category": "c"}]), '{"1": {"answer": true}}'],
            "answer of 1: expected 0 to 1, found True",
        ),
    ],
)
def test_files_of_benchmarks(form: str, files: list[str], message: str, tmp_path: Path) -> None:
    paths = []
    for place, text in enumerate(files):
        paths.append(tmp_path / f"{place}.txt")
        paths[-1].write_text(text)
    with pytest.raises(UserError, match=str(tmp_path)) as caught:
        list(FORMS[form](paths, CorpusReader(BuildStep(form), strict=True)))
    assert message in str(caught.value) and len(str(caught.value)) < 600


# --- the command ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [{"distribution": {"high": 1.0}}, {"distribution": {"0.50": 1.0}}, {"value": True}, {"judge": "\x00"}]
)
def test_agree_says_it_in_one_line(change: dict[str, Any], esc_eval: EscEval, tmp_path: Path) -> None:
    READ["gold"].write(tmp_path / "g.jsonl", READ["gold"].sound)
    READ["judgements"].write(tmp_path / "j.jsonl", [READ["judgements"].sound[0] | change, READ["judgements"].sound[1]])
    one_line(esc_eval("agree", "--judgements", "j.jsonl", "--gold", "g.jsonl"), 2, f"j.jsonl:1: {next(iter(change))}")


def test_a_probability_off_the_scale_of_the_rubric() -> None:
    verdict = READ["judgements"].sound[0] | {"distribution": {"3": 0.5, "9": 0.5}}
    with pytest.raises(UserError, match="dialogue d1 by j: distribution: 9 is off the scale 0 to 4 of rubric esc_eval"):
        list(checked([Judgement.model_validate(verdict)], load_rubric("esc_eval")))


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
    one_line(run_with(esc_eval, *arguments), 2, *parts)
