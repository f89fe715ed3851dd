"""`esc-eval agree --correlate`: its options, files and JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from core.errors import UserError
from core.files import write_jsonl
from evalsuite.commands.agree import agree
from evalsuite.statistics.correlation import COEFFICIENTS
from tests.evalsuite.test_correlation import GOLD, TALKS, felt, judged, rows_of
from tests.verbs import printed

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(agree)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "d.jsonl", TALKS)
    write_jsonl(tmp_path / "j.jsonl", judged(1, 2, 3, 30, 20, 10))
    write_jsonl(tmp_path / "k.jsonl", judged(3, 2, 1, 10, 20, 30, judge="k"))
    write_jsonl(tmp_path / "g.jsonl", [*GOLD, *(felt(d.id, 2, annotator="b") for d in TALKS)])
    return tmp_path


def call(folder: Path, *more: object, judgements: str = "j.jsonl", gold: str = "g.jsonl", by: str = "dialogue") -> str:
    sides = ["--judgements", folder / judgements, "--gold", folder / gold, "--dialogues", folder / "d.jsonl"]
    return printed(app, "--correlate", by, *sides, *more)


def test_the_verb_prints_json_and_writes_tables(files: Path) -> None:
    printed = json.loads(call(files, "--judgements", files / "k.jsonl", "--json", "--out", files / "out"))["correlation"]
    assert json.loads((files / "out" / "correlation.json").read_text())["correlation"] == printed
    assert {path.name for path in (files / "out").glob("*.csv")} == {
        "correlation_dataset_en_h.csv",
        *(f"correlation_sample_{name}_en_h.csv" for name in COEFFICIENTS),
    }
    first = printed[0]
    assert (first["judge"], first["dimension"], first["gold_dimension"], first["level"]) == ("j", "warm", "kind", "sample")
    assert (first["coefficient"], first["value"], first["n"], first["pairs"], first["undefined"]) == ("spearman", 0.75, 2, 6, 0)
    values = {(row["judge"], row["level"], row["coefficient"]): row["value"] for row in printed}
    assert values["k", "sample", "pearson"] == pytest.approx(-values["j", "sample", "pearson"])


def test_without_dialogues_scores_of_one_dialogue_are_paired(files: Path) -> None:
    """With a sample of its own for each dialogue, dialogues that are given say the same."""
    bare = ["--correlate", "dialogue", "--judgements", files / "j.jsonl", "--gold", files / "g.jsonl", "--json"]
    result = CliRunner().invoke(app, [str(each) for each in bare])
    found = json.loads(result.stdout)["correlation"]
    assert {row["level"] for row in found} == {"dataset"} and found[0]["pairs"] == found[0]["samples"] == 6
    assert "left out: without --dialogues, the sample level" in result.stderr

    def with_dialogues() -> list[dict[str, Any]]:
        return [row for row in json.loads(call(files, "--json"))["correlation"] if row["level"] == "dataset"]

    assert [row["value"] for row in found] == [row["value"] for row in with_dialogues()]
    apart = [d.model_copy(update={"card_id": None, "source_id": None}) for d in TALKS]
    write_jsonl(files / "d.jsonl", apart)
    assert with_dialogues() == found


@pytest.mark.parametrize("option", ["--correlate system", "--correlate dialogue --sample source"])
def test_what_only_dialogues_can_tell_is_asked_for(option: str, files: Path) -> None:
    with pytest.raises(UserError, match=f"{option.split()[-2]}: .* give --dialogues"):
        result = CliRunner().invoke(
            app, ["--judgements", str(files / "j.jsonl"), "--gold", str(files / "g.jsonl"), *option.split()]
        )
        assert result.exception is not None
        raise result.exception
    with pytest.raises(UserError, match="condition.supporter: .*give --dialogues"):
        rows_of(judged(1, 2, 3, 30, 20, 10, condition={"supporter": "s1"}), GOLD, None)


def test_only_some_annotators(files: Path) -> None:
    only_a = json.loads(call(files, "--annotator", "a", "--json"))["correlation"]
    assert only_a[0]["value"] == 0.75
    only_b = json.loads(call(files, "--annotator", "b", "--json"))["correlation"]
    assert only_b[0]["value"] is None  # b gave the same score to all


def test_gold_may_be_csv(files: Path) -> None:
    rows = [f"{s.dialogue_id},en,{s.annotator},{s.rubric},{s.dimension},{s.value}" for s in GOLD]
    (files / "g.csv").write_text("dialogue_id,language,annotator,rubric,dimension,value\n" + "\n".join(rows))
    assert json.loads(call(files, "--json", gold="g.csv"))["correlation"][0]["value"] == 0.75


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--cluster", "card"), "--cluster: leave it out with --correlate"),
        (("--sample", "cards"), "--sample: unknown sample 'cards': did you mean card"),
        (("--annotator", "c"), "--annotator c: gave none of the scores: known: a, b"),
    ],
)
def test_wrong_options(more: tuple[str, ...], message: str, files: Path) -> None:
    with pytest.raises(UserError, match=message):
        call(files, *more)
    with pytest.raises(UserError, match="--correlate: unknown correlate 'card': known: dialogue, system"):
        call(files, by="card")


def test_scores_given_twice_are_refused(files: Path) -> None:
    with pytest.raises(UserError, match=r"j\.jsonl: j scored dialogue c1-s1, dimension warm twice \(first in .*j\.jsonl\)"):
        call(files, "--judgements", files / "j.jsonl")
    with pytest.raises(UserError, match=r"g\.jsonl: a scored dialogue c1-s1, dimension kind twice"):
        call(files, "--gold", files / "g.jsonl")
