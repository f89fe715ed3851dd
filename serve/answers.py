"""What a server's answer says: reply, reasoning, why it stopped, token probabilities.

Servers agree on the text of an answer and on little else, so everything around it is read forgivingly: a good text is not lost
to odd token counts or broken probabilities.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

import orjson
from pydantic import BaseModel, ConfigDict, Field

from core.errors import UserError, near
from core.markers import CONTROL
from core.masking import mask_answer
from core.specs import ModelSpec
from serve.failures import Meaning, Unreadable, error_text, meaning_of, vocabulary
from serve.reasoning import bare, ends_in_closing_tag, reasoning_beside, split_reasoning, text_of

MOST = 2**53  # tokens that a count may claim
ROUNDING = 0.02  # by how much rounded probabilities may sum to more than 1
_NO_MASS = -9999.0  # what vLLM writes for a log-probability of minus infinity
_SPELLINGS = str.maketrans({"▁": " ", "Ġ": " ", "Ċ": "\n", "\ufeff": None})
Count = Annotated[int, Field(ge=0, le=MOST)]
Tokens = list[tuple[str, dict[str, float]]]


class ErrorInAnswer(Unreadable):
    """A 200 that tells of an error, whatever text stands beside it; `status` and `body` are those of the error."""

    def __init__(self, error: Any) -> None:
        self.body = orjson.dumps({"error": error})
        codes = (str(error.get(name)) for name in ("code", "status")) if isinstance(error, Mapping) else ()
        told = next((int(code) for code in codes if re.fullmatch("[45][0-9]{2}", code)), 500)
        lasts = meaning_of(told, self.body) in ("context_overflow", "content_filter")
        super().__init__(f"an error in the answer: {error_text(self.body)}", 400 if lasts else told)


class Reply(BaseModel):
    """One answer."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    text: str
    """The answer without reasoning."""
    finish_reason: str | None = None
    """`stop`, `length` (cut off at the token limit), `content_filter`, `context_overflow` (prompt and reply do not fit the
    model), or null where the server gives none."""
    refused: bool = False
    """Set by the server's own signal only (a `refusal` field, a finish reason or error of its content filter): nothing is
    guessed from the wording."""
    prompt_tokens: Count = 0
    """Tokens of the prompt as the server counts them (0: not reported)."""
    completion_tokens: Count = 0
    """Tokens of the answer, reasoning included (0: not reported)."""
    reasoning_tokens: Count = 0
    """Tokens of the reasoning (0: not reported)."""
    reasoning_characters: Count = 0
    """Characters of the reasoning, counted here."""
    reasoning: str | None = Field(default=None, exclude_if=lambda text: text is None)
    """The reasoning where it is all that came; null where there is an answer, and where there is neither."""
    tokens: Tokens | None = None
    """Per token of the answer its alternatives' log-probabilities (null: not reported; empty: what was reported is no list of
    the answer's tokens)."""
    model: str | None = None
    """The model that the server says answered (null: it names none)."""
    verbatim: str | None = Field(default=None, exclude_if=lambda text: text is None)
    """The answer with the white space that it came with; null where that is `text`, and where reasoning was taken out."""

    @property
    def empty(self) -> bool:
        """Whether it holds nothing at all, not even reasoning, a refusal or a reason for stopping early."""
        return not (self.text.strip() or self.reasoning_characters or self.refused) and self.finish_reason in (None, "stop")

    @property
    def needs_room(self) -> bool:
        """Whether its reasoning may have cost the answer: nothing else came, or it was cut off after it had reasoned."""
        reasoned, said = bool(self.reasoning_tokens or self.reasoning_characters), bool(self.text.strip())
        return (reasoned or not said) if self.finish_reason == "length" else (reasoned and not said and not self.refused)


@dataclass
class Tally:
    """One model in one role. The first five are the same however often a run was interrupted; the others are this process's."""

    calls: int = 0
    cut_off: int = 0
    """Answers that ended at the token limit."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    asked: int = 0
    """Calls that were not answered from the store."""
    retries: int = 0
    generated: int = 0
    """Completion tokens of the calls asked."""
    seconds: float = 0.0
    """Time that the calls asked took."""

    def add(self, reply: Reply) -> None:
        """Book an answer, stored or new."""
        self.calls += 1
        self.cut_off += reply.finish_reason == "length"
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.reasoning_tokens += reply.reasoning_tokens

    def took(self, other: Tally) -> None:
        """Add what another client of this process asked for the same answers."""
        self.asked += other.asked
        self.retries += other.retries
        self.generated += other.generated
        self.seconds += other.seconds


def reply_of_error(meaning: Meaning) -> Reply:
    """The reply that an error stands for."""
    return Reply(text="", finish_reason=meaning, refused=meaning == "content_filter")


def read_reply(spec: ModelSpec, raw: bytes, key: str | None = None) -> Reply:
    """A 200 body as a Reply, with the key masked.

    Raises `Unreadable` for a body that is not a completion: `ErrorInAnswer` for one that tells of an error.
    """
    try:
        body = parse(raw)
        if isinstance(body, list) and len(body) == 1:  # Gemini's errors
            body = body[0]
        choice = (body.get("choices") or [{}])[0]
        if error := _told(body.get("error")) or _told(choice.get("error")):
            raise ErrorInAnswer(error)
        message = choice.get("message")
        withheld = not isinstance(message, Mapping) and _withheld(body)
        finish = "content_filter" if withheld else finish_reason(choice)
        if message is None and finish in ("content_filter", "length"):
            message = {}
        content, apart = text_of(message.get("content"))
        apart += reasoning_beside(message)
        text, inline = split_reasoning(spec, content, apart)
        if not text and split_reasoning(spec, apart)[1]:  # the server took the answer for reasoning too
            text, apart = split_reasoning(spec, apart)
        reasoning = apart + inline
        if message.get("refusal") or (not text and not reasoning and _withheld(body)):
            finish = "content_filter"
        tokens, model = _of_answer(spec, tokens_of(choice.get("logprobs")), text, reasoning), body.get("model")
        return Reply(
            text=mask_answer(text, key),
            finish_reason=finish,
            refused=finish == "content_filter",
            **_counts(body.get("usage")),
            reasoning_characters=len(reasoning),
            reasoning=mask_answer(bare(reasoning), key) if reasoning and not text else None,
            tokens=_masked(tokens, key),
            model=mask_answer(model, key)[:200] if isinstance(model, str) and model.strip() else None,
            verbatim=mask_answer(content, key) if content != text == content.strip() else None,
        )
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise Unreadable(f"unreadable answer ({type(error).__name__}): {error_text(raw)}") from None


def _told(error: Any) -> Any:
    """An error that says anything; some servers send an empty one with every answer."""
    return error if not isinstance(error, Mapping) or any(error.values()) else None


def _withheld(value: Any, depth: int = 8) -> bool:
    """Whether a body without a word of the model's names a content filter: in a finish reason, a block reason, a verdict."""
    if isinstance(value, str):
        return value.lower().partition(":")[0].strip() in vocabulary().finish_reasons["content_filter"]
    if isinstance(value, Mapping):
        blocked = any(
            part and re.search("block|filtered", name, re.I) and isinstance(part, str | bool) for name, part in value.items()
        )
        return blocked or (depth > 0 and any(_withheld(part, depth - 1) for part in value.values()))
    return isinstance(value, list) and depth > 0 and any(_withheld(part, depth - 1) for part in value)


def answer_in(text: str) -> str:
    """The text of the field `answer` of a JSON object, or the text as it is where it is none."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return value["answer"] if isinstance(value, dict) and isinstance(value.get("answer"), str) else text


def parse(raw: bytes) -> Any:
    """A body as JSON, or what Python's writer makes of it: NaN, infinities, and half surrogate pairs, which become U+FFFD.
    Raises `ValueError` for anything else."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        try:
            text = json.dumps(json.loads(raw.decode("utf-8"), parse_int=_short), ensure_ascii=False)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _short(text: str) -> int | None:
    return int(text) if len(text) < 20 else None


def finish_reason(choice: dict[str, Any]) -> str | None:
    """Why a choice ended, in OpenAI's words. Null passes: some servers never say, DashScope says "null".

    Raises `Unreadable` for everything that is not known to end a reply: `error`, `abort`, `network_error`; `tool_calls` too, as
    no tool is ever offered.
    """
    reason = choice.get("finish_reason")
    name = str(reason).lower().partition(":")[0].strip()
    if reason is None or name in ("", "null"):
        return None
    for known, names in vocabulary().finish_reasons.items():
        if name in names:
            return known
    raise Unreadable(f"bad finish reason {reason!r}", meaning="passing")


def _counts(usage: Any) -> dict[str, int]:
    """The tokens of a reply's fields; what only the total holds is reasoning (Gemini's OpenAI layer)."""
    prompt, completion = count_of(usage, "prompt_tokens"), count_of(usage, "completion_tokens")
    hidden = max(0, count_of(usage, "total_tokens") - prompt - completion) if prompt else 0
    details = usage.get("completion_tokens_details") if isinstance(usage, Mapping) else None
    reasoning = count_of(details, "reasoning_tokens") or hidden
    return {"prompt_tokens": prompt, "completion_tokens": completion + hidden, "reasoning_tokens": reasoning}


def count_of(usage: Any, name: str) -> int:
    """A number of tokens from a usage object, 0 where it holds none that can be one."""
    value = usage.get(name) if isinstance(usage, Mapping) else None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0
    return min(max(int(value), 0), MOST)


def tokens_of(logprobs: Any) -> Tokens | None:
    """Each token that was generated with its alternatives' log-probabilities, its own among them.

    None where the server reported none; empty where what it reported is no list of tokens. A token with a log-probability that
    is not a finite number has no alternatives.
    """
    if not logprobs or (isinstance(logprobs, Mapping) and not logprobs.get("content")):
        return None
    entries = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if not isinstance(entries, list) or not all(_is_token(token) for token in entries):
        return []
    return [(_spelled(token["token"]), _alternatives(token)) for token in entries]


def _is_token(token: Any) -> bool:
    return isinstance(token, Mapping) and isinstance(token.get("token"), str)


def _spelled(token: str) -> str:
    """A token's text, where a server shows its vocabulary's spelling: a blank is ▁ or Ġ there, a line break Ċ."""
    return token.translate(_SPELLINGS)


def _alternatives(token: Mapping[str, Any]) -> dict[str, float]:
    others = token.get("top_logprobs") or []
    logprobs = {}
    for entry in [*(others if isinstance(others, list) else [None]), token]:
        value = entry.get("logprob") if _is_token(entry) else None
        if value == -math.inf:
            value = _NO_MASS
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return {}
        name = entry["token"]
        logprobs[name if name.isascii() else _spelled(name)] = float(value)
    return logprobs


def _of_answer(spec: ModelSpec, tokens: Tokens | None, text: str, reasoning: str) -> Tokens | None:
    """The answer's tokens among all that were generated: from the end as many as spell it, if what stands before them is
    nothing but the reasoning, or ends with the tag that closes it. None of them where that is not certain."""
    answer, first, spelling = "".join(text.split()), len(tokens or ()), ""
    while tokens and first and len(spelling) < len(answer):
        first -= 1
        token = tokens[first][0]
        if not CONTROL.fullmatch(token.strip()):
            spelling = "".join(token.split()) + spelling
    if not tokens or spelling != answer:
        return tokens and []
    before = "".join(token for token, _ in tokens[:first])
    words = "".join(CONTROL.sub("", before).split())
    certain = words in ("", "".join(reasoning.split())) or ends_in_closing_tag(spec, before)
    return [entry for entry in tokens[first:] if not CONTROL.fullmatch(entry[0].strip())] if certain else []


def _masked(tokens: Tokens | None, key: str | None) -> Tokens | None:
    if tokens is None or key is None:
        return tokens
    return [(mask_answer(token, key), {mask_answer(t, key): value for t, value in others.items()}) for token, others in tokens]


def sound(token: str, alternatives: Mapping[str, float]) -> bool:
    """Whether these can be log-probabilities of what could have stood where `token` stands: finite, together no more than a
    probability of 1, and the token itself possible."""
    if token not in alternatives or not all(math.isfinite(value) and value <= ROUNDING for value in alternatives.values()):
        return False
    return math.exp(alternatives[token]) > 0 and sum(map(math.exp, alternatives.values())) <= 1 + ROUNDING


def choice_probabilities(token: str, alternatives: Mapping[str, float], choices: Iterable[str]) -> dict[str, float] | None:
    """The probabilities of choices that are one token each, where a reply's `token` is one of them; they sum to 1.

    Servers report log-probabilities before the constraint's mask, so they are renormalised over the choices. A choice that is
    not among the reported alternatives counts 0. None where no alternative is reported, and where the figures cannot be
    log-probabilities of that token (`sound`).
    """
    if len(alternatives) < 2 or not sound(token, alternatives):
        return None
    mass = dict.fromkeys(choices, 0.0)
    reported = [(other.strip(), logprob) for other, logprob in alternatives.items() if other.strip() in mass]
    top = max(logprob for _, logprob in reported)
    for choice, logprob in reported:
        mass[choice] += math.exp(logprob - top)
    total = sum(mass.values())
    return {choice: value / total for choice, value in mass.items()}


# ---- stored answers that are asked again, because the user named their kind

Kind = Literal["empty", "refusal", "length", "context_overflow", "unreadable"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def kinds_of(reply: Reply) -> Iterator[Kind]:
    """What a reply shows without a verdict being read in it: no word, refused, no room for the prompt, cut off at the limit."""
    if reply.refused:
        yield "refusal"
    elif reply.finish_reason == "context_overflow":
        yield "context_overflow"
    elif not reply.text.strip():
        yield "empty"
    if reply.finish_reason == "length":
        yield "length"


@dataclass
class Retry:
    """The kinds of stored answers that are asked again, each answer once a command. Nothing is ever drawn again in silence."""

    kinds: Collection[Kind] = ()
    done: set[str] = field(default_factory=set)
    """Keys of the calls that were asked again: their new answers stand."""

    @classmethod
    def parse(cls, text: str | None) -> Retry:
        """From `empty,refusal`; `UserError` for an unknown kind."""
        names = [name.strip() for name in (text or "").split(",") if name.strip()]
        for name in names:
            if name not in KINDS:
                raise UserError(f"--retry {name}: no such kind of answer: {near(name, KINDS)}")
        return cls([kind for kind in KINDS if kind in names])

    def reason(self, key: str, reply: Reply, readable: Callable[[str], bool] | None) -> Kind | None:
        """Why the stored answer of a call is asked again; None where it stands. `readable` tells whether a verdict can be read
        in it (None: none is asked for)."""
        if not self.kinds or key in self.done:
            return None
        kinds = set(kinds_of(reply))
        if "unreadable" in self.kinds and readable and not readable(reply.text):
            kinds.add("unreadable")
        return next((kind for kind in self.kinds if kind in kinds), None)
