"""The engine of every command that asks models for a run folder: it answers from the store, and launches servers and asks only
for what is missing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console

from core.errors import UserError, near
from core.machine import Machine
from core.specs import ModelSpec
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.folder import Run
from serve.batch import Answers, Desk, Phase, answered
from serve.client import ChatClient
from serve.failures import Threshold
from serve.units import Needs

if TYPE_CHECKING:
    from serve.launch import Servers

J = TypeVar("J")
E = TypeVar("E")
R = TypeVar("R")


class Launched(ExitStack):
    """Servers that we started, which stay up until the `with` block ends; one runner uses them, or several in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.servers: list[Servers] = []

    @property
    def endpoints(self) -> dict[str, str]:
        """Base URLs by model name."""
        return {name: url for servers in self.servers for name, url in servers.endpoints.items()}


@dataclass
class Runner:
    """A command at work in a run folder. Use as a context manager. Models answer at the endpoints of the config and of their
    specs; for the others, servers are launched when first needed, and stay up while there is memory for all."""

    run: Run
    resolved: DialogueFramework
    console: Console
    shared: Launched | None = None
    """Servers shared with other runners, which outlast this one."""
    later: Sequence[DialogueFramework] = ()
    """The same run with the judges that are asked after this one."""

    def __post_init__(self) -> None:
        self._configured = dict(self.resolved.config.endpoints)
        self._launched = self.shared or Launched()
        self._told: set[str] = set()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.shared is None:
            self._launched.close()

    @property
    def endpoints(self) -> dict[str, str]:
        """Base URLs by model name: servers that we started, overridden by those in the config."""
        return self._launched.endpoints | self._configured

    def _launches(self, specs: Iterable[ModelSpec]) -> list[ModelSpec]:
        """The models that need a server of ours; of a model with two roles, the spec that leaves sampling to the checkpoint."""
        by_name = {s.name: s for s in sorted(specs, key=lambda s: s.sampling.temperature is None)}
        specs = [by_name[name] for name in dict.fromkeys(s.name for s in specs)]
        configured = self._configured.keys()
        return [s for s in specs if s.endpoint.base_url is None and configured.isdisjoint((s.name, s.served_name()))]

    def _phases(self, specs: Sequence[ModelSpec], needs: Needs) -> list[tuple[list[ModelSpec], Needs]]:
        """Phase by phase, the models that are up together and what they are asked then. Models served elsewhere are in all."""
        launched = self._launches(specs)
        if all(spec.name in self.endpoints for spec in launched):
            return [(list(specs), needs)]
        from serve.plan import learn_shapes, prepare

        learn_shapes(launched)
        parts = self.resolved.models.phases(launched, needs)
        if len(parts) > 1:
            prepare(launched)  # downloads or reports what is missing before the first server starts
        elsewhere = [spec for spec in specs if spec not in launched]
        return [([*part.specs, *elsewhere], part.needs) for part in parts]

    def up(self, specs: Sequence[ModelSpec], needs: Needs, alone: bool = False) -> Mapping[str, str]:
        """Launch the servers that are not up yet; returns the models whose server did not start, with the reason.

        If one is missing and the machine has GPUs, or the models are a phase (`alone`), all running servers are stopped and
        these models share the machine.
        """
        self._check_endpoints(specs)
        launches = self._launches(specs)
        missing = [spec for spec in launches if self.endpoints.keys().isdisjoint((spec.name, spec.served_name()))]
        if not missing:
            return {}
        from serve.checkpoints.places import commits  # slow to import, so only if a server is to be started
        from serve.launch import Servers
        from serve.plan import plan_servers

        with self.run.timed("servers") as timing:
            if alone or Machine.here().has_gpu:
                missing = launches
                for servers in self._launched.servers:
                    servers.end(servers.plans)
            plans = plan_servers(missing, self.run.logs, needs=needs)
            servers = self._launched.enter_context(
                Servers(plans, self.resolved.config.start_timeout, self.resolved.models.spare)
            )
            self._launched.servers.append(servers)
            timing["commits"] = self.run.same_commits(commits(missing))
            if caches := {**self.run.timing().get("servers", {}).get("caches", {}), **servers.caches}:
                timing["caches"] = caches
        return servers.failed

    def _check_endpoints(self, specs: Sequence[ModelSpec]) -> None:
        """Raise `UserError` for an endpoint of a model that this run does not have."""
        models = self.resolved.models
        names = {spec.name for spec in specs} | {models.model(name).name for name in models.names}
        if not names.issuperset(self._configured) and models.tested:
            # A shard may have an endpoint for a supporter that only other shards talk to.
            names |= {name for spec in models.supporters for name in (spec.name, spec.served_name())}
        for name in self._configured:
            if name not in names and not any(name.startswith(f"{model}.") for model in names):
                raise UserError(f"endpoint for {name!r}: no such model in this run: {near(name, names)}")

    def desk(
        self,
        stage: str,
        specs: Sequence[ModelSpec],
        jobs: Sequence[J],
        work: Callable[[ChatClient, J], Awaitable[R]],
        unit: str,
        result: Callable[[Answers[R]], E],
        needs: Callable[[], Needs] = dict,
        judging: str | None = None,
        **more: Any,
    ) -> Desk[J, R, E]:
        """The desk at which a stage asks these models (`serve.batch.answered`). `result` makes what that returns, `more` are
        further fields. Servers are started if the store lacks an answer, in phases if that is faster; `needs`: what each model
        is asked.

        Afterwards the stage's failed calls are written (those of the judge under the stage `judging`), and its seconds if it
        asked anything. Raises `UserError` if the run would grow but no call was answered.
        """
        check_names(specs)

        def servers() -> Generator[Phase, None, None]:
            if recording := self.resolved.models.recording:
                raise UserError(
                    f"replay: {recording}, lacks an answer that this run needs: its cards, models or prompts differ. "
                    "Leave replay out to ask the models; `make record` makes the bundled recording again"
                )
            self.run.budget.begin(specs, self.run.store.tokens())
            for spec in specs:
                spec.api_key()  # raises for a missing key before a server is started
            phases = self._phases(specs, needs() if self._launches(specs) else {})
            for number, (models, phase_needs) in enumerate(phases, start=1):
                failed = self.up(models, phase_needs, alone=len(phases) > 1)
                up = [spec for spec in models if spec.name not in failed]
                with self.run.timed(stage):
                    yield Phase(up, self.endpoints, failed, number, len(phases))

        def done(answers: Answers[R]) -> E:
            failures, cause = answers.client.failures, answers.client.threshold.cause
            if self.run.grows and (failures or cause) and not self.run.store.grown:
                raise UserError(f"nothing was answered, {self.run.folder} is as it was: {cause or failures[0].reason}")
            self.run.settle()
            for name in dict.fromkeys([stage, judging or stage]):
                calls = [call for call in failures if name == (judging or stage if call.role == "judge" else stage)]
                self.run.keep_failures(name, calls)
            return result(answers)

        return Desk(
            specs=specs,
            console=self.console,
            client=self._client,
            servers=servers,
            jobs=jobs,
            work=work,
            unit=unit,
            done=done,
            names=self._served_names,
            **{"title": stage, **more},
        )

    def judged(self, stage: str, jobs: Sequence[J], work: Callable[[ChatClient, J], Awaitable[R]], unit: str) -> Answers[R]:
        """The results of `work` on every job, which asks only the judge. Prints a line if the stage ended early."""
        judge = self.resolved.models.judge

        def result(answers: Answers[R]) -> Answers[R]:
            if cause := answers.client.threshold.cause:
                self.say(f"ended early: {cause}")
            return answers

        return answered(self.desk(stage, [judge], jobs, work, unit, result, title=judge.name))

    def _client(self, endpoints: Mapping[str, str], offline: bool, down: Mapping[str, str | None]) -> ChatClient:
        config = self.resolved.config
        limits: dict[str, Any] = {"timeout_s": config.call_timeout, "attempts": config.attempts}
        return ChatClient(
            self.run.store,
            endpoints,
            concurrency=config.concurrency,
            offline=offline,
            threshold=Threshold(config.fail_on_error),
            retry=self.run.retry,
            budget=self.run.budget,
            keep_messages=1024 * config.keep_messages_kb,
            down=down,
            launched={url for servers in self._launched.servers for url in servers.endpoints.values()},
            say=self.say,
            told=self._told,
            patience_s=config.patience,
            **{name: value for name, value in limits.items() if value is not None},
        )

    def _served_names(self, spec: ModelSpec) -> list[str]:
        dimensions = (None,) if spec.adapters is None else tuple(self.resolved.rubric.dimensions)
        return sorted({spec.served_name(language, d) for language in self.resolved.config.languages for d in dimensions})

    def say(self, text: str) -> None:
        """Print a line on the console, unwrapped."""
        self.console.print(text, soft_wrap=True)


def check_names(specs: Sequence[ModelSpec]) -> None:
    """Raise `UserError` for two models with the same name, which identifies them in records and stored answers."""
    by_name: dict[str, ModelSpec] = {}
    for spec in specs:
        other = by_name.setdefault(spec.name.casefold(), spec)
        for field in (name for name in type(spec).model_fields if name not in ("sampling", "about")):
            if getattr(other, field) != getattr(spec, field):
                raise UserError(f"two models are named {spec.name}, which differ in {field}: rename one in a spec file")
