"""The identity of a run as JSON, with which it claims its folder: a folder with another identity is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, PrivateAttr

from core.endpoints import Endpoint
from core.files import validated
from core.languages import PAPER_LANGUAGES
from core.specs import ModelSpec, ServeOptions

# Fields of an endpoint that say how it is reached and what it may cost, not what is asked there: they may change in a run.
_NOT_ASKED = {
    "base_url",
    "api_key_env",
    "ca_bundle",
    "verify",
    "headers",  # their names are in the fingerprint
    "max_response_mb",
    "any_model",
    "lists_models",
    "price",
    "requests_per_minute",
    "tokens_per_minute",
}
# What a spec says of its use, and what has a line of its own.
_NOT_THE_MODEL = {"about", "serving", "roles", "learnt", "learnt_methods", "paper_sampling", "licence", "endpoint", "serve"}


def hashed(records: Sequence[BaseModel]) -> dict[str, Any]:
    """The number of records and the `digest` of their list, computed record by record."""
    parts = (orjson.dumps(record.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS) for record in records)
    whole = hashlib.sha256(b"[")
    for place, part in enumerate(parts):
        whole.update(b"," + part if place else part)
    whole.update(b"]")
    return {"count": len(records), "sha256": whole.hexdigest()}


def identity(spec: ModelSpec) -> dict[str, Any]:
    """A model's identity, without its address: ports and addresses of servers may change between tries of a run."""
    if isinstance(spec, HeldSpec):
        return spec.claimed
    kept = spec.model_dump(mode="json", exclude=_NOT_THE_MODEL)
    endpoint = spec.endpoint.model_dump(mode="json", exclude=_NOT_ASKED)
    eight_bits = {"fp8": sorted(spec.serve.fp8)} if spec.serve.fp8 else {}
    return kept | {"endpoint": endpoint, "dtype": spec.dtype, **eight_bits, "fingerprint": spec.fingerprint()}


class HeldSpec(ModelSpec):
    """A model whose answers are in a run folder, as the folder's config has it. Its weights and its server may be gone: it is
    only needed to find its stored answers."""

    _claimed: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, claimed: dict[str, Any], where: Path) -> HeldSpec:
        """The spec for an entry that `identity` wrote into the config at `where`. Raises `UserError` if the entry is damaged."""
        fields = {name: value for name, value in claimed.items() if name in cls.model_fields}
        endpoint = {name: value for name, value in fields.pop("endpoint", {}).items() if name in Endpoint.model_fields}
        if fields.get("languages") == [*PAPER_LANGUAGES]:  # what a spec that says nothing has, too
            del fields["languages"]
        endpoint |= {} if fields.get("floor") else {"base_url": "http://nowhere.invalid/v1"}
        fields |= {"endpoint": endpoint, "about": "held", "roles": ("supporter",)}
        fields |= {"serve": {"dtype": claimed.get("dtype", ServeOptions().dtype)}}
        spec = validated(cls, fields, f"{where}: simulate.supporters")
        spec._claimed = claimed
        return spec

    @property
    def claimed(self) -> dict[str, Any]:
        """Its entry in the config."""
        return self._claimed

    def fingerprint(self) -> str:
        """The fingerprint of the weights that answered."""
        return str(self._claimed.get("fingerprint", ""))
