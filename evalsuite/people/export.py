"""A study's answers as records: scores, preferences and dialogues for the rest of the project."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from core.files import write_jsonl
from core.records import Comparison, Dialogue, HumanScore, Preference
from data_prep.cards.sheets import write_csv
from data_prep.profiles.record import Profile
from data_prep.scores.human import COLUMNS
from data_prep.scores.weights import WEIGHTS, write_weights
from evalsuite.people.chat import PROFILE, TALK, talks_in
from evalsuite.people.store import RaterAnswer, StudyStore
from evalsuite.people.study import COMMENT, Content, QuestionKey
from evalsuite.people.tables import TaskRow

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


def write_export(store: StudyStore, out: Path, comments: bool) -> dict[str, int]:
    """Write the study's records (docs/people.md) into a folder; returns file → rows."""
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
    return written


def _control(store: StudyStore) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of control.csv, and comments."""
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
