"""Gold sets: dialogues with known scores, on which judges are measured."""

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
    """The dialogues in these languages, at most `limit` of each, and their scores on the rubric's dimensions. Raises
    `UserError` for a set without scores, and for a dialogue with a person whom the judge cannot see."""
    dialogues: Sequence[Dialogue]
    scores: Sequence[HumanScore]
    if gold.dialogues == "synthetic":  # what makes or reads a set is loaded for that set alone
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
        have = [dialogue for dialogue in dialogues if dialogue.language == language]
        if gold.limit is not None and gold.limit < len(have):
            kept = set(random.Random(0).sample(range(len(have)), gold.limit))
            have = [dialogue for index, dialogue in enumerate(have) if index in kept]
        chosen += have
    for dialogue in chosen:
        shown.profile(dialogue)  # an unknown one is refused before anything is started
    ids = {dialogue.id for dialogue in chosen}
    return chosen, [score for score in scores if score.dialogue_id in ids and score.dimension in rubric.dimensions]
