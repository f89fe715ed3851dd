"""lm-eval's tasks asked of a rule instead of a model. A module of its own, since lm-eval takes seconds to import."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.api.model import LM

HARNESS = Path(lm_eval.__file__).parent / "tasks"


class Scripted(LM):
    """Prefers options by a rule of the test; says the same in words every time."""

    def __init__(self, likes: Callable[[str, str], float], says: str = "") -> None:
        super().__init__()
        self.likes, self.says, self.asked = likes, says, 0

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        self.asked += len(requests)
        return [(self.likes(*request.args), False) for request in requests]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        self.asked += len(requests)
        return [self.says for _ in requests]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        raise NotImplementedError
