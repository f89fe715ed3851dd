"""How long vLLM's steps take a shape with random weights, alone on a GPU (or on the CPU).

`python -m tests.bench.step_times FOLDER [COUNT …]`, where FOLDER has a config.json, writes steps.json there. Under `steps`
stands, for each count of dialogues at once, how many seconds a step took that gave each of them a token, with `prompt` tokens
before it and half of `new`; `read` is how many tokens of prompts a second are read, `cache` how many the cache holds.
"""

import random
import sys
import time
from pathlib import Path

from core.files import write_json

PROMPT, NEW = 1200, 64


def main() -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(
        sys.argv[1],
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=2 * PROMPT,
        enable_prefix_caching=False,
        seed=0,
    )
    draw = random.Random(0)

    def seconds(count: int, new: int) -> float:
        prompts = [{"prompt_token_ids": [draw.randrange(100, 30_000) for _ in range(PROMPT)]} for _ in range(count)]
        sampling = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False)
        begun = time.perf_counter()
        written = llm.generate(prompts, sampling, use_tqdm=False)
        assert all(len(one.outputs[0].token_ids) == new for one in written)
        return time.perf_counter() - begun

    seconds(2, 4)  # what is compiled or allocated at first use
    steps, read = {}, 0.0
    for count in map(int, sys.argv[2:] or ["1", "16", "64"]):
        reading = seconds(count, 1)
        steps[str(count)] = (seconds(count, 1 + NEW) - reading) / NEW
        read = count * PROMPT / reading
    cache = llm.llm_engine.vllm_config.cache_config
    tokens = (cache.num_gpu_blocks or 0) * cache.block_size
    found = {"prompt": PROMPT, "new": NEW, "steps": steps, "read": read, "cache": tokens}
    write_json(Path(sys.argv[1]) / "steps.json", found)


if __name__ == "__main__":
    main()
