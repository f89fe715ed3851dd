"""Existing dialogues as `Dialogue` records, from the forms in which other programs keep them: chat (`messages`), OpenAI's
stored completions (with the reply in `choices`), ShareGPT (`conversations`), tables of turns, and logs of Inspect.

The usual names (`user`, `human`, `client` …) tell the sides apart. Further fields of a dialogue are kept as text in `fields`.
"""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from core.errors import UserError, need_modules
from core.files import check_unique, digest, first_object, load_json, problems_in, read_bytes, read_json, read_jsonl
from core.grouping import group_by
from core.names import in_order, one_spelling
from core.people_tables import TABLES, Faults
from core.records import Dialogue, Language, Role
from core.rows import CorpusRow, dict_rows, unseen

_SIDES = {
    "seeker": "seeker user human client patient usr customer caller visitor help_seeker",
    "supporter": "supporter assistant gpt bot ai model chatgpt bing bard counselor counsellor therapist sys listener helper "
    "agent",
    "": "system developer tool function observation function_call",  # neither side
}
_LISTS = ("messages", "conversations", "conversation", "dialog", "dialogue", "contents", "chat_messages", "turns")
_HALVES = (("prompt", "completion"), ("input", "output"))  # two lists that make a dialogue
# Possible names of a column or field, in any case and with spaces; the first one with a value counts.
_IDS = (
    *("dialogue_id", "dialogue", "conversation_id", "conversation", "session_id", "session"),
    *("thread_id", "chat_id", "id", "uuid"),
)
_ROLES = ("role", "speaker", "from", "author", "sender", "type")
_TEXTS = ("text", "content", "value", "utterance", "parts", "message", "data")
_ORDERS = ("order", "turn", "turn_index", "timestamp", "time", "created_at")
_OTHER_DATES = re.compile(r"(?i)(?<!\d)\d{1,2}[./-]\d{1,2}[./-]\d|\d\s*[ap]\.?m\b|[a-z]{3}\S*\s+\d{1,2},? \d{4}")
_KEPT = set(Dialogue.model_fields) - {"turns", "usage", "fields"}
_OURS = {name for name, field in Dialogue.model_fields.items() if field.is_required()}
_NAMES = {re.sub("_", "", name): name for name in (*_LISTS, *_IDS, *_ROLES, *_TEXTS, *_ORDERS, "language", "model")}


@dataclass
class Given:
    """Dialogues of a file, and notes for the user on how they were read."""

    dialogues: list[Dialogue]
    notes: list[str]


def read_given(path: Path, language: str | None = None, roles: Mapping[str, Role] | None = None) -> Given:
    """The dialogues of a file in any of these forms, or in our own; see `dialogues_of`."""
    keys = first_object(path, "dialogues").keys()
    if path.suffix.lower() in (".json", ".eval", *TABLES) or not keys >= _OURS:
        with Faults() as faults:
            rows = _rows(path, faults)
            with faults.noting():
                given = dialogues_of(rows, language, roles, path.stem)
    else:
        given = Given(read_jsonl(path, Dialogue, "dialogues"), [])
        check_unique(path, (dialogue.id for dialogue in given.dialogues), "dialogue ids")
    one_spelling(given.dialogues, path)
    return given


def dialogues_of(
    values: Iterable[Any], language: str | None = None, roles: Mapping[str, Role] | None = None, source: str = "given"
) -> Given:
    """Dialogues from dicts in any of these forms, or from (place, dict). `language` is that of dialogues that name none,
    `roles` maps further names of speakers to sides. A dialogue without an id gets a hash of its turns. Raises `UserError` with
    every fault."""
    sides = {name: side for side, names in _SIDES.items() for name in names.split()}
    sides |= {name.casefold(): side for name, side in (roles or {}).items()}
    given, repeats, left_out, places = Given([], []), Counter[str](), Counter[str](), dict[str, str]()
    with Faults() as faults:
        for number, value in enumerate(values):
            where, record = value if isinstance(value, tuple) else (f"dialogue {number}", value)
            record = {"messages": record} if isinstance(record, list) else record
            try:
                if isinstance(record, Mapping) and not record.keys() >= _OURS:
                    record = {"source": source} | _record(record, where, sides, language, left_out)
                    repeats[content := digest(record["turns"])] += 1  # two dialogues may have the same turns
                    record = {"id": digest([content, repeats[content]], 16)} | record
                given.dialogues.append(dialogue := Dialogue.model_validate(record))
                if (first := places.setdefault(dialogue.id, where)) != where:
                    faults.found.append(f"{where}: id: {dialogue.id} is also that of {first}")
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
    """The fields of a dialogue's record. Raises `UserError` with all faults, one per line."""
    value = _named(value)
    lists = (value[key] for key in _LISTS if isinstance(value.get(key), list))
    halves = ([*value[a], *value[b]] for a, b in _HALVES if isinstance(value.get(a), list) and isinstance(value.get(b), list))
    messages: list[Any] = next(lists, []) or next(halves, [])
    choices = value.get("choices")
    replies = [_first(choice, ("message",)) for choice in choices[:1]] if isinstance(choices, list) else []
    turns, problems = list[dict[str, str]](), list[str]()
    for number, message in enumerate([*messages, *replies]):
        place = f"{where}: message {number}"
        if isinstance(message, CorpusRow):
            place, message = message.where, message.value
        message = _named(message)
        role, content = " ".join(str(_first(message, _ROLES) or "").split())[:60].rstrip(" :"), _first(message, _TEXTS)
        parts = [_first(part, ("text", "content")) or part for part in (content if isinstance(content, list) else [content])]
        text = "\n".join(part for part in parts if isinstance(part, str)).strip()  # without images and tool calls
        text = "" if unseen(text) else text
        if (side := sides.get(role.casefold())) is None:
            unknown = f"{role!r} is unknown: name its side: --set roles.{role}=seeker (or supporter)"
            problems.append(f"{place}: role: {unknown if role else 'missing, under all of ' + ', '.join(_ROLES)}")
        elif side and text:
            turns.append({"role": side, "text": text})
        else:
            left_out[f"{role} without text" if side else role] += 1
    if not turns and not problems:
        nothing = "no text by either side" if messages else "expected a list of messages, each with a role and a text"
        problems.append(f"{where}: {' or '.join(_LISTS[:2])}: {nothing}")
    record = {key: entry for key, entry in value.items() if key not in _LISTS or isinstance(entry, str)}
    for part in (value.get("metadata"), value.get("fields")):
        record = {**part, **record} if isinstance(part, Mapping) else record
    spoken = record.get("language") or record.get("lang") or language
    if not spoken:
        problems.append(f"{where}: language: missing: give --language LANGUAGE (in Python: languages=[…]), or a field language")
    if problems:
        raise UserError("\n".join(problems))
    about = {*_KEPT, *_IDS, "lang", "model", "object", "metadata", "fields"}
    others = {key: record[key] for key in sorted(record.keys() - about)}
    fields = {key: str(value) for key, value in _leaves(others) if isinstance(value, str | int | float) and value != ""}
    names = {"id": _first(record, _IDS), "supporter": _first(record, ("supporter", "model"))}
    kept = {key: record[key] for key in _KEPT if record.get(key)}
    kept |= {key: str(name) for key, name in names.items() if name is not None}
    return kept | {"language": spoken, "turns": turns, "fields": fields}


def _named(value: Any) -> Any:
    """An object with the names of fields that we look for as we spell them: `Conversation ID` and `conversationId`, too."""
    if not isinstance(value, Mapping):
        return value
    named = {_NAMES.get(re.sub(r"[\W_]", "", str(key)).casefold(), key): entry for key, entry in value.items()}
    exact = {key: entry for key, entry in value.items() if key in _NAMES.values()}
    return {key: _listed(entry) if key in _LISTS else entry for key, entry in (named | exact).items()}


def _listed(cell: Any) -> Any:
    """The list that a text holds as JSON, as in a table with a dialogue per row; any other value unchanged."""
    try:
        return load_json(cell) if isinstance(cell, str) and cell.startswith("[") else cell
    except ValueError:
        return cell


def _leaves(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields of an object and of those in it, as `user.country`."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{key}", leaf) for key, leaf in _leaves(value))
        else:
            yield name, value


def _first(value: Any, names: Sequence[str]) -> Any:
    """The first of these fields of an object that has a value; None without one, and for anything but an object."""
    found = (value[name] for name in names if value.get(name) not in (None, "")) if isinstance(value, Mapping) else iter(())
    return next(found, None)


def _rows(path: Path, faults: Faults) -> list[tuple[str, Any]]:
    if path.suffix.lower() in (".json", ".eval"):
        value = _content(path)
        if isinstance(value, dict):  # a log of Inspect, a list of OpenAI's, or one dialogue
            value = [*_samples(value)] if "samples" in value else value.get("data", [value])
        rows = [CorpusRow(f"{path}: entry {n}", entry) for n, entry in enumerate(value if isinstance(value, list) else [value])]
        if not rows:
            raise UserError(f"{path}: no dialogues")
    else:
        rows = dict_rows(path, faults)
    rows = [CorpusRow(row.where, _named(row.value)) for row in rows]
    first = rows[0].value if rows and isinstance(rows[0].value, dict) else {}
    of_dialogues = any(isinstance(first.get(key), list) for key in _LISTS)
    turn_like = first.keys() & {*_ROLES} and first.keys() & {*_TEXTS}
    of_turns = not of_dialogues and (path.suffix.lower() in TABLES or turn_like)
    return [*_grouped(rows, faults)] if of_turns else [(row.where, row.value) for row in rows]


def _grouped(rows: Sequence[CorpusRow], faults: Faults) -> Iterator[tuple[str, Any]]:
    """The dialogues of a table of turns, each with the place of its first row; columns that vary within one are left out."""
    for name, turns in group_by(rows, lambda row: str(_first(row.value, _IDS) or "")).items():
        if not name:
            faults.found += [f"{turn.where}: dialogue: missing, under all of {', '.join(_IDS)}" for turn in turns]
            continue
        with faults.noting():
            turns.sort(key=_when)
        filled = [{key: cell for key, cell in turn.value.items() if cell not in ("", None)} for turn in turns]
        cells = {key: cell for turn in reversed(filled) for key, cell in turn.items()}
        shared = {key: cell for key, cell in cells.items() if all(turn.get(key, cell) == cell for turn in filled)}
        yield turns[0].where, {**shared, "id": name, "messages": turns}


def _when(turn: CorpusRow) -> list[str]:
    """The sort key of a turn: a number, a time of ISO 8601, or a label with numbers. Raises `UserError` for other dates."""
    text = str(_first(turn.value, _ORDERS) or "").strip()
    try:
        moment = datetime.fromisoformat(text if "-" in text else "")
    except ValueError:
        if _OTHER_DATES.search(text):
            how = "write it as 2026-05-31 13:05, or number the turns in a column turn"
            raise UserError(f"{turn.where}: {text!r} does not say when: {how}") from None
        return in_order(text)
    return in_order((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC).isoformat(" "))


def _samples(log: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for sample in log["samples"] if isinstance(log["samples"], list) else ():
        name, epoch, metadata = (_first(sample, (key,)) for key in ("id", "epoch", "metadata"))
        dialogue = {"id": name if epoch in (None, 1) else f"{name}-{epoch}", "model": _first(log.get("eval"), ("model",))}
        yield dialogue | {"messages": _first(sample, ("messages",))} | (metadata if isinstance(metadata, dict) else {})


def _content(path: Path) -> Any:
    """The value in a JSON file, or in Inspect's zipped log. Inspect writes NaN where nothing was scored."""
    raw, loose = read_bytes(path, "dialogues"), json.JSONDecoder().decode
    try:
        if path.suffix.lower() == ".json":
            return loose(raw.decode()) if b"NaN" in raw else read_json(path, "dialogues")
        with zipfile.ZipFile(io.BytesIO(raw)) as log:
            names = log.namelist()
            header = "header.json" if "header.json" in names else "_journal/start.json"  # of an evaluation that did not end
            samples = [loose(log.read(name).decode()) for name in sorted(names) if name.startswith("samples/")]
            return {**loose(log.read(header).decode()), "samples": samples}
    except (zipfile.BadZipFile, KeyError, NotImplementedError, RecursionError, ValueError) as error:
        raise UserError(f"{path}: not a readable log: {error}") from None


# --- personal data ----------------------------------------------------------------------------------------------------------

if TYPE_CHECKING:
    from presidio_analyzer import AnalyzerEngine

SURE = 0.3  # presidio's scores below this are digits that may be anything


def without_personal_data(given: Given) -> Given:
    """The dialogues with personal data replaced in their turns; the notes count it and say what can be missed. Raises
    `UserError` where presidio is not installed."""
    need_modules("presidio_analyzer", "presidio_anonymizer", purpose="anonymise")
    from presidio_anonymizer import AnonymizerEngine

    anonymizer, counts, limits, dialogues = AnonymizerEngine(), Counter[str](), dict[str, None](), list[Dialogue]()
    for dialogue in given.dialogues:
        analyzer, blind_spots = _analyzer(language := dialogue.language.partition("-")[0])
        limits |= dict.fromkeys(blind_spots)
        turns = []
        for turn in dialogue.turns:
            spans = [  # "yesterday" is no personal data
                span
                for span in analyzer.analyze(turn.text, language)
                if span.entity_type != "DATE_TIME" or re.search(r"\d", turn.text[span.start : span.end])
            ]
            replaced = anonymizer.anonymize(turn.text, spans)
            counts.update(item.entity_type for item in replaced.items)
            turns.append(turn.model_copy(update={"text": replaced.text}))
        dialogues.append(dialogue.model_copy(update={"turns": tuple(turns)}))
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common()) or "nothing found"
    return Given(dialogues, [*given.notes, f"personal data replaced: {kinds}; unusual forms are missed", *limits])


@cache
def _analyzer(language: Language) -> tuple[AnalyzerEngine, list[str]]:
    os.environ.setdefault("TLDEXTRACT_PUBLIC_SUFFIX_LIST_URLS", "")  # else a list is downloaded
    import spacy
    from presidio_analyzer import AnalyzerEngine, Pattern, PatternRecognizer, RecognizerRegistry
    from presidio_analyzer.nlp_engine import NlpEngineProvider, NoOpNlpEngine

    registry = RecognizerRegistry(supported_languages=[language])
    registry.load_predefined_recognizers(languages=[language])
    # Phone and identity numbers of countries that presidio does not know.
    number = Pattern("seven digits or more", r"(?<!\d)\d(?:[ ./()-]{0,2}\d){6,}(?!\d)", SURE)
    registry.add_recognizer(PatternRecognizer("NUMBER", patterns=[number], supported_language=language))
    model = next((name for name in sorted(spacy.util.get_installed_models()) if name.startswith(f"{language}_")), "")
    models = [{"lang_code": language, "model_name": model}]
    if model:
        engine = NlpEngineProvider(nlp_configuration={"nlp_engine_name": "spacy", "models": models}).create_engine()
    else:
        registry.remove_recognizer("SpacyRecognizer")
        engine = NoOpNlpEngine(models)
    missed = f"{language}: names of people, places and organisations stay: no spaCy model of the language is installed"
    analyzer = AnalyzerEngine(registry, engine, supported_languages=[language], default_score_threshold=SURE)
    return analyzer, [] if model else [missed]
