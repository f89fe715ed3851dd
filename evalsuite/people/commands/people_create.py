"""`esc-eval people create` and `suggest`: a study's items, questions, supporters and raters; which dialogues to rate next."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import isclose
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from pydantic import Field, ValidationError

from core.errors import UserError, at, near
from core.files import check_unique, explain, read_jsonl, read_text, write_jsonl
from core.grouping import group_by
from core.languages import PAPER_LANGUAGES, in_order, words
from core.names import composed
from core.options import SeedOption, SetOption, choice, console, name_and_value
from core.paths import IN_FILE, MaybeFile, MaybeFiles, MaybeModels, MaybeName, Reads, Writes
from core.records import Dialogue, HumanScore, Judgement, Language, RoleCard
from core.rubrics import Rubric, flat_rubric
from core.specs import load_spec
from core.tables import Estimate, fmt
from data_prep.cards.sheets import write_csv
from data_prep.profiles import load_played, played_text
from data_prep.scores.annotation import BEFORE, WEIGHTS, read_weights, weights_beside, write_weights
from data_prep.scores.human import RubricCheck, gold_scores_of, read_dialogues, read_scores
from evalsuite.commands.options import InRun, JudgedByOption
from evalsuite.dialogues.hold import FLOORS
from evalsuite.papers.role_play import QUESTION, pairs_of, read_field
from evalsuite.people.commands.people import DATABASE, LINK_COLUMNS, LINKS, need_people, opened
from evalsuite.people.study import (
    Content,
    Item,
    Items,
    Person,
    Study,
    StudyDesign,
    Talking,
    assign,
    assign_talks,
    item_id,
    rated_items,
)
from evalsuite.runs import shards
from evalsuite.runs.config import overridden
from evalsuite.runs.contents import chosen_set
from evalsuite.runs.records import read_run
from evalsuite.statistics.comparison import RunRecords
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.suggestions import closest, spread_and_error, suggest, uncertainty
from evalsuite.statistics.summary import checked, seeker_of, supporter_of


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
    console.print(f"next: esc-eval people serve {quote(str(folder))}", soft_wrap=True)


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
        groups = group_by(dialogues, lambda d: (d.language, d.card_id or d.profile_id or d.source_id or d.id, d.trial))
        pairs = [(a, b) for g in groups.values() for a, b in combinations(g, 2) if a.supporter != b.supporter]
        if not pairs:
            raise UserError("--dialogues: no two supporters spoke on the same card, profile or situation: nothing to compare")
        systems, played = {dialogue.id: dialogue.supporter or dialogue.source for dialogue in dialogues}, {}
        name = question = "better"
    languages = in_order([*PAPER_LANGUAGES, *(a.language for a, _ in pairs)])
    questions = questions or {name: {language: words(language)[question] for language in languages}}
    items = [
        (
            Item(item_id(a.id, b.id), a.language, (systems[a.id], systems[b.id])),
            Content(dialogue=a, other=b, played=played.get(a.id, "")),
        )
        for a, b in pairs
    ]
    return items, {"kind": "choose", "questions": questions}


def _talks(design: StudyConfig, rules: Rubric, cards: list[Path], profiles: list[Path]) -> tuple[Items, dict[str, Any]]:
    """The cards or profiles played in the talks, if any, and the supporters."""
    specs = [load_spec(name) for name in design.supporters]
    if agents := [spec.name for spec in specs if spec.endpoint.kind == "agent"]:
        raise UserError(f"--supporter {agents[0]}: people talk to chat models; an agent only works in `esc-eval run`")
    check_unique("--supporter", (spec.name for spec in specs), "supporters")
    items: Items = []
    for id, person in (played := load_played(cards, profiles)).items():
        ids = {"id": id, "card_id" if isinstance(person, RoleCard) else "profile_id": id}
        # A talk has no turns yet.
        empty = Dialogue(language=person.language, source="people", turns=(), termination="infrastructure", **ids)
        items.append((Item(item_id(id), person.language), Content(dialogue=empty, played=played_text(empty, played))))
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


def suggest_dialogues(
    run: Annotated[InRun, typer.Argument(metavar="RUN", help="Scored run folder.")],
    budget: Annotated[int, typer.Option(min=1, help="How many dialogues people can rate.")],
    out: Annotated[
        Path, typer.Option(help="Folder for the dialogues drawn."), Writes(("dialogues.jsonl", "weights.csv", BEFORE))
    ] = Path("runs/suggested"),
    supporter: Annotated[
        list[str] | None,
        typer.Option(help="A supporter to compare; repeat for more. Default: the two that the judge distinguishes least."),
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="spread|random", help="spread: dialogues with an unsure judge more often. random: evenly.")
    ] = "spread",
    people: Annotated[
        MaybeFiles,
        typer.Option(help="Existing scores by people, on the run's rubric: these are not drawn again. Repeat for more."),
    ] = None,
    judge: JudgedByOption = None,
    seed: SeedOption = 0,
) -> None:
    """Draw the dialogues that people should score to compare two supporters, preferring those of which the judge is unsure.

    Give OUT/dialogues.jsonl to `esc-eval people create --dialogues`. OUT/weights.csv next to it has the probability of each
    draw: the study keeps and exports it, and `leaderboard RUN --people EXPORT/scores.jsonl` weights by it, so the board stays
    unbiased if all of them are scored. A judge is unsure if its probabilities or repeats are spread. If the spread does not
    predict its error on the gold set and --people, `--by random` is better, and a warning says so.

    With --people a further round is drawn from dialogues that neither they nor the gold set scored. If it changes the weights
    of the first draw, OUT/weights_before.csv has the new ones: put it in place of the weights.csv next to the scores.

    Example: esc-eval people suggest runs/quick --budget 8 --out runs/suggested
    """
    evenly = choice("--by", by, ("spread", "random")) == "random"
    records = read_run(run.name, run, judge)
    names = dict.fromkeys(map(supporter_of, records.dialogues))
    for name in supporter or []:
        if name not in names:
            raise UserError(f"--supporter {name}: not in {run}: {near(name, names)}")
    verdicts = [verdict for verdict in checked(records.judgements, records.rubric) if verdict.turn is None]
    if supporter:
        candidates = [dialogue for dialogue in records.dialogues if supporter_of(dialogue) in supporter]
    else:
        floors = {*FLOORS, *records.floors}
        pairs = closest(Tally(records.dialogues, verdicts, records.rubric, floors).boards, floors)
        candidates = [dialogue for dialogue in records.dialogues if (dialogue.language, supporter_of(dialogue)) in pairs]
    if not candidates:
        raise UserError(f"{run}: no verdict on a whole dialogue to choose the supporters by: give --supporter")
    labelled_verdicts, scores = _labelled(records, verdicts, judge, people or [])
    association = None if evenly else spread_and_error(labelled_verdicts, scores, records.rubric)
    old = read_weights(weights_beside(people or []))
    labelled = {score.dialogue_id: old.get(score.dialogue_id, 1.0) for score in scores}
    draws, before = suggest(candidates, verdicts, records.rubric, budget, seed, evenly, labelled)
    write_jsonl(out / "dialogues.jsonl", [draw.dialogue for draw in draws])
    weights = {draw.dialogue.id: draw.weight for draw in draws}
    write_weights(out / WEIGHTS, weights)
    kept = {id: weight for id, weight in (old | before).items() if id not in weights}
    changed = any(not isclose(weight, kept.get(id, 0)) for id, weight in (old | {id: labelled[id] for id in before}).items())
    if changed:
        write_weights(out / BEFORE, kept)
    else:
        (out / BEFORE).unlink(missing_ok=True)
    with_spread = len(uncertainty(verdicts, records.rubric).keys() & {dialogue.id for dialogue in candidates} - before.keys())
    scored = f" ({len(before)} more are scored)" if before else ""
    basis = "a random choice" if evenly else f"{with_spread} of these with the judge's own spread"
    console.print(f"{len(draws)} of {len(candidates) - len(before)} dialogues{scored}, {basis}", soft_wrap=True)
    if association is not None and with_spread:
        console.print(_insight(association), soft_wrap=True)
    counts = Counter((draw.dialogue.language, supporter_of(draw.dialogue)) for draw in draws)
    for (language, name), count in sorted(counts.items()):
        console.print(f"{language}, {name}: {count}", soft_wrap=True)
    if changed:
        console.print(f"replace {WEIGHTS} next to the earlier scores with {out / BEFORE}", soft_wrap=True)
    made = quote(str(out / "dialogues.jsonl"))
    console.print(f"next: esc-eval people create STUDY --dialogues {made} --rubric NAME --raters 2", soft_wrap=True)


def _labelled(
    records: RunRecords, verdicts: Sequence[Judgement], judge: str | None, people: Sequence[Path]
) -> tuple[list[Judgement], list[HumanScore]]:
    """The judge's verdicts on dialogues that people or the gold set scored, and these scores."""
    folder = chosen_set(records.folder, shards.whole(records.folder), judge).folder
    scores = gold_scores_of(people)
    if others := {score.rubric for score in scores} - {records.rubric.name}:
        raise UserError(f"--people: scores on {', '.join(sorted(others))}, but the run's are on {records.rubric.name}")
    labelled = {score.dialogue_id for score in scores}
    judged = [verdict for verdict in verdicts if verdict.dialogue_id in labelled]
    gold = records.folder / "gold_scores.jsonl", folder / "gold_judgements.jsonl"
    if gold[0].exists():
        scores += gold_scores_of([gold[0]])
    if gold[1].exists():
        judged += read_jsonl(gold[1], Judgement, "judgements")
    whole = [score for score in scores if score.turn is None and score.dimension in records.rubric.dimensions]
    return [verdict for verdict in judged if verdict.turn is None], whole


def _insight(association: Estimate) -> str:
    """Whether the judge's spread predicts its error, in a sentence."""
    if association.mean is None or association.low is None:
        return (
            f"Whether the judge's spread predicts its error is unknown ({association.n} labelled dialogues). If it does not, "
            "a random choice is better (--by random)"
        )
    figures = f"Spearman's correlation {fmt(association, 2)}, over labelled dialogues"
    if association.low > 0:
        return f"The judge's spread predicts its error: {figures}"
    return (
        f"warning: there is no evidence that the judge's spread predicts its error: {figures}. A draw by it then needs more "
        "labels than a random choice: use --by random"
    )
