"""The dialogue engine with sides that say what the test wants: turns, endings, accounts, secrecy of states, pipelining."""

import asyncio
import json
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import yaml
from pydantic import ValidationError
from rich.console import Console

from core.errors import UserError
from core.files import read_jsonl
from core.records import Dialogue, Turn
from core.specs import ModelSpec, load_spec
from evalsuite.dialogues.hold import Opening, Plan, Utterance, hold, utterance
from serve.answers import Reply
from serve.batch import Desk, Phase, answered, together
from serve.client import ChatClient
from serve.failures import Rejected, ServerLost, Unanswered
from serve.store import CallStore
from tests.conftest import EscEval
from tests.demo import demo_config
from tests.endpoint import Endpoint


class Scripted:
    """Says its lines in order; an exception in the list is raised. Remembers what it was shown."""

    def __init__(self, *lines: Utterance | str | Exception) -> None:
        self.lines = list(lines)
        self.seen: list[list[Turn]] = []

    async def speak(self, client: ChatClient, turns: Sequence[Turn]) -> Utterance:
        self.seen.append(list(turns))
        line = self.lines.pop(0) if self.lines else "again"
        if isinstance(line, Exception):
            raise line
        return Utterance(line, [Reply(text=line, prompt_tokens=3, completion_tokens=2)]) if isinstance(line, str) else line


NOBODY = cast(ChatClient, None)  # scripted sides ask no model
GREETING = Turn(role="supporter", text="Hello.")


def plan(seeker: Scripted, supporter: Scripted, opening: tuple[Turn, ...] = (GREETING,), **changes: object) -> Plan:
    begun = Opening("d1", "en", "esc_eval", "test", supporter="s", simulator="c", turns=opening)
    return Plan(begun, seeker, supporter, **{"exchanges": 2} | changes)  # type: ignore[arg-type]


async def test_a_dialogue_runs_its_exchanges_after_the_opening() -> None:
    dialogue = await hold(plan(Scripted("a", "c"), Scripted("b", "d")), NOBODY)
    assert [(turn.role, turn.text) for turn in dialogue.turns] == [
        ("supporter", "Hello."),
        ("seeker", "a"),
        ("supporter", "b"),
        ("seeker", "c"),
        ("supporter", "d"),
    ]
    assert dialogue.termination == "max_turns"
    assert dialogue.ended_by is None
    assert dialogue.exchanges == 2
    assert dialogue.usage is not None
    assert (dialogue.usage.calls, dialogue.usage.prompt_tokens, dialogue.usage.completion_tokens) == (4, 12, 8)


async def test_the_supporter_can_speak_first() -> None:
    dialogue = await hold(plan(Scripted("b"), Scripted("a"), first="supporter", exchanges=1, opening=()), NOBODY)
    assert [turn.role for turn in dialogue.turns] == ["supporter", "seeker"]
    begun = (GREETING, Turn(role="seeker", text="hm"), Turn(role="supporter", text="another"))
    fork = plan(Scripted("b", "d"), Scripted("c"), first="supporter", exchanges=3, opening=begun, spoken=3)
    ended = await hold(fork, NOBODY)
    assert [turn.text for turn in ended.turns[3:]] == ["b", "c", "d"] and ended.termination == "max_turns"


@pytest.mark.parametrize("reason", ["refusal", "empty_reply", "context_overflow"])
@pytest.mark.parametrize("side", ["seeker", "supporter"])
async def test_a_stopping_reply_is_no_turn_and_names_its_side(reason: str, side: str) -> None:
    stop = Utterance("", [Reply(text="")], stopped=reason)  # type: ignore[arg-type]
    seeker = Scripted("a", stop) if side == "seeker" else Scripted("a", "c")
    supporter = Scripted("b", stop)
    dialogue = await hold(plan(seeker, supporter), NOBODY)
    assert dialogue.termination == reason
    assert dialogue.ended_by == side
    assert len(dialogue.turns) == (3 if side == "seeker" else 4)
    assert dialogue.usage is not None and dialogue.usage.calls == (3 if side == "seeker" else 4)


async def test_the_seeker_may_end() -> None:
    dialogue = await hold(plan(Scripted(Utterance("bye", ended=True)), Scripted()), NOBODY)
    assert (dialogue.termination, dialogue.ended_by, dialogue.turns[-1].text) == ("seeker_ended", "seeker", "bye")


@pytest.mark.parametrize(("error", "termination"), [(ServerLost("gone"), "infrastructure"), (Rejected("no", 400), "rejected")])
async def test_a_call_without_an_answer_ends_only_this_dialogue(error: Unanswered, termination: str) -> None:
    dialogue = await hold(plan(Scripted("a"), Scripted(error)), NOBODY)
    assert (dialogue.termination, dialogue.ended_by, dialogue.lost) == (termination, "supporter", True)


async def test_states_are_kept_and_never_shown_to_the_supporter() -> None:
    seeker = Scripted(Utterance("a", state={"emotion": "sad"}), Utterance("c", state={"emotion": "calm"}))
    supporter = Scripted("b", "d")
    dialogue = await hold(plan(seeker, supporter), NOBODY)
    assert [turn.state for turn in dialogue.turns if turn.role == "seeker"] == [{"emotion": "sad"}, {"emotion": "calm"}]
    assert all(turn.state is None for shown in supporter.seen for turn in shown)
    assert seeker.seen[1][1].state == {"emotion": "sad"}


@pytest.mark.parametrize(
    ("reply", "stopped"),
    [
        (Reply(text="I'm sorry, I can't help with that."), None),  # wording is not judged
        (Reply(text="", refused=True), "refusal"),
        (Reply(text="  \n "), "empty_reply"),
        (Reply(text="", finish_reason="context_overflow"), "context_overflow"),
        (Reply(text="cut", finish_reason="length"), None),
    ],
)
def test_replies_are_told_apart(reply: Reply, stopped: str | None) -> None:
    assert utterance(reply).stopped == stopped


def no_servers() -> Generator[Phase, None, None]:
    yield from ()


@pytest.mark.slow
def test_nobody_waits_for_the_slowest_of_a_wave(tmp_path: Path) -> None:
    finished: list[int] = []

    async def work(client: ChatClient, job: int) -> None:
        async with asyncio.timeout(60):
            while job == 0 and len(finished) < 4:  # noqa: ASYNC110  in waves of two, 2 to 4 would come after 0
                await asyncio.sleep(0.01)
        finished.append(job)

    store = CallStore(tmp_path / "calls.sqlite")
    client, jobs = partial(ChatClient, store, concurrency=2), range(5)
    answered(Desk([], Console(quiet=True), client, no_servers, jobs, work, "work", "jobs", done=lambda answers: None))
    store.close()
    assert finished == [1, 2, 3, 4, 0]


@pytest.mark.slow
async def test_the_first_error_comes_out_bare_and_stops_the_rest() -> None:
    finished = []

    async def work(job: int) -> int:
        if job == 1:
            raise UserError("no")
        await asyncio.sleep(0.2)
        finished.append(job)
        return job

    with pytest.raises(UserError, match="no"):
        await together(work(job) for job in range(3))
    await asyncio.sleep(0.3)
    assert finished == []


def _spoken(dialogue: Dialogue) -> list[str]:
    """The supporter's turns after the greeting."""
    return [turn.text for turn in dialogue.turns if turn.role == "supporter"][1:]


def test_floors_hold_dialogues_of_their_own_and_no_model_is_asked_for_them(esc_eval: EscEval, tmp_path: Path) -> None:
    with Endpoint(models=("embedded",)) as endpoint:
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(demo_config(limit=1, gold=None, languages=["en", "zh"], floors=True)))
        assert esc_eval("run", "--config", "c.yaml", "--set", f"endpoints.embedded={endpoint.url}", "--out", "run") == (0, "")
    dialogues = read_jsonl(tmp_path / "run" / "dialogues.jsonl", Dialogue, "dialogues")
    assert [(d.supporter, d.language) for d in dialogues] == [
        (supporter, language) for supporter in ("embedded", "silent", "parrot", "lecture") for language in ("en", "zh")
    ]
    for dialogue in dialogues[2:]:
        floor = load_spec(dialogue.supporter or "").floor
        heard = [turn.text for turn in dialogue.turns if turn.role == "seeker"]
        assert floor and len(heard) == 5 and dialogue.termination == "max_turns"
        assert _spoken(dialogue) == (heard if floor.kind == "parrot" else [floor.text[dialogue.language]] * 5)
        assert dialogue.usage and dialogue.usage.calls == 5, "only the seeker was asked"
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    board = next(table for table in report["tables"] if table["key"].startswith("leaderboard"))
    assert {"silent", "parrot", "lecture"} <= {row[board["columns"].index("supporter")] for row in board["rows"]}


def test_the_reference_says_what_the_source_dialogues_supporter_said(esc_eval: EscEval, tmp_path: Path) -> None:
    card = {"language": "en", "age": "30", "gender": "female", "occupation": "cook", "problem": "Lost her job."}
    cards = [card | {"id": f"c{n}", "source": "mine", "source_id": f"s{n}", "card_method": "written"} for n in range(2)]
    turns = [("supporter", "Hi."), ("seeker", "a"), ("supporter", "First."), ("seeker", "b"), ("supporter", "Second.")]
    spoken = [{"role": role, "text": text} for role, text in turns]
    source = {"id": "d", "language": "en", "source": "mine", "source_id": "s1", "turns": spoken}
    (tmp_path / "cards.jsonl").write_text("".join(json.dumps(one) + "\n" for one in cards))
    (tmp_path / "source.jsonl").write_text(json.dumps(source) + "\n")
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(demo_config(gold=None, languages=["en"], supporters=["reference"])))
    with Endpoint(models=("embedded",)) as endpoint:
        given: tuple[str, ...] = ("run", "--only", "simulate", "--config", "c.yaml", "--cards", "cards.jsonl")
        given += ("--set", f"endpoints.embedded={endpoint.url}")
        code, err = esc_eval(*given, "--out", "without")
        told = "supporter reference: give the dialogues that the cards were made from: --set references=FILE"
        assert code == 2 and told in err
        assert not (tmp_path / "without" / "config.json").exists()
        assert esc_eval(*given, "--set", "references=source.jsonl", "--out", "run") == (0, "")
    (dialogue,) = read_jsonl(tmp_path / "run" / "dialogues.jsonl", Dialogue, "dialogues")
    assert dialogue.card_id == "c1" and _spoken(dialogue) == ["First.", "Second."]


def test_a_floor_in_a_language_without_text_is_refused() -> None:
    floor = {"name": "mute", "about": "x", "roles": ["supporter"], "languages": ["en", "zh"]}
    with pytest.raises(ValidationError, match=r"floor\.text: none in zh; add it, or shorten languages"):
        ModelSpec.model_validate(floor | {"floor": {"kind": "fixed", "text": {"en": "Hm."}}})
    with pytest.raises(ValidationError, match="a floor can only be a supporter, without checkpoint and endpoint"):
        ModelSpec.model_validate(floor | {"roles": ["judge"], "floor": {"kind": "reference"}})
