"""Requests in a server's dialect: its first answers show which fields it accepts besides the messages (`serve.dialect`)."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from core.endpoints import Constraint
from core.errors import UserError
from core.files import digest
from core.masking import problem_of
from core.records import Message
from core.specs import ModelSpec
from serve import http
from serve.answers import Reply
from serve.callables import CallableSpec
from serve.dialect import FORMS, LIMITS, PROBE, PROBED, PROBES, TRIED, Dialect, Retreat, Voice, assumed
from serve.failures import OutOfQuota, Rejected, ServerLost, Unanswered
from serve.http import UNSUPPORTED
from serve.questions import Question
from serve.store import CallStore, model_problem
from serve.transport import Completion, Transport

REFUSED = (*UNSUPPORTED, 500)  # statuses of a refused request: vLLM answers some constraints with 500
_PROBE_TOKENS = 32  # limit of an answer to the question that tries a constraint
_LEAST_ROOM = 256  # fewest tokens for reasoning
_SMALL: list[Message] = [{"role": "system", "content": "You answer in one word."}, {"role": "user", "content": PROBE}]


@dataclass
class DialectClient(Transport):
    """Asks models in the dialects of their servers, which are kept in the store."""

    store: CallStore
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Spec name → base URL of a running server, which takes precedence over the spec's own."""
    offline: bool = False
    """Raise `NotStored` for answers that are not in the store."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._models = self.store.models()
        self._learnt = self.store.dialects()
        self._voices: dict[tuple[str, str], Voice] = {}  # by spec name and served name
        self._found: dict[str, str] = {}  # base URL in the config → the URL below it that has the API
        self._vllm: set[str] = set()  # base URLs of servers that identify as vLLM
        return self

    def base_url(self, spec: ModelSpec, served_name: str | None = None) -> str:
        """The URL of a model, or of one of its adapters by served name. Raises `UserError` if nothing serves it."""
        url = self.endpoints.get(served_name or "") or self.endpoints.get(spec.name) or spec.endpoint.base_url
        if url is None:
            raise UserError(f"model {spec.name}: no server is up for it and its spec has no endpoint.base_url")
        if url not in self._found:
            if problem := problem_of(url):
                raise UserError(f"model {spec.name}: {problem}")
            self._found[url] = url.rstrip("/")
        return self._found[url]

    async def check(self, spec: ModelSpec, served_names: Sequence[str]) -> None:
        """Ask the endpoint which models it serves, and print findings and assumptions about them, once. Raises `UserError` if
        it cannot be reached, does not serve these names, or has a context shorter than a reply's limit."""
        if isinstance(spec, CallableSpec):
            return
        if spec.endpoint.kind == "agent":
            raise UserError(f"model {spec.name} is an agent: it plays a side of dialogues (run, simulate) and nothing else")
        by_url: dict[str, list[str]] = defaultdict(list)  # on CPU, every adapter has its own server
        for name in served_names:
            by_url[self.base_url(spec, name)].append(name)
        for url, names in by_url.items():
            listing = await http.served_models(self._session, self._route(spec, url), names, spec.sampling.max_tokens)
            if listing.of_vllm:
                self._vllm.add(listing.url)
            if listing.url != url:
                self._found = {base: listing.url if used == url else used for base, used in self._found.items()}
                self._tell(f"{self._route(spec, url).where}: no API there; using {listing.url}, which has one")
            for name in names:
                self._voice(spec, name).context = (listing.contexts or {}).get(name)
            self._server(listing.url).rate.tighten(spec.endpoint)
            # The list is only a help: a model that is missing there gets a question of its own, once per run folder.
            for name in names if listing.problem else ():
                voice = self._voice(spec, name)
                if not voice.answers and not self.offline:
                    hello = Question(_SMALL[1:], {"probe": "hello"}, spec.sampling, name, "supporter")
                    try:
                        await self._answered(spec, hello, voice)
                    except Unanswered as error:
                        raise UserError(f"{listing.problem}; a question to it failed too: {error}") from None
                    voice.answers = True
                    await self._learn(spec, name, voice)
                self._tell(f"{listing.problem}; but it answers, so it is used")
            if assumption := assumed(spec, self._voice(spec, names[0]).context):
                self._tell(f"model {spec.name}: {assumption}")

    async def server_version(self, spec: ModelSpec, served_name: str) -> str | None:
        """The version of the vLLM server behind a model; None for another server or if it does not say."""
        if isinstance(spec, CallableSpec):
            return None
        return await http.server_version(self._session, self.base_url(spec, served_name))

    def _voice(self, spec: ModelSpec, served_name: str) -> Voice:
        """The findings about a model at its server so far."""
        place = spec.name, served_name
        if place not in self._voices:
            record = self._learnt.get(place) or {"dialect": self._first(spec, served_name)}
            voice = self._voices[place] = Voice.model_validate(record)
            voice.dialect = Dialect.of(spec.endpoint, voice.dialect)
        return self._voices[place]

    def _first(self, spec: ModelSpec, served_name: str) -> Dialect:
        """The dialect to begin with: vLLM's if the server identifies as vLLM."""
        url = self.base_url(spec, served_name)
        of_vllm = url in self._vllm or url in self.launched
        dialect = Dialect(constraint="structured_outputs", checkpoint_defaults=True) if of_vllm else None
        return Dialect.of(spec.endpoint, dialect)

    async def _learn(self, spec: ModelSpec, served_name: str, voice: Voice) -> None:
        """Store the findings about a model's server."""
        if not isinstance(spec, CallableSpec):
            await self.store.learn(spec.name, served_name, voice.model_dump(mode="json"))

    async def _answered(
        self,
        spec: ModelSpec,
        question: Question,
        voice: Voice,
        messages: list[Message] | None = None,
        replaced: int | None = None,
        tried: Dialect | None = None,
    ) -> tuple[Completion, dict[str, Any]]:
        """The server's answer and the request it answers. Anything still unknown about the server's dialect is found out first,
        unless the question itself tries a dialect (`tried`): then its errors are raised."""
        url, opened = self.base_url(spec, question.served_name), question.sample.get("probe") in ("hello", "refusal")
        while True:
            # A verdict needs a constraint, and only a trial shows which one a server accepts.
            if tried is None and question.formed and voice.dialect.constraint is None:
                await self._find_form(spec, question, voice, None)
            if tried is None:
                async with voice.adapting:  # wait while another call's refusal is diagnosed
                    pass
            dialect = tried or voice.dialect
            body = question.body(dialect, messages)
            if replaced is not None and "seed" in body:  # the same seed would draw the same answer
                body["seed"] = int(digest([body["seed"], replaced], 7), 16)
            # Fields that the server has accepted before are safe; others may be refused or ignored.
            accepted = voice.takes(body)
            room = _Room(spec, voice, body)
            try:
                while not room.suffices:
                    request = room.request
                    doubtful = opened or (_asks_form(body) and not voice.doubted and not voice.takes(request))
                    try:
                        completion = await self.send(spec, url, question, request | spec.endpoint.extra_body, doubtful)
                    except Rejected as error:
                        if not room.narrows(error):
                            raise
                        continue
                    if room.widens(completion.reply):
                        await self._learn(spec, question.served_name, voice)
                        self._tell(f"model {spec.name} reasons: it gets {spec.reasoning_room:,} more tokens per reply for that")
            except (Rejected, ServerLost) as error:
                if tried or not await self._adapted(spec, question, voice, dialect, error):
                    raise
                continue
            reply = completion.reply
            room.note()
            for notice in voice.notices(reply, room.size):
                await self._learn(spec, question.served_name, voice)
                self._tell(f"warning: model {spec.name}: {notice}")
            if problem := model_problem(self._models, spec, question.served_name, reply.model):
                problem = f"{self._route(spec, url).where}: {problem}"
                self.threshold.end(problem)
                raise Rejected(problem)
            completion = replace(completion, reply=question.unwrapped(reply, body))
            if tried:
                return completion, body
            if not accepted:
                if not question.could_say(completion.reply, body):  # the field may have been ignored
                    await self._find_form(spec, question, voice, dialect.constraint)
                    if voice.dialect.constraint != dialect.constraint:
                        continue
                voice.settle(body)
                await self._learn(spec, question.served_name, voice)
            if not (accepted and voice.shown) and (sentences := voice.sentences()):
                self._tell(f"model {spec.name}: {'; '.join(sentences)}")
            voice.shown = True
            return completion, body

    async def _adapted(
        self, spec: ModelSpec, question: Question, voice: Voice, dialect: Dialect, error: Rejected | ServerLost
    ) -> bool:
        """Whether to repeat a refused question in another dialect, which is then found."""
        body = question.body(dialect)
        refused = error.status in UNSUPPORTED or (error.status == 500 and _asks_form(body))
        if isinstance(spec, CallableSpec) or isinstance(error, OutOfQuota) or not refused:
            return False
        async with voice.adapting:
            if voice.dialect != dialect:  # another call has adapted it meanwhile
                return True
            if voice.takes(body) or (error.status == 500 and voice.doubted):
                return False
            # A refusal may name its cause; otherwise the cause is traced with small questions, `PROBES` at most.
            retreats = dialect.retreats(spec.endpoint, body, error.told)
            if named := next((retreat for retreat in retreats if retreat.named), None):
                voice.dialect = dialect.after(named)
            else:
                voice.doubted = error.status == 500 or voice.doubted
                voice.dialect = await self._diagnosed(spec, question, voice, error)
                await self._learn(spec, question.served_name, voice)
            if voice.dialect.constraint == "none" and dialect.constraint == "structured_outputs":
                voice.fails.add("structured_outputs")
                voice.dialect = voice.dialect.model_copy(update={"constraint": None})  # try another constraint
            return voice.dialect != dialect or error.status == 500  # a 500 may have been the server's own problem

    async def _diagnosed(self, spec: ModelSpec, question: Question, voice: Voice, error: Rejected | ServerLost) -> Dialect:
        """The dialect of a server that refused a question without naming the cause: a small question of our own leaves out one
        field after the other until it is answered, and puts back those that were not the cause. Raises `Rejected` if it never
        is."""
        system = bool(question.messages) and question.messages[0]["role"] == "system"
        small = replace(question, messages=_SMALL if system else _SMALL[1:], sample={"probe": "refusal"}, hears=None)
        first = self._first(spec, question.served_name).model_copy(update={"constraint": voice.dialect.constraint})

        async def answers(words: str, *left: Retreat) -> bool:
            if len(voice.tried) == PROBES:
                return False
            voice.tried.append(words)
            try:
                _, body = await self._answered(spec, small, voice, tried=first.after(*left))
            except (Rejected, ServerLost) as refused:
                if refused.status not in REFUSED:
                    raise
                return False
            voice.settle(body)
            return True

        def less(*left: Retreat) -> Retreat | None:
            dialect = first.after(*left)
            return next(dialect.retreats(spec.endpoint, small.body(dialect), error.told), None)

        # If the small question is answered as it is, the other was refused for its size or text, and nothing is left out.
        if await answers("as it was"):
            return first
        # Leave out one field after the other until it is answered: the last one was a cause, perhaps not the only one.
        left = list[Retreat]()
        while retreat := less(*left):
            left.append(retreat)
            if await answers(retreat.words, *left):
                break
        else:
            if error.status == 500:
                return voice.dialect
            raise Rejected(f"{error}; a small question was refused too: {', '.join(voice.tried)}", error.status, error.told)
        # Usually it was the only one. If not, put back each of the others, unless the server then refuses again.
        if len(left) > 1 and await answers(f"{left[-1].words} alone", left[-1]):
            return first.after(left[-1])
        for retreat in left[-2::-1] if len(left) > 2 else ():
            others = [other for other in left if other is not retreat]
            if await answers(f"all but {retreat.words}", *others):
                left = others
        return first.after(*left)

    async def _find_form(self, spec: ModelSpec, question: Question, voice: Voice, failed: Constraint | None) -> None:
        """Find a constraint that the server obeys, with questions of our own; `failed` is the one to replace."""
        async with voice.forming:
            if voice.dialect.constraint == failed:  # else another call has found one meanwhile
                for constraint in TRIED:
                    if constraint not in voice.fails and await self._obeys(spec, question, voice, constraint):
                        break
                else:
                    constraint = "none"
                voice.dialect = voice.dialect.model_copy(update={"constraint": constraint})
                voice.settled.discard("structured_outputs")
                await self._learn(spec, question.served_name, voice)

    async def _obeys(self, spec: ModelSpec, question: Question, voice: Voice, constraint: Constraint) -> bool:
        """Whether the server's answers obey this constraint."""
        sampling = question.sampling.model_copy(update={"max_tokens": _PROBE_TOKENS})
        plain = Question(_SMALL[1:], {"probe": constraint}, sampling, question.served_name, question.purpose)
        probe = replace(plain, choices=PROBED)
        while True:
            dialect = voice.dialect.model_copy(update={"constraint": constraint})
            try:
                completion, _ = await self._answered(spec, probe, voice, tried=dialect)
            except (Rejected, ServerLost) as error:
                if error.status not in REFUSED:
                    raise
                if re.search(FORMS, error.told) or voice.takes(plain.body(voice.dialect)):
                    return False
                before = voice.dialect
                await self._answered(spec, plain, voice)  # another field may be the cause
                if voice.dialect == before:
                    return False
                continue
            return completion.reply.text.strip() in PROBED


class _Room:
    """The room for reasoning in a request, in addition to the reply's own limit. Once a model's reasoning has cut off a reply,
    the model gets such room, and that call is repeated. If the server refuses so much room, less is requested."""

    def __init__(self, spec: ModelSpec, voice: Voice, body: dict[str, Any]) -> None:
        self._spec, self._voice, self._body = spec, voice, body
        self._limit = next(name for name in LIMITS if name in body)
        self.size = sum(len(message["content"].encode()) for message in body["messages"]) if voice.measures else 0
        # It is given from the start if the model is known to reason, else in a second try of a reply that is only reasoning.
        self._given, self._refused, self.suffices = voice.reasons, False, False
        self._tokens = self._wider() if voice.reasons else 0

    @property
    def request(self) -> dict[str, Any]:
        """The request with its room."""
        return {**self._body, self._limit: self._most}

    @property
    def _most(self) -> int:
        return int(self._body[self._limit]) + self._tokens

    def _wider(self) -> int:
        own, most, context = self._body[self._limit], self._voice.dialect.most_tokens, self._voice.context
        wanted = self._voice.room(self._spec.reasoning_room, context or self._spec.context_length, own, self.size)
        return int(min(wanted, max((most or 2**31) - own, 0)))

    def narrows(self, error: Rejected) -> bool:
        """Whether to repeat a rejected request with less room: not if the server has accepted as large a limit before."""
        if not self._tokens or error.status not in UNSUPPORTED or self._most <= self._voice.largest:
            return False
        self._tokens, self._refused = self._tokens // 2 if self._tokens > _LEAST_ROOM else 0, True
        return True

    def widens(self, reply: Reply) -> bool:
        """Whether a reply shows that the model reasons, so that the request is repeated with room."""
        if self._tokens and reply.finish_reason == "context_overflow" and not reply.text:  # the room may have caused it
            self._tokens = self._tokens * 3 // 4 if self._tokens > _LEAST_ROOM else 0
        elif reply.needs_room and not self._given and (wider := self._wider()):
            self._tokens, self._given, self._voice.reasons = wider, True, True
            return True
        else:
            self.suffices = True
        return False

    def note(self) -> None:
        """Note the limit that the server has accepted."""
        self._voice.largest = max(self._voice.largest, self._most)
        if self._refused and self._tokens:
            changes = {"most_tokens": self._most}
            self._voice.dialect = self._voice.dialect.model_copy(update=changes)


def _asks_form(body: Mapping[str, Any]) -> bool:
    return bool({"logprobs", "structured_outputs", "response_format"} & body.keys())
