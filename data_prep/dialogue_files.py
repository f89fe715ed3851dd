"""Dialogues that exist, as `Dialogue` records, from the forms in which other programs keep them: chat (`messages`), OpenAI's
stored completions (with the reply in `choices`), ShareGPT (`conversations`), tables of turns, logs of Inspect.

Sides are told by the usual names (`user`, `human`, `client` …). Further fields of a dialogue are kept as text in its `fields`.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from core.errors import UserError
from core.files import check_unique, digest, first_object, problems_in, read_bytes, read_json, read_jsonl
from core.grouping import group_by
from core.names import in_order, one_spelling
from core.people_tables import Faults
from core.records import Dialogue, Role
from core.rows import CorpusRow, dict_rows

_SIDES = {
    "seeker": "seeker user human client patient usr customer caller visitor help_seeker",
    "supporter": "supporter assistant gpt bot ai model chatgpt counselor counsellor therapist sys listener helper agent",
    "": "system developer tool function observation function_call",  # neither side says it
}
_TABLES, _LISTS = (".csv", ".tsv", ".xlsx"), ("messages", "conversations")
# What a column or field may be called; the first one with a value counts.
_IDS = ("dialogue_id", "dialogue", "conversation_id", "conversation", "session_id", "session", "thread_id", "id")
_ROLES, _TEXTS = ("role", "speaker", "from", "author"), ("text", "content", "value", "utterance")
_ORDERS = ("order", "turn", "turn_index", "timestamp", "time")
_KEPT = set(Dialogue.model_fields) - {"turns", "usage", "fields"}


@dataclass
class Given:
    """Dialogues of a file, and what a user should know of the reading, as sentences."""

    dialogues: list[Dialogue] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_given(path: Path, language: str | None = None, roles: Mapping[str, Role] | None = None) -> Given:
    """The dialogues of a file in any of these forms, or in our own; see `dialogues_of`."""
    keys = first_object(path, "dialogues").keys()
    if path.suffix.lower() in (".json", ".eval", *_TABLES) or keys & {*_LISTS, *_ROLES}:
        with Faults() as faults:
            rows = _rows(path, faults)
            with faults.noting():
                given = dialogues_of(rows, language, roles, path.stem)
    else:
        given = Given(read_jsonl(path, Dialogue, "dialogues"))
    check_unique(path, (dialogue.id for dialogue in given.dialogues), "dialogue ids")
    one_spelling(given.dialogues, path)
    return given


def dialogues_of(
    values: Iterable[Any], language: str | None = None, roles: Mapping[str, Role] | None = None, source: str = "given"
) -> Given:
    """Dialogues from what these forms hold of each: dicts, or (place, dict) so that errors have the place.

    `language` is for dialogues that do not say theirs, `roles` maps further names of speakers to sides, `source` is the corpus.
    Ids are kept; without one, a dialogue is called by a hash of what is said. Raises `UserError` with every fault.
    """
    sides = {name: side for side, names in _SIDES.items() for name in names.split()}
    sides |= {name.casefold(): side for name, side in (roles or {}).items()}
    given, times, left_out = Given(), Counter[str](), Counter[str]()
    with Faults() as faults:
        for number, value in enumerate(values):
            where, told = value if isinstance(value, tuple) else (f"dialogue {number}", value)
            try:
                if isinstance(told, Mapping) and "turns" not in told:
                    told = {"source": source} | _record(told, where, sides, language, left_out)
                    times[said := digest(told["turns"])] += 1  # two people may say the same
                    told = {"id": digest([said, times[said]], 16)} | told
                given.dialogues.append(Dialogue.model_validate(told))
            except UserError as error:
                faults.found += str(error).splitlines()
            except ValidationError as error:
                faults.found += [f"{where}: {problem}" for problem in problems_in(error)]
    named = ", ".join(f"{count:,} {role}" for role, count in left_out.most_common())
    given.notes += [f"messages left out of {len(given.dialogues):,} dialogues, by role: {named}"] if named else []
    return given


def _record(
    value: Mapping[str, Any], where: str, sides: Mapping[str, str], language: str | None, left_out: Counter[str]
) -> dict[str, Any]:
    """What a value holds of a record. Raises `UserError` with all faults, one a line."""
    listed: list[Any] = next((value[key] for key in _LISTS if isinstance(value.get(key), list)), [])
    choices = value.get("choices")
    replies = [_first(choice, ("message",)) for choice in choices[:1]] if isinstance(choices, list) else []
    turns, problems = list[dict[str, str]](), list[str]()
    for number, one in enumerate([*listed, *replies]):
        place, message = (one.where, one.value) if isinstance(one, CorpusRow) else (f"{where}: message {number}", one)
        role, text = " ".join(str(_first(message, _ROLES) or "").split())[:60], _first(message, _TEXTS)
        parts = [_first(part, ("text",)) or part for part in (text if isinstance(text, list) else [text])]
        said = "\n".join(part for part in parts if isinstance(part, str)).strip()  # none of an image or a tool's call
        if (side := sides.get(role.casefold())) is None:
            how = f"{role!r} is not known: say whose it is: --set roles.{role}=seeker (or supporter)"
            problems.append(f"{place}: role: {how if role else 'missing, under all of ' + ', '.join(_ROLES)}")
        elif side and said:
            turns.append({"role": side, "text": said})
        else:
            left_out[f"{role} without text" if side else role] += 1
    told = dict(value)
    for part in (value.get("metadata"), value.get("fields")):
        told = {**part, **told} if isinstance(part, Mapping) else told
    spoken = told.get("language") or told.get("lang") or language
    problems += [] if spoken else [f"{where}: language: not said: give --language LANGUAGE, or a field language"]
    if problems or not turns:
        raise UserError("\n".join(problems) or f"{where}: {' or '.join(_LISTS)}: nothing that the two sides say")
    others = sorted(told.keys() - {*_KEPT, *_IDS, "lang", "model", "object"})
    fields = {key: str(told[key]) for key in others if isinstance(told[key], str | int | float) and told[key] != ""}
    named = {"id": _first(told, _IDS), "supporter": _first(told, ("supporter", "model"))}
    kept = {key: told[key] for key in _KEPT if told.get(key)} | {key: str(one) for key, one in named.items() if one is not None}
    return kept | {"language": spoken, "turns": turns, "fields": fields}


def _first(value: Any, names: Sequence[str]) -> Any:
    """The first of these fields that has a value; None where there is none, and of what is no object."""
    values = (value.get(name) for name in names) if isinstance(value, Mapping) else ()
    return next((one for one in values if one not in (None, "")), None)


def _rows(path: Path, faults: Faults) -> list[tuple[str, Any]]:
    """What a file holds of each dialogue, with its place."""
    if path.suffix.lower() in (".json", ".eval"):
        value = _content(path)
        if isinstance(value, dict):  # a log of Inspect, a list of OpenAI's, or one dialogue
            value = [*_samples(value)] if "samples" in value else value.get("data", [value])
        rows = [CorpusRow(f"{path}: entry {n}", one) for n, one in enumerate(value if isinstance(value, list) else [value])]
        if not rows:
            raise UserError(f"{path}: no dialogues")
    else:
        rows = dict_rows(path, faults)
    first = rows[0].value if rows and isinstance(rows[0].value, dict) else {}
    of_turns = path.suffix.lower() in _TABLES or (first.keys() & {*_ROLES} and not first.keys() & {*_LISTS})
    return [*_grouped(rows, faults)] if of_turns else [(row.where, row.value) for row in rows]


def _grouped(rows: Sequence[CorpusRow], faults: Faults) -> Iterator[tuple[str, Any]]:
    """The dialogues of a table of turns, each at its first row. Columns that differ within a dialogue are left out."""
    for name, turns in group_by(rows, lambda row: str(_first(row.value, _IDS) or "")).items():
        if not name:
            faults.found += [f"{turn.where}: dialogue: missing, under all of {', '.join(_IDS)}" for turn in turns]
            continue
        turns.sort(key=lambda turn: in_order(str(_first(turn.value, _ORDERS) or "")))
        shared = {key: one for key, one in turns[0].value.items() if all(turn.value.get(key) == one for turn in turns)}
        yield turns[0].where, {**shared, "id": name, "messages": turns}


def _samples(log: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The samples of a log of Inspect; every epoch of one is a dialogue."""
    for one in log["samples"] if isinstance(log["samples"], list) else ():
        name, epoch, about = (_first(one, (key,)) for key in ("id", "epoch", "metadata"))
        told = {"id": name if epoch in (None, 1) else f"{name}-{epoch}", "model": _first(log.get("eval"), ("model",))}
        yield told | {"messages": _first(one, ("messages",))} | (about if isinstance(about, dict) else {})


def _content(path: Path) -> Any:
    """What a JSON file holds, or a log of Inspect in a zip. Inspect writes NaN where nothing was scored."""
    raw, loose = read_bytes(path, "dialogues"), json.JSONDecoder().decode
    try:
        if path.suffix.lower() == ".json":
            return loose(raw.decode()) if b"NaN" in raw else read_json(path, "dialogues")
        with zipfile.ZipFile(io.BytesIO(raw)) as log:
            samples = sorted(name for name in log.namelist() if name.startswith("samples/"))
            return {**loose(log.read("header.json").decode()), "samples": [loose(log.read(name).decode()) for name in samples]}
    except (zipfile.BadZipFile, KeyError, NotImplementedError, RecursionError, ValueError) as error:
        raise UserError(f"{path}: not a readable log: {error}") from None
