"""vLLM's own parser of a server's command line."""

import importlib.metadata
from typing import Any

from core.machine import gpu_problem


def blind() -> bool:
    """Whether this is a GPU node's set on a machine without a GPU (make test-gpu-set): servers cannot be planned for it."""
    try:
        version = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return False
    return "+" not in version and gpu_problem() is not None


def give_a_device() -> None:
    """vLLM's configs and parser take their defaults from some device: where a GPU's vLLM finds none, from the CPU."""
    from vllm import platforms

    if not platforms.current_platform.device_type:
        from vllm.platforms.cpu import CpuPlatform

        platforms._current_platform = CpuPlatform()


def server_parser() -> Any:
    """As `vllm serve` and the API server's module make it."""
    give_a_device()
    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser  # 0.32
    except ImportError:
        from vllm.entrypoints.common.cli_args import make_arg_parser  # 0.33
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser())
