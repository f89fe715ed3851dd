"""The second review (ESC-Eval, appendix C.2): what raters differ on by more than a point waits for a reviewer, who sees their
scores without names and decides."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from core.records import HumanScore
from data_prep.scores.annotation import Asked, Settled, settle, to_review
from evalsuite.people.export import scores_of
from evalsuite.people.store import Store

REVIEW = "review"  # a task's purpose


def queue(store: Store) -> int:
    """Give reviewers what waits: items that all their raters have submitted and that nobody reviews yet. How many are new."""
    study = store.study()
    reviewers = [row.code for row in store.raters() if row.reviewer and not row.revoked]
    if not reviewers or study.rubric is None or study.kind != "rate" or study.per != "dialogue":
        return 0
    tasks = store.tasks()
    open_items = {task.item for task in tasks if task.purpose == "item" and not task.submitted}
    item_of = {content.dialogue.id: item for item, content in store.contents().items()}
    given: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    scores = scores_of(store)
    asked = to_review(scores, study.rubric, "native")
    for score in scores:
        if score.dimension in asked.get(score.dialogue_id, ()):
            given[item_of[score.dialogue_id]][score.dimension].append(score.value)
    loads = Counter(task.rater for task in tasks if task.purpose == REVIEW)
    reviews: list[tuple[str, str, dict[str, Any]]] = []
    for item in sorted(given.keys() - open_items):
        code = min(reviewers, key=lambda one: (loads[one], one))
        loads[code] += 1
        reviews.append((code, item, {"given": {name: sorted(values) for name, values in given[item].items()}}))
    return store.add_reviews(reviews)


def settled(store: Store) -> Settled:
    """The accepted scores: the reviewer's where raters lie too far apart, else their mean; and what still waits."""
    study, scores = store.study(), scores_of(store)
    assert study.rubric is not None, "what is settled is rated"
    decided: list[HumanScore] = scores_of(store, purposes=(REVIEW,))
    asked: Asked = to_review(scores, study.rubric, "native")
    return settle(scores, decided, asked)
