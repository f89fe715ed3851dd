"""Starting servers for model specs, and stopping them whatever happens: `with Servers(plan_servers(specs, log_dir)):` keeps
them up inside the block. `serve.guard` stops them even if this process is killed. Neither torch nor vllm is imported."""

from __future__ import annotations

import atexit
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from types import TracebackType

from rich.text import Text

from core.endpoints import KEY_VARIABLES
from core.errors import UserError
from core.files import CONFIGS
from core.settings import load_yaml
from core.tables import Screen
from serve.command import MODULE, ServerPlan, check_installed
from serve.guard import GRACE
from serve.limits import START_TIMEOUT

TAIL = 15  # log lines shown if a server dies
LINE_AFTER, LINE_EVERY = 5.0, 10.0  # without a terminal: seconds before the first line of progress, and between lines


@dataclass
class _Running:
    """A started server: its plan, its guard (the parent process), and the place in the log file where this start begins."""

    plan: ServerPlan
    port: int
    guard: subprocess.Popen[bytes]
    log_start: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def log_lines(self) -> list[str]:
        with self.plan.log.open("rb") as handle:
            handle.seek(self.log_start)
            return [line.rstrip() for line in handle.read().decode("utf-8", "replace").splitlines() if line.strip()]


class Servers:
    """The servers of some plans, up while the `with` block runs.

    `endpoints` maps every spec name and served name to its base URL, `seconds` every plan's name to its start-up time, `caches`
    to its cache's size. Entering raises `UserError`, and leaves nothing running, if vLLM is missing, a port is taken, or a
    server dies or does not answer within `timeout` seconds. If all of a server's models are in `spare`, the others continue
    without it, and `failed` has the reason for each.
    """

    def __init__(self, plans: Sequence[ServerPlan], timeout: float = START_TIMEOUT, spare: Collection[str] = ()) -> None:
        self.plans = list(plans)
        self.timeout = timeout
        self.spare = spare
        self.failed: dict[str, str] = {}
        self.endpoints: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.caches: dict[str, dict[str, float]] = {}
        self._running: list[_Running] = []
        self._console = Screen(stderr=True)

    def __enter__(self) -> Servers:
        if any(MODULE in plan.argv for plan in self.plans):
            models = dict.fromkeys(spec.name for plan in self.plans for spec in plan.specs)
            check_installed(models, router=any(plan.workers for plan in self.plans))
        for plan in self.plans:
            if plan.port is not None and port_taken(plan.port):
                raise UserError(f"port {plan.port} is taken ({plan.name}): choose another, or leave it out for a free port")
        for note in (note for plan in self.plans for note in plan.notes):
            self._console.print(f"# {note}", soft_wrap=True)
        atexit.register(self.stop)
        try:
            servers, routers = ([plan for plan in self.plans if bool(plan.workers) is kind] for kind in (False, True))
            together = [plan for plan in servers if not plan.shares_gpu]
            for batch in (together, *([plan] for plan in servers if plan.shares_gpu), routers):
                self._wait([self._start(plan) for plan in batch if not self.failed.keys() & {s.name for s in plan.specs}])
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def end(self, plans: Sequence[ServerPlan]) -> None:
        """Stop the servers of some plans and wait until they have ended."""
        names = {plan.name for plan in plans}
        self._end([server for server in self._running if server.plan.name in names])
        self.plans = [plan for plan in self.plans if plan.name not in names]
        up = {server.url for server in self._running}
        self.endpoints = {name: url for name, url in self.endpoints.items() if url in up}

    def _end(self, ending: Sequence[_Running]) -> None:
        for server in ending:
            if server.guard.stdin is not None:
                server.guard.stdin.close()  # so that all guards end their servers concurrently
        for server in ending:
            try:
                server.guard.wait(GRACE + 5)
            except subprocess.TimeoutExpired:
                server.guard.kill()
        self._running = [server for server in self._running if server not in ending]

    def stop(self) -> None:
        """Stop all servers and wait until they have ended. A second call does nothing."""
        self._end(self._running)
        atexit.unregister(self.stop)

    def poll(self) -> dict[str, str]:
        """The servers that have ended since they came up: plan name → a paragraph about the end."""
        return {s.plan.name: _obituary(s, "ended") for s in self._running if s.guard.poll() is not None}

    def alive(self) -> bool:
        """Whether every model is still served, for a router by at least one replica. A cheap check without requests."""
        ended = set(self.poll())
        plans = [server.plan for server in self._running if not server.plan.replica]
        return not any(plan.name in ended or (plan.workers and ended.issuperset(plan.workers)) for plan in plans)

    def _start(self, plan: ServerPlan) -> _Running:
        taken = {server.port for server in self._running}
        port = plan.port or free_port(taken)
        workers = [server.port for server in self._running if server.plan.name in plan.workers]
        spare = free_port({*taken, port}) if plan.workers else 0
        command = plan.command(port, workers, spare)
        plan.log.parent.mkdir(parents=True, exist_ok=True)
        with plan.log.open("ab") as log:  # appended, so that the log of a server that died survives a new start
            log.write(f"$ {plan.shell(port, workers, spare)}\n".encode())
            log.flush()
            start = log.tell()
            # In its own session, so that Ctrl-C in a terminal reaches only this process, which then stops the servers.
            guard = subprocess.Popen(
                [sys.executable, "-m", "serve.guard", "--", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**without_secrets(os.environ, KEY_VARIABLES, plan.hub), **plan.env},
                start_new_session=True,
            )
        server = _Running(plan, port, guard, start)
        self._running.append(server)
        self.endpoints.update(dict.fromkeys((n for n in plan.names if n not in self.endpoints), server.url))
        return server

    def _wait(self, waiting: list[_Running]) -> None:
        """Wait until every server answers. A spinner (without a terminal, a line now and then) shows one that is starting."""
        began = time.monotonic()
        next_line = LINE_AFTER
        with self._console.status("starting …") as status:
            while waiting:
                seconds = time.monotonic() - began
                for server in list(waiting):
                    if server.guard.poll() is not None:
                        self._give_up(server, "ended while starting")
                    elif _healthy(server.port):
                        self.seconds[server.plan.name] = seconds
                        waiting.remove(server)
                        if cache := cache_of("\n".join(server.log_lines()), server.plan):
                            self.caches[server.plan.name] = cache
                            self._console.print(f"# {server.plan.name}: {told(cache)}", soft_wrap=True)
                    elif seconds > self.timeout:
                        self._give_up(server, f"did not answer within {self.timeout:.0f} s (start_timeout)")
                waiting = [server for server in waiting if server in self._running]
                if waiting:
                    if self._console.is_terminal or seconds >= next_line:
                        last = _plain((waiting[0].log_lines() or [""])[-1])
                        names = ", ".join(server.plan.name for server in waiting)
                        line = f"starting {names}: {seconds:.0f} s  {last}"[: self._console.width - 4]  # room for the spinner
                        if self._console.is_terminal:
                            status.update(Text(line))
                        else:
                            self._console.print(f"# {line}")
                            next_line += LINE_EVERY
                    time.sleep(0.25)

    def _give_up(self, server: _Running, what: str) -> None:
        """Stop a server that did not come up: raise `UserError`, or continue without its models if these are spare."""
        obituary = _obituary(server, what)
        models = {spec.name for spec in server.plan.specs}
        if not models or not models.issubset(self.spare):
            raise UserError(obituary)
        self.failed |= dict.fromkeys(sorted(models), obituary.split("\n")[0].removesuffix(", its end:"))
        self._console.print(f"{obituary}\n# the others continue", soft_wrap=True)
        self.end([plan for plan in self.plans if models & {spec.name for spec in plan.specs}])


def cache_of(log: str, plan: ServerPlan) -> dict[str, float]:
    """The cache's size in vLLM's log, or {}: `tokens`, `at_once` requests of `context` tokens, `planned_tokens` if known."""
    sizes = re.findall(r"KV cache size: ([\d,]+) tokens", log)
    requests = re.findall(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x", log)
    if not sizes or not requests:
        return {}
    context, at_once = requests[-1]
    figures = {"tokens": int(sizes[-1].replace(",", "")), "context": int(context.replace(",", "")), "at_once": float(at_once)}
    return figures | ({"planned_tokens": plan.cache_tokens} if plan.cache_tokens else {})


def told(cache: Mapping[str, float]) -> str:
    """The result of `cache_of` as a sentence."""
    planned = f" (planned: {cache['planned_tokens']:,.0f})" if "planned_tokens" in cache else ""
    return f"cache of {cache['tokens']:,.0f} tokens{planned}, {cache['at_once']:g} requests of {cache['context']:,.0f}"


def free_port(promised: Set[int] = frozenset()) -> int:
    """A TCP port on 127.0.0.1 that is free at the moment and not promised to a server that is still starting."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in promised:
            return port


def port_taken(port: int) -> bool:
    """Whether a port of 127.0.0.1 is in use, apart from closing connections."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


# without a proxy, since the server is on this machine
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _healthy(port: int) -> bool:
    try:
        with _opener.open(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError):  # refused, reset, timed out, 5xx while starting, or not HTTP
        return False


def _plain(line: str) -> str:
    """A line of vLLM's log without process, level, time and source."""
    return re.sub(r"^(\(.*?pid=\d+\) )?([A-Z]+ \d\d-\d\d [\d:]+ (\[[^\]]*\] )?)?", "", line).strip()


def _obituary(server: _Running, what: str) -> str:
    """The end of a server: exit code, a hint or its error, its log file and the last lines of it."""
    lines = server.log_lines()
    code = server.guard.returncode
    problems = load_yaml(CONFIGS / "serve" / "start_problems.yaml", "errors of servers that cannot start")
    hint = next((entry["advice"] for entry in problems if any(re.search(entry["says"], line) for line in lines)), None)
    if hint is None:
        # vLLM ends with a general error; the one that names the cause comes before it.
        errors = [_plain(line) for line in lines if re.search(r"^\S*(Error|Exception): ", _plain(line))]
        hint = next((error for error in errors if "Engine core initialization failed" not in error), None)
    exit_code = "" if code is None else f" (exit code {code})"
    shown = "\n".join(_plain(line) for line in lines[-TAIL:]) or "(empty)"
    return f"server {server.plan.name} {what}{exit_code}{': ' + hint if hint else ''}; log {server.plan.log}, its end:\n{shown}"


HUB_VARIABLES = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"})
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:(?:\w*API)?KEYS?|TOKENS?|SECRETS?|PASSW(?:OR)?DS?|PASSPHRASE|PWD|CREDENTIALS?|AUTH|PAT|COOKIE|DSN)(?:_|$)"
    r"|(?:KEY|TOKEN|SECRET|PASSWORD)$",
    re.I,
)
_SECRET_VALUE = re.compile(r"(?:sk-|hf_|gh[opsu]_|github_pat_|glpat-|xox[abp]-|AKIA|AIza|Bearer )|.*-----BEGIN", re.S)
_SECRET_IN_ADDRESS = re.compile(r"://[^/@\s:]*:[^/@\s]+@")
_SWITCHES = frozenset({"", "0", "1", "true", "false", "yes", "no", "on", "off"})
_FOLDERS = frozenset({"PWD", "OLDPWD"})


def without_secrets(variables: Mapping[str, str], named: Iterable[str] = (), hub: bool = False) -> dict[str, str]:
    """The environment of a server, which runs code of many publishers: the variables without secrets, judged by their name, the
    form of their value, and `named` (variables with keys of endpoints). With `hub`, the hub's token and a proxy's password
    stay. A server that needs another secret has to be started by hand."""
    keys = set(named)

    def secret(name: str, value: str) -> bool:
        if name in keys:
            return True
        if name in _FOLDERS or value.lower() in _SWITCHES:
            return False
        return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.match(value) or _SECRET_IN_ADDRESS.search(value))

    needed = {name for name in variables if hub and (name in HUB_VARIABLES or name.lower().endswith("_proxy"))}
    return {name: value for name, value in variables.items() if name in needed or not secret(name, value)}
