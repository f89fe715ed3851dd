"""Every corpus reader against what nobody meant to write: one line that names the file, or a dropped row with its place.

The sound files are small corpora of our own in the published formats; in each, every value in turn becomes something else.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from core.errors import UserError
from core.files import write_jsonl
from core.ledger import Build, BuildStep
from core.rows import CorpusReader
from core.rubrics import load_rubric
from data_prep.cards import load_cards
from data_prep.profiles.published import sage_dialogues, sage_profiles
from data_prep.published import esc_eval
from data_prep.published.esc_eval import find_clone, read_dialogues, read_scores
from data_prep.scores.corpora import import_corpus
from data_prep.sources import SOURCES, corpus_files
from tests.data_prep import test_profiles as sage
from tests.data_prep.sources import fixtures as F
from tests.data_prep.sources.test_role_play import chat, exchange, interview, scene, told
from tests.data_prep.test_human_scores import pair, utterance

pytestmark = pytest.mark.slow

HOLE = "@hole@"
# As they stand in a JSON file. What no JSON reader takes is tried in one place of a file.
NO_JSON = {
    "5,000 digits": "9" * 5_000,
    "NaN": "NaN",
    "Infinity": "-Infinity",
    "half a character": r'"\ud800"',
    "a key twice": '{"x": 1, "x": 2}',
    "nested 1,000 deep": "[" * 1_000 + "]" * 1_000,
}
JSON = {
    "null": "null",
    "true": "true",
    "a negative number": "-1",
    "half": "1.5",
    "a huge number": "1e300",
    "empty": '""',
    "300 characters": f'"{"x" * 300}"',
    "5,000 digits in quotes": f'"{"9" * 5_000}"',
    "digits with an underscore": '"1_0"',
    "digits of another script": '"\u0661"',
    "NUL": r'"a\u0000b"',
    "a line end": r'"a\nb"',
    "an empty list": "[]",
    "an empty object": "{}",
    "a list of nothing": "[null]",
    "an object in an object": '{"x": {"y": 1}}',
    "nested 200 deep": "[" * 200 + "]" * 200,
}
CELLS = ["", " ", "x" * 300, "a\x00b", "a\nb", "1_0", "nan", "9" * 5_000, "true", "-1", "\u0661", '"', "x" * 140_000]

GREETED = [(False, "Hi."), (True, "Hi.")]
ABOUT = {"id": "1", "language": "en", "source": "s", "source_id": "1"}
ROLE_PLAY: dict[str, dict[str, Any]] = {
    "rolebench": {"eng_a.jsonl": F.lines({"role": "Ada", "question": "How are you?", "generated": ["Well."]})},
    "charactereval": {
        "test_data.jsonl": [{"id": 1, "role": "阿明", "context": "阿明：早。\n小红：早。"}],
        "character_profiles.json": {"阿明": {"性格": "开朗", "朋友": ["小红"]}},
    },
    "character_llm": {"multiturn_A_b.jsonl": F.lines(interview(*exchange("Hi.", "Yes.")))},
    "chat_haruhi": {"a_dialogue.jsonl": F.lines(told(("阿明", "「早」"), ("小红", "「早」")))},
    "coser": {
        "book.json": {
            "plots": [{"conversation": [scene(("Ada", "Hi."), ("Bob", "Hi."), keys=("Ada",))]}],
            "character_datasets": {"Ada": {"profile": "A cook."}},
        }
    },
    "rpbench": {
        "rpbench_character.jsonl": F.lines(
            {"npc_profile": {"name": "Ada"}, "conversation": [{"from": "npc", "sentences": ["Hi."]}], "plot_recap": "x"}
        )
    },
    "socialbench": {
        "emotional_perception.json": [
            {"dialogue": [{"from": "Ada", "value": "Hi."}, {"from": "Bob", "value": "Hi."}], "meta": {"lang": "en"}}
        ]
    },
    "pippa": {"pippa_deduped.jsonl": F.lines(chat(*GREETED, bot_description="A cook.", categories=["food"]))},
    "bundled_support": {
        "support_en.jsonl": F.lines(
            {
                "dialogue": ABOUT
                | {"turns": [{"role": "seeker", "text": "a", "state": {"x": 1}}, {"role": "supporter", "text": "b"}]},
                "survey": {"empathy": 3},
            }
        )
    },
    "bundled_role_play": {
        "role_play_en.jsonl": F.lines(
            ABOUT | {"character": "Ada", "lines": [{"role": "character", "name": "Ada", "text": "Hi."}]}
        )
    },
}
_RATING = {"conv_id": "c1", "empathy": "3", "relevance": "", "fluency": "5"}
_LEVELS = {f"level_{name}": "1" for name in ("emotional_reactions", "interpretations", "explorations")}


def cells(*rows: dict[str, Any]) -> str:
    return F.table(list(rows[0]), *([*map(str, row.values())] for row in rows))


SCORED: dict[str, dict[str, Any]] = {
    "esconv": F.CORPORA["esconv"]
    | {
        "train.jsonl": F.lines(
            F.ESCONV_ROW | {"empathy": 3, "dialog": [*F.ESCONV_ROW["dialog"], {"text": "Hm", "speaker": "usr", "rating": "4"}]}
        )
    },
    "epitome": {"explorations-reddit.csv": cells(pair("r1", "1"), pair("r2", "1"))},
    "empathic_comm": {
        "original_data/sample_empatheticdialogues.csv": cells(utterance(1, "Gone."), utterance(2, "Oh.")),
        "original_data/sample_epitome.csv": cells(pair("r1", "")),
        "annotations/empatheticdialogues/expert1_ratings.csv": cells(_RATING),
        "annotations/epitome/gpt_ratings.csv": cells({"sp_id": "p1"} | _LEVELS),
    },
}
SAGE = {
    "simulator_profile.jsonl": F.lines(sage.ROW),
    "m_result.jsonl": F.lines({"id": "x1", "topic": "恋爱矛盾-x", "history": sage.TALK}),
}
CLONE = {
    "result/A_en.json": {"0": ["AI assistant：Hello", "ESC-Role：Bad day.", "AI assistant：Tell me."]},
    "score/A_en.json": {"0": {"fluency": 3, "diversity": -1}},
    "test_en.json": [
        {
            "id": 1,
            "base": "Age: 3\nGender: f\nOccupation: none\nProblem: p",
            "base_biaozhu": "",
            "res": "家庭生活",
            "source": "s",
            "language": "english",
        }
    ],
}


def damaged(name: str, content: Any, every: int) -> Iterator[tuple[str, str]]:
    """(what, text) of a file with one value made something else; of a list, the first entry. Each place of the file gets one
    in `every` of the values, the next place the next ones."""
    if name.endswith((".csv", ".txt")) and not isinstance(content, str):
        raise AssertionError(name)
    if name.endswith(".csv"):
        header, first, *rest = csv.reader(io.StringIO(content, newline=""))
        for column, title in enumerate(header):
            for cell in CELLS[column % every :: every]:
                changed = [*first[:column], cell, *first[column + 1 :]]
                yield f"{title} = {cell[:20]!r}", F.table(header, changed, *rest)
        return
    if (isinstance(content, str) and not name.endswith((".jsonl", ".txt"))) or "case_" in name:
        return  # text, or broken already
    lines = isinstance(content, str)
    value = json.loads(content.splitlines()[0]) if lines else content
    tail = "\n" + "\n".join(content.splitlines()[1:]) if lines else ""
    for number, (place, holed) in enumerate(holes(value)):
        text = json.dumps(holed, ensure_ascii=False)
        for what, raw in list((NO_JSON | JSON if number == 1 else JSON).items())[number % every :: every]:
            yield f"{place} = {what}", text.replace(f'"{HOLE}"', raw) + tail
    if (isinstance(value, dict) and value) or (isinstance(value, list) and value and isinstance(value[0], dict)):
        text = json.dumps(value, ensure_ascii=False)
        start = text.index("{") + 1
        key = text[start : text.index(":", start)]
        yield "a key twice", f"{text[:start]}{key}: 0, {text[start:]}" + tail
        yield "a key of 300 characters", f'{text[:start]}"{"k" * 300}": 0, {text[start:]}' + tail
        yield "a key of 5,000 digits", f'{text[:start]}"{"9" * 5_000}": 0, {text[start:]}' + tail


def holes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The value with one place, at any depth, made a hole; the first two of a list."""
    yield path, HOLE
    children = value.items() if isinstance(value, dict) else list(enumerate(value))[:2] if isinstance(value, list) else ()
    for key, child in children:
        for inner, holed in holes(child, (*path, key)):
            copy = dict(value) if isinstance(value, dict) else list(value)
            copy[key] = holed
            yield inner, copy


def fault(folder: Path, read: Callable[[], list[str]]) -> str | None:
    """What is wrong with how a folder was read: `read` returns the problems that it told."""
    try:
        told = read()
    except UserError as error:
        told = [str(error)]
    except Exception as error:  # the thing that is tested for
        return f"{type(error).__name__}: {str(error)[:200]}"
    wrong = [line for line in told if str(folder) not in line or "\n" in line or len(line) > len(str(folder)) + 500]
    return f"says {wrong[0][:300]!r}" if wrong else None


def sweep(folder: Path, files: dict[str, Any], read: Callable[[], list[str]], every: int = 3) -> None:
    F.write(folder, files)
    assert fault(folder, read) is None
    found = {}
    for name, content in files.items():
        for what, text in damaged(name, content, every):
            (folder / name).write_text(text, encoding="utf-8")
            if problem := fault(folder, read):
                found[f"{name}: {what}"] = problem
        F.write(folder, {name: content})
    assert found == {}


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", [*F.CORPORA, *ROLE_PLAY])
def test_corpora(name: str, every: int, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"

    def read() -> list[str]:
        rows = CorpusReader(BuildStep(name))
        items = list(SOURCES[name].read(corpus_files(SOURCES[name], str(folder)), rows))
        rows.step.kept += len(items)
        rows.step.check()
        write_jsonl(tmp_path / "items.jsonl", items)
        return rows.problems

    sweep(folder, (F.CORPORA | ROLE_PLAY)[name], read, every)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", SCORED)
def test_corpora_with_scores(name: str, every: int, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"

    def read() -> list[str]:
        console = Console(file=io.StringIO(), width=10_000)
        build = Build(tmp_path / "out", "import")
        import_corpus(name, str(folder), build, console).write(build)
        build.manifest()
        return [line for line in console.file.getvalue().splitlines() if "more malformed rows" not in line]  # type: ignore[attr-defined]

    sweep(folder, SCORED[name], read, every)


def test_sage(tmp_path: Path) -> None:
    folder = tmp_path / "sage"

    def read() -> list[str]:
        write_jsonl(tmp_path / "p.jsonl", sage_profiles(folder / "simulator_profile.jsonl"))
        write_jsonl(tmp_path / "d.jsonl", sage_dialogues(folder / "m_result.jsonl", "m"))
        return []

    sweep(folder, SAGE, read)


def test_the_published_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(esc_eval, "load_rubric", cache(load_rubric))
    folder = tmp_path / "clone"

    def read() -> list[str]:
        clone = find_clone(folder)
        cards = load_cards(clone.cards["test cards", "en"])
        rows = CorpusReader(BuildStep("clone"))
        dialogues = [d for run in clone.results.values() for d in read_dialogues(run, cards, rows)]
        scores = [s for run in clone.scores.values() for s in read_scores(run, {d.id for d in dialogues}, rows)]
        rows.step.kept += len(dialogues) + len(scores)
        rows.step.check()
        write_jsonl(tmp_path / "d.jsonl", dialogues)
        return rows.problems

    sweep(folder, CLONE, read)
