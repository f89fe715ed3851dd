"""When a run ends early."""

import pytest

from serve.failures import FIRST_CALLS, Rejected, Threshold

A, B = ("http://a/v1", "m"), ("http://b/v1", "m")


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refused_key_or_model_ends_a_run_at_once(status: int) -> None:
    threshold = Threshold()
    threshold.answered(A)
    threshold.rejected(A, Rejected(f"HTTP {status}", status))
    assert threshold.cause == f"HTTP {status} (set fail_on_error N to continue nevertheless)"


def test_a_model_that_has_answered_once_may_reject_any_number_of_calls() -> None:
    threshold = Threshold()
    threshold.answered(A)
    for _ in range(10 * FIRST_CALLS):
        threshold.rejected(A, Rejected("no", 400))
    for _ in range(FIRST_CALLS - 1):
        threshold.rejected(B, Rejected("no", 400))
    assert threshold.cause is None
    threshold.rejected(B, Rejected("no", 400))
    assert threshold.cause == "the first 20 calls were all rejected: no"


@pytest.mark.parametrize(
    ("limit", "total", "ends_at"), [(0.1, 100, 10), (0.25, 10, 3), (1, 100, 1), (7, 100, 7), (0.001, 10, 1)]
)
def test_the_number_or_share_of_dialogues_that_may_fail(limit: float, total: int, ends_at: int) -> None:
    """As Inspect AI counts: at the number, or at the share of all (a quarter of ten is reached by the third)."""
    threshold = Threshold(limit)
    for _ in range(3 * FIRST_CALLS):
        threshold.rejected(A, Rejected("no", 401))  # the number replaces the other rules
    for _ in range(ends_at):
        assert threshold.cause is None
        threshold.dialogue_failed(total)
    assert threshold.cause == f"{ends_at} of {total} dialogues failed (fail_on_error {limit:g})"
