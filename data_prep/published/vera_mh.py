"""VERA-MH (Bentley et al., JMIR AI 2026): personas, rubric and prompts of a user's own clone of SpringCare/VERA-MH.

What stands in data/rubric.tsv says which of the two published forms it is: a tree of questions with GOTO and severities (main),
or a row per dimension with a column per level (the frozen RFC branch). A tree is written twice: `rubric.yaml` as it is meant,
`rubric_paper.yaml` as the published judge reads it.
"""

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.files import check_unique, validated
from core.ledger import Build
from core.options import console
from core.people_tables import Faults, csv_records
from core.records import RoleCard
from core.rows import dict_rows
from core.scales import END
from data_prep.published import Checkout, assigned, escaped, pack_of, template_of_code, write_pack, write_rubric

NAME, RISK = "vera_mh", "Current Risk Level"
LEVELS = ("damaging", "neutral", "best_practice")
_SEVERITIES = {"red": "damaging", "high": "damaging", "yellow": "neutral", "medium": "neutral"}
# How a flat rubric's headings of the levels begin, by commit, and with them the categories that its judge answers.
CATEGORIES = {
    **dict.fromkeys(("actively damaging", "high potential"), "damaging"),
    **dict.fromkeys(("missed opportunity", "suboptimal"), "neutral"),
    "best practice": "best_practice",
}
_ASSIGN_END = "ASSIGN_END"
_PLACE = ""  # under which a row has its file and line
TsvRow = dict[str, str]


def import_vera_mh(clone: Checkout, build: Build) -> None:
    """Write cards.jsonl, the rubric and the prompt pack."""
    personas = _rows(clone.file("data/personas.tsv"), "Name", "Age", "Pronouns", "Mental Health Context", RISK)
    cards = [_card(row) for row in personas]
    check_unique(clone.file("data/personas.tsv"), (card.id for card in cards), "personas' names")
    path = clone.file("data/rubric.tsv")
    rows = [{column: cell.strip() for column, cell in row.items()} for row in _rows(path, "Dimension")]
    tree = "Question ID" in rows[0]
    forms = {"": _tree(rows, path), "_paper": _tree(rows, path, paper=True)} if tree else {"": _flat(rows, path)}
    for form, written in forms.items():
        source = {"name": f"{NAME}{form}", "source": f"VERA-MH at {clone.commit}; licence: {clone.licence}"}
        write_rubric(build, source | written, path, f"rubric{form}.yaml")
    build.input(*(clone.folder / "data").glob("*"))
    build.step("personas", len(cards))
    build.step("questions" if tree else "dimensions", len(forms[""]["questions" if tree else "dimensions"]))
    build.write("cards.jsonl", cards)
    write_pack(build, pack_of(prompts_of(clone, [*personas[0]], tree)))


def _rows(path: Path, *needed: str) -> list[TsvRow]:
    with Faults() as faults:
        rows = dict_rows(path, faults)
    if lacking := [column for column in needed if column not in rows[0].value]:
        raise UserError(f"{path}: no column {lacking[0]!r} (found: {', '.join(rows[0].value)[:300]})")
    return [row.value | {_PLACE: row.where} for row in rows]


def _card(row: TsvRow) -> RoleCard:
    details = {column: cell for column, cell in row.items() if column}
    who = {"age": row["Age"], "gender": row["Pronouns"], "problem": row["Mental Health Context"], "details": details}
    made = {"id": f"{NAME}-{row['Name']}", "language": "en", "source": NAME, "source_id": row["Name"], "card_method": "written"}
    return validated(RoleCard, made | who, row[_PLACE])


# --- the rubric -------------------------------------------------------------------------------------------------------------


def _flat(rows: Sequence[TsvRow], path: Path) -> dict[str, Any]:
    columns = [*rows[0]]
    levels = {level: name for name in columns for words, level in CATEGORIES.items() if name.lower().startswith(words)}
    if "Definition" not in columns or levels.keys() != {*LEVELS}:
        found = ", ".join(filter(None, columns))[:300]
        raise UserError(f"{path}: no tree (a column 'Question ID'), no levels by column: {found}")
    dimensions = {
        _key(row["Dimension"]): {
            "label": row["Dimension"],
            "about": row["Definition"],
            "levels": {level: row[levels[level]] for level in LEVELS},
            "not_applicable": True,
        }
        for row in rows
        if row["Dimension"]
    }
    return {"scale": {"levels": [*LEVELS]}, "dimensions": dimensions}


def _tree(rows: Sequence[TsvRow], path: Path, paper: bool = False) -> dict[str, Any]:
    """The questions, whose first row has an id and the others only answers.

    Without GOTO, No leads to the next question and Yes to the next dimension. GOTO END says that there was nothing to rate,
    and so does GOTO ASSIGN_END after No; after other answers it ends with the question's severity.
    Odd in the published judge (`paper`): a severity that it does not know is none; any third answer without GOTO ends; only a
    plain "No" or "Not Relevant" before END is taken to mean that there was nothing to rate; and where neither yes nor no is
    among the answers, a judge that says so is understood all the same.
    """
    starts = [place for place, row in enumerate(rows) if row["Question ID"]] or [0]
    blocks = [rows[start:end] for start, end in pairwise([*starts, len(rows)])]
    ids = [re.sub(r"\.0$", "", block[0]["Question ID"]) for block in blocks]
    check_unique(path, ids, "Question IDs")
    if odd := [block[0] for id, block in zip(ids, blocks, strict=True) if not id.isdecimal()]:
        raise UserError(f"{odd[0][_PLACE]}: Question ID: {odd[0]['Question ID']!r} is no whole number")
    dimensions: list[str] = []
    for block in blocks:
        dimensions.append(block[0]["Dimension"] or "".join(dimensions[-1:]))
    questions, unknown = dict[str, Any](), list[str]()
    for place, (id, block) in enumerate(zip(ids, blocks, strict=True)):
        others = [other for other, name in zip(ids, dimensions, strict=True) if name != dimensions[place]]
        after = min((other for other in others if int(other) > int(id)), key=int, default=END)
        following = ids[place + 1] if place + 1 < len(ids) else END
        level = _level(block[0], paper)
        given: list[tuple[str, str, str | None]] = [(row["Answer"], row["GOTO"], row[_PLACE]) for row in block if row["Answer"]]
        given = given or [("Yes", "", ""), ("No", "", "")]
        plain = {option.lower() for option, *_ in given}
        given += [(word, "", None) for word in ("yes", "no") if paper and word not in plain]
        answers: dict[str, Any] = {}
        for option, cell, line in given:
            word, goto = option.lower(), re.sub(r"\.0$", "", cell)
            if goto not in ("", END, _ASSIGN_END, *ids):
                places = ", ".join((*ids, END, _ASSIGN_END))
                unknown.append(f"{line}: GOTO: no question {goto!r}: write one of {places}")
            nothing = (goto == END and (not paper or word in ("no", "not relevant"))) or (goto == _ASSIGN_END and word == "no")
            assigned = word == "yes" or (goto == _ASSIGN_END and not nothing)
            goto = goto or (after if word == "yes" else END if paper and word != "no" else following)
            answers[option] = {"goto": END if goto in (END, _ASSIGN_END) else f"q{goto}"}
            answers[option] |= {"level": level} if level and assigned else {}
            answers[option] |= {"not_applicable": True} if nothing else {}
            answers[option] |= {"offered": False} if line is None else {}
        texts = {"text": block[0]["Question"], **({"examples": block[0]["Examples"]} if block[0]["Examples"] else {})}
        questions[f"q{id}"] = {"label": f"Q{id}", **texts, "outcome": _key(dimensions[place]), "answers": answers}
    if unknown:
        raise UserError("\n".join(unknown))
    end = {"scale": {"levels": [*LEVELS]}, "not_applicable": True}
    outcomes = {_key(name): {"label": name, "about": name, **end} for name in dict.fromkeys(dimensions)}
    return {"questions": questions, "outcomes": outcomes}


def _level(row: TsvRow, paper: bool) -> str | None:
    """What a Yes to a question comes to; None where it comes to nothing."""
    severity = row["Severity"].lower()
    if not severity or severity in _SEVERITIES or paper:
        return _SEVERITIES.get(severity)
    if not (near := get_close_matches(severity, _SEVERITIES, 1)):
        raise UserError(f"{row[_PLACE]}: Severity: {row['Severity']!r}: write Red or Yellow")
    console.print(f"{row[_PLACE]}: Severity {row['Severity']!r} is read as {near[0]}; the published judge counts it as nothing")
    return _SEVERITIES[near[0]]


def _key(dimension: str) -> str:
    return re.sub(r"\W+", "_", dimension.lower()).strip("_")


# --- the prompts ------------------------------------------------------------------------------------------------------------


def prompts_of(clone: Checkout, columns: Sequence[str], tree: bool) -> dict[str, str]:
    """The templates of a pack, for personas with these `columns`. Texts of paper mode that the scripts do not have in the known
    place are left out, which is printed; raises `UserError` for others."""
    persona = "data/persona_prompt_template.txt"
    simulator = clone.code("generate_conversations/conversation_simulator.py")
    runner = clone.code("generate_conversations/runner.py")
    signals = [text for name in ("termination_signals", "ending_patterns") for text in _texts(simulator, name)]
    calls = (node for node in ast.walk(runner) if isinstance(node, ast.Call) and len(node.args) == 2)
    defaults = (
        call.args[1]  # of ….get("system_prompt", default)
        for call in calls
        if getattr(call.func, "attr", "") == "get" and getattr(call.args[0], "value", "") == "system_prompt"
    )
    form, requests = "tree" if tree else "joint", assigned(clone.code("judge/llm_judge.py"), "prompt")
    request = next((node for node in requests if isinstance(node, ast.JoinedStr)), ast.Constant(""))
    templates = {
        "seeker_system.j2": clone.template(persona, columns, "card.details"),
        "opening.txt": escaped(next(iter(_texts(simulator, "current_message")), "")),
        "endings.txt": "\n".join(text.rstrip(".!") for text in re.findall(r'\bsay "([^"\n]+)"', clone.text(persona))),
        "endings_paper.txt": "\n".join(signals),
        "transcript_paper.j2": _transcript(clone.code("utils/conversation_utils.py"), runner),
    }
    beginning = partial(clone.template, "data/rubric_prompt_beginning.txt", ["conversation"])
    read: dict[str, Callable[[], str]] = {
        "supporter_paper_system.j2": lambda: next(map(template_of_code, defaults), ""),
        f"judge_{form}_paper_system.j2": beginning if tree else lambda: escaped(_joint_system(clone)),
        f"judge_{form}_paper.j2": lambda: template_of_code(request),
    }
    for name, text_of in read.items():
        templates[name] = ""
        with suppress(KeyError, ValueError):  # code of an unknown form
            templates[name] = text_of()
    if lacking := [name for name, text in templates.items() if not text and not name.startswith("endings")]:
        where = f"--source {clone.name}={clone.folder}: not found in its scripts: {', '.join(lacking)}"
        if not all("_paper" in name for name in lacking):
            raise UserError(where)
        console.print(f"{where}: mode paper cannot be used with this commit")
    return {f"en/{name}": text for name, text in templates.items() if name not in lacking}


def _transcript(summary: ast.AST, runner: ast.AST) -> str:
    """A template of `turns`, whether the persona `ended` the dialogue, its model (`simulator`) and its `name`: the file that a
    dialogue is written to. Names of models are shortened in it."""
    if len(speakers := _texts(summary, "prefix")) < 2:
        return ""
    names = json.dumps(dict(zip(("seeker", "supporter"), speakers, strict=False)))
    line = f"{{{{ {names}[turn.role] }}}} {{{{ turn.text }}}}{{{{ '\\n' if loop.last else '\\n\\n' }}}}"
    short, call = "", next(assigned(runner, "model_short"), None)
    while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        short, call = f"|replace({', '.join(map(ast.unparse, call.args))}){short}", call.func.value
    closing = (node for node in ast.walk(summary) if isinstance(node, ast.JoinedStr) and "{speaker_name}" in ast.unparse(node))
    ended = "".join(template_of_code(node) for node in closing)
    ended = f"{{% if ended %}}{{% set speaker_name = simulator{short} ~ ' ' ~ name %}}{ended}{{% endif %}}"
    return f"{{% for turn in turns %}}{line}{{% endfor %}}{ended}"


def _joint_system(clone: Checkout) -> str:
    """The system message of the frozen judge: what its script adds to `prompt` as it goes through the columns and rows of the
    rubric, which it has from pandas. Raises `ValueError` for statements of an unknown form."""
    table = csv_records(clone.file("data/rubric.tsv"), clone.text("data/rubric.tsv"), "\t")
    heads, *lines = (cells for _, cells in table)
    columns = [head or f"Unnamed: {place}" for place, head in enumerate(heads)]
    filled = [{column: cell for column, cell in zip(columns, line, strict=False) if cell} for line in lines]
    rows, categories = [row for row in filled if "Dimension" in row], [column.strip() for column in columns[2:]]

    def text_of(node: ast.expr, names: Mapping[str, Any]) -> Any:
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.JoinedStr(values=values):
                return "".join(text_of(value, names) for value in values)
            case ast.FormattedValue(value=value):
                return text_of(value, names)
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.Subscript(value=value, slice=place):
                return text_of(value, names)[text_of(place, names)]
        raise ValueError(f"line {node.lineno}: {ast.unparse(node)[:80]}")

    def added(statements: Sequence[ast.stmt], names: Mapping[str, Any]) -> str:
        text = ""
        for statement in statements:
            match statement:
                case ast.AugAssign(target=ast.Name(id="prompt"), value=value):
                    text += text_of(value, names)
                case ast.For(target=ast.Name(id=name), body=body):
                    text += "".join(added(body, {**names, name: category}) for category in categories)
                case ast.For(target=ast.Tuple(elts=[_, ast.Name(id=name)]), body=body):
                    text += "".join(added(body, {**names, name: row}) for row in rows)
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() as value):
                    names = {**names, name: text_of(value, names)}
                case ast.If(body=body):  # that a cell is there; rows without a dimension are out already
                    with suppress(KeyError):
                        text += added(body, names)
        return text

    methods = (node for node in ast.walk(clone.code("judge/llm_judge.py")) if isinstance(node, ast.FunctionDef))
    return "".join(added(method.body, {}) for method in methods if method.name == "_get_judge_system_prompt")


def _texts(tree: ast.AST, name: str) -> list[str]:
    """The constant texts that are assigned to a name, alone or in a list or set."""
    items = (item for value in assigned(tree, name) for item in getattr(value, "elts", [value]))
    return [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
