"""`language`: writes the texts of a language for translation (new), and lists what is missing (check)."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from jinja2 import Environment, TemplateSyntaxError, meta

from core.errors import UserError, near
from core.files import CONFIGS, read_text, write_text
from core.languages import ENGLISH, FOLDER, NOT_REVIEWED, check_language, file_of, folders, name_of, words
from core.options import choice, console
from core.paths import IN_NAME
from core.prompts import PromptPack, in_language, load_pack
from core.rubrics import Rubric, load_rubric
from core.settings import parse_yaml
from core.specs import load_spec
from core.tables import Cell, Table, to_console

_FLOORS = ("silent", "parrot", "lecture")
_SAME = {"name", "reviewed", "colon", "comma", "semicolon", "stop", "space", "counts", "reason"}  # may well be as in English
_MARKER = re.compile(r"\[(?:BEGIN|END) [A-Z]+\]")


def language(
    what: Annotated[str, typer.Argument(metavar="new|check", help="Write the texts, or check them.")],
    code: Annotated[str, typer.Argument(metavar="CODE", help="The language's BCP 47 code: fr, pt-BR, zh-Hant.")],
    rubric: Annotated[str, typer.Option("--rubric", help="The rubric to translate."), IN_NAME] = "esc_eval",
    prompts: Annotated[str, typer.Option("--prompts", help="The prompt pack to translate."), IN_NAME] = "esc_eval",
) -> None:
    """Write the texts of a language for translation, or list what is missing.

    new writes languages/CODE in the current folder, in English where there are no texts yet; existing files stay as they are.
    Runs in the same folder use these texts. check lists missing texts, which English replaces, and texts that are still
    English, and refuses files that a run could not use. Example:

    python -m data_prep language new fr
    """
    action = choice("action", what, ("new", "check"))
    check_language("CODE", code)
    pack = load_pack(prompts)
    wanted = _wanted(code, load_rubric(rubric), pack)
    if action == "check":
        _check(code, wanted, pack)
        return
    for name, english in wanted.items():
        if not (path := Path(FOLDER, code, name)).exists():
            own = file_of(code, name)
            write_text(path, read_text(own, "text") if own else english)
            console.print(f"wrote {path}", soft_wrap=True)
    console.print(f"next: translate them, then python -m data_prep language check {code}", soft_wrap=True)


def _check(code: str, wanted: Mapping[str, str], pack: PromptPack) -> None:
    if not any(folder.is_dir() for folder in folders(code)):
        raise UserError(f"no folder {FOLDER}/{code} here, and none in this package: esc-data language new {code} makes it")
    rows, faults = list[tuple[Cell, ...]](), list[str]()
    for name, content in wanted.items():
        path = pack.file(code, Path(name).name) if name.startswith("prompts/") else file_of(code, name)
        own, english = _texts(read_text(path, "text"), path) if path else {}, _texts(content, Path(name))
        faults += [f"{path}: {fault}" for fault in _faults(own, english)]
        missing = [key or "the file" for key in english if key not in own]
        untranslated = [key or "the file" for key, text in english.items() if own.get(key) == text and key not in _SAME]
        listed = ("all" if len(keys) == len(english) else ", ".join(keys) for keys in (missing, untranslated))
        rows.append((name, len(english), *listed))
    if faults:
        raise UserError("; ".join(faults))
    wording, columns = words(code), ("file", "texts", "missing", "as in English")
    notes = (f"{wording.name} ({wording.own_name}): {wording.reviewed}.",)
    to_console(Table("language", f"Texts in {wording.name}", columns, tuple(rows), notes), console)


def _wanted(code: str, rules: Rubric, pack: PromptPack) -> dict[str, str]:
    """File in the language's folder → its content in English."""
    fields = ("label", "facet", "about", "levels")
    dimensions = {
        key: {field: text[ENGLISH] for field in fields if (text := getattr(dimension, field)) and ENGLISH in text}
        for key, dimension in rules.dimensions.items()
    }
    floors = {name: floor.text for name in _FLOORS if (floor := load_spec(name).floor)}
    _, _, wording = read_text(CONFIGS / FOLDER / ENGLISH / "words.yaml", "words").partition("\n")  # which is about English
    for word, text in {"name": name_of(code), "own_name": name_of(code), "reviewed": NOT_REVIEWED}.items():
        wording = re.sub(rf"(?m)^{word}: [^#\n]*(?=  #)", f"{word}: {text}", wording)
    content = {
        f"rubrics/{rules.name}.yaml": {} if code in rules.languages else dimensions,
        "floors.yaml": {name: text[ENGLISH] for name, text in floors.items() if code not in text},
    }
    files = {name: yaml.safe_dump(value, allow_unicode=True, sort_keys=False) for name, value in content.items() if value}
    templates = sorted(path for path in (pack.folder / ENGLISH).glob("*") if "paper" not in path.name)
    prompts = {f"prompts/{pack.folder.name}/{p.name}": in_language(read_text(p, "prompt"), code) for p in templates}
    return {"words.yaml": wording} | files | prompts


def _texts(text: str, path: Path) -> dict[str, str]:
    return _leaves(parse_yaml(text, path)) if path.suffix == ".yaml" else {"": text.strip()}


def _leaves(value: Any, above: str = "") -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {above: str(value).strip()}
    parts = [_leaves(part, f"{above}.{key}" if above else str(key)) for key, part in value.items()]
    return {path: text for part in parts for path, text in part.items()}


def _faults(own: Mapping[str, str], english: Mapping[str, str]) -> Iterator[str]:
    """What a run could not use: unknown fields, and templates that are broken or lack parts of the English ones."""
    yield from (f"{key or 'the file'}: unknown: {near(key, english)}" for key in own if key not in english)
    if "" in own and "" in english:
        try:
            parts, needed = (_parts(text) for text in (own[""], english[""]))
        except TemplateSyntaxError as error:
            yield f"line {error.lineno}: {error.message}"
            return
        yield from (f"{part} is missing: keep it as in English" for part in sorted(needed - parts))


def _parts(template: str) -> set[str]:
    """The variables of a template, the templates that it includes, and the marks around data."""
    parsed = Environment().parse(template)
    included = (f'{{% include "{name}" %}}' for name in meta.find_referenced_templates(parsed))
    return {f"{{{{ {name} }}}}" for name in meta.find_undeclared_variables(parsed)} | {*included, *_MARKER.findall(template)}
