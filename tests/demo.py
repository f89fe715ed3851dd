"""configs/eval/demo.yaml for tests: no floors, and the embedded model judges too, in one request per dialogue."""

from typing import Any

import yaml

from core.files import CONFIGS

DEMO = CONFIGS / "eval" / "demo.yaml"
# The same on the command line.
EMBEDDED_JUDGE = ("--judge", "embedded")


def demo_config(**changes: Any) -> dict[str, Any]:
    """The demo's settings, some of them changed."""
    settings: dict[str, Any] = yaml.safe_load(DEMO.read_text())
    return settings | {"judge": "embedded", "method": "joint", "floors": False} | changes
