"""The Python API: callables as models in every role, run folders as records and frames, beside a running event loop too."""

import asyncio
import csv
import importlib.util
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.records import Dialogue, Judgement, Message
from data_prep.cards import bundled_cards, load_cards
from data_prep.profiles import bundled_profiles, load_profiles
from evalsuite import Results, UserError, load_run, score, score_async, simulate, simulate_async
from evalsuite.statistics.summary import AVERAGE
from serve.answers import Reply
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint

CARDS = load_cards(bundled_cards("en"))[:3]


def seeker(messages: list[Message]) -> str:
    return f"I lie awake, and have said so {len(messages)} times."


class Supporter:
    """A model of a user's own, which counts how often and in which loop it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.loops = set[asyncio.AbstractEventLoop]()

    async def __call__(self, messages: list[Message]) -> str:
        self.asked += 1
        self.loops.add(asyncio.get_running_loop())
        return f"What keeps you awake? ({len(messages)})"


class Judge:
    """A model in memory, which does not bear two threads."""

    def __init__(self, scores: str = "3210123") -> None:
        self.scores, self.threads = scores, set[int]()

    def __call__(self, messages: list[Message]) -> str:
        self.threads.add(threading.get_ident())
        return self.scores


def held(results: Results) -> list[dict[str, Any]]:
    """The dialogues without what servers count."""
    return [dialogue.model_dump(exclude={"usage"}) for dialogue in results.dialogues]


def as_served(body: dict[str, Any], count: int) -> Answer:
    """What the callables say, from a server."""
    if body["model"] == "judge":
        return Answer("3210123")
    return Answer(seeker(body["messages"]) if body["model"] == "seeker" else f"What keeps you awake? ({len(body['messages'])})")


@pytest.mark.slow
def test_callables_leave_the_records_that_a_server_leaves(tmp_path: Path) -> None:
    supporter, judge = Supporter(), Judge()
    ours = simulate(CARDS, supporter={"own": supporter}, seeker=seeker, judge={"judge": judge}, exchanges=2, quiet=True)
    with Endpoint(behave=as_served, models=("own", "seeker", "judge")) as endpoint:
        roles = {"supporter": "own", "seeker": "seeker", "judge": "judge"}
        at: dict[str, Any] = {role: f"{name}@{endpoint.url}" for role, name in roles.items()}
        theirs = simulate(CARDS, **at, exchanges=2, quiet=True)
    assert held(ours) == held(theirs)
    ours_judged, theirs_judged = ([(j.dialogue_id, j.dimension, j.value) for j in run.judgements] for run in (ours, theirs))
    assert ours_judged == theirs_judged
    assert supporter.asked == 3 * 2 and len(judge.threads) == 1
    assert {j.value for j in ours.judgements if j.dimension == "fluency"} == {3}
    assert ours.folder is None


def test_a_folder_is_scored_by_one_more_judge_and_each_can_be_read_alone(tmp_path: Path) -> None:
    run = simulate(
        CARDS, supporter=Supporter(), seeker=seeker, judge={"kind": Judge("4444444")}, out=tmp_path / "r", quiet=True
    )
    score(run, judge={"strict": Judge("0000000")}, quiet=True)
    means = {judge: load_run(tmp_path / "r", judge).leaderboard[0].scores[AVERAGE].mean for judge in ("kind", "strict")}
    assert means == {"kind": 100, "strict": 0}
    assert [standing.scorer.judge for standing in load_run(tmp_path / "r").leaderboard] == ["kind", "strict"]


async def test_a_running_event_loop_is_no_hindrance() -> None:
    """As in a notebook: called as it is, and awaited."""
    supporter, here = Supporter(), asyncio.get_running_loop()
    called = simulate(CARDS, supporter=supporter, seeker=seeker, exchanges=1, quiet=True)
    assert here not in supporter.loops
    supporter.loops.clear()
    awaited = await simulate_async(CARDS, supporter=supporter, seeker=seeker, exchanges=1, quiet=True)
    assert supporter.loops == {here}
    assert list(called.dialogues) == list(awaited.dialogues)
    assert (await score_async(awaited, judge=Judge(), quiet=True)).judgements[0].value == 3


class Remembering:
    """An agent that is told only the last line, keeps a session for each dialogue, and must not mix them up."""

    def __init__(self) -> None:
        self.heard: dict[str, list[str]] = {}
        self.ended: list[str] = []

    async def start(self, dialogue: str, card: str) -> None:
        await asyncio.sleep(0.01)
        assert dialogue not in self.heard
        self.heard[dialogue] = [card]

    async def reply(self, messages: list[Message], *, dialogue: str, exchange: int) -> str:
        self.heard[dialogue].append(messages[-1]["content"])
        await asyncio.sleep(0.01)  # other dialogues go on meanwhile
        return f"{self.heard[dialogue][0]}, {exchange}: I have heard {len(self.heard[dialogue]) - 1} lines."

    async def end(self, dialogue: str) -> None:
        self.ended.append(dialogue)


class OfOneDialogue:
    """The same as a class: each dialogue has an object of its own."""

    def start(self, card: str) -> None:
        self.lines = [card]

    def reply(self, messages: list[Message], exchange: int) -> str:
        self.lines.append(messages[-1]["content"])
        return f"{self.lines[0]}, {exchange}: I have heard {len(self.lines) - 1} lines."


def sessions() -> Callable[..., str]:
    heard: dict[str, int] = {}

    def reply(chat: list[Message], dialogue: str, card: str | None = None, exchange: int = 0) -> str:
        heard[dialogue] = heard.get(dialogue, 0) + 1
        assert chat[-1]["role"] == "user"
        return f"{card}, {exchange}: I have heard {heard[dialogue]} lines."

    return reply


class CalledInOneDialogue:
    """The same as a class whose objects are called."""

    def __init__(self) -> None:
        self.heard = 0

    def __call__(self, messages: list[Message], card: str, exchange: int) -> str:
        self.heard += 1
        return f"{card}, {exchange}: I have heard {self.heard} lines."


@pytest.mark.slow
@pytest.mark.parametrize("made", [Remembering, lambda: OfOneDialogue, lambda: CalledInOneDialogue, sessions])
def test_a_model_that_remembers_is_told_which_dialogue_it_is_in(made: Callable[[], Any]) -> None:
    agent = made()
    results = simulate(
        CARDS, supporter={"agent": agent}, seeker=seeker, judge={"judge": Judge()}, exchanges=3, trials=2, quiet=True
    )
    assert len(results.dialogues) == 6
    for dialogue in results.dialogues:
        said = [turn.text for turn in dialogue.turns if turn.role == "supporter"][1:]
        assert said == [f"{dialogue.card_id}, {n}: I have heard {n} lines." for n in (1, 2, 3)]
    if isinstance(agent, Remembering):
        assert sorted(agent.ended) == sorted(dialogue.id for dialogue in results.dialogues)


@pytest.mark.parametrize(
    "model",
    [
        lambda *messages: str(messages[0][-1]["role"]),
        lambda messages, /: str(messages[-1]["role"]),
        lambda role, messages: str(messages[-1]["role"]) if role == "supporter" else "",
    ],
)
def test_a_callable_may_take_messages_in_any_way(model: Callable[..., str]) -> None:
    results = simulate(CARDS[:1], supporter={"m": model}, seeker=seeker, exchanges=1, quiet=True)
    assert results.dialogues[0].turns[-1].text == "user"


class NoMoney(Exception):
    """As OpenAI's library raises it."""

    status_code, code = 429, "insufficient_quota"


def test_half_a_character_is_a_question_mark() -> None:
    results = simulate(CARDS[:1], supporter={"m": lambda messages: "well \ud83d"}, seeker=seeker, exchanges=1, quiet=True)
    assert results.dialogues[0].turns[-1].text == "well ?"


def test_a_callable_without_money_ends_the_run_and_leaves_what_there_is(tmp_path: Path) -> None:
    asked = list[Message]()

    def supporter(messages: list[Message]) -> str:
        asked.extend(messages[-1:])
        if len(asked) > 3:
            raise NoMoney("Error code: 429")
        return "I hear you."

    with pytest.warns(UserWarning, match=r"NoMoney: Error code: 429 \(quota or balance used up"):
        simulate(CARDS, supporter=supporter, seeker=seeker, exchanges=3, out=tmp_path / "r", concurrency=1, quiet=True)
    assert len(asked) == 4 and (tmp_path / "r" / "dialogues.jsonl").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("calls", "dialogues"), [(3, 0), (12, 2)])
def test_a_budget_gives_whole_dialogues_and_a_warning(tmp_path: Path, calls: int, dialogues: int) -> None:
    how: dict[str, Any] = {"seeker": seeker, "judge": {"judge": Judge()}, "exchanges": 2, "out": tmp_path / "r", "quiet": True}
    with pytest.warns(UserWarning, match=f"{dialogues} dialogues are finished, {3 - dialogues} not asked"):
        results = simulate(CARDS, supporter=Supporter(), max_calls=calls, **how)
    assert len(results.dialogues) == len({judgement.dialogue_id for judgement in results.judgements}) == dialogues
    assert len(simulate(CARDS, supporter=Supporter(), **how).dialogues) == 3


@pytest.mark.filterwarnings("ignore:the run ended early")
async def test_what_is_cancelled_asks_nothing_more(tmp_path: Path) -> None:
    asked = asyncio.Event()
    supporter = Supporter()

    async def slow(messages: list[Message]) -> str:
        asked.set()
        await asyncio.sleep(0.05)
        return await supporter(messages)

    working = asyncio.create_task(
        simulate_async(CARDS, supporter=slow, seeker=seeker, exchanges=50, out=tmp_path / "r", quiet=True)
    )
    await asked.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    while not (tmp_path / "r" / "dialogues.jsonl").exists():  # noqa: ASYNC110  what is under way ends in another thread
        await asyncio.sleep(0.01)
    assert supporter.asked <= 2 * len(CARDS)


def test_a_models_own_error_is_raised_and_what_was_answered_stays(tmp_path: Path) -> None:
    supporter = Supporter()
    settings: dict[str, Any] = {"seeker": seeker, "out": tmp_path / "r", "quiet": True, "exchanges": 2}

    async def forgetful(messages: list[Message]) -> str:
        if len(messages) > 2:
            raise KeyError("the second turn")
        return await supporter(messages)

    with pytest.raises(KeyError, match="the second turn"):
        simulate(CARDS[:1], supporter={"one": forgetful}, **settings)
    simulate(CARDS[:1], supporter={"one": supporter}, **settings)
    assert supporter.asked == 2
    replies = iter(["The only one."])
    with pytest.raises(RuntimeError, match="model two raised StopIteration: it has no more replies"):
        simulate(CARDS[:1], supporter={"two": lambda messages: next(replies)}, **settings)


def test_what_a_model_never_answers_is_warned_of_and_kept_as_lost(tmp_path: Path) -> None:
    async def away(messages: list[Message]) -> str:
        raise OSError("the GPU is gone")

    settings: dict[str, Any] = {"attempts": 1, "exchanges": 1, "quiet": True, "out": tmp_path / "r"}
    with pytest.warns(UserWarning, match=r"1 dialogues .*the GPU is gone"):
        results = simulate(CARDS[:1], supporter=away, seeker=seeker, **settings)
    assert [dialogue.termination for dialogue in results.dialogues] == ["infrastructure"]


def test_profiles_are_played_under_their_framework() -> None:
    profiles = load_profiles(bundled_profiles("en"))[:1]
    results = simulate(
        profiles, supporter=Supporter(), seeker=seeker, framework="emoharbor", exchanges=2, quiet=True, languages=["en"]
    )
    assert results.dialogues[0].profile_id == profiles[0].id
    assert results.dialogues[0].turns[1].state


def test_a_reply_brings_token_probabilities() -> None:
    def judge(messages: list[Message]) -> Reply:
        tokens = [("3", {"3": -0.1, "2": -2.4}) for _ in range(7)]
        return Reply(text="3333333", tokens=tokens)

    results = score(simulate(CARDS[:1], supporter=Supporter(), seeker=seeker, quiet=True), judge=judge, quiet=True)
    distribution = results.judgements[0].distribution
    assert distribution and distribution["3"] == pytest.approx(0.909, abs=1e-3) and distribution["4"] == 0


def two(messages: list[Message]) -> int:
    return 2


def needs_more(messages: list[Message], thread: str) -> str:
    return thread


class OfAPath:
    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, messages: list[Message]) -> str:
        return self.path


class Mute:
    pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"supporter": lambda messages: "x"}, r"cannot be named '<lambda>'.*\{'NAME': model\}"),
        ({"supporter": [Judge(), Judge()]}, "two models are named Judge"),
        ({"supporter": two}, "model two returned int: a model returns the text"),
        ({"supporter": needs_more}, r"model needs_more: .*'thread' \(there are messages, dialogue, card, exchange, role\)"),
        ({"supporter": OfAPath}, r"model OfAPath: .*'path' \(a class gets none: pass an object\)"),
        ({"supporter": Mute}, "has a method reply .*, and Mute has neither"),
        ({"supporter": 3}, "a model is a name, a spec or a callable, not int"),
        ({"supporter": "no-such-model"}, "unknown model 'no-such-model'"),
        ({"seeker": {"a": seeker, "b": Judge()}}, "seeker: expected one model, not 2"),
        ({"exchangs": 3}, "settings: exchangs"),
        ({"gold": "synthetic"}, "gold: only `esc-eval run` has it"),
        ({"framework": "feel"}, "framework feel holds no dialogues"),
        ({"cards": [CARDS[0], CARDS[0]]}, "duplicate ids"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], message: str) -> None:
    call: dict[str, Any] = {"cards": CARDS, "supporter": Supporter(), "seeker": seeker, "quiet": True} | change
    with pytest.raises(UserError, match=message):
        simulate(**call)


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    """Two supporters that a judge tells apart, in a run folder."""

    def judge(messages: list[Message]) -> str:
        return "4321012" if "keeps you awake" in messages[-1]["content"] else "0000000"

    async def curt(messages: list[Message]) -> str:
        return "I see."

    supporters: dict[str, Any] = {"good": Supporter(), "curt": curt}
    folder, cards = tmp_path_factory.mktemp("scored") / "r", load_cards(bundled_cards("en"))[:8]
    yield simulate(cards, supporter=supporters, seeker=seeker, judge=judge, exchanges=1, out=folder, quiet=True)


def test_a_runs_records_are_those_of_its_report(scored: Results, esc_eval: EscEval) -> None:
    assert scored.folder is not None
    assert esc_eval("report", scored.folder) == (0, "")
    loaded = load_run(scored.folder)
    assert isinstance(loaded.dialogues[0], Dialogue) and isinstance(loaded.judgements[0], Judgement)
    with (scored.folder / "tables" / "leaderboard-en.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(standing.supporter, standing.rank) for standing in loaded.leaderboard] == [("good", "1"), ("curt", "2")]
    for standing, row in zip(loaded.leaderboard, rows, strict=True):
        assert (standing.supporter, str(standing.rank)) == (row["supporter"], row["rank"])
        assert f"{standing.scores[AVERAGE].mean:.2f}" == row[AVERAGE]
        assert f"{standing.scores['fluency'].low:.2f}" == row["Fluency low"]
    assert len(loaded.scores) == 2 * 8 and not loaded.notes


def test_frames_hold_the_records_in_both_libraries(scored: Results) -> None:
    pandas, polars = scored.judgements.frame("pandas"), scored.judgements.frame("polars")
    assert list(pandas.columns) == polars.columns and len(pandas) == len(polars) == 2 * 8 * 7
    assert pandas.value.sum() == polars["value"].sum() == sum(judgement.value or 0 for judgement in scored.judgements)
    assert set(pandas["condition.mode"]) == set(polars["condition.mode"]) == {"native"}
    board = scored.leaderboard.frame()
    assert type(board).__module__.startswith("pandas") and list(board.supporter) == ["good", "curt"]
    assert board.average[0] == pytest.approx((4 + 3 + 2 + 1 + 0 + 1 + 2) / 7 * 25) and board.skill[0] == 25
    for records in (scored.dialogues, scored.scores, scored.dialogues[:0]):
        assert len(records.frame("pandas")) == len(records.frame("polars")) == len(records)


def test_frames_say_which_library_is_missing(scored: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs pandas or polars, not installed here: pip install pandas"):
        scored.scores.frame()
    with pytest.raises(UserError, match=r"needs polars, not installed here: pip install polars"):
        scored.scores.frame("polars")


def test_dialogues_alone_can_be_loaded(tmp_path: Path) -> None:
    simulate(CARDS[:1], supporter=Supporter(), seeker=seeker, out=tmp_path / "r", quiet=True)
    loaded = load_run(tmp_path / "r")
    assert len(loaded.dialogues) == 1 and not loaded.judgements and not loaded.leaderboard


@pytest.mark.slow
def test_the_notebook_runs() -> None:
    """In a kernel of its own, as a reader runs it."""
    import nbformat
    from nbclient import NotebookClient

    path = Path(__file__).parents[2] / "docs" / "notebooks" / "evaluate.ipynb"
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are stripped"
    NotebookClient(notebook, timeout=60).execute()
    shown = [output["data"]["text/plain"] for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    assert any("average on 0–100 (our_questions): listener 83.3, session 44.4" in text for text in shown), shown
