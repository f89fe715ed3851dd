"""A user's own clone of the published ESC-Eval repository as records: cards, sample dialogues, ESC-RANK's scores of them.

Files are found by name in any folder: `card_high_*.json` and `test_*.json` (cards), `result/…/SUPPORTER_LANGUAGE.json` or
`result_SUPPORTER_LANGUAGE.json` (dialogues on the cards of test_*.json, in their order), `score/…` or `score_…` likewise
(ESC-RANK's verdicts as the published scorer wrote them, -1 where it could not parse an answer).
"""

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from core.errors import UserError
from core.files import CONFIGS, read_bytes
from core.languages import PAPER_LANGUAGES
from core.prompts import SUPPORTER_PAPER
from core.records import Dialogue, Judgement, Language, RoleCard, Turn
from core.rows import CorpusReader, Dropped, Malformed
from core.rubrics import load_rubric
from data_prep.published import escaped, pack_of

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


RUBRIC, UNREAD = "esc_eval", -1
_CARDS = re.compile(r"(card_high|test)_(en|zh|ch)\.json")
_CARD_KINDS = {"card_high": "high cards", "test": "test cards"}
_RUN = re.compile(r"(?:(result|score)_)?(.+)_(en|zh)\.json")
# Both spellings occur: the first in the sample dialogues, the second in what the script at its last commit writes.
_MARKERS: dict[str, Literal["seeker", "supporter"]] = {
    "AI assistant：": "supporter",
    "AI assitant：": "supporter",
    "ESC-Role：": "seeker",
}
MARKED = ("AI assistant：", "ESC-Role：")  # the spellings that the published scorer recognises
_LANGUAGE: dict[str, Language] = {"en": "en", "zh": "zh", "ch": "zh"}


@dataclass(frozen=True)
class PublishedRun:
    """The dialogues (or scores) of one supporter in one language: `name` is `SUPPORTER_LANGUAGE`."""

    name: str
    supporter: str
    language: Language
    path: Path

    def dialogue_id(self, index: str) -> str:
        """The id of the dialogue with this key in the file, and of its scores."""
        return f"esc-eval-{self.name}-{index}"


@dataclass
class Clone:
    """The files of a clone. Cards by (high cards or test cards, language), runs by name."""

    cards: dict[tuple[str, Language], Path] = field(default_factory=dict)
    results: dict[str, PublishedRun] = field(default_factory=dict)
    scores: dict[str, PublishedRun] = field(default_factory=dict)
    scripts: list[Path] = field(default_factory=list)

    def missing(self) -> list[str]:
        """The files of a complete clone that this one lacks, a line each."""
        lines = []
        for language in ("en", "zh"):
            lines += [f"{kind} in {language}" for kind in _CARD_KINDS.values() if (kind, language) not in self.cards]
            for kind, runs in (("result", self.results), ("score", self.scores)):
                if not any(run.language == language for run in runs.values()):
                    lines.append(f"{kind} files in {language} (*_{language}.json in a folder named {kind})")
        return lines


def find_clone(folder: Path) -> Clone:
    """The published files in a folder. Raises `UserError` if there are none, or two of one name."""
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder} (a clone of the published ESC-Eval repository is expected)")
    clone = Clone()
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if any(part.startswith(".") for part in parts) or not path.is_file():
            continue
        if path.suffix == ".py":
            clone.scripts.append(path)
        elif match := _CARDS.fullmatch(path.name):
            _add(clone.cards, (_CARD_KINDS[match[1]], _LANGUAGE[match[2]]), path)
        elif match := _RUN.fullmatch(path.name):
            kinds = [match[1]] if match[1] else [part for part in parts[:-1] if part in ("result", "score")]
            if kinds:
                run = PublishedRun(f"{match[2]}_{match[3]}", match[2], _LANGUAGE[match[3]], path)
                _add(clone.results if kinds[-1] == "result" else clone.scores, run.name, run)
    if not (clone.cards or clone.results or clone.scores or clone.scripts):
        names = "card_high_*.json, test_*.json, result and score files, scripts"
        raise UserError(f"{folder}: none of the published files ({names})")
    return clone


def _add(files: dict[Any, Any], key: Any, value: Path | PublishedRun) -> None:
    if files.setdefault(key, value) is not value:
        first, second = (item.path if isinstance(item, PublishedRun) else item for item in (files[key], value))
        raise UserError(f"two files of one name: {first} and {second}; keep one of them")


def read_dialogues(run: PublishedRun, cards: Sequence[RoleCard], reader: CorpusReader) -> Iterator[Dialogue]:
    """The dialogues of one result file, each linked to the test card at its index, if there is one. A unit is one dialogue,
    which the fixed greeting opens; its id ends in its key."""
    by_place = {str(place): card.id for place, card in enumerate(cards)}
    for index, value in _entries(run, reader):
        with reader.accounting(reader.row(f"{run.path}: dialogue {index[:60]}", value)):
            if not isinstance(value, list) or not value or not all(isinstance(line, str) for line in value):
                raise Malformed("expected a list of lines")
            yield Dialogue(
                id=run.dialogue_id(index),
                language=run.language,
                framework="esc_eval",
                source="esc-eval",
                source_id=f"{run.name}/{index}",
                card_id=by_place.get(index),
                supporter=run.supporter,
                simulator="esc-role",
                turns=tuple(turn_of(line, place) for place, line in enumerate(value)),
                termination="max_turns",
            )


def turn_of(line: str, place: int) -> Turn:
    """A line of a result file as a turn, with its white space."""
    for marker, role in _MARKERS.items():
        if line.startswith(marker):
            return Turn(role=role, text=line.removeprefix(marker))
    raise Malformed(f"line {place} begins with none of {', '.join(_MARKERS)}")


def read_scores(run: PublishedRun, dialogue_ids: set[str], reader: CorpusReader) -> Iterator[Judgement]:
    """ESC-RANK's verdicts in one score file, one per dimension; unreadable ones (-1) have no value. A unit is one score."""
    scale = load_rubric(RUBRIC).scores
    for index, value in _entries(run, reader):
        where = f"{run.path}: dialogue {index[:60]}"
        if not isinstance(value, dict):
            reader.malformed(reader.row(where, value), "expected an object of scores")
            continue
        for key, score in value.items():
            with reader.accounting(reader.row(f"{where}, {key[:60]}", score)):
                if key not in DIMENSIONS:
                    raise Malformed(f"unknown dimension {key!r} (known: {', '.join(DIMENSIONS)})")
                if type(score) is not int or score not in (*scale, UNREAD):
                    raise Malformed(f"{score!r} is not a score ({scale[0]} to {scale[-1]}, or {UNREAD})")
                if run.dialogue_id(index) not in dialogue_ids:
                    raise Dropped("no such dialogue")
                yield Judgement(
                    dialogue_id=run.dialogue_id(index),
                    language=run.language,
                    judge="esc-rank-published",
                    rubric=RUBRIC,
                    dimension=DIMENSIONS[key],
                    value=None if score == UNREAD else score,
                    condition={"mode": "paper"},
                    method="paper",
                )


def _entries(run: PublishedRun, reader: CorpusReader) -> list[tuple[str, Any]]:
    value = reader.json(run.path)
    if not isinstance(value, dict):
        raise UserError(f"{run.path}: expected a JSON object, found {type(value).__name__}")
    return list(value.items())
