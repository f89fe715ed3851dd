"""One dialogue before a judge whose model is a scripted endpoint."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from core.endpoints import Endpoint as SpecEndpoint
from core.records import Dialogue, Judgement
from core.specs import ModelSpec, Sampling
from evalsuite.judge.judge import Judge
from serve.client import ChatClient
from serve.store import CallStore
from tests.endpoint import Answer, Endpoint

Behave = Callable[[dict[str, Any], int], Answer]
FIELDS: dict[str, Any] = {"name": "judge", "about": "", "roles": ("judge",), "languages": ("en", "zh")}


async def ask_judge(
    folder: Path,
    behave: Behave,
    dialogue: Dialogue,
    *judge: Any,
    endpoint: Mapping[str, Any] = {},
    attempts: int = 2,
    more: Mapping[str, Any] = {},
    **spec: Any,
) -> tuple[list[Judgement], list[dict[str, Any]]]:
    """The judgements and what the model was asked. `judge` and `more` are what a `Judge` takes after client and spec;
    `endpoint` and `spec` change the spec."""
    with Endpoint(behave, models=("judge",)) as served:
        address = SpecEndpoint.model_validate({"base_url": served.url, "constraint": "structured_outputs"} | dict(endpoint))
        model = ModelSpec(**FIELDS | {"sampling": Sampling(max_tokens=50)} | spec, endpoint=address)
        store = CallStore(folder / "calls.sqlite")
        async with ChatClient(store, backoff_s=0.001, attempts=attempts) as client:
            judgements = await Judge(client, model, *judge, **more).score(dialogue)
        store.close()
        return judgements, served.requests
