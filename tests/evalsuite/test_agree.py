"""`esc-eval agree`: files, options, what is drawn whole, table 4 from human scores and a ranker, and `--correlate`."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from core.errors import UserError
from core.files import CONFIGS, write_jsonl
from core.records import Dialogue, HumanScore, Judgement, Turn
from data_prep.__main__ import app as data_prep_app
from data_prep.scores import synthetic
from data_prep.scores.rank_sft import synthetic_test
from evalsuite.commands.agree import agree
from evalsuite.runs.config import load_config
from evalsuite.runs.dialogue_framework import resolve_config
from evalsuite.statistics.agreement import agreement
from evalsuite.statistics.correlation import COEFFICIENTS
from evalsuite.statistics.judge_figures import SYNTHETIC
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint
from tests.evalsuite import test_correlation as records
from tests.evalsuite.test_judges import golden, judged
from tests.verbs import printed

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(agree)


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object) -> str:
    error = ran(*arguments).exception
    assert isinstance(error, UserError)
    return str(error)


def files(folder: Path, verdicts: list[Judgement], gold: list[HumanScore]) -> tuple[object, ...]:
    write_jsonl(folder / "j.jsonl", verdicts)
    write_jsonl(folder / "g.jsonl", gold)
    return ("--judgements", folder / "j.jsonl", "--gold", folder / "g.jsonl")


def test_one_judge_as_json_is_what_it_was_and_more(tmp_path: Path) -> None:
    verdicts, gold = judged("a", [3, None]), golden([3, 2])
    result = ran(*files(tmp_path, verdicts, gold), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["agreement"] == agreement(verdicts, gold) == found["judges"]["a"]["agreement"]
    assert found["dimension_differences"] == found["differences"] == []
    assert found["judges"]["a"]["confusion"]["en"]["fluency"]["unread"] == [0, 0, 1, 0, 0]  # esc_eval's scale
    about = {"judge": "a", "rubric": "esc_eval", "method": "joint", "condition": {}}
    assert found["judges"]["a"].items() > about.items() and len(found["judges"]["a"]) == len(about) + 3


@pytest.mark.slow
def test_several_files_and_judges(tmp_path: Path) -> None:
    given = files(tmp_path, judged("a", [3, 1]) + judged("b/c", [3, 3]), golden([3, 3]))
    write_jsonl(tmp_path / "third.jsonl", judged("d", [0, 3]))
    out = tmp_path / "out"
    result = ran(*given, "--judgements", tmp_path / "third.jsonl", "--out", out, "--mode", "paper")
    assert result.exit_code == 0, result.output
    assert "Judges against gold, en" in result.stdout and "Agreement with gold, en (b/c)" in result.stdout
    found = json.loads((out / "agreement.json").read_bytes())
    assert "agreement" not in found and list(found["judges"]) == ["a", "b/c", "d"] and len(found["dimension_differences"]) == 3
    keys = [f"{kind}_{judge}_en" for kind in ("agreement", "confusion") for judge in ("a", "b-c", "d")]
    keys += ["table4_en", "judge_differences", "judge_dimensions"]
    assert sorted(path.name for path in out.iterdir()) == sorted(
        [".agreement.tables", "agreement.json", "table4.md", *(f"{k}.csv" for k in keys)]
    )
    with (out / "table4_en.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [(row["Judge"], row["Fluency ACC"], row["Fluency ACC n"]) for row in rows][1] == ("b/c", "100.00", "2")
    assert "| 100.00 [" in (out / "table4.md").read_text()
    (out / "own.csv").write_text("mine")
    assert ran(*files(tmp_path, judged("a", [3, 1]), golden([3, 3])), "--out", out).exit_code == 0
    assert {path.name for path in out.glob("*.csv")} == {"agreement_en.csv", "confusion_en.csv", "table4_en.csv", "own.csv"}, (
        "figures of the three judges do not stay behind"
    )


def test_one_rubric_of_several_is_chosen(tmp_path: Path) -> None:
    verdicts = judged("a", [3, 1]) + judged("a", [1], rubric="epitome", dimension="explorations", first=9)
    gold = golden([3, 3]) + golden([1], rubric="epitome", dimension="explorations", first=9)
    given = files(tmp_path, verdicts, gold)
    assert "choose one with --rubric" in refused(*given)
    result = ran(*given, "--rubric", "epitome", "--json")
    assert list(json.loads(result.stdout)["agreement"]["en"]) == ["explorations", "average"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--mode", "strict"], "--mode: unknown mode 'strict'"),
        (["--rubric", "epitome"], "--rubric: no verdict is on rubric epitome: .*esc_eval"),
        (["--gold-rubric", "esc_eval_human"], "--gold-rubric: no gold score is on rubric esc_eval_human: .*esc_eval"),
        (["--annotator", "b"], "--annotator b: gave none of the scores: .*a"),
    ],
)
def test_options_that_leave_nothing_are_errors(tmp_path: Path, options: list[str], problem: str) -> None:
    assert re.search(problem, refused(*files(tmp_path, judged("a", [3]), golden([3])), *options))


def test_verdicts_off_the_rubrics_scale_are_errors(tmp_path: Path) -> None:
    told = refused(*files(tmp_path, judged("a", [7]), golden([3])))
    assert "7 is off the scale 0 to 4 of rubric esc_eval" in told


def test_gold_of_other_rubric_and_some_annotators(tmp_path: Path) -> None:
    gold = golden([3], rubric="esc_eval_human") + golden([0], rubric="esc_eval_human", annotator="b") + golden([0])
    options = ["--gold-rubric", "esc_eval_human", "--annotator", "a", "--json"]
    result = ran(*files(tmp_path, judged("a", [3]), gold), *options)
    assert json.loads(result.stdout)["agreement"]["en"]["fluency"]["acc"] == 1


def test_only_shared_leaves_out_and_says_so(tmp_path: Path) -> None:
    given = files(tmp_path, judged("a", [3, 3]), golden([3, 2, 1], first=1))
    assert refused(*given)
    result = ran(*given, "--only-shared", "--out", tmp_path / "out")
    said = "Left out: 1 verdicts without gold, 2 gold scores without a verdict."
    assert said in " ".join(result.stdout.split()) and said in (tmp_path / "out" / "table4.md").read_text()
    nothing = files(tmp_path, judged("a", [3]), golden([3], first=5))
    assert "no verdict and no gold score" in refused(*nothing, "--only-shared")


@pytest.mark.slow
def test_what_is_drawn_whole(tmp_path: Path) -> None:
    """Cards from --dialogues or a run folder; each dialogue without them, or where --cluster says so."""
    about: dict[str, Any] = {"language": "en", "source": "s", "turns": (Turn(role="seeker", text="a"),)}
    talks = [Dialogue(id=f"d{n}", card_id=f"c{n // 4}", trial=n % 2, **about) for n in range(12)]
    given = files(tmp_path, judged("a", [3, 1] * 6) + judged("b", [3] * 12), golden([3] * 12))
    write_jsonl(tmp_path / "talks.jsonl", talks)
    write_jsonl(tmp_path / "run" / "gold_dialogues.jsonl", talks)
    write_jsonl(tmp_path / "run" / "gold_scores.jsonl", golden([3] * 12))
    from_run = ("--judgements", tmp_path / "j.jsonl", "--gold", tmp_path / "run" / "gold_scores.jsonl")
    records = ("--dialogues", tmp_path / "talks.jsonl")
    for arguments, clusters, name in (
        (given, 12, "dialogues"),
        ((*given, *records), 3, "cards"),
        (from_run, 3, "cards"),
        ((*from_run, "--cluster", "dialogue"), 12, "dialogues"),
        ((*from_run, "--cluster", "trial"), 2, "dialogues of one trial"),
    ):
        found = json.loads(ran(*arguments, "--json").stdout)
        row = found["judges"]["a"]["agreement"]["en"]["average"]
        assert (row["clusters"], row["clustered_by"], row["n"]) == (clusters, name, 12)
        assert [d["clusters"] for d in found["differences"]] == [clusters]
    for options, problem in (
        (("--cluster", "card"), "--cluster card: the records of these dialogues are missing"),
        ((*records, "--cluster", "colour"), "--cluster colour: not a field of a dialogue"),
    ):
        assert problem in refused(*given, *options)


@pytest.mark.slow
def test_synthetic_gold_is_labelled(tmp_path: Path) -> None:
    _, scores = synthetic.build(languages=("en",))
    assert {score.annotator for score in scores} == {SYNTHETIC}
    result = ran(*files(tmp_path, judged("a", [3]), golden([3], annotator=SYNTHETIC)))
    assert "synthetic gold, scores hold by construction" in " ".join(result.stdout.split())


@pytest.mark.slow
def test_the_papers_table_4_stands_beside_ours(tmp_path: Path) -> None:
    given = files(tmp_path, judged("esc-rank", [3, 3]) + judged("gpt-4", [3, 1]), golden([3, 3]))
    result = ran(*given, "--against", "paper", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    with (tmp_path / "out" / "table4_en.csv").open(newline="") as handle:
        rows = {row["Judge"]: row for row in csv.DictReader(handle)}
    assert rows["paper: ESC-RANK"]["Fluency ACC"] == "81.66" and rows["paper: GPT-4"]["average ACC_soft"] == "75.03"
    alone = ran(*files(tmp_path, judged("mine", [3, 3]), golden([3, 3])), "--against", "paper", "--out", tmp_path / "alone")
    assert alone.exit_code == 0 and "81.66" in (tmp_path / "alone" / "agreement_en.csv").read_text()
    assert "--against: unknown 'papers'" in refused(*given, "--against", "papers")


def test_from_human_scores_and_a_ranker_to_table_4(esc_eval: EscEval, tmp_path: Path) -> None:
    """The reviewer's path with a scripted ranker: import, score with configs/eval/table4.yaml, agree."""
    dialogues, scores = synthetic_test()
    chosen = [d for d in dialogues if d.language == "en"][:3] + [d for d in dialogues if d.language == "zh"][:2]
    write_jsonl(tmp_path / "talks.jsonl", chosen)
    kept = [s for s in scores if s.dialogue_id in {d.id for d in chosen}]
    columns = ("dialogue_id", "language", "annotator", "rubric", "dimension", "value")
    lines = [",".join(str(getattr(s, name)) for name in columns) for s in kept]
    (tmp_path / "human.csv").write_text("\n".join([",".join(columns), *lines]) + "\n")
    prepare = ["import", "--gold", "human.csv", "--dialogues", "talks.jsonl", "--out", "gold"]
    assert CliRunner().invoke(data_prep_app, prepare).exit_code == 0
    with Endpoint(lambda body, count: Answer("3"), models=("embedded",)) as endpoint:
        asked = ("--config", CONFIGS / "eval" / "table4.yaml", "--judge", "embedded")
        where = ("--dialogues", "gold/dialogues.jsonl", "--set", f"endpoints.embedded={endpoint.url}", "--out", "table4/ranker")
        assert esc_eval("run", "--only", "score", *asked, *where) == (0, "")
    done = ran(
        "--judgements", "table4/ranker/judgements.jsonl", "--gold", "gold/scores.jsonl", "--against", "paper", "--out", "table4"
    )
    assert done.exit_code == 0, done.output
    found = json.loads(Path("table4/agreement.json").read_bytes())["agreement"]
    wanted = [s.value == 3 for s in kept if s.language == "en" and s.dimension == "fluency"]
    assert found["en"]["fluency"]["acc"] == pytest.approx(sum(wanted) / 3) and found["zh"]["average"]["n"] == 14
    assert "81.66" in Path("table4/table4.md").read_text()


@pytest.mark.parametrize(("mode", "method"), [("native", "per_dimension"), ("paper", "paper")])
def test_the_config_of_table_4_loads_with_every_judge_of_the_table(mode: str, method: str) -> None:
    for judge in ("esc-rank", "esc-rank-published", "internlm2-chat-7b", "gpt-4"):
        resolved = resolve_config(load_config(CONFIGS / "eval" / "table4.yaml", {"judge": judge, "mode": mode}))
        assert resolved.models.judge.name == judge and resolved.method == method
        if judge == "esc-rank-published":  # which has learnt the prompts of a clone that is not here
            told = "has learnt the prompts in runs/esc_eval_clone/prompts, which is no folder"
            told = told if mode == "paper" else "was not trained to be asked by method per_dimension, but paper: mode: paper"
            with pytest.raises(UserError, match=told):
                resolved.judge_prompts  # noqa: B018
        else:
            assert resolved.judge_pack == ("esc_rank" if judge == "esc-rank" else "esc_eval") and resolved.judge_prompts


def test_judges_of_equally_many_but_other_items_are_named(tmp_path: Path) -> None:
    verdicts = judged("a", [3, 3]) + judged("b", [3, 3], first=1)
    result = ran(*files(tmp_path, verdicts, golden([3, 3, 3])))
    assert "over different items" in " ".join(result.stdout.split())


def test_a_score_given_in_two_files_is_an_error(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "g2.jsonl", golden([4]))
    told = refused(*files(tmp_path, judged("a", [3]), golden([3])), "--gold", tmp_path / "g2.jsonl")
    assert "g2.jsonl" in told and "twice" in told


@pytest.fixture
def sides(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "d.jsonl", records.TALKS)
    write_jsonl(tmp_path / "j.jsonl", records.judged(1, 2, 3, 30, 20, 10))
    write_jsonl(tmp_path / "k.jsonl", records.judged(3, 2, 1, 10, 20, 30, judge="k"))
    write_jsonl(tmp_path / "g.jsonl", [*records.GOLD, *(records.felt(d.id, 2, annotator="b") for d in records.TALKS)])
    return tmp_path


def call(folder: Path, *more: object, judgements: str = "j.jsonl", gold: str = "g.jsonl", by: str = "dialogue") -> str:
    given = ["--judgements", folder / judgements, "--gold", folder / gold, "--dialogues", folder / "d.jsonl"]
    arguments = ["--correlate", by, *given, *more]
    return printed(app, *arguments)


def test_the_verb_prints_json_and_writes_tables(sides: Path) -> None:
    printed = json.loads(call(sides, "--judgements", sides / "k.jsonl", "--json", "--out", sides / "out"))["correlation"]
    assert json.loads((sides / "out" / "correlation.json").read_text())["correlation"] == printed
    assert {path.name for path in (sides / "out").glob("*.csv")} == {
        "correlation_dataset_en_h.csv",
        *(f"correlation_sample_{name}_en_h.csv" for name in COEFFICIENTS),
    }
    first = printed[0]
    assert (first["judge"], first["dimension"], first["gold_dimension"], first["level"]) == ("j", "warm", "kind", "sample")
    assert (first["coefficient"], first["value"], first["n"], first["pairs"], first["undefined"]) == ("spearman", 0.75, 2, 6, 0)
    values = {(row["judge"], row["level"], row["coefficient"]): row["value"] for row in printed}
    assert values["k", "sample", "pearson"] == pytest.approx(-values["j", "sample", "pearson"])


def test_without_dialogues_scores_of_one_dialogue_are_paired(sides: Path) -> None:
    """With a sample of its own for each dialogue, dialogues that are given say the same."""
    bare = ["--correlate", "dialogue", "--judgements", sides / "j.jsonl", "--gold", sides / "g.jsonl", "--json"]
    result = ran(*bare)
    found = json.loads(result.stdout)["correlation"]
    assert {row["level"] for row in found} == {"dataset"} and found[0]["pairs"] == found[0]["samples"] == 6
    assert "left out: without --dialogues, the sample level" in result.stderr

    def with_dialogues() -> list[dict[str, Any]]:
        return [row for row in json.loads(call(sides, "--json"))["correlation"] if row["level"] == "dataset"]

    assert [row["value"] for row in found] == [row["value"] for row in with_dialogues()]
    apart = [d.model_copy(update={"card_id": None, "source_id": None}) for d in records.TALKS]
    write_jsonl(sides / "d.jsonl", apart)
    assert with_dialogues() == found


@pytest.mark.parametrize("option", ["--correlate system", "--correlate dialogue --sample source"])
def test_what_only_dialogues_can_tell_is_asked_for(option: str, sides: Path) -> None:
    told = refused("--judgements", sides / "j.jsonl", "--gold", sides / "g.jsonl", *option.split())
    assert re.search(f"{option.split()[-2]}: .* give --dialogues", told)
    with pytest.raises(UserError, match="condition.supporter: .*give --dialogues"):
        records.rows_of(records.judged(1, 2, 3, 30, 20, 10, condition={"supporter": "s1"}), records.GOLD, None)


def test_only_some_annotators(sides: Path) -> None:
    only_a = json.loads(call(sides, "--annotator", "a", "--json"))["correlation"]
    assert only_a[0]["value"] == 0.75
    only_b = json.loads(call(sides, "--annotator", "b", "--json"))["correlation"]
    assert only_b[0]["value"] is None  # b gave the same score to all


def test_gold_may_be_csv(sides: Path) -> None:
    rows = [f"{s.dialogue_id},en,{s.annotator},{s.rubric},{s.dimension},{s.value}" for s in records.GOLD]
    (sides / "g.csv").write_text("dialogue_id,language,annotator,rubric,dimension,value\n" + "\n".join(rows))
    assert json.loads(call(sides, "--json", gold="g.csv"))["correlation"][0]["value"] == 0.75


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--cluster", "card"), "--cluster: leave it out with --correlate"),
        (("--sample", "cards"), "--sample: unknown sample 'cards': did you mean card"),
        (("--annotator", "c"), "--annotator c: gave none of the scores: known: a, b"),
    ],
)
def test_wrong_options(more: tuple[str, ...], message: str, sides: Path) -> None:
    with pytest.raises(UserError, match=message):
        call(sides, *more)
    with pytest.raises(UserError, match="--correlate: unknown correlate 'card': known: dialogue, system"):
        call(sides, by="card")


def test_scores_given_twice_are_refused(sides: Path) -> None:
    with pytest.raises(UserError, match=r"j\.jsonl: j scored dialogue c1-s1, dimension warm twice \(first in .*j\.jsonl\)"):
        call(sides, "--judgements", sides / "j.jsonl")
    with pytest.raises(UserError, match=r"g\.jsonl: a scored dialogue c1-s1, dimension kind twice"):
        call(sides, "--gold", sides / "g.jsonl")
