"""Who sees what in a study: overlap by design, fair loads, mixes of systems, orders of their own, repeats and checks."""

from collections import Counter, defaultdict
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import UserError
from evalsuite.people.study import Item, Person, RaterTask, assign
from tests.conftest import EscEval
from tests.people_study import write_dialogues


def items(count: int, systems: int = 2, language: str = "en", checks: int = 0) -> list[Item]:
    made = [Item(f"{language}{n}", language, (f"s{n % systems}",)) for n in range(count)]
    return made + [Item(f"{language}check{n}", language, ("s0",), check=True) for n in range(checks)]


def people(count: int, *languages: str) -> list[Person]:
    return [Person(f"{'+'.join(languages)}{n}", languages) for n in range(count)]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 4), st.integers(0, 5), st.data())
def test_every_item_goes_to_as_many_people_as_wanted_and_loads_are_fair(
    count: int, raters: int, systems: int, seed: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(1, raters))
    tasks = assign(items(count, systems), people(raters, "en"), overlap, 0, seed)
    assert Counter(task.item for task in tasks) == Counter({f"en{n}": overlap for n in range(count)})
    by_rater = defaultdict(list)
    for task in tasks:
        by_rater[task.rater].append(task)
    loads = [len(by_rater[person.code]) for person in people(raters, "en")]
    assert max(loads) - min(loads) <= 1
    for mine in by_rater.values():
        assert [task.place for task in mine] == list(range(len(mine)))
        assert len({task.item for task in mine}) == len(mine), "nobody sees an item twice unasked"
    assert assign(items(count, systems), people(raters, "en"), overlap, 0, seed) == tasks


def test_both_orders_of_a_pair_are_shown_equally_often_and_everybody_sees_all_systems() -> None:
    tasks = assign(items(60, systems=3), people(6, "en"), 2, 0, seed=1)
    orders: dict[str, Counter[str]] = defaultdict(Counter)
    for task in tasks:
        orders[task.item][task.order] += 1
    assert all(counted == {"ab": 1, "ba": 1} for counted in orders.values())
    seen = Counter((task.rater, int(task.item[2:]) % 3) for task in tasks)
    assert len(seen) == 6 * 3 and max(seen.values()) - min(seen.values()) <= 3
    first = [next(task.item for task in tasks if task.rater == f"en{n}") for n in range(6)]
    assert len(set(first)) > 3, "everybody has an order of their own"
    assert len({frozenset(pair) for pair in pairs(tasks)}) == 15, "everybody shares items with everybody"


def pairs(tasks: list[RaterTask]) -> list[tuple[str, str]]:
    raters = defaultdict(list)
    for task in tasks:
        raters[task.item].append(task.rater)
    return [pair for shared in raters.values() for pair in combinations(shared, 2)]


def test_people_see_what_they_read_and_too_few_readers_are_refused() -> None:
    both, english = people(2, "en", "zh"), people(2, "en")
    tasks = assign([*items(6), *items(4, language="zh")], [*both, *english], 2, 0, seed=0)
    assert {task.rater for task in tasks if task.item.startswith("zh")} == {person.code for person in both}
    with pytest.raises(UserError, match="overlap 3: 2 raters read zh"):
        assign([*items(6), *items(4, language="zh")], [*both, *english], 3, 0, seed=0)


def test_checks_are_seen_by_all_and_repeats_come_last_from_the_first_half_in_the_other_order() -> None:
    tasks = assign(items(10, checks=2), people(3, "en"), 2, 2, seed=4)
    for code in ("en0", "en1", "en2"):
        mine = [task for task in tasks if task.rater == code]
        assert Counter(task.purpose for task in mine)["check"] == 2 and mine[0].purpose != "check"
        repeats = mine[-2:]
        assert {task.purpose for task in repeats} == {"repeat"}
        first = {task.item: task for task in mine if task.purpose == "item"}
        half = [task.item for task in mine if task.purpose == "item"][: (len(first) + 1) // 2]
        assert all(task.item in half and task.order != first[task.item].order for task in repeats)


def test_what_cannot_be_made_a_study_is_refused_with_the_reason(
    esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dialogues(tmp_path / "d.jsonl")
    (tmp_path / "consent.txt").write_text("Yes.")
    rate = ("--dialogues", "d.jsonl", "--rubric", "esc_eval_human")
    talk = ("--supporter", "alpha@http://127.0.0.1:9/v1", "--raters", 2)
    for options, message in [
        ((*rate, "--raters", 1), "overlap 2: 1 raters read en"),
        (rate, "--raters: none"),
        ((*rate, "--raters", "ann=fr"), "no language 'fr'"),
        (("--dialogues", "d.jsonl", "--rubric", "role_play", "--raters", 2), "give --cards FILE or --profiles FILE"),
        (("--raters", 2), "give --rubric with --dialogues to rate"),
        ((*rate, "--raters", 2, "--set", "questions.a=b"), "leave out --seeker and questions"),
        ((*rate, "--raters", 2, "--set", "per=turn", "--set", "checks=d.jsonl"), "only for scores of whole dialogues"),
        ((*rate, "--raters", "few"), "--raters few: write a number, or CODE=en,zh"),
        ((*rate, "--raters", 2, "--set", "overlap=0"), "overlap: "),
        ((*rate, "--raters", 2, "--set", "checks=none.jsonl"), "checks"),
        (talk, "talks need a rubric"),
        ((*talk, "--rubric", "emoharbor"), "say what they agree to"),
        ((*talk, "--rubric", "role_play", "--consent", "consent.txt"), "rates the seeker, but here a person is the seeker"),
    ]:
        code, error = esc_eval("people", "create", "s", *options)
        assert code == 2 and message in error and not (tmp_path / "s").exists(), (options, error)
    for name in ("a b", "-x", ".x", "x" * 70):
        code, error = esc_eval("people", "create", *rate, "--raters", 2, "--", tmp_path / name / ".")
        assert code == 2 and "name: String should match pattern" in error and not (tmp_path / name).exists()
    monkeypatch.setenv("ESC_EVAL_DATABASE", "nonsense")
    code, error = esc_eval("people", "create", "s", *rate, "--raters", 2)
    assert code == 2 and "ESC_EVAL_DATABASE: not the URL" in error
    monkeypatch.delenv("ESC_EVAL_DATABASE")
    code, error = esc_eval("people", "serve", "nowhere")
    assert code == 2 and "esc-eval people create nowhere" in error
