"""ESConv (Liu et al., ACL 2021): crowdsourced emotional-support dialogues with the seeker's situation and survey.

Three published forms: the original JSON (`ESConv.json`, also `FailedESConv.json`), and two JSON-lines splits whose turns say
`usr`/`sys` (FADO's, with the survey; MultiESC's, with the turns of one side merged, without the survey). MultiESC has the
same dialogues as ESConv in another order: it is a corpus of its own here (`esconv_multi`), so that ids do not collide.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import AliasChoices, AliasPath, BeforeValidator, Field

from core.records import Number, SupportDialogue
from core.rows import RowModel, by_row
from data_prep.sources.support import ROLES, by_role, support_dialogue

MISSING = -1  # the split files' mark for a survey question that was not answered


# A survey answer 1–5; None where it is missing.
Score = Annotated[
    Annotated[Number, Field(ge=1, le=5)] | None,
    BeforeValidator(lambda value: None if value in ("", MISSING, str(MISSING)) else value),
]


class _Utterance(RowModel):
    speaker: str
    text: str = Field(validation_alias=AliasChoices("text", "content"))


def _answer(form: str, split: str) -> Any:
    """A survey's answer: the original JSON's name of it, and the split files'."""
    return Field(default=None, validation_alias=AliasChoices(AliasPath("survey_score", "seeker", form), split))


class _Row(RowModel):
    emotion_type: str
    problem_type: str
    situation: str
    dialog: list[_Utterance]
    empathy: Score = _answer("empathy", "empathy")
    relevance: Score = _answer("relevance", "relevance")
    emotion_before: Score = _answer("initial_emotion_intensity", "init_intensity")
    emotion_after: Score = _answer("final_emotion_intensity", "final_intensity")

    def survey(self) -> dict[str, float]:
        """Answers that were given: empathy and relevance of the supporter, the seeker's emotion before and after (1–5 each)."""
        answers = self.model_dump(include={"empathy", "relevance", "emotion_before", "emotion_after"}, exclude_none=True)
        return dict(answers)


def _item(source: str, value: Any, source_id: str) -> SupportDialogue:
    """The corpus has no ids: `source_id` is `file stem/position`."""
    raw = _Row.model_validate(value)
    return support_dialogue(
        source,
        source_id,
        "en",
        by_role(((u.speaker, u.text) for u in raw.dialog), ROLES),
        situation=raw.situation.strip(),
        problem=raw.problem_type.strip(),
        emotion=raw.emotion_type.strip(),
        survey=raw.survey(),
    )


READERS = {name: by_row(partial(_item, name)) for name in ("esconv", "esconv_failed", "esconv_multi")}
