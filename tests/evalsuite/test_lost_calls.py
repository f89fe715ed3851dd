"""What failed does not stand in the way of what would be answered."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from core.files import read_jsonl
from core.records import Dialogue, Judgement
from serve.client import ChatClient
from serve.failures import NotAsked, ServerLost
from serve.store import CallStore
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint, echo
from tests.evalsuite.test_faults import MODELS, config, outputs, run_at
from tests.serve.test_client import question, spec

pytestmark = pytest.mark.usefixtures("no_report")


class Poisoned:
    """The seeker on this card says what the judge's server does not get over until it is `well`."""

    def __init__(self, card: int) -> None:
        self.card, self.well = card, False

    def __call__(self, body: dict[str, Any], count: int) -> Answer:
        told = " ".join(message["content"] for message in body["messages"])
        if "structured_outputs" in body:
            return Answer(status=500) if "the sad line" in told and not self.well else echo(body, count)
        return Answer("the sad line") if f"({self.card})" in told else echo(body, count)


def unscored(run: Path) -> set[str]:
    """The dialogues that have a lost judgement."""
    return {j.dialogue_id for j in read_jsonl(run / "judgements.jsonl", Judgement, "judgements") if j.lost}


def test_one_dialogue_that_cannot_be_judged_does_not_stop_the_others(
    esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalsuite.runner.engine.ChatClient", partial(ChatClient, attempts=2, backoff_s=0.001))
    config(tmp_path, 6, concurrency=1, method="per_dimension")
    poisoned = Poisoned(0)
    with Endpoint(poisoned, models=MODELS) as endpoint:
        assert esc_eval(*run_at(endpoint.url))[0] == 1
        assert len(unscored(tmp_path / "run")) == 1
        poisoned.well = True
        assert esc_eval(*run_at(endpoint.url)) == (0, "")
        assert esc_eval(*run_at(endpoint.url, "undisturbed")) == (0, "")
    assert outputs(tmp_path / "run") == outputs(tmp_path / "undisturbed")


def test_what_failed_before_is_asked_last(esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first five cards are poison: the model is given up, and the next try begins with those that were not asked."""
    monkeypatch.setattr("evalsuite.runner.engine.ChatClient", partial(ChatClient, attempts=1, backoff_s=0.001))
    config(tmp_path, 8, concurrency=1)

    def behave(body: dict[str, Any], count: int) -> Answer:
        told = " ".join(message["content"] for message in body["messages"])
        return Answer(status=500) if any(f"({card})" in told for card in range(5)) else echo(body, count)

    with Endpoint(behave, models=MODELS) as endpoint:
        code, err = esc_eval(*run_at(endpoint.url))
        assert code == 2 and "nothing was answered" in err and not (tmp_path / "run" / "config.json").exists()
        assert esc_eval(*run_at(endpoint.url))[0] == 1
        dialogues = read_jsonl(tmp_path / "run" / "dialogues.jsonl", Dialogue, "dialogues")
        assert sum(dialogue.lost for dialogue in dialogues) == 5


async def test_a_model_is_given_up_after_losses_in_three_dialogues_and_what_is_not_asked_is_no_failure(tmp_path: Path) -> None:
    store = CallStore(tmp_path / "calls.sqlite")
    with Endpoint(lambda body, count: Answer(status=500)) as endpoint:
        async with ChatClient(store, attempts=1, lost_in_a_row=5) as client:
            for number in range(12):
                with pytest.raises(ServerLost) as caught:
                    about = question(str(number), session=f"d{number // 4}", sample={"dialogue": f"d{number // 4}"})
                    await client.ask(spec(endpoint.url), about)
                assert isinstance(caught.value, NotAsked) == (number >= 9), number  # the ninth is the third dialogue's first
        assert len(endpoint.requests) == 9
    assert store.failed_items() == {"d0": 4, "d1": 4, "d2": 1}
    store.close()
