"""What a run is, as JSON: a run folder is claimed with it, and the same folder with another config is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from core.files import digest
from core.specs import ModelSpec

# Fields of an endpoint that say how it is reached and what it may cost, not what is asked there: they may change in a run.
_NOT_ASKED = {"base_url", "api_key_env", "max_response_mb", "any_model", "price", "requests_per_minute", "tokens_per_minute"}


def hashed(records: Sequence[BaseModel]) -> dict[str, Any]:
    """Records by their number and hash."""
    return {"count": len(records), "sha256": digest([record.model_dump(mode="json") for record in records])}


def identity(spec: ModelSpec) -> dict[str, Any]:
    """What a model is, without where it answers: ports and addresses of servers may change between tries of one run."""
    kept = spec.model_dump(mode="json", exclude={"about", "roles", "licence", "endpoint", "serve"})
    asked = spec.endpoint.model_dump(mode="json", exclude=_NOT_ASKED)
    return kept | {"endpoint": asked, "dtype": spec.serve.dtype, "fingerprint": spec.fingerprint()}
