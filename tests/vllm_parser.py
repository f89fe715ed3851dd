"""vLLM's own parser of a server's command line."""

from __future__ import annotations

from typing import Any


def server_parser() -> Any:
    """As `vllm serve` and the API server's module make it."""
    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser  # 0.32
    except ImportError:
        from vllm.entrypoints.common.cli_args import make_arg_parser  # 0.33
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser())
