"""`esc-eval people create`: a study's items, questions, supporters to talk to, and raters."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field, ValidationError

from core.errors import UserError, at, near
from core.files import check_unique, explain, read_text
from core.languages import PAPER_LANGUAGES, in_order, words
from core.names import composed
from core.options import SetOption, console, name_and_value
from core.paths import IN_FILE, MaybeFile, MaybeFiles, MaybeModels, MaybeName, Reads, Writes
from core.records import Language
from core.rubrics import Rubric, flat_rubric
from core.specs import load_spec
from data_prep.cards.sheets import write_csv
from data_prep.played import load_played, played_text
from data_prep.scores.human import RubricCheck, read_dialogues, read_scores
from data_prep.scores.weights import read_weights, weights_beside
from evalsuite.papers.role_play.pairwise import QUESTION, pairs_of
from evalsuite.papers.role_play.seekers import read_field
from evalsuite.people.assignment import Person, assign, assign_talks
from evalsuite.people.commands.people import DATABASE, LINK_COLUMNS, LINKS, need_people, opened
from evalsuite.people.study import (
    Items,
    Study,
    StudyDesign,
    Talking,
    compared_items,
    pairs_of_supporters,
    played_items,
    rated_items,
)
from evalsuite.runs.config import overridden
from evalsuite.statistics.summary import seeker_of


class StudyConfig(StudyDesign, Talking):
    """A study's config (`configs/people`); --rubric and --supporter override its fields."""

    rubric: str | None = None
    """The rubric for ratings: a name or file. Without one, people choose between two dialogues."""
    questions: dict[str, str] = Field(default={})
    """Questions about two dialogues, by name. Default: which is better, or for seekers, which is more like a real person."""
    checks: Annotated[str | None, IN_FILE] = None
    """Attention checks: HumanScore records (CSV or JSONL) of some of the dialogues, with the scores that an attentive rater
    gives. Every rater sees them; they are reported, but not exported as scores."""
    reviewers: int = Field(0, ge=0)
    """People who decide if raters of a dialogue are more than a point apart: their page fills as raters submit."""
    supporters: list[str] = Field(default=[])
    """The models that people talk to."""


def create(
    folder: Annotated[
        Path, typer.Argument(metavar="STUDY", help="Folder to make; its name is the study's."), Writes((f"{DATABASE}*", LINKS))
    ],
    config: Annotated[
        MaybeFile, typer.Option(help="The study's config (configs/people); --set changes a field, also without a file.")
    ] = None,
    dialogues: Annotated[
        MaybeFiles, typer.Option(help="Dialogues (JSONL), with the weights next to them if `people suggest` drew them. Repeat.")
    ] = None,
    rubric: Annotated[
        MaybeName, typer.Option(help="Rate on this rubric (a name or a YAML file). Without it, people choose between two.")
    ] = None,
    seeker: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PLACE", help="Choose between seekers on one card or profile: at least two runs or files."),
        Reads("place", ("dialogues.jsonl", "cards.jsonl", "profiles.jsonl"), labelled=True),
    ] = None,
    supporter: Annotated[
        MaybeModels,
        typer.Option(metavar="MODEL", help="People talk to this model (name, spec or NAME@URL) and rate it. Repeat for more."),
    ] = None,
    cards: Annotated[
        MaybeFiles, typer.Option(help="Role cards: shown if seekers are rated, played in talks. Repeat for more.")
    ] = None,
    profiles: Annotated[
        MaybeFiles, typer.Option(help="Profiles: shown if seekers are rated, played in talks. Repeat for more.")
    ] = None,
    raters: Annotated[
        list[str] | None,
        typer.Option(metavar="N|CODE=en,zh", help="How many read all languages; or a rater by code and languages. Repeat."),
    ] = None,
    consent: Annotated[MaybeFile, typer.Option(help="Text that a rater has to agree to first (UTF-8).")] = None,
    settings: SetOption = None,
) -> None:
    """Make a study: assign items to raters, and make a link for every rater.

    Only STUDY/links.csv has the links and the organiser's key: the database has their hashes. Raters see neither models nor
    other raters; each has an order of their own. Example:

    esc-eval people create studies/first --dialogues runs/demo/dialogues.jsonl --rubric esc_eval_human --raters 4
    """
    need_people()
    design = overridden(config, StudyConfig, "study", {"rubric": rubric, "supporters": supporter}, settings or ())
    rules = flat_rubric(design.rubric, "a study") if design.rubric else None
    if design.second_round and design.reviewers:
        raise UserError("second_round, reviewers: either the raters score again, or reviewers decide: leave out one")
    if design.supporters:
        if rules is None:
            raise UserError("--supporter: talks need a rubric to be rated on: give --rubric")
        if dialogues or design.checks or design.per == "turn":
            raise UserError("--supporter: people talk and are shown no dialogues: leave out --dialogues, checks and per")
        if consent is None:
            raise UserError("--supporter: people will tell a model about themselves: say what they agree to (--consent FILE)")
        items, definition = _talks(design, rules, cards or [], profiles or [])
    elif rules is not None:
        if seeker or design.questions:
            raise UserError("--rubric: dialogues are either rated or compared: leave out --seeker and questions")
        items, definition = _ratings(design, rules, dialogues or [], cards or [], profiles or [])
    else:
        if design.checks or design.per != "dialogue":
            raise UserError("checks, per: only for ratings: give --rubric, or leave them out")
        items, definition = _choices(design, dialogues or [], seeker or [], cards or [], profiles or [])
    consents = {} if consent is None else dict.fromkeys(PAPER_LANGUAGES, read_text(consent, "text").strip())
    definition |= design.model_dump(include=set(StudyDesign.model_fields))
    try:
        study = Study.model_validate({"name": folder.resolve().name, "consent": consents} | definition)
    except ValidationError as error:
        raise UserError(f"STUDY: {explain(error)}") from None
    languages = [item.language for item, _ in items] or (list(rules.languages) if rules else [])
    people = raters_of(raters or [], languages)
    shown = [item for item, _ in items]
    if study.chat:
        tasks = assign_talks(people, [spec.name for spec in study.chat.supporters], shown, design.seed, bool(study.asks))
    else:
        tasks = assign(shown, people, design.overlap, design.repeats, design.seed)
    if design.reviewers and (study.kind != "rate" or study.per != "dialogue"):
        raise UserError("reviewers: only for scores of whole dialogues: leave it out here")
    reviewers = raters_of([str(design.reviewers)], languages, "reviewer") if design.reviewers else []
    with opened(folder, make=True) as store:
        key, tokens = store.create(study, items, people, tasks, reviewers)
    rows = [{"rater": "organiser", "languages": "", "path": f"/o/{key}"}]
    everybody = (*people, *reviewers)
    rows += [{"rater": p.code, "languages": ",".join(p.languages), "path": f"/r/{tokens[p.code]}"} for p in everybody]
    links = folder / LINKS
    links.touch(0o600)
    write_csv(links, LINK_COLUMNS, rows)
    links.chmod(0o600)
    console.print(f"{study.name}: {len(items)} items, {len(people)} raters, {len(tasks)} tasks")
    if study.weights:
        console.print("drawn by `people suggest`: the export will have the weights; have all dialogues scored")
    console.print(f"links: {links} (put the server's address before each; they are secrets)", soft_wrap=True)
    console.print(f"next: esc-eval people serve {folder}", soft_wrap=True)


def _ratings(
    design: StudyConfig, rules: Rubric, dialogue_files: list[Path], cards: list[Path], profiles: list[Path]
) -> tuple[Items, dict[str, Any]]:
    """Dialogues to rate, with the expected scores of the attention checks among them, and the weights of a draw."""
    if not dialogue_files:
        raise UserError("--dialogues: none given to rate")
    if design.checks and design.per == "turn":
        raise UserError("checks: only for scores of whole dialogues: leave them out, or rate per dialogue")
    if rules.rates == "seeker" and not cards and not profiles:
        raise UserError(f"--rubric {rules.name} rates how the seeker plays a person: give --cards FILE or --profiles FILE")
    dialogues = read_dialogues(dialogue_files)
    played = load_played(cards, profiles)
    rubric_files = [Path(design.rubric)] if design.rubric and design.rubric.endswith((".yaml", ".yml")) else []
    with at("checks"):
        checks = read_scores(Path(design.checks), RubricCheck(rubric_files, dialogues)) if design.checks else []
    if wrong := [score for score in checks if score.rubric != rules.name or score.turn is not None]:
        raise UserError(f"checks: {design.checks}: {wrong[0].dialogue_id}: only scores of whole dialogues on {rules.name}")
    items, expected = rated_items(dialogues, rules, played, checks)
    weights = read_weights(files := weights_beside(dialogue_files))
    if files and (unmatched := sorted(weights.keys() ^ {content.dialogue.id for _, content in items})):
        raise UserError(
            f"{files[0]}: dialogue_id: {unmatched[0]} is in it or among --dialogues, but not in both: give the files of a "
            "single `people suggest`, or move this file away if the dialogues were not drawn"
        )
    return items, {"kind": "rate", "rubric": rules, "expected": expected, "weights": weights}


def _choices(
    design: StudyConfig, dialogue_files: list[Path], seekers: list[str], cards: list[Path], profiles: list[Path]
) -> tuple[Items, dict[str, Any]]:
    """Pairs of dialogues to choose from, and the questions about them."""
    if bool(dialogue_files) == bool(seekers):
        raise UserError("give --rubric with --dialogues to rate, or --dialogues or --seeker (twice) to compare")
    questions = {name: dict.fromkeys(PAPER_LANGUAGES, text) for name, text in design.questions.items()}
    if seekers:
        field = read_field(seekers, cards, None, profile_files=profiles)
        pairs, _ = pairs_of(field)
        systems = {dialogue.id: seeker_of(dialogue) for dialogue in field.dialogues}
        people = {card.id: card for card in field.cards.values()}
        played = {dialogue.id: played_text(dialogue, people) for pair in pairs for dialogue in pair}
        name, question = QUESTION, "closer"
    else:
        dialogues = read_dialogues(dialogue_files)
        check_unique("--dialogues", (dialogue.id for dialogue in dialogues), "dialogue ids")
        pairs = list(pairs_of_supporters(dialogues))
        if not pairs:
            raise UserError("--dialogues: no two supporters spoke on the same card, profile or situation: nothing to compare")
        systems, played = {dialogue.id: dialogue.supporter or dialogue.source for dialogue in dialogues}, {}
        name = question = "better"
    languages = in_order([*PAPER_LANGUAGES, *(a.language for a, _ in pairs)])
    questions = questions or {name: {language: words(language)[question] for language in languages}}
    return compared_items(pairs, systems, played), {"kind": "choose", "questions": questions}


def _talks(design: StudyConfig, rules: Rubric, cards: list[Path], profiles: list[Path]) -> tuple[Items, dict[str, Any]]:
    """The cards or profiles played in the talks, if any, and the supporters."""
    specs = [load_spec(name) for name in design.supporters]
    if agents := [spec.name for spec in specs if spec.endpoint.kind == "agent"]:
        raise UserError(f"--supporter {agents[0]}: people talk to chat models; an agent only works in `esc-eval run`")
    check_unique("--supporter", (spec.name for spec in specs), "supporters")
    items = played_items(load_played(cards, profiles))
    if items and design.questionnaire:
        raise UserError("questionnaire: people are asked who they are: leave out --cards and --profiles")
    chat = design.model_dump(include=set(Talking.model_fields)) | {"supporters": specs}
    return items, {"kind": "chat", "rubric": rules, "chat": chat}


def raters_of(given: Sequence[str], languages: Sequence[Language], prefix: str = "r") -> list[Person]:
    """The raters of --raters: so many who read all languages, and those with codes and languages of their own."""
    count = sum(int(text) for text in given if text.isdecimal())
    allowed = in_order([*PAPER_LANGUAGES, *languages])
    people = [Person(f"{prefix}{number:02d}", tuple(in_order(languages))) for number in range(1, count + 1)]
    for text in given:
        if text.isdecimal():
            continue
        code, reads = name_and_value("--raters", text, "a number, or CODE=en,zh")
        own = reads.split(",")
        for language in own:
            if language not in allowed:
                raise UserError(f"--raters {text}: no language {language!r}: {near(language, allowed)}")
        people.append(Person(composed(code), tuple(language for language in allowed if language in own)))
    if not people:
        raise UserError("--raters: none: say how many, or name them as CODE=en,zh")
    check_unique("--raters", (person.code.casefold() for person in people), "raters")
    return people
