"""The commands of docs/reproduce.md as somebody with small files types them, in one process: a scripted endpoint behind every
model, and people who fill in sheets and studies.

What needs a GPU is done dry: a training is planned (tests/train trains a step of each script on tiny models), a server is an
address of the endpoint, and ECDBench's tasks are planned (test_ecdbench_run.py runs them on the embedded model). `make` says
what it would do, and that is done.
"""

import csv
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from core.files import write_jsonl
from core.records import HumanScore, Language
from core.rubrics import load_rubric
from core.specs import load_spec, model_names
from data_prep.cards import bundled_cards, load_cards, load_taxonomy
from data_prep.profiles import bundled_profiles
from data_prep.scores.human import COLUMNS
from docs.paper_items import DOCUMENT, papers
from evalsuite.people.chat import TALK, Talk
from evalsuite.people.store import StudyStore
from tests.data_prep.sources.fixtures import CORPORA, write
from tests.ecdbench_corpora import released
from tests.endpoint import Answer, echo
from tests.files_of_rows import read_sheet, write_sheet
from tests.people_study import Client, dialogue, links, listening, served
from tests.published_clone import make_clone
from tests.test_docs import APPS, COMMANDS, ROOT, blocks

SPECS = {name: load_spec(name) for name in model_names()}
PUBLISHED: dict[Language, str] = {"en": "en", "zh": "ch"}  # how the published card files end
SYSTEMS = ("alpha", "beta", "gamma")
ROLES = {"supporter": "supporter", "first": "supporter", "second": "supporter", "seeker": "seeker", "judge": "judge"}
SERVED = tuple(
    {name for spec in SPECS.values() for name in (spec.name, spec.endpoint.model or spec.name)}
    | {f"my-{r}" for r in ("model", *ROLES)}
)
SMALL = {"run": ("--limit", "1")}


def answers(body: dict[str, Any], count: int) -> Answer:
    """Seekers leave soon, judges fill in their form, choices are made: what is asked says which."""
    system, said = body["messages"][0]["content"], body["messages"][-1]["content"]
    if "exactly four lines" in said:
        return Answer("Age: young\nGender: female\nOccupation: baker\nProblem: The bakery burnt down, so she has no income.")
    for leaves in ("Bye.", "再见。"):
        if leaves in system and "[3]" in said:
            return Answer(leaves)
    if "structured_outputs" not in body and '"evaluation"' in said + system:
        scores = dict.fromkeys(load_rubric("emoharbor").dimensions, 1 + count % 5)
        return Answer(json.dumps({"analysis": "fine", "evaluation": scores}))
    if "structured_outputs" not in body and (digits := re.search(r"in (one|\d+) digits?|(\d+|一) ?个数字", said)):
        number = digits[1] or digits[2]
        return Answer("1" * (int(number) if number.isdecimal() else 1))
    answer = echo(body, count)
    if body["model"] == "deepseek-r1":  # its template opens a thought
        answer.text = f"They wait for an answer.</think>{answer.text}"
    return answer


class Desk:
    """A folder in which commands are typed, with the endpoint's address for every model."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.done = set[str]()
        for name in ("configs", "train", "Makefile"):
            (folder / name).symlink_to(ROOT / name)
        for name, role in ROLES.items():
            spec = {"name": f"my-{name}", "about": "scripted", "roles": [role], "languages": ["en", "zh"]}
            (folder / f"{name.upper()}.yaml").write_text(yaml.safe_dump(spec | {"endpoint": {"base_url": url}}))
        row = json.loads(str(CORPORA["esconv"]["train.jsonl"]))
        said = [
            ({"text": f"My flat {n} is cold.", "speaker": "usr"}, {"text": f"Since when is it, {n}?", "speaker": "sys"})
            for n in range(4)
        ]
        rows = [row | {"situation": turns[0]["text"], "dialog": turns} for turns in said]
        write(folder / "DIR", {"train.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
        make_clone(folder / "CLONE")
        for language, published in PUBLISHED.items():
            shutil.copy(folder / f"CLONE/data/card_high_{published}.json", folder / f"card_high_{language}.json")
            shutil.copy(bundled_profiles(language), folder / f"profiles_{language}.jsonl")
        for kind, bundled in (("cards", bundled_cards), ("profiles", bundled_profiles)):
            (folder / f"{kind}.jsonl").write_bytes(b"".join(bundled(language).read_bytes() for language in PUBLISHED))
        config = (ROOT / "configs/eval/emoharbor.yaml").read_text().replace("simulator: full", "simulator: one_agent")
        (folder / "one_agent.yaml").write_text(config.replace("judging: states", "judging: profile"))
        spoken = [dialogue("a person", 0).model_copy(update={"card_id": card.id}) for card in load_cards(bundled_cards("en"))]
        write_jsonl(folder / "references.jsonl", [d.model_copy(update={"id": d.card_id}) for d in spoken])
        (folder / "consent.txt").write_text("We keep what you write.")

    def item(self, name: str) -> None:
        """Do all commands of an item of the page, what it builds on first."""
        if name in self.done:
            return
        self.done.add(name)
        for other in BUILDS_ON.get(name, ()):
            self.item(other)
        FILES.get(name, lambda folder: None)(self.folder)
        for line in LINES[name]:
            for part in range(1, 8) if "--shard 1/7" in line else [1]:
                self.type(line.replace("1/7", f"{part}/7").replace("full-1", f"full-{part}"))

    def type(self, line: str) -> str:
        """Everything that a line prints. Fails where it does not come to its end."""
        words = shlex.split(line)
        if words[0] == "make":
            plan = ["make", "--no-print-directory", "-n", f"BIN={Path(sys.executable).parent}", *words[1:]]
            said = subprocess.run(plan, cwd=self.folder, capture_output=True, text=True, check=True).stdout
            return "".join(self.type(command) for command in commands_of(said))
        if words[0] == "accelerate":
            words = ["esc-train", "plan", words[words.index("--config") + 1]]
            if str(words) in self.done:  # fourteen rankers of one recipe
                return ""
            self.done.add(str(words))
        start = next(start for start in COMMANDS if tuple(words[: len(start)]) == start)
        words = [word.replace("NAME@URL", f"my-model@{self.url}") for word in words[len(start) :]]
        if words[:3] == ["paper", "ecdbench", "run"]:
            words = ["paper", "ecdbench", "run", "--data", "corpora"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("uvicorn.run", answers_once)
            result = CliRunner().invoke(APPS[start], [*words, *self.more(COMMANDS[start], words)])
        if result.exit_code != 0:
            raise AssertionError(f"{line}\n{result.output[-3000:]}\n{result.exception!r}") from result.exception
        self.people(words)
        return result.output

    def more(self, command: Any, words: Sequence[str]) -> Iterator[str]:
        """Where models answer, and so few items that it takes a second."""
        for word in words:
            if word not in (getattr(command, "commands", None) or ()):
                break
            command = command.commands[word]
        known = {option for parameter in command.params for option in parameter.opts}
        yield from SMALL.get(command.name, ()) if "ecdbench" not in words else ()
        for name in SPECS if "--set" in known else ():
            if name in self.models(words, known):
                people = words[:2] == ["people", "create"]
                yield from ("--supporter", f"{name}@{self.url}") if people else ("--set", f"endpoints.{name}={self.url}")

    def models(self, words: Sequence[str], known: set[str]) -> set[str]:
        """The models that a command names, itself or by its config."""
        options = dict(itertools.pairwise(words))
        given = yaml.safe_load((self.folder / options["--config"]).read_text()) if "--config" in options else {}
        named = {judge["model"] for judge in given.get("judges", ())}
        for option, field in (("--supporter", "supporters"), ("--seeker", "seeker"), ("--judge", "judge")):
            if option in options and "role-play" not in words:
                named.add(Path(options[option]).stem if options[option].endswith(".yaml") else options[option])
            elif option in known and field in given:
                named |= {given[field]} if isinstance(given[field], str) else {*given[field]}
        return named

    def people(self, words: Sequence[str]) -> None:
        """What people do once a command has made something for them: sheets are filled in, studies are worked through."""
        options = dict(itertools.pairwise(words))
        if words[:2] == ["people", "create"]:
            work_through(self.folder / words[2], dict.fromkeys(SERVED, self.url))
        for path in (self.folder / options.get("--out", "."), self.folder):
            for sheet in sorted(path.glob("*.csv")) if "export" in words or "--export" in words else ():
                fill_in(sheet)


def leaf(language: str, number: int) -> str:
    leaves = [*load_taxonomy().leaves.values()]
    return leaves[number % len(leaves)].label(language)


def human(folder: Path) -> None:
    """human.jsonl: the dialogues that the cards of cards.jsonl were made from."""
    played = [card for language in PUBLISHED for card in load_cards(bundled_cards(language))[:1]]
    spoken = [dialogue("a person", 0, card.language) for card in played]
    nobody = {"supporter": None, "simulator": None}
    talks = [d.model_copy(update=nobody | {"card_id": c.id}) for d, c in zip(spoken, played, strict=True)]
    write_jsonl(folder / "human.jsonl", talks)


def held(folder: Path) -> None:
    """held.jsonl and held.csv: talks of people on ESConv's situations; simulated.jsonl and annotators.csv: simulated ones."""
    systems, scale = ("my-first", "my-second"), load_rubric("esc_eval_human").dimensions
    talks, ratings, simulated, scores = [], [], [], []
    for number, name in itertools.product(range(3), systems):
        situation, spoken = f"train/{number}", dialogue(name, number)
        turns = [{"role": turn.role, "text": turn.text} for turn in spoken.turns]
        talks.append({"situation": situation, "supporter": name, "language": "en", "turns": turns})
        simulated.append(spoken.model_copy(update={"source_id": situation}))
        for place, dimension in enumerate(scale):
            value = (number + place + len(name)) % 4
            ratings.append([situation, name, "anna", "esc_eval_human", dimension, value])
            scores.append([spoken.id, "en", "anna", "esc_eval_human", dimension, (value + place) % 4, ""])
    (folder / "held.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    write_jsonl(folder / "simulated.jsonl", simulated)
    for name, head, rows in (
        ("held", ("situation", "supporter", "annotator", "rubric", "dimension", "value"), ratings),
        ("annotators", COLUMNS, scores),
    ):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([head, *rows])


def scored(folder: Path, rubric: str, people: Sequence[str] = ("anna", "ben")) -> None:
    spoken = [dialogue(system, card) for card in range(3) for system in SYSTEMS]
    write_jsonl(folder / "dialogues.jsonl", spoken)
    rules = load_rubric(rubric)
    scores = []
    for (place, one), (who, person) in itertools.product(enumerate(spoken), enumerate(people)):
        for number, name in enumerate(rules.dimensions):
            fields = {"dialogue_id": one.id, "language": one.language, "annotator": person, "rubric": rules.name}
            value = rules.scale_of(name).min + (place + number + who) % 2
            scores.append(HumanScore(**fields, dimension=name, value=value))
    with (folder / "scores.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *([s.model_dump()[name] for name in COLUMNS] for s in scores)])
    test = folder / "runs/train/rank_data"  # where the synthetic set's test split lies
    write_jsonl(test / "dialogues_test.jsonl", spoken)
    write_jsonl(test / "scores_test.jsonl", scores)


LINES = {f"{paper.paper}: {item.item}": item.commands for paper in papers() for item in paper.items if item.commands}
for place, block in enumerate(blocks(DOCUMENT.read_text(encoding="utf-8"), "bash"), 1):
    LINES[f"block {place}"] = block.replace("\\\n", " ").splitlines()
# What an item takes from one that stands later on the page, or from another paper's.
BUILDS_ON = {
    "ESC-Eval: figure 3": ("ESC-Eval: table 1",),
    "ESC-Eval: tables 6, 9, figure 5": ("ESC-Eval: table 5",),
    "EmoHarbor: table 1": ("EmoHarbor: figure 11",),
    "EmoHarbor: table 2": ("EmoHarbor: table 3",),
    "EmoHarbor: table 4": ("EmoHarbor: table 3",),
    "EmoHarbor: figure 6": ("EmoHarbor: table 3",),
    "FEEL: tables 3, 4": ("FEEL: tables 1, 2",),
}


def scores_of_tasks(folder: Path) -> None:
    """The publishers' files, and scores as `paper ecdbench run` writes them."""
    write(folder / "corpora", released())
    (folder / "runs/ecdbench").mkdir(parents=True)
    given = [{"model": "embedded", "dataset": name, "metric": "accuracy", "value": 0.5, "n": 300} for name in ("wic", "piqa")]
    (folder / "runs/ecdbench/scores.jsonl").write_text("".join(json.dumps(score) + "\n" for score in given))


FILES: dict[str, Callable[[Path], None]] = {
    "ESC-Eval: figure 3": human,
    "ESC-Eval: tables 3, 13, 14, 15": held,
    "ECDBench: table 5": scores_of_tasks,
    "ESC-Eval: table 4": lambda folder: scored(folder, "esc_eval"),
    **{f"block {number}": lambda folder: scored(folder, "esc_eval") for number in (1, 2, 3, 4)},
    "ESC-Eval: table 16": lambda folder: scored(folder, "esc_eval_human"),
    "FEEL: ESCEval (section 3.2)": lambda folder: scored(folder, "feel"),
    "FEEL: tables 1, 2": lambda folder: scored(folder, "feel"),
}


def answers_once(app: Any, **settings: Any) -> None:
    """A server that is stopped once it has answered."""
    with listening(app) as address:
        assert Client(address).request("GET", "/")[0] == 401


def commands_of(said: str) -> Iterator[str]:
    """Our own commands among the lines that `make -n` says."""
    for part in re.split(r"\n|&&|;", said.replace("\\\n", " ")):
        words = part.split()
        if words and Path(words[0]).name in ("python", "esc-eval", "accelerate") and "/" in words[0]:
            yield " ".join([Path(words[0]).name, *words[1:]])


def fill_in(sheet: Path) -> None:
    """A person's answers in every cell that asks for one, by who it is."""
    columns, rows = read_sheet(sheet)
    if not rows:
        return
    own = sheet.stem[-1]
    for number, row in enumerate(rows):
        if row.get("rules"):  # of some dialogues a thinks otherwise than all others, of some a and b do
            apart = {"0": "a", "1": "ab"}.get(str(int(row["item"], 16) % 3), "")
            row["score"] = "2" if "given" in row else "3" if own in apart else "1"
        if "quality" in row:
            row |= {"quality": ("high", "middle")[(ord(own) + number) % 3 == 0], "category": leaf(row["language"], number)}
        if "keep" in row:
            row["keep"] = "yes"
    write_sheet(sheet, columns, rows)


def work_through(folder: Path, endpoints: Mapping[str, str]) -> None:
    with served(folder, endpoints=endpoints) as (address, store):
        study = store.study()
        for number, (code, link) in enumerate(list(links(folder).items())[1:4]):
            rater = Client(address).enter(link)
            rater.request("POST", "/api/me", {"consented": True})
            for task in Client.tasks(rater):
                if study.chat:
                    talked(rater, store, task, code)
                for name in study.questions:
                    rater.put(task, name, choice=("a", "b", "tie")[(number + task) % 3])
                for place, name in enumerate(study.rubric.dimensions if study.rubric and not study.chat else ()):
                    assert study.rubric
                    rater.put(task, name, value=study.rubric.scale_of(name).min + (number + task + place) % 2)
                status, said = rater.submit(task)
                assert status == 200, said


def talked(rater: Client, store: StudyStore, id: int, code: str) -> None:
    """A talk of one exchange, or who the person is: everything that is asked on the way is answered."""
    study = store.study()

    def answer_all() -> None:
        asked = Talk(study, store.task(id, code), None).question_keys()
        for place, (name, turn) in enumerate(asked):
            ask = study.asks.get(name)
            answer = {"text": f"34, number {id}"} if ask and not ask.scale else {"value": 1 + (id + place) % 3}
            if (name, turn) not in store.answers([id]).get(id, {}):
                assert rater.put(id, name, turn, **answer)[0] == 200, name

    answer_all()
    if store.task(id, code).purpose == TALK:
        rater.talk(id, "say", {"text": "I cannot sleep.", "turn": 0})
        assert {"reply", "reload"} & {*rater.talk(id, "reply", {})[1]}
        rater.talk(id, "leave", {})
        answer_all()
