"""The published prompts of ESC-Eval, read from a user's own clone into a local prompt pack for paper mode.

The clone's python sources are parsed with `ast`. Prompts are recognised by their form, not by their file:
- the seeker's system message: text around `…['base']`, the role card (Chinese text: zh, otherwise en);
- the supporter's: the only constant message with role `system` in the same script;
- the greeting: the constant message with role `user` in the same script (a simulator hears the supporter as its user);
- the judge's message: a sum of texts with an item of a seven-item list of rules, one of a list of dimension names, and the
  dialogue; a list of the seven published keys gives the order. There is one list of rules per language (by its name or text).
"""

from __future__ import annotations

import ast
import json
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.files import CONFIGS, read_bytes
from core.languages import PAPER_LANGUAGES
from core.records import Language
from core.side_prompts import SUPPORTER_PAPER
from data_prep.published.checkout import escaped

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
JUDGE_SYSTEM = "judge_paper_system.j2"
INTERNLM2_CODE = "modeling_internlm2.py"
_SUFFIX: dict[str, Language] = {"en": "en", "eng": "en", "english": "en", "zh": "zh", "ch": "zh", "cn": "zh", "chinese": "zh"}
# For a card without published text: the published form, in which an empty field is "not mentioned".
_CARD = {
    "en": (("Age: ", "Gender: ", "Occupation: ", "Problem: "), "Not mentioned"),
    "zh": (("年龄：", "性别：", "职业：", "问题："), "未提及"),
}
TextPart = str | ast.expr
quoted = partial(json.dumps, ensure_ascii=False)  # a jinja2 string in double quotes


@dataclass
class JudgePrompt:
    """The judge's message in one language. `template` includes `_rules_KEY.j2` by the dimension's key."""

    template: str
    rules: dict[str, str]  # our dimension key → the published rules, as a template


@dataclass
class PublishedPrompts:
    """The prompts found so far, as jinja2 templates by language, and problems on the way."""

    seeker: dict[Language, str] = field(default_factory=dict)
    supporter: str | None = None
    """The same in both languages."""
    greeting: dict[Language, str] = field(default_factory=dict)
    judge: dict[Language, JudgePrompt] = field(default_factory=dict)
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
    """The prompts as the files of a prompt pack ({en,zh}/NAME, the names of configs/prompts/esc_eval) with a `.gitignore` for
    all of them; {} for none. The judge's system message is not in the clone, since the published scorer relies on InternLM2's
    default: unless InternLM2's code was given, this project's is used."""
    files: dict[str, str] = {}
    for language in PAPER_LANGUAGES:
        if language in prompts.seeker:
            files[f"{language}/seeker_system.j2"] = prompts.seeker[language]
        if language in prompts.greeting:
            files[f"{language}/greeting.txt"] = prompts.greeting[language]
        if prompts.supporter is not None:
            files[f"{language}/{SUPPORTER_PAPER}"] = prompts.supporter
        if language in prompts.judge:
            judge = prompts.judge[language]
            files[f"{language}/judge_paper.j2"] = judge.template
            files |= {f"{language}/{JUDGE_SYSTEM}": prompts.judge_system} if prompts.judge_system is not None else {}
            files |= {f"{language}/_rules_{key}.j2": text for key, text in judge.rules.items()}
    pack = {name: f"{text}\n".encode() for name, text in files.items()}  # jinja removes one line end
    for language in prompts.judge if prompts.judge_system is None else ():
        system = f"{language}/{JUDGE_SYSTEM}"
        pack[system] = (CONFIGS / "prompts" / "esc_eval" / system).read_bytes()
    return pack | {".gitignore": b"# Published prompts without a licence: local only.\n*\n"} if pack else {}


def language_of(text: str) -> Language:
    return "zh" if re.search(r"[\u4e00-\u9fff]", text) else "en"


# --- python to texts --------------------------------------------------------------------------------------------------------


def _parts(node: ast.expr) -> list[TextPart]:
    """A text expression (constants, +, f-strings, str.format) as constants and the expressions between them, in order."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _joined([*_parts(left), *_parts(right)])
        case ast.JoinedStr(values=values):
            return _joined([part for value in values for part in _parts(value)])
        case ast.FormattedValue(value=value):
            return [value]
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format"), args=args, keywords=keywords):
            return _formatted(text, args, {word.arg: word.value for word in keywords if word.arg}) or [node]
    return [node]


def _formatted(text: str, args: Sequence[ast.expr], named: dict[str, ast.expr]) -> list[TextPart]:
    """`text.format(…)`; nothing when its fields and arguments do not match."""
    parts: list[TextPart] = []
    auto = iter(args)
    try:
        for literal, name, _, _ in string.Formatter().parse(text):
            parts.append(literal)
            if name is not None:
                parts.append(next(auto) if not name else args[int(name)] if name.isdigit() else named[name])
    except (ValueError, KeyError, IndexError, StopIteration):
        return []
    return _joined(parts)


def _joined(parts: Sequence[TextPart]) -> list[TextPart]:
    result: list[TextPart] = []
    for part in parts:
        if isinstance(part, str) and result and isinstance(result[-1], str):
            result[-1] += part
        elif part != "":
            result.append(part)
    return result


def _assignments(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


# --- the seeker's script ----------------------------------------------------------------------------------------------------


def _find_seeker(tree: ast.AST, path: Path, prompts: PublishedPrompts) -> None:
    has_seeker = False
    for _, value in _assignments(tree):
        parts = _parts(value)
        cards = [part for part in parts if isinstance(part, ast.Subscript) and getattr(part.slice, "value", None) == "base"]
        if not cards:
            continue
        texts = [part for part in parts if isinstance(part, str)]
        if len(cards) != 1 or len(texts) + 1 != len(parts) or not texts:
            prompts.problems.append(f"{path}:{value.lineno}: a text around the role card of unknown form")
            continue
        has_seeker = True
        language = language_of("".join(texts))
        headings, nothing = _CARD[language]
        values = [f"(card.{name} or {quoted(nothing)})" for name in ("age", "gender", "occupation")] + ["card.problem"]
        lines = (f"{quoted(heading)} ~ {value}" for heading, value in zip(headings, values, strict=True))
        newline = f" ~ {quoted(chr(10))} ~ "
        # A published card is used word for word: it writes "not mentioned" in two ways, which its fields do not keep.
        card = f"{{{{ card.text or ({newline.join(lines)}) }}}}"
        prompts.seeker.setdefault(language, "".join(escaped(part) if isinstance(part, str) else card for part in parts))
    if has_seeker:
        prompts.seeker_script = prompts.seeker_script or path
        for text in _messages(tree, "user"):
            prompts.greeting.setdefault(language_of(text), escaped(text))
        messages = sorted(set(_messages(tree, "system")))
        if len(messages) > 1:
            shown = ", ".join(map(repr, messages))[:200]
            prompts.problems.append(f"{path}: supporters have different system messages: {shown}")
        elif messages and prompts.supporter is None:
            prompts.supporter = escaped(messages[0])


def _messages(tree: ast.AST, role: str) -> Iterator[str]:
    """Texts of constant messages {"role": ROLE, "content": "…"}."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            message = {
                key.value: value.value
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
            }
            text = message.get("content")
            if message.get("role") == role and isinstance(text, str):
                yield text


# --- the scorer's script ----------------------------------------------------------------------------------------------------


def _find_judge(tree: ast.AST, path: Path, prompts: PublishedPrompts) -> None:
    assigned = list(_assignments(tree))
    lists = {name: texts for name, value in assigned if (texts := _texts(value)) and len(texts) == len(DIMENSIONS)}
    keys = next((texts for texts in lists.values() if set(texts) == set(DIMENSIONS)), None)
    if keys is None:
        return
    aliases: dict[str, list[str]] = {name: [name] for name in lists}
    for name, value in assigned:
        if isinstance(value, ast.Name) and value.id in lists:
            aliases.setdefault(name, []).append(value.id)
    for node in ast.walk(tree):  # `for i, word in enumerate(words)`, `for word in words`
        if isinstance(node, ast.For):
            looped = [n.id for n in ast.walk(node.iter) if isinstance(n, ast.Name) and n.id in lists]
            targets = [n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)]
            if looped and targets:
                aliases.setdefault(targets[-1], looped)
    for parts in _sums(tree):
        pieces = [aliases.get(_base(part), []) if isinstance(part, ast.expr) else None for part in parts]
        if not any(pieces):
            continue
        if pieces.count([]) != 1:
            prompts.problems.append(f"{path}: the judge's message has an unknown form")
            continue
        rules = max((names for names in pieces if names), key=lambda names: sum(map(len, lists[names[0]])))
        prompts.judge_script = prompts.judge_script or path
        for name in rules:
            language = _SUFFIX.get(re.split(r"[_\W]+", name)[-1].lower()) or language_of("".join(lists[name]))
            judge = _judge(parts, pieces, rules, dict(zip(keys, lists[name], strict=True)), keys, lists)
            prompts.judge.setdefault(language, judge)


def _texts(node: ast.expr) -> list[str]:
    """The texts of a list of constant texts; empty for anything else."""
    if not isinstance(node, ast.List | ast.Tuple):
        return []
    items = [_parts(item) for item in node.elts]
    return [item[0] for item in items if len(item) == 1 and isinstance(item[0], str)] if all(items) else []


def _sums(tree: ast.AST) -> Iterator[list[TextPart]]:
    """Every assigned text with the parts that `+=` adds to it later in the same block."""
    blocks: Iterator[Any] = (getattr(node, name, []) for node in ast.walk(tree) for name in ("body", "orelse", "finalbody"))
    for block in blocks:
        for position, statement in enumerate(block if isinstance(block, list) else []):
            if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)):
                continue
            parts = _parts(statement.value)
            for later in block[position + 1 :]:
                if isinstance(later, ast.AugAssign) and isinstance(later.op, ast.Add) and isinstance(later.target, ast.Name):
                    parts += _parts(later.value) if later.target.id == statement.targets[0].id else []
            if len(parts) > 1:
                yield _joined(parts)


def _base(node: ast.expr) -> str:
    """The variable in an expression: `rules` in `rules[i]`, `dialogue` in `dialogue.strip()`."""
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _judge(
    parts: Sequence[TextPart],
    pieces: Sequence[list[str] | None],
    rules: list[str],
    texts: dict[str, str],
    keys: Sequence[str],
    lists: dict[str, list[str]],
) -> JudgePrompt:
    """The template, which includes the rules by the dimension's key and looks up its published name."""
    out = []
    for part, names in zip(parts, pieces, strict=True):
        if isinstance(part, str):
            out.append(escaped(part))
        elif names == rules:
            out.append('{%+ include "_rules_" ~ dimension.key ~ ".j2" +%}')  # + keeps the white space around
        elif names:
            words = {DIMENSIONS[key]: word for key, word in zip(keys, lists[names[0]], strict=True)}
            out.append(f"{{{{ {{{', '.join(f'{quoted(k)}: {quoted(w)}' for k, w in words.items())}}}[dimension.key] }}}}")
        else:
            out.append("{{ transcript | trim }}" if isinstance(part, ast.Call) else "{{ transcript }}")
    return JudgePrompt("".join(out), {DIMENSIONS[key]: escaped(text) for key, text in texts.items()})


# --- InternLM2's code -------------------------------------------------------------------------------------------------------


def internlm2_system(folder: Path) -> str:
    """The system message that InternLM2's own `chat` sends by default: its `meta_instruction`. Raises `UserError` if the
    folder's code has none."""
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
