"""The chat client: asks OpenAI-compatible servers, many calls at once, and asks nothing twice.

Every finished call goes to the run's store under a key made of what is asked (messages, sampling, constraint), of whom
(the model's fingerprint, never its port) and which sample it is. A call whose key is in the store is answered from there.
What a server takes beside the messages is found out with its first answers (`serve.dialect`); how it is asked, and asked
again, is the transport's (`serve.transport`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Self

from core.errors import UserError
from core.files import digest
from core.masking import problem_of
from core.specs import Constraint, ModelSpec
from serve import http
from serve.answers import Reply, Retry, answer_in
from serve.callables import CallableSpec
from serve.dialect import LIMITS, PROBE, PROBED, TRIED, Aspect, Dialect, Voice
from serve.failures import FailedCall, NotAsked, NotReached, NotStored, NotUp, Rejected, Unanswered
from serve.questions import Question
from serve.reasoning import looks_like_reasoning
from serve.store import KEPT, Origin, SameModel, Store
from serve.transport import UNSUPPORTED, Completion, Transport

_LANGUAGES = {"en": "English", "zh": "Chinese"}
_PROBE_TOKENS = 32  # of an answer to the question that tries a constraint


def _temperature(spec: ModelSpec) -> str:
    return "the server's own temperature" if (degrees := spec.sampling.temperature) is None else f"temperature {degrees:g}"


def _assumed(spec: ModelSpec, context: int | None) -> str:
    """What is taken for granted of a model that its spec says little of; empty for a spec that says it."""
    if spec.checkpoint is not None or {"roles", "languages"} <= spec.model_fields_set:
        return ""
    known = [f"reads {context} tokens by its own word"] if context and spec.context_length is None else []
    drawn = f"{_temperature(spec)}, at most {spec.sampling.max_tokens} tokens a reply"
    speaks = " and ".join(_LANGUAGES[language] for language in spec.languages)
    return "; ".join([*known, f"assumed: it speaks {speaks}; replies are drawn at {drawn}"])


@dataclass
class ChatClient(Transport):
    """Calls for any number of models: what is stored is not asked. Use as an async context manager.

    An answer that names another model than the first one did is no answer, and ends the run (`serve.store.SameModel`).
    """

    store: Store
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Spec name → base URL of a running server; wins over the spec's own."""
    offline: bool = False
    """Raise `NotStored` for whatever is not in the store."""
    keep_messages: int = KEPT
    """The store keeps the messages of a call beside its reply if they have at most so many bytes."""
    retry: Retry = field(default_factory=Retry)
    """Kinds of stored answers that are asked again, once; the old ones stay in the store beside the new."""
    down: Mapping[str, str | None] = field(default_factory=dict)
    """Models without a server now, by name: why what is asked of them is lost; None: they are up in a later phase (`NotUp`)."""
    failures: list[FailedCall] = field(default_factory=list)
    """All calls without an answer."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._fingerprints: dict[str, str] = {}
        self._models = SameModel(self.store.models())
        self._learnt = self.store.dialects()
        self._voices: dict[tuple[str, str], Voice] = {}  # (spec name, served name) → what is known of its server
        self._found: dict[str, str] = {}  # base URL as given → the one below it that has the API
        self._vllm: set[str] = set()  # base URLs of servers that say that they are vLLM's
        return self

    def from_store(self) -> ChatClient:
        """The same client for what is not to be asked now: it takes stored answers as they are, and raises `NotStored` for the
        others."""
        other = copy(self)
        other.offline, other.retry = True, Retry()
        return other

    def base_url(self, spec: ModelSpec, served_name: str | None = None) -> str:
        """Where a model (or one of its adapters, by served name) answers; `UserError` when nothing serves it."""
        url = self.endpoints.get(served_name or "") or self.endpoints.get(spec.name) or spec.endpoint.base_url
        if url is None:
            raise UserError(f"model {spec.name}: no server is up for it and its spec has no endpoint.base_url")
        if problem := problem_of(url):
            raise UserError(f"model {spec.name}: {problem}")
        return self._found.get(url.rstrip("/"), url.rstrip("/"))

    async def check(self, spec: ModelSpec, served_names: Sequence[str]) -> None:
        """Ask the endpoint which models it serves, and say what is found or assumed of them, once.

        Raises `UserError` when it cannot be reached, does not serve these names, or reads less than a reply may have.
        """
        if isinstance(spec, CallableSpec):
            return
        if spec.endpoint.kind == "agent":
            raise UserError(
                f"model {spec.name} is an agent: it plays a side of dialogues (run, simulate) and answers nothing else"
            )
        by_url: dict[str, list[str]] = defaultdict(list)  # on CPU every adapter is a server of its own
        for name in served_names:
            by_url[self.base_url(spec, name)].append(name)
        for url, names in by_url.items():
            where, context = http.place(spec, url), None
            if listing := await http.served_models(self._session, spec, url, names):
                context = listing.contexts[names[0]]
                if listing.of_vllm:
                    self._vllm.add(listing.url)
                if listing.url != url:
                    self._found[url] = listing.url
                    self._tell(f"{where}: no API there; {listing.url} has one and is asked")
            self._server(self.base_url(spec, names[0])).rate.tighten(spec.endpoint)
            if assumed := _assumed(spec, context):
                self._tell(f"model {spec.name}: {assumed}")

    async def server_version(self, spec: ModelSpec, served_name: str) -> str | None:
        """The version of the vLLM server behind a model; None where it is another or does not say."""
        if isinstance(spec, CallableSpec):
            return None
        return await http.server_version(self._session, self.base_url(spec, served_name))

    def key(self, spec: ModelSpec, question: Question, body: dict[str, Any] | None = None) -> str:
        """The call's key (64 hex digits): what the room for reasoning is does not count."""
        if spec.name not in self._fingerprints:
            self._fingerprints[spec.name] = spec.fingerprint()
        body = body or question.body(spec, self._voice(spec, question.served_name).dialect)
        return digest([self._fingerprints[spec.name], body, dict(question.sample)])

    async def ask(self, spec: ModelSpec, question: Question) -> Reply:
        """The model's reply: from the store when this call was finished before, else from the server.

        Raises `Unanswered` where there is no answer, `NotStored` with `offline`, `NotUp` for what a later phase asks.
        """
        try:
            return await self._asked(spec, question, self._voice(spec, question.served_name))
        except Unanswered as error:
            if isinstance(error, Rejected):
                self.threshold.rejected((self.base_url(spec, question.served_name), question.served_name), error)
            await self._keep_failure(self.key(spec, question), spec, question, error)
            raise

    def _voice(self, spec: ModelSpec, served_name: str) -> Voice:
        """What is known of a model at its server."""
        place = spec.name, served_name
        if place not in self._voices:
            self._voices[place] = Voice.of(spec.endpoint, self._learnt.get(place))
        return self._voices[place]

    async def _asked(self, spec: ModelSpec, question: Question, voice: Voice) -> Reply:
        """The reply, by what is known of the server; what is not known yet is found out."""
        asked = not self.offline and spec.name not in self.down
        aspects = question.aspects
        missing = aspects - voice.settled if asked else set()
        if missing and self._of_vllm(spec, question.served_name):
            voice.dialect = Dialect.of(spec.endpoint, Dialect(constraint="structured_outputs"))
            await self._settle(spec, question.served_name, {"sampling", "constraint", "logprobs"})
        elif "constraint" in missing:
            async with voice.lock:
                if voice.dialect.constraint is None:
                    constraint = await self._constraint(spec, question, voice)
                    voice.dialect = voice.dialect.model_copy(update={"constraint": constraint})
                    await self._settle(spec, question.served_name)
        dialect = voice.dialect
        while True:
            try:
                reply = await self._ask(spec, question, voice, dialect)
            except Rejected as error:
                if voice.dialect != dialect and aspects <= voice.settled:  # another call has found out meanwhile
                    dialect = voice.dialect
                    continue
                changed = self._adapted(spec, dialect, question.body(spec, dialect), error)
                if changed is None or aspects <= voice.settled:
                    raise
                dialect = changed
                continue
            if asked and not aspects <= voice.settled:
                voice.dialect = voice.dialect.joined(dialect)
                await self._settle(spec, question.served_name, aspects)
                if not isinstance(spec, CallableSpec) and (sentences := voice.dialect.sentences()):
                    self._tell(f"model {spec.name}: {'; '.join(sentences)}")
            return reply

    def _of_vllm(self, spec: ModelSpec, served_name: str) -> bool:
        """Whether a model's server is vLLM, which takes everything."""
        url = self.base_url(spec, served_name)
        return url in self._vllm or (url in self.launched and spec.serve.engine == "vllm")

    async def _settle(self, spec: ModelSpec, served_name: str, aspects: Collection[Aspect] = ()) -> None:
        """Keep what was found out of a model's server; these aspects of it are held to from now on."""
        voice = self._voice(spec, served_name)
        voice.settled.update(aspects)
        await self.store.learn(spec.name, served_name, voice.record())

    def _adapted(self, spec: ModelSpec, dialect: Dialect, body: dict[str, Any], error: Rejected) -> Dialect | None:
        """The dialect without what the server refused; None where it refused something else."""
        if error.status not in UNSUPPORTED:
            return None
        # Without the model's name and address: they may hold the very words that are looked for.
        told = str(error).partition(f"HTTP {error.status}: ")[2]
        return dialect.adapted(spec.endpoint, body, told)

    async def _constraint(self, spec: ModelSpec, question: Question, voice: Voice) -> Constraint:
        """How the server holds answers to their form, tried on a question of its own."""
        sampling = question.sampling.model_copy(update={"max_tokens": _PROBE_TOKENS})
        for constraint in TRIED:
            probe = Question(
                [{"role": "user", "content": PROBE}],
                sample={"probe": constraint},
                sampling=sampling,
                served_name=question.served_name,
                purpose=question.purpose,
                choices=PROBED,
            )
            dialect = voice.dialect.model_copy(update={"constraint": constraint})
            reply: Reply | None = None
            while reply is None:
                body = probe.body(spec, dialect)
                try:
                    reply = (await self._with_room(spec, probe, body, voice)).reply
                except Rejected as error:
                    if error.status not in UNSUPPORTED:
                        raise
                    changed = self._adapted(spec, dialect, body, error)
                    if changed is None or changed.constraint != constraint:
                        break
                    dialect = changed
            if reply is not None and reply.text.strip() in PROBED:
                return constraint
        return "none"

    async def _ask(self, spec: ModelSpec, question: Question, voice: Voice, dialect: Dialect) -> Reply:
        """The reply to a question as it is asked in a dialect."""
        body = question.body(spec, dialect)
        key = self.key(spec, question, body)
        tally = self.tallies[spec.name, question.purpose]
        reply, again = self.store.get(key), None
        if reply is not None:
            again = self.retry.reason(key, reply, question.readable)
        if reply is None or again:
            if self.offline:
                raise NotStored(key)
            if spec.name in self.down:
                raise self._not_up(spec)
            if again and "seed" in body:  # the same seed would draw the same answer
                body |= {"seed": int(digest([body["seed"], self.store.times_replaced(key)], 7), 16)}
            completion = await self._with_room(spec, question, body, voice)
            reply = completion.reply
            origin = Origin.of(spec, question.purpose, body, reply.model, completion.attempts, self.keep_messages)
            await self.store.put(key, reply.model_dump(), completion.seconds, origin, again)
            self.retry.done.add(key)
            tally.asked += 1
            tally.generated += reply.completion_tokens
            tally.seconds += completion.seconds
        tally.add(reply)
        return reply

    def _not_up(self, spec: ModelSpec) -> NotUp | NotAsked:
        why = self.down[spec.name]
        if self.threshold.of_budget:
            return NotReached(spec.name)
        return NotUp(spec.name) if why is None else NotAsked(why)

    async def _keep_failure(self, key: str, spec: ModelSpec, question: Question, error: Unanswered) -> None:
        item = str(question.sample.get("dialogue") or " ".join(map(str, question.sample.values())))
        self.failures.append(FailedCall(question.purpose, spec.name, item, error.outcome, error.status, str(error)))
        if not isinstance(error, NotAsked):
            await self.store.fail(key, item, question.purpose, spec.name, error.outcome, str(error))

    async def _with_room(self, spec: ModelSpec, question: Question, body: dict[str, Any], voice: Voice) -> Completion:
        """The server's answer. A model that reasons has room for that beside its reply, from the first answer on that its
        reasoning has cut off: that call is made again."""
        url, roomy = self.base_url(spec, question.served_name), voice.reasons
        completion = await self.send(spec, url, question, _roomy(spec, body) if roomy else body)
        if completion.reply.needs_room and not roomy and (more := _roomy(spec, body)) != body:
            voice.reasons = True
            await self._settle(spec, question.served_name)
            self._tell(f"model {spec.name} reasons: it gets {spec.reasoning_room:,} tokens for that beside its replies")
            completion = await self.send(spec, url, question, more)
        if begun := looks_like_reasoning(completion.reply.text):
            self._tell(
                f"warning: model {spec.name}: replies begin with {begun!r}: if that is reasoning, think_tags of its spec name "
                "what stands around it"
            )
        if problem := self._models.problem(spec, question.served_name, completion.reply.model):
            problem = f"{http.place(spec, url)}: {problem}"
            self.threshold.end(problem)
            raise Rejected(problem)
        return replace(completion, reply=_formed(completion.reply, question, body))


def _roomy(spec: ModelSpec, body: Mapping[str, Any]) -> dict[str, Any]:
    """A request with room for reasoning beside its reply."""
    return {**body, **{limit: body[limit] + spec.reasoning_room for limit in LIMITS if limit in body}}


def _formed(reply: Reply, question: Question, body: Mapping[str, Any]) -> Reply:
    """An answer with a form without what stands around it: the reasoning, for which servers take it that look for no tag, and
    the object that our schema of a closed list put around it."""
    if question.formed and reply.reasoning and reply.finish_reason != "length":
        reply = reply.model_copy(update={"text": reply.reasoning, "reasoning": None, "reasoning_characters": 0})
    schema = body.get("response_format", {}).get("json_schema", {}).get("schema", {})
    return (
        reply.model_copy(update={"text": answer_in(reply.text)}) if list(schema.get("properties", {})) == ["answer"] else reply
    )
