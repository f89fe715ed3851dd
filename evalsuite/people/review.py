"""Later rounds of scoring: ESC-Eval's second review and FEEL's second round.

- Second review (ESC-Eval, appendix C.2): if raters differ by more than a point, a reviewer sees their scores without names and
  decides.
- Second round (FEEL, section 3.2): once all have submitted, a rater who is more than a point from another while the others
  agree scores again; other contested scores are reviewed by all their raters together, and one of them enters the agreed score.
"""

from collections import Counter, defaultdict
from typing import Any

from data_prep.scores.annotation import Settled, settle, to_review
from data_prep.scores.rescoring import Final, contested, finish
from evalsuite.people.export import scores_of
from evalsuite.people.store import StudyStore

REVIEW, AGAIN, JOINT = "review", "again", "joint"  # purposes of tasks
LATER = (REVIEW, AGAIN, JOINT)
Task = tuple[str, str, str, dict[str, Any]]  # purpose, rater, item, details


def queue(store: StudyStore) -> int:
    """Assign waiting items to reviewers, once all their raters have submitted; returns the number of new tasks."""
    study = store.study()
    if study.second_round:
        return _second_round(store)
    reviewers = [row.code for row in store.raters() if row.reviewer and not row.revoked]
    if not reviewers or study.rubric is None or study.kind != "rate" or study.per != "dialogue":
        return 0
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
    return store.add_tasks(reviews)


def _second_round(store: StudyStore) -> int:
    """The same for scores to give again, once the first round is over, so that nobody sees others' scores before."""
    tasks, revoked = store.tasks(), {row.code for row in store.raters() if row.revoked}
    if any(task.purpose in LATER or (not task.submitted and task.rater not in revoked) for task in tasks):
        return 0
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
    return store.add_tasks(later)


def final_scores(store: StudyStore) -> Final:
    """The scores after the second round and their means; which still wait, and which are still apart."""
    return finish(scores_of(store), scores_of(store, purposes=(AGAIN,)), scores_of(store, purposes=(JOINT,)))


def settled(store: StudyStore) -> Settled:
    """The accepted scores, the reviewer's if raters are too far apart, else their mean; and which still wait."""
    study, scores = store.study(), scores_of(store)
    assert study.rubric is not None, "what is settled is rated"
    return settle(scores, scores_of(store, purposes=(REVIEW,)), to_review(scores, study.rubric, "native"))
