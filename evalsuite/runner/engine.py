"""The engine of every command that asks models for a run folder: answer from its store, launch only what is missing, ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
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
R = TypeVar("R")


@dataclass
class Launched:
    """Servers of ours that are up until the `with` block ends: one runner's, or those of several runners after each other."""

    servers: list[Servers] = field(default_factory=list)
    exits: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *exc: object) -> None:
        self.exits.close()

    @property
    def endpoints(self) -> dict[str, str]:
        """Base URLs by model name."""
        return {name: url for servers in self.servers for name, url in servers.endpoints.items()}


@dataclass
class Runner:
    """A command at work in a run folder. Use as a context manager.

    Its models answer at the endpoints of the config and of their specs. Servers for the others are launched when they are first
    needed and stay up as long as there is memory for all, so that the stages share them.
    """

    run: Run
    resolved: DialogueFramework
    console: Console
    bounded: bool = False
    """Whether the config's limits on the tries of a call hold."""
    shared: Launched | None = None
    """Servers that other runners use, too, and that outlast this one."""
    later: Sequence[DialogueFramework] = ()
    """The same run with judges that are asked after this one."""

    def __post_init__(self) -> None:
        self._given = dict(self.resolved.config.endpoints)
        self._launched = self.shared or Launched()
        self._told: set[str] = set()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.shared is None:
            self._launched.exits.close()

    @property
    def endpoints(self) -> dict[str, str]:
        """Base URLs by model name: servers of ours, and what the config says, which wins."""
        return self._launched.endpoints | self._given

    def _launches(self, specs: Iterable[ModelSpec]) -> list[ModelSpec]:
        """The models that need a server of ours. One in two roles is served as the role wants it that leaves more to its
        checkpoint."""
        by_name = {s.name: s for s in sorted(specs, key=lambda s: s.sampling.temperature is None)}
        return [by_name[name] for name in dict.fromkeys(s.name for s in specs) if self._ours(by_name[name])]

    def _ours(self, spec: ModelSpec) -> bool:
        return self._given.keys().isdisjoint((spec.name, spec.served_name())) and spec.endpoint.base_url is None

    def _phases(self, specs: Sequence[ModelSpec], needs: Needs) -> list[tuple[list[ModelSpec], Needs]]:
        """Which of the models are up at the same time, those served elsewhere always, and what they are asked then."""
        launched = self._launches(specs)
        if all(spec.name in self.endpoints for spec in launched):
            return [(list(specs), needs)]
        from serve.plan import learn_shapes, prepare

        learn_shapes(launched)
        parts = self.resolved.models.phases(launched, needs)
        if len(parts) > 1:
            prepare(launched)  # what is missing is downloaded, or said, before the first server starts
        elsewhere = [spec for spec in specs if spec not in launched]
        return [([*part.specs, *elsewhere], part.needs) for part in parts]

    def up(self, specs: Sequence[ModelSpec], needs: Needs, alone: bool = False) -> Mapping[str, str]:
        """Launch what is not up yet; returns the models whose server did not start, and why.

        Where something is missing, GPUs are shared out anew, and so is a CPU among models that are to be up `alone`.
        """
        self._check_endpoints(specs)
        wanted = self._launches(specs)
        missing = [spec for spec in wanted if self.endpoints.keys().isdisjoint((spec.name, spec.served_name()))]
        if not missing:
            return {}
        from serve.checkpoints.places import commits  # what starts servers is loaded when one is to be started
        from serve.launch import Servers
        from serve.plan import plan_servers

        with self.run.timed("servers") as timing:
            if alone or Machine.here().has_gpu:
                missing = wanted
                for up in self._launched.servers:
                    up.end(up.plans)
            plans = plan_servers(missing, self.run.logs, needs=needs)
            spare = self.resolved.models.spare if self.bounded else ()
            servers = self._launched.exits.enter_context(Servers(plans, self.resolved.config.start_timeout, spare))
            self._launched.servers.append(servers)
            timing["commits"] = self.run.same_commits(commits(missing))
            if caches := {**self.run.timing().get("servers", {}).get("caches", {}), **servers.caches}:
                timing["caches"] = caches
        return servers.failed

    def _check_endpoints(self, specs: Sequence[ModelSpec]) -> None:
        """Raise `UserError` for an endpoint of a model that this run does not have."""
        models = self.resolved.models
        known = {spec.name for spec in specs} | {models.model(name).name for name in models.names}
        if not known.issuperset(self._given) and models.tested:
            # A shard may be given the endpoint of a supporter that only others of its shards speak to.
            known |= {name for spec in models.supporters for name in (spec.name, spec.served_name())}
        for name in self._given:
            if name not in known and not any(name.startswith(f"{model}.") for model in known):
                raise UserError(f"endpoint for {name!r}: no such model in this run: {near(name, known)}")

    def desk(
        self,
        stage: str,
        specs: Sequence[ModelSpec],
        needs: Callable[[], Needs] = dict,
        judging: str | None = None,
    ) -> Desk:
        """Where a stage asks these models (`serve.batch.answered`). Servers are started when the store lacks an answer,
        one after the other where that is faster; `needs`: what each model is asked.

        Afterwards the stage's failed calls are written (those of the judge as stage `judging`) and, where something was asked,
        its seconds. Raises `UserError` where the folder is to hold something new and no call was answered.
        """
        check_names(specs)

        def servers() -> Generator[Phase, None, None]:
            if recording := self.resolved.models.recording:
                raise UserError(
                    f"replay: {recording}, lacks an answer that this run needs: its cards, models or prompts were others. "
                    "Leave replay out to ask the models; `make record` records the bundled one anew"
                )
            self.run.budget.begin(specs, self.run.store.tokens())
            for spec in specs:
                spec.api_key()  # a key that is not there is said before a server is started
            parts = self._phases(specs, needs() if self._launches(specs) else {})
            for number, (part, asked) in enumerate(parts, start=1):
                failed = self.up(part, asked, alone=len(parts) > 1)
                up = [spec for spec in part if spec.name not in failed]
                with self.run.timed(stage):
                    yield Phase(up, self.endpoints, failed, number, len(parts))

        def done(answers: Answers[Any]) -> None:
            failures, cause = answers.client.failures, answers.client.threshold.cause
            if self.run.grows and (failures or cause) and not self.run.answered:
                held = f", with {stored:,} stored answers" if (stored := len(self.run.store)) else ""
                more = " more" if held else ""
                raise UserError(
                    f"nothing{more} was answered, {self.run.folder} is as it was{held}: {cause or failures[0].reason}"
                )
            self.run.settle()
            for name in dict.fromkeys([stage, judging or stage]):
                kept = [call for call in failures if name == (judging or stage if call.role == "judge" else stage)]
                self.run.keep_failures(name, kept)

        return Desk(specs, self.console, self._client, servers, self._served_names, done)

    def judged(self, stage: str, jobs: Sequence[J], work: Callable[[ChatClient, J], Awaitable[R]], unit: str) -> Answers[R]:
        """What `work` makes of every job, asking the judge alone. Says so when it ended early."""
        judge = self.resolved.models.judge
        answers = answered(self.desk(stage, [judge]), jobs, work, judge.name, unit)
        if cause := answers.client.threshold.cause:
            self.say(f"ended early: {cause}")
        return answers

    def _client(self, endpoints: Mapping[str, str], offline: bool, down: Mapping[str, str | None]) -> ChatClient:
        config = self.resolved.config
        limits: dict[str, Any] = {"timeout_s": config.call_timeout, "attempts": config.attempts, "patience_s": config.patience}
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
            **{name: value for name, value in limits.items() if self.bounded and value is not None},
        )

    def _served_names(self, spec: ModelSpec) -> list[str]:
        if spec.adapters is None:
            return [spec.served_name()]
        languages, dimensions = self.resolved.config.languages, self.resolved.rubric.dimensions
        return sorted({spec.served_name(language, dimension) for language in languages for dimension in dimensions})

    def say(self, text: str) -> None:
        """A line on the console, as it is."""
        self.console.print(text, soft_wrap=True)


def check_names(specs: Sequence[ModelSpec]) -> None:
    """Raise `UserError` for two models of one name: records, and answers in the store, are known by it."""
    known: dict[str, ModelSpec] = {}
    for spec in specs:
        other = known.setdefault(spec.name.casefold(), spec)
        if other.name != spec.name:
            raise UserError(f"two models are named {other.name} and {spec.name}, in two cases: write one name in one way")
        one, two = (model.model_dump(exclude={"sampling", "about"}) for model in (other, spec))
        if one != two:
            field = next(name for name in one if one[name] != two[name])
            places = [model.endpoint.base_url or model.checkpoint for model in (other, spec)]
            differ = f"at {places[0]} and {places[1]}" if places[0] != places[1] else f"which differ in {field}"
            raise UserError(f"two models are named {spec.name}, {differ}: give one another name in a spec file")
