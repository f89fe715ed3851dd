"""The environment of other people's libraries that cannot be in ours (make setup-peers)."""

import os
from pathlib import Path

import pytest

PEERS = Path(__file__).resolve().parents[1] / ".venv-peers" / "bin" / "python"


def python_with(library: str) -> Path:
    """The Python that has a library; without it the test is skipped, and fails where CI runs."""
    if not PEERS.exists():
        message = f"{library} is not here: make setup-peers"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    return PEERS


def packages_with(library: str) -> Path:
    (folder,) = (python_with(library).parents[1] / "lib").glob("python3*/site-packages")
    return folder
