"""The engine of every command that asks models for a run folder: answer from its store, launch only what is missing, ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from rich.console import Console

from core.errors import UserError, near
from core.specs import ModelSpec, load_spec
from evalsuite.runs.folder import Run
from evalsuite.runs.resolved import Resolved
from serve.batch import Answers, Desk, ServerVersions, answered
from serve.checkpoints.places import commits
from serve.client import ChatClient
from serve.failures import Threshold
from serve.launch import Servers
from serve.plan import plan_servers

J = TypeVar("J")
R = TypeVar("R")


@dataclass
class Runner:
    """A command at work in a run folder. Use as a context manager.

    Its models answer at the endpoints of the config and of their specs. Servers for the others are launched when they are first
    needed and stay up until the block ends, so that the stages share them.
    """

    run: Run
    resolved: Resolved
    console: Console
    bounded: bool = False
    """Whether the config's limits on the tries of a call hold."""

    def __post_init__(self) -> None:
        self._endpoints = dict(self.resolved.config.endpoints)
        self._servers = ExitStack()
        self._launched: set[str] = set()  # base URLs of servers of ours
        self._told: set[str] = set()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exc: object) -> None:
        self._servers.close()

    def up(self, specs: Sequence[ModelSpec]) -> Mapping[str, str]:
        """Base URLs by model name, after launching what is not up yet."""
        self._check_endpoints(specs)
        for spec in specs:
            spec.api_key()  # a key that is not there is said before a server is started
        missing = {s.name: s for s in specs if s.name not in self._endpoints and s.endpoint.base_url is None}
        if missing:
            with self.run.timed("servers") as timing:
                servers = self._servers.enter_context(Servers(plan_servers(list(missing.values()), self.run.logs)))
                timing["commits"] = self.run.same_commits(commits(missing.values()))
            self._endpoints = {**servers.endpoints, **self._endpoints}
            self._launched |= set(servers.endpoints.values())
        return self._endpoints

    def _check_endpoints(self, specs: Sequence[ModelSpec]) -> None:
        """Raise `UserError` for an endpoint of a model that this run does not have."""
        resolved = self.resolved
        known = {spec.name for spec in specs} | {load_spec(name).name for name in resolved.names}
        if not known.issuperset(self._endpoints) and resolved.tested:
            # A shard may be given the endpoint of a supporter that only others of its shards speak to.
            known |= {spec.name for spec in resolved.supporters}
        for name in self._endpoints:
            if name not in known and not any(name.startswith(f"{model}.") for model in known):
                raise UserError(f"endpoint for {name!r}: no such model in this run: {near(name, known)}")

    def answered(
        self,
        stage: str,
        specs: Sequence[ModelSpec],
        jobs: Sequence[J],
        work: Callable[[ChatClient, J], Awaitable[R]],
        unit: str,
        title: str | None = None,
        tries: Callable[[J], int] = lambda job: 0,
        checked: Callable[[ServerVersions], None] | None = None,
        judging: str | None = None,
    ) -> Answers[R]:
        """What `work` makes of every job (`serve.batch.answered`), asking the models of `specs`.

        Writes the stage's failed calls (those of the judge as stage `judging`) and, where something was asked, its seconds.
        Raises `UserError` where the folder is to hold something new and no call was answered.
        """

        check_names(specs)

        @contextmanager
        def servers() -> Iterator[Mapping[str, str]]:
            self.run.budget.begin(specs, self.run.store.tokens())
            endpoints = self.up(specs)
            with self.run.timed(stage):
                yield endpoints

        desk = Desk(specs, self.console, self._client, servers, self._served_names)
        answers = answered(desk, jobs, work, title or stage, unit, lambda _, job: tries(job), checked)
        failures, cause = answers.client.failures, answers.client.threshold.cause
        if self.run.pending and failures:
            raise UserError(f"nothing was answered, {self.run.folder} is as it was: {cause or failures[0].reason}")
        self.run.settle()
        of_judge = judging or stage
        for name in dict.fromkeys([stage, of_judge]):
            self.run.keep_failures(name, [one for one in failures if name == (of_judge if one.role == "judge" else stage)])
        return answers

    def judged(self, stage: str, jobs: Sequence[J], work: Callable[[ChatClient, J], Awaitable[R]], unit: str) -> Answers[R]:
        """What `work` makes of every job, asking the judge alone. Says so when it ended early."""
        judge = self.resolved.judge
        answers = self.answered(stage, [judge], jobs, work, unit, title=judge.name)
        if cause := answers.client.threshold.cause:
            self.say(f"ended early: {cause}")
        return answers

    def _client(self, endpoints: Mapping[str, str], offline: bool) -> ChatClient:
        config = self.resolved.config
        limits: dict[str, Any] = {"timeout_s": config.call_timeout, "attempts": config.attempts, "patience_s": config.patience}
        return ChatClient(
            self.run.store,
            endpoints,
            config.concurrency,
            offline=offline,
            threshold=Threshold(config.fail_on_error),
            retry=self.run.retry,
            budget=self.run.budget,
            keep_messages=1024 * config.keep_messages_kb,
            launched=self._launched,
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
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)


def check_names(specs: Sequence[ModelSpec]) -> None:
    """Raise `UserError` for two models of one name: records, and answers in the store, are known by it."""
    known: dict[str, ModelSpec] = {}
    for spec in specs:
        other = known.setdefault(spec.name, spec)
        one, two = (model.model_dump(exclude={"sampling", "about"}) for model in (other, spec))
        if one != two:
            field = next(name for name in one if one[name] != two[name])
            places = [model.endpoint.base_url or model.checkpoint for model in (other, spec)]
            differ = f"at {places[0]} and {places[1]}" if places[0] != places[1] else f"which differ in {field}"
            raise UserError(f"two models are named {spec.name}, {differ}: give one another name in a spec file")
