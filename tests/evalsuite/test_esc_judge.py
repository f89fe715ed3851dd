"""ESC-Judge on a miniature of its repository: what the published scripts would send, by a loop of this file's own; choices of
stages by hand; pairs are asked once, in both orders natively, and a run that is interrupted or grows asks what is missing."""

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from core.errors import UserError
from core.files import read_jsonl
from core.records import Dialogue, Judgement, Verdict
from core.rubrics import load_rubric
from evalsuite.cli import app
from evalsuite.judge.published_packs import partners, published_verdict, verdict_in
from evalsuite.papers.esc_judge import majority
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint
from tests.published_benchmarks import CHAT, COMPARE, STAGES, esc_judge_clone, imported

CONFIG = str(Path(__file__).parents[2] / "configs" / "eval" / "esc_judge.yaml")
CRITERIA = [(stage, label, about) for stage, criteria in STAGES.items() for label, about in criteria.items()]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return esc_judge_clone(tmp_path / "clone")


def run_at(url: str, *more: object, supporters: str = "ba", out: str = "run") -> tuple[object, ...]:
    places = ("prompts=in/prompts", 'cards=["in/cards_roles_v1.jsonl"]', "rubric=in/rubric.yaml", "exchanges=2")
    models = [word for name in supporters for word in ("--supporter", f"{name}@{url}")]
    settings = [word for setting in places for word in ("--set", setting)]
    return ("run", "--config", CONFIG, *models, "--model", f"my-model@{url}", *settings, "--out", out, *more)


def said(body: dict[str, Any], count: int) -> Answer:
    """By model and messages alone; a judge prefers any side, ties, or says neither."""
    draw = int(hashlib.sha256(json.dumps([body["model"], body["messages"]], sort_keys=True).encode()).hexdigest(), 16)
    if len(body["messages"]) > 1:
        return Answer(f"  line {draw % 9973} \n\n and so on \n")
    verdicts = ("Model A", "**Model B**", "Tie", "Model B, for its identities", "Model A and Model B")
    return Answer(f"Model A asks.\n\n## Verdict\n\n{verdicts[draw % 5]}")


def judges(endpoint: Endpoint) -> list[str]:
    """What the judge was asked, but for the probes of what a server can."""
    texts = [body["messages"][0]["content"] for body in endpoint.requests if len(body["messages"]) == 1]
    return [text for text in texts if text.startswith("Compare")]


@pytest.mark.slow
def test_the_clone_becomes_roles_criteria_and_prompts(clone: Path) -> None:
    assert "licence: Some Licence (in full: LICENSE)" in imported("esc_judge") and Path("in/LICENSE").is_file()
    assert not (clone / "ran").exists(), "scripts are read, not run"
    rubric = load_rubric("in/rubric.yaml")
    weights = {rubric.label(name): (rubric.facet(name, "en"), one.weight) for name, one in rubric.dimensions.items()}
    assert weights == {
        **{"Open Questions": ("Exploration", 1), "Warmth / Care": ("Exploration", 1)},
        **{"Meaning": ("Insight", 2), "Steps": ("Action", 2)},
    }, "every stage counts the same"
    card = json.loads(Path("in/cards_roles_v1.jsonl").read_text().splitlines()[1])
    assert (card["id"], card["problem"], card["text"]) == ("esc_judge-p-1", "worry 1", "- role 1\n- {braces} and a past.")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("data/exploration_rubric3.jsonl", '{"Insight": ["x"]}', "exploration_rubric3.jsonl: Insight"),
        ("data/roles-v2.json", '{"role": "x"}', "roles-v2.json:1: pid"),
        ("langchain_persona_based_chat.py", "x = 1", "no text is named SEEKER_PROMPT_TEMPLATE"),
        ("langchain_persona_based_chat.py", "x = (", "not readable as python"),
    ],
)
def test_a_file_of_another_shape_is_named_and_nothing_is_written(clone: Path, file: str, text: str, message: str) -> None:
    (clone / file).write_text(text)
    with pytest.raises(UserError, match=re.escape(message)):
        imported("esc_judge")
    assert not Path("in/rubric.yaml").exists()


def published() -> tuple[set[str], Counter[tuple[str, str]]]:
    """What the published protocol sends for the three roles to supporters b and a, the first shown first, and who won how many
    stages' votes, by a loop of our own: `str.format` fills the prompts in, replies are heard as they come."""
    script: dict[str, Any] = {}
    exec(CHAT.partition("def ")[0], script)
    asked: set[str] = set()
    won: Counter[tuple[str, str]] = Counter()

    def ask(model: str, messages: list[dict[str, str]]) -> str:
        asked.add(json.dumps(messages, sort_keys=True))
        return said({"model": model, "messages": messages}, 0).text

    for number in range(3):
        role = f"- role {number}\n- {{braces}} and a past."
        chats = []
        for model in "ba":
            seeker = [{"role": "system", "content": script["SEEKER_PROMPT_TEMPLATE"].format(description=role)}]
            supporter = [{"role": "system", "content": "Help."}]
            text, chat = "Hi {there}.", "supporter: Hi {there}.\n"
            for turn in range(4):
                own, other = (seeker, supporter) if turn % 2 == 0 else (supporter, seeker)
                own.append({"role": "user", "content": text})
                other.append({"role": "assistant", "content": text})
                text = ask("my-model" if own is seeker else model, own)
                chat += f"{'seeker' if own is seeker else 'supporter'}: {text}\n"
            chats.append(chat)
        votes: dict[str, list[str]] = {}
        for stage, label, about in CRITERIA:
            shown = {"conversation_a": chats[0], "conversation_b": chats[1]}
            filled = COMPARE.format(criteria=label, criteria_description=about, **shown)
            words = ask("my-model", [{"role": "user", "content": filled}]).split("# Verdict")[1].strip().lower()
            sides = [side for side in "ab" if f"model {side}" in words]
            votes.setdefault(stage, []).append(sides[0] if "tie" not in words and len(sides) == 1 else "tie")
        for stage, of_stage in votes.items():
            lead = of_stage.count("a") - of_stage.count("b")
            won[stage, "b" if lead > 0 else "a" if lead < 0 else "tie"] += 1  # supporter b is shown as model a
    return asked, won


def test_paper_mode_sends_and_counts_what_the_published_scripts_do(clone: Path, esc_eval: EscEval) -> None:
    imported("esc_judge")
    messages, won = published()
    with Endpoint(said) as endpoint:
        assert esc_eval(*run_at(endpoint.url, "--set", "mode=paper"))[0] == 0
        sent = {json.dumps(body["messages"], sort_keys=True) for body in endpoint.requests}
        assert messages <= sent and all("Reply with" in one or "answer" in one for one in sent - messages), "and probes"
        assert len(judges(endpoint)) == 3 * len(CRITERIA), "a pair is asked once, though two dialogues wait for it"
    report = json.loads(Path("run/report.json").read_text())
    for stage in STAGES:
        (table,) = (table for table in report["tables"] if table["key"] == f"esc_judge-pairs-{stage}")
        row = dict(zip(table["columns"], table["rows"][0], strict=True))
        assert (row["supporter"], row["against"]) == ("a", "b")
        assert (row["won"], row["lost"], row["ties"]) == tuple(won[stage, who] for who in ("a", "b", "tie"))
    assert sum(won.values()) == 9 and len({who for _, who in won}) > 1
    usage = json.loads(Path("run/usage.json").read_text())
    assert usage["score"]["judge"]["my-model"]["calls"] == 3 * len(CRITERIA)


def test_natively_both_orders_are_asked_and_a_judge_that_follows_the_order_ties(clone: Path, esc_eval: EscEval) -> None:
    imported("esc_judge")

    def first(body: dict[str, Any], count: int) -> Answer:
        return said(body, count) if len(body["messages"]) > 1 else Answer("## Verdict\n\nModel A")

    with Endpoint(first) as endpoint:
        assert esc_eval(*run_at(endpoint.url, "--limit", 2))[0] == 0
        assert len(judges(endpoint)) == 2 * 2 * len(CRITERIA)
    judgements = read_jsonl(Path("run/judgements.jsonl"), Judgement, "judgements")
    assert {(j.value, j.condition["shown"]) for j in judgements} == {(1, "first"), (0, "second")}
    report = json.loads(Path("run/report.json").read_text())
    tables = {table["key"]: table for table in report["tables"]}
    board = tables["leaderboard-en"]
    averages = [row[board["columns"].index("average")]["mean"] for row in board["rows"]]
    assert averages == pytest.approx([50, 50]), "one scorer, one row per supporter"
    page = Path("run/report.html").read_text()
    assert "pair ?? (repeat" in page and "repeat 1" not in page
    pairs = tables["esc_judge-pairs-overall"]
    assert pairs["rows"][0][pairs["columns"].index("ties")] == 2
    position = tables["esc_judge-position-overall"]
    assert position["rows"][0][position["columns"].index("first shown picked %")]["mean"] == 100


def test_a_run_that_ended_early_or_grows_asks_what_is_missing(clone: Path, esc_eval: EscEval) -> None:
    imported("esc_judge")
    one = ("--limit", "1")
    with Endpoint(said) as endpoint:
        assert esc_eval(*run_at(endpoint.url, "--set", "max_calls=10", *one))[0] == 1
        assert esc_eval(*run_at(endpoint.url, *one))[0] == 0
        assert len(judges(endpoint)) == len({*judges(endpoint)}) == 2 * len(CRITERIA), "nothing is asked twice"
        endpoint.requests.clear()
        assert esc_eval(*run_at(endpoint.url, *one, supporters="bac"))[0] == 0
        assert len(judges(endpoint)) == 2 * 2 * len(CRITERIA), "two more pairs, in both orders"
        assert {body["model"] for body in endpoint.requests} == {"c", "my-model"}, "only the new one talks"
        assert esc_eval(*run_at(endpoint.url, *one, supporters="bac", out="again"))[0] == 0
    assert Path("run/judgements.jsonl").read_bytes() == Path("again/judgements.jsonl").read_bytes()


def test_what_a_run_takes_is_what_is_planned(clone: Path, esc_eval: EscEval) -> None:
    imported("esc_judge")
    with Endpoint(said) as endpoint:
        assert esc_eval(*run_at(endpoint.url, supporters="bac"))[0] == 0
        usage = json.loads(Path("run/usage.json").read_text())
        taken = sum(of["calls"] for stage in usage.values() for role in stage.values() for of in role.values())
        result = CliRunner().invoke(app, [*map(str, run_at(endpoint.url, supporters="bac")), "--plan"])
    assert taken == 3 * 3 * 4 + 3 * 3 * 2 * len(CRITERIA) and f"{taken}" in result.output


@pytest.mark.parametrize(
    ("more", "supporters", "message"),
    [
        ((), "b", "ESC-Judge compares supporters in pairs: give two or more --supporter"),
        (("--shard", "1/2"), "ba", "compares dialogues that are in different shards"),
        (("--set", "rubric=esc_eval"), "ba", "method pairs needs `scale: {levels: {lost: 0, tied: 0.5, won: 1}}`, not 0 to 4"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_asked(
    clone: Path, esc_eval: EscEval, more: tuple[str, ...], supporters: str, message: str
) -> None:
    imported("esc_judge")
    with Endpoint(said) as endpoint:
        arguments = [*run_at(endpoint.url, supporters=supporters)]
        if "--set" in more:
            arguments[arguments.index("rubric=in/rubric.yaml")] = more[1]
            more = ()
        code, err = esc_eval(*arguments, *more)
        assert code == 2 and message in " ".join(err.split()) and not endpoint.requests


@pytest.mark.parametrize(
    ("text", "native", "paper"),
    [
        ("## Verdict\n\nModel A", "a", "a"),
        ("## Verdict\n\n**Support Model B**\n", "b", "b"),
        ("## Verdict: Tie", "tie", "tie"),
        ("I lean to Model A.\n## Verdict\nModel B", "b", "b"),
        ("## Verdict\nModel B, for its identities", "b", "tie"),
        ("## Verdict\n**Model A** performs better than Model B", None, "a"),
        ("## Verdict\n**Model B** outperforms Model A", None, "b"),
        ("## Verdict\nModel A or Model B", None, "tie"),
        ("## Verdict\nA", None, None),
        ("Model A", None, "tie"),
        ("", None, "tie"),
    ],
)
def test_a_verdict_is_read_as_meant_natively_and_as_published_in_paper_mode(
    text: str, native: Verdict | None, paper: Verdict | None
) -> None:
    assert (verdict_in(text), published_verdict(text)) == (native, paper)


@pytest.mark.parametrize(
    ("votes", "winner"),
    [
        (("a", "b", "a"), "a"),
        (("b", "tie", None), "b"),
        (("a", "b"), "tie"),
        (("tie",), "tie"),
        ((None,), None),
        ((None, "b"), "b"),
    ],
)
def test_a_stage_is_won_by_most_of_its_criteria(votes: tuple[Verdict | None, ...], winner: Verdict | None) -> None:
    assert majority(votes) == winner


def test_a_dialogue_without_partner_has_verdicts_that_say_so() -> None:
    who = {"id": "x", "language": "en", "source": "s", "card_id": "c", "supporter": "a"}
    one = Dialogue.model_validate(who | {"turns": [{"role": "seeker", "text": "hi"}]})
    silent = one.model_copy(update={"id": "y", "supporter": "b"})
    assert partners(one, [one, silent]) == [], "nobody answered the other"
