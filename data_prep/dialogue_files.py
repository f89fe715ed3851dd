"""Dialogues that exist, as `Dialogue` records, from the forms in which other programs keep them: chat (`messages`), OpenAI's
stored completions (with the reply in `choices`), ShareGPT (`conversations`), tables of turns, logs of Inspect.

Sides are told by the usual names (`user`, `human`, `client` …). Further fields of a dialogue are kept as text in its `fields`.
"""

from __future__ import annotations

import io
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, ConfigDict, Field, ValidationError

from core.errors import UserError
from core.files import check_unique, digest, first_object, load_json, problems_in, read_bytes, read_json, read_jsonl
from core.ledger import BuildStep
from core.names import in_order, one_spelling
from core.people_tables import Faults
from core.records import Dialogue, Role
from core.rows import CorpusReader, RowModel, read_table

_SIDES = {
    "seeker": "seeker user human client patient usr customer caller visitor help_seeker",
    "supporter": "supporter assistant gpt bot ai model chatgpt counselor counsellor therapist sys listener helper agent",
    "": "system developer tool function observation function_call",  # neither side says it
}
_TABLES, _LISTS = (".csv", ".tsv", ".xlsx"), ("messages", "conversations")
_IDS = ("dialogue_id", "dialogue", "conversation_id", "conversation", "session_id", "session", "thread_id", "id")
_ROLES = ("role", "speaker", "from", "author")
_KEPT = set(Dialogue.model_fields) - {"turns", "usage", "fields"}


class _Said(RowModel):
    """A message of a chat, or a row of a table of turns."""

    model_config = ConfigDict(extra="allow", coerce_numbers_to_str=True)
    dialogue: str | None = Field(default=None, validation_alias=AliasChoices(*_IDS))
    role: str | None = Field(default=None, validation_alias=AliasChoices(*_ROLES))
    text: str | list[Any] | None = Field(default=None, validation_alias=AliasChoices("text", "content", "value", "utterance"))
    order: str | None = Field(default=None, validation_alias=AliasChoices("order", "turn", "turn_index", "timestamp", "time"))
    place: str = ""

    @property
    def said(self) -> str:
        """Its text, of several parts each on a line; a part that is an image or a tool's call has none."""
        parts = self.text if isinstance(self.text, list) else [self.text or ""]
        texts = (part.get("text") if isinstance(part, Mapping) else part for part in parts)
        return "\n".join(text for text in texts if isinstance(text, str)).strip()


@dataclass
class Given:
    """Dialogues of a file, and how many messages of which roles were left out of them."""

    dialogues: list[Dialogue] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def notes(self) -> list[str]:
        """What a user should know of the reading."""
        roles = ", ".join(f"{count:,} {role}" for role, count in self.left_out.most_common())
        return [f"messages left out of {len(self.dialogues):,} dialogues, by role: {roles}"] if roles else []


def read_given(path: Path, language: str | None = None, roles: Mapping[str, Role] | None = None) -> Given:
    """The dialogues of a file in any of these forms, or in our own; see `dialogues_of`."""
    other = path.suffix.lower() in (".json", ".eval", *_TABLES)
    own = not other and not set(_LISTS) & first_object(path, "dialogues").keys()
    given = Given(read_jsonl(path, Dialogue, "dialogues")) if own else dialogues_of(_values(path), language, roles, path.stem)
    if not given.dialogues:
        raise UserError(f"{path} holds no dialogue")
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
    given, times = Given(), Counter[str]()
    with Faults() as faults:
        for number, value in enumerate(values):
            where, told = value if isinstance(value, tuple) else (f"dialogue {number}", value)
            try:
                if isinstance(told, Mapping) and "turns" not in told:
                    told = {"language": language, "source": source} | _record(told, where, sides, given.left_out)
                    if not told["language"]:
                        raise UserError(f"{where}: language: not said: give --language LANGUAGE, or a field language")
                    said = digest(told["turns"])
                    times[said] += 1  # two people may say the same
                    told = {"id": digest([said, times[said]], 16)} | told
                given.dialogues.append(Dialogue.model_validate(told))
            except UserError as error:
                faults.found += str(error).splitlines()
            except ValidationError as error:
                faults.found += [f"{where}: {problem}" for problem in problems_in(error)]
    return given


def _record(value: Mapping[str, Any], where: str, sides: Mapping[str, str], left_out: Counter[str]) -> dict[str, Any]:
    """What a value holds of a record. Raises `UserError` with every message whose speaker is not known, and for no message."""
    listed: list[Any] = next((value[key] for key in _LISTS if isinstance(value.get(key), list)), [])
    replies = [choice.get("message") for choice in (value.get("choices") or [])[:1] if isinstance(choice, Mapping)]
    turns, problems = list[dict[str, str]](), list[str]()
    for number, one in enumerate([*listed, *replies]):
        message = _Said.model_validate(one if isinstance(one, Mapping | _Said) else {})
        role = message.role or ""
        if (side := sides.get(role.casefold())) is None:
            how = f"{role[:60]!r} is not known: say whose it is: --set roles.{role}=seeker (or supporter)"
            how = how if role else f"missing, under all of {', '.join(_ROLES)}"
            problems.append(f"{message.place or f'{where}: message {number}'}: role: {how}")
        elif side and message.said:
            turns.append({"role": side, "text": message.said})
        else:
            left_out[f"{role} without text" if side else role] += 1
    if problems or not turns:
        raise UserError("\n".join(problems) or f"{where}: {' or '.join(_LISTS)}: nothing that the two sides say")
    about = value.get("metadata")
    told = {**(about if isinstance(about, Mapping) else {}), **value}
    told |= {"supporter": told.get("supporter") or told.get("model"), "language": told.get("language") or told.get("lang")}
    kept = {key: told[key] for key in _KEPT if told.get(key)}
    name = next((str(told[key]) for key in _IDS if told.get(key) not in (None, "")), None)
    others = told.keys() - {*_KEPT, *_IDS, "lang", "model", "object"}
    fields = {key: str(told[key]) for key in sorted(others) if isinstance(told[key], str | int | float)}
    return kept | ({"id": name} if name else {}) | {"turns": turns, "fields": fields}


def _values(path: Path) -> Iterator[tuple[str, Any]]:
    """What a file holds of each dialogue, with its place."""
    suffix = path.suffix.lower()
    if suffix in _TABLES:
        yield from _of_table(path)
    elif suffix not in (".json", ".eval"):
        reader = CorpusReader(BuildStep(path.name), strict=True, tidy=False)
        yield from ((row.where, row.value) for row in reader.jsonl(path))
    else:
        value = _unzipped(path) if suffix == ".eval" else read_json(path, "dialogues")
        if isinstance(value, dict) and "samples" in value:  # a log of Inspect
            value = [_of_sample(sample, value) for sample in value["samples"] or ()]
        elif isinstance(value, dict):
            value = value.get("data", value)
        entries = value if isinstance(value, list) else [value]
        yield from ((f"{path}: entry {number}", entry) for number, entry in enumerate(entries))


def _of_sample(sample: Mapping[str, Any], log: Mapping[str, Any]) -> dict[str, Any]:
    """A sample of a log of Inspect; every epoch of one is a dialogue."""
    epoch, model = sample.get("epoch", 1), log.get("eval", {}).get("model")
    name = f"{sample.get('id')}-{epoch}" if epoch > 1 else sample.get("id")
    return {"id": name, "model": model, "messages": sample.get("messages"), **(sample.get("metadata") or {})}


def _unzipped(path: Path) -> dict[str, Any]:
    """A log of Inspect (.eval): what its header says, with its samples."""
    try:
        with zipfile.ZipFile(io.BytesIO(read_bytes(path, "log of Inspect"))) as log:
            names = sorted(name for name in log.namelist() if name.startswith("samples/"))
            return {**load_json(log.read("header.json")), "samples": [load_json(log.read(name)) for name in names]}
    except (zipfile.BadZipFile, KeyError, NotImplementedError, ValueError) as error:
        raise UserError(f"{path}: not a readable log of Inspect: {error}") from None


def _of_table(path: Path) -> Iterator[tuple[str, Any]]:
    """The dialogues of a table of turns, each at its first row. Columns that differ within a dialogue are left out."""
    rows: dict[str, list[_Said]] = {}

    def each(where: str, row: _Said) -> None:
        if row.dialogue is None:
            raise UserError(f"{where}: dialogue: missing, under all of {', '.join(_IDS)}")
        rows.setdefault(row.dialogue, []).append(row.model_copy(update={"place": where}))

    read_table(path, _Said, "turns of dialogues", each)
    for name, turns in rows.items():
        turns.sort(key=lambda turn: in_order(turn.order or ""))
        shared = [set((turn.model_extra or {}).items()) for turn in turns]
        yield turns[0].place, {**dict(set.intersection(*shared)), "id": name, "messages": turns}
