"""Adapters on held-out data: perplexities and digits against plain loops, intervals by hand, and the command as it is typed."""

import math
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest

from core.errors import UserError
from core.files import CONFIGS, read_jsonl, write_json, write_jsonl
from core.records import Judgement, Message
from core.rubrics import load_rubric
from core.tables import Estimate
from data_prep.role_play.examples import RoleExample
from data_prep.scores.rank_sft import RankExample
from tests.train.conftest import Trains, per_dimension, rank_examples, role_examples, write_data, write_recipe
from train.__main__ import named_adapters
from train.compare import (
    draw_turns,
    judge_split,
    judgements,
    line_figures,
    method_beside,
    perplexity_figures,
    ratio,
    read_held_out,
    weighted,
)
from train.examples import IGNORED, Prepared, encode_prompt, prepare_role
from train.recipes import read_recipe


def example(name: str, *lines: str, system: str | None = "Play a person.") -> RoleExample:
    """A dialogue that begins with the supporter."""
    told: list[Message] = [{"role": "system", "content": system}] if system else []
    told += [{"role": "user" if place % 2 == 0 else "assistant", "content": line} for place, line in enumerate(lines)]
    return RoleExample(
        id=name, language="en", kind="support", source="s", source_id=name, turns=len(lines), tokens=9, messages=tuple(told)
    )


def test_a_mean_weighs_dialogues_by_tokens_and_draws_them_whole() -> None:
    found = weighted(np.array([1.0, 8.0, 0.0]), np.array([1.0, 4.0, 0.0]))
    assert (found.mean, found.n) == (9 / 5, 3)
    assert (found.low, found.high) == (1, 2)  # draws of one dialogue alone are well within 95 %
    assert weighted(np.array([3.0]), np.array([2.0])) == Estimate(1.5, None, None, 1)


def test_the_ratio_is_paired() -> None:
    base, tokens = np.array([10.0, 400.0, 30.0]), np.array([10.0, 100.0, 20.0])
    found = ratio(base - 0.5 * tokens, base, tokens)  # every dialogue better by 0.5 nats a token, however hard it is
    assert found.mean == pytest.approx(math.exp(-0.5)) and found.low is None, "no draw differs: there is no width"


def test_perplexity_is_over_tokens_and_against_the_base() -> None:
    tokens = np.array([10.0, 30.0, 5.0])
    nll = {"base": np.array([20.0, 60.0, 1.0]), "adapter": np.array([5.0, 15.0, 2.5])}
    found = perplexity_figures(["en", "en", "zh"], tokens, nll, "en")
    assert (found["dialogues"], found["scored_tokens"]) == (2, 40)
    assert found["perplexity"] == pytest.approx({"base": math.exp(2), "adapter": math.exp(0.5)})
    assert found["ratio"].mean == pytest.approx(math.exp(-1.5))
    assert perplexity_figures(["en", "en", "zh"], tokens, nll, "all")["scored_tokens"] == 45


def test_figures_of_lines_by_hand() -> None:
    texts = [("How are you?", "how are  YOU?", "I am sad"), ("Why?", "As an AI, I am sad", "I am tired")]
    lines = [{"language": "en", "asked": a, "base": b, "real": r, "base_ended": not i} for i, (a, b, r) in enumerate(texts)]
    base, real = line_figures(lines, "en", "base"), line_figures(lines, "en", "real")
    assert (base["n"], base["units"], base["length"].mean) == (2, 9, 4.5)
    assert [base[name].mean for name in ("machine", "supporter", "copies", "cut_off")] == [50, 0, 50, 50]
    assert (real["distinct_1"], real["distinct_2"], real["cut_off"]) == (4 / 6, 3 / 4, None)


def test_never_the_first_line_and_never_one_that_was_cut_away() -> None:
    def row(lines: int) -> dict[str, list[int]]:
        """A row in which so many seeker lines begin, the last of them cut short."""
        labels = [IGNORED, 5, 5] * lines
        return {"input_ids": [0] * len(labels), "labels": labels}

    talks = [
        example("one", "Hi", "Hello"),
        example("cut", "Hi", "Hello", "So?", "Well"),
        example("fit", "Hi", "A", "B", "C", "D", "E"),
    ]
    whole = Prepared(Path("valid.jsonl"), talks, [row(1), row(2), row(3)])
    cut = Prepared(Path("valid.jsonl"), talks, [row(1), row(1), row(2)])
    assert {chosen.id for seed in range(8) for chosen, _ in draw_turns(whole, 1, seed, 99)} == {"cut", "fit"}
    for seed in range(8):
        [(chosen, turn)] = draw_turns(cut, 9, seed, 50)
        assert chosen.id == "fit" and chosen.messages[turn]["content"] == "C"
    assert draw_turns(whole, 1, 3, 99) == draw_turns(whole, 1, 3, 99)
    with pytest.raises(UserError, match=r"valid.jsonl: no dialogue within 10 tokens"):
        draw_turns(Prepared(Path("valid.jsonl"), talks[:1], [row(1)]), 1, 0, 10)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory, tiny: dict[str, Path]) -> dict[str, Path]:
    """Random adapters for the tiny bases."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    made = {}
    for name, base in tiny.items():
        config = LoraConfig(r=8, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
        torch.manual_seed(8)
        made[name] = tmp_path_factory.mktemp("adapters") / name
        get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(made[name])
    return made


def test_no_draw_depends_on_the_order_of_the_held_out_dialogues(tmp_path: Path) -> None:
    recipe: Any = SimpleNamespace(data=SimpleNamespace(train_file=tmp_path / "none.jsonl"))
    talks = role_examples(12)
    found = []
    for rows in (talks, talks[::-1]):
        write_jsonl(tmp_path / "valid.jsonl", rows)
        found.append(read_held_out(recipe, tmp_path / "valid.jsonl"))
    assert found[0] == found[1] and len(found[0][0]) == 12


def as_plain_loops_say(base: Path, adapter: Path, row: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    """Perplexity one dialogue at a time from all logits, and lines one token after the other."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(adapter)).eval()
    talks = {talk.id: talk for talk in role_examples(6, first=1000) if isinstance(talk, RoleExample)}
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    for voice in ("base", "adapter"):
        with torch.no_grad(), model.disable_adapter() if voice == "base" else nullcontext():
            sums = [0.0, 0.0]
            for made in prepare_role(Path("v"), list(talks.values()), tokenizer, 256).rows:
                logits = model(input_ids=torch.tensor([made["input_ids"]])).logits[0].log_softmax(-1)
                scored = [(at, label) for at, label in enumerate(made["labels"]) if label != IGNORED]
                sums[0] -= sum(float(logits[at - 1, label]) for at, label in scored)
                sums[1] += len(scored)
            assert row["perplexity"][voice] == pytest.approx(math.exp(sums[0] / sums[1]), rel=1e-5)
            for line in lines:
                prompt = encode_prompt(tokenizer, talks[line["id"]].messages[: line["turn"]])
                tokens = list(prompt)
                while len(tokens) < len(prompt) + 10 and (len(tokens) == len(prompt) or tokens[-1] != end):
                    tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
                assert line[voice] == tokenizer.decode(tokens[len(prompt) :], skip_special_tokens=True).strip()
                assert line[f"{voice}_ended"] == (tokens[-1] == end)


@pytest.mark.slow
def test_the_command(
    tmp_path: Path,
    tiny: dict[str, Path],
    adapters: dict[str, Path],
    trains: Trains,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from safetensors.numpy import load_file, save_file

    monkeypatch.setattr("train.compare.NEW_TOKENS", 10)
    data = write_data(tmp_path, "role", valid=6)
    other = [talk.model_copy(update={"id": f"p{n}", "kind": "role_play"}) for n, talk in enumerate(role_examples(2))]
    write_jsonl(tmp_path / "valid.jsonl", [*role_examples(6, first=1000), *other])
    recipe = write_recipe(tmp_path / "r.yaml", "role", tiny["llama"], data, tmp_path / "out", max_valid_examples=2)
    out = tmp_path / "compared"
    code, printed, _ = trains("test", recipe, "--seed", 9, "--adapter", adapters["llama"], "--out", out)
    assert code == 0 and "Perplexity of real seeker lines" in printed
    found = orjson.loads((out / "compare.json").read_bytes())
    [row] = found["perplexity"]
    assert (row["dialogues"], found["left_out"], found["cut"]) == (6, 2, 0)  # all of them, not the recipe's two
    assert row["ratio"]["mean"] == pytest.approx(row["perplexity"]["adapter"] / row["perplexity"]["base"])
    assert [(each["lines"], each["n"]) for each in found["lines"]] == [("base", 6), ("adapter", 6), ("real", 6)]
    lines = [orjson.loads(line) for line in (out / "lines.jsonl").read_bytes().splitlines()]
    as_plain_loops_say(tiny["llama"], adapters["llama"], row, lines)
    assert all(line["real"].endswith("weeks now.") and line["asked"].startswith("How long") for line in lines)
    assert str(tmp_path) not in (out / "compare.md").read_text()

    stored = load_file(adapters["llama"] / "adapter_model.safetensors")
    first, *rest = sorted(stored)
    for name, tensors in {
        "missing": {key: stored[key] for key in rest},
        "larger": {**stored, first: np.concatenate([stored[first]] * 2, axis=1)},
    }.items():
        shutil.copytree(adapters["llama"], tmp_path / name)
        save_file(tensors, tmp_path / name / "adapter_model.safetensors")
    for arguments, problem in (
        (("--adapter", tmp_path / "missing"), "do not fit: "),
        (("--adapter", tmp_path / "larger"), "do not fit: "),
        (("--adapter", tmp_path), "no adapter_config.json"),
        ((), "give one, not 0"),
        (("--adapter", adapters["llama"], "--data", tmp_path / "train.jsonl"), "shares 16 dialogues"),
        (("--adapter", adapters["llama"], "--data", tmp_path / "none.jsonl"), "no such file"),
    ):
        code, _, error = trains("test", recipe, "--out", out, *arguments)
        assert code == 2 and problem in error, error
    ranker = write_recipe(tmp_path / "k.yaml", "rank", tiny["llama"], data, tmp_path / "out")
    supporter = CONFIGS / "train" / "esc_supporter.yaml"
    for recipe, problem in ((ranker, "test.jsonl"), (supporter, "only rankers and seekers are tested here")):
        code, _, error = trains("test", recipe, "--out", out, "--use_cpu", "true")
        assert code == 2 and problem in error, error


RUBRIC = load_rubric("esc_eval")


def rank_example(dialogue: str, labels: dict[str, int], dimension: str | None = None) -> RankExample:
    return RankExample(
        id=f"{dialogue}/{dimension or 'joint'}",
        prompt=({"role": "user", "content": "hello"},),
        completion=({"role": "assistant", "content": "".join(map(str, labels.values()))},),
        language="en",
        dialogue_id=dialogue,
        group=f"group {dialogue}",
        dimension=dimension,
        labels=labels,
        target={key: float(label) for key, label in labels.items()},
    )


def test_names_come_from_the_folder_or_the_option(tmp_path: Path) -> None:
    found = named_adapters([f"{tmp_path}/joint/adapter-0123", "b@1=x/y", f"{tmp_path}/third"])
    assert list(found) == ["joint", "b@1", "third"] and found["b@1"] == Path("x/y")
    for given in (["a=x", "a=y"], ["untrained=x"], ["a/b c"]):
        with pytest.raises(UserError, match="--adapter"):
            named_adapters(given)


def test_the_method_is_read_from_the_manifest(tmp_path: Path) -> None:
    write_json(tmp_path / "manifest.json", {"settings": {"method": "joint"}})
    assert method_beside(tmp_path / "test.jsonl") == "joint"
    write_json(tmp_path / "manifest.json", {"settings": {"method": "other"}})
    with pytest.raises(UserError, match="settings.method"):
        method_beside(tmp_path / "test.jsonl")


def test_records_have_the_most_probable_score_and_the_mean() -> None:
    shares = np.array([[0.5, 0.25, 0.25, 0, 0], [0.4, 0.4, 0, 0, 0.2]])
    first, second = judgements(rank_example("a", {"fluency": 3, "skill": 3}), shares, "mine", RUBRIC, "joint")
    assert (first.dimension, first.value, first.expected, first.raw) == ("fluency", 0, 0.75, "00")
    assert (second.dimension, second.value, second.distribution) == ("skill", 0, {"0": 0.4, "1": 0.4, "2": 0, "3": 0, "4": 0.2})
    assert first.condition == {"mode": "native", "where": "in-process"} and first.method == "joint" and first.judge == "mine"
    (lost,) = judgements(rank_example("a", {"skill": 3}), None, "mine", RUBRIC, "paper")
    assert lost.value is None and lost.condition == {"mode": "paper", "where": "in-process", "failure": "context_overflow"}


def random_adapter(base: Path, folder: Path, seed: int) -> Path:
    """A LoRA whose B is not zero, as after training."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(r=8, lora_alpha=64, target_modules=["q_proj", "up_proj"], init_lora_weights=False),
    )
    model.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module", params=["joint", "per_dimension"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny: dict[str, Path]) -> Path:
    """A folder with a recipe, a test split with its manifest, and two adapters. One dialogue is too long for the model."""
    folder = tmp_path_factory.mktemp("rank-test")
    data = write_data(folder, "rank")
    examples: list[Any] = rank_examples(4)
    examples[2] = examples[2].model_copy(update={"prompt": ({"role": "user", "content": "long " * 600},)})
    write_jsonl(folder / "valid.jsonl", per_dimension(examples) if request.param == "per_dimension" else examples)
    write_json(folder / "manifest.json", {"settings": {"method": request.param}})
    write_recipe(folder / "recipe.yaml", "rank", tiny["llama"], data, folder / "out")
    for seed in (1, 2):
        random_adapter(tiny["llama"], folder / f"adapter{seed}", seed)
    return folder


def score(place: Path, out: Path, adapters: dict[str, Path], untrained: bool = False) -> dict[str, list[Judgement]]:
    judge_split(read_recipe(place / "recipe.yaml"), place / "valid.jsonl", adapters, untrained, out)
    return {path.stem: read_jsonl(path, Judgement, "judgements") for path in sorted(out.glob("judgements-*.jsonl"))}


@pytest.mark.slow
def test_each_adapter_on_one_base_answers_as_it_does_alone(place: Path, tmp_path: Path, tiny: dict[str, Path]) -> None:
    """Against the plain loop: the whole prompt again for each digit, no cache, no padding, no shared reading."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    one, two = place / "adapter1", place / "adapter2"
    found = score(place, tmp_path / "all", {"one": one, "two@1": two}, untrained=True)
    assert list(found) == ["judgements-one", "judgements-two@1", "judgements-untrained"]
    timing = orjson.loads((tmp_path / "all" / "timing.json").read_bytes())
    assert set(timing) == {"one", "two@1", "untrained"} and timing["one"]["dialogues"] == 4
    tokenizer = AutoTokenizer.from_pretrained(tiny["llama"])
    digits = [tokenizer.encode(str(score), add_special_tokens=False)[0] for score in range(5)]
    lines = [orjson.loads(line) for line in (place / "valid.jsonl").read_bytes().splitlines()]
    for name, adapter in (("one", one), ("two@1", two), ("untrained", None)):
        base = AutoModelForCausalLM.from_pretrained(tiny["llama"])
        model = PeftModel.from_pretrained(base, str(adapter)).eval() if adapter else base.eval()
        wanted: list[Any] = []
        for line in lines:
            text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in line["prompt"])
            ids = tokenizer.encode(text + "<|im_start|>assistant\n", add_special_tokens=False)
            for _ in line["labels"]:
                if len(ids) > 512:
                    wanted.append(None)
                    continue
                with torch.no_grad():
                    shares = model(torch.tensor([ids])).logits[0, -1, digits].double().softmax(-1)
                wanted.append(pytest.approx(shares.tolist(), abs=1e-5))
                ids.append(digits[int(shares.argmax())])
        records = found[f"judgements-{name}"]
        assert [record.judge for record in records] == [name] * 12 and wanted.count(None) == 3
        assert [record.dimension for record in records[:3]] == ["fluency", "empathy", "information"]
        assert [record.distribution and [*record.distribution.values()] for record in records] == wanted
        assert {record.condition.get("failure") for record in records if record.value is None} == {"context_overflow"}
    assert len({str([r.distribution for r in records]) for records in found.values()}) == 3


@pytest.mark.slow
def test_an_adapter_that_does_not_fit_is_refused_before_anything_is_scored(
    place: Path, tmp_path: Path, tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch, trains: Trains
) -> None:
    from safetensors.torch import load_file, save_file

    monkeypatch.setattr("train.trainers.RankTrainer.predict", lambda *_: pytest.fail("scored"))

    def refused(change: Any, match: str) -> None:
        folder = tmp_path / f"bad{len(list(tmp_path.iterdir()))}"
        shutil.copytree(place / "adapter1", folder)
        change(folder)
        with pytest.raises(UserError, match=match):
            score(place, tmp_path / "out", {"good": place / "adapter1", "bad": folder})
        assert not (tmp_path / "out").exists()

    def tensors(change: Any) -> Any:
        def edit(folder: Path) -> None:
            file = folder / "adapter_model.safetensors"
            values = load_file(file)
            change(values)
            save_file(values, file)

        return edit

    def config(folder: Path, **values: Any) -> None:
        file = folder / "adapter_config.json"
        file.write_bytes(orjson.dumps(orjson.loads(file.read_bytes()) | values))

    first = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    foreign = "base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight"
    refused(tensors(lambda values: values.pop(first)), f"bad: .*lacks 1 tensors, for example {first}")
    refused(tensors(lambda values: values.update({foreign: values[first].clone()})), f"does not adapt, 1 tensors, .*{foreign}")
    refused(tensors(lambda values: values.update({first: values[first][:, :32].clone()})), f"do not fit: bad: .*{first[:40]}")
    refused(lambda folder: config(folder, target_modules=["wqkv"]), "do not fit: bad: .*wqkv")
    refused(lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"x" * 20), "half written")
    config(shutil.copytree(place / "adapter1", tmp_path / "elsewhere"), base_model_name_or_path="another/base")
    monkeypatch.undo()
    given = (place / "recipe.yaml", "--data", place / "valid.jsonl", "--out", tmp_path / "out")
    code, _, said = trains("test", *given, "--adapter", f"moved={tmp_path / 'elsewhere'}")
    assert code == 0 and "warning: moved" in said and "trained on another/base" in said
    assert trains("test", *given)[0] == 0, "the base alone"
    assert {path.name for path in (tmp_path / "out").glob("*.jsonl")} == {
        "judgements-moved.jsonl",
        "judgements-untrained.jsonl",
    }
