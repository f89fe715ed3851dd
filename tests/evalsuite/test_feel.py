"""FEEL from end to end on a scripted endpoint: two personas of one model by both methods, resume, and the comparison; ranks of
supporters by metrics against people's (4.2): a topic by hand, scipy, ties, and what is refused."""

import hashlib
import json
import math
import shutil
from functools import partial
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
import orjson
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau, rankdata, spearmanr

from core.errors import UserError
from core.files import CONFIGS, write_jsonl
from core.records import Dialogue, HumanScore, Judgement, Preference, Turn
from core.rubrics import load_rubric
from data_prep.scores.human import read_preferences
from evalsuite.papers.commands.feel import app
from evalsuite.papers.feel import Feel, load_feel_config
from evalsuite.papers.feel_ranking import FIGURES, compare_ranks, human_ranks, metric_ranks, ranks_of, topic_figures
from evalsuite.statistics.correlation import Pairing
from tests.endpoint import Answer, Endpoint
from tests.evalsuite.records import fed_rubric, make_dialogue, make_judgement
from tests.verbs import printed

ASPECTS = load_rubric("feel").dimensions


def judge(body: dict[str, Any], count: int) -> Answer:
    """Bands or digits that depend on all that is asked, seed included, lower for odd troubles; the peer's sums are off."""
    seed = hashlib.sha256(orjson.dumps(body)).digest()
    if body["structured_outputs"]["regex"].startswith("["):
        digit = str(seed[0] % 4)
        p = {"0": 0.1, "1": 0.2, "2": 0.3, "3": 0.4}
        tops = [{"token": token, "logprob": math.log(value)} for token, value in p.items()]
        token = {"token": digit, "logprob": math.log(p[digit]), "top_logprobs": tops}
        return Answer(digit * 6, logprobs=[token] * 6)
    third = 0.9 if "hard time" in body["messages"][0]["content"] else 1.0
    odd = 0.42 * any(f"trouble {number}" in message["content"] for number in (1, 3) for message in body["messages"])
    lines = []
    for n, dimension in enumerate(ASPECTS.values()):
        first = round(seed[n] / 600 + odd, 2)
        lines.append(f"{dimension.label['en']}: 0=0 1={first:.2f} 2=0 3={third - first:.2f}")
    return Answer("\n".join(lines))


call = partial(printed, app)


def config(folder: Path, **changes: Any) -> Path:
    spec = {"name": "j", "about": "", "roles": ["judge"], "languages": ["en"], "sampling": {"seed": 1, "max_tokens": 64}}
    (folder / "j.yaml").write_text(yaml.safe_dump(spec | {"endpoint": {"base_url": "http://127.0.0.1:9/v1"}}))
    own = yaml.safe_load((CONFIGS / "eval" / "feel.yaml").read_text())
    model = str(folder / "j.yaml")
    own |= {"judges": [{"model": model}, {"model": model, "persona": "peer"}], "rounds": 3, "languages": ["en"]}
    (folder / "feel.yaml").write_text(
        yaml.safe_dump(own | {"methods": ["bands", "tokens"], "out": str(folder / "run")} | changes)
    )
    return folder / "feel.yaml"


@pytest.mark.slow
def test_score_resumes_and_methods_compare(tmp_path: Path) -> None:
    turns = [(Turn(role="seeker", text=f"trouble {n}"), Turn(role="supporter", text="oh")) for n in range(4)]
    write_jsonl(tmp_path / "d.jsonl", [make_dialogue(f"d{n}", turns=own) for n, own in enumerate(turns)])
    base = ("score", "--config", config(tmp_path), "--dialogues", tmp_path / "d.jsonl")
    with Endpoint(judge, models=("j",)) as endpoint:
        figures = json.loads(call(*base, "--set", f"endpoints.j={endpoint.url}", "--json"))
        assert len(endpoint.requests) == 2 * 4 * (3 + 1)
        bands = [r for r in endpoint.requests if not r["structured_outputs"]["regex"].startswith("[")]
        assert {r["temperature"] for r in bands} == {0.7} and len({r["seed"] for r in bands}) == 12
        first = (tmp_path / "run" / "judgements.jsonl").read_bytes()
        call(*base, "--set", f"endpoints.j={endpoint.url}")
        assert len(endpoint.requests) == 32, "nothing is asked twice"
    assert (tmp_path / "run" / "judgements.jsonl").read_bytes() == first
    call(*base)  # the store holds all answers: no server is needed
    rows = {row[0]: row for row in figures["tables"][0]["rows"]}
    assert len(rows) == 4 and rows["j · bands · mode=native · persona=psychologist"][2] == 4 * 3 * 6
    assert [row[4] for row in rows.values()] == [0, None, 100, None], "only the peer's bands do not sum to 1"
    assert [row[5]["n"] for row in rows.values()] == [4, 0, 4, 0] and rows["j · bands · mode=native · persona=peer"][6] == 3
    made = [json.loads(line) for line in first.splitlines()]
    tokens = [row for row in made if row["method"] == "tokens"]
    assert [row["value"] for row in tokens] == pytest.approx([2.0] * (2 * 4 * 6))
    shown = figures["tables"]
    assert [table["key"] for table in shown] == ["feel_methods", "feel_method_agreement"] and len(shown[1]["rows"]) == 2 * 6
    own = [row for row in made if row["condition"]["persona"] == "peer" and row["dimension"] == "safety"]
    gaps = [
        sum(row["value"] for row in own if row["dialogue_id"] == d and row["method"] == "bands") / 3 - 2.0
        for d in ("d0", "d1", "d2", "d3")
    ]
    row = next(row for row in shown[1]["rows"] if row[0] == "j · mode=native · persona=peer" and row[2] == "safety")
    assert row[4]["mean"] == pytest.approx(sum(gaps) / 4) and row[5]["mean"] == pytest.approx(sum(map(abs, gaps)) / 4)
    assert row[3]["mean"] is None, "token probabilities are the same throughout: no correlation"
    assert min(gaps) < 0 < max(gaps), "else the sizes of the gaps would be the gaps"
    mine = [row for row in made if row["method"] == "bands" and row["condition"]["persona"] == "psychologist"]
    spread = [stdev(row["value"] for row in mine if (row["dialogue_id"], row["dimension"]) == (f"d{n}", a))
              for n in range(4) for a in ASPECTS]  # fmt: skip
    assert rows["j · bands · mode=native · persona=psychologist"][5]["mean"] == pytest.approx(sum(spread) / len(spread))
    pack = shutil.copytree(CONFIGS / "prompts" / "feel", tmp_path / "pack")
    for change, option, message in [
        ({}, ("--set", "rounds=4"), "rounds: 3 → 4"),
        ({}, ("--limit", 3), r"dialogues\.count: 4 → 3; dialogues\.sha256: "),
        ({"prompts": str(pack)}, (), r"prompts\.pack: "),
    ]:
        config(tmp_path, **change)
        with pytest.raises(UserError, match=f"was made with another feel config: {message}"):
            call(*base, *option)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"score": {}}')
    with pytest.raises(UserError, match=r"holds another run's records \(score\)"):
        call(*base, "--out", tmp_path / "other")
    methods_and_people(tmp_path)


def methods_and_people(folder: Path) -> None:
    """The ensemble takes one method at a time, unless both are named."""
    gold = {"language": "en", "annotator": "a", "rubric": "survey", "dimension": "care"}
    people = [HumanScore.model_validate(gold | {"dialogue_id": f"d{n}", "value": v}) for n, v in enumerate([1, 2, 0, 3])]
    write_jsonl(folder / "human.jsonl", people)
    given = ("--gold", folder / "human.jsonl", "--map", "care=safety", "--out", folder / "w")
    fit = ("ensemble", "--judgements", folder / "run" / "judgements.jsonl", *given)
    with pytest.raises(UserError, match="judge j has verdicts by methods bands and tokens: choose one with --method"):
        call(*fit)
    with pytest.raises(UserError, match="--method: no judgement by method 'band': did you mean bands"):
        call(*fit, "--method", "band")
    for methods in (("bands",), ("bands", "tokens")):
        call(*fit, *(part for method in methods for part in ("--method", method)))
        judges = {row["judge"] for row in json.loads((folder / "w" / "weights_paper.json").read_text())["weights"]}
        names = ("peer", "psychologist")
        assert judges == {f"j · {method} · mode=native · persona={name}" for method in methods for name in names}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0}, r"feel\.yaml:\d+: temperature: "),
        ({"judges": [{"model": "embedded"}] * 2}, r"feel\.yaml:.*judges: an entry is given twice; `rounds` repeats a judge"),
        ({"judges": [{"model": "embedded"}, {"model": str(CONFIGS / "models" / "embedded.yaml")}]}, "are both named embedded"),
        ({"methods": ["bands", "bands"]}, "methods: an entry is given twice"),
        ({"judges": [{"model": "embedded", "persona": "judge"}]}, r"no file .*persona_judge\.j2"),
        ({"judges": [{"model": "embedded", "persona": "../x"}]}, r"judges\.0\.persona"),
        ({"prompts": "role_play"}, "no file .*judge_"),
        ({"endpoints": {"k": "http://127.0.0.1:9/v1"}}, "endpoint for 'k': no such judge"),
    ],
)
def test_configs_that_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Feel(load_feel_config(config(tmp_path, **changes), {}))


def test_judges_of_one_model_are_asked_together(tmp_path: Path) -> None:
    """Else its server would be started twice; two models of one name could not be told apart by it."""
    folder = config(tmp_path).parent
    model, panel = str(folder / "j.yaml"), [{"model": "embedded"}]
    entries = [{"model": model}, *panel, {"model": model, "persona": "peer"}]
    found = Feel(load_feel_config(config(folder, judges=entries), {})).members
    assert [m.spec.name for m in found] == ["j", "j", "embedded"]
    other = folder / "k.yaml"
    other.write_text((folder / "j.yaml").read_text().replace("seed: 1", "seed: 2"))
    with pytest.raises(UserError, match=r"j\.yaml and .*k\.yaml are both named j: rename one"):
        Feel(load_feel_config(config(folder, judges=[{"model": model}, {"model": str(other), "persona": "peer"}]), {}))


def test_token_probabilities_need_a_server_that_gives_them(tmp_path: Path) -> None:
    path = config(tmp_path)
    text = (tmp_path / "j.yaml").read_text()
    (tmp_path / "j.yaml").write_text(text.replace("endpoint:\n", "endpoint:\n  top_logprobs: 0\n"))
    with pytest.raises(UserError, match=r"model j: its endpoint gives no token probabilities \(top_logprobs: 0\)"):
        Feel(load_feel_config(path, {}))
    assert Feel(load_feel_config(path, {"methods": ["bands"]})).members


def test_a_pack_needs_the_prompts_of_its_methods_only(tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    shutil.copytree(CONFIGS / "prompts" / "feel", pack)
    for language in ("en", "zh"):
        (pack / language / "judge_joint.j2").unlink()
    assert Feel(load_feel_config(config(tmp_path, prompts=str(pack), methods=["bands"]), {})).members
    with pytest.raises(UserError, match=r"no file .*judge_joint\.j2"):
        Feel(load_feel_config(config(tmp_path, prompts=str(pack)), {}))


# --- ranks of supporters ----------------------------------------------------------------------------------------------------

BY = Pairing("system")
TOPICS, MODELS = ("t1", "t2"), ("m1", "m2", "m3")
DIALOGUES = [make_dialogue(f"{t}{m}", m, card_id=t) for t in TOPICS for m in MODELS]


def prefer(topic: str, a: str, b: str, verdict: str, question: str = "empathy") -> Preference:
    given = {"dialogue_a": topic + a, "dialogue_b": topic + b, "annotator": "p", "question": question}
    return Preference.model_validate(given | {"verdict": verdict, "order": "ab"})


PREFERENCES = [
    prefer("t1", "m1", "m2", "a"),
    prefer("t1", "m1", "m3", "a"),
    prefer("t1", "m2", "m3", "tie"),
    prefer("t1", "m2", "m3", "b", "fluency"),  # m1 +2, m2 −2, m3 0
    prefer("t2", "m1", "m2", "tie"),
    prefer("t2", "m3", "m2", "a"),  # m1 0, m2 −1, m3 +1
]


def scored(judge: str, values: dict[str, dict[str, float]], dimension: str = "safety") -> list[Judgement]:
    return [make_judgement(t + m, dimension, v, judge=judge) for t, own in values.items() for m, v in own.items()]


def test_a_metric_against_people_by_hand() -> None:
    """t1: metric 1, 2, 3 against 1, 3, 2: rho 1/2, tau 1/3, errors 0, 1, 1. t2: 2, 3, 1, all equal. The means of both."""
    values = {"t1": {"m1": 3.0, "m2": 2.0, "m3": 1.0}, "t2": {"m1": 2.0, "m2": 1.0, "m3": 3.0}}
    (found,) = compare_ranks(human_ranks(PREFERENCES, DIALOGUES, BY), metric_ranks(scored("j", values), DIALOGUES, BY))
    assert [found.figures[name].mean for name in ("spearman", "kendall", "rmse", "mae")] == pytest.approx(
        [0.75, 2 / 3, (2 / 3) ** 0.5 / 2, 1 / 3]
    )
    assert (found.topics, found.supporters, found.figures["mae"].n) == (2, (3, 3), 2)


def test_six_aspects_become_one_rank() -> None:
    """By the mean, a lead on one aspect outweighs two small ones; by ranks it does not. Repeats are averaged first."""
    given = [
        *scored("j", {"t1": {"m1": 3.0, "m2": 0.0}}, "safety"),
        *scored("j", {"t1": {"m1": 1.0, "m2": 1.2}}, "coherence"),
        *scored("j", {"t1": {"m1": 1.0, "m2": 1.0}}, "consistency"),
        make_judgement("t1m2", "consistency", 1.4, judge="j", repeat=1),
    ]
    assert metric_ranks(given, DIALOGUES, BY)["j · joint"] == {"t1": {"m1": 1, "m2": 2}}
    assert metric_ranks(given, DIALOGUES, BY, {"test"})["j · joint"] == {"t1": {"m1": 2, "m2": 1}}
    lacking = [*given, *scored("j", {"t1": {"m3": 9.0}}, "safety")]
    assert metric_ranks(lacking, DIALOGUES, BY) == metric_ranks(given, DIALOGUES, BY)


def test_what_ranks_nothing_has_no_figures() -> None:
    people = human_ranks(PREFERENCES, DIALOGUES, BY)
    given = [*scored("j", {"t1": {"m1": 2.0, "m2": 1.0}}), make_judgement("t1m1", "safety", None, judge="k")]
    j, k = compare_ranks(people, metric_ranks(given, DIALOGUES, BY))
    assert (k.scorer, k.topics, k.supporters) == ("k · joint", 0, (0, 0)) and k.record()["mae"]["value"] is None
    assert j.figures["spearman"].mean == 1 and j.figures["spearman"].low is None, "one topic has no interval"
    with pytest.raises(UserError, match="no topic has two supporters that both a scorer and people ranked"):
        compare_ranks(people, metric_ranks(given[2:], DIALOGUES, BY))


def test_supporters_that_one_side_lacks_are_ranked_out() -> None:
    """m1 leads for people; of m2 and m3, which the metric has, both put m3 first: no error is left. t2 has one and is out."""
    given = scored("j", {"t1": {"m2": 1.0, "m3": 2.0}, "t2": {"m3": 1.0}})
    (found,) = compare_ranks(human_ranks(PREFERENCES, DIALOGUES, BY), metric_ranks(given, DIALOGUES, BY))
    assert (found.topics, found.supporters, found.figures["mae"].mean, found.figures["rmse"].mean) == (1, (2, 2), 0, 0)


def test_scores_on_two_rubrics_are_not_one_rank() -> None:
    given = [make_judgement("t1m1", "safety", 1.0), make_judgement("t1m1", "empathy", 4.0, rubric="other")]
    with pytest.raises(UserError, match="j · joint: verdicts on rubrics test and other: give those on a single one"):
        metric_ranks(given, DIALOGUES, BY)


def test_an_answer_counts_once(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    write_jsonl(first, PREFERENCES)
    a, b = PREFERENCES[0].dialogue_a, PREFERENCES[0].dialogue_b
    swapped = PREFERENCES[0].model_copy(update={"dialogue_a": b, "dialogue_b": a, "order": "ba"})  # the same seen the same way
    for doubled in (PREFERENCES[0], swapped):
        write_jsonl(second, [prefer("t9", "m1", "m2", "a"), doubled])
        with pytest.raises(UserError) as refused:
            read_preferences([first, second])
        assert str(refused.value) == (
            f"{second}:2: p answered on t1m1 and t1m2 twice in the same order; the first is {first}:1"
        )
    turned = Preference.model_validate(PREFERENCES[0].model_dump() | {"order": "ba"})  # asked again, the other way round
    write_jsonl(second, [turned])
    assert human_ranks(read_preferences([first, second]), DIALOGUES, BY)["t1"]["m1"] == 1


def test_metrics_of_replies_name_their_supporter() -> None:
    given = [
        make_judgement("t1m1", "bleu_1", value, judge="bleu-1", turn=1, condition={"supporter": name})
        for name, value in (("m2", 1.0), ("m3", 2.0))
    ]
    assert metric_ranks(given, DIALOGUES, BY) == {"bleu-1 · joint": {"t1": {"m3": 1, "m2": 2}}}


sides = st.integers(2, 7).flatmap(lambda n: st.tuples(*[st.lists(st.integers(0, 4), min_size=n, max_size=n)] * 2))


@given(sides)
def test_figures_of_a_topic_against_scipy(given: tuple[list[int], list[int]]) -> None:
    x, y = ([ranks_of(dict(zip("abcdefg", side, strict=False)))[k] for k in "abcdefg"[: len(side)]] for side in given)
    assert x == pytest.approx(rankdata([-v for v in given[0]]))
    found = dict(zip(FIGURES, topic_figures(x, y).tolist(), strict=True))
    if len(set(x)) > 1 and len(set(y)) > 1:
        assert found["spearman"] == pytest.approx(spearmanr(x, y).statistic)
        assert found["kendall"] == pytest.approx(kendalltau(x, y).statistic)
    else:
        assert math.isnan(found["spearman"]) and math.isnan(found["kendall"])
    gaps = np.subtract(x, y)
    assert found["rmse"] == pytest.approx(np.sqrt((gaps**2).mean())) and found["mae"] == pytest.approx(np.abs(gaps).mean())
    if len(set(x)) == len(set(y)) == 7:  # what the printed tables are checked by
        assert 2 * round(found["mae"] * 7 / 2) == pytest.approx(found["mae"] * 7)
        assert found["rmse"] ** 2 == pytest.approx(8 * (1 - found["spearman"]))


@pytest.mark.parametrize(
    ("preference", "dialogues", "message"),
    [
        (prefer("t1", "m1", "mx", "a"), DIALOGUES, "no dialogue 't1mx'"),
        (
            prefer("t1", "m1", "m2", "a"),
            [make_dialogue("t1m1", "m1", card_id="t1"), make_dialogue("t1m2", "m2", card_id="u")],
            "'u'",
        ),
        (prefer("t1", "m1", "m2", "a"), [make_dialogue(f"t1{m}", "m", card_id="t") for m in ("m1", "m2")], "of supporter m"),
    ],
)
def test_pairs_that_make_no_sense(preference: Preference, dialogues: list[Dialogue], message: str) -> None:
    with pytest.raises(UserError, match=message):
        human_ranks([preference], dialogues, BY)


def test_rank_command_with_the_papers_rows(tmp_path: Path) -> None:
    values = {"t1": {"m1": 3.0, "m2": 2.0, "m3": 1.0}, "t2": {"m1": 2.0, "m2": 2.0, "m3": 2.0}}
    write_jsonl(tmp_path / "j.jsonl", scored("j", values))
    write_jsonl(tmp_path / "p.jsonl", PREFERENCES)
    write_jsonl(tmp_path / "d.jsonl", DIALOGUES)

    files = {"judgements": "j.jsonl", "preferences": "p.jsonl", "dialogues": "d.jsonl", "out": "out"}
    given = ("ensemble", *(part for option, name in files.items() for part in (f"--{option}", tmp_path / name)))
    (row,) = json.loads(call(*given, "--json"))["ranking"]
    assert row["spearman"]["value"] == 0.5 and row["spearman"]["n"] == 1  # t2 ranks all alike: not defined, not 0
    assert row["mae"]["value"] == pytest.approx((2 / 3 + 2 / 3) / 2) and row["mae"]["n"] == 2
    call(*given, "--against", "feel")
    shown = (tmp_path / "out" / "feel_ranking.csv").read_text()
    assert "paper: ROUGE-2,-0.332," in shown and "paper: GLM+GPT,0.386," in shown


def test_aspects_on_several_scales_are_combined_by_their_ranks(tmp_path: Path) -> None:
    """By their means the wider scale would decide: m3 first. By ranks, all are alike, and Spearman is not defined."""
    values = {"lively": {"m1": 2.0, "m2": 1.0, "m3": 0.0}, "overall": {"m1": 0.0, "m2": 1.0, "m3": 4.0}}
    verdicts = [
        one.model_copy(update={"rubric": "fed_like"})
        for aspect, own in values.items()
        for one in scored("j", {"t1": own, "t2": own}, aspect)
    ]
    write_jsonl(tmp_path / "j.jsonl", verdicts)
    write_jsonl(tmp_path / "p.jsonl", PREFERENCES)
    write_jsonl(tmp_path / "d.jsonl", DIALOGUES)
    (tmp_path / "fed.yaml").write_text(yaml.safe_dump(fed_rubric().model_dump(mode="json")))
    files = {"judgements": "j.jsonl", "preferences": "p.jsonl", "dialogues": "d.jsonl", "rubric": "fed.yaml"}
    given = [part for option, name in files.items() for part in (f"--{option}", str(tmp_path / name))]
    for options, defined in ((given, 0), (given[:-2], 2)):  # without its rubric, a scale is taken for shared
        (ranking,) = json.loads(call("ensemble", *options, "--out", tmp_path / "out", "--json"))["ranking"]
        assert (ranking["topics"], ranking["spearman"]["n"]) == (2, defined)
