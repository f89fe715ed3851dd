"""Gold sets: dialogues with known scores, for measuring a judge."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from core.errors import UserError
from core.records import Dialogue, HumanScore, Language
from core.rubrics import Rubric
from evalsuite.judge.judge import Shown
from evalsuite.runs.config import GoldConfig


def gold_set(
    gold: GoldConfig, languages: Sequence[Language], rubric: Rubric, shown: Shown
) -> tuple[list[Dialogue], list[HumanScore]]:
    """The dialogues in these languages, at most `limit` per language, and their scores on the rubric's dimensions.

    Raises `UserError` for a set without scores, and for a dialogue whose profile the judge should see but is not known.
    """
    dialogues: Sequence[Dialogue]
    scores: Sequence[HumanScore]
    if gold.dialogues == "synthetic":  # each module is imported only for its own set
        from data_prep.scores import synthetic

        dialogues, scores = synthetic.build(languages=tuple(languages))
    elif gold.dialogues == "synthetic_test":
        from data_prep.scores.rank_sft import synthetic_test

        dialogues, scores = synthetic_test()
    elif gold.scores is None:
        raise UserError("gold.scores: name the JSONL file of scores that belongs to gold.dialogues")
    else:
        from data_prep.scores.human import read_dialogues, read_gold

        dialogues, scores = read_dialogues([Path(gold.dialogues)]), read_gold(Path(gold.scores))
    chosen: list[Dialogue] = []
    for language in languages:
        available = [dialogue for dialogue in dialogues if dialogue.language == language]
        if gold.limit is not None and gold.limit < len(available):
            available = [available[index] for index in sorted(random.Random(0).sample(range(len(available)), gold.limit))]
        chosen += available
    for dialogue in chosen:
        shown.profile(dialogue)  # refuses an unknown profile before anything is started
    ids = {dialogue.id for dialogue in chosen}
    return chosen, [score for score in scores if score.dialogue_id in ids and score.dimension in rubric.dimensions]
