"""What `esc-eval people create` reads: what raters see and are asked, the supporters that they talk to, and who they are."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from core.errors import UserError, near
from core.files import check_unique, explain, read_text
from core.names import composed
from core.options import name_and_value
from core.records import Language
from core.rubrics import Rubric
from core.settings import Settings
from core.specs import ModelSpec, load_spec
from data_prep.played import load_played, played_text
from data_prep.scores.human import Check, read_dialogues, read_scores
from data_prep.scores.weights import read_weights, weights_beside
from evalsuite.people.assignment import Person
from evalsuite.people.questionnaire import Questionnaire
from evalsuite.people.study import (
    CLOSER,
    OVERALL,
    Items,
    Study,
    compared_items,
    pairs_of_supporters,
    played_items,
    rated_items,
)
from evalsuite.role_play.pairwise import QUESTION, pairs_of
from evalsuite.role_play.seekers import read_field, seeker_of


class Recipe(Settings):
    """Talks as `Chat` has them; rubric and supporters that the command line names go before these."""

    rubric: str | None = None
    supporters: tuple[str, ...] = ()
    least: int = 3
    most: int = 15
    rate_after: tuple[int, ...] = ()
    questionnaire: Questionnaire | None = None


def valid_study(definition: dict[str, object]) -> Study:
    """The study of such a definition; `UserError` names the field that is wrong."""
    try:
        return Study.model_validate(definition)
    except ValidationError as error:
        raise UserError(f"STUDY: {explain(error)}") from None


def consent_text(path: Path) -> str:
    """What raters agree to."""
    return read_text(path, "text").strip()


def what_is_rated(
    files: list[Path], rules: Rubric, rubric: str, cards: list[Path] | None, profiles: list[Path] | None, checks: Path | None
) -> tuple[Items, dict[str, dict[str, float]]]:
    """Dialogues to rate, and of the attention checks among them the expected scores."""
    if not files:
        raise UserError("--dialogues: none given: what is rated?")
    if rules.rates == "seeker" and not cards and not profiles:
        raise UserError(f"--rubric {rules.name} rates the seeker against who it plays: give --cards FILE or --profiles FILE")
    spoken = read_dialogues(files)
    known = load_played(cards or [], profiles or [])
    own = [Path(rubric)] if rubric.endswith((".yaml", ".yml")) else []
    expected = read_scores(checks, Check(own, spoken)) if checks else []
    if wrong := [one for one in expected if one.rubric != rules.name or one.turn is not None]:
        raise UserError(f"--checks {checks}: {wrong[0].dialogue_id}: only scores of whole dialogues on {rules.name}")
    return rated_items(spoken, rules, known, expected)


def weights_of(files: list[Path], items: Items) -> dict[str, float]:
    """Dialogue → 1 / chance, where `people suggest` drew what is rated: weights.csv beside the dialogues."""
    weights = read_weights(found := weights_beside(files))
    if found and (apart := sorted(weights.keys() ^ {content.dialogue.id for _, content in items})):
        raise UserError(
            f"{found[0]}: dialogue_id: {apart[0]} is in it or among --dialogues, and not in both: give what one draw of "
            "`people suggest` wrote, or move the file away if these dialogues were not drawn"
        )
    return weights


def what_is_compared(
    files: list[Path], seekers: list[str], questions: list[str], cards: list[Path], profiles: list[Path]
) -> tuple[Items, dict[str, dict[Language, str]]]:
    """Pairs of dialogues to choose from, and the questions about them."""
    if bool(files) == bool(seekers):
        raise UserError("what is done: --rubric with --dialogues to rate, --dialogues or --seeker (twice) to compare")
    worded = [name_and_value("--question", one, "NAME=TEXT") for one in questions]
    check_unique("--question", (name for name, _ in worded), "names")
    texts = dict(worded)
    asked: dict[str, dict[Language, str]] = {name: dict.fromkeys(get_args(Language), text) for name, text in texts.items()}
    if seekers:
        field = read_field(seekers, cards, get_args(Language), profile_files=profiles)
        pairs = [(pair.a, pair.b) for pair in pairs_of(field)[0]]
        systems = {dialogue.id: seeker_of(dialogue) for dialogue in field.dialogues}
        known = {card.id: card for card in field.cards.values()}
        played = {dialogue.id: played_text(dialogue, known) for pair in pairs for dialogue in pair}
        return compared_items(pairs, systems, played), asked or {QUESTION: dict(CLOSER)}
    spoken = read_dialogues(files)
    check_unique("--dialogues", (dialogue.id for dialogue in spoken), "dialogue ids")
    couples = list(pairs_of_supporters(spoken))
    if not couples:
        raise UserError("--dialogues: no two supporters spoke on the same card, profile or situation: nothing to compare")
    named: dict[str, str] = {dialogue.id: dialogue.supporter or dialogue.source for dialogue in spoken}
    return compared_items(couples, named, {}), asked or {"better": dict(OVERALL)}


def what_is_talked_to(
    supporters: list[str],
    rules: Rubric | None,
    cards: list[Path] | None,
    profiles: list[Path] | None,
    dialogues: list[Path] | None,
    checks: Path | None,
    consent: Path | None,
) -> tuple[Items, list[ModelSpec]]:
    """Who is played in the talks, if anybody, and the supporters."""
    if rules is None:
        raise UserError("--supporter: what is the talk rated on? Give --rubric")
    if dialogues or checks:
        raise UserError("--supporter: people talk, nothing is shown to them: leave out --dialogues and --checks")
    if consent is None:
        raise UserError("--supporter: people tell of themselves to a model: say what they agree to (--consent FILE)")
    specs = [load_spec(one) for one in supporters]
    if agents := [spec.name for spec in specs if spec.endpoint.kind == "agent"]:
        raise UserError(f"--supporter {agents[0]}: people talk to chat models; an agent plays dialogues of `esc-eval run`")
    check_unique("--supporter", (spec.name for spec in specs), "supporters")
    return played_items(load_played(cards or [], profiles or [])), specs


def raters_of(count: int, named: list[str], languages: list[Language], prefix: str = "r") -> list[Person]:
    """So many raters who read all these languages, and those with a code of their own."""
    every = tuple(language for language in get_args(Language) if language in languages)
    people = [Person(f"{prefix}{number:02d}", every) for number in range(1, count + 1)]
    for one in named:
        code, reads = name_and_value("--rater", one, "CODE=en,zh")
        wanted = reads.split(",")
        for language in wanted:
            if language not in get_args(Language):
                raise UserError(f"--rater {one}: no language {language!r}: {near(language, get_args(Language))}")
        people.append(Person(composed(code), tuple(language for language in get_args(Language) if language in wanted)))
    if not people:
        raise UserError("--raters: none: say how many, or name them with --rater CODE=en,zh")
    check_unique("--rater", (person.code.casefold() for person in people), "raters")
    return people
