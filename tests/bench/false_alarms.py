"""What `check --data` flags without a source: cards against corpora that they were not made from, by kind and size.

ESC-Eval's cards were made from EPITOME, MHP Reddit, Psych8K, ESConv and ExTES (English), PsyQA and SmileChat (Chinese; table
5). A corpus is searched for those cards only that come neither from it nor from one akin to it:

- ESConv: without its own cards and those of ExTES, whose seed dialogues may have come from it. So too ESCoT and synthetic_esc,
  which models wrote after its pattern. AugESC, of which we have no copy, was written by a model that was trained on it.
- EPITOME and Dreaddit hold posts of Reddit, as MHP Reddit does: without the cards of EPITOME and MHP Reddit.
- Counselling Bench comes from the makers of Psych8K: without its cards.
- Every Chinese card is PsyQA's: SmileChat was written from it, Counselling Bench's Chinese questions are its own, and 100 of
  SimPsyDial's 1,100 posts share ten or more runs of twelve characters with one of 1,971 dialogues of SmileChat. So none of them
  is searched, and no Chinese corpus of posts or questions is left. (Of CPsyCoun's 3,084 dialogues 2 share so much, of
  EmoLLM's 3,196 none.)

CounselChat and Dreaddit have no reader of their own: make them files of the generic form (docs/data.md) under these names.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from core.errors import UserError, near
from core.ledger import Build
from core.options import SourceOption
from core.records import Language, Post, RoleCard, RolePlay
from core.rows import CorpusItem
from data_prep.cards import load_cards
from data_prep.role_play.contamination import Document, link
from data_prep.sources import parse_places, read_source
from tests.bench.figures import OUT, Bench, OutOption

SIZES = (30, 100, 300, 800, 1500)
LANGUAGES: tuple[Language, ...] = ("en", "zh")
QUESTIONS, POSTS, DIALOGUES = "counselling questions", "posts", "support dialogues"
SUPPORT = (QUESTIONS, POSTS, DIALOGUES)  # what `contamination.BY_CHANCE` states the range of
VERSIONS, PLAY = "several dialogues of each scenario", "role play"


@dataclass(frozen=True)
class Unrelated:
    """A corpus's kind, and the sources of cards (lower case) that it is the same as or akin to."""

    kind: str
    akin: tuple[str, ...] = ()


CORPORA = {
    "counselchat": Unrelated(QUESTIONS),
    "counselingbench": Unrelated(QUESTIONS, ("psych", "psyqa", "smile")),
    "epitome": Unrelated(POSTS, ("epitome", "mhp")),
    "dreaddit": Unrelated(POSTS, ("epitome", "mhp")),
    "esconv": Unrelated(DIALOGUES, ("esconv", "extes")),
    "escot": Unrelated(DIALOGUES, ("esconv", "extes")),
    "synthetic_esc": Unrelated(VERSIONS, ("esconv", "extes")),
    "cpsycoun": Unrelated(DIALOGUES),
    "emollm": Unrelated(DIALOGUES),
    "rolebench": Unrelated(PLAY),
    "charactereval": Unrelated(PLAY),
    "character_llm": Unrelated(PLAY),
    "chat_haruhi": Unrelated(PLAY),
    "socialbench": Unrelated(PLAY),
}


def document(item: CorpusItem) -> Document:
    if isinstance(item, Post):
        return item.id, item.language, "\n".join(filter(None, (item.text, item.reply)))
    if isinstance(item, RolePlay):
        return item.id, item.language, "\n".join(line.text for line in item.lines)
    return item.id, item.language, "\n".join(turn.text for turn in item.dialogue.turns)


def flagged(cards: Sequence[RoleCard], documents: Sequence[Document]) -> float:
    return 100 * len({match.card_id for match in link(cards, documents) if match.flagged}) / len(cards)


def shares(cards: Sequence[RoleCard], documents: Sequence[Document], draws: int) -> dict[int, list[float]]:
    """Percent of the cards flagged, by the number of dialogues: one value for each seeded sample, one for the whole corpus."""
    found = {
        size: [flagged(cards, random.Random(draw).sample(documents, size)) for draw in range(draws)]
        for size in SIZES
        if size < len(documents)
    }
    return found | {len(documents): [flagged(cards, documents)]}


def main(
    cards: Annotated[list[Path], typer.Option("--cards", help="ESC-Eval's published cards. Repeat for more.")],
    source: SourceOption,
    draws: Annotated[int, typer.Option(min=1, help="Samples of each size.")] = 5,
    out: OutOption = OUT,
) -> None:
    """What `check --data` flags of ESC-Eval's cards in corpora that are none of their sources, in percent, by size."""
    wanted = [card for path in cards for card in load_cards(path)]
    places = parse_places(source)
    for name in places:
        if name not in CORPORA:
            raise UserError(
                f"--source {name}: {near(name, CORPORA)} (what it is akin to has to be known: tests/bench/false_alarms.py)"
            )
    bench = Bench("false_alarms", "Cards flagged in corpora that are none of their sources, %", draws=draws)
    ranges: dict[tuple[Language, int], list[float]] = defaultdict(list)
    for name, place in places.items():
        corpus = CORPORA[name]
        items = read_source(name, place, Build(out, "false-alarms"), Console(quiet=True))
        for language in LANGUAGES:
            asked = [card for card in wanted if card.language == language and card.source.lower() not in corpus.akin]
            documents = [document(item) for item in items if item.language == language]
            if not asked or len(documents) < SIZES[0]:
                continue
            title = f"{name} {language} ({corpus.kind}, {len(asked)} cards)"
            bench.say(title)
            for size, values in shares(asked, documents, draws).items():
                bench.add(f"{title}: {size:,} dialogues", values)
                if corpus.kind in SUPPORT:
                    ranges[language, max(s for s in SIZES if s <= size)].append(sum(values) / len(values))
    for (language, size), values in sorted(ranges.items()):
        bench.add(f"{language}, {size:,} dialogues or more: means over the corpora of support", values)
    bench.deliver(out)
