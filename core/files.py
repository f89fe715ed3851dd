"""Reading files into pydantic models, with errors that name file, line and field, and writing them atomically."""

import codecs
import hashlib
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import orjson
from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from core.errors import UserError, at
from core.masking import problem_of
from core.names import Spellings

CONFIGS = Path(__file__).resolve().parent.parent / "configs"

M = TypeVar("M", bound=BaseModel)


def cache_dir() -> Path:
    """The folder of converted and merged checkpoints: $ESC_EVAL_CACHE, $XDG_CACHE_HOME/esc-eval, or ~/.cache/esc-eval."""
    if chosen := os.environ.get("ESC_EVAL_CACHE"):
        return Path(chosen).expanduser().absolute()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).absolute() / "esc-eval"
    try:
        return Path.home().absolute() / ".cache" / "esc-eval"
    except RuntimeError:  # no HOME, and a user id that the system does not know
        raise UserError("no home folder for the cache: set ESC_EVAL_CACHE to a folder that can be written to") from None


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes, cached in the process by inode, size and modification time: 30 GB take half a minute."""
    stat = path.stat()
    return _sha256(path.absolute(), stat.st_ino, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4096)
def _sha256(path: Path, inode: int, size: int, changed: int) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def digest(value: Any, length: int = 64) -> str:
    """The first `length` hex digits of the sha256 of a value, as JSON with sorted keys and no white space."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:length]


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, which it becomes if the block succeeds. Raises `UserError` if it cannot be written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; an earlier file there is unchanged") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file, which the kernel releases however the process ends. `what` names the thing locked. Raises `UserError`
    while another process holds it, and for a path that cannot be written or locked."""
    lock = FileLock(path, blocking=False, fallback_to_soft=False)  # a soft lock would outlive a killed process
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        while not path.exists():  # the previous holder removed it
            lock.release()
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
    except Timeout:
        raise UserError(f"{what} is in use by another process") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise UserError(f"{what} cannot be used: {getattr(error, 'strerror', None) or error}") from None
    try:
        yield
    finally:
        lock.release()


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON, atomically."""
    write_bytes(path, orjson.dumps(value, option=orjson.OPT_INDENT_2) + b"\n")


def write_json_of(path: Path, value: Mapping[str, Any], records: Mapping[str, Iterable[BaseModel]]) -> None:
    """Write an object as `write_json` does, with lists of records as its last fields, a record per line."""
    with atomic_path(path) as temporary, temporary.open("wb") as handle:
        handle.write(orjson.dumps(value, option=orjson.OPT_INDENT_2).removesuffix(b"\n}") if value else b"{")
        for position, (name, items) in enumerate(records.items(), start=len(value)):
            handle.write((b",\n  " if position else b"\n  ") + orjson.dumps(name) + b": [")
            empty = True
            for record in items:
                handle.write((b"\n    " if empty else b",\n    ") + _line(record))
                empty = False
            handle.write(b"]" if empty else b"\n  ]")
        handle.write(b"\n}\n")


def write_jsonl(path: Path, records: Iterable[BaseModel]) -> int:
    """Write one record per line, atomically; returns how many."""
    return write_lines(path, map(_line, records))


def _line(record: BaseModel) -> bytes:
    return record.model_dump_json().encode()


def holds(path: Path, records: Iterable[BaseModel]) -> bool:
    """Whether a file has exactly the bytes that `write_jsonl` writes for these records; it is read line by line."""
    if not path.exists():
        return False
    with _opened(path, "records") as handle:
        return all(line == expected for line, expected in zip_longest(handle, (_line(record) + b"\n" for record in records)))


def write_lines(path: Path, lines: Iterable[bytes]) -> int:
    """Write lines, atomically; returns how many."""
    count = 0
    with atomic_path(path) as temporary, temporary.open("wb") as handle:
        for line in lines:
            handle.write(line + b"\n")
            count += 1
    return count


def read_bytes(path: Path, what: str) -> bytes:
    """A file's bytes. Raises `UserError` for a file that is missing or unreadable; `what` names its kind."""
    with _opened(path, what) as handle:
        return handle.read()


ENCODING = "ESC_EVAL_ENCODING"  # declares the encoding of files that are not UTF-8


def decoded(raw: bytes) -> str:
    """The text of a file, without a byte-order mark: UTF-8, UTF-16 with a mark, or the encoding in $ESC_EVAL_ENCODING. Raises
    `UserError` for other bytes, with a sample in likely encodings."""
    marked = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    start, what = 0, "NUL bytes"
    if marked or b"\0" not in raw[:4]:
        try:
            return raw.decode("utf-16" if marked else "utf-8-sig")
        except UnicodeDecodeError as error:
            start = max(raw.rfind(b"\n", 0, error.start) + 1, error.start - 16)
            what = f"{error.reason} at byte {error.start}"
    guesses = ["gb18030", "cp1252"]
    if b"\0" in raw:
        start, guesses = 0, ["utf-16-le" if raw[1::2].count(0) > raw[::2].count(0) else "utf-16-be"]
    if encoding := os.environ.get(ENCODING):
        try:
            return raw.decode(encoding).removeprefix("\ufeff")
        except (LookupError, UnicodeDecodeError) as error:
            raise UserError(f"neither UTF-8 ({what}) nor the encoding that {ENCODING} names: {error}") from None
    shown = [f"{name} {raw[start : start + 200].decode(name, 'replace').splitlines()[0].strip()[:40]!r}" for name in guesses]
    remedy = f"set the environment variable {ENCODING}, as in {ENCODING}={guesses[0]}, or save the file as UTF-8"
    raise UserError(f"not UTF-8 ({what}); is it, as {' or as '.join(shown)}? Then {remedy}")


def read_text(path: Path, what: str) -> str:
    """A file's text; see `read_bytes` and `decoded`."""
    raw = read_bytes(path, what)
    with at(path):
        return decoded(raw)


def json_line(line: bytes) -> Any:
    """The value of a line of a JSONL file. Raises `UserError` without file and line."""
    try:
        return load_json(line)
    except orjson.JSONDecodeError:  # decode it first, for the column, and since it may not be UTF-8
        text = decoded(line)
    try:
        return load_json(text)
    except orjson.JSONDecodeError as error:
        raise UserError(f"malformed JSON: {error.msg} (column {error.colno})") from None


def numbered_lines(path: Path, what: str) -> Iterator[tuple[int, bytes]]:
    """The lines of a text file that are not blank, with their numbers from 1. They are streamed, unless the file is UTF-16."""
    with _opened(path, what) as handle:
        head = handle.peek(4)[:4]
        wide = b"\0" in head or head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        with at(path):
            lines = io.BytesIO(decoded(handle.read()).encode()) if wide else handle
        yield from ((number, line) for number, line in enumerate(lines, start=1) if not line.isspace())


def _opened(path: Path, what: str) -> io.BufferedReader:
    try:
        opened = path.open("rb")
        if opened.peek(2)[:2] == b"\x1f\x8b":
            opened.close()
            raise UserError(f"{what} {path} is compressed: unpack it first (gunzip)")
        return opened
    except FileNotFoundError:
        raise UserError(f"{what} not found: {path}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise UserError(f"{what} cannot be read: {path}: {getattr(error, 'strerror', None) or error}") from None


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"(\s*:)?|[{}]')

DEEPEST = 254  # levels of nesting that orjson can write


def _refuse_doubled(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        raise ValueError


_KEYS = json.JSONDecoder(object_pairs_hook=_refuse_doubled, parse_int=float)  # int() limits the number of digits


def load_json(text: bytes | str) -> Any:
    """Parsed JSON; a byte-order mark is skipped. Raises `orjson.JSONDecodeError` (`msg`, `lineno`, `colno`) for malformed JSON,
    for a key that an object has twice (the later value would silently win), and for values nested too deeply to be written."""
    text = text.removeprefix("\ufeff") if isinstance(text, str) else text.removeprefix(codecs.BOM_UTF8)
    value = orjson.loads(text)
    try:
        if orjson.dumps(value) == (text.encode() if isinstance(text, str) else text).rstrip():
            return value  # no key is there twice; for other texts the standard library looks, which takes longer
    except TypeError:
        raise orjson.JSONDecodeError("nested too deeply", "", 0) from None
    doc = text if isinstance(text, str) else text.decode("utf-8")
    try:
        _KEYS.decode(doc)
    except ValueError:
        raise _doubled(doc) from None
    return value


def _doubled(doc: str) -> orjson.JSONDecodeError:
    """The error for the first key that an object has twice, at the place of the second."""
    objects: list[set[str]] = []
    for token in _TOKEN.finditer(doc):
        if token[0] == "{":
            objects.append(set())
        elif token[0] == "}":
            objects.pop()
        elif token[1]:
            key = orjson.loads(token[0].removesuffix(token[1]))
            if key in objects[-1]:
                return orjson.JSONDecodeError(f"the key {key[:60]!r} is given twice", doc, token.start())
            objects[-1].add(key)
    raise AssertionError("no key is there twice")


def read_json(path: Path, what: str) -> Any:
    """A JSON file's value, or a `UserError` with file and line."""
    try:
        return load_json(read_text(path, what))
    except orjson.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: malformed JSON: {error.msg}") from None


def first_object(path: Path, what: str) -> dict[str, Any]:
    """The object in the first line of a JSONL file, from which its format is recognised; {} if it is not an object."""
    try:
        value = json_line(next(numbered_lines(path, what), (1, b""))[1])
    except UserError:
        return {}
    return value if isinstance(value, dict) else {}


def read_object(path: Path, what: str) -> dict[str, Any]:
    """The object in a JSON file. Raises `UserError` for any other content."""
    value = read_json(path, what)
    if not isinstance(value, dict):
        raise UserError(f"{path}: not {what}: a JSON object is expected")
    return value


def explain(error: Exception) -> str:
    """The first problem of a pydantic error as `field: what is wrong`, and how many more there are; any other error's text."""
    first, *more = problems_in(error) if isinstance(error, ValidationError) else [str(error)]
    return first + (f" (and {len(more)} more)" if more else "")


_IN_WORDS = {
    "extra_forbidden": "unknown field",
    **dict.fromkeys(("model_type", "dict_type"), "expected fields, as in {name: value}"),
    **dict.fromkeys(("tuple_type", "list_type"), "expected a list, as in [a, b]"),
}


def problems_in(error: ValidationError) -> list[str]:
    """Every problem as `field: what is wrong`; missing fields are listed together."""
    problems: dict[str, list[str]] = {}  # what is wrong → fields (several only if they are missing)
    for number, problem in enumerate(error.errors(include_url=False, include_context=False)):
        kind, given = problem["type"], problem["input"]
        message = "is empty" if given == "" else _IN_WORDS.get(kind, problem["msg"])
        message = " ".join(message.removeprefix("Value error, ").replace(" after validation", "").split())
        if kind not in {"missing", "extra_forbidden"} and isinstance(given, str | int | float) and given != "":
            value = str(given)
            message += "" if "://" in value and problem_of(value) else f" (got {value[:60]!r})"  # never repeat a password
        parts = (str(part) for part in problem["loc"] if not str(part).startswith("function-"))  # pydantic's validators
        field = " ".join(".".join(parts).split())[:100] or "record"
        problems.setdefault(message if kind == "missing" else f"{message}\n{number}", []).append(field)
    return [f"{', '.join(dict.fromkeys(fields))}: {message.partition(chr(10))[0]}" for message, fields in problems.items()]


def validated(model: type[M], value: Any, where: object) -> M:
    """A value as a model. Raises `UserError` with the place and the field."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise UserError(f"{where}: {explain(error)}") from None


def read_jsonl(path: Path, model: type[M], what: str, allow_empty: bool = False) -> list[M]:
    """The records of a JSONL file. Raises `UserError` with file, line and field of an invalid line, or for an empty file."""
    return [record for _, record in read_placed(path, model, what, allow_empty)]


def read_placed(path: Path, model: type[M], what: str, allow_empty: bool = False) -> list[tuple[str, M]]:
    """Like `read_jsonl`, each record with its place (`file:line`)."""
    records = list(each_placed(path, model, what))
    if not records and not allow_empty:
        raise UserError(f"{what} is empty: {path}")
    return records


def each_placed(path: Path, model: type[M], what: str) -> Iterator[tuple[str, M]]:
    """Like `read_placed`, but streamed line by line."""
    name, spellings = str(path), Spellings()
    for number, line in numbered_lines(path, what):
        where = f"{name}:{number}"
        try:
            value = json_line(line)
        except UserError as error:  # `at` would enter a context for every line
            raise UserError(f"{where}: {error}") from None
        record = validated(model, value, where)
        spellings.of(record, where)
        yield where, record


def check_unique(path: Path | str, ids: Iterable[str], what: str) -> None:
    """Raise `UserError` that names the first duplicate ids."""
    if doubled := [name for name, count in Counter(ids).items() if count > 1]:
        raise UserError(f"{path}: duplicate {what}: {', '.join(doubled[:3])} ({len(doubled)} in all)")
