"""The role card or profile that a dialogue's seeker plays, as people read it beside the dialogue."""

from collections.abc import Sequence
from pathlib import Path

from core.errors import UserError, near
from core.records import Dialogue, RoleCard
from data_prep.cards import card_text, load_cards
from data_prep.profiles import Profile, load_profiles, profile_text

Played = RoleCard | Profile


def load_played(cards: Sequence[Path], profiles: Sequence[Path]) -> dict[str, Played]:
    """Cards and profiles of files, by id. Raises `UserError` for one id with two different contents."""
    loaded: list[Played] = [card for path in cards for card in load_cards(path)]
    loaded += [profile for path in profiles for profile in load_profiles(path)]
    by_id: dict[str, Played] = {}
    for person in loaded:
        if by_id.setdefault(person.id, person) != person:
            raise UserError(f"{person.id} is given twice with other contents")
    return by_id


def played_text(dialogue: Dialogue, people: dict[str, Played]) -> str:
    """The card or profile that is played, as lines with headings. Raises `UserError` if the dialogue names none of them."""
    id = dialogue.card_id or dialogue.profile_id
    if id is None:
        raise UserError(f"dialogue {dialogue.id}: no card_id and no profile_id: its seeker cannot be rated against one")
    if id not in people:
        kind = "profile" if dialogue.profile_id else "card"
        raise UserError(f"dialogue {dialogue.id}: {kind} {id!r} is not among those given (--{kind}s): {near(id, people)}")
    person = people[id]
    return card_text(person) if isinstance(person, RoleCard) else profile_text(person, person.language)
