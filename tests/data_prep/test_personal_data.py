"""Personal data in given dialogues: replaced before anything is asked, with the real presidio where it is installed."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.records import Turn
from data_prep.dialogue_files import Given
from tests.conftest import EscEval
from tests.demo import demo_config
from tests.endpoint import Endpoint
from tests.evalsuite.records import make_dialogue

installed = importlib.util.find_spec("presidio_analyzer") is not None
with_presidio = pytest.mark.skipif(not installed, reason="pip install 'esc-eval[anonymise]'")
without_presidio = pytest.mark.skipif(installed, reason="presidio is installed here")
PRIVATE = {
    "EMAIL_ADDRESS": "anna.smith@example.com",
    "CREDIT_CARD": "4111 1111 1111 1111",
    "PHONE_NUMBER": "+49 170 1234567",
    "IBAN_CODE": "DE89370400440532013000",
    "URL": "http://example.com/anna",
    "NUMBER": "138-1234-5678",
}


def given(chats: Path, url: str, **settings: Any) -> tuple[str, ...]:
    said = [("user", "Reach me: " + "; ".join(PRIVATE.values())), ("assistant", "I will, in 2 hours.")]
    messages = [{"role": role, "content": text} for role, text in said]
    chats.write_text(json.dumps({"id": "1", "messages": messages}))
    config = demo_config(gold=None, languages=["en"], judge=f"judge@{url}", **settings)
    Path("c.yaml").write_text(yaml.safe_dump(config))
    return "run", "--only", "score", "--config", "c.yaml", "--dialogues", str(chats), "--out", "run"


@without_presidio
def test_what_has_to_be_installed_is_said_and_nothing_is_asked(esc_eval: EscEval, tmp_path: Path) -> None:
    with Endpoint(models=("judge",)) as endpoint:
        code, error = esc_eval(*given(tmp_path / "chats.jsonl", endpoint.url, anonymise=True))
        assert code == 2 and "anonymise needs presidio_analyzer, presidio_anonymizer, not installed here" in error
        assert not endpoint.requests and not Path("run").exists()


@pytest.mark.slow
@with_presidio
def test_the_judge_and_the_records_have_kinds_in_place_of_personal_data(esc_eval: EscEval, tmp_path: Path) -> None:
    with Endpoint(models=("judge",)) as endpoint:
        assert esc_eval(*given(tmp_path / "chats.jsonl", endpoint.url, anonymise=True))[0] == 0
        left = json.dumps(endpoint.requests) + "".join(path.read_text() for path in Path("run").glob("*.json*"))
    assert not [text for text in PRIVATE.values() if text in left]
    assert all(f"<{kind}>" in left for kind in PRIVATE) and "in 2 hours" in left


@with_presidio
def test_what_was_found_is_counted_and_what_can_be_missed_is_said() -> None:
    from data_prep.dialogue_files import without_personal_data

    turns = (Turn(role="seeker", text="a@example.com or b@example.com"), Turn(role="supporter", text="Well, Anna."))
    chinese = (Turn(role="seeker", text="我的电话是13812345678"),)
    left = without_personal_data(
        Given([make_dialogue("a", turns=turns), make_dialogue("b", language="zh", turns=chinese)], ["x"])
    )
    assert [[turn.text for turn in one.turns] for one in left.dialogues] == [
        ["<EMAIL_ADDRESS> or <EMAIL_ADDRESS>", "Well, Anna."],
        ["我的电话是<NUMBER>"],
    ]
    names = "names of people, places and organisations stay: no spaCy model of the language is installed"
    found = "personal data replaced: 2 EMAIL_ADDRESS, 1 NUMBER; unusual forms are missed"
    assert left.notes == ["x", found, f"en: {names}", f"zh: {names}"]
