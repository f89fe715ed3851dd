"""docs/tutorial.md as a reader types it: forty situations in German, four questions from 1 to 10, two prompts, one URL. The
endpoint answers one of the prompts better, and the board has to say so."""

import re
import shlex
from pathlib import Path
from typing import Any

import openpyxl

from evalsuite import load_run
from tests import surface
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint
from tests.test_docs import blocks

PAGE = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text(encoding="utf-8")
DIMENSIONS = ("zuhören", "wärme", "nächster_schritt", "vorsicht")
SAID, ADVICE = "Was davon ist heute am schwersten?", "Drei Tipps: schlafen, essen, Sport."


def files() -> dict[str, str]:
    return dict(re.findall(r"^`([\w/.-]+)`:\n\n```\w+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


def commands() -> list[list[str]]:
    return [shlex.split(line, comments=True) for block in blocks(PAGE, "bash") for line in block.splitlines()]


def sheet(path: Path) -> None:
    """The page's table with 38 rows more, as a spreadsheet saves it: ages are numbers."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", PAGE, re.MULTILINE)]
    header, _, *shown = rows
    book = openpyxl.Workbook()
    for line in (
        header,
        *shown,
        *([f"Seit Tag {n} schläft er kaum und spricht mit niemandem.", str(n + 20)] for n in range(38)),
    ):
        book.active.append([int(cell) if cell.isdecimal() else cell or None for cell in line])
    book.save(path)


def behave(body: dict[str, Any], count: int) -> Answer:
    """A seeker, two supporters by their prompts, and a judge who prefers to be asked."""
    told, last = body["messages"][0]["content"], body["messages"][-1]["content"]
    prompts = files()
    if told.strip() == prompts["hilfe/zuhoeren.txt"].strip():
        return Answer(f"{SAID} ({len(body['messages'])})")
    if told.strip() == prompts["hilfe/ratgeber.txt"].strip():
        return Answer(f"{ADVICE} ({len(body['messages'])})")
    if "Zuhören" in last:
        value = (8 if SAID in last else 4) + count % 2
        return Answer("\n".join(f"{key.replace('_', ' ').capitalize()}: {value}" for key in DIMENSIONS))
    return Answer("Ich weiß nicht mehr weiter.")


def test_the_page_is_typed_and_its_board_says_which_prompt_is_better(esc_eval: EscEval) -> None:
    lines = [line for line in commands() if line[0] != "pip"]
    assert len(commands()) <= 10 and {line[0] for line in lines} == {"esc-eval", "esc-data"}
    sheet(Path("situationen.xlsx"))
    with Endpoint(behave) as endpoint:
        for line in lines:
            words = [re.sub(r"http://[^#]*", endpoint.url, word) for word in line[1:]]
            if line[0] == "esc-eval":
                code, said = esc_eval(*words)
                assert code == 0, said
            else:
                surface.COMMANDS["data_prep"].main(args=words, standalone_mode=False)
            if "init" in line:
                for name, text in files().items():
                    Path(name).write_text(text)
            if "--plan" in line:
                assert not endpoint.requests and not Path("runs/hilfe").exists()
    run = load_run("runs/hilfe")
    assert {dialogue.language for dialogue in run.dialogues} == {"de"}
    assert len({dialogue.card_id for dialogue in run.dialogues}) == 40
    better, worse = (row for row in run.leaderboard if row.supporter not in run.floors)
    assert (better.supporter, better.rank, worse.supporter, worse.rank) == ("my-model.zuhoeren", "1", "my-model.ratgeber", "2")
    assert set(better.scores) == {*DIMENSIONS, "average"}
    first = Path("runs/hilfe/report.md").read_text().split("\n\n")[1]
    assert re.match(
        r"my-model\.zuhoeren is ahead of my-model\.ratgeber by [\d.]+ points of 100 \(95 % interval .* on 40 cards", first
    )
