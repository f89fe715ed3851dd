"""`python -m tests.vllm_stand_in` in place of vLLM's server.

It takes vLLM's command line, answers as tests/endpoint.py does, and notes in the file that STAND_IN_LOG names when it began,
when it ended and how often it was asked. One whose model STAND_IN_DYING names ends at once.
"""

import argparse
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

from tests.endpoint import Endpoint


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--port", type=int)
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--gpu-memory-utilization")
    parser.add_argument("--max-model-len")
    chosen, _ = parser.parse_known_args()
    (name, *_) = names = chosen.served_model_name
    if name in os.environ.get("STAND_IN_DYING", "").split(","):
        print("ValueError: the moon is full", flush=True)
        sys.exit(1)

    def note(what: str) -> None:
        with Path(os.environ["STAND_IN_LOG"]).open("a") as log:
            log.write(f"{name} {what}\n")

    length = f"{int(chosen.max_model_len):,}"
    print(f"GPU KV cache size: 90,000 tokens, Maximum concurrency for {length} tokens per request: 9.50x", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Endpoint(models=tuple(names), port=chosen.port, health=True) as endpoint:
        note(f"up {os.environ.get('CUDA_VISIBLE_DEVICES', 'all')} {chosen.gpu_memory_utilization} {chosen.max_model_len}")
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
        note(f"down {len(endpoint.requests)}")


if __name__ == "__main__":
    main()
