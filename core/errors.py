"""Errors that a user can act on. Everything else is a bug and keeps its traceback."""

import atexit
import difflib
import gc
import importlib.util
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

DEBUG = "ESC_EVAL_DEBUG"  # shows the tracebacks of libraries
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class UserError(Exception):
    """Wrong input or environment: printed as one clear line, exit code 2, no traceback."""


@contextmanager
def at(place: object) -> Iterator[None]:
    """Prefix the block's `UserError` with the place where it arose."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{place}: {error}") from None


# Characters that steer a terminal, reverse text or are not allowed in XML: control characters (other than tab and line end),
# overrides and isolates of direction, noncharacters.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


def clean(text: str, sign: str | Callable[[re.Match[str]], str] = "\ufffd") -> str:
    """Text for people, with characters that could steer a console, table or page replaced by U+FFFD (or `sign`)."""
    return text if text.isprintable() else _STEERING.sub(sign, text)


def say(text: object, err: bool = False) -> None:
    """Print a line, `clean`, on standard output or on standard error."""
    print(clean(str(text)), file=sys.stderr if err else sys.stdout, flush=err)


def printable(text: str) -> str:
    """Text that is safe to print: escape codes, direction marks and the like are written as `\\x1b`; line ends stay."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def near(name: str, choices: Iterable[str]) -> str:
    """A `did you mean` tail for an unknown name: the nearest choices, or else the first 12."""
    names = sorted(choices)
    # Among thousands of ids a near match says little, and comparing a table of wrong ids with all of them takes minutes.
    if close := difflib.get_close_matches(name, names, n=3, cutoff=0.5) if len(names) <= 1000 else []:
        return f"did you mean {', '.join(close)}?"
    if not names:
        return "none are known"
    return "known: " + ", ".join(names[:12]) + (" …" if len(names) > 12 else "")


def need_modules(*modules: str, purpose: str = "this command") -> None:
    """Raise a `UserError` that names every missing module and what it is needed for."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        extras = _extras({_PACKAGES.get(module, module).replace("_", "-") for module in missing})
        setup = "" if _NOT_SET_UP.intersection(extras) else "run `make setup`, or "
        where = " on a GPU node" if "gpu" in extras else ""
        install = f"pip install 'esc-eval[{','.join(extras)}]'{where}" if extras else "install it"
        raise UserError(f"{purpose} needs {', '.join(missing)}, not installed here: {setup}{install}")


# Modules whose name differs from their package's.
_PACKAGES = {"sklearn": "scikit-learn", "rouge_score": "rouge-score", "lm_eval": "lm-eval", "google": "protobuf"}
_TESTS = {"peers", "dev"}  # extras of this project's own tests
_NOT_SET_UP = {"anonymise", "kernels", "peers", "qlora", "ray", "trackio"}  # extras that `make setup` leaves out


def _extras(packages: set[str]) -> list[str]:
    """The extras of esc-eval that install these packages; none if esc-eval itself is not installed."""
    import importlib.metadata  # slow: a program's help should not wait for it

    extras: dict[str, list[str]] = {}
    with suppress(importlib.metadata.PackageNotFoundError):
        for requirement in importlib.metadata.requires("esc-eval") or []:
            if match := re.match(r"([A-Za-z0-9._-]+).*extra == ['\"](\w+)", requirement):
                extras.setdefault(match[1].lower().replace("_", "-"), []).append(match[2])
    return sorted({min(extras[package], key=_TESTS.__contains__) for package in packages & extras.keys()})


class _Pipe(io.FileIO):
    """A stream whose reader may go away (`esc-eval … | head`): further output is discarded, and the program continues."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return memoryview(data).nbytes


def _unbroken(stream: Any) -> Any:
    """A standard stream that outlives its reader and writes characters that the locale lacks as `\\u2013`. It is line-buffered
    even into a file: whoever starts a server in the background waits for its address."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.reconfigure(errors="backslashreplace")
    if stream not in (sys.__stdout__, sys.__stderr__):  # captured, as by pytest
        return stream
    stream.flush()
    buffer = io.BufferedWriter(_Pipe(stream.fileno(), "wb", closefd=False))
    return io.TextIOWrapper(buffer, stream.encoding, "backslashreplace", line_buffering=True)


def run_cli(app: Callable[[], object]) -> None:
    """Run a typer app; `UserError` is one line and exit code 2, Ctrl-C 130. SIGTERM (143) closes files, stops servers."""
    sys.stdout, sys.stderr = _unbroken(sys.stdout), _unbroken(sys.stderr)
    if threading.current_thread() is threading.main_thread():  # else it runs inside another program
        # A verb's imports make 200,000 objects, few of them in cycles: searching them for cycles, often and at the end of the
        # process, takes a fifth of a verb's start.
        gc.set_threshold(50_000, 20, 100)
        atexit.register(gc.freeze)
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(EXIT_TERMINATED))
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        try:
            app()
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package and package not in sys.stdlib_module_names and not os.environ.get(DEBUG):
                need_modules(package)
            raise
    except UserError as error:
        say(f"error: {printable(str(error))}", err=True)
        sys.exit(EXIT_BAD_INPUT)
    except Exception as error:
        from core.third_party import explained

        text = None if os.environ.get(DEBUG) else explained(error)
        if text is None:
            raise
        say(f"error: {printable(text)}. {DEBUG}=1 shows the traceback", err=True)
        sys.exit(EXIT_FAILED)
    except (KeyboardInterrupt, SystemExit) as end:
        # typer turns Ctrl-C into a silent SystemExit
        code = end.code if isinstance(end, SystemExit) else EXIT_INTERRUPTED
        if code in (EXIT_INTERRUPTED, EXIT_TERMINATED):
            say("interrupted; run the same command again to resume", err=True)
        sys.exit(code)
