"""Scoring a test split in process: answers digit by digit, adapters that do not fit, and what is written."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from core.errors import UserError
from core.files import read_jsonl, write_json, write_jsonl
from core.records import Judgement
from core.rubrics import load_rubric
from data_prep.scores.rank_sft import RankExample
from tests.train.conftest import per_dimension, rank_examples, write_data, write_recipe
from tests.train.test_compare import call
from train.__main__ import named_adapters
from train.compare import judge_split, judgements, method_beside
from train.recipes import read_recipe

RUBRIC = load_rubric("esc_eval")


def example(dialogue: str, labels: dict[str, int], dimension: str | None = None) -> RankExample:
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
    first, second = judgements(example("a", {"fluency": 3, "skill": 3}), shares, "mine", RUBRIC, "joint")
    assert (first.dimension, first.value, first.expected, first.raw) == ("fluency", 0, 0.75, "00")
    assert (second.dimension, second.value, second.distribution) == ("skill", 0, {"0": 0.4, "1": 0.4, "2": 0, "3": 0, "4": 0.2})
    assert first.condition == {"mode": "native", "where": "in-process"} and first.method == "joint" and first.judge == "mine"
    (lost,) = judgements(example("a", {"skill": 3}), None, "mine", RUBRIC, "paper")
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
    place: Path, tmp_path: Path, tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    capsys.readouterr()
    config(shutil.copytree(place / "adapter1", tmp_path / "elsewhere"), base_model_name_or_path="another/base")
    monkeypatch.undo()
    given = (place / "recipe.yaml", "--data", place / "valid.jsonl", "--out", tmp_path / "out")
    code, _, said = call(capsys, monkeypatch, *given, "--adapter", f"moved={tmp_path / 'elsewhere'}")
    assert code == 0 and "warning: moved" in said and "trained on another/base" in said
    assert call(capsys, monkeypatch, *given)[0] == 0, "the base alone"
    assert {path.name for path in (tmp_path / "out").glob("*.jsonl")} == {
        "judgements-moved.jsonl",
        "judgements-untrained.jsonl",
    }
