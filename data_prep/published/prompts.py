"""The published prompts of ESC-Eval, read from a user's own clone into a local prompt pack for paper mode.

The clone's python sources are parsed with `ast`. Prompts are recognised by their form, not by their file:
- the seeker's system message: text + `…['base']`, the role card, + text (Chinese text: zh, otherwise en);
- the supporter's: the constant message with role `system` in the same script;
- the greeting: the constant message with role `user` in the same script (a simulator hears the supporter as its user);
- the judge's message: a sum of texts with an item of a list of seven rules (named `…_EN`, `…_ZH`), the dialogue (a call) and a
  dimension's name; a list of the seven published keys gives the order, another one the names.
"""

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from core.errors import UserError
from core.files import CONFIGS, read_bytes
from core.languages import PAPER_LANGUAGES
from core.prompts import SUPPORTER_PAPER
from core.records import Language
from data_prep.published.checkout import escaped, pack_of

# The published names of the dimensions (keys of the score files, names of the adapters) and ours.
DIMENSIONS = {
    "fluency": "fluency",
    "diversity": "expression",
    "empathic": "empathy",
    "suggestion": "information",
    "human": "humanoid",
    "tech": "skill",
    "overall": "overall",
}
SEEKER, GREETING, JUDGE, JUDGE_SYSTEM = "seeker_system.j2", "greeting.txt", "judge_paper.j2", "judge_paper_system.j2"
INTERNLM2_CODE = "modeling_internlm2.py"
# For a card without published text: the published form, in which an empty field is "not mentioned".
_CARD = {
    "en": (("Age: ", "Gender: ", "Occupation: ", "Problem: "), "Not mentioned"),
    "zh": (("年龄：", "性别：", "职业：", "问题："), "未提及"),
}
TextPart = str | ast.expr
quoted = partial(json.dumps, ensure_ascii=False)  # a jinja2 string in double quotes


@dataclass
class PublishedPrompts:
    """The prompts found so far, as jinja2 templates by file of a pack ({en,zh}/NAME), their scripts, and problems."""

    files: dict[str, str] = field(default_factory=dict)
    judge_system: str | None = None
    """InternLM2's default, from the model's own code (`internlm2_system`)."""
    seeker_script: Path | None = None
    judge_script: Path | None = None
    problems: list[str] = field(default_factory=list)


def find_prompts(scripts: Sequence[Path]) -> PublishedPrompts:
    """All prompts in these python sources; the first of each kind and language counts. Unreadable sources are problems."""
    prompts = PublishedPrompts()
    for path in scripts:
        try:
            tree = ast.parse(read_bytes(path, "script"))
            _find_seeker(tree, path, prompts)
            _find_judge(tree, path, prompts)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            prompts.problems.append(f"{path}: not readable as python: {error}")
    return prompts


def pack_files(prompts: PublishedPrompts) -> dict[str, bytes]:
    """The files of a prompt pack; {} for none. The judge's system message is not in the clone, since the published scorer
    relies on InternLM2's default: unless InternLM2's code was given, this project's is used."""
    files = dict(prompts.files)
    pack = {}
    for name in [f"{language}/{JUDGE_SYSTEM}" for language in PAPER_LANGUAGES if f"{language}/{JUDGE}" in files]:
        if prompts.judge_system is None:
            pack[name] = (CONFIGS / "prompts" / "esc_eval" / name).read_bytes()
        else:
            files[name] = prompts.judge_system
    return pack_of(files) | pack if files else {}


def _language_of(text: str) -> Language:
    return "zh" if re.search(r"[\u4e00-\u9fff]", text) else "en"


def _parts(node: ast.expr) -> list[TextPart]:
    """A sum of texts as constants and the expressions between them, in order."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _parts(left), _parts(right)
            if isinstance(first[-1], str) and isinstance(second[0], str):
                return [*first[:-1], first[-1] + second[0], *second[1:]]
            return first + second
    return [node]


# --- the seeker's script ----------------------------------------------------------------------------------------------------


def _find_seeker(tree: ast.AST, path: Path, prompts: PublishedPrompts) -> None:
    for node in ast.walk(tree):
        match _parts(node.value) if isinstance(node, ast.Assign) else []:
            case [str(before), ast.Subscript(slice=ast.Constant(value="base")), str(after)]:
                language = _language_of(before + after)
                template = escaped(before) + _card(language) + escaped(after)
                prompts.files.setdefault(f"{language}/{SEEKER}", template)
                prompts.seeker_script = prompts.seeker_script or path
    if prompts.seeker_script == path:
        for text in _messages(tree, "user"):
            prompts.files.setdefault(f"{_language_of(text)}/{GREETING}", escaped(text))
        for text in _messages(tree, "system"):
            for language in PAPER_LANGUAGES:
                prompts.files.setdefault(f"{language}/{SUPPORTER_PAPER}", escaped(text))


def _card(language: Language) -> str:
    """The card's text, which writes "not mentioned" in two ways, or its fields."""
    headings, nothing = _CARD[language]
    values = [f"(card.{name} or {quoted(nothing)})" for name in ("age", "gender", "occupation")] + ["card.problem"]
    lines = (f"{quoted(heading)} ~ {value}" for heading, value in zip(headings, values, strict=True))
    newline = f" ~ {quoted(chr(10))} ~ "
    return f"{{{{ card.text or ({newline.join(lines)}) }}}}"


def _messages(tree: ast.AST, role: str) -> Iterator[str]:
    """Texts of constant messages {"role": ROLE, "content": "…"}."""
    for node in ast.walk(tree):
        match node:
            case ast.Dict(
                keys=[ast.Constant(value="role"), ast.Constant(value="content")],
                values=[ast.Constant(value=speaker), ast.Constant(value=str(text))],
            ) if speaker == role:
                yield text


# --- the scorer's script ----------------------------------------------------------------------------------------------------


def _find_judge(tree: ast.AST, path: Path, prompts: PublishedPrompts) -> None:
    lists: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.List(elts=items)) if len(items) == len(DIMENSIONS):
                lists[name] = [str(item.value) for item in items if isinstance(item, ast.Constant)]
    keys = next((texts for texts in lists.values() if set(texts) == set(DIMENSIONS)), None)
    rules = {name[-2:].lower(): texts for name, texts in lists.items() if name.endswith(("_EN", "_ZH"))}
    words = next((texts for name, texts in lists.items() if texts != keys and not name.endswith(("_EN", "_ZH"))), None)
    if keys is None or words is None:
        return
    parts = _judge_message(tree)
    kinds = [type(part) for part in parts if isinstance(part, ast.expr)]
    if kinds != [ast.Subscript, ast.Call, ast.Name]:
        prompts.problems.append(f"{path}: the judge's message has an unknown form")
        return
    named = ", ".join(f"{quoted(DIMENSIONS[key])}: {quoted(word)}" for key, word in zip(keys, words, strict=True))
    forms = {
        ast.Subscript: '{%+ include "_rules_" ~ dimension.key ~ ".j2" +%}',  # + keeps the white space around
        ast.Call: "{{ transcript | trim }}",
        ast.Name: f"{{{{ {{{named}}}[dimension.key] }}}}",
    }
    template = "".join(escaped(part) if isinstance(part, str) else forms[type(part)] for part in parts)
    prompts.judge_script = prompts.judge_script or path
    for language, texts in rules.items():
        prompts.files.setdefault(f"{language}/{JUDGE}", template)
        for key, text in zip(keys, texts, strict=True):
            prompts.files.setdefault(f"{language}/_rules_{DIMENSIONS[key]}.j2", escaped(text))


def _judge_message(tree: ast.AST) -> list[TextPart]:
    """The sum that begins with an item of a list, and what is added to it later."""
    message, name = list[TextPart](), ""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.BinOp() as value):
                parts = _parts(value)
                if isinstance(parts[0], ast.Subscript):
                    message, name = parts, target
            case ast.AugAssign(target=ast.Name(id=target), value=value) if target == name:
                message += _parts(value)
    return message


# --- InternLM2's code -------------------------------------------------------------------------------------------------------


def internlm2_system(folder: Path) -> str:
    """The default `meta_instruction` of InternLM2's own `chat`. Raises `UserError` if the folder's code has none."""
    path = folder / INTERNLM2_CODE
    if not path.is_file():
        raise UserError(f"internlm2={folder}: no {path.name} there: give internlm2-chat-7b's folder as it was downloaded")
    try:
        tree = ast.parse(read_bytes(path, "InternLM2's code"))
    except (SyntaxError, ValueError) as error:
        raise UserError(f"{path}: not readable as python: {error}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "chat":
            names = [argument.arg for argument in node.args.args]
            defaults = dict(zip(reversed(names), reversed(node.args.defaults), strict=False))
            match defaults.get("meta_instruction"):
                case ast.Constant(value=str(text)) if text:
                    return text
    raise UserError(f"{path}: no function chat with a default meta_instruction")
