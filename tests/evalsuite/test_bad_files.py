"""Every reader against every kind of damage: one line that names the file (and the line or field where there is one).

`BYTES` is what can happen to any file, `OTHERS` what a record or mapping can hold wrongly; then each format's own. A
reader may also accept what is damaged harmlessly; what it may not do is anything but return or raise a `UserError`.
"""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.errors import UserError
from core.files import CONFIGS
from core.prompts import PromptPack
from core.rubrics import load_rubric
from core.specs import load_spec
from data_prep import BUNDLED
from data_prep.cards import bundled_cards, load_cards
from data_prep.profiles import bundled_profiles, load_profiles
from data_prep.profiles.build import load_seeds
from data_prep.responses import read_responses
from data_prep.scores.held import read_held
from data_prep.scores.human import COLUMNS, read_dialogues, read_preferences
from data_prep.scores.human import read_scores as read_gold
from evalsuite.commands.agree import read_judgements
from evalsuite.runs.config import load_config

Read = Callable[[Path], object]


@dataclass(frozen=True)
class Reader:
    """How one kind of file is read, with two sound records (JSON lines), a list (JSON) or a mapping (YAML)."""

    read: Read
    suffix: str
    sound: Any

    def write(self, path: Path, value: Any) -> None:
        if self.suffix == ".jsonl":
            path.write_text("".join(json.dumps(record) + "\n" for record in value))
        elif self.suffix == ".json":
            path.write_text(json.dumps(value))
        else:
            path.write_text(yaml.safe_dump(value, allow_unicode=True))


def config_of(name: str) -> dict[str, Any]:
    settings: dict[str, Any] = yaml.safe_load((CONFIGS / name).read_text())
    return settings


SCORE = {"dialogue_id": "d1", "language": "en", "annotator": "a", "rubric": "esc_eval", "dimension": "empathy", "value": 3}
VERDICT = {"language": "en", "judge": "j", "rubric": "esc_eval", "dimension": "empathy", "value": 3, "method": "joint"}
DIALOGUE = {"language": "en", "source": "s", "turns": [{"role": "seeker", "text": "a"}, {"role": "supporter", "text": "b"}]}
PAIR = {"dialogue_a": "a", "dialogue_b": "b", "annotator": "x", "question": "q", "verdict": "a", "order": "ab"}
PUBLISHED = {
    "id": 1,
    "base": "Age: 3\nGender: f\nOccupation: none\nProblem: p",
    "base_biaozhu": "",
    "res": "家庭生活",
    "source": "s",
    "language": "english",
}
REPLY = {"language": "en", "turn": 1, "supporter": "m", "text": "hello", "reference": "hi"}
DIMENSION = {"label": {"en": "A"}, "about": {"en": "what A is"}, "levels": {"en": {0: "none", 1: "some", 2: "much"}}}
RUBRIC = {
    "name": "small",
    "source": "made up",
    "languages": ["en"],
    "scale": {"min": 0, "max": 2},
    "dimensions": {"a": DIMENSION, "b": DIMENSION},
}
OWN = {"problem": "She is ill.", "age": 34, "category": "Work and Study", "language": "en"}
HELD = {key: value for key, value in DIALOGUE.items() if key != "source"} | {"situation": "s", "supporter": "m"}
CARDS = [json.loads(line) for line in bundled_cards("en").read_text().splitlines()[:2]]
PROFILES = [json.loads(line) for line in bundled_profiles("en").read_text().splitlines()[:2]]
SEEDS = [json.loads(line) for line in (BUNDLED / "questionnaire.jsonl").read_text().splitlines()[:2]]
READERS = {
    "cards": Reader(load_cards, ".jsonl", CARDS),
    "published cards": Reader(load_cards, ".json", [PUBLISHED, PUBLISHED | {"id": 2}]),
    "own cards": Reader(load_cards, ".jsonl", [OWN, OWN | {"problem": "He is ill, too.", "age": "40"}]),
    "own cards as a list": Reader(load_cards, ".json", [OWN, OWN | {"problem": "He is ill, too."}]),
    "dialogues": Reader(lambda path: read_dialogues([path]), ".jsonl", [DIALOGUE | {"id": "d1"}, DIALOGUE | {"id": "d2"}]),
    "judgements": Reader(read_judgements, ".jsonl", [VERDICT | {"dialogue_id": "d1"}, VERDICT | {"dialogue_id": "d2"}]),
    "gold": Reader(read_gold, ".jsonl", [SCORE, SCORE | {"dialogue_id": "d2"}]),
    "preferences": Reader(lambda path: read_preferences([path]), ".jsonl", [PAIR, PAIR | {"dialogue_b": "c"}]),
    "replies": Reader(lambda path: read_responses([path]), ".jsonl", [REPLY | {"dialogue_id": d} for d in ("d1", "d2")]),
    "profiles": Reader(load_profiles, ".jsonl", PROFILES),
    "seeds": Reader(load_seeds, ".jsonl", SEEDS),
    "held dialogues": Reader(lambda path: read_held([path]), ".jsonl", [HELD, HELD | {"trial": 1}]),
    "config": Reader(lambda path: load_config(path, {}), ".yaml", config_of("eval/demo.yaml")),
    "spec": Reader(lambda path: load_spec(str(path)), ".yaml", config_of("models/esc-rank-published.yaml")),
    "rubric": Reader(lambda path: load_rubric(str(path)), ".yaml", RUBRIC),
}

# What can happen to any file: sound bytes → damaged ones.
BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda sound: b"",
    "blank": lambda sound: b" \n\n\t\n",
    "not text": lambda sound: bytes(range(256)) * 8,
    "a byte of another encoding": lambda sound: sound.replace(b"e", b"\xe9", 3),
    "UTF-16 without a mark": lambda sound: sound.decode().encode("utf-16-le"),
    "a NUL in the middle": lambda sound: sound[:40] + b"\x00" + sound[40:],
    "cut off": lambda sound: sound[: len(sound) * 2 // 3],
    "nested too deeply": lambda sound: b"[" * 2_000,
    "nested mappings": lambda sound: b'{"a":' * 2_000,
    "a number": lambda sound: b"7\n",
    "a word": lambda sound: b'"word"\n',
    "null": lambda sound: b"null\n",
    "a list of lists": lambda sound: b"[[1, 2], [3]]\n",
    "HTML": lambda sound: b"<!DOCTYPE html><title>404 Not Found</title>\n",
    "a merge conflict": lambda sound: b"<<<<<<< HEAD\n" + sound + b"=======\n",
}
OTHERS: list[Any] = [None, True, -1, 1e300, 10**30, "", " ", "x" * 300, "\x1b[31m\u202e\nx", [], {}, [None], {"x": {"y": 1}}]
OTHERS += ["a\x00b", "1_0", "nan", "9" * 5_000]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a record."""
    if path:
        yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in list(children)[:3]:  # of equals, a few
        yield from places(child, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any, remove: bool = False) -> Any:
    made = copy.deepcopy(value)
    node = made
    for key in path[:-1]:
        node = node[key]
    if remove:
        del node[path[-1]]
    else:
        node[path[-1]] = new
    return made


def problem(reader: Read, path: Path, refused: bool = False) -> str | None:
    """What is wrong with how a reader took a file: None when it returned (unless it had to refuse) or named every fault."""
    try:
        reader(path)
    except UserError as error:
        lines = str(error).split("\n")
        strange = [line for line in lines if path.name not in line or len(line) > 1000]
        return f"says {strange[0][:300]!r}" if strange else None
    except Exception as error:  # the thing that is tested for
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "is taken for sound" if refused else None


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    reader, found = READERS[name], {}
    path = tmp_path / f"given{reader.suffix}"
    reader.write(path, reader.sound)
    assert problem(reader.read, path) is None
    reader.read(path)
    sound = path.read_bytes()
    for kind, damage in BYTES.items():
        path.write_bytes(damage(sound))
        found[kind] = problem(reader.read, path, refused=True)
    path.unlink()
    found["missing"] = problem(reader.read, path, refused=True)
    path.mkdir()
    found["a folder"] = problem(reader.read, path, refused=True)
    path.rmdir()
    for new, what in (("\x00", "NUL in the name"), ("n" * 300, "a name too long")):
        found[what] = problem(reader.read, path.with_name(f"{new}{reader.suffix}"), refused=True)
    assert {kind: what for kind, what in found.items() if what} == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_wrong_values(name: str, tmp_path: Path) -> None:
    reader, found = READERS[name], {}
    path = tmp_path / f"given{reader.suffix}"
    first = (0,) if isinstance(reader.sound, list) else ()
    record = reader.sound[0] if first else reader.sound
    cases: dict[str, Any] = {"unknown": changed(reader.sound, (*first, "no such\nfield\x1b"), 1)}
    for number, place in enumerate(places(record)):
        # YAML is slow to read: there every place gets a few of them in turn.
        others = OTHERS if first else [OTHERS[(number * 3 + n) % len(OTHERS)] for n in range(3)]
        cases |= {f"{place} = {str(new)[:20]!r}": changed(reader.sound, (*first, *place), new) for new in others}
        cases[f"without {place}"] = changed(reader.sound, (*first, *place), None, remove=True)
    if first:
        cases["given twice"] = [record, record]
        cases["no object"] = [record, 7]
    must = {"unknown", "given twice", "no object"}
    for kind, value in cases.items():
        reader.write(path, value)
        found[kind] = problem(reader.read, path, refused=kind in must)
    assert {kind: what for kind, what in found.items() if what} == {}


YAML = {
    "a tab": "seeker:\n\t- x\n",
    "an open bracket": "seeker: [embedded\n",
    "a key twice": "seeker: embedded\njudge: embedded\nseeker: gpt-4\n",
    "a key twice below": "gold: {dialogues: synthetic, dialogues: other}\n",
    "an object": "seeker: !!python/object/apply:os.system ['touch pwned']\n",
    "a tag": "seeker: !vault x\n",
    "an alias of nothing": "seeker: *nothing\n",
    "an alias of itself": "seeker: &a [*a]\n",
    "a mapping of itself": "&a {seeker: *a}\n",
    "two documents": "seeker: a\n---\nseeker: b\n",
    "no date": "seeker: 2024-13-41\n",
    "a list as key": "? [a, b]\n: c\n",
    "a wrong escape": 'seeker: "\\q"\n',
    "a merge of no mapping": "<<: 3\nseeker: x\n",
    "laughs": "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nseeker: [*b,*b,*b,*b,*b,*b,*b,*b]\n",
}


@pytest.mark.parametrize("name", ["config", "spec", "rubric"])
def test_yaml(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = {}
    path = tmp_path / "given.yaml"
    for kind, text in YAML.items():
        path.write_text(text)
        found[kind] = problem(READERS[name].read, path, refused=True)
    assert {kind: what for kind, what in found.items() if what} == {}
    path.write_text("seeker: embedded\njudge: embedded\nseeker: gpt-4\n")
    with pytest.raises(UserError, match=r"given\.yaml:3: malformed YAML: 'seeker' is given twice"):
        READERS[name].read(path)
    assert not Path("pwned").exists()


CSV = {
    "no header": "d1,en,a,esc_eval,empathy,3,\n",
    "a column missing": "dialogue_id,language,annotator,rubric,dimension\nd1,en,a,esc_eval,empathy\n",
    "a column twice": "dialogue_id,language,annotator,rubric,dimension,value,value\nd1,en,a,esc_eval,empathy,3,3\n",
    "an open quote": ",".join(COLUMNS) + '\nd1,en,"a,esc_eval,empathy,3,\n',
    "a short row": ",".join(COLUMNS) + "\nd1,en,a\n",
    "a long row": ",".join(COLUMNS) + "\nd1,en,a,esc_eval,empathy,3,,,x,\n",
    "a word": ",".join(COLUMNS) + "\nd1,en,a,esc_eval,empathy,good,\n",
    "nan": ",".join(COLUMNS) + "\nd1,en,a,esc_eval,empathy,nan,\n",
    "infinity": ",".join(COLUMNS) + "\nd1,en,a,esc_eval,empathy,1e999,\n",
    "half a turn": ",".join(COLUMNS) + "\nd1,en,a,esc_eval,empathy,3,1.5\n",
    "twice": ",".join(COLUMNS) + "\nd1,en,a,esc_eval,empathy,3,\n" * 2,
    "a NUL": ",".join(COLUMNS) + "\nd1,en,\x00,esc_eval,empathy,3,\n",
    "an underscore": ",".join(COLUMNS) + "\nd1,en,a,esc_eval,empathy,1_0,\n",
    "parted by bars": "|".join(COLUMNS) + "\nd1|en|a|esc_eval|empathy|3|\n",
    "only a header": ",".join(COLUMNS) + "\n",
    "a field too long": ",".join(COLUMNS) + f"\nd1,en,{'a' * 200_000},esc_eval,empathy,3,\n",
}


def test_csv(tmp_path: Path) -> None:
    found = {}
    path = tmp_path / "given.csv"
    for kind, text in CSV.items():
        path.write_text(text)
        found[kind] = problem(read_gold, path, refused=True)
    assert {kind: what for kind, what in found.items() if what} == {}


TEMPLATES = {
    "a wrong tag": b"{% if %}",
    "a block that is not closed": b"Hello\n{% for x in y %}",
    "an unknown name": b"{{ nobody }}",
    "a division by zero": b"{{ 1 / 0 }}",
    "words plus numbers": b"{{ 'a' + 1 }}",
    "too long a range": b"{{ range(99999999999) | list }}",
    "a way to the interpreter": b"{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a method of a format": b"{{ '{0.__class__}'.format(1) }}{{ nobody }}",
    "another file": b"{% include '../../../../../etc/passwd' %}",
    "a filter that is none": b"{{ 1 | frobnicate }}",
    "another encoding": b"caf\xe9",
    "itself": b"{% include 'greeting.txt' %}",
}


def test_prompt_packs(tmp_path: Path) -> None:
    found = {}
    folder = tmp_path / "pack"
    path = folder / "en" / "greeting.txt"
    path.parent.mkdir(parents=True)

    def render(path: Path) -> object:
        return PromptPack(str(folder)).render("en", path.name)

    for kind, text in TEMPLATES.items():
        path.write_bytes(text)
        found[kind] = problem(render, path, refused=True)
    path.write_bytes(b"caf\xe9")
    found["fingerprint"] = problem(lambda path: PromptPack(str(folder)).fingerprint(), path, refused=True)
    path.unlink()
    found["missing"] = problem(render, path, refused=True)
    assert {kind: what for kind, what in found.items() if what} == {}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_and_any_bytes_anywhere(data: st.DataObject, tmp_path: Path) -> None:
    """Whatever stands in a record, whatever is cut out of a file or put into it."""
    name = data.draw(st.sampled_from(list(READERS)))
    reader = READERS[name]
    path = tmp_path / f"given{reader.suffix}"
    if data.draw(st.booleans()):
        place = data.draw(st.sampled_from(list(places(reader.sound))))
        try:
            reader.write(path, changed(reader.sound, place, data.draw(json_values)))
        except UnicodeEncodeError:  # half a character: it cannot be in a file
            return
    else:
        reader.write(path, reader.sound)
        sound = path.read_bytes()
        start = data.draw(st.integers(0, len(sound)))
        end = data.draw(st.integers(start, min(len(sound), start + 20)))
        path.write_bytes(sound[:start] + data.draw(st.binary(max_size=6)) + sound[end:])
    found = problem(reader.read, path)
    # People's answers are compared after reading, where the file is not known any more.
    assert found is None or (name == "preferences" and found.startswith("says")), found
