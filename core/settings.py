"""What the models of our YAML files are made of."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Settings(BaseModel):
    """Base of what a YAML file holds: immutable, unknown fields rejected, NaN refused; the text below a field explains it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"pattern {text!r}: {error}") from None


Pattern = Annotated[re.Pattern[str], BeforeValidator(_compiled)]  # without regard to case
