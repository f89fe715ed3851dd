"""FEEL from end to end on a scripted endpoint: two personas of one model by both methods, resume, and the comparison."""

import hashlib
import json
import math
import shutil
from functools import partial
from pathlib import Path
from statistics import stdev
from typing import Any

import orjson
import pytest
import yaml

from core.errors import UserError
from core.files import CONFIGS, write_jsonl
from core.records import HumanScore, Turn
from core.rubrics import load_rubric
from evalsuite.papers.commands.feel import app
from evalsuite.papers.feel import Feel, load_feel_config
from tests.endpoint import Answer, Endpoint
from tests.evalsuite.records import make_dialogue
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
