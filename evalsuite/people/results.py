"""A study's answers: as records for the rest of the project, in later rounds, and raters' progress.

- Second review (ESC-Eval, appendix C.2): if raters differ by more than a point, a reviewer sees their scores without names and
  decides.
- Second round (FEEL, section 3.2): once all have submitted, a rater who is more than a point from another while the others
  agree scores again; other contested scores are reviewed by all their raters together, and one of them enters the agreed score.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from core.files import write_jsonl
from core.records import Comparison, Dialogue, HumanScore, Preference
from core.statistics.accuracy import share
from core.tables import Cell, Column, Table
from data_prep.cards.sheets import write_csv
from data_prep.profiles.record import Profile
from data_prep.scores.annotation import TOLERATED, WEIGHTS, settle, to_review, write_weights
from data_prep.scores.annotator_agreement import agreement, agreement_table
from data_prep.scores.human import COLUMNS
from data_prep.scores.rescoring import contested, finish
from evalsuite.people.chat import PROFILE, TALK, talks_in
from evalsuite.people.store import Answers, RaterAnswer, StudyStore, TaskRow
from evalsuite.people.study import COMMENT, Content, QuestionKey

SCORED = ("item", TALK)  # purposes of tasks whose scores are exported


def scores_of(store: StudyStore, purposes: tuple[str, ...] = SCORED) -> list[HumanScore]:
    """The submitted scores of a study that rates, without repeated items, attention checks and answers "cannot judge"."""
    study = store.study()
    if study.rubric is None:
        return []
    places = {name: place for place, name in enumerate(study.rubric.dimensions)}
    scores = []
    for task, content, answers in _answered(store, purposes):
        keys = [key for key, answer in answers.items() if key[0] in places and answer.value is not None]
        for name, turn in sorted(keys, key=lambda key: (key[1] is None, key[1] or 0, places[key[0]])):
            fields = {"dialogue_id": content.dialogue.id, "language": content.dialogue.language, "annotator": task.rater}
            fields |= {"rubric": study.rubric.name, "dimension": name}
            scores.append(HumanScore(**fields, value=answers[name, turn].value, turn=turn))
    return scores


def preferences_of(store: StudyStore) -> Iterator[tuple[Preference, Comparison]]:
    """The choices of a study that compares: between dialogues, and between systems on an item (`paper role-play`)."""
    for task, content, answers in _answered(store, SCORED):
        a, b = content.dialogue, content.other
        assert b is not None, "a choice has two dialogues"
        systems = {n: (d.simulator if a.supporter == b.supporter else d.supporter) or d.source for n, d in (("a", a), ("b", b))}
        item = a.card_id or a.profile_id or a.source_id or a.id
        for (name, _), answer in answers.items():
            if answer.choice is not None:
                choice = {"annotator": task.rater, "question": name, "verdict": answer.choice, "order": task.order}
                yield Preference(dialogue_a=a.id, dialogue_b=b.id, **choice), Comparison(item=item, **systems, **choice)


def dialogues_of(store: StudyStore) -> list[Dialogue]:
    """Every dialogue shown in the study, and every talk held in it, once."""
    dialogues: dict[str, Dialogue] = {}
    for content in [*store.contents().values(), *talks_in(store).values()]:
        for dialogue in (content.dialogue, content.other):
            if dialogue is not None and dialogue.turns:
                dialogues.setdefault(dialogue.id, dialogue)
    return list(dialogues.values())


def profiles_of(store: StudyStore) -> tuple[list[Profile], list[dict[str, Any]]]:
    """The profile of the person in each talk, under the talk's `profile_id`, and a row per feeling before and after a talk."""
    study, answers, tasks = store.study(), store.answers(), store.tasks()
    asks, talks = study.chat and study.chat.questionnaire, talks_in(store)
    if not asks:
        return [], []
    about = {task.rater: answers.get(task.id, {}) for task in tasks if task.purpose == PROFILE}
    profiles, moods = [], []
    for task in (task for task in tasks if task.id in talks):
        dialogue, given = talks[task.id].dialogue, answers.get(task.id, {}) | about[task.rater]
        replies = {name: (answer.value, answer.text or "") for (name, turn), (answer, _) in given.items() if turn is None}
        profiles.append(asks.profile(dialogue.id, dialogue.language, replies))
        for mood in asks.mood:
            places = {when: replies.get(f"{when}.{mood}", (None, ""))[0] for when in ("before", "after")}
            feelings = {when: None if place is None else int(place) for when, place in places.items()}
            moods.append({"annotator": task.rater, "dialogue_id": dialogue.id, "mood": mood} | feelings)
    return profiles, moods


def _answered(
    store: StudyStore, purposes: tuple[str, ...], submitted_only: bool = True
) -> Iterator[tuple[TaskRow, Content, dict[QuestionKey, RaterAnswer]]]:
    contents, answers, talks = store.contents(), store.answers(), talks_in(store)
    for task in store.tasks():
        content = talks.get(task.id) if task.purpose == TALK else contents.get(task.item)
        if content is not None and task.purpose in purposes and (task.submitted or not submitted_only):
            yield (task, content, {key: answer for key, (answer, _) in answers.get(task.id, {}).items()})


def write_export(store: StudyStore, out: Path, comments: bool) -> tuple[dict[str, int], list[str]]:
    """Write the study's records (docs/people.md) into a folder; returns file → rows, and notes on scores not accepted yet."""
    out.mkdir(parents=True, exist_ok=True)
    written = {"dialogues.jsonl": write_jsonl(out / "dialogues.jsonl", dialogues_of(store))}
    study = store.study()
    if study.rubric is not None:
        scores = scores_of(store)
        written["scores.jsonl"] = write_jsonl(out / "scores.jsonl", scores)
        written["scores.csv"] = _csv(out / "scores.csv", COLUMNS, [score.model_dump() for score in scores])
    if study.asks:
        profiles, moods = profiles_of(store)
        written["profiles.jsonl"] = write_jsonl(out / "profiles.jsonl", profiles)
        written["moods.csv"] = _csv(out / "moods.csv", ("annotator", "dialogue_id", "mood", "before", "after"), moods)
    if study.weights:
        written[WEIGHTS] = write_weights(out / WEIGHTS, study.weights)
    if study.kind == "choose":
        choices = [*preferences_of(store)]
        written["preferences.jsonl"] = write_jsonl(out / "preferences.jsonl", [preference for preference, _ in choices])
        columns = ("item", "a", "b", "annotator", "question", "verdict", "order")
        written["choices.csv"] = _csv(out / "choices.csv", columns, [comparison.model_dump() for _, comparison in choices])
    control, remarks = _control(store)
    heads = ("annotator", "purpose", "dialogue_id", "other", "question", "turn", "value", "choice", "cannot")
    written["control.csv"] = _csv(out / "control.csv", heads, control)
    if comments:
        written["comments.csv"] = _csv(out / "comments.csv", ("annotator", "dialogue_id", "other", "comment"), remarks)
    notes = []
    if study.second_round:
        final = finish(scores_of(store), scores_of(store, (AGAIN,)), scores_of(store, (JOINT,)))
        written["final.jsonl"] = write_jsonl(out / "final.jsonl", final.scores)
        written["accepted.jsonl"] = write_jsonl(out / "accepted.jsonl", final.accepted)
        if final.waiting:
            notes.append(f"{len(final.waiting)} scores wait for the second round and are not accepted yet")
        if final.still_apart:
            notes.append(f"{len(final.still_apart)} scores are still more than a point apart; their mean is accepted")
    if any(row.reviewer for row in store.raters()):
        assert study.rubric is not None, "what is reviewed is rated"
        disputed = to_review(scores_of(store), study.rubric, "native")
        reviewed = settle(scores_of(store), scores_of(store, (REVIEW,)), disputed)
        written["accepted.jsonl"] = write_jsonl(out / "accepted.jsonl", reviewed.accepted)
        if reviewed.waiting:
            notes.append(f"{sum(map(len, reviewed.waiting.values()))} scores wait for a reviewer and are not accepted yet")
    return written, notes


def _control(store: StudyStore) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    control, remarks = [], []
    purposes = ("item", "talk", "check", "repeat", "review", "again", "joint")
    for task, content, answers in _answered(store, purposes, submitted_only=False):
        other = content.other.id if content.other else ""
        lead: dict[str, Any] = {"annotator": task.rater, "dialogue_id": content.dialogue.id, "other": other}
        for (name, turn), answer in answers.items():
            if name == COMMENT:
                if answer.text:
                    remarks.append(lead | {"comment": answer.text})
            elif task.purpose not in SCORED or answer.cannot:
                reply = {"value": answer.value, "choice": answer.choice, "cannot": answer.cannot}
                control.append(lead | {"purpose": task.purpose, "question": name, "turn": turn} | reply)
    return control, remarks


def _csv(path: Path, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> int:
    text = [{name: "" if row.get(name) is None else str(row[name]) for name in columns} for row in rows]
    write_csv(path, columns, text)
    return len(rows)


REVIEW, AGAIN, JOINT = "review", "again", "joint"  # purposes of tasks
LATER = (REVIEW, AGAIN, JOINT)
Task = tuple[str, str, str, dict[str, Any]]  # purpose, rater, item, details


def queue(store: StudyStore) -> None:
    """Assign waiting items to reviewers, once all their raters have submitted."""
    study = store.study()
    if study.second_round:
        _second_round(store)
        return
    reviewers = [row.code for row in store.raters() if row.reviewer and not row.revoked]
    if not reviewers or study.rubric is None or study.kind != "rate" or study.per != "dialogue":
        return
    tasks = store.tasks()
    open_items = {task.item for task in tasks if task.purpose == "item" and not task.submitted}
    item_of = {content.dialogue.id: item for item, content in store.contents().items()}
    given: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    scores = scores_of(store)
    disputed = to_review(scores, study.rubric, "native")
    for score in scores:
        if score.dimension in disputed.get(score.dialogue_id, ()):
            given[item_of[score.dialogue_id]][score.dimension].append(score.value)
    loads = Counter(task.rater for task in tasks if task.purpose == REVIEW)
    reviews: list[Task] = []
    for item in sorted(given.keys() - open_items):
        code = min(reviewers, key=lambda reviewer: (loads[reviewer], reviewer))
        loads[code] += 1
        reviews.append((REVIEW, code, item, {"given": {name: sorted(values) for name, values in given[item].items()}}))
    store.add_tasks(reviews)


def _second_round(store: StudyStore) -> None:
    """The same for scores to give again, once the first round is over, so that nobody sees others' scores before."""
    tasks, revoked = store.tasks(), {row.code for row in store.raters() if row.revoked}
    if any(task.purpose in LATER or (not task.submitted and task.rater not in revoked) for task in tasks):
        return
    scores, item_of = scores_of(store), {content.dialogue.id: item for item, content in store.contents().items()}
    given: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for score in scores:
        given[score.dialogue_id, score.dimension][score.annotator] = score.value
    disputed, loads, later = contested(scores), Counter[str](), list[Task]()

    def add(purpose: str, code: str, dialogue: str, dimensions: tuple[str, ...]) -> None:
        by_dimension = {name: given[dialogue, name] for name in dimensions}
        own_scores = {name: values[code] for name, values in by_dimension.items()} if purpose == AGAIN else {}
        details = {"given": {name: sorted(values.values()) for name, values in by_dimension.items()}, "own": own_scores}
        loads[code] += 1
        later.append((purpose, code, item_of[dialogue], details))

    for code, by_dialogue in disputed.by_annotator.items():
        for dialogue, dimensions in by_dialogue.items():
            add(AGAIN, code, dialogue, dimensions)
    for dialogue, dimensions in disputed.joint.items():
        raters = sorted({code for name in dimensions for code in given[dialogue, name]} - revoked)
        if raters:
            add(JOINT, min(raters, key=lambda code: (loads[code], code)), dialogue, dimensions)
    store.add_tasks(later)


def _share(flags: list[bool]) -> Cell:
    return share(sum(flags), len(flags))


@dataclass
class RaterProgress:
    """A rater's progress. Checks and repeats are counted per dimension; nobody is dropped for them."""

    code: str
    label: Annotated[str, Column("rater")]
    """The code, and whether the link is revoked."""
    done: Annotated[int, Column("submitted")] = 0
    begun: Annotated[int, Column("begun")] = 0
    tasks: Annotated[int, Column("tasks")] = 0
    cannot: Annotated[int, Column("cannot judge")] = 0
    checks: Annotated[list[bool], Column("checks %", _share)] = field(default_factory=list)
    """Whether each answer to an attention check is within a point of the expected score."""
    repeats: Annotated[list[bool], Column("repeats %", _share)] = field(default_factory=list)
    """Whether each answer to a repeated item is the same as before (scores: within a point)."""


def progress(store: StudyStore) -> tuple[list[RaterProgress], list[Table]]:
    """The study's raters, and tables of their progress and of the agreement of scores so far."""
    study, answers, tasks = store.study(), store.answers(), store.tasks()
    raters = {row.code: RaterProgress(row.code, row.code + " (revoked)" * row.revoked) for row in store.raters()}
    first = {(task.rater, task.item): answers.get(task.id, {}) for task in tasks if task.purpose == "item"}
    for task in tasks:
        rater, given = raters[task.rater], answers.get(task.id, {})
        rater.tasks += 1
        rater.done += task.submitted
        rater.begun += bool(given) and not task.submitted
        rater.cannot += sum(answer.cannot for answer, _ in given.values())
        if task.purpose == "check" and task.submitted:
            for name, expected in study.expected.get(task.item, {}).items():
                value = given[name, None][0].value if (name, None) in given else None
                rater.checks.append(value is not None and abs(value - expected) <= TOLERATED)
        if task.purpose == "repeat" and task.submitted:
            rater.repeats += _alike(first[task.rater, task.item], given)
    note = (
        f"Checks: answers within {TOLERATED} point of the expected score. Repeats: answers to repeated items that are the "
        f"same as before (scores: within {TOLERATED} point). Wilson's 95 % intervals. Exports leave nobody out for them."
    )
    withdrew = [f"{row.code} withdrew on {row.day}; their data were deleted." for row in store.withdrawals()]
    tables = [Table.of("raters", "Raters", raters.values(), [note, *withdrew])]
    if agreed := agreement(scores_of(store)):
        tables.append(agreement_table(agreed))
    return [*raters.values()], tables


def _alike(before: Answers, repeated: Answers) -> Iterator[bool]:
    for key, (answer, _) in repeated.items():
        earlier = before.get(key, (RaterAnswer(), 0))[0]
        if answer.value is not None and earlier.value is not None:
            yield abs(answer.value - earlier.value) <= TOLERATED
        elif answer.choice is not None and earlier.choice is not None:
            yield answer.choice == earlier.choice
