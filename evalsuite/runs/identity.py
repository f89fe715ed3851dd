"""The identity of models and records as JSON. Run folders are claimed with it and refuse another."""

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

# How an endpoint is reached and what it costs. These may change during a run, since answers do not depend on them.
_REACHED = {
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
# How a spec is used, and fields that `identity` adds itself.
_NOT_THE_MODEL = {"about", "serving", "roles", "learnt", "learnt_methods", "paper_sampling", "licence", "endpoint", "serve"}


def hashed(records: Sequence[BaseModel]) -> dict[str, Any]:
    """The number of records and the `digest` of their list, with one record in memory at a time."""
    parts = (orjson.dumps(record.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS) for record in records)
    whole = hashlib.sha256(b"[")
    for place, part in enumerate(parts):
        whole.update(b"," + part if place else part)
    whole.update(b"]")
    return {"count": len(records), "sha256": whole.hexdigest()}


def identity(spec: ModelSpec) -> dict[str, Any]:
    """A model without its address: ports and hosts of servers may change between tries of a run."""
    if isinstance(spec, HeldSpec):
        return spec._claimed
    kept = spec.model_dump(mode="json", exclude=_NOT_THE_MODEL)
    endpoint = spec.endpoint.model_dump(mode="json", exclude=_REACHED)
    eight_bits = {"fp8": sorted(spec.serve.fp8)} if spec.serve.fp8 else {}
    return kept | {"endpoint": endpoint, "dtype": spec.dtype, **eight_bits, "fingerprint": spec.fingerprint()}


class HeldSpec(ModelSpec):
    """A model with answers in a run folder, as the folder's config describes it. Stored answers are found by this identity. It
    needs neither weights nor a server, since it gets no further calls."""

    _claimed: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, claimed: dict[str, Any], where: Path) -> HeldSpec:
        """From what `identity` wrote into the config at `where`. Raises `UserError` if that is damaged."""
        fields = {name: value for name, value in claimed.items() if name in cls.model_fields}
        endpoint = {name: value for name, value in fields.pop("endpoint", {}).items() if name in Endpoint.model_fields}
        if fields.get("languages") == [*PAPER_LANGUAGES]:  # the default, which specs leave out
            del fields["languages"]
        endpoint |= {} if fields.get("floor") else {"base_url": "http://nowhere.invalid/v1"}
        fields |= {"endpoint": endpoint, "about": "held", "roles": ("supporter",)}
        fields |= {"serve": {"dtype": claimed.get("dtype", ServeOptions().dtype)}}
        spec = validated(cls, fields, f"{where}: simulate.supporters")
        spec._claimed = claimed
        return spec

    def fingerprint(self) -> str:
        """The fingerprint of the weights that answered."""
        return str(self._claimed.get("fingerprint", ""))
