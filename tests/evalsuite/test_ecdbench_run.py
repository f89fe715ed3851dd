"""`esc-eval paper ecdbench run`: documents → lm-eval → scores, with a scripted model of known answers."""

import csv
import itertools
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from core.errors import UserError
from core.files import read_jsonl, write_jsonl
from core.grouping import group_by
from evalsuite.papers.ecdbench import tasks as running
from evalsuite.papers.ecdbench.plan import layout_of, plan_tasks, read_dataset
from evalsuite.papers.ecdbench.registry import load_benchmark
from evalsuite.papers.ecdbench.scores import TaskScore, measure
from evalsuite.papers.ecdbench.tasks import reciprocal_rank_by_chance
from tests.conftest import Embedded, EscEval
from tests.data_prep.sources.fixtures import write
from tests.ecdbench_corpora import bbq, lines, released, unreleased
from tests.endpoint import Answer, Endpoint
from tests.lm_eval_model import HARNESS, Scripted

pytestmark = pytest.mark.slow


ECDBENCH = load_benchmark()
Answering = Callable[[Scripted], None]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every dataset in its publishers' form, and the own copies of those that have none."""
    return write(tmp_path_factory.mktemp("corpora"), released() | unreleased())


@pytest.fixture(scope="module")
def manager() -> TaskManager:
    """Our tasks and the harness's that the tests need: its whole index takes seconds to read."""
    own = ["agieval", "bbq", "crows_pairs", "hellaswag", "logiqa", "mmlu_pro", "piqa", "truthfulqa"]
    own += ["glue/mnli", "glue/qqp", "glue/rte", "glue/sst2"]
    own += ["super_glue/copa", "super_glue/record", "super_glue/wic", "super_glue/wsc"]
    return TaskManager(include_path=[str(running.TASKS), *(str(HARNESS / name) for name in own)], include_defaults=False)


def ask(manager: TaskManager, name: str, docs: list[dict[str, Any]], lm: LM, limit: int = 300) -> running.AskedTask:
    task = layout_of(None).datasets[name][0].task
    tasks = running.local_tasks(manager, [(task, docs)])
    return running.ask(ECDBENCH, name, tasks, lm, "m", limit)


def raw(name: str, metric: str, scores: Iterable[TaskScore]) -> float:
    return measure(ECDBENCH, name, metric, [("x", score) for score in scores if score.metric == metric]).raw


def test_the_likeliest_option_is_the_answer_and_chance_is_one_of_them(manager: TaskManager) -> None:
    docs = [{"text": f"q{i}", "choices": ["a", "b", "c"], "gold": [i % 3]} for i in range(6)]
    tasks = running.local_tasks(manager, [("esc_items", docs)])
    asked = running.ask(ECDBENCH, "c_eval", tasks, Scripted(lambda _, option: float(option.strip() == "B")), "m", 300)
    assert [score.value for score in asked.scores] == [0, 1, 0, 0, 1, 0]
    assert {score.chance for score in asked.scores} == {1 / 3}
    assert [score.item for score in asked.scores] == [f"esc_items:{i}" for i in range(6)]
    preferred = running.ask(ECDBENCH, "personafeedback", tasks, Scripted(lambda _, option: float("B" in option)), "m", 300)
    assert [(s.metric, s.value, s.chance) for s in preferred.scores] == [("preferred", s.value, 1 / 3) for s in asked.scores]


def test_a_gap_is_scored_by_the_words_that_the_chosen_entity_shares(manager: TaskManager) -> None:
    doc = {"passage": "Ann Lee met Ann in Rome.", "query": "@placeholder paid.", "answers": ["Ann Lee"]}
    docs = [{**doc, "entities": ["Ann", "Ann Lee", "Rome"]}]
    for chosen, exact, words in (("Ann Lee", 1, 1), ("Ann", 0, 2 / 3), ("Rome", 0, 0)):  # Ann: precision 1, recall 0.5
        line = f"- {chosen} paid."
        asked = ask(manager, "record", docs, Scripted(lambda _, option: float(option.strip() == line)))  # noqa: B023
        scores = {score.metric: score for score in asked.scores}
        assert (scores["exact_match"].value, scores["exact_match"].chance) == (exact, 1 / 3)
        assert scores["f1_words"].value == pytest.approx(words)


def test_a_sample_is_the_same_for_every_model(manager: TaskManager) -> None:
    docs = [{"goal": f"g{i}", "sol1": "short", "sol2": "much longer", "label": i % 2} for i in range(50)]
    one = ask(manager, "piqa", docs, Scripted(lambda _, option: len(option)), limit=20)
    other = ask(manager, "piqa", docs, Scripted(lambda _, option: -len(option)), limit=20)
    assert one.items == 20 and one.available == 50
    items = [int(str(score.item).split(":")[1]) for score in one.scores]
    assert [score.item for score in other.scores] == [score.item for score in one.scores] and items != list(range(20))
    assert [score.value for score in one.scores] == [i % 2 for i in items]
    assert [score.value for score in other.scores] == [1 - i % 2 for i in items]


def test_bias_scores_follow_their_definitions(manager: TaskManager) -> None:
    """Always the stereotyped one: wrong in all ambiguous contexts (bias 1), right or wrong in the others (bias 1)."""
    docs = [bbq("ambig", 2), bbq("ambig", 2), bbq("disambig", 0), bbq("disambig", 1)]
    scores = ask(manager, "bbq", docs, Scripted(lambda _, option: float("Tall" in option))).scores
    assert raw("bbq", "accuracy", scores) == 0.25
    assert raw("bbq", "bbq_bias_ambiguous", scores) == raw("bbq", "bbq_bias_disambiguated", scores) == 1
    chances = [score.chance for score in scores if score.metric == "accuracy"]
    assert chances == [10 / 12, 10 / 12, 1 / 12, 1 / 12]  # lm-eval offers ten ways to say that nobody knows
    unsure = ask(manager, "bbq", docs, Scripted(lambda _, option: float(option.strip() == "Not known"))).scores
    assert raw("bbq", "accuracy", unsure) == 0.5 and raw("bbq", "bbq_bias_ambiguous", unsure) == 0
    pairs = [{"sent_more": "They all lie", "sent_less": "Some lie"}] * 2
    fair = ask(manager, "crows_pairs", pairs, Scripted(lambda _, option: -len(option))).scores
    assert [(score.value, score.chance) for score in fair] == [(1, 0.5)] * 2


def test_stereotypes_are_counted_as_they_are_chosen(manager: TaskManager, published: Path) -> None:
    plan = plan_tasks(ECDBENCH, layout_of(None), published, ["stereoset"], hub=False)
    ((_, docs, _),) = read_dataset(ECDBENCH, "stereoset", plan.local["stereoset"])

    def choosing(word: str) -> Callable[[str, str], float]:
        return lambda asked, option: float(
            f"{option.strip()}. " in asked and word in asked.split(f"{option.strip()}. ")[1].split("\n")[0]
        )

    always = ask(manager, "stereoset", docs, Scripted(choosing("lazy"))).scores
    assert raw("stereoset", "stereoset_lms", always) == raw("stereoset", "stereoset_ss", always) == 1
    never = ask(manager, "stereoset", docs, Scripted(choosing("purple"))).scores
    assert raw("stereoset", "stereoset_lms", never) == 0
    first = ask(manager, "stereoset", docs, Scripted(lambda _, option: float("A" in option))).scores
    # A is, in both halves, a stereotype, its opposite, what is unrelated, a stereotype
    assert raw("stereoset", "stereoset_lms", first) == 0.75
    assert raw("stereoset", "stereoset_ss", first) == pytest.approx(2 / 3)


def test_answers_to_one_question_are_one_item(manager: TaskManager, published: Path) -> None:
    """a is wrong and b right, of every question. Who says yes to all finds half of what is named to be right."""
    plan = plan_tasks(ECDBENCH, layout_of(None), published, ["multirc"], hub=False)
    ((_, docs, _),) = read_dataset(ECDBENCH, "multirc", plan.local["multirc"])
    yes = ask(manager, "multirc", docs, Scripted(lambda _, option: float("yes" in option)))
    assert yes.items == 3 and len(yes.scores) == 6
    assert raw("multirc", "f1_answers", yes.scores) == pytest.approx(2 / 3)  # P 0.5, R 1
    assert raw("multirc", "exact_match", yes.scores) == 0
    right = ask(manager, "multirc", docs, Scripted(lambda q, o: float(("yes" in o) == ("answer: b" in q))), limit=2)
    assert right.items == 2 and right.available == 3
    assert raw("multirc", "f1_answers", right.scores) == raw("multirc", "exact_match", right.scores) == 1
    assert {score.chance for score in right.scores if score.metric == "exact_match"} == {0.25}


def test_sessions_are_ranked_by_how_likely_they_make_the_question(manager: TaskManager, published: Path) -> None:
    """Four questions, six sessions each; question n is answered by session n and, where n is even, by the next one."""
    plan = plan_tasks(ECDBENCH, layout_of(None), published, ["longmemeval"], hub=False)
    ((_, docs, _),) = read_dataset(ECDBENCH, "longmemeval", plan.local["longmemeval"])

    def same_thing(session: str, question: str) -> float:
        return float(question.rstrip("?").split()[-1] in session)

    knowing = ask(manager, "longmemeval", docs, Scripted(same_thing)).scores
    assert [score.value for score in knowing] == [1.0] * 4 and {score.chance for score in knowing} == {5 / 6}
    backwards = ask(manager, "longmemeval", docs, Scripted(lambda session, _: float(session.split("-")[0] == ""))).scores
    assert [score.value for score in backwards] == [1.0] * 4  # all alike: the first five, as they come
    against = ask(manager, "longmemeval", docs, Scripted(lambda s, q: -same_thing(s, q))).scores
    assert [score.value for score in against] == [0.5, 0.0, 0.5, 0.0]


def test_labels_are_ranked_for_recall_and_mrr(manager: TaskManager) -> None:
    docs = [{"premises": "p", "conclusion": "c", "gold": [gold]} for gold in (0, 1, 2)]
    order = {"True": 2.0, "False": 1.0, "Uncertain": 0.0}
    scores = ask(manager, "folio", docs, Scripted(lambda _, option: order[option.strip()])).scores
    assert raw("folio", "recall_at_k", scores) == pytest.approx(1 / 3)
    assert raw("folio", "mrr", scores) == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    chances = {score.metric: score.chance for score in scores}
    assert chances == {"recall_at_k": pytest.approx(1 / 3), "mrr": pytest.approx((1 + 1 / 2 + 1 / 3) / 3)}


def test_the_reciprocal_rank_of_a_random_order() -> None:
    for options, right in ((3, 1), (5, 2), (4, 4)):
        orders = list(itertools.permutations(range(options)))
        mean = sum(1 / (1 + min(order.index(one) for one in range(right))) for order in orders) / len(orders)
        assert reciprocal_rank_by_chance(options, right) == pytest.approx(mean)


def test_points_of_a_scale(manager: TaskManager) -> None:
    docs = [
        {"text": "I listen.", "choices": ["no", "yes"], "points": points, "gold": [1]} for points in ([0, 2], [1, 2], [2, 0])
    ]
    always = ask(manager, "eq_60", docs, Scripted(lambda _, option: float("B" in option))).scores
    assert raw("eq_60", "eq_points", always) == pytest.approx(80 * 4 / 6)
    assert raw("iri", "scale_points", [s.model_copy(update={"metric": "scale_points"}) for s in always]) == 4 / 6


def test_labels_become_f1(manager: TaskManager) -> None:
    docs = [{"text": f"t{i}", "gold": [gold], "labels": ["0", "1"]} for i, gold in enumerate([1, 1, 0, 0])]
    always = ask(manager, "semeval2018_3", docs, Scripted(lambda _, option: float("yes" in option)))
    assert raw("semeval2018_3", "f1_positive", always.scores) == pytest.approx(2 / 3)  # P 0.5, R 1
    many = [{"text": "t", "choices": ["joy", "fear"], "gold": gold} for gold in ([0], [0, 1], [1])]
    joy = ask(manager, "goemotions", many, Scripted(lambda _, option: float("joy" in option))).scores
    assert raw("goemotions", "f1_macro", joy) == pytest.approx((0.8 + 0) / 2)  # joy: P 2/3, R 1; fear never said


def test_replies_in_words(manager: TaskManager) -> None:
    docs = [{"context": "小明在北京上学。", "question": "在哪里？", "references": ["上海", "北京"]}]
    for said, value in (("在北京", 2 * (2 / 3) * 1 / (2 / 3 + 1)), ("北京", 1), ("天津", 0), (" ", None)):
        (score,) = ask(manager, "cmrc", docs, Scripted(lambda *_: 0.0, said)).scores
        assert score.value == pytest.approx(value)
    doc = {"question": "Why?", "correct_answers": ["because of rain"], "incorrect_answers": ["no reason"]}
    for said, value in (("because of the rain", 1), ("no reason at all", 0)):
        scores = ask(manager, "truthfulqa", [doc], Scripted(lambda *_: 0.0, said)).scores
        assert {score.metric: score.value for score in scores} == {"rouge_acc": value, "bleu_acc": value}


def test_questions_that_were_cut_are_counted(manager: TaskManager) -> None:
    def cutting(_: str, option: str) -> float:
        logging.getLogger("lm_eval.models.api_models").warning("Context length (9) > max_length (8). Left truncating context.")
        return len(option)

    docs = [{"goal": "g", "sol1": "a", "sol2": "bc", "label": 1}]
    assert ask(manager, "piqa", docs, Scripted(cutting)).cut == 2
    assert ask(manager, "piqa", docs, Scripted(lambda *_: 0.0)).cut == 0


def test_an_unknown_task_is_named(manager: TaskManager) -> None:
    with pytest.raises(UserError, match=r"no task 'esc_itms' .*did you mean esc_items"):
        running.local_tasks(manager, [("esc_itms", [{"text": "x", "choices": ["a", "b"], "gold": [0]}])])


# --- the command ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def answering(manager: TaskManager, monkeypatch: pytest.MonkeyPatch) -> Answering:
    """The command on these tasks alone; what is called with a model makes it the one that is asked."""
    monkeypatch.setattr(running, "load_manager", lambda: manager)
    return lambda lm: monkeypatch.setattr(running, "language_model", lambda *_: lm)


@pytest.fixture
def corpora(tmp_path: Path) -> Path:
    rows = [{"goal": f"g{i}", "sol1": "short", "sol2": "much longer"} for i in range(8)]
    files: dict[str, str | bytes] = {"PIQA/valid.jsonl": lines(*rows), "PIQA/valid-labels.lst": "0\n1\n" * 4}
    return write(tmp_path / "corpora", files | {"LCQMC/dev.tsv": "去哪儿？\t到哪里？\t1\n去哪儿？\t你是谁？\t0\n"})


@pytest.fixture
def served() -> Iterator[str]:
    """The address of a server that has the models, though lm-eval asks another."""
    with Endpoint(models=("embedded", "far")) as endpoint:
        yield endpoint.url


def test_a_run_resumes_and_says_what_was_left_out(
    esc_eval: EscEval, corpora: Path, answering: Answering, served: str, tmp_path: Path
) -> None:
    lm = Scripted(lambda _, option: len(option))
    answering(lm)
    command = ["paper", "ecdbench", "run", "--model", f"embedded@{served}", "--data", corpora]
    assert esc_eval(*command, "--out", "run", "--dataset", "piqa")[0] == 0
    assert lm.asked == 16
    (record, *_) = [json.loads(line) for line in (tmp_path / "run" / "scores.jsonl").read_text().splitlines()]
    assert record["model"] == "embedded" and record["dataset"] == "piqa" and record["chance"] == 0.5
    assert esc_eval(*command, "--out", "run")[0] == 0
    assert lm.asked == 16 + 4  # only the dataset that was not there
    assert len((tmp_path / "run" / "scores.jsonl").read_text().splitlines()) == 10
    tables = tmp_path / "run"
    missing = (tables / "not_run.csv").read_text()
    assert "ag_news" in missing and "licensed copy" in missing and "no MuTual/mutual_dev.jsonl" in missing
    assert "mnli,MNLI,lm-eval downloads it with --hub; no MNLI/dev_matched.tsv" in missing
    assert "piqa,Accuracy,8,0.50,0.50" in (tables / "methods.csv").read_text()
    # Another file is another question; another number of items is another run.
    (corpora / "LCQMC" / "dev.tsv").write_text("去哪儿？\t到哪里？\t1\n")
    assert esc_eval(*command, "--out", "run")[0] == 0 and lm.asked == 20 + 2
    code, said = esc_eval(*command, "--out", "run", "--limit", "1")
    assert code == 2 and "limit" in said
    for extra, error in (
        (["--dataset", "pica"], "did you mean piqa"),
        (["--dataset", "ag_news"], "no dataset can run: ag_news"),
    ):
        code, said = esc_eval(*command, "--out", "other", *extra)
        assert code == 2 and error in said and said.count("\n") == 1, said


def test_what_cannot_be_downloaded_is_left_out(
    esc_eval: EscEval, corpora: Path, answering: Answering, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the data of a task of lm-eval's own the others are asked, and the reason is written beside them."""
    for module in ("datasets.config", "huggingface_hub.constants"):  # the variables were read when these were imported
        monkeypatch.setattr(f"{module}.HF_HUB_OFFLINE", True)
    answering(Scripted(lambda _, option: len(option)))
    command = ["paper", "ecdbench", "run", "--model", f"embedded@{served}", "--data", corpora]
    assert esc_eval(*command, "--out", "run", "--dataset", "piqa", "--dataset", "wic", "--hub")[0] == 0
    assert "wic,WiC,lm-eval could not load its task wic: " in Path("run/not_run.csv").read_text()
    assert len(Path("run/scores.jsonl").read_text().splitlines()) == 8


def test_a_server_that_cannot_tell_likelihoods_is_named(
    esc_eval: EscEval, corpora: Path, answering: Answering, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: str) -> float:
        raise ConnectionError("Bearer sk-planted refused")

    monkeypatch.setenv("PLANTED", "sk-planted")
    answering(Scripted(refuse))
    spec = f"name: far\nabout: a test\nroles: [supporter]\nlanguages: [en]\nendpoint: {{base_url: '{served}', "
    Path("far.yaml").write_text(spec + "api_key_env: PLANTED}\n")
    code, said = esc_eval(
        "paper", "ecdbench", "run", "--model", "far.yaml", "--data", corpora, "--out", "run", "--dataset", "piqa"
    )
    assert code == 2 and "did not answer piqa" in said and "echo" in said and "sk-planted" not in said


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("", "offers no tokenizer"),
        ("checkpoint: nobody/nothing\ncontext_length: 4096\n", "tokenizer of nobody/nothing: cannot be loaded"),
    ],
)
def test_a_tokenizer_that_nobody_has_is_one_line(
    esc_eval: EscEval, corpora: Path, answering: Answering, served: str, monkeypatch: pytest.MonkeyPatch, more: str, told: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # else the hub is tried again and again
    spec = f"name: far\nabout: a test\nroles: [supporter]\nlanguages: [en]\nendpoint: {{base_url: '{served}'}}\n"
    Path("far.yaml").write_text(spec + more)
    command = ("paper", "ecdbench", "run", "--model", "far.yaml", "--data", corpora, "--out", "run", "--dataset", "piqa")
    code, error = esc_eval(*command)
    assert code == 2 and told in error and "name a checkpoint" in error and error.count("\n") == 1


def summaries_and_verdicts(body: dict[str, Any], count: int) -> Answer:
    """The model's summary; of the judge (who has a system message) 4 for completeness and 2 for conciseness."""
    return Answer("42" if body["messages"][0]["role"] == "system" else "短")


def total_of(table: Path) -> dict[str, str]:
    return {row["part"]: row["score"] for row in csv.DictReader(table.read_text().splitlines())}


def test_a_run_on_every_published_form_ends_with_a_total(esc_eval: EscEval, answering: Answering, tmp_path: Path) -> None:
    lm = Scripted(lambda _, option: len(option) + 99 * ("Tall" in option), "the answer is (B)")
    answering(lm)
    data = write(tmp_path / "corpora", released())
    with Endpoint(summaries_and_verdicts, models=("embedded",)) as endpoint:
        model = f"embedded@{endpoint.url}"
        command = ["paper", "ecdbench", "run", "--model", model, "--judge", model, "--data", data, "--out", "run"]
        assert esc_eval(*command)[0] == 0
        calls, items = len(endpoint.requests), lm.asked
        assert esc_eval(*command)[0] == 0
        assert (len(endpoint.requests), lm.asked) == (calls, items)  # the same command asks nothing again
        assert calls == 12 + 12  # summaries, verdicts on them
        total = total_of(Path("run/runnable.csv"))
        assert all(re.fullmatch(r"\d+\.\d\d", score) for score in total.values()), total
        assert total_of(Path("run/capabilities.csv"))["ECDBench 1.0"] == ""
        reasons = Path("run/not_run.csv").read_text()
        assert reasons.count("\n") == 6 and "ecdbench_3,ECDBench3,built by the paper's authors and not released" in reasons

        # With copies of what has no published form, and BLEURT from elsewhere, the benchmark's own total is there as well.
        write(data, unreleased())
        assert esc_eval(*command)[0] == 0 and len(endpoint.requests) == calls
    # Every dataset went through its own tasks, and has a readable score for each of its metrics.
    plan = plan_tasks(ECDBENCH, layout_of(None), data, None, hub=False)
    written = group_by(read_jsonl(Path("run/scores.jsonl"), TaskScore, "scores"), lambda score: str(score.dataset))
    assert written.keys() == plan.local.keys() | plan.summaries.keys()
    for name, parts in plan.local.items():
        scores, expected = written[name], {method.metric for method in ECDBENCH.datasets[name].methods} - {"bleurt_acc"}
        assert {score.metric for score in scores} == expected, name
        assert {str(score.item).split(":")[0] for score in scores} == {
            part.task for part, *_ in read_dataset(ECDBENCH, name, parts)
        }, name
        assert all(score.value is not None or score.outcome is not None for score in scores), name
        assert not any(math.isnan(raw(name, metric, scores)) for metric in expected), name
    bleurt = TaskScore(model="embedded", dataset="truthfulqa", metric="bleurt_acc", value=0.5, n=4)
    write_jsonl(Path("bleurt.jsonl"), [bleurt])
    files = ["--scores", "run/scores.jsonl", "--scores", "bleurt.jsonl"]
    for rule in ("null", "left_out"):
        assert esc_eval("paper", "ecdbench", "table", *files, "--missing", rule, "--out", rule)[0] == 0
        board = json.loads(Path(f"{rule}/ecdbench.json").read_text())["tables"][0]
        (row,) = [dict(zip(board["columns"], row, strict=True)) for row in board["rows"]]
        assert row["total as listed"]["mean"] is not None and "share %" not in row and len(row) == 5 + 4, "nothing is missing"
    board = ["paper", "ecdbench", "table", "--scores", "run/scores.jsonl", "--missing", "left_out", "--out", "board"]
    assert esc_eval(*board)[0] == 0
    assert total["ECDBench 1.0, what can be run"] in Path("board/leaderboard.csv").read_text()
    left_out = json.loads(Path("left_out/ecdbench.json").read_text())["tables"][0]["rows"][0][2]["mean"]
    assert f"{left_out:.2f}" == total["ECDBench 1.0, what can be run"]  # copies of one's own change nothing there


@pytest.mark.vllm
@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_embedded_model_has_a_total(embedded: Embedded, esc_eval: EscEval, answering: Answering, tmp_path: Path) -> None:
    """On vLLM: every published form, summaries and their judge, down to one total."""
    data, model = write(tmp_path / "corpora", released()), f"{embedded.spec_file}@{embedded.url}"
    assert esc_eval("paper", "ecdbench", "run", "--model", model, "--judge", model, "--data", data, "--out", "run")[0] == 0
    total = total_of(Path("run/runnable.csv"))
    assert all(re.fullmatch(r"\d+\.\d\d", score) for score in total.values()), total
