"""A recipe's files of examples: JSONL, Parquet, a part of a `datasets` folder, or a data set on the hub."""

import random
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from core.errors import UserError
from core.files import check_unique, read_jsonl, validated
from core.records import Record
from core.rubrics import Rubric, load_rubric
from data_prep.role_play.examples import RoleExample
from data_prep.scores.rank_sft import RankExample
from serve.checkpoints.places import on_hub

E = TypeVar("E")
M = TypeVar("M", bound=Record)


def hub_dataset(path: Path) -> tuple[str, str | None] | None:
    """The data set on the hub and its split (or None) that OWNER/NAME or OWNER/NAME/SPLIT means; None for a local file."""
    name, split = "/".join(path.parts[:2]), path.parts[2:]
    if path.exists() or path.suffix in (".jsonl", ".json", ".parquet") or len(split) > 1 or not on_hub(name):
        return None
    return name, split[0] if split else None


@lru_cache
def _of_hub(name: str, split: str | None) -> Any:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError
    from httpx import HTTPError

    try:
        return load_dataset(name, split=split)
    except (OSError, ValueError, RuntimeError, DatasetsError, HTTPError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{name}: neither a local file nor an available data set on the hub: {reason}") from None


def beside(path: Path, name: str) -> Path:
    """The file of that name beside a file of examples, in the hub's repository, or above the parts of a `datasets` folder."""
    if dataset := hub_dataset(path):
        from huggingface_hub import hf_hub_download

        with suppress(OSError):  # no such file, or no connection
            return Path(hf_hub_download(dataset[0], name, repo_type="dataset"))
    above = path.parent.parent / name
    return above if path.is_dir() and above.is_file() else path.parent / name


def read_examples(path: Path, kind: type[M], what: str) -> list[M]:
    """The examples in a JSONL or Parquet file, a folder that `datasets` saved, or a data set on the hub. Raises `UserError`."""
    dataset = hub_dataset(path)
    if not dataset and not path.is_dir() and path.suffix != ".parquet":
        return read_jsonl(path, kind, what)
    import pyarrow
    from datasets import DatasetDict, load_from_disk
    from pyarrow import parquet

    try:
        table = _of_hub(*dataset) if dataset else load_from_disk(str(path)) if path.is_dir() else parquet.read_table(path)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: no {what} that `datasets` or Parquet can read: {reason}") from None
    if isinstance(table, DatasetDict):
        raise UserError(f"{path}: it has the parts {', '.join(table)}: name one, as {path / next(iter(table), 'train')}")
    examples = []
    for number, row in enumerate(table.to_pylist() if isinstance(table, pyarrow.Table) else table.to_list(), start=1):
        for name, value in row.items():  # a column of objects has every key in every row
            row[name] = {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
        examples.append(validated(kind, row, f"{path}: row {number}"))
    if not examples:
        raise UserError(f"{what} is empty: {path}")
    return examples


def read_role(path: Path, limit: int = 0, seed: int = 0) -> list[RoleExample]:
    """Role-play examples in a file (`limit` > 0: that many, drawn by the seed, in file order)."""
    examples = read_examples(path, RoleExample, "role-play examples")
    check_unique(path, (example.id for example in examples), "example ids")
    for number, example in enumerate(examples, start=1):
        roles = [message["role"] for message in example.messages]
        if roles != ["system", *["user", "assistant"] * (len(roles) // 2)] or len(roles) < 3:
            expected = "system, then user and assistant in turn, ending with assistant"
            where = f"{path}: example {number} ({example.id})"
            raise UserError(f"{where}: messages: {expected}, are expected; found {', '.join(roles[:8])}")
        # A tokenizer joins the marker's line end and a space after it to one token, which would carry loss but is in no prompt.
        messages = [m | {"content": m["content"].lstrip()} if m["role"] == "assistant" else m for m in example.messages]
        examples[number - 1] = example.model_copy(update={"messages": tuple(messages)})
    return draw(examples, limit, seed)


def read_rank(path: Path, dimension: str = "", language: str = "", limit: int = 0, seed: int = 0) -> list[RankExample]:
    """Ranker examples in a file, perhaps of one dimension or language (`limit` > 0: those of so many drawn dialogues)."""
    examples = read_examples(path, RankExample, "ranker examples")
    check_unique(path, (example.id for example in examples), "example ids")
    kept = [
        example
        for example in examples
        if (not language or example.language == language) and (not dimension or list(example.labels) == [dimension])
    ]
    if not kept:
        present = ", ".join(sorted({f"{e.language} {e.dimension or 'all dimensions in one'}" for e in examples}))
        wanted = f"dimension {dimension or 'any'}, language {language or 'any'}"
        raise UserError(f"{path}: no example for {wanted}; the file has {present}")
    chosen = set(draw(list(dict.fromkeys(example.dialogue_id for example in kept)), limit, seed))
    return [example for example in kept if example.dialogue_id in chosen]


def draw(examples: list[E], limit: int, seed: int) -> list[E]:
    """`limit` random examples in their order; all of them for 0."""
    if not limit or limit >= len(examples):
        return examples
    chosen = set(random.Random(seed).sample(range(len(examples)), limit))
    return [example for index, example in enumerate(examples) if index in chosen]


def rubric_beside(path: Path) -> Rubric:
    """The rubric of `rank-sft`, from rubric.yaml beside the examples: the scale is never guessed from the labels."""
    rubric = beside(path, "rubric.yaml")
    if not rubric.is_file():
        raise UserError(f"{rubric} is missing: `python -m data_prep rank-sft` writes it beside {path.name}; copy both")
    return load_rubric(str(rubric))
