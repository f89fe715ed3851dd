"""Runs HealthBench's own script from a clone of openai/simple-evals, on a file of cases and an endpoint of ours:

    python healthbench_script.py CLONE CASES URL MODEL

Prints its metrics as JSON. What it imports and does not need here (the vendor's client, cloud files, data frames, a progress
bar) is stood in for; `ChatCompletionSampler` is its own.
"""

import importlib
import json
import sys
import urllib.request
from io import BytesIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

clone, cases, url, model = sys.argv[1:]


class OpenAI:
    """Its client, which posts to our endpoint."""

    def __init__(self) -> None:
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    def create(self, **body: Any) -> Any:
        request = urllib.request.Request(
            f"{url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            text = json.load(answer)["choices"][0]["message"]["content"]
        message = SimpleNamespace(message=SimpleNamespace(content=text))
        return SimpleNamespace(choices=[message], usage=None)


stand_ins: dict[str, Any] = {name: MagicMock() for name in ("pandas", "requests", "tqdm", "blobfile", "openai")}
stand_ins["tqdm"].tqdm = lambda whole, **_: whole
stand_ins["blobfile"].BlobFile = lambda *_: BytesIO(Path(cases).read_bytes())
stand_ins["openai"].OpenAI = OpenAI
stand_ins["openai"].BadRequestError = ZeroDivisionError
sys.modules.update(stand_ins)
package = ModuleType("simple_evals")
package.__path__ = [str(Path(clone))]
sys.modules["simple_evals"] = package
script = importlib.import_module("simple_evals.healthbench_eval")
samplers = importlib.import_module("simple_evals.sampler.chat_completion_sampler")
told = samplers.OPENAI_SYSTEM_MESSAGE_API
grader = samplers.ChatCompletionSampler(model="grader", system_message=told, max_tokens=2048)
asked = samplers.ChatCompletionSampler(model=model, system_message=told, max_tokens=2048)
result = script.HealthBenchEval(grader_model=grader, n_threads=1)(asked)
print(json.dumps({name: float(value) for name, value in result.metrics.items()}))
