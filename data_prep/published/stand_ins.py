"""Runs a published script with stand-ins for everything outside it, and records what it would send to its models.

Runs as its own program (`python -I stand_ins.py`) that imports nothing of this project: a job as JSON on stdin, the calls as
JSON on stdout. The script is untrusted. It gets a few builtins, files that exist only here, and stand-ins for torch,
transformers, peft and the modules of `_modules`; it may import nothing else, and ways out of the sandbox (names, attributes and
imports that begin with an underscore, frames, and match statements, which read attributes, too) are refused before it runs.
The operating system lets the process write no file.
"""

import argparse
import ast
import builtins
import io
import json
import posixpath
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, cycle
from types import SimpleNamespace
from typing import Any

SECONDS, BYTES = 60, 2**30
_DUNDER = {"__name__", "__call__", "__init__"}
_FRAMES = ("gi_", "cr_", "ag_", "f_", "tb_", "co_")  # attributes of generators, frames and tracebacks
_PLAIN = "abs all any bool dict enumerate float hasattr int isinstance len list max min object range reversed round set sorted"
_PLAIN += " str sum tuple zip Exception IndexError KeyError SystemExit ValueError __build_class__"


class RefusedCode(Exception):
    """The script uses something that it is not given."""


class Thing:
    """Stands for tensors, devices and loaded weights: it accepts every operation, and nothing happens."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return self

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self

    def __getitem__(self, place: Any) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        yield self

    def __len__(self) -> int:
        return 1


class Calls:
    """The calls to models, in order; the answers are the given replies, over and over."""

    def __init__(self, replies: Sequence[str]) -> None:
        self.made: list[dict[str, Any]] = []
        self.shown: list[dict[str, str]] = []  # the messages of the last chat template
        self.replies = cycle(replies)
        self.reply = ""

    def ask(self, model: str, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any], adapter: str = "") -> str:
        """Record a call and return its reply."""
        self.reply = next(self.replies)
        plain = {key: value for key, value in options.items() if isinstance(value, bool | int | float | str)}
        chat = [{"role": message["role"], "content": message["content"]} for message in messages]
        self.made.append({"model": model, "messages": chat, "options": plain, "adapter": adapter, "reply": self.reply})
        return self.reply


class Options(argparse.ArgumentParser):
    """A parser that reads no arguments from files (`fromfile_prefix_chars`)."""

    def _read_args_from_files(self, arg_strings: list[str]) -> list[str]:
        return arg_strings


def _models(calls: Calls) -> dict[str, Any]:
    class Tokenizer(Thing):
        def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> Any:
            calls.shown = [dict(message) for message in messages]
            return self

        def decode(self, *args: Any, **options: Any) -> str:
            return calls.reply

        def batch_decode(self, *args: Any, **options: Any) -> list[str]:
            return [calls.reply]

    class Model(Thing):
        adapter = ""

        def set_adapter(self, name: str) -> None:
            self.adapter = name

        def generate(self, *args: Any, **options: Any) -> Any:
            calls.ask(self.name, calls.shown, options)
            return self

        def chat(self, tokenizer: Any, query: str, *args: Any, history: Any = (), **options: Any) -> tuple[str, list[Any]]:
            texts = [text for pair in history for text in pair] + [query]
            messages = [
                {"role": role, "content": text} for role, text in zip(cycle(("user", "assistant")), texts, strict=False)
            ]
            reply = calls.ask(self.name, messages, options, self.adapter)
            return reply, [*history, (query, reply)]

    def loader(kind: type[Thing]) -> Any:
        def load(name: Any, *args: Any, **options: Any) -> Thing:
            return kind(name if isinstance(name, str) else name.name)

        return SimpleNamespace(from_pretrained=load)

    chat, tokenizer = loader(Model), loader(Tokenizer)
    transformers = SimpleNamespace(AutoTokenizer=tokenizer, AutoModel=chat, AutoModelForCausalLM=chat)
    peft = SimpleNamespace(PeftModel=chat, PeftMixedModel=chat, PeftModelForCausalLM=chat)
    return {"transformers": transformers, "peft": peft, "torch": Thing()}


def _modules(calls: Calls, files: Mapping[str, str]) -> dict[str, Any]:
    path = SimpleNamespace(exists=lambda place: False, isdir=lambda place: True, join=posixpath.join)
    functions = {"makedirs": lambda *a, **k: None, "mkdir": lambda *a, **k: None}
    system = SimpleNamespace(listdir=lambda place=".": sorted(files), path=path, environ={}, **functions)
    read = SimpleNamespace(load=json.load, loads=json.loads, dump=json.dump, dumps=json.dumps)
    day = SimpleNamespace(today=lambda: "2000-01-01", now=lambda: "2000-01-01")
    dates = SimpleNamespace(date=day, datetime=day)
    options = SimpleNamespace(ArgumentParser=Options)
    bar = SimpleNamespace(tqdm=lambda items, *a, **k: items)
    modules = {"os": system, "json": read, "datetime": dates, "argparse": options, "tqdm": bar}
    return modules | _models(calls)


def _check(tree: ast.AST) -> None:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.alias(name=name):
                pass
            case ast.Match():
                raise RefusedCode(f"line {node.lineno}: match is not allowed")
            case _:
                continue
        framed = isinstance(node, ast.Attribute) and name.startswith(_FRAMES)
        hidden = any(part.startswith("_") for part in name.split("."))
        if framed or (hidden and name not in (*_DUNDER, "_")):
            raise RefusedCode(f"line {node.lineno}: {name} is not allowed")


def run(source: str, argv: Sequence[str], files: Mapping[str, str], replies: Sequence[str]) -> dict[str, Any]:
    """The calls that a script makes, and the files that it writes. `files` are found by name in any folder."""
    tree = ast.parse(source)
    _check(tree)
    calls, written = Calls(replies), dict[str, io.StringIO]()
    modules = _modules(calls, files)
    number = count()

    def import_(name: str, *args: Any) -> Any:
        if name not in modules:
            raise RefusedCode(f"it imports {name}")
        return modules[name]

    def open_(place: str, mode: str = "r", *args: Any, **options: Any) -> io.StringIO:
        name = posixpath.basename(str(place))
        if "w" in mode:
            buffer = written[f"{next(number)}/{name}"] = io.StringIO()
            buffer.close = lambda: None  # type: ignore[method-assign]  # its text is read afterwards
            return buffer
        if name not in files:
            raise RefusedCode(f"it reads {name}")
        return io.StringIO(files[name])

    given: dict[str, Any] = {name: getattr(builtins, name) for name in _PLAIN.split()}
    given |= {"print": lambda *a, **k: None, "open": open_, "type": lambda value: value.__class__, "__import__": import_}
    sys.argv = list(argv)
    exec(compile(tree, "<script>", "exec"), {"__builtins__": given, "__name__": "__main__"})
    return {"calls": calls.made, "written": {name: buffer.getvalue() for name, buffer in written.items()}}


def main(work: Callable[..., dict[str, Any]] = run) -> None:
    """Read a job, do it, write the outcome: calls and files, or why there are none."""
    job = json.load(sys.stdin)
    for kind, limit in ((resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_AS, BYTES)):
        resource.setrlimit(kind, (limit, limit))
    try:
        outcome = work(**job)
    except SystemExit:
        outcome = {"problem": "it ends at once"}
    except Exception as error:
        outcome = {"problem": f"{type(error).__name__}: {error}" if not isinstance(error, RefusedCode) else str(error)}
    json.dump(outcome, sys.stdout)


if __name__ == "__main__":
    main()
