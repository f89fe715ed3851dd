"""Existing dialogues: every form tells the same two dialogues, and what is wrong with a file is said at once."""

import csv
import io
import json
import math
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import UserError
from core.files import write_jsonl
from core.records import Dialogue, Turn
from data_prep.dialogue_files import dialogues_of, read_given
from data_prep.scores.human import read_dialogues

KEYS = [
    *("messages", "conversations", "samples", "data", "choices", "message", "metadata", "fields", "eval", "id", "epoch"),
    *("turns", "role", "content", "from", "value", "text", "language", "model", "session", "turn", "source", "trial"),
    "termination",
]
SAID = {
    "d1": (
        ("seeker", "I sleep badly."),
        ("supporter", "Since when?"),
        ("seeker", "Since June."),
        ("supporter", "That is long."),
    ),
    "d2": (("seeker", "My dog died.\nToday."), ("seeker", "Hello?"), ("supporter", "I am sorry.")),  # two lines, two in a row
}
ABOUT = {"d1": {"version": "7", "country": "de"}, "d2": {"version": "8", "country": "fr"}}
EXPECTED = [
    Dialogue(
        id=id,
        language="en",
        source="given",
        supporter="gpt-9",
        turns=tuple(Turn(role=role, text=text) for role, text in said),
        fields=ABOUT[id],
    )
    for id, said in SAID.items()
]


def chat(id: str, seeker: str = "user", supporter: str = "assistant", role: str = "role", text: str = "content") -> list[Any]:
    return [{role: {"seeker": seeker, "supporter": supporter}[who], text: line} for who, line in SAID[id]]


def lines(values: list[Any]) -> bytes:
    return "\n".join(map(json.dumps, values)).encode()


def of_chat() -> bytes:
    values = []
    for id in SAID:
        messages: list[Any] = [{"role": "system", "content": "Be kind."}, *chat(id)]
        messages[1]["content"] = [{"type": "text", "text": messages[1]["content"]}, {"type": "image_url", "image_url": "x"}]
        messages[2:2] = [{"role": "assistant", "content": None, "tool_calls": [{}]}, {"role": "tool", "content": "{}"}]
        values.append({"id": id, "messages": messages, "model": "gpt-9", "nothing": None, "list": [1], **ABOUT[id]})
    return lines(values)


def of_sharegpt() -> bytes:
    return json.dumps(
        [{"id": id, "conversations": chat(id, "human", "gpt", "from", "value"), "model": "gpt-9", **ABOUT[id]} for id in SAID]
    ).encode()


def of_openai() -> bytes:
    stored = []
    for id in SAID:
        *asked, reply = chat(id)
        about = {"object": "chat.completion", "model": "gpt-9", "metadata": ABOUT[id]}
        stored.append({"id": id, **about, "messages": asked, "choices": [{"index": 0, "message": reply}]})
    return json.dumps({"object": "list", "data": stored}).encode()


def of_gemini() -> bytes:
    values = []
    for id in SAID:
        contents = [{"role": turn["role"], "parts": [{"text": turn["content"]}]} for turn in chat(id, supporter="model")]
        values.append({"id": id, "contents": contents, "model": "gpt-9", **ABOUT[id]})
    return lines(values)


def table() -> list[list[str]]:
    """Rows of both dialogues in a jumble: the column `turn` says their order, 2 before 10."""
    rows = []
    for id, said in SAID.items():
        about = [ABOUT[id]["version"], ABOUT[id]["country"], "gpt-9"]
        rows += [
            [id, str(5 * n), "Client" if who == "seeker" else "counsellor", text, f"{n}", *about]
            for n, (who, text) in enumerate(said)
        ]
    head = ["conversation_id", "turn", "speaker", "text", "seconds", "version", "country", "model"]
    first = [row for row in rows if row[0] == "d1"]
    return [head, *reversed(first), *rows[len(first) :]]


def of_csv(delimiter: str = ",") -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter).writerows(table())
    return text.getvalue().encode()


def of_spreadsheet() -> bytes:
    """Headings as people write them; what is true of a dialogue stands in its first row alone."""
    head, *rows = table()
    named = dict(
        zip(head, ["Conversation ID", "Turn", "Sender", "Message", "seconds", "version", "country", "Model"], strict=True)
    )
    first = {row[0]: row for row in reversed(rows)}
    cells = [[cell if row is first[row[0]] or n not in (5, 6, 7) else "" for n, cell in enumerate(row)] for row in rows]
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=";").writerows([[*named.values()], *cells])
    return text.getvalue().encode()


def of_cells() -> bytes:
    """A dialogue per row, its messages as JSON in a cell."""
    text = io.StringIO(newline="")
    rows = [[id, json.dumps(chat(id)), "gpt-9", *ABOUT[id].values()] for id in SAID]
    csv.writer(text).writerows([["id", "Messages", "model", "version", "country"], *rows])
    return text.getvalue().encode()


def of_langchain() -> bytes:
    said = {
        id: [{"type": turn["role"], "data": {"content": turn["content"]}} for turn in chat(id, "human", "ai")] for id in SAID
    }
    return lines([{"sessionId": id, "messages": said[id], "model": "gpt-9", **ABOUT[id]} for id in SAID])


def of_claude() -> bytes:
    said = {id: chat(id, "human", "assistant", "sender", "text") for id in SAID}
    return json.dumps([{"uuid": id, "chat_messages": said[id], "model": "gpt-9", **ABOUT[id]} for id in SAID]).encode()


def of_halves(first: str, second: str) -> bytes:
    said = {id: {first: chat(id)[:-1], second: chat(id)[-1:]} for id in SAID}
    return lines([{"id": id, **said[id], "model": "gpt-9", **ABOUT[id]} for id in SAID])


def of_turns() -> bytes:
    """`turns`, but not as our records have them; and a line in which nothing can be seen."""
    unseen = {"role": "user", "content": "\u200b\ufeff"}
    return lines([{"id": id, "turns": [unseen, *chat(id)], "model": "gpt-9", **ABOUT[id]} for id in SAID])


def of_xlsx() -> bytes:
    book, raw = openpyxl.Workbook(), io.BytesIO()
    for row in table():
        book.active.append(row)
    book.save(raw)
    return raw.getvalue()


def inspect_log() -> dict[str, Any]:
    samples = [{"id": id, "epoch": 1, "messages": chat(id), "metadata": ABOUT[id], "scores": {"x": math.nan}} for id in SAID]
    return {"version": 2, "status": "success", "eval": {"model": "gpt-9"}, "samples": samples}


def of_zip(header: str = "header.json") -> bytes:
    raw, log = io.BytesIO(), inspect_log()
    with zipfile.ZipFile(raw, "w") as file:
        for sample in log.pop("samples"):
            file.writestr(f"samples/{sample['id']}_epoch_1.json", json.dumps(sample))
        file.writestr(header, json.dumps(log))
    return raw.getvalue()


FORMS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "chat": ("given.jsonl", of_chat),
    "ShareGPT": ("given.json", of_sharegpt),
    "OpenAI's stored completions": ("given.json", of_openai),
    "Gemini's contents": ("given.ndjson", of_gemini),
    "CSV": ("given.csv", of_csv),
    "TSV": ("given.tsv", lambda: of_csv("\t")),
    "JSON lines of turns": ("given.jsonl", lambda: lines([dict(zip(table()[0], row, strict=True)) for row in table()[1:]])),
    "XLSX": ("given.xlsx", of_xlsx),
    "a log of Inspect, JSON": ("given.json", lambda: json.dumps(inspect_log()).encode()),
    "a log of Inspect": ("given.eval", of_zip),
    "a log of an Inspect that was stopped": ("given.eval", lambda: of_zip("_journal/start.json")),
    "a spreadsheet": ("given.csv", of_spreadsheet),
    "JSON in cells": ("given.csv", of_cells),
    "LangChain": ("given.jsonl", of_langchain),
    "Claude's export": ("given.json", of_claude),
    "prompt and completion": ("given.jsonl", lambda: of_halves("prompt", "completion")),
    "input and output": ("given.jsonl", lambda: of_halves("input", "output")),
    "turns": ("given.jsonl", of_turns),
    "ours": ("given.jsonl", lambda: lines([dialogue.model_dump(mode="json") for dialogue in EXPECTED])),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_tells_the_same_dialogues(form: str, tmp_path: Path) -> None:
    name, made = FORMS[form]
    (tmp_path / name).write_bytes(made())
    left = read_given(tmp_path / name, "en")
    assert left.dialogues == EXPECTED
    left_out = "messages left out of 2 dialogues, by role: 2 system, 2 assistant without text, 2 tool"
    unseen = "messages left out of 2 dialogues, by role: 2 user without text"
    assert left.notes == {"chat": [left_out], "turns": [unseen]}.get(form, [])


def test_records_have_no_field_more_where_nothing_more_is_known() -> None:
    told = EXPECTED[0].model_dump(mode="json")
    assert told.pop("fields") == ABOUT["d1"]
    assert Dialogue.model_validate(told).model_dump(mode="json") == told


def test_a_bare_list_of_messages_is_a_dialogue(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(lines([chat("d1"), chat("d2")]))
    assert [dialogue.turns for dialogue in read_given(tmp_path / "x.jsonl", "en").dialogues] == [d.turns for d in EXPECTED]


def test_a_dialogue_without_an_id_is_called_by_what_is_said_and_no_two_are_one() -> None:
    values = [{"messages": chat("d1")}, {"messages": chat("d2")}, {"messages": chat("d1")}]
    ids = [dialogue.id for dialogue in dialogues_of(values, "en").dialogues]
    assert len(set(ids)) == 3
    assert ids[:2] == [dialogue.id for dialogue in dialogues_of(values[:2], "en").dialogues]


def test_a_language_of_its_own_counts_before_the_one_for_all() -> None:
    values = [{"messages": chat("d1"), "language": "zh"}, {"messages": chat("d1"), "metadata": {"lang": "zh"}}]
    assert [dialogue.language for dialogue in dialogues_of(values, "en").dialogues] == ["zh", "zh"]


def test_fields_in_fields_are_kept_under_both_names() -> None:
    value = {"messages": chat("d1"), "metadata": {"user": {"country": "de", "tags": [1]}, "beta": False}, "week": 18}
    (dialogue,) = dialogues_of([value], "en").dialogues
    assert dialogue.fields == {"beta": "False", "user.country": "de", "week": "18"}


TIMES = ["2026-05-01 9:58", "2026-05-01T10:59:00+01:00", "2026-05-01 10:00", "2026-05-01T10:01:30.5Z", "2026-05-02"]


def test_turns_are_in_order_of_time_and_dates_that_are_no_order_are_refused(tmp_path: Path) -> None:
    rows = [f"d,user,{n},{time}" for n, time in enumerate(TIMES)]
    (tmp_path / "x.csv").write_text("\n".join(["id,role,text,timestamp", *reversed(rows)]))
    (dialogue,) = read_given(tmp_path / "x.csv", "en").dialogues
    assert [turn.text for turn in dialogue.turns] == [*"01234"]
    for time in ("5/1/2026 1:05 PM", "01.05.2026 13:05", "1:05 pm", "May 1, 2026 13:05"):
        (tmp_path / "x.csv").write_text(f'id,role,text,timestamp\nd,user,hi,"{time}"\n')
        with pytest.raises(UserError, match=f"x.csv:2: '{time}' does not say when: write it as 2026-05-31 13:05"):
            read_given(tmp_path / "x.csv", "en")


def test_further_names_of_speakers_are_sides_too() -> None:
    values = [{"messages": chat("d1", "Mum", "coach")}]
    (dialogue,) = dialogues_of(values, "en", {"mum": "seeker", "Coach": "supporter"}).dialogues
    assert dialogue.turns == EXPECTED[0].turns


def test_all_faults_of_a_file_are_told_together_with_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    bad = [
        {"messages": chat("d1"), "language": "en"},
        {"messages": chat("d1", "Mum", "coach"), "language": "en"},
        {"messages": chat("d1")},
        {"messages": [], "language": "en"},
        {"messages": [{"role": "system", "content": "x"}], "language": "en"},
        {"messages": chat("d1"), "language": "en", "trial": "x"},
        {"messages": [3], "language": "en"},
        {"language": "en"},
        [1],
    ]
    path.write_bytes(lines(bad))
    with pytest.raises(UserError) as error:
        read_dialogues([path])
    lists = "messages or conversations:"
    nothing = "expected a list of messages, each with a role and a text"
    assert str(error.value).splitlines() == [
        f"{path}:2: message 0: role: 'Mum' is unknown: name its side: --set roles.Mum=seeker (or supporter)",
        f"{path}:2: message 1: role: 'coach' is unknown: name its side: --set roles.coach=seeker (or supporter)",
        f"{path}:2: message 2: role: 'Mum' is unknown: name its side: --set roles.Mum=seeker (or supporter)",
        f"{path}:2: message 3: role: 'coach' is unknown: name its side: --set roles.coach=seeker (or supporter)",
        f"{path}:3: language: missing: give --language LANGUAGE (in Python: languages=[…]), or a field language",
        f"{path}:4: {lists} {nothing}",
        f"{path}:5: {lists} no text by either side",
        f"{path}:6: trial: a number is expected (got 'x')",
        f"{path}:7: message 0: role: missing, under all of role, speaker, from, author, sender, type",
        f"{path}:8: {lists} {nothing}",
        f"{path}:9: message 0: role: missing, under all of role, speaker, from, author, sender, type",
        f"{path}:9: language: missing: give --language LANGUAGE (in Python: languages=[…]), or a field language",
    ]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("x.csv", "speaker,text\nuser,hi\n", "x.csv:2: dialogue: missing, under all of dialogue_id, "),
        ("x.csv", "id,who,text\n1,user,hi\n", "x.csv:2: role: missing, under all of role, speaker"),
        ("x.csv", "id,role,text,language\n1,user,hi,en\n1,witness,hi,en\n", "x.csv:3: role: 'witness' is unknown"),
        ("x.csv", "id,role,text\n1,user\n", "x.csv:2: expected 3 columns"),
        ("x.json", "[]", "x.json: no dialogues"),
        ("x.json", '{"samples": null}', "x.json: no dialogues"),
        ("x.json", '{"conversations": "hi", "language": "en"}', "x.json: entry 0: messages or conversations: expected a list"),
        ("x.jsonl", '{"id": 1, "prompt": "hi", "reply": "ho"}', "x.jsonl:1: messages or conversations: expected a list"),
        ("x.json", "3", "x.json: entry 0: record: expected fields, as in {name: value}"),
        ("x.eval", "no zip", "x.eval: not a readable log: "),
        (
            "x.jsonl",
            '{"id": "1", "language": "en", "messages": [{"role": "user", "content": "a"}]}\n' * 2,
            "x.jsonl:2: id: 1 is also that of",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(name: str, content: str, told: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError) as error:
        read_dialogues([tmp_path / name])
    assert told in str(error.value) and str(error.value).startswith(str(tmp_path))


@pytest.mark.slow
def test_a_log_that_inspect_itself_writes_is_read(tmp_path: Path) -> None:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec, write_eval_log
    from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageUser

    spec = EvalSpec(created="2026-01-01T00:00:00+00:00", task="t", model="gpt-9", dataset=EvalDataset(), config=EvalConfig())
    samples = []
    for id, said in SAID.items():
        by = {"seeker": ChatMessageUser, "supporter": ChatMessageAssistant}
        messages = [ChatMessageSystem(content="Be kind."), *(by[who](content=text) for who, text in said)]
        samples.append(EvalSample(id=id, epoch=1, input="x", target="", messages=messages, metadata=ABOUT[id]))
    for name in ("given.json", "given.eval"):
        write_eval_log(EvalLog(status="success", eval=spec, samples=samples), str(tmp_path / name))
        assert read_given(tmp_path / name, "en").dialogues == EXPECTED


def test_our_own_records_stay_strict(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "d.jsonl", EXPECTED)
    text = (tmp_path / "d.jsonl").read_text()
    (tmp_path / "d.jsonl").write_text(text.replace('"fields"', '"version": 3, "fields"'))
    with pytest.raises(UserError, match=r"d\.jsonl:1: version: unknown field"):
        read_dialogues([tmp_path / "d.jsonl"])


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.sampled_from(["", "user", "assistant", "en", "x\ny"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)),
    max_leaves=20,
)


@given(VALUES)
def test_no_value_breaks_the_reader(value: Any) -> None:
    """It is read, or refused with where and why."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (("x.json", [value]), ("y.json", value), ("z.jsonl", value)):
            path = Path(folder) / name
            path.write_text(json.dumps(content))
            try:
                read = read_given(path, "en").dialogues
            except UserError as error:
                assert str(error).startswith(str(path)), error
            else:
                assert all(dialogue.turns for dialogue in read)
