"""What documents and configs say of GPUs is what the planner says, and vLLM's own check agrees."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from core.files import CONFIGS
from core.machine import Gpu, Machine
from core.specs import ModelSpec, load_spec, model_names
from serve.placement import USABLE, Demand, phases, place
from serve.plan import plan_servers
from serve.sizes import GIB, Size, batched_tokens, known_architecture, shape_of, size_of
from serve.units import CONTEXT
from tests.hardware import BEGIN, DOCUMENT, END, answers, table
from tests.serve.test_plan import spec, value

SERVED = [name for name in model_names() if size_of(load_spec(name)) and load_spec(name).checkpoint]


def test_the_documented_table_is_the_planners() -> None:
    """`python -m tests.hardware` writes it."""
    assert DOCUMENT.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip() == table().strip()


def test_headers_of_run_configs_say_what_the_planner_says() -> None:
    def header(name: str) -> str:
        lines = (CONFIGS / "eval" / name).read_text(encoding="utf-8").split("\nframework:")[0].split("\n")
        return " ".join(line.removeprefix("# ") for line in lines)

    found = {str(answer.machine): str(answer).split(":")[0] for answer in answers(served=False)}
    said = "one after the other on one 48 or 80 GB GPU or two of 40 GB, at once on two of 80 GB"
    assert said in header("esc_eval.yaml")
    assert {found[machine] for machine in ("1 × 48 GB", "1 × 80 GB", "2 × 40 GB")} == {"in phases"}
    assert found["2 × 80 GB"] == "at once"
    assert "on four 80 GB GPUs" in header("esc_eval_full.yaml")
    two = [load_spec(name) for name in ("vicuna-7b-1.5", "qwen1.5-7b-chat")]  # a shard speaks with two; no cache is larger
    assert len(phases([load_spec("esc-role")], two, [load_spec("esc-rank")], Machine.parse("4x80"))) == 1


@pytest.mark.parametrize("served", [True, False])
def test_no_gpu_is_given_more_than_it_has(served: bool) -> None:
    for answer in answers(served):
        for servers in answer.phases:
            shares: dict[str, float] = {}
            for plan in servers:
                assert plan.place is not None
                found = plan.place
                assert found.cache >= found.dialogues * 1 and found.dialogues >= 1
                assert value(plan.argv, "--gpu-memory-utilization") == f"{found.share:.4f}"
                memory = answer.machine.gpus[0].memory or 0
                assert found.weights + found.overhead + found.cache == pytest.approx(found.share * memory, rel=0.001)
                for gpu in found.gpus:
                    shares[gpu] = shares.get(gpu, 0) + found.share
            assert max(shares.values()) <= USABLE + 0.001


@pytest.mark.slow
@pytest.mark.parametrize("served", [True, False])
def test_vllm_takes_what_is_planned_and_nothing_less(served: bool, tmp_path: Path) -> None:
    """Its check at the start: whether the cache holds a request of full length. The equal shares of old fail it."""
    pytest.importorskip("vllm")
    config = _configs(tmp_path)
    for answer in answers(served):
        for servers in answer.phases:
            for plan in servers:
                assert plan.place is not None
                size = size_of(plan.specs[0])
                assert size is not None
                made = config(plan.specs[0], plan.place.split, plan.context)
                _check(made, plan.place.cache)
                least = size.cache(plan.context, plan.place.split, batched_tokens(answer.machine.gpus[0].memory or 0))
                with pytest.raises(ValueError, match="KV cache is needed"):
                    _check(made, least * 97 // 100)
    # 80 GB, seeker and ranker at 0.45 each, a context of 32,768: what there was before.
    seeker = size_of(load_spec("esc-role"))
    assert seeker is not None
    memory = 80 * 10**9
    left = int(0.45 * memory) - seeker.weights() - seeker.overhead(memory)
    with pytest.raises(ValueError, match="KV cache is needed"):
        _check(config(load_spec("esc-role"), 1, 32768), left)


def _check(config: Any, available: int) -> None:
    """What vLLM does with the memory that is left for its cache."""
    import torch
    from vllm.v1.core.kv_cache_utils import check_enough_kv_cache_memory
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    model, parallel = config.model_config, config.parallel_config
    layer = FullAttentionSpec(
        block_size=16,
        num_kv_heads=model.get_num_kv_heads(parallel),
        head_size=model.get_head_size(),
        dtype=torch.bfloat16,
    )
    check_enough_kv_cache_memory(config, {f"layer{n}": layer for n in range(model.get_num_layers(parallel))}, available)


def _configs(folder: Path) -> Callable[[ModelSpec, int, int], Any]:
    """vLLM's config of a model of a spec's shape, by its split and context."""
    from transformers import AutoConfig
    from vllm.config import CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.kv_cache_layout import KVCacheLayout

    @cache
    def made(checkpoint: str, split: int, context: int) -> Any:
        known = known_architecture(checkpoint)
        assert known is not None
        shape = AutoConfig.for_model(**known[1])
        shape.architectures = ["Qwen2ForCausalLM" if known[1]["model_type"] == "qwen2" else "LlamaForCausalLM"]
        shape.save_pretrained(folder / known[0])
        config = VllmConfig(
            model_config=ModelConfig(
                model=str(folder / known[0]), skip_tokenizer_init=True, max_model_len=context, dtype="bfloat16"
            ),
            parallel_config=ParallelConfig(tensor_parallel_size=split, distributed_executor_backend="mp"),
            scheduler_config=SchedulerConfig(max_num_batched_tokens=2048, max_model_len=context, is_encoder_decoder=False),
            cache_config=CacheConfig(block_size=16),
        )
        config.cache_config.kv_cache_layout = next(iter(KVCacheLayout)).name  # the engine resolves it; it changes no size
        return config

    return lambda spec, split, context: made(spec.serve.architecture or spec.checkpoint or "", split, context)


# ---- placing


def demand(name: str, checkpoint: str, context: int = CONTEXT, **more: Any) -> Demand:
    known = known_architecture(checkpoint)
    assert known is not None
    shape = shape_of(known[1])
    assert shape is not None
    return Demand(name, Size(shape), context, **more)


FOURTEEN, SEVEN = "Qwen/Qwen1.5-14B-Chat", "internlm/internlm2-chat-7b"
BYTES = 80 * 10**9


def gpus(*gigabytes: int, used: int = 0) -> list[Gpu]:
    return [Gpu(str(n), size * 10**9, used) for n, size in enumerate(gigabytes)]


def test_the_largest_gets_the_largest_gpu() -> None:
    found = place({"small": demand("s", SEVEN), "large": demand("l", FOURTEEN)}, gpus(24, 80))
    assert found is not None
    assert (found["large"].gpus, found["small"].gpus) == (("1",), ("1",)) or found["small"].gpus == ("0",)
    assert found["large"].gpus == ("1",) and found["large"].split == 1


def test_a_model_that_no_gpu_holds_is_split_and_heads_are_divided() -> None:
    found = place({"large": demand("l", FOURTEEN)}, gpus(24, 24, 24))
    assert found is not None and found["large"].split == 2, "40 heads: over 2 GPUs, not over 3"
    assert place({"large": demand("l", FOURTEEN, tensor_parallel=1)}, gpus(24, 24, 24)) is None, "the spec says so"
    copies = place({"large": demand("l", FOURTEEN, copies=2)}, gpus(24, 24, 24, 24))
    assert copies is not None and len(copies["large"].gpus) == 4 and copies["large"].split == 2


def test_what_others_use_counts() -> None:
    assert place({"l": demand("l", FOURTEEN)}, gpus(48)) is not None
    assert place({"l": demand("l", FOURTEEN)}, gpus(48, used=20 * GIB)) is None


def test_servers_of_a_gpu_hold_equally_many_dialogues() -> None:
    found = place({"a": demand("a", FOURTEEN), "b": demand("b", SEVEN)}, gpus(141))
    assert found is not None
    a, b = found["a"], found["b"]
    assert abs(a.dialogues - b.dialogues) <= 1 and not a.alone
    assert a.share + b.share == pytest.approx(USABLE, abs=0.001), "nothing is left over"


def test_eight_bits_only_where_they_are_asked_for() -> None:
    seeker, ranker = load_spec("esc-role"), load_spec("esc-rank")
    machine = Machine.parse("24")
    with pytest.raises(UserError, match=r"Next best: serve: \{fp8: \[weights, cache\]\}|Next best: 2 GPUs"):
        phases([seeker], [], [ranker], machine)
    small = seeker.model_copy(update={"serve": seeker.serve.model_copy(update={"fp8": ("weights", "cache")})})
    assert seeker.fingerprint() != small.fingerprint(), "another identity"
    before, after = size_of(seeker), size_of(small)
    assert before is not None and after is not None
    assert after.weights() == pytest.approx(before.weights() * 0.555, rel=0.01), "embeddings and output layer stay"
    assert after.cache(CONTEXT) == before.cache(CONTEXT) // 2


def test_servers_up_alone_are_refused_with_the_arithmetic(tmp_path: Path) -> None:
    one, two = spec("a", FOURTEEN, context_length=8192), spec("b", "Qwen/Qwen1.5-7B-Chat", context_length=8192)
    with pytest.raises(UserError) as caught:
        plan_servers([one, two], tmp_path, resolve=False, machine=Machine.parse("48"))
    assert str(caught.value).startswith("not enough memory on 1 × 48 GB for a and b:\n  a: weights 26.4 + overhead 2.9")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("80", [80]), ("80,80", [80, 80]), ("2x80, 24", [80, 80, 24]), ("2×40GB", [40, 40]), ("141.5", [141.5])],
)
def test_machines_are_named_by_their_gigabytes(text: str, expected: list[float]) -> None:
    assert [gpu.memory for gpu in Machine.parse(text).gpus] == [int(size * 10**9) for size in expected]


@pytest.mark.parametrize("text", ["", "80,", "x80", "0", "0x80", "many", "-80", "1e9"])
def test_what_is_no_machine_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--gpus"):
        Machine.parse(text)
