"""Small corpora in the published formats, written for the tests: relative path → content. No text is from a corpus."""

import csv
import io
import json
from pathlib import Path
from typing import Any


def table(header: list[str], *rows: list[str]) -> str:
    """A CSV file's text."""
    out = io.StringIO()
    csv.writer(out).writerows([header, *rows])
    return out.getvalue()


def lines(*rows: Any) -> str:
    """A JSON-lines file's text."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def lines_at(path: Path, *rows: Any) -> Path:
    path.write_text(lines(*rows), encoding="utf-8")
    return path


def write(folder: Path, files: dict[str, Any]) -> Path:
    """Files below `folder`: text and bytes as they are, everything else as JSON."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str | bytes) else json.dumps(content, ensure_ascii=False)
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


_RATED = ["sp_id", "rp_id", "seeker_post", "response_post", "level", "rationales"]
_PAIRS = table(
    _RATED,
    ["p1", "r1", "My bike was stolen,\nagain.", "That is rough.", "1", ""],
    ["p1", "r2", "My bike was stolen,\nagain.", "Which lock was it?", "0", ""],
    ["p2", "r3", "The exam went badly.", "It is one exam.", "2", ""],
    ["p2", "r3", "The exam went badly.", "It is one exam.", "2", ""],
)


def agent(first: str, last: str, age: int, gender: str, occupation: str) -> str:
    """One profile as the synthetic corpus prints it."""
    return (
        f"AgentProfile(\n    pk='X',\n    first_name='{first}',\n    last_name='{last}',\n    age={age},\n"
        f"    occupation='{occupation}',\n    gender='{gender}',\n    public_info='{first} likes chess,\nand tea.'\n)\n"
    )


SCENE = (
    agent("Nora", "Vale", 31, "Woman", "Baker")
    + agent("Tom", "Reed", 45, "Man", "Bus Driver")
    + "\nHere is the context of this interaction:\nScenario: Two friends wait for a train\n"
)
_PLAIN = "Nora: I slept badly.\n\nTom: [Question] Since when?"
_GRID = ["Scenario ID", "Scenario context", *(f"Conversation {i}" for i in range(1, 4))]


def dialogue(*texts: str) -> list[dict[str, str]]:
    """Alternating turns in Smile's form."""
    return [{"role": ("client", "counselor")[i % 2], "content": text} for i, text in enumerate(texts)]


ESCONV_ROW = {
    "emotion_type": " anger ",
    "problem_type": " problems with friends ",
    "situation": " A friend forgot my birthday. ",
    "dialog": [{"text": "Hello", "speaker": "usr"}, {"text": "Hi.", "speaker": "sys", "strategy": "Question"}],
}

_NO_SLEEP = {"question": "No sleep", "description": "Since May.", "topic": "t", "post_id": "a"}

CORPORA: dict[str, dict[str, Any]] = {
    "epitome": {f"{name}-reddit.csv": _PAIRS for name in ("emotional-reactions", "explorations", "interpretations")},
    "mhp_reddit": {
        "train.json": [_NO_SLEEP | {"answer": "Sorry!", "comment_id": "1"}, _NO_SLEEP | {"answer": "Why?", "comment_id": "2"}],
        "mhp_full.json": [
            _NO_SLEEP | {"answer": "Why?", "comment_id": "2"},
            {"question": "Alone", "description": None, "topic": "t", "answer": "", "post_id": "b", "comment_id": "3"},
        ],
    },
    "psych8k": {
        "Alexander_Street_shareGPT_2.0.json": [
            {"instruction": "Answer.", "input": "I quarrel with my sister.", "output": "What about?"},
            {"instruction": "Answer.", "input": "  ", "output": "Go on."},
        ]
    },
    "psyqa": {
        "PsyQA_example.json": [
            {
                "questionID": 7,
                "question": "总是迟到？",
                "description": "闹钟响了也起不来。",
                "keywords": "成长",
                "answers": [{"answer_text": "先早睡。", "has_label": False}, {"answer_text": "换个闹钟。"}],
            },
            {"questionID": 8, "question": "怕狗", "description": "怕狗，绕路走。", "keywords": "", "answers": []},
        ]
    },
    "smile": {
        "data/3.json": dialogue("我很累。", "怎么了？", "加班。"),
        "data/4.json": dialogue("在吗？"),
        "data/5.json": [{"role": "doctor", "content": "你好"}],
        "data/6.json": "[{",
    },
    "extes": {
        "ExTES.json": [
            {
                "scene": "Moving",
                "description": "She moved and knows nobody.",
                "content": [
                    {"User": "It is quiet here."},
                    {"AI": "That sounds lonely.", "AI Strategy": "Reflective Statements"},
                ],
            },
            {"scene": "Moving", "description": "x", "content": [{"Nobody": "?"}]},
        ],
        "extes.json": [
            {
                "instruction": "Thanks.",
                "input": "",
                "output": "Any time.",
                "history": [["", "Hi, what is up?"], ["My cat ran away.", "When?"]],
            }
        ],
        "ed.json": [{"instruction": "never read", "input": "", "output": "x", "history": []}],
    },
    "escot": {
        "val.json": [
            {
                "id": 11,
                "original_data": {
                    "dialog": [{"speaker": "supporter", "content": "Hello!"}, {"speaker": "seeker", "content": "I failed."}],
                    "strategy": "Question",
                    "response": "At what?",
                },
                "cot_data": {"emotion": "The seeker is sad.", "emotion_stimuli": "A failed driving test."},
            }
        ],
        "response_only_train.json": [
            {
                "dialog_id": 12,
                "input": "seeker: I lost my keys.\nand my bag\n",
                "output": "Response:\nOh no.",
                "instruction": "x",
            },
            {"dialog_id": 11, "input": "seeker: I failed.", "output": "Response:\nAt what?", "instruction": "x"},
        ],
    },
    "cpsycoun": {
        "CPsyCounD/Data/case_1.txt": "来访者：我怕坐电梯。\r\n\r\n心理咨询师：可以试试："
        "\r\n1. 深呼吸：慢慢来\r\n（沉默）\r\n后续对话略。",
        "CPsyCounD/Data/case_2.txt": "来访者1：他总迟到。\n心理咨询师：您觉得呢？\n来访者2：路上堵。",
        "CPsyCounD/Data/case_3.txt": "来访者：你好。\n妈妈：他怕生。\n心理咨询师：欢迎。",
        "CPsyCounD/Data/case_4.txt": "来访者：我不敢拒绝。\n心理咨询师（扮演同事）：帮我一下。\n来访者：不行。",
        "CPsyCounE/Career/1.json": ["求助者：我想换工作。", "支持者：为什么？"],
    },
    "augesc": {
        "augesc.txt": lines(
            [["usr", "The rent went up."], ["sys", "By how much?"], ["usr", "A third."]],
            [["usr", "Nobody answered."]],
            [["narrator", "It rains."], ["usr", "Yes."]],
            {"text": "another form"},
            [["usr", 7], ["sys", "Seven?"]],
        )
    },
    "emollm": {
        "data.json": [
            {
                "conversation": [
                    {"system": "s", "input": "我失眠。", "output": "多久了？"},
                    {"input": "一周。", "output": "嗯。"},
                ]
            }
        ],
        "aiwei.json": [{"conversation": [{"system": "s", "input": "（叹气）累", "output": "（微笑）抱抱"}]}],
    },
    "synthetic_esc": {
        "datasetStrategiesAnnotation.csv": table(_GRID, ["1", SCENE, _PLAIN, "Nora: Hi.\nTom: Hello.", ""]),
        "datasetEmotionAnnotation.csv": table(_GRID, ["1", SCENE, "Sadness\nFear", "Guilt", ""]),
        "test_set_gpt.csv": table(["Scenar ID", *_GRID[1:]], ["1", SCENE, "Tom: Hi.\nNora: Hello.", "", ""]),
    },
    "simpsydial": {"train.json": ["我和室友吵架了。", 5], "test.json": ["考试前睡不着。", " "]},
    "counselingbench": {
        "question.jsonl": lines({"question_id": 1, "turns": ["I dread Mondays."], "category": "generic"}),
        "psyqa_question_zh.jsonl": lines({"question_id": 1, "text": "怕见同事。", "category": "职场"}),
    },
    "esconv": {"train.jsonl": lines(ESCONV_ROW | {"init_intensity": 5, "final_intensity": 2, "empathy": -1, "relevance": 4})},
    "esconv_failed": {
        "FailedESConv.json": [
            ESCONV_ROW
            | {
                "dialog": [{"speaker": "speaker", "content": "Hey"}, {"speaker": "speaker", "content": "you"}],
                "survey_score": {"seeker": {"empathy": "3"}},
            }
        ]
    },
    "esconv_multi": {"valid.txt": lines(ESCONV_ROW | {"init_intensity": 4, "final_intensity": 3})},
}
