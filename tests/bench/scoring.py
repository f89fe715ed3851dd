"""Seconds to score the same dialogues: the paper's seven rubric-first requests beside both native methods, with the server's
prefix cache and without."""

import io
import time
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console

from core.files import write_jsonl
from core.machine import precision
from core.records import Dialogue, Judgement
from core.statistics.accuracy import accuracy, spearman
from evalsuite.runner import pipeline
from evalsuite.runner.engine import Runner
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.dialogue_framework import resolve_config
from evalsuite.runs.folder import open_run
from tests.bench.figures import OUT, Bench, OutOption, RunsOption
from tests.bench.simulation import NAME, forget, server, write_spec
from tests.generated_report import make_content

PAPER, WITHOUT_RULES = "paper", "joint, no rules"
SETTINGS: dict[str, dict[str, Any]] = {
    PAPER: {"mode": "paper"},
    "joint": {"method": "joint"},
    "per_dimension": {"method": "per_dimension"},
    WITHOUT_RULES: {"method": "joint", "judge_prompts": "esc_rank"},  # as a ranker is asked that has learnt them
}
PEER = "the paper's seven rubric-first requests"
ANSWER = 2  # tokens that the paper's judge may write; its published ranker answers with a digit and its end


def given(count: int) -> list[Dialogue]:
    """English dialogues of ten turns and about 1,340 tokens."""
    made = make_content(cards=count, supporters={"generated": 0.5}, words=190).tally.dialogues
    return [d for d in made if d.language == "en" and len(d.turns) == 10][:count]


def judged(folder: Path, spec: Path, url: str, method: str, dialogues: list[Dialogue]) -> tuple[float, list[Judgement]]:
    """Score these dialogues into a new run folder: (seconds, verdicts)."""
    file = folder / "given.jsonl"
    write_jsonl(file, dialogues)
    given = {"seeker": str(spec), "judge": str(spec), "languages": ["en"], "endpoints": {NAME: url}, "out": str(folder)}
    config = EvalConfig.model_validate(given | {"concurrency": 64} | SETTINGS[method])
    started = time.perf_counter()
    with open_run(folder) as run, Runner(run, resolve_config(config), Console(file=io.StringIO())) as runner:
        outcome = pipeline.score(runner, file)
    seconds = time.perf_counter() - started
    assert not any(judgement.condition.get("failure") for judgement in outcome.judgements)
    return seconds, list(outcome.judgements)


def agreement(bench: Bench, verdicts: dict[str, list[Judgement]]) -> None:
    """How far the methods' scores agree, over all dialogues and dimensions that both could be read on."""
    read = {m: {(j.dialogue_id, j.dimension): j.value for j in own if j.value is not None} for m, own in verdicts.items()}
    for method, own in read.items():
        bench.add(f"{method}: share of verdicts that can be read", len(own) / len(verdicts[method]))
    for a, b in combinations(read, 2):
        shared = sorted(set(read[a]) & set(read[b]))
        if not shared:
            continue
        left, right = [read[a][item] for item in shared], [float(read[b][item] or 0) for item in shared]
        found = accuracy(left, right)
        bench.add(f"{a} and {b}: equal, of {len(shared)}", found["acc"])
        bench.add(f"{a} and {b}: at most one apart", found["acc_soft"])
        rank = spearman([value for value in left if value is not None], right)
        bench.add(f"{a} and {b}: Spearman", [] if rank is None else rank)


def main(
    dialogues: Annotated[int, typer.Option(help="Dialogues to score.")] = 24,
    uncached: Annotated[bool, typer.Option(help="Also by a server without a prefix cache.")] = True,
    runs: RunsOption = 1,
    out: OutOption = OUT,
) -> None:
    """(c) Scoring: seven rubric-first requests (paper) beside both native methods, prefix cache on and off."""
    chosen = given(dialogues + 2)
    warm, chosen = chosen[-2:], chosen[:-2]
    sizes: dict[str, Any] = {"dialogues": len(chosen), "runs": runs, "all in": precision(gpu=False)[0]}
    bench = Bench("scoring", "(c) Scoring: seven dimensions, embedded model", **sizes)
    seconds: dict[tuple[str, bool], list[float]] = defaultdict(list)
    verdicts: dict[str, list[Judgement]] = {}
    caches = (True, False) if uncached else (True,)
    for cached in caches:
        with TemporaryDirectory() as name:
            args = [] if cached else ["--no-enable-prefix-caching"]
            spec = write_spec(Path(name), ANSWER, *args)
            taught = write_spec(Path(name) / "taught", ANSWER, *args, learnt=["esc_rank"])  # served by the same server
            with server(spec) as url:
                judged(Path(name) / "warm", spec, url, "joint", warm)
                for run in range(runs):
                    for method in SETTINGS:
                        if cached:
                            forget(url)
                        judge = taught if method == WITHOUT_RULES else spec
                        took, found = judged(Path(name) / f"{method}-{run}", judge, url, method, chosen)
                        seconds[method, cached].append(took)
                        bench.say(f"prefix cache {'on' if cached else 'off'}, {method}: {took:.1f} s")
                        if cached:
                            verdicts[method] = found
    for (method, cached), each in seconds.items():
        peers = {} if method == PAPER else {PEER: seconds[PAPER, cached]}
        bench.add(f"prefix cache {'on' if cached else 'off'}, {method}: s", each, peers=peers)
    for cached in caches:
        for method in [name for name in SETTINGS if name != PAPER]:
            ratios = [slow / own for slow, own in zip(seconds[PAPER, cached], seconds[method, cached], strict=True)]
            target = {"at_least": 4.0, "aim": "6"} if cached else {}
            bench.add(f"prefix cache {'on' if cached else 'off'}: paper ÷ {method}", ratios, **target)  # type: ignore[arg-type]
    agreement(bench, verdicts)
    bench.notes.append(
        f"The paper's judge may write {ANSWER} tokens a request, as its published ranker does: only the order differs."
    )
    bench.notes.append("Agreement is that of a model far too small to judge.")
    bench.deliver(out)
