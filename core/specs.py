"""Model specs: a model's checkpoint or endpoint, its sampling and its server. One YAML file per model in configs/models."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from core.endpoints import FORM, SPEC_FILES, Endpoint, address_of, check_key_variable, is_loopback, record_name, secret_of
from core.errors import UserError, near
from core.files import CONFIGS, digest, read_text, sha256_file
from core.languages import PAPER_LANGUAGES, lineage
from core.machine import Precision, precision
from core.records import Language
from core.settings import Settings, read_named

PlayRole = Literal["seeker", "supporter", "judge"]
Group = Literal["closed", "open", "domain"]
EMBEDDED_PREFIX = "embedded:"
BUNDLED_PREFIX = "bundled:"
BUNDLED_ADAPTERS = Path(__file__).parent.parent / "serve" / "checkpoints" / "adapters"
CHAT_TEMPLATES = CONFIGS / "chat_templates"
REASONING_TOKENS = 4096


class Sampling(Settings):
    """How replies are sampled."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = 0.0
    """0 is greedy: always the likeliest token. Null: the server decides, by the checkpoint's generation_config if launched."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = 1.0
    """Probability mass of nucleus sampling. Null: the server decides."""
    max_tokens: Annotated[int, Field(gt=0, le=2**31)] = 512
    """Limit on the tokens of a reply."""
    reasoning_tokens: Annotated[int, Field(ge=0, le=2**31)] | None = Field(default=None, exclude_if=lambda most: most is None)
    """Tokens for reasoning besides the reply. Null: 4,096, or half of `context_length` if less. 0: no room of its own."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    """The run's seed, from which every call derives its own. Null: no seed is sent."""


class ServeOptions(Settings):
    """How the launcher starts this checkpoint. Servers listen on 127.0.0.1."""

    engine: Literal["vllm"] = "vllm"
    """The server program. There is one; studies in progress have it in their stored specs."""
    unservable: str | None = None
    """Why the installed vLLM cannot serve the checkpoint. It can still be used at a URL."""
    tensor_parallel: Annotated[int, Field(ge=1, le=2**16)] | None = None
    """GPUs over which one copy of the model is split. Null: as few as possible."""
    data_parallel: Annotated[int, Field(ge=1, le=2**16)] = 1
    """Copies of the model in one server, with one queue; unlike with `replicas`, a dialogue does not stay on one of them."""
    data_parallel_local: Annotated[int, Field(ge=1)] | None = None
    """Copies on each machine of a Ray cluster; the server starts on its head. Null: all on this machine."""
    replicas: Annotated[int, Field(ge=1, le=256)] = 1
    """Equal servers behind one router (`vllm-router`)."""
    router: Literal["consistent_hash", "sticky_least_loaded", "cache_aware"] = "consistent_hash"
    """The router's policy. `consistent_hash` keeps a dialogue, and so its prefix, on one replica; `sticky_least_loaded` also
    balances new dialogues; `cache_aware` prefers the longest known prefix."""
    dtype: Literal["auto"] | Precision = "bfloat16"
    """The server's precision; most checkpoints are published in bfloat16. auto: bfloat16 if the GPU or CPU has instructions
    for it, otherwise float32 on a CPU and float16 on a GPU. Answers of two precisions are never mixed."""
    fp8: tuple[Literal["weights", "cache"], ...] = ()
    """Parts stored in 8 bits: the weights of linear layers, the cache. This changes answers, so it is part of the identity."""
    merge_adapter: bool = True
    """Serve a single adapter merged into a copy of its base (cached by content): unmerged, decoding is 10 to 30 % slower."""
    architecture: str | None = None
    """For plans before the download: a key of configs/serve/architectures.yaml, or a folder with a config.json."""
    eager: bool = False
    """Run without compilation and CUDA graphs: starts faster, answers more slowly."""
    trust_remote_code: bool = False
    """Run the checkpoint's own code: read it first."""
    reasoning_parser: str | None = None
    """The name of vLLM's parser that removes reasoning from replies."""
    extra_args: tuple[str, ...] = ()
    """Further options of vLLM, one word per entry."""
    public: bool = Field(default=False, exclude_if=lambda public: not public)
    """Let `extra_args` name another host: the server needs no key, so anybody who can reach that address can use it."""

    @model_validator(mode="after")
    def _allowed(self) -> ServeOptions:
        for place, word in enumerate(self.extra_args):
            option, sign, value = word.partition("=")
            if len(option) > 3 and "--host".startswith(option):  # vLLM's parser accepts abbreviated options
                address = value if sign else "".join(self.extra_args[place + 1 : place + 2])
                if not self.public and not is_loopback(address):
                    why = "anybody who can reach this machine could use the server; if that is intended, set serve.public: true"
                    raise ValueError(f"extra_args: {option} {address}: {why}")
        if self.data_parallel_local is not None and self.data_parallel % self.data_parallel_local:
            raise ValueError("data_parallel is not a multiple of data_parallel_local, the copies on each machine")
        if self.data_parallel_local is not None and self.replicas > 1:
            raise ValueError("replicas are on one machine, data_parallel_local is over several: choose one of them")
        return self


class Floor(Settings):
    """A supporter without a model. It exposes a judge that rates it as highly as a model."""

    kind: Literal["fixed", "parrot", "reference"]
    """fixed: always says `text`. parrot: repeats the seeker's last line. reference: repeats the source dialogue's supporter."""
    text: dict[Language, str] = Field(default={})
    """The text by language; a parrot uses it only before the seeker has spoken."""


class ModelSpec(Settings):
    """A model that can play seeker, supporter or judge: a checkpoint to serve, an endpoint, or both."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
    """Its name in commands, records and reports."""
    about: str = ""
    """A sentence that helps people choose."""
    serving: str = ""
    """How it is served, with which chat template, and why: for people."""
    roles: tuple[PlayRole, ...] = ("seeker", "supporter", "judge")
    """The roles that it can play."""
    languages: tuple[Language, ...] = PAPER_LANGUAGES
    """The languages that it speaks. If a spec does not set this, any language may be used."""
    checkpoint: str | None = None
    """A hub id, a folder, or `embedded:NAME` for the model in this package. Null: it exists only behind an endpoint."""
    revision: str | None = None
    """Commit, branch or tag of a hub id. A commit is best: anything else may change."""
    adapter: str | None = None
    """A LoRA adapter on the checkpoint: a hub id, a folder, or `bundled:NAME` for one in this package."""
    adapters: dict[Language, dict[str, str]] | None = None
    """Language → dimension → adapter (the published ESC-RANK: 2 × 7), instead of `adapter`."""
    adapter_revision: str | None = None
    """Commit, branch or tag of the adapters' hub ids."""
    endpoint: Endpoint = Endpoint()
    """The server that answers; by default one is started for it."""
    sampling: Sampling = Sampling()
    """How its replies are sampled, unless a config says otherwise."""
    paper_sampling: Sampling | None = Field(default=None, exclude_if=lambda sampling: sampling is None)
    """Sampling in ESC-Eval's published script, for seekers and supporters in paper mode. Null: the script lacks this model,
    which then answers at temperature 0 (appendix C.2) in 512 tokens."""
    context_length: Annotated[int, Field(gt=0, le=2**31)] | None = None
    """Tokens of prompt and reply together. Needed to launch a server."""
    system: str | None = Field(default=None, exclude_if=lambda system: system is None)
    """Its system message as a supporter: text, or the path of a text file. It replaces a framework's own."""
    learnt: tuple[str, ...] = Field(default=(), exclude_if=lambda learnt: not learnt)
    """Prompt packs (names in configs/prompts, or folders) with which a judge or seeker was trained. The first is used; other
    packs are refused. Empty: not trained with a pack, so the model gets full instructions."""
    learnt_methods: tuple[str, ...] = Field(default=(), exclude_if=lambda methods: not methods)
    """Methods (`paper`, `per_dimension`, `joint`) with which a judge was trained; others are refused. Empty: any."""
    chat_template: str | None = None
    """Replaces the checkpoint's own: a name in configs/chat_templates, the path of a Jinja file, or Jinja text."""
    think_tags: tuple[str, str] = ("<think>", "</think>")
    """The tags around the reasoning in a reply, which is removed."""
    think_in_prompt: bool = False
    """The chat template opens the reasoning block itself: a reply without the closing tag is all reasoning."""
    serve: ServeOptions = ServeOptions()
    """How to start a server for it."""
    licence: str | None = None
    """The checkpoint's licence, for people and model cards."""
    group: Group | None = Field(default=None, exclude_if=lambda group: group is None)
    """The group of supporters, as in ESC-Eval's table 2 and EmoHarbor's table 3; leaderboards show it."""
    floor: Floor | None = Field(default=None, exclude_if=lambda floor: floor is None)
    """Makes it a supporter without a model."""

    @model_validator(mode="after")
    def _consistent(self) -> ModelSpec:
        hears = self.endpoint.turn is None or "{messages}" in str(self.endpoint.turn.request)
        if self.system is not None and (self.floor or not hears):
            raise ValueError("system: leave it out: floors, and agents whose request has no {messages}, never see it")
        if self.floor:
            if self.checkpoint is not None or self.endpoint.base_url is not None or self.roles != ("supporter",):
                raise ValueError("a floor can only be a supporter, without checkpoint and endpoint")
            if self.floor.kind != "reference" and (missing := set(self.languages) - set(self.floor.text)):
                raise ValueError(f"floor.text: none in {', '.join(sorted(missing))}; add it, or shorten languages")
            return self
        if self.endpoint.kind == "agent" and ("judge" in self.roles or self.checkpoint is not None):
            raise ValueError("an agent has no checkpoint and cannot judge: write roles: [supporter], or [seeker, supporter]")
        if self.adapter and self.adapters:
            raise ValueError("adapter and adapters exclude each other")
        if self.checkpoint is None and self.endpoint.base_url is None:
            raise ValueError("a spec needs a checkpoint to serve or an endpoint.base_url to call")
        if self.checkpoint is not None and self.context_length is None:
            raise ValueError("context_length is needed to serve a checkpoint")
        if self.context_length is not None and self.sampling.max_tokens >= self.context_length:
            raise ValueError("sampling.max_tokens leaves no room in context_length")
        return self

    @property
    def reasoning_room(self) -> int:
        """Tokens for reasoning in addition to a reply."""
        if self.sampling.reasoning_tokens is not None:
            return self.sampling.reasoning_tokens
        return min(REASONING_TOKENS, (self.context_length or 2 * REASONING_TOKENS) // 2)

    @property
    def dtype(self) -> Precision:
        """Its server's precision on this machine."""
        return precision()[0] if self.serve.dtype == "auto" else self.serve.dtype

    def adapter_places(self) -> list[str]:
        """Its adapters as the spec names them: none, one, or one per language and dimension."""
        by_dimension = (self.adapters or {}).values()
        return [*filter(None, [self.adapter]), *(place for places in by_dimension for place in places.values())]

    def speaks(self, language: Language) -> bool:
        """Whether it speaks a language, which is assumed if the spec does not set `languages`."""
        return "languages" not in self.model_fields_set or not set(self.languages).isdisjoint(lineage(language))

    def served_name(self, language: Language | None = None, dimension: str | None = None) -> str:
        """The `model` of a request."""
        if self.adapters is not None and language and dimension:
            return f"{self.name}.{language}.{dimension}"
        return self.endpoint.model or self.name

    def api_key(self) -> str | None:
        """The key from the environment; None if the spec names no variable. Raises `UserError` if the variable is not set."""
        variable = self.endpoint.api_key_env
        if variable is None:
            return None
        check_key_variable(variable, f"model {self.name}: api_key_env")
        return secret_of(variable, f"model {self.name}")

    def fingerprint(self) -> str:
        """A hash of the weights and settings that determine answers, which is part of every call's key: the weight files of
        local folders, hub ids and revisions, names of remote models, the precision; not the port or address."""
        weights: list[object] = [self.checkpoint, self.revision, self.adapter, self.adapters, self.adapter_revision]
        for place in filter(None, [self.checkpoint, *self.adapter_places()]):
            folder = place_of(place)
            if folder.is_dir():
                weights += [[f.name, sha256_file(f)] for f in sorted(folder.glob("*.safetensors"))]
        eight_bits = [sorted(self.serve.fp8)] if self.serve.fp8 else []
        extras = self.endpoint.extra_body, self.endpoint.query, sorted(self.endpoint.headers)
        added = [extras] if any(extras) else []
        return digest([weights, self.served_name(), self.template(), self.dtype, *eight_bits, *added], 16)

    def template(self) -> str | None:
        """The text of `chat_template`; None for the checkpoint's own."""
        file = self.template_file()
        return file.read_text(encoding="utf-8") if file else self.chat_template

    def template_file(self) -> Path | None:
        """The file that `chat_template` names; None for Jinja text or no template. Raises `UserError` if it is missing."""
        place = self.chat_template
        if place is None or "{" in place:
            return None
        bundled = CHAT_TEMPLATES / f"{place}.jinja"
        file = bundled if bundled.is_file() else Path(place).expanduser()
        if not file.is_file():
            names = near(place, (path.stem for path in CHAT_TEMPLATES.glob("*.jinja")))
            raise UserError(f"model {self.name}: chat_template not found: {place}: {names}")
        return file.absolute()


@cache
def packs_without_rules() -> dict[str, str]:
    """Bundled packs that leave the rules out → the bundled ranker that was trained with them. Seekers' packs and the published
    prompts (in a folder of the user's) have full instructions."""
    rankers = (spec for spec in map(load_spec, model_names()) if spec.roles == ("judge",))
    return {pack: spec.name for spec in rankers for pack in reversed(spec.learnt) if "/" not in pack}


def place_of(place: str) -> Path:
    """A checkpoint or adapter in a spec as a path, which need not exist; `bundled:NAME` is in this package."""
    if place.startswith(BUNDLED_PREFIX):
        name = place.removeprefix(BUNDLED_PREFIX)
        if not re.fullmatch(r"[\w-][\w.-]*", name):
            raise UserError(f"{place}: {BUNDLED_PREFIX} takes the name of an adapter of this package, not a path")
        return BUNDLED_ADAPTERS / name
    try:
        return Path(place).expanduser()
    except RuntimeError:  # ~NAME of an unknown user
        return Path(place)


def prompt_file(prompt: str) -> Path | None:
    """The file that a prompt names, what exists or a single word with a suffix; None if it is the text itself."""
    named = len(prompt.split()) == 1 and Path(prompt).suffix != ""
    return Path(prompt) if named or (0 < len(prompt.encode()) < 250 and Path(prompt).exists()) else None


def prompt_text(prompt: str, folder: Path = Path()) -> str:
    """The text of a prompt, given directly or as a file, which is first looked up in `folder`. Raises `UserError` for a missing
    file or an empty text."""
    file = prompt_file(prompt)
    file = folder / file if file and (folder / file).is_file() else file
    text = (read_text(file, "system prompt") if file else prompt).strip()
    if not text:
        raise UserError(f"system prompt {prompt!r}: empty")
    return text


def model_names() -> list[str]:
    """The names of all bundled specs."""
    return sorted(path.stem for path in (CONFIGS / "models").glob("*.yaml"))


def load_spec(name: str) -> ModelSpec:
    """A spec by name (configs/models), by the path of a YAML file, or as NAME@URL for a served model (`core.endpoints`): that
    spec at the URL, or else a default spec for the server's name. A key is only sent to the URL that it was given for."""
    address = address_of(name)
    if address is None:
        return _read_spec(name)
    endpoint: dict[str, object] = {"base_url": address.url, "api_key_env": address.key_variable}
    if address.name.endswith(SPEC_FILES) or address.name in model_names():
        spec = _read_spec(address.name)
        if spec.floor:
            raise UserError(f"model {spec.name}: a floor has no model, and so no address")
        changed = Endpoint.model_validate(spec.endpoint.model_dump(exclude_unset=True) | endpoint | {"headers": {}})
        return spec.model_copy(update={"endpoint": changed})
    spec_name = record_name(address.name, f"model-{digest(address.name, 8)}")
    served = address.name if address.name != spec_name else None
    return ModelSpec(name=spec_name, endpoint=Endpoint.model_validate(endpoint | {"model": served}))


def _read_spec(name: str) -> ModelSpec:
    if not name.endswith(SPEC_FILES) and name not in model_names():
        raise UserError(f"unknown model {name[:100]!r}: {near(name[:100], model_names())} (for a served model: {FORM})")
    spec = read_named("models", name, ModelSpec, "model")
    return spec if spec.system is None else spec.model_copy(update={"system": prompt_text(spec.system, Path(name).parent)})
