"""The role-play training set (ESC-Eval section 2.3.1): support dialogues with role cards, and general role play, by quota.

The paper gives 3,390 support dialogues (Smile, ESConv, ExTES) and 14,000 in all, without the names of the five general sets.
Published role cards were made from the same corpora, so their possible sources are removed (data_prep.role_play.contamination).

Perplexity on seeker lines means little if the card in the system message summarises those very lines. So a corpus can be held
out whole only if its heuristic cards come from texts that were written independently of the dialogue: ESConv's seekers filled
in situation, kind of problem and emotion before the chat (Liu et al., ACL 2021, section 4).
"""

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from core.errors import UserError, near
from core.files import check_unique
from core.grouping import group_by
from core.ledger import Build, BuildStep
from core.prompts import PromptPack, load_pack
from core.records import Language, RoleCard, RolePlay, SupportDialogue
from core.rows import CorpusItem
from core.settings import Settings
from data_prep.cards.heuristic import card_of_situation, heuristic_card
from data_prep.role_play.contamination import Document, Match, link
from data_prep.role_play.examples import Draft, RoleExample, TokenCounter, apart, distinct, fit, role_play_draft, support_draft
from data_prep.sources import GENERIC, SOURCES

GENERAL_PROMPTS = "role_play"
# Below the detector's THRESHOLD (1.0), which excludes doubtful cases: of the dialogues that ESConv's own cards match, some with
# 0.8 to 1.0 are clearly the source. Dropping a dialogue too many costs little here.
CAUTIOUS, CAUTIOUS_OWN = 0.9, 0.8
_MADE_FROM = {"psyqa": "smile"}  # SmileChat was written from PsyQA's questions
# Others describe the dialogue afterwards (ESCoT's annotation, ExTES's description), or give their seekers no situation.
BEFORE_CHAT = ("esconv", "esconv_failed", "esconv_multi", "bundled_support")
LEAST_HELD = 2  # turns: a line and an answer are the shortest possible example
CardsBySource = Mapping[tuple[str, str | None], RoleCard]  # given cards by source and source id
_BATCH = 2_000  # dialogues tokenised together: bounds memory


class Quota(Settings):
    """How many dialogues of a corpus and language the set takes."""

    source: str
    language: Language
    count: Annotated[int, Field(gt=0)]


class RoleSftConfig(Settings):
    """The mix of the simulator's training set."""

    target: Annotated[int, Field(gt=0)]
    """Dialogues in all: the sum of the quotas."""
    quotas: Annotated[tuple[Quota, ...], Field(min_length=1)]
    """How many dialogues of which corpus and language."""
    prompts: str = "esc_eval"
    """The prompt pack of the seeker's system message."""
    tokenizer: str = "embedded"
    """Counts tokens (see `TokenCounter`)."""
    max_tokens: Annotated[int, Field(ge=64)] = 2048
    """The longest dialogue, as a whole in ChatML."""
    min_turns: Annotated[int, Field(ge=2)] = 4
    """The fewest turns from the corpus; consecutive lines of one side are one turn."""
    near_duplicate: Annotated[float, Field(gt=0, le=1)] = 0.8
    """The similarity from which one of two dialogues is dropped."""
    valid_share: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """The share of the dialogues held out from training."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if len({(q.source, q.language) for q in self.quotas}) < len(self.quotas):
            raise ValueError("quotas: the same source and language twice")
        total = sum(quota.count for quota in self.quotas)
        if total != self.target:
            raise ValueError(f"quotas sum to {total}, the target is {self.target}")
        return self


def check_sources(config: RoleSftConfig, file: Path, sources: Collection[str], held_out: Iterable[str]) -> None:
    """Raise `UserError` for a quota of an unknown corpus or of a language that it lacks, and for a held-out corpus whose cards
    may reveal its lines. `file` is the config's, `sources` are the names of the corpora to read, including the user's own."""
    if unfit := [name for name in held_out if name not in BEFORE_CHAT]:
        raise UserError(
            f"--valid-source: {unfit[0]}: as far as we know its seekers wrote no situation before the chat, so its cards may "
            f"reveal the scored lines; hold out one of {', '.join(BEFORE_CHAT)}"
        )
    for quota in config.quotas:
        if quota.source in sources and quota.source not in SOURCES:
            continue
        if quota.source not in SOURCES or quota.source == GENERIC:
            names = near(quota.source, {*SOURCES, *sources} - {GENERIC})
            raise UserError(f"{file}: quotas: unknown corpus {quota.source!r}: {names} (your own: give --source generic=FILE)")
        if quota.language not in SOURCES[quota.source].languages:
            raise UserError(f"{file}: quotas: {quota.source} has no {quota.language}")


def prospects(config: RoleSftConfig) -> list[dict[str, Any]]:
    """What each quota's corpus can give (`core.rows.RolePlayYield`), by heading; None for the user's own corpora."""
    rows = []
    for quota in config.quotas:
        row: dict[str, Any] = {"Source": quota.source, "Language": quota.language, "Quota": quota.count, "Available": None}
        row |= {"Basis": "–", "Read": None, "Published": None, "Cards": "–"}
        source = SOURCES.get(quota.source)
        facts = source.role_sft.get(quota.language) if source else None
        if source and facts:
            basis = "counted" if facts.read == facts.published else "scaled" if facts.read else "size"
            row |= {"Available": facts.most, "Basis": basis, "Read": facts.read, "Published": facts.published}
            if source.kind == "support":
                row["Cards"] = "by a model" if facts.needs_cards else "own fields"
        rows.append(row)
    return rows


@dataclass
class RoleSet:
    """The finished set. `shortfall` has a row per quota; `matches` are each evaluation card's best ones before decontamination,
    `left` those in the finished set; `held_out` names the held-out corpora, if any."""

    train: list[RoleExample] = field(default_factory=list)
    valid: list[RoleExample] = field(default_factory=list)
    shortfall: list[dict[str, Any]] = field(default_factory=list)
    matches: list[Match] = field(default_factory=list)
    left: list[Match] = field(default_factory=list)
    held_out: tuple[str, ...] = ()

    @property
    def taken(self) -> int:
        """How many dialogues the quotas gave, without a held-out corpus."""
        return len(self.train) + (0 if self.held_out else len(self.valid))


def build_set(
    items: Mapping[str, Sequence[CorpusItem]],
    cards: Sequence[RoleCard],
    evaluation: Sequence[RoleCard],
    config: RoleSftConfig,
    seed: int,
    build: Build,
    held_out: Mapping[str, Sequence[CorpusItem]],
) -> RoleSet:
    """The set from corpora by name. `cards` made from them (by source and source id) replace cards from a corpus's own fields;
    `evaluation` are the cards that must not be trained on. All dialogues of the `held_out` corpora become the validation part,
    cut to `max_tokens` and otherwise unchanged; then nothing else is held out, and what repeats one of them is not trained on.
    """
    prompts, general = load_pack(config.prompts), load_pack(GENERAL_PROMPTS)
    by_source = _by_dialogue(cards, [item for group in (*items.values(), *held_out.values()) for item in group], build)
    result = RoleSet(held_out=tuple(held_out))
    kept_out = _drafts(held_out, by_source, prompts, general, build.step("held out: role cards"), True) if held_out else []
    drafts = _drafts(items, by_source, prompts, general, build.step("role cards"))
    dialogues = _by_source(drafts)
    least = config.min_turns
    drafts = build.step("turns").sieve(drafts, lambda draft: f"fewer than {least} turns" if draft.turns < least else None)
    drafts = distinct(drafts, config.near_duplicate, build)
    if held_out:
        drafts = apart(drafts, kept_out, config.near_duplicate, build)
        kept_out = _fitting(kept_out, config, LEAST_HELD, build, "held out: length")
    drafts = _decontaminated(drafts, evaluation, result, build)
    drafts = _fitting(drafts, config, least, build, "length")
    usable = _by_source(drafts)
    drafts, result.left = _by_quota(drafts, evaluation, config, seed, build)
    taken = _by_source(drafts)
    for quota in config.quotas:
        key = (quota.source, quota.language)
        row = {"source": quota.source, "language": quota.language, "given": quota.source in items, "quota": quota.count}
        row |= {"dialogues": dialogues[key], "usable": usable[key], "taken": taken[key], "short": quota.count - taken[key]}
        result.shortfall.append(row)
    valid = set() if held_out else _drawn(drafts, config.valid_share, seed)
    check_unique(
        "--valid-source", (draft.id for draft in (*kept_out, *drafts)), "dialogue ids (made of file names: rename a file)"
    )
    valid |= {draft.id for draft in kept_out}
    for draft in (*drafts, *kept_out):
        (result.valid if draft.id in valid else result.train).append(draft.example())
    return result


def _by_source(drafts: Iterable[Draft]) -> Counter[tuple[str, Language]]:
    return Counter((draft.source, draft.language) for draft in drafts)


def _by_dialogue(cards: Sequence[RoleCard], items: Sequence[CorpusItem], build: Build) -> CardsBySource:
    check_unique("--cards", (f"{card.source}/{card.source_id or card.id}" for card in cards), "cards of one dialogue")
    by_dialogue = {(card.source, card.source_id): card for card in cards}
    dialogues = {(i.dialogue.source, i.dialogue.source_id) for i in items if isinstance(i, SupportDialogue)}
    used = len(by_dialogue.keys() & dialogues)
    if cards and not used:
        raise UserError("--cards: none was made from a dialogue of these corpora (source and source_id say from which)")
    if cards:
        build.figures["cards"] = {"given": len(cards), "used": used}
    return by_dialogue


def _drafts(
    corpora: Mapping[str, Sequence[CorpusItem]],
    cards: CardsBySource,
    prompts: PromptPack,
    general: PromptPack,
    step: BuildStep,
    held_out: bool = False,
) -> list[Draft]:
    """The dialogues with cards and system prompts. A support dialogue needs a card; a held-out one gets one even from a short
    situation. Raises `UserError` for a card that a model made from a held-out dialogue."""

    def draft(item: CorpusItem) -> Draft | str:
        if isinstance(item, RolePlay):
            return role_play_draft(item, general)
        if not isinstance(item, SupportDialogue):
            return "single turn"
        card = cards.get((item.dialogue.source, item.dialogue.source_id)) or heuristic_card(item)
        if held_out and isinstance(card, str) and (situation := " ".join(item.situation.split())):
            card = card_of_situation(item, situation)
        if isinstance(card, str):
            return f"no card ({card})"
        if card.quality == "invalid":
            return "its card is invalid"
        if held_out and card.card_method == "llm":
            raise UserError(
                f"--cards: a model made {card.id} from the held-out dialogue {item.id}, whose lines are scored; leave it out "
                "(the dialogue then gets a card from its own situation)"
            )
        made = support_draft(item, card, prompts)
        return f"fewer than {LEAST_HELD} turns" if held_out and made.turns < LEAST_HELD else made

    return step.make((item for items in corpora.values() for item in items), draft)


def _documents(drafts: Iterable[Draft]) -> list[Document]:
    return [(draft.id, draft.language, draft.text) for draft in drafts]


def _alike(cards: Sequence[RoleCard], documents: Sequence[Document], score: float) -> set[str]:
    """Ids of the documents with at least this score for any of the cards (among each card's best twenty)."""
    return {match.document_id for match in link(cards, documents, top=20) if match.score >= score}


def _decontaminated(drafts: Sequence[Draft], evaluation: Sequence[RoleCard], result: RoleSet, build: Build) -> list[Draft]:
    """The drafts without those that an evaluation card may have been made from.

    Dropped: the dialogue that a card names; everything with a score of at least `CAUTIOUS`, or `CAUTIOUS_OWN` within the corpus
    that the card names; and, at any score, each card's best match among the support dialogues and within its own corpus (so a
    card of a corpus that is not here still costs a dialogue). Written cards were made from no dialogue, so for them only
    `CAUTIOUS` counts.
    """
    step = build.step("decontamination")
    documents = _documents(drafts)
    support = {draft.id: draft.source for draft in drafts if draft.kind == "support"}
    among = [document for document in documents if document[0] in support]
    flagged = _alike(evaluation, documents, CAUTIOUS)
    from_dialogues = [card for card in evaluation if card.card_method != "written"]
    best = link(from_dialogues, among, top=1)
    by_source = group_by(from_dialogues, lambda card: _MADE_FROM.get(card.source.lower(), card.source.lower()))
    for source, cards in sorted(by_source.items()):
        of_source = [document for document in among if support[document[0]] == source]
        best += link(cards, of_source, top=1)
        flagged |= _alike(cards, of_source, CAUTIOUS_OWN)
    nearest = {match.document_id for match in best if match.rank == 1}
    written = link([card for card in evaluation if card.card_method == "written"], among, top=1)
    named = {(card.source.lower(), card.source_id) for card in evaluation}

    def suspicion(draft: Draft) -> str | None:
        if (draft.source, draft.source_id) in named:
            return "the source that an evaluation card names"
        if draft.id in flagged:
            return "matches an evaluation card"
        return "nearest to an evaluation card" if draft.id in nearest else None

    ranked = {match for match in (*best, *written) if match.rank == 1}
    result.matches = sorted(ranked, key=lambda match: (-match.score, match.card_id, match.document_id))
    return step.sieve(drafts, suspicion)


def _fitting(drafts: Sequence[Draft], config: RoleSftConfig, least: int, build: Build, name: str) -> list[Draft]:
    """The drafts within the length cap, with exchanges cut off the end; those left with fewer than `least` turns go."""
    step = build.step(name)
    step.taken = len(drafts)
    counter = TokenCounter(config.tokenizer)
    kept = []
    for start in range(0, len(drafts), _BATCH):
        batch = drafts[start : start + _BATCH]
        counts = iter(counter.count([message for draft in batch for message in (draft.system, *draft.messages)]))
        for draft in batch:
            cut = fit(draft, next(counts), list(islice(counts, len(draft.messages))), config.max_tokens)
            if draft.turns < least:
                step.drop(f"over {config.max_tokens} tokens", draft.id)
                continue
            step.changed["shortened"] += cut
            kept.append(draft)
    step.kept = len(kept)
    return kept


def _by_quota(
    drafts: Sequence[Draft], evaluation: Sequence[RoleCard], config: RoleSftConfig, seed: int, build: Build
) -> tuple[list[Draft], list[Match]]:
    """A seeded sample of each source and language, in the corpora's order, and each evaluation card's best match in it. Word
    statistics change with the set, so the sample is searched again, and matches are replaced by other dialogues."""
    step = build.step("quotas")
    wanted = {(quota.source, quota.language): quota.count for quota in config.quotas}
    by_source = group_by(drafts, lambda draft: (draft.source, draft.language))
    groups = {key: [draft.id for draft in group] for key, group in by_source.items()}
    for (source, language), ids in groups.items():
        random.Random(f"{seed}/quota/{source}/{language}").shuffle(ids)
    dropped_ids: set[str] = set()
    while True:
        drawn = ([id for id in ids if id not in dropped_ids][: wanted.get(key, 0)] for key, ids in groups.items())
        chosen = {id for ids in drawn for id in ids}
        kept = [draft for draft in drafts if draft.id in chosen]
        flagged = _alike(evaluation, _documents(kept), CAUTIOUS)
        if not flagged:
            break
        dropped_ids |= flagged

    def unused(draft: Draft) -> str | None:
        if draft.id in dropped_ids:
            return "matches an evaluation card"
        over = "over quota" if (draft.source, draft.language) in wanted else "no quota"
        return None if draft.id in chosen else over

    kept = step.sieve(drafts, unused)
    return kept, [match for match in link(evaluation, _documents(kept), top=1) if match.rank == 1]


def _drawn(drafts: Sequence[Draft], share: float, seed: int) -> set[str]:
    """Ids of the validation examples: a share of each source's dialogues, so that no source dialogue is on both sides."""
    ids: set[str] = set()
    for (source, language), group in group_by(drafts, lambda draft: (draft.source, draft.language)).items():
        dialogues = group_by(group, lambda draft: draft.source_id)
        names = list(dialogues)
        random.Random(f"{seed}/valid/{source}/{language}").shuffle(names)
        ids.update(draft.id for name in names[: round(share * len(names))] for draft in dialogues[name])
    return ids
