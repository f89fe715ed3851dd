"""Dialogues a minute: ours on one server beside the reference procedure, on the same cards, model, greedy, with replies of the
same length at most."""

import asyncio
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, cast

import typer
import yaml

from core.files import CONFIGS
from core.machine import precision
from core.records import RoleCard
from core.specs import ModelSpec, load_spec
from evalsuite.dialogues.hold import hold
from evalsuite.runs.dialogue_framework import DialogueFramework, resolve_config
from serve.answers import Reply
from serve.client import ChatClient
from serve.launch import Servers
from serve.plan import plan_servers
from serve.questions import Question
from tests.bench.figures import OUT, Bench, OutOption, RunsOption
from tests.bench.one_run import run_config, spend, varied

NAME = "bench"
PEER = "transformers, one at a time"
Lengths = dict[str | None, int]  # card → tokens generated in its dialogue


def write_spec(folder: Path, max_tokens: int, *extra_args: str, eager: bool = True, learnt: Sequence[str] = ()) -> Path:
    """A spec file of the embedded model with its own limit a reply, in a folder that may be new. Without `eager` the model is
    compiled: a longer start and faster steps, which is what a long run wants. `learnt`: prompt packs that it is asked in as if
    it had been trained in them."""
    settings: dict[str, Any] = yaml.safe_load((CONFIGS / "models" / "embedded.yaml").read_text())
    settings |= {"name": NAME, "sampling": {"temperature": 0.0, "max_tokens": max_tokens}, "learnt": list(learnt)}
    settings["serve"]["extra_args"] += extra_args
    settings["serve"]["eager"] = eager
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{NAME}.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@contextmanager
def server(spec: Path) -> Iterator[str]:
    """A server of this spec; yields its base URL."""
    plans = plan_servers([load_spec(str(spec))], spec.parent / "logs")
    plans[0].env["VLLM_SERVER_DEV_MODE"] = "1"  # it takes /reset_prefix_cache then
    with Servers(plans) as servers:
        yield servers.endpoints[NAME]


def forget(url: str) -> None:
    """Empty the server's prefix cache: the next run must not profit from the one before."""
    request = urllib.request.Request(f"{url.removesuffix('/v1')}/reset_prefix_cache", method="POST")
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
        assert answer.status == 200, "the server did not empty its prefix cache"


@dataclass
class HuggingFace:
    """The reference: transformers' `generate` answers one call after the other, in this process. It stands where the chat
    client does, so that both are asked exactly the same messages."""

    model: Any
    tokenizer: Any

    async def ask(self, spec: ModelSpec, question: Question) -> Reply:
        import torch

        inputs = self.tokenizer.apply_chat_template(
            list(question.messages), add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            made = self.model.generate(
                **inputs,
                do_sample=False,
                max_new_tokens=question.sampling.max_tokens,
                repetition_penalty=1.0,
                pad_token_id=self.tokenizer.eos_token_id,
                eos_token_id=self.tokenizer.convert_tokens_to_ids("<|im_end|>"),
            )[0, inputs["input_ids"].shape[1] :]
        text = self.tokenizer.decode(made, skip_special_tokens=True).strip()
        return Reply(text=text, finish_reason="stop", completion_tokens=len(made))


@contextmanager
def reference() -> Iterator[HuggingFace]:
    """The embedded model in this process, in the type that it is served in; gone after the block."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from serve.checkpoints.places import materialise

    folder = materialise()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, precision(gpu=False)[0])).eval()
    yield HuggingFace(model, AutoTokenizer.from_pretrained(folder))
    del model


def one_at_a_time(resolved: DialogueFramework, cards: list[RoleCard], bench: Bench) -> tuple[list[float], Lengths]:
    """Hold these cards' dialogues one after the other, as published: (seconds of each, lengths)."""
    seconds: list[float] = []
    lengths: Lengths = {}
    wanted = {card.id for card in cards}
    with reference() as model:
        plans = [plan for plan in resolved.plans() if plan.opening.card_id in wanted]
        for number, plan in enumerate([plans[0], *plans]):  # the first, once more, warms up
            started = time.perf_counter()
            dialogue = asyncio.run(hold(plan, cast(ChatClient, model)))
            assert dialogue.usage is not None
            if number:
                seconds.append(time.perf_counter() - started)
                lengths[dialogue.card_id] = dialogue.usage.completion_tokens
                bench.say(f"reference {number}/{len(plans)}: {seconds[-1]:.0f} s")
    return seconds, lengths


def main(
    dialogues: Annotated[int, typer.Option(help="Dialogues of ours a run.")] = 96,
    reference_dialogues: Annotated[int, typer.Option(help="How many of them the reference holds, evenly spread.")] = 8,
    in_flight: Annotated[list[int] | None, typer.Option(help="Calls in flight; repeat. 0: adapting. Default: 96 0.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens a reply at most.")] = 96,
    server_arg: Annotated[list[str] | None, typer.Option(help="More for the server, to compare; repeat.")] = None,
    runs: RunsOption = 1,
    out: OutOption = OUT,
) -> None:
    """(b) Simulation: dialogues a minute beside the reference procedure (transformers, one dialogue at a time)."""
    widths = in_flight or [96, 0]
    sizes = {"dialogues": dialogues, "of the reference": reference_dialogues, "tokens a reply": f"≤ {max_tokens}", "runs": runs}
    sizes |= {"both sides in": precision(gpu=False)[0], **({"server": " ".join(server_arg)} if server_arg else {})}
    bench = Bench("simulation", "(b) Simulation: embedded model, greedy, the same cards", **sizes)
    step = max(dialogues // reference_dialogues, 1)
    with TemporaryDirectory() as name:
        folder = Path(name)
        spec = write_spec(folder, max_tokens, *(server_arg or []), eager=False)
        models = {"seeker": str(spec), "supporters": [str(spec)], "judge": str(spec)}
        cards = varied(dialogues)
        config = run_config(folder, cards, **models)
        alone, expected = one_at_a_time(resolve_config(config), cards[::step][:reference_dialogues], bench)
        slow = 60 / (sum(alone) / len(alone))
        bench.add("reference: dialogues/min", [60 / seconds for seconds in alone])
        pace = sum(expected.values()) / sum(alone)
        bench.add("reference: tokens/s", pace)
        best = 0.0
        with server(spec) as url:
            warm = folder / "warm"
            spend(run_config(warm, varied(4, first=10 * dialogues), endpoints={NAME: url}, **models), score=False)
            for width in widths:
                minutes, tokens, same = [], [], []
                for run in range(runs):
                    forget(url)
                    place = folder / f"{width}-{run}"
                    settings: dict[str, Any] = models | {"endpoints": {NAME: url}, "concurrency": width or None}
                    outcome, spent = spend(run_config(place, cards, **settings), score=False)
                    lengths: Lengths = {d.card_id: d.usage.completion_tokens for d in outcome.dialogues if d.usage}
                    minutes.append(60 * dialogues / spent.seconds)
                    tokens.append(sum(lengths.values()) / spent.seconds)
                    same.append(sum(lengths[card] for card in expected) / sum(expected.values()))
                    bench.say(f"{width or 'adapting'} in flight: {minutes[-1]:.1f} dialogues/min")
                label = f"ours, {width} in flight" if width else "ours, adapting"
                bench.add(f"{label}: dialogues/min", minutes, peers={PEER: slow})
                bench.add(f"{label}: tokens/s", tokens, peers={PEER: pace})
                bench.add(f"{label}: length of the same dialogues ÷ reference's", same, at_least=0.9, at_most=1.1)
                bench.add(f"{label}: dialogues/min ÷ reference's", [each / slow for each in minutes])
                bench.add(f"{label}: the same for dialogues of equal length", [each / pace for each in tokens])
                best = max(best, bench.figures[-1].median or 0.0)
    bench.add("the best of these", best, at_least=18, aim="25")
    bench.notes.append(
        "Dialogues differ in length, and the reference holds only some: at equal length the ratio is that of tokens a second."
    )
    bench.notes.append("Ours includes the whole of `esc-eval run --only simulate`, but not the start of its server.")
    bench.deliver(out)
