"""What documents and configs say of GPUs is what the planner says, and vLLM's own check agrees."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from core.files import CONFIGS
from core.machine import CARDS, COMPUTES, DOUBLED, READS, STEP_S, Gpu, Machine
from core.specs import ModelSpec, ServeOptions, load_spec, model_names
from serve.placement import USABLE, Demand, Place, arrange, demands_of, pace, phases, place
from serve.plan import overview, plan_servers
from serve.sizes import GIB, OVERHEAD, batched_tokens, known_architecture, overhead, size_of
from serve.units import CONTEXT, ServerUnit, Workload, units_of
from tests.hardware import BEGIN, DOCUMENT, END, MACHINES, TABLES, Answer, Run, answer, shards, table
from tests.serve.conftest import spec
from tests.serve.test_plan import value
from tests.vllm_parser import give_a_device

SERVED = [name for name in model_names() if size_of(load_spec(name)) and load_spec(name).checkpoint]


@cache
def answers() -> list[Answer]:
    return [answer(Run.of("esc_eval.yaml", "qwen1.5-7b-chat"), text) for text in MACHINES]


def written(name: str) -> str:
    return DOCUMENT.read_text(encoding="utf-8").split(BEGIN.format(name))[1].split(END)[0].strip()


@pytest.mark.slow
def test_the_documented_table_is_the_planners() -> None:
    """`python -m tests.hardware` writes it. The run of table 2, which takes longest, is the next test's."""
    lines = [line for line in written("plans").splitlines() if "8,522 dialogues" not in line]
    assert lines == table(["655 cards"]).splitlines()


@pytest.mark.full
@pytest.mark.parametrize("name", TABLES)
def test_the_documented_tables_are_the_planners(name: str) -> None:
    """Whole. The jobs of the second fit their machines in 16 bits."""
    assert written(name) == TABLES[name]().strip()
    assert name == "plans" or all(job.phases and not job.eight for job in shards())


@pytest.mark.slow
def test_headers_of_run_configs_say_what_the_planner_says() -> None:
    def header(name: str) -> str:
        lines = (CONFIGS / "eval" / name).read_text(encoding="utf-8").split("\nframework:")[0].split("\n")
        return " ".join(line.removeprefix("# ") for line in lines)

    run = Run.of("esc_eval.yaml", "my-model@http://127.0.0.1:8000/v1")
    found = {text: len(answer(run, text).phases) for text in ("48", "80", "2x40", "2x80")}
    said = "one after the other on one GPU of 48 or 80 GB or two of 40 GB, and together on two of 80 GB"
    assert said in header("esc_eval.yaml") and [*found.values()] == [2, 2, 2, 1]
    assert "on four 80 GB GPUs" in header("esc_eval_full.yaml")


@pytest.mark.slow
def test_no_gpu_is_given_more_than_it_has() -> None:
    for found in answers():
        for servers in found.phases:
            shares: dict[str, float] = {}
            for plan in (plan for plan in servers if not plan.workers):
                assert plan.place is not None
                place = plan.place
                assert place.dialogues >= 1
                assert value(plan.argv, "--gpu-memory-utilization") == f"{place.share:.4f}"
                memory = found.machine.gpus[0].memory or 0
                assert place.weights + overhead(int(memory)) + place.cache == pytest.approx(place.share * memory, rel=0.001)
                for gpu in place.gpus:
                    shares[gpu] = shares.get(gpu, 0) + place.share
            assert max(shares.values()) <= USABLE + 0.001


@pytest.mark.slow
def test_vllm_takes_what_is_planned_and_nothing_less(tmp_path: Path) -> None:
    """Its check at the start: whether the cache holds a request of full length; and how many dialogues it counts."""
    pytest.importorskip("vllm")
    config = _configs(tmp_path)
    for found in answers():
        for plan in (plan for servers in found.phases for plan in servers if not plan.workers):
            assert plan.place is not None and plan.demand is not None
            made, size, place = config(plan.specs[0], plan.place.split, plan.context), plan.demand.size, plan.place
            least = size.cache(plan.context, place.split, batched_tokens(found.machine.gpus[0].memory or 0))
            word = 1 if plan.specs[0].serve.fp8 else 2
            _check(made, place.cache * 2 // word)
            with pytest.raises(ValueError, match="KV cache is needed"):
                _check(made, least * 97 // 100 * 2 // word)
            layer = _layer(made)
            blocks = place.cache * 2 // word // (layer.page_size_bytes * made.model_config.get_num_layers(made.parallel_config))
            assert plan.cache_tokens == pytest.approx(16 * blocks, rel=0.03)
            assert place.dialogues == pytest.approx(16 * blocks / plan.demand.length, rel=0.03, abs=1)


def _check(config: Any, available: int) -> None:
    """What vLLM does with the memory that is left for its cache."""
    try:
        from vllm.v1.core.kv_cache_utils import check_enough_kv_cache_memory  # 0.32
    except ImportError:
        from vllm.v1.core.kv_cache_planning import check_enough_kv_cache_memory  # 0.33

    layers = {f"layer{n}": _layer(config) for n in range(config.model_config.get_num_layers(config.parallel_config))}
    check_enough_kv_cache_memory(config, layers, available)


def _layer(config: Any) -> Any:
    """The cache of one of its layers."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    heads, size = config.model_config.get_num_kv_heads(config.parallel_config), config.model_config.get_head_size()
    return FullAttentionSpec(block_size=16, num_kv_heads=heads, head_size=size, dtype=torch.bfloat16)


def _configs(folder: Path) -> Callable[[ModelSpec, int, int], Any]:
    """vLLM's config of a model of a spec's shape, by its split and context."""
    give_a_device()
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


def test_an_adapter_takes_room_unless_it_is_merged() -> None:
    base = spec("m", SEVEN)
    alone, apart = (
        base.model_copy(update={"adapter": "org/a", "serve": ServeOptions(merge_adapter=merged)}) for merged in (True, False)
    )
    found = demands_of(units_of([alone], False) + units_of([apart], False), Machine.parse("h100"))
    assert found is not None and (size := size_of(base)) is not None
    assert found[0].size.adapters == 0 == size.adapters and found[1].size.adapters > 0


def demand(name: str, checkpoint: str, work: Workload | None = None, **serve: Any) -> Demand:
    """Of servers of a spec with these serve options."""
    model = spec(name, checkpoint, serve=serve)
    size = size_of(model)
    assert size is not None
    return Demand(ServerUnit([model]), size, CONTEXT, work)


FOURTEEN, SEVEN = "Qwen/Qwen1.5-14B-Chat", "internlm/internlm2-chat-7b"
WORK = Workload(context=5200, length=2000, dialogues=655, read=1000, written=200)


def gpus(*gigabytes: int, used: int = 0) -> list[Gpu]:
    return [Gpu(str(n), size * 10**9, used) for n, size in enumerate(gigabytes)]


def test_the_largest_gets_the_largest_gpu() -> None:
    found = place([demand("s", SEVEN), demand("l", FOURTEEN)], gpus(24, 80))
    assert found is not None
    (small,), (large,) = found
    assert small.gpus == large.gpus == ("1",) and large.split == 1, "where most room is"


def test_a_model_that_no_gpu_holds_is_split_and_heads_are_divided() -> None:
    def split(count: int, **more: Any) -> Place | None:
        found = place([demand("l", FOURTEEN, **more)], gpus(*[24] * count))
        return found and found[0][0]  # type: ignore[return-value]

    found, copies = split(3), split(4, data_parallel=2)
    assert found is not None and found.split == 2, "40 heads: over 2 GPUs, not over 3"
    assert split(3, tensor_parallel=1) is None, "the spec says so"
    assert copies is not None and len(copies.gpus) == 4 and copies.split == 2


def test_what_others_use_counts() -> None:
    assert place([demand("l", FOURTEEN)], gpus(48)) is not None
    assert place([demand("l", FOURTEEN)], gpus(48, used=20 * GIB)) is None


def test_servers_of_a_gpu_hold_equally_many_dialogues() -> None:
    found = place([demand("a", FOURTEEN), demand("b", SEVEN)], gpus(141))
    assert found is not None
    (a,), (b,) = found
    assert abs(a.dialogues - b.dialogues) <= 1 and a.sharing == b.sharing == 2
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
    first = f"a: weights 26.4 + overhead {OVERHEAD / GIB:.1f} + cache of 8,192 tokens 6.2 = 35.4 GiB"
    assert str(caught.value).startswith(f"not enough memory on 1 × 48 GB for a and b:\n  {first}")


# ---- how fast


def test_a_step_by_hand() -> None:
    """14B on an H100: weights and caches at 70 % of 3.35 TB/s, prompts at 65 % of 989 TFLOP/s."""
    model = demand("s", FOURTEEN, work=WORK)
    ((gpu,),) = place([model], gpus(80)) or []
    assert gpu.card == CARDS["h100"] and gpu.dialogues == (0.9 * 80e9 - model.size.weights() - overhead(80 * 10**9)) // (
        2000 * 800 * 1024
    )
    weights, cache = model.size.weights() / (3.35e12 * READS), 2000 * 800 * 1024 / (3.35e12 * READS)
    token = 2 * model.size.active / (989e12 * COMPUTES)
    assert model.size.active == pytest.approx(14.17e9 - 152064 * 5120, rel=0.001)
    for count, why in ((1, "reading weights"), (10, "reading weights"), (60, "reading the cache")):
        seconds, cause = model.seconds(gpu, count)
        assert seconds == pytest.approx(200 * (weights + count * cache) + count * 1000 * token) and cause == why
    half, _ = model.seconds(replace(gpu, split=2), 1)
    assert half == pytest.approx((200 * (weights + cache) + 1000 * token) / (2 * DOUBLED))
    assert model.seconds(replace(gpu, sharing=2), 1)[0] == pytest.approx(2 * model.seconds(gpu, 1)[0])
    eight, _ = replace(model, size=replace(model.size, fp8=("weights", "cache"))).seconds(gpu, 22)
    assert 0.45 < eight / model.seconds(gpu, 22)[0] < 0.6
    small = replace(model, size=replace(model.size, parameters=10**8, active=10**8, attention=()))
    assert small.seconds(gpu, 4) == (pytest.approx(200 * STEP_S, rel=0.1), "launching steps")


@pytest.mark.parametrize(("dialogues", "measured"), [(1, 7.5), (16, 8.3), (64, 10.6), (192, 19.6)])
def test_a_step_is_what_was_measured_on_an_h100(dialogues: int, measured: float) -> None:
    """docs/measurements.md: InternLM2-7B's shape in bf16, dialogues of 1,232 tokens, milliseconds."""
    model = demand("r", SEVEN, work=Workload(context=2000, length=1232, dialogues=192, written=1))
    ((gpu,),) = place([model], gpus(80)) or []
    assert model.seconds(gpu, dialogues)[0] * 1000 == pytest.approx(measured, rel=0.12)


def test_dialogues_in_flight_are_shared_by_the_time_that_they_take() -> None:
    """One model: all it holds are with it. Two alike: half each, at half the rate of one whose batch is half as large."""
    model = demand("s", FOURTEEN, work=WORK)
    ((gpu,),) = place([model], gpus(80)) or []
    alone = pace([(model, [gpu])])
    assert alone.at_once == gpu.dialogues
    assert alone.per_second == pytest.approx(gpu.dialogues / model.seconds(gpu, gpu.dialogues)[0])
    assert alone.tokens_per_second == pytest.approx(200 * alone.per_second)
    two = pace([(model, [gpu])] * 2)
    assert two.per_second == pytest.approx(gpu.dialogues / (2 * model.seconds(gpu, gpu.dialogues / 2)[0]), rel=0.001)
    few = pace([(replace(model, work=replace(WORK, dialogues=3)), [gpu])])
    assert few.at_once == 3 and few.hours * 3600 == pytest.approx(few.start + 6 / few.per_second)
    assert pace([(replace(model, work=None), [gpu])]).hours == 0, "nothing is known of the work"


def test_gpus_are_used_for_the_bottleneck_until_none_is_left() -> None:
    seeker, ranker = demand("s", FOURTEEN, WORK), demand("r", SEVEN, replace(WORK, kept=False))
    found = arrange([seeker, ranker], gpus(*[80] * 8))
    assert found is not None
    assert len(found.gpus) == 8
    assert len(found.places[0]) > len(found.places[1]) >= 1
    assert found.pace.bottleneck == "s"
    few = replace(WORK, dialogues=2)
    found = arrange([replace(seeker, work=few), replace(ranker, work=replace(few, kept=False))], gpus(*[80] * 8))
    assert found is not None and [len(places) for places in found.places] == [1, 1], "two dialogues need no more"
    found = arrange([demand("s", FOURTEEN, WORK, replicas=1), demand("r", SEVEN, WORK, replicas=1)], gpus(*[80] * 8))
    assert found is not None and [len(places) for places in found.places] == [1, 1], "the spec says how many"


def test_servers_of_a_run_are_as_many_as_help_and_a_specs_replicas_stay(tmp_path: Path) -> None:
    needs = {"a": replace(WORK, kept=True)}
    machine = Machine.parse("4xh100")
    plans = plan_servers([spec("a", FOURTEEN)], tmp_path, resolve=False, machine=machine, needs=needs)
    assert [plan.name for plan in plans] == ["a", "a-1", "a-2", "a-3", "a-4"] and plans[0].pace.per_second > 0
    assert [plan.env["CUDA_VISIBLE_DEVICES"] for plan in plans[1:]] == ["0", "1", "2", "3"]
    for replicas, count in ((1, 1), (2, 3)):
        one = spec("a", FOURTEEN, serve={"replicas": replicas})
        assert len(plan_servers([one], tmp_path, resolve=False, machine=machine, needs=needs)) == count


def test_more_than_one_machine_is_rays(tmp_path: Path) -> None:
    machine = Machine.parse("16xh100")
    assert (len(machine.gpus), machine.nodes, str(machine)) == (8, 2, "8 × 80 GB")
    (part,) = phases([spec("a", FOURTEEN)], [], [], machine)
    plans = plan_servers(part.specs, tmp_path, resolve=False, machine=machine)
    (table,) = overview([part], [plans], machine)
    assert any("--shard I/2" in note and "slurm_ray.sh" in note for note in table.notes)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("80", [80]), ("80,80", [80, 80]), ("2x80, 24", [80, 80, 24]), ("2×40GB", [40, 40]), ("141.5", [141.5])],
)
def test_machines_are_named_by_their_gigabytes(text: str, expected: list[float]) -> None:
    assert [gpu.memory for gpu in Machine.parse(text).gpus] == [int(size * 10**9) for size in expected]


def test_machines_are_named_by_their_cards() -> None:
    for name, card in CARDS.items():
        assert [gpu.card for gpu in Machine.parse(f"2x{name}").gpus] == [card, card]


@pytest.mark.parametrize("text", ["", "80,", "x80", "0", "0x80", "many", "-80", "1e9", "2xh101", "h100x2"])
def test_what_is_no_machine_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--gpus"):
        Machine.parse(text)
