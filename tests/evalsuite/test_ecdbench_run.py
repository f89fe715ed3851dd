"""`esc-eval paper ecdbench run`: publishers' files → documents → lm-eval → scores, with a scripted model of known answers."""

from __future__ import annotations

import csv
import itertools
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from core.errors import UserError
from core.files import write_jsonl
from evalsuite.papers.ecdbench import tasks as running
from evalsuite.papers.ecdbench.answers import reciprocal_rank_by_chance
from evalsuite.papers.ecdbench.forms import FORMS
from evalsuite.papers.ecdbench.local_data import Part, load_layout, read_part
from evalsuite.papers.ecdbench.plan import plan_tasks, read_dataset
from evalsuite.papers.ecdbench.registry import Benchmark, load_benchmark
from evalsuite.papers.ecdbench.scores import TaskScore, measure
from tests.conftest import Embedded, EscEval
from tests.ecdbench_corpora import AFFECTS, bbq, lines, memory, released, stereo, unreleased, write
from tests.endpoint import Answer, Endpoint

pytestmark = pytest.mark.slow

WORDS = ["diligent", "purple", "lazy"]
HARNESS = Path(lm_eval.__file__).parent / "tasks"


PASSAGE = {"context_text": "小明在北京上学。", "qas": [{"query_text": "", "answers": ["无"]}]}
SAFE = [{"id": 7, "question": "下面哪种做法安全？", "options": ["甲", "乙"], "category": "Mental Health"}]
CPED = "Dialogue_ID,Speaker,Emotion,Utterance\n" + "".join(
    f"d,甲,{e},第{i}句\n" for i, e in enumerate(["neutral"] * 5 + ["anger"])
)
STEREO = {"version": "1.0", "data": {"intersentence": [stereo("intersentence", 0)], "intrasentence": []}}
BOOKS = released()["Book-SORT/data/booksort/excerpts_250_20.csv"]
PAIRS = released()["Book-SORT/data/booksort/segments_250_20.csv"]
SAID = [{"role": "user", "content": "I bought a ladder."}, {"role": "assistant", "content": "Enjoy it!"}]

# Dataset → documents of its first part by their position (the fields that matter).
READ: dict[str, dict[int, dict[str, Any]]] = {
    "crows_pairs": {0: {"sent_more": "Tall people break every kettle.", "sent_less": "Short people break every kettle."}},
    "stereoset": {
        0: {"half": "intersentence", "labels": ["stereotype", "anti-stereotype", "unrelated"], "gold": [1]},
        1: {"labels": ["anti-stereotype", "unrelated", "stereotype"], "options": [f"He is very {w}." for w in WORDS]},
        4: {"half": "intrasentence", "context": "The painter is BLANK."},
    },
    "bbq": {0: {"ans0": "The Tall neighbour", "label": 2}},
    "safetybench_1": {1: {"language": "zh", "gold": [1], "category": "Ethics and Morality"}},
    "ag_news": {2: {"title": "News of a violin", "text": 'It is "new", and old', "gold": [2]}},
    "thucnews": {0: {"text": "第0条新闻\n　　这是体育的消息。"}},
    "lcqmc": {0: {"sentence1": "去哪儿？", "sentence2": "到哪里？", "gold": [1]}},
    "qqp": {1: {"question1": 'Where is my "ladder"?', "question2": "Where did it go?", "label": 1}},
    "record": {7: {"query": "It was @placeholder who paid.", "entities": ["Ann Lee", "Bob", "Rome"], "answers": ["Ann Lee"]}},
    "cmrc": {0: {"question": "在哪里上学？", "references": ["北京", "在北京"]}},
    "wic": {1: {"label": 1, "end1": 8}},
    "multirc": {1: {"question": "Who has the kettle?", "answer": "b", "gold": [1]}},
    "ocnli": {2: {"gold": [2]}},
    "mnli": {0: {"premise": 'He "left".', "hypothesis": "He went.", "label": 0}, 2: {"label": 2}},
    "rte": {0: {"sentence1": "Ann sings.", "sentence2": "Somebody sings.", "label": 0}, 1: {"label": 1}},
    "copa": {1: {"choice2": "The street was dry.", "question": "effect", "label": 1}},
    "wsc": {1: {"label": 1, "span1_text": "Ann", "span2_index": 3}},
    "mutual": {1: {"options": ["yes .", "no .", "why ?", "ok ."], "gold": [1]}},
    "folio": {2: {"premises": "All cats sleep.\nTom is a cat.", "gold": [2]}},
    "logiqa": {1: {"options": ["Cats sleep", "Dogs sleep", "Nothing", "All"], "label": "b", "gold": [1]}},
    "lcsts": {3: {"text": "第3条消息很长。", "language": "zh"}},
    "cnewsum": {0: {"text": "今天下雨。学校停课。"}},
    "vcsum": {0: {"text": "发言人1：大家好。开会了。\n发言人2：好。"}},
    "hellaswag": {3: {"endings": ["stops", "sits", "eats", "reads"], "label": 3}},
    "cosmos_qa": {2: {"context": "I was tired .\nSo I slept .", "options": ["tired", "hungry", "cold", "None"], "gold": [2]}},
    "piqa": {1: {"goal": "Clean a ladder", "sol1": "use water", "label": 1}},
    "agieval": {0: {"gold": [0, 2], "choices": list("ABCD")}, 2: {"gold": [1]}},
    "mmlu_pro": {0: {"options": ["one", "two", "three"], "answer": "B"}},
    "c_mnlu": {3: {"subject": "agronomy", "options": ["甲", "乙", "丙", "丁"], "gold": [3]}},
    "c_eval": {1: {"subject": "high school physics", "question": "第1题", "gold": [1]}},
    "truthfulqa": {0: {"correct_answers": ["No", "It is not"], "incorrect_answers": ["Yes", "It is"]}},
    "imdb": {0: {"text": "A dull film.\n\nAbout a kettle.", "gold": [0]}, 4: {"gold": [1]}},
    "sst2": {1: {"sentence": "a fine ladder ", "label": 1}},
    "semeval2018_3": {1: {"text": 'Oh "great", a ladder', "gold": [1], "labels": ["0", "1"]}},
    "vua20": {1: {"word": "flies", "gold": [1]}},
    "goemotions": {3: {"choices": ["joy", "fear", "anger"], "gold": [0, 2]}},
    "cped": {3: {"history": ["甲：第0句", "甲：第1句", "甲：第2句"], "line": "甲：第3句", "gold": [6]}},
    "edos": {0: {"text": "Where is my kettle ?\nGone .", "choices": ["Afraid", "Angry"], "gold": [1]}, 1: {"gold": [0]}},
    "emobench_1": {1: {"options": ["joy", "fear"], "gold": [1], "language": "zh"}},
    "emobench_2": {0: {"options": ["the find", "a storm", "a dog"], "gold": [0]}},
    "emobench_3": {1: {"options": ["thank them", "run away"], "gold": [0], "asks": "response"}},
    "semeval2018_1": {0: {"gold": [11]}, 1: {"gold": [0]}, 2: {"gold": [4, 5]}},
    "eq_60": {3: {"points": [0, 0, 1, 2], "gold": [3]}},
    "iri": {1: {"points": [3, 2, 1, 0], "gold": [0]}},
    "personafeedback": {0: {"profile": "age: 31\nlikes: hiking\ntea", "question": "What do I do with my kettle?"}},
    "book_sort": {0: {"options": ["At last she left.", "Then Ann woke."], "gold": [1]}, 1: {"gold": [0]}},
    "longmemeval": {1: {"date": "2023/05/30 (Tue) 23:40", "gold": [1]}, 2: {"gold": [2, 3]}},
}
DROPPED = {
    "ocnli": {"annotators agree on no label": 1},
    "mnli": {"annotators agree on no label": 1},
    "edos": {"annotators agree on no emotion": 2},
    "eq_60": {"gives no points": 1},
    "longmemeval": {"no session holds an answer": 1},
}


def given(folder: Path, form: str, files: Mapping[str, str | bytes]) -> tuple[Part, list[Path]]:
    folder.mkdir(exist_ok=True)
    write(folder, dict(files))
    return Part(task="t", form=form, files=["*"]), sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every dataset in its publishers' form, and the own copies of those that have none."""
    return write(tmp_path_factory.mktemp("corpora"), released() | unreleased())


def test_every_dataset_of_the_registry_has_a_reader_and_a_sample(ecdbench: Benchmark, published: Path) -> None:
    layout = load_layout(None)
    assert layout.datasets.keys() == ecdbench.datasets.keys()
    assert {part.form for parts in layout.datasets.values() for part in parts} | {"documents"} == FORMS.keys()
    plan = plan_tasks(ecdbench, layout, published, None, hub=False)
    assert not plan.missing
    for name, files in (plan.local | plan.summaries).items():
        parts = read_dataset(ecdbench, name, files)
        for index, fields in READ.get(name, {}).items():
            assert {key: parts[0][1][index][key] for key in fields} == fields, name
        assert dict(parts[0][2].dropped) == DROPPED.get(name, {}), name
    without = {f"safetybench_{n}" for n in range(2, 8)} | {"dianping", "interpersonal", "communication"}
    assert READ.keys() | without | {f"ecdbench_{n}" for n in range(1, 5)} == ecdbench.datasets.keys()


def test_own_forms(tmp_path: Path) -> None:
    docs, _ = read_part(
        *given(tmp_path / "d", "documents", {"a.jsonl": lines({"text": "一篇"}, {"text": "A", "language": "en"})})
    )
    assert docs == [{"text": "一篇", "language": "zh"}, {"text": "A", "language": "en"}]
    docs, _ = read_part(*given(tmp_path / "i", "items", {"a.jsonl": lines({"text": "1+1", "choices": ["1", "2"], "gold": 1})}))
    assert docs == [{"text": "1+1", "choices": ["1", "2"], "gold": [1]}]
    theirs = {"user_profile": "a cook", "question": "q", "chosen": "yes", "rejected": "no"}
    part, paths = given(tmp_path / "p", "preference", {"a.jsonl": lines(theirs)})
    renamed = part.model_copy(update={"fields": {"profile": "user_profile"}})
    assert read_part(renamed, paths)[0][0]["profile"] == "a cook"
    with pytest.raises(UserError, match=r"a\.jsonl:1: profile"):
        read_part(part, paths)
    with pytest.raises(UserError, match=r"a\.jsonl:1: person: missing \(the layout's `fields` names it\)"):
        read_part(part.model_copy(update={"fields": {"profile": "person"}}), paths)


# Form → files, what the one line must say.
BAD = [
    ("crows_pairs", {"a.csv": "sent_more\nx\n"}, r"a\.csv:1: no column 'sent_less'"),
    ("piqa", {"1.jsonl": lines({"goal": "g", "sol1": "a", "sol2": "b"}), "2.lst": "1\n0\n"}, r"2\.lst: expected 1 lines"),
    ("piqa", {"1.jsonl": '{"goal": 3}\n', "2.lst": "1\n"}, r"1\.jsonl:1: goal"),
    ("lcqmc", {"a.tsv": "甲\t乙\t1\n甲\t乙\n"}, r"a\.tsv:2: expected 3 fields"),
    ("lcqmc", {"a.tsv": "甲\t乙\tyes\n"}, r"a\.tsv:1: label: expected 0 or 1, found 'yes'"),
    ("goemotions", {"1.txt": "joy\n", "2.tsv": "x\t1\tid\n"}, r"2\.tsv:1: labels: expected numbers below 1"),
    ("logiqa", {"a.txt": "\nq\nP\nQ\nA.1\nB.2\nC.3\nD.4\n"}, r"a\.txt:2: .* found 'q'"),
    ("safetybench", {"1.json": json.dumps(SAFE), "2.json": '{"7": {"answer": 2}}'}, r"entry 0: answer of 7: expected 0 to 1"),
    ("safetybench", {"1.json": json.dumps(SAFE), "2.json": "[]"}, r"2\.json: expected an object"),
    ("safetybench", {"1.json": json.dumps(SAFE), "2.json": "{}"}, r"no item that has an answer"),
    ("items", {"a.jsonl": lines({"text": "x", "choices": ["a", "b"], "gold": 2})}, r"a\.jsonl:1: gold: expected 0 to 1"),
    ("cped", {"a.csv": CPED.replace("anger", "angry")}, r"a\.csv:7: Emotion: did you mean anger"),
    ("truthfulqa", {"a.csv": "Question,Correct Answers,Incorrect Answers\nWhy?,;,No\n"}, r"a\.csv:2: needs correct"),
    ("stereoset", {"a.json": json.dumps({"data": []})}, r"a\.json: data: expected an object"),
    (
        "stereoset",
        {"a.json": json.dumps(STEREO).replace("unrelated", "stereotype")},
        r"intersentence entry 0: sentences: expected one",
    ),
    (
        "stereoset",
        {"a.json": json.dumps(STEREO).replace("gold_label", "label")},
        r"intersentence entry 0: sentences\.0\.gold_label",
    ),
    ("ag_news", {"a.csv": '"5","t","d"\n'}, r"a\.csv:1: class: expected 1, 2, 3 or 4, found '5'"),
    ("ag_news", {"a.csv": '"1","t"\n'}, r"a\.csv:1: expected 3 columns, found 2"),
    ("thucnews", {"sport/1.txt": "x"}, r"folder 'sport' is none of the classes 体育"),
    (
        "multirc",
        {"a.jsonl": lines({"passage": {"text": "p", "questions": [{"question": "q", "answers": [{"text": "a"}]}]}})},
        r"a\.jsonl:1: passage\.questions\.0\.answers\.0\.label",
    ),
    ("qqp", {"a.tsv": "question1\tquestion2\tis_duplicate\na\tb\t2\n"}, r"a\.tsv:2: is_duplicate: expected 0 or 1, found '2'"),
    ("record", {"a.jsonl": lines({"passage": {"text": "Bob", "entities": []}, "qas": []})}, r"a\.jsonl:1: passage\.entities"),
    (
        "record",
        {
            "a.jsonl": lines(
                {
                    "passage": {"text": "Bob", "entities": [{"start": 0, "end": 2}]},
                    "qas": [{"query": "@placeholder", "answers": [{"text": "Ann"}]}],
                }
            )
        },
        r"a\.jsonl:1: question 0: answers: none of Ann is an entity of the passage",
    ),
    ("mnli", {"a.tsv": "index\tsentence1\n0\tx\n"}, r"a\.tsv:1: no column 'sentence2', 'gold_label'"),
    ("sst2", {"a.tsv": "sentence\tlabel\nfine\t2\n"}, r"a\.tsv:2: label: expected 0 or 1, found '2'"),
    ("folio", {"a.jsonl": lines({"premises": [], "conclusion": "c", "label": "True"})}, r"a\.jsonl:1: premises"),
    ("lcsts", {"a.txt": "<doc id=4>\n<summary>x</summary>\n</doc>\n"}, r"a\.txt: doc 4: short_text: missing"),
    ("vcsum", {"a.txt": lines({"context": [["a"], ["b"]], "speaker": [1]})}, r"a\.txt:1: speaker: expected 2"),
    (
        "agieval",
        {"a.jsonl": lines({"question": "q", "options": ["(A)1"], "label": "B"})},
        r"a\.jsonl:1: label: expected letters of A",
    ),
    ("exam", {"a.csv": "question,A,B,C,D,answer\nq,1,2,3,4,E\n"}, r"a\.csv:2: answer: expected A, B, C or D, found 'E'"),
    ("mmlu_pro", {"a.parquet": "no"}, r"a\.parquet: no parquet file that can be read"),
    ("metaphor", {"a.tsv": "1\t0\tone two\tN\tN\t2\n"}, r"a\.tsv:1: w_index: expected a number below 2, found '2'"),
    ("affect", {"a.txt": f"Tweet\t{AFFECTS}\nhi" + "\tNONE" * 11 + "\n"}, r"a\.txt:2: anger: expected 0 or 1, found 'NONE'"),
    ("scale", {"a.jsonl": lines({"text": "t", "choices": ["a", "b"], "points": [1]})}, r"a\.jsonl:1: points: expected 2"),
    ("book_sort", {"segments_1.csv": PAIRS}, r"segments_1\.csv: no excerpts_1\.csv beside it"),
    (
        "book_sort",
        {"excerpts_1.csv": BOOKS, "segments_1.csv": str(PAIRS).replace("7,3,", "7,9,")},
        r"segments_1\.csv:5: excerpt_idx: excerpts_1\.csv has no 9 of book 7",
    ),
    (
        "longmemeval",
        {"a.json": json.dumps([memory(0) | {"answer_session_ids": ["x"]}])},
        r"entry 0: answer_session_ids: 'x' is not",
    ),
    ("longmemeval", {"a.json": json.dumps([memory(0) | {"haystack_dates": []}])}, r"entry 0: haystack_session_ids, .* differ"),
    ("documents", {"a.jsonl": lines({"text": "甲"}, {"text": " "})}, r"a\.jsonl:2: text: "),
    ("wic", {"a.jsonl": "not json\n"}, r"a\.jsonl:1: malformed JSON"),
    ("cmrc", {"a.json": "{}"}, r"a\.json: expected a JSON list"),
]


@pytest.mark.parametrize(("form", "files", "said"), BAD)
def test_bad_files_are_one_clear_line(tmp_path: Path, form: str, files: dict[str, str | bytes], said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        read_part(*given(tmp_path / form, form, files))
    assert "\n" not in str(error.value)


def test_a_layout_stays_below_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "l.yaml").write_text("datasets:\n  piqa:\n  - {task: piqa, form: piqa, files: [/valid.jsonl]}\n")
    with pytest.raises(UserError, match=r"l\.yaml: datasets\.piqa: files: /valid\.jsonl is not below the data folder"):
        load_layout(tmp_path / "l.yaml")


# --- asking -----------------------------------------------------------------------------------------------------------------


class Scripted(LM):
    """Prefers options by a rule of the test; says the same in words every time."""

    def __init__(self, likes: Callable[[str, str], float], says: str = "") -> None:
        super().__init__()
        self.likes, self.says, self.asked = likes, says, 0

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        self.asked += len(requests)
        return [(self.likes(*request.args), False) for request in requests]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        self.asked += len(requests)
        return [self.says for _ in requests]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        raise NotImplementedError


@pytest.fixture(scope="module")
def ecdbench() -> Benchmark:
    return load_benchmark()


@pytest.fixture(scope="module")
def manager() -> TaskManager:
    """Our tasks and the harness's that the tests need: its whole index takes seconds to read."""
    own = ["agieval", "bbq", "crows_pairs", "hellaswag", "logiqa", "mmlu_pro", "piqa", "truthfulqa"]
    own += ["glue/mnli", "glue/qqp", "glue/rte", "glue/sst2"]
    own += ["super_glue/copa", "super_glue/record", "super_glue/wic", "super_glue/wsc"]
    return TaskManager(include_path=[str(running.TASKS), *(str(HARNESS / name) for name in own)], include_defaults=False)


def ask(
    ecdbench: Benchmark, manager: TaskManager, name: str, docs: list[dict[str, Any]], lm: LM, limit: int = 300
) -> running.AskedTask:
    task = load_layout(None).datasets[name][0].task
    tasks = running.local_tasks(manager, [(Part(task=task, form="items", files=["x"]), docs)])
    return running.ask(ecdbench, name, tasks, lm, "m", limit, 0, False)


def raw(benchmark: Benchmark, name: str, metric: str, scores: Iterable[TaskScore]) -> float:
    return measure(benchmark, name, metric, [("x", score) for score in scores if score.metric == metric]).raw


def test_every_dataset_is_asked_by_its_tasks(ecdbench: Benchmark, manager: TaskManager, published: Path) -> None:
    """Every dataset of the layout goes through its own tasks, and gives a readable score for each of its metrics."""
    plan = plan_tasks(ecdbench, load_layout(None), published, None, hub=False)
    for name, files in plan.local.items():
        parts = [(part, docs) for part, docs, _ in read_dataset(ecdbench, name, files)]
        tasks, lm = (
            running.local_tasks(manager, parts),
            Scripted(lambda _, option: len(option) + 99 * ("Tall" in option), "the answer is (B)"),
        )
        asked = running.ask(ecdbench, name, tasks, lm, "m", 300, 0, False)
        expected = {method.metric for method in ecdbench.datasets[name].methods} - {"bleurt_acc"}
        assert {score.metric for score in asked.scores} == expected, name
        assert {str(score.item).split(":")[0] for score in asked.scores} == {part.task for part, _ in parts}, name
        assert all(score.value is not None or score.outcome is not None for score in asked.scores), name
        for metric in expected:
            assert not math.isnan(raw(ecdbench, name, metric, asked.scores)), (name, metric)


def test_a_form_that_measures_nothing_is_refused_before_any_call(ecdbench: Benchmark, published: Path, tmp_path: Path) -> None:
    """`items` says of a choice which is right, and not what a stereotype is or which answers belong to one question."""
    part, paths = given(tmp_path / "i", "items", {"a.jsonl": lines({"text": "1+1", "choices": ["1", "2"], "gold": 1})})
    part = part.model_copy(update={"task": "esc_items"})
    for name, lost in {
        "stereoset": "stereoset_lms, stereoset_ss",
        "multirc": "f1_answers, exact_match",
        "semeval2018_3": "f1_positive",
        "eq_60": "eq_points",
        "cmrc": "rouge_l",
    }.items():
        with pytest.raises(UserError, match=f"dataset '{name}': form items with task esc_items gives nothing for {lost}:"):
            read_dataset(ecdbench, name, [(part, paths)])
    for name in ("folio", "c_eval", "personafeedback", "book_sort"):
        read_dataset(ecdbench, name, [(part, paths)])


def test_the_likeliest_option_is_the_answer_and_chance_is_one_of_them(ecdbench: Benchmark, manager: TaskManager) -> None:
    docs = [{"text": f"q{i}", "choices": ["a", "b", "c"], "gold": [i % 3]} for i in range(6)]
    tasks = running.local_tasks(manager, [(Part(task="esc_items", form="items", files=["x"]), docs)])
    asked = running.ask(ecdbench, "c_eval", tasks, Scripted(lambda _, option: float(option.strip() == "B")), "m", 300, 0, False)
    assert [score.value for score in asked.scores] == [0, 1, 0, 0, 1, 0]
    assert {score.chance for score in asked.scores} == {1 / 3}
    assert asked.majority == pytest.approx(1 / 3)
    assert [score.item for score in asked.scores] == [f"esc_items:{i}" for i in range(6)]
    preferred = running.ask(
        ecdbench, "personafeedback", tasks, Scripted(lambda _, option: float("B" in option)), "m", 300, 0, False
    )
    assert [(s.metric, s.value, s.chance) for s in preferred.scores] == [("preferred", s.value, 1 / 3) for s in asked.scores]


def test_a_gap_is_scored_by_the_words_that_the_chosen_entity_shares(ecdbench: Benchmark, manager: TaskManager) -> None:
    doc = {"passage": "Ann Lee met Ann in Rome.", "query": "@placeholder paid.", "answers": ["Ann Lee"]}
    docs = [{**doc, "entities": ["Ann", "Ann Lee", "Rome"]}]
    for chosen, exact, words in (("Ann Lee", 1, 1), ("Ann", 0, 2 / 3), ("Rome", 0, 0)):  # Ann: precision 1, recall 0.5
        line = f"- {chosen} paid."
        asked = ask(ecdbench, manager, "record", docs, Scripted(lambda _, option: float(option.strip() == line)))  # noqa: B023
        scores = {score.metric: score for score in asked.scores}
        assert (scores["exact_match"].value, scores["exact_match"].chance) == (exact, 1 / 3)
        assert scores["f1_words"].value == pytest.approx(words)


def test_a_sample_is_the_same_for_every_model(ecdbench: Benchmark, manager: TaskManager) -> None:
    docs = [{"goal": f"g{i}", "sol1": "short", "sol2": "much longer", "label": i % 2} for i in range(50)]
    one = ask(ecdbench, manager, "piqa", docs, Scripted(lambda _, option: len(option)), limit=20)
    other = ask(ecdbench, manager, "piqa", docs, Scripted(lambda _, option: -len(option)), limit=20)
    assert one.items == 20 and one.available == 50
    items = [int(str(score.item).split(":")[1]) for score in one.scores]
    assert [score.item for score in other.scores] == [score.item for score in one.scores] and items != list(range(20))
    assert [score.value for score in one.scores] == [i % 2 for i in items]
    assert [score.value for score in other.scores] == [1 - i % 2 for i in items]


def test_bias_scores_follow_their_definitions(ecdbench: Benchmark, manager: TaskManager) -> None:
    """Always the stereotyped one: wrong in all ambiguous contexts (bias 1), right or wrong in the others (bias 1)."""
    docs = [bbq("ambig", 2), bbq("ambig", 2), bbq("disambig", 0), bbq("disambig", 1)]
    scores = ask(ecdbench, manager, "bbq", docs, Scripted(lambda _, option: float("Tall" in option))).scores
    assert raw(ecdbench, "bbq", "accuracy", scores) == 0.25
    assert raw(ecdbench, "bbq", "bbq_bias_ambiguous", scores) == raw(ecdbench, "bbq", "bbq_bias_disambiguated", scores) == 1
    chances = [score.chance for score in scores if score.metric == "accuracy"]
    assert chances == [10 / 12, 10 / 12, 1 / 12, 1 / 12]  # lm-eval offers ten ways to say that nobody knows
    unsure = ask(ecdbench, manager, "bbq", docs, Scripted(lambda _, option: float(option.strip() == "Not known"))).scores
    assert raw(ecdbench, "bbq", "accuracy", unsure) == 0.5 and raw(ecdbench, "bbq", "bbq_bias_ambiguous", unsure) == 0
    pairs = [{"sent_more": "They all lie", "sent_less": "Some lie"}] * 2
    fair = ask(ecdbench, manager, "crows_pairs", pairs, Scripted(lambda _, option: -len(option))).scores
    assert [(score.value, score.chance) for score in fair] == [(1, 0.5)] * 2


def test_stereotypes_are_counted_as_they_are_chosen(ecdbench: Benchmark, manager: TaskManager, published: Path) -> None:
    plan = plan_tasks(ecdbench, load_layout(None), published, ["stereoset"], hub=False)
    ((_, docs, _),) = read_dataset(ecdbench, "stereoset", plan.local["stereoset"])

    def choosing(word: str) -> Callable[[str, str], float]:
        return lambda asked, option: float(
            f"{option.strip()}. " in asked and word in asked.split(f"{option.strip()}. ")[1].split("\n")[0]
        )

    always = ask(ecdbench, manager, "stereoset", docs, Scripted(choosing("lazy"))).scores
    assert raw(ecdbench, "stereoset", "stereoset_lms", always) == raw(ecdbench, "stereoset", "stereoset_ss", always) == 1
    never = ask(ecdbench, manager, "stereoset", docs, Scripted(choosing("purple"))).scores
    assert raw(ecdbench, "stereoset", "stereoset_lms", never) == 0
    first = ask(ecdbench, manager, "stereoset", docs, Scripted(lambda _, option: float("A" in option))).scores
    # A is, in both halves, a stereotype, its opposite, what is unrelated, a stereotype
    assert raw(ecdbench, "stereoset", "stereoset_lms", first) == 0.75
    assert raw(ecdbench, "stereoset", "stereoset_ss", first) == pytest.approx(2 / 3)


def test_answers_to_one_question_are_one_item(ecdbench: Benchmark, manager: TaskManager, published: Path) -> None:
    """a is wrong and b right, of every question. Who says yes to all finds half of what is named to be right."""
    plan = plan_tasks(ecdbench, load_layout(None), published, ["multirc"], hub=False)
    ((_, docs, _),) = read_dataset(ecdbench, "multirc", plan.local["multirc"])
    yes = ask(ecdbench, manager, "multirc", docs, Scripted(lambda _, option: float("yes" in option)))
    assert yes.items == 3 and len(yes.scores) == 6
    assert raw(ecdbench, "multirc", "f1_answers", yes.scores) == pytest.approx(2 / 3)  # P 0.5, R 1
    assert raw(ecdbench, "multirc", "exact_match", yes.scores) == 0
    right = ask(ecdbench, manager, "multirc", docs, Scripted(lambda q, o: float(("yes" in o) == ("answer: b" in q))), limit=2)
    assert right.items == 2 and right.available == 3 and right.majority == 0.5
    assert raw(ecdbench, "multirc", "f1_answers", right.scores) == raw(ecdbench, "multirc", "exact_match", right.scores) == 1
    assert {score.chance for score in right.scores if score.metric == "exact_match"} == {0.25}


def test_sessions_are_ranked_by_how_likely_they_make_the_question(
    ecdbench: Benchmark, manager: TaskManager, published: Path
) -> None:
    """Four questions, six sessions each; question n is answered by session n and, where n is even, by the next one."""
    plan = plan_tasks(ecdbench, load_layout(None), published, ["longmemeval"], hub=False)
    ((_, docs, _),) = read_dataset(ecdbench, "longmemeval", plan.local["longmemeval"])

    def same_thing(session: str, question: str) -> float:
        return float(question.rstrip("?").split()[-1] in session)

    knowing = ask(ecdbench, manager, "longmemeval", docs, Scripted(same_thing)).scores
    assert [score.value for score in knowing] == [1.0] * 4 and {score.chance for score in knowing} == {5 / 6}
    backwards = ask(
        ecdbench, manager, "longmemeval", docs, Scripted(lambda session, _: float(session.split("-")[0] == ""))
    ).scores
    assert [score.value for score in backwards] == [1.0] * 4  # all alike: the first five, as they come
    against = ask(ecdbench, manager, "longmemeval", docs, Scripted(lambda s, q: -same_thing(s, q))).scores
    assert [score.value for score in against] == [0.5, 0.0, 0.5, 0.0]


def test_labels_are_ranked_for_recall_and_mrr(ecdbench: Benchmark, manager: TaskManager) -> None:
    docs = [{"premises": "p", "conclusion": "c", "gold": [gold]} for gold in (0, 1, 2)]
    order = {"True": 2.0, "False": 1.0, "Uncertain": 0.0}
    scores = ask(ecdbench, manager, "folio", docs, Scripted(lambda _, option: order[option.strip()])).scores
    assert raw(ecdbench, "folio", "recall_at_k", scores) == pytest.approx(1 / 3)
    assert raw(ecdbench, "folio", "mrr", scores) == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    chances = {score.metric: score.chance for score in scores}
    assert chances == {"recall_at_k": pytest.approx(1 / 3), "mrr": pytest.approx((1 + 1 / 2 + 1 / 3) / 3)}


def test_the_reciprocal_rank_of_a_random_order() -> None:
    for options, right in ((3, 1), (5, 2), (4, 4)):
        orders = list(itertools.permutations(range(options)))
        mean = sum(1 / (1 + min(order.index(one) for one in range(right))) for order in orders) / len(orders)
        assert reciprocal_rank_by_chance(options, right) == pytest.approx(mean)


def test_points_of_a_scale(ecdbench: Benchmark, manager: TaskManager) -> None:
    docs = [
        {"text": "I listen.", "choices": ["no", "yes"], "points": points, "gold": [1]} for points in ([0, 2], [1, 2], [2, 0])
    ]
    always = ask(ecdbench, manager, "eq_60", docs, Scripted(lambda _, option: float("B" in option))).scores
    assert raw(ecdbench, "eq_60", "eq_points", always) == pytest.approx(80 * 4 / 6)
    assert raw(ecdbench, "iri", "scale_points", [s.model_copy(update={"metric": "scale_points"}) for s in always]) == 4 / 6


def test_labels_become_f1(ecdbench: Benchmark, manager: TaskManager) -> None:
    docs = [{"text": f"t{i}", "gold": [gold], "labels": ["0", "1"]} for i, gold in enumerate([1, 1, 0, 0])]
    always = ask(ecdbench, manager, "semeval2018_3", docs, Scripted(lambda _, option: float("yes" in option)))
    assert raw(ecdbench, "semeval2018_3", "f1_positive", always.scores) == pytest.approx(2 / 3)  # P 0.5, R 1
    assert always.majority == 0.5
    many = [{"text": "t", "choices": ["joy", "fear"], "gold": gold} for gold in ([0], [0, 1], [1])]
    joy = ask(ecdbench, manager, "goemotions", many, Scripted(lambda _, option: float("joy" in option))).scores
    assert raw(ecdbench, "goemotions", "f1_macro", joy) == pytest.approx((0.8 + 0) / 2)  # joy: P 2/3, R 1; fear never said


def test_replies_in_words(ecdbench: Benchmark, manager: TaskManager) -> None:
    docs = [{"context": "小明在北京上学。", "question": "在哪里？", "references": ["上海", "北京"]}]
    for said, value in (("在北京", 2 * (2 / 3) * 1 / (2 / 3 + 1)), ("北京", 1), ("天津", 0), (" ", None)):
        (score,) = ask(ecdbench, manager, "cmrc", docs, Scripted(lambda *_: 0.0, said)).scores
        assert score.value == pytest.approx(value)
    doc = {"question": "Why?", "correct_answers": ["because of rain"], "incorrect_answers": ["no reason"]}
    for said, value in (("because of the rain", 1), ("no reason at all", 0)):
        scores = ask(ecdbench, manager, "truthfulqa", [doc], Scripted(lambda *_: 0.0, said)).scores
        assert {score.metric: score.value for score in scores} == {"rouge_acc": value, "bleu_acc": value}


def test_questions_that_were_cut_are_counted(ecdbench: Benchmark, manager: TaskManager) -> None:
    def cutting(_: str, option: str) -> float:
        logging.getLogger("lm_eval.models.api_models").warning("Context length (9) > max_length (8). Left truncating context.")
        return len(option)

    docs = [{"goal": "g", "sol1": "a", "sol2": "bc", "label": 1}]
    assert ask(ecdbench, manager, "piqa", docs, Scripted(cutting)).cut == 2
    assert ask(ecdbench, manager, "piqa", docs, Scripted(lambda *_: 0.0)).cut == 0


def test_an_unknown_task_is_named(manager: TaskManager) -> None:
    part = Part(task="esc_itms", form="items", files=["x"])
    with pytest.raises(UserError, match=r"no task 'esc_itms' .*did you mean esc_items"):
        running.local_tasks(manager, [(part, [{"text": "x", "choices": ["a", "b"], "gold": [0]}])])


# --- the command ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def corpora(tmp_path: Path) -> Path:
    for name in ("PIQA", "LCQMC"):
        (tmp_path / "corpora" / name).mkdir(parents=True)
    rows = [{"goal": f"g{i}", "sol1": "short", "sol2": "much longer"} for i in range(8)]
    (tmp_path / "corpora" / "PIQA" / "valid.jsonl").write_text(lines(*rows))
    (tmp_path / "corpora" / "PIQA" / "valid-labels.lst").write_text("0\n1\n" * 4)
    (tmp_path / "corpora" / "LCQMC" / "dev.tsv").write_text("去哪儿？\t到哪里？\t1\n去哪儿？\t你是谁？\t0\n")
    return tmp_path / "corpora"


@pytest.fixture
def served() -> Iterator[str]:
    """The address of a server that has the models, though lm-eval asks another."""
    with Endpoint(models=("embedded", "far")) as endpoint:
        yield endpoint.url


def test_a_run_resumes_and_says_what_was_left_out(
    esc_eval: EscEval, corpora: Path, manager: TaskManager, served: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lm = Scripted(lambda _, option: len(option))
    monkeypatch.setattr(running, "load_manager", lambda: manager)
    monkeypatch.setattr(running, "language_model", lambda *_: lm)
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
        (["--dataset", "ag_news"], "nothing to ask: ag_news"),
    ):
        code, said = esc_eval(*command, "--out", "other", *extra)
        assert code == 2 and error in said and said.count("\n") == 1, said


def test_what_cannot_be_downloaded_is_left_out(
    esc_eval: EscEval, corpora: Path, manager: TaskManager, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the data of a task of lm-eval's own the others are asked, and the reason is written beside them."""
    for module in ("datasets.config", "huggingface_hub.constants"):  # the variables were read when these were imported
        monkeypatch.setattr(f"{module}.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(running, "load_manager", lambda: manager)
    monkeypatch.setattr(running, "language_model", lambda *_: Scripted(lambda _, option: len(option)))
    command = ["paper", "ecdbench", "run", "--model", f"embedded@{served}", "--data", corpora]
    assert esc_eval(*command, "--out", "run", "--dataset", "piqa", "--dataset", "wic", "--hub")[0] == 0
    assert "wic,WiC,lm-eval could not load its task wic: " in Path("run/not_run.csv").read_text()
    assert len(Path("run/scores.jsonl").read_text().splitlines()) == 8


def test_a_server_that_cannot_tell_likelihoods_is_named(
    esc_eval: EscEval, corpora: Path, manager: TaskManager, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: str) -> float:
        raise ConnectionError("Bearer sk-planted refused")

    monkeypatch.setenv("PLANTED", "sk-planted")
    monkeypatch.setattr(running, "load_manager", lambda: manager)
    monkeypatch.setattr(running, "language_model", lambda *_: Scripted(refuse))
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
    esc_eval: EscEval, corpora: Path, manager: TaskManager, served: str, monkeypatch: pytest.MonkeyPatch, more: str, told: str
) -> None:
    monkeypatch.setattr(running, "load_manager", lambda: manager)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # else the hub is tried again and again
    spec = f"name: far\nabout: a test\nroles: [supporter]\nlanguages: [en]\nendpoint: {{base_url: '{served}'}}\n"
    Path("far.yaml").write_text(spec + more)
    command = ("paper", "ecdbench", "run", "--model", "far.yaml", "--data", corpora, "--out", "run", "--dataset", "piqa")
    code, error = esc_eval(*command)
    assert code == 2 and told in error and "Name a checkpoint" in error and error.count("\n") == 1


def summaries_and_verdicts(body: dict[str, Any], count: int) -> Answer:
    """The model's summary; of the judge (who has a system message) 4 for completeness and 2 for conciseness."""
    return Answer("42" if body["messages"][0]["role"] == "system" else "短")


def total_of(table: Path) -> dict[str, str]:
    return {row["part"]: row["score"] for row in csv.DictReader(table.read_text().splitlines())}


def test_a_plan_says_what_runs_and_what_does_not_and_why(esc_eval: EscEval, tmp_path: Path) -> None:
    data = write(tmp_path / "corpora", {name: text for name, text in released().items() if not name.startswith("COPA")})
    assert esc_eval("paper", "ecdbench", "run", "--data", data, "--out", "plan")[0] == 0
    figures = json.loads(Path("plan/plan.json").read_text())
    (table,) = figures["tables"]
    rows = {row[0]: dict(zip(table["columns"], row, strict=True)) for row in table["rows"]}
    assert len(rows) == 60
    assert rows["multirc"]["state"] == "runs" and rows["multirc"]["items"] == 3  # questions, not answers
    assert rows["copa"]["state"] == "needs a file" and "COPA/val.jsonl" in rows["copa"]["how, or why not"]
    assert rows["ecdbench_3"]["state"] == "cannot run" and "not released" in rows["ecdbench_3"]["how, or why not"]
    assert "no bleurt_acc: BLEURT" in rows["truthfulqa"]["how, or why not"]
    # The gate's weights and the total's sum to 100 each. LongMemEval: 30 % × one sub-capability × high level, 15 %.
    for of in ("total", "gate"):
        assert sum(row[f"% of {of}"] or 0 for row in rows.values()) == pytest.approx(100)
    assert rows["longmemeval"]["% of total"] == pytest.approx(4.5) and rows["longmemeval"]["% of gate"] is None
    assert rows["stereoset"]["% of gate"] == pytest.approx(5)
    assert figures["notes"][0].startswith("54 of 60 datasets are asked, 82.0 % of the weights of the total, 100.0 % of")
    write(data, {"RTE/val.jsonl": lines({"premise": "p", "hypothesis": "h", "label": "maybe"})})
    code, said = esc_eval("paper", "ecdbench", "run", "--data", data)
    assert code == 2 and "RTE/val.jsonl:1: label:" in said and said.count("\n") == 1


def test_a_run_on_every_published_form_ends_with_a_total(
    esc_eval: EscEval, manager: TaskManager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lm = Scripted(lambda _, option: len(option) + 99 * ("Tall" in option), "the answer is (B)")
    monkeypatch.setattr(running, "load_manager", lambda: manager)
    monkeypatch.setattr(running, "language_model", lambda *_: lm)
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
    bleurt = TaskScore(model="embedded", dataset="truthfulqa", metric="bleurt_acc", value=0.5, n=4)
    write_jsonl(Path("bleurt.jsonl"), [bleurt])
    files = ["--scores", "run/scores.jsonl", "--scores", "bleurt.jsonl"]
    for rule in ("null", "left_out"):
        assert esc_eval("paper", "ecdbench", "table", *files, "--missing", rule, "--out", rule)[0] == 0
        (figures,) = json.loads(Path(f"{rule}/ecdbench.json").read_text())["models"]
        assert figures["total"]["listed"] is not None and figures["total"]["reasons"] == []
        shares = {key: one["share"] for key, one in figures["capabilities"].items()}
        assert set(shares) == {"values_safety", "foundational", "emotional", "companionship"}
        assert all(share == pytest.approx(1) for share in shares.values())
    board = ["paper", "ecdbench", "table", "--scores", "run/scores.jsonl", "--missing", "left_out", "--out", "board"]
    assert esc_eval(*board)[0] == 0
    assert total["ECDBench 1.0, what can be run"] in Path("board/leaderboard.csv").read_text()
    left_out = json.loads(Path("left_out/ecdbench.json").read_text())["models"][0]["total"]["listed"]
    assert f"{left_out:.2f}" == total["ECDBench 1.0, what can be run"]  # copies of one's own change nothing there


@pytest.mark.vllm
@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_embedded_model_has_a_total(
    embedded: Embedded, esc_eval: EscEval, manager: TaskManager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On vLLM: every published form, summaries and their judge, down to one total."""
    monkeypatch.setattr(running, "load_manager", lambda: manager)
    data, model = write(tmp_path / "corpora", released()), f"{embedded.spec_file}@{embedded.url}"
    assert esc_eval("paper", "ecdbench", "run", "--model", model, "--judge", model, "--data", data, "--out", "run")[0] == 0
    total = total_of(Path("run/runnable.csv"))
    assert all(re.fullmatch(r"\d+\.\d\d", score) for score in total.values()), total


@pytest.mark.vllm
def test_the_embedded_model_answers(
    embedded: Embedded, esc_eval: EscEval, corpora: Path, manager: TaskManager, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On vLLM: log-probabilities arrive, and the likeliest option is what the harness's own accuracy says."""
    monkeypatch.setattr(running, "load_manager", lambda: manager)
    (corpora / "PIQA" / "valid.jsonl").write_text(
        lines({"goal": "How do I boil water?", "sol1": "Heat it in a pot.", "sol2": "Heat it in a paper sock."}) * 8
    )
    command = ["paper", "ecdbench", "run", "--model", f"{embedded.spec_file}@{embedded.url}", "--data", corpora, "--out", "run"]
    assert esc_eval(*command)[0] == 0
    records = [json.loads(line) for line in (tmp_path / "run" / "scores.jsonl").read_text().splitlines()]
    values = [record["value"] for record in records if record["dataset"] == "piqa"]
    assert values in ([0, 1] * 4, [1, 0] * 4)  # one question, and labels that alternate
