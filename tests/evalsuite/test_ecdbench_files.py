"""Publishers' files of ECDBench's datasets → documents: a sample of every dataset, and bad files, each in one line."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from evalsuite.papers.ecdbench.plan import FORMS, Part, layout_of, plan_tasks, read_dataset, read_parts
from evalsuite.papers.ecdbench.registry import Benchmark, load_benchmark
from tests.conftest import EscEval
from tests.data_prep.sources.fixtures import write
from tests.ecdbench_corpora import lines, memory, released, stereo, unreleased

WORDS = ["diligent", "purple", "lazy"]
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
    "longmemeval": {"no session contains an answer": 1},
}


@pytest.fixture(scope="module")
def ecdbench() -> Benchmark:
    return load_benchmark()


def given(folder: Path, form: str, files: Mapping[str, str | bytes]) -> tuple[Part, list[Path]]:
    folder.mkdir(exist_ok=True)
    write(folder, dict(files))
    return Part(task="t", form=form, files=["*"]), sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every dataset in its publishers' form, and the own copies of those that have none."""
    return write(tmp_path_factory.mktemp("corpora"), released() | unreleased())


def test_every_dataset_of_the_registry_has_a_reader_and_a_sample(ecdbench: Benchmark, published: Path) -> None:
    layout = layout_of(None)
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
    ((_, docs, _),) = read_parts(
        [given(tmp_path / "d", "documents", {"a.jsonl": lines({"text": "一篇"}, {"text": "A", "language": "en"})})]
    )
    assert docs == [{"text": "一篇", "language": "zh"}, {"text": "A", "language": "en"}]
    item = lines({"text": "1+1", "choices": ["1", "2"], "gold": 1})
    ((_, docs, _),) = read_parts([given(tmp_path / "i", "items", {"a.jsonl": item})])
    assert docs == [{"text": "1+1", "choices": ["1", "2"], "gold": [1]}]


# Form → files, what the one line must say.
BAD = [
    ("piqa", {"1.jsonl": lines({"goal": "g", "sol1": "a", "sol2": "b"}), "2.lst": "1\n0\n"}, r"2\.lst: expected 1 lines"),
    ("lcqmc", {"a.tsv": "甲\t乙\t1\n甲\t乙\n"}, r"a\.tsv:2: expected 3 fields"),
    ("goemotions", {"1.txt": "joy\n", "2.tsv": "x\t1\tid\n"}, r"2\.tsv:1: labels: expected numbers below 1"),
    ("logiqa", {"a.txt": "\nq\nP\nQ\nA.1\nB.2\nC.3\nD.4\n"}, r"a\.txt:2: .* found 'q'"),
    ("safetybench", {"1.json": json.dumps(SAFE), "2.json": '{"7": {"answer": 2}}'}, r"entry 0: answer of 7: expected 0 to 1"),
    ("safetybench", {"1.json": json.dumps(SAFE), "2.json": "[]"}, r"2\.json: expected an object"),
    ("items", {"a.jsonl": lines({"text": "x", "choices": ["a", "b"], "gold": 2})}, r"a\.jsonl:1: gold: expected 0 to 1"),
    ("cped", {"a.csv": CPED.replace("anger", "angry")}, r"a\.csv:7: Emotion: did you mean anger"),
    ("truthfulqa", {"a.csv": "Question,Correct Answers,Incorrect Answers\nWhy?,;,No\n"}, r"a\.csv:2: needs correct"),
    ("stereoset", {"a.json": json.dumps({"data": []})}, r"a\.json: data: expected an object"),
    (
        "stereoset",
        {"a.json": json.dumps(STEREO).replace("unrelated", "stereotype")},
        r"intersentence entry 0: sentences: expected one",
    ),
    ("ag_news", {"a.csv": '"1","t"\n'}, r"a\.csv:1: expected 3 columns, found 2"),
    ("thucnews", {"sport/1.txt": "x"}, r"folder 'sport' is none of the classes 体育"),
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
    ("lcsts", {"a.txt": "<doc id=4>\n<summary>x</summary>\n</doc>\n"}, r"a\.txt: doc 4: short_text: missing"),
    ("vcsum", {"a.txt": lines({"context": [["a"], ["b"]], "speaker": [1]})}, r"a\.txt:1: speaker: expected 2"),
    (
        "agieval",
        {"a.jsonl": lines({"question": "q", "options": ["(A)1"], "label": "B"})},
        r"a\.jsonl:1: label: expected letters of A",
    ),
    ("mmlu_pro", {"a.parquet": "no"}, r"a\.parquet: not a readable parquet file"),
    ("metaphor", {"a.tsv": "1\t0\tone two\tN\tN\t2\n"}, r"a\.tsv:1: w_index: expected a number below 2, found '2'"),
    ("scale", {"a.jsonl": lines({"text": "t", "choices": ["a", "b"], "points": [1]})}, r"a\.jsonl:1: points: expected 2"),
    ("book_sort", {"segments_1.csv": PAIRS}, r"segments_1\.csv: no excerpts_1\.csv next to it"),
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
]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "files", "said"), BAD)
def test_bad_files_are_one_clear_line(tmp_path: Path, form: str, files: dict[str, str | bytes], said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        read_parts([given(tmp_path / form, form, files)])
    assert "\n" not in str(error.value)


def test_a_layout_stays_below_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "layout.yaml").write_text("datasets:\n  piqa:\n  - {task: piqa, form: piqa, files: [/valid.jsonl]}\n")
    with pytest.raises(UserError, match=r"layout\.yaml: datasets\.piqa: files: /valid\.jsonl is not below the data folder"):
        layout_of(tmp_path)


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
        with pytest.raises(UserError, match=f"dataset '{name}': form items with task esc_items gives no score for {lost}:"):
            read_dataset(ecdbench, name, [(part, paths)])
    for name in ("folio", "c_eval", "personafeedback", "book_sort"):
        read_dataset(ecdbench, name, [(part, paths)])


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
