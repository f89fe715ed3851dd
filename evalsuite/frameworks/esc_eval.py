"""ESC-Eval (Zhao et al., EMNLP 2024): a simulator plays a role card, the supporter answers, a ranker scores (section 2).

Protocol: a fixed greeting of the supporter opens; the seeker sees it, the supporter does not; five exchanges follow, greedy.
"""

from __future__ import annotations

from collections.abc import Iterator

from core.records import Turn, dialogue_id
from core.seeker_prompts import greeting, seeker_system
from evalsuite.dialogues.hold import ModelSide, Plan
from evalsuite.runs.config import Resolved
from serve.client import ChatClient

FRAMEWORK = "esc_eval"


def plans(resolved: Resolved, client: ChatClient) -> Iterator[Plan]:
    """Every dialogue of a run: cards × supporters × trials, without cards in a language that the supporter does not speak."""
    prompts, seeker = resolved.prompts, resolved.seeker
    for supporter in resolved.supporters:
        for card in resolved.cards:
            if card.language not in supporter.languages:
                continue
            system = seeker_system(prompts, card)
            opening = Turn(role="supporter", text=greeting(prompts, card.language))
            for trial in range(resolved.config.trials):
                id = dialogue_id(FRAMEWORK, card.id, supporter.name, seeker.name, trial)
                yield Plan(
                    id=id,
                    language=card.language,
                    framework=FRAMEWORK,
                    source=card.source,
                    source_id=card.source_id,
                    card_id=card.id,
                    supporter=supporter.name,
                    simulator=seeker.name,
                    trial=trial,
                    seeker_side=ModelSide(client, seeker, "seeker", id, system=system),
                    supporter_side=ModelSide(client, supporter, "supporter", id, hidden_opening=1),
                    exchanges=resolved.config.exchanges,
                    opening=(opening,),
                )
