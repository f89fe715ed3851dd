"""vLLM's own InternLM2 as an independent judge of the conversions: same weights, other people's code."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from serve.checkpoints.internlm2 import convert_adapter, convert_checkpoint
from tests.conftest import ONE_THREAD
from tests.serve.internlm2 import CONFIG
from tests.serve.test_internlm2 import Source, source, tokenizer_files
from tests.serve.test_internlm2_adapter import lora

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]
__all__ = ["source", "tokenizer_files"]

PROMPT = [1, 7, 300, 45, 45, 2, 459, 11, 270, 88, 5, 131, 17, 402, 64, 3]
# transformers has no config class for InternLM2 any more; vLLM asks for one before it takes its own model.
CONFIG_CLASS = """
from transformers import PretrainedConfig
class InternLM2Config(PretrainedConfig):
    model_type = "internlm2"
"""
# For each (checkpoint, adapter): the prompt's log-probabilities, without and with the adapter, as {token: value} a position.
SCORE = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.lora.request import LoRARequest
prompt, out = json.loads(sys.argv[1]), sys.argv[2]
asked = SamplingParams(max_tokens=1, prompt_logprobs=480, detokenize=False)
answers = []
for folder, adapter in zip(sys.argv[3::2], sys.argv[4::2]):
    llm = LLM(folder, skip_tokenizer_init=True, trust_remote_code=True, dtype="float32", enforce_eager=True, max_model_len=32,
              gpu_memory_utilization=0.2, max_logprobs=480, enable_lora=True, max_lora_rank=8)
    scores = []
    for request in (None, LoRARequest("a", 1, adapter)):
        (answer,) = llm.generate([{"prompt_token_ids": prompt}], asked, lora_request=request)
        scores.append([{token: entry.logprob for token, entry in row.items()} for row in answer.prompt_logprobs[1:]])
    answers.append([llm.llm_engine.model_config.architecture, *scores])
    del llm
    cleanup_dist_env_and_memory()
json.dump(answers, open(out, "w"))
"""


def vllm_scores(pairs: list[tuple[Path, Path]], folder: Path) -> list[tuple[str, Any, Any]]:
    """For each checkpoint and adapter what vLLM, in a process of its own, gives for `PROMPT`: the architecture that it took,
    and the log-probabilities [tokens - 1, vocabulary] without and with the adapter."""
    out = folder / "scores.json"
    environment = {
        **os.environ,
        **ONE_THREAD,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_USE_AOT_COMPILE": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process: each further one would import vLLM again
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hf"),  # where the test's own config class is copied to
    }
    command = [sys.executable, "-c", SCORE, json.dumps(PROMPT), str(out), *(str(place) for pair in pairs for place in pair)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=550)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]

    def matrix(rows: list[dict[str, float]]) -> Any:
        return torch.tensor([[row[str(token)] for token in range(480)] for row in rows])

    return [(name, matrix(plain), matrix(adapted)) for name, plain, adapted in json.loads(out.read_text())]


def test_vllms_internlm2_and_the_converted_model_agree(source: Source, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = source(auto_map={"AutoConfig": "configuration_internlm2.InternLM2Config"})
    (folder / "configuration_internlm2.py").write_text(CONFIG_CLASS)
    lora(tmp_path / "adapter")
    convert_checkpoint(folder, tmp_path / "llama")
    convert_adapter(tmp_path / "adapter", tmp_path / "converted", folder)
    judge, ours = vllm_scores([(folder, tmp_path / "adapter"), (tmp_path / "llama", tmp_path / "converted")], tmp_path)

    assert (judge[0], ours[0]) == ("InternLM2ForCausalLM", "LlamaForCausalLM")
    assert judge[1].shape == (len(PROMPT) - 1, CONFIG["vocab_size"]) and judge[1].std() > 0.1
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    with torch.no_grad():
        in_transformers = model(torch.tensor([PROMPT])).logits[0, :-1].log_softmax(-1)
    assert (in_transformers - judge[1]).abs().max() < 1e-4
    assert (ours[1] - judge[1]).abs().max() < 1e-4
    assert (judge[2] - judge[1]).abs().max() > 0.1, "the adapter changes something"
    assert (ours[2] - judge[2]).abs().max() < 1e-4
