"""The tables of docs/reproduce.md, paper item by paper item, from docs/paper_items.yaml: `python docs/paper_items.py`."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from core.files import validated
from core.settings import Settings, load_yaml

ITEMS = Path(__file__).with_name("paper_items.yaml")
DOCUMENT = Path(__file__).with_name("reproduce.md")
BEGIN, END = "<!-- made by python docs/paper_items.py -->\n", "<!-- end -->"


class Item(Settings):
    """Tables or figures of a paper that are made in one way."""

    item: str
    about: str
    commands: list[str] = Field(default=[])
    runs: str = ""
    needs: list[str] = Field(default=[])
    where: str = ""


class Paper(Settings):
    """A paper's items, in its order."""

    paper: str
    source: str
    items: list[Item] = Field(min_length=1)


def papers() -> list[Paper]:
    """All papers, as the file has them."""
    return [validated(Paper, entry, ITEMS) for entry in load_yaml(ITEMS, "paper items")]


def page() -> str:
    """The tables, one a paper."""
    return "\n".join(line for paper in papers() for line in _table(paper))


def _table(paper: Paper) -> Iterator[str]:
    yield f"### {paper.paper}, item by item"
    yield ""
    yield paper.source
    yield ""
    yield "| item | commands | runs here | the paper's own figures need |"
    yield "|---|---|---|---|"
    for item in paper.items:
        commands = "<br>".join(f"`{command}`" for command in item.commands)
        where = f"in {item.where}" if item.where else ""
        needs = "; ".join(item.needs) or ("–" if item.where else "nothing")
        yield f"| {item.item}: {item.about} | {commands or where} | {item.runs or '–'} | {needs} |"
    yield ""


def write() -> None:
    """Put the tables between their marks in the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[-1]
    DOCUMENT.write_text(f"{before}{BEGIN}\n{page()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write()
