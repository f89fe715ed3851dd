"""No figure depends on the order of the rows of a file: every verb that computes any, run again on shuffled rows.

Compared whole: standard output, and every file that is written. Left out is what follows the rows and is no figure:
- manifest.json: the hashes of inputs and outputs, and the first places of each reason to drop (a line number, or an id);
- records (.jsonl, and the third person's sheet) come in the order of the rows: their lines are compared without it, and so are
  those in report.json;
- .xlsx (the same rows are in the .csv beside it), and the pages of runs, which show dialogues in the order of the rows.
"""

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from typer.testing import CliRunner

from core.statistics import bootstrap
from evalsuite.judge import surface
from evalsuite.statistics import components, correlation, reply_length
from tests.files_of_rows import read_sheet, write_all, write_sheet
from tests.surface import APPS, VERBS

pytestmark = pytest.mark.slow

SHUFFLES = 2
# A verb with its options; OUT is the folder to write into. All rows of the files and run folders that are named are shuffled.
CASES = """\
esc-eval agree --judgements verdicts.jsonl --gold people.jsonl --json --out OUT
esc-eval agree --judgements verdicts.jsonl --gold people.csv --mode paper --rubric rubric.yaml --only-shared --json
esc-eval agree --gold people_turns.jsonl --json --out OUT
esc-eval agree --gold people.csv --rubric rubric.yaml --json
esc-eval paper role-play choices.csv --json --out OUT
esc-eval paper role-play choices.csv --mode paper --json
esc-eval agree --correlate dialogue --judgements verdicts.jsonl --judgements rounds.jsonl --gold people_turns.jsonl \
--dialogues talks.jsonl --json
esc-eval agree --judgements verdicts.jsonl --gold people.csv --dialogues talks.jsonl --correlate system --sample source \
--json
esc-eval leaderboard other --against run --json --out OUT
esc-eval leaderboard run other --out OUT
esc-eval report run
esc-eval paper respond --responses replies.jsonl --json --out OUT
esc-eval paper respond --dialogues spoken.jsonl --references references.jsonl --json --out OUT
esc-eval power run other --json --out OUT
esc-eval judge-card run --accuracy 0.5 --out OUT
esc-eval paper feel ensemble --judgements verdicts.jsonl --gold people.jsonl --dialogues talks.jsonl --json --out OUT
esc-eval paper feel ensemble --judgements verdicts.jsonl --weights weights/weights_native.json --json --out OUT
esc-eval paper feel ensemble --judgements verdicts.jsonl --preferences preferences.jsonl --dialogues talks.jsonl --json --out \
OUT
esc-eval paper role-play --dialogues talks.jsonl --judgements rounds.jsonl --gold people_turns.jsonl --rubric rubric.yaml \
--json --out OUT
esc-eval paper role-play seekers.jsonl --dialogues talks.jsonl --json --out OUT
esc-eval paper ecdbench table --benchmark small.yaml --scores scores.jsonl --json --out OUT
esc-eval paper ecdbench table --benchmark small.yaml --scores scores.jsonl --model m2 --node total --json --out OUT
data_prep check cards.jsonl --data talks.jsonl --out OUT
data_prep check cards.jsonl --out OUT
data_prep sheet import --cards cards.jsonl workers/worker_1.csv workers/worker_2.csv --out OUT
data_prep sheet import --dialogues talks.jsonl --rubric rubric.yaml annotators/anna.csv annotators/ben.csv \
annotators/cleo.csv --out OUT
data_prep sheet export --dialogues talks.jsonl --gold halves.jsonl --out OUT
data_prep sheet import --dialogues talks.jsonl --gold halves.jsonl --rubric rubric.yaml again/anna.csv again/joint.csv --out \
OUT
esc-eval agree --judgements tested.jsonl --gold ranked.jsonl --only-shared --mode paper --split ranker --dialogues \
talks.jsonl --reference trained --out OUT
""".splitlines()
NOT_SHUFFLED = {
    "asks models; figures of what it writes are other verbs'": {
        *("esc-eval run", "esc-eval paper feel score", "esc-eval paper ecdbench run", "esc-eval fork", "esc-eval study"),
        *("data_prep cards extract", "data_prep cards label", "data_prep profiles build", "train test"),
    },
    "makes data of data, row by row, and computes no figure": {
        *("data_prep read", "data_prep import", "data_prep cards import", "esc-eval push")
    },
    "a seed draws from the rows as they stand: another order is another draw, and no figure is computed": {
        *("data_prep role-sft", "data_prep rank-sft", "esc-eval people create", "esc-eval people suggest")
    },
    "reads no rows": {
        *("esc-eval paper reported", "data_prep fetch", "data_prep cards template", "train plan", "serve up", "serve convert"),
        *("esc-eval init", "esc-eval doctor", "esc-eval models", "data_prep language"),
        *(f"esc-eval people {name}" for name in ("serve", "results", "backup", "delete")),
    },
    "puts the parts of a run together; its figures are those of `report`": {"esc-eval merge"},
    "counts the calls in a run's store": {"esc-eval status"},
}


def run(verb: str, *options: object) -> str:
    name, *rest = verb.split()
    result = CliRunner().invoke(APPS[name], [*rest, *map(str, options)])
    assert result.exception is None or isinstance(result.exception, SystemExit), (verb, result.exception)
    assert result.exit_code in (0, 1), result.output  # 1: something was found (a card's source, a doubtful profile)
    return result.stdout


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files, once; every test shuffles a copy."""
    folder = tmp_path_factory.mktemp("rows")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_all(folder, run)
        run("esc-eval paper feel ensemble", "--judgements", "verdicts.jsonl", "--gold", "people.jsonl", "--out", "weights")
    return folder


def shuffle(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    if path.suffix == ".csv":
        columns, rows = read_sheet(path)
        write_sheet(path, columns, rng.sample(rows, len(rows)))
    else:
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(rng.sample(lines, len(lines))))


def compared(path: Path) -> object:
    """What a file says, without what is left out above."""
    if path.suffix == ".jsonl" or path.name == "third.csv":
        return sorted(path.read_bytes().splitlines())
    if path.name == "manifest.json":
        manifest = orjson.loads(path.read_bytes())
        steps = [{key: value for key, value in step.items() if key != "examples"} for step in manifest["steps"]]
        return orjson.dumps(
            {key: value for key, value in manifest.items() if key not in ("inputs", "outputs")} | {"steps": steps}
        )
    if path.suffix == ".json" and "dialogues" in (found := orjson.loads(path.read_bytes())):
        records: dict[str, Any] = {key: sorted(map(orjson.dumps, found.pop(key))) for key in ("dialogues", "judgements")}
        return orjson.dumps(found | {"cards": dict(sorted(found["cards"].items()))}), records
    return path.read_bytes()


def _small(classifier: Any) -> Any:
    """The forest with few trees: they take most of the time."""
    return classifier.set_params(n_estimators=5) if hasattr(classifier, "n_estimators") else classifier


def verb_of(case: str) -> str:
    return next(verb for verb in VERBS if case.startswith(f"{verb} "))


def rows_of(case: str) -> Iterator[str]:
    """The files of rows that a command names, by pattern."""
    for word in case.split():
        if word in ("run", "other"):
            yield f"{word}/*.jsonl"
        elif word == "ranker":
            yield from ("ranker/valid.jsonl", "ranker/test.jsonl")
        elif word.endswith((".jsonl", ".csv")):
            yield word


def outcome(case: str, folder: Path) -> dict[str, object]:
    written = folder / ("run" if case == "esc-eval report run" else "OUT")
    written.mkdir(exist_ok=True)
    before = {path: path.stat().st_mtime_ns for path in written.rglob("*")}
    verb = verb_of(case)
    stdout = run(verb, *case.removeprefix(verb).split())
    made = [path for path in sorted(written.rglob("*")) if path.is_file() and before.get(path) != path.stat().st_mtime_ns]
    unordered = ("report.html", "leaderboard.html", "calls.sqlite")
    shown = [path for path in made if path.suffix != ".xlsx" and path.name not in unordered]
    return {"stdout": stdout} | {str(path.relative_to(written)): compared(path) for path in shown}


@pytest.mark.parametrize("case", CASES, ids=[f"{verb_of(case)}-{place}" for place, case in enumerate(CASES)])
def test_figures_do_not_depend_on_the_order_of_rows(
    case: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", lambda *given: "now")  # when a report was made
    for module in (bootstrap, correlation, reply_length):  # what is drawn counts here, not how often
        monkeypatch.setattr(module, "RESAMPLES", 50)
    # Nothing that so few draws give may be kept for the tests after this one.
    monkeypatch.setattr(components, "_kept_off_zero", components._kept_off_zero.__wrapped__)
    every = surface._classifiers
    monkeypatch.setattr(surface, "_classifiers", lambda *given: {name: _small(one) for name, one in every(*given).items()})
    found = []
    for seed in range(SHUFFLES + 1):
        folder = tmp_path / str(seed) / "files"  # reports are named after their folder
        shutil.copytree(files, folder)
        for path in (path for pattern in rows_of(case) for path in folder.glob(pattern)) if seed else ():
            shuffle(path, seed)
        monkeypatch.chdir(folder)
        found.append(outcome(case, folder))
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        for name, content in found[0].items():
            assert other[name] == content, name


def test_no_verb_is_forgotten() -> None:
    verbs = [{verb_of(case) for case in CASES}, *NOT_SHUFFLED.values()]
    assert sorted(VERBS) == sorted(verb for group in verbs for verb in group)
