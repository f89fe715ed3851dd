"""`python -m serve`: bring models up as OpenAI-compatible servers on this machine."""

from __future__ import annotations

from core.starting import interrupted  # noqa: F401 - before what takes long to load

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError, run_cli, say
from core.files import CONFIGS
from core.machine import Machine
from core.masking import mask_paths
from core.paths import IN_MODEL, IN_SPEC, OUT_FOLDER, Reads, Writes
from core.specs import ModelSpec, load_spec
from core.tables import Screen, to_console
from core.verbs import program
from serve.checkpoints.chatglm import convert_chatglm
from serve.checkpoints.embedded import materialise
from serve.checkpoints.internlm2 import convert_checkpoint
from serve.checkpoints.internlm2_adapter import convert_adapter
from serve.checkpoints.merge import merge_adapter
from serve.checkpoints.places import base_folder
from serve.launch import START_TIMEOUT, Servers
from serve.plan import overview, plan_servers

app = program(
    "Bring models up as OpenAI-compatible servers on this machine. `esc-eval run` does this by itself; use this to keep "
    "servers up between runs, or to see the commands.",
)


@app.command()
def up(
    specs: Annotated[
        list[str], typer.Argument(metavar="SPEC…", help="Names (see `esc-eval models`) or YAML files of model specs."), IN_SPEC
    ],
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the first server, the next ones follow. Default: free ones.")
    ] = None,
    print_only: Annotated[
        bool,
        typer.Option("--print", help="Print what servers take and the shell commands, environment included; start nothing."),
    ] = False,
    gpus: Annotated[
        str | None, typer.Option(metavar="GB,…", help="With --print: for a machine with these GPUs (80,80 or 2x80).")
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(min=1024, help="Tokens of a request at most, where specs ask for more: less cache is enough then."),
    ] = None,
    start_timeout: Annotated[
        int, typer.Option(min=1, help="Seconds that a server may take to load its model and answer, once it is downloaded.")
    ] = int(START_TIMEOUT),
    log_dir: Annotated[Path, typer.Option(help="Folder for server-NAME.log files."), Writes(("server-*.log",))] = Path(
        "runs/serve"
    ),
    command: Annotated[
        str | None,
        typer.Option(
            "--exec", metavar="COMMAND", help="Run this while the servers are up, then stop them; its exit code is returned."
        ),
    ] = None,
) -> None:
    """Start the servers that the specs need and keep them up until Ctrl-C, or while a command runs.

    The command finds each model's base URL in its environment, as SERVE_URL_NAME (upper case, other signs as _).

    Specs on the same base share one server: several names, or on GPUs several LoRA adapters. A spec with serve.replicas gets
    so many servers behind one router, which has the first port. Example:

    python -m serve up embedded --port 8000
    """
    chosen = [load_spec(name) for name in specs]
    words: list[str] = []
    if command is not None:  # one that cannot be run is said before anything is started
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UserError(f"--exec {command!r}: {error}") from None
        if not words or shutil.which(words[0]) is None:
            raise UserError(f"--exec {command!r}: no such command here")
    for spec in chosen:
        if spec.endpoint.base_url is not None:
            say(mask_paths(f"{spec.name}: answers at {spec.endpoint.base_url}, nothing to start"), err=True)
    if all(spec.endpoint.base_url is not None for spec in chosen):
        raise UserError("nothing to start: these specs have an endpoint.base_url")
    if gpus and not print_only:
        raise UserError("--gpus is a machine to plan for: give --print, too")
    machine = Machine.parse(gpus) if gpus else Machine.here()
    needs = dict.fromkeys((spec.name for spec in chosen), context) if context else None
    if print_only:
        plans = plan_servers(chosen, log_dir, port, resolve=False, machine=machine, needs=needs)
        to_console(overview([plans], machine), Screen(stderr=True))
        ports = {plan.name: plan.port or 8000 + number for number, plan in enumerate(plans)}
        spare = max(ports.values())
        for plan in plans:
            for note in plan.notes:
                say(f"# {note}")
            spare += bool(plan.workers)
            say(plan.shell(ports[plan.name], [ports[name] for name in plan.workers], spare))
        return
    try:
        with Servers(plan_servers(chosen, log_dir, port, machine=machine, needs=needs), start_timeout) as servers:
            _show(dict(zip(specs, chosen, strict=True)), servers)
            if words:
                urls = {"SERVE_URL_" + re.sub(r"\W", "_", name).upper(): url for name, url in servers.endpoints.items()}
                try:
                    raise typer.Exit(subprocess.call(words, env=os.environ | urls))
                except OSError as error:  # a file without #!, for example
                    raise UserError(f"--exec {command}: {error.strerror or error}") from None
            lost = set[str]()
            while servers.alive():
                for name, what in servers.poll().items():
                    if name not in lost:
                        say(f"{what}\n# the other replicas go on", err=True)
                        lost.add(name)
                time.sleep(1)
            raise UserError(next(iter(servers.poll().values())))
    except KeyboardInterrupt:
        say("stopped", err=True)


def _show(given: Mapping[str, ModelSpec], servers: Servers) -> None:
    """Where the servers are, and a command that uses them. `given` maps what was typed → the spec."""
    width = max(map(len, servers.endpoints))
    for name, url in servers.endpoints.items():
        say(f"{name:<{width}}  {url}")
    for plan in servers.plans:
        say(f"# {plan.name}: up after {servers.seconds[plan.name]:.0f} s, log {plan.log}")
    say("# Ctrl-C stops the servers. To use them, in another shell:")
    # The demo with these models, each in a role of its spec's; a judge only where it has no other: the demo asks a trained one.
    config = CONFIGS / "eval" / "demo.yaml"
    config = config.relative_to(Path.cwd()) if config.is_relative_to(Path.cwd()) else config
    words = ["esc-eval", "run", "--config", str(config)]
    free = dict(given)
    for role in ("supporter", "seeker", "judge"):
        able = [name for name, spec in free.items() if role in spec.roles and (role != "judge" or spec.roles == ("judge",))]
        if able:
            words += [f"--{role}", able[0]]
            del free[able[0]]
    say(shlex.join([*words, *(f"--endpoint={name}={url}" for name, url in servers.endpoints.items())]))


@app.command()
def embedded() -> None:
    """Turn the embedded model into a checkpoint folder (once, about 20 s) and print the folder."""
    say(materialise())


@app.command("convert-internlm2")
def convert_internlm2(
    src: Annotated[Path, typer.Argument(help="Folder of the InternLM2 checkpoint: safetensors, config, tokenizer."), IN_MODEL],
    dst: Annotated[Path, typer.Argument(help="Folder to make, with the same model as a LlamaForCausalLM."), OUT_FOLDER],
) -> None:
    """Rewrite an InternLM2 checkpoint in Llama layout, which transformers, PEFT and vLLM load without remote code.

    Exact, and in the source's dtype. Needs free disk for a copy of the weights (15.5 GB for the 7B) and little memory. Example:

    python -m serve convert-internlm2 runs/internlm2-chat-7b runs/internlm2-chat-7b-llama
    """
    done = convert_checkpoint(src, dst)
    say(str(dst) if done else f"{dst}: already converted, every file as written", err=not done)


@app.command("convert-internlm2-adapter")
def convert_internlm2_adapter(
    src: Annotated[Path, typer.Argument(help="Folder of a PEFT LoRA adapter trained on InternLM2."), IN_MODEL],
    dst: Annotated[
        Path, typer.Argument(help="Folder to make, with the same adapter for the base in Llama layout."), OUT_FOLDER
    ],
    base: Annotated[
        Path | None,
        typer.Option(help="Folder or config.json of its base, in either layout. Without it, heads are taken to be 128 wide."),
        Reads("place", IN_MODEL.files),
    ] = None,
) -> None:
    """Rewrite a LoRA adapter trained on InternLM2 (wqkv, wo, w1, w2, w3) for its base in Llama layout. Exact. Example:

    python -m serve convert-internlm2-adapter runs/esc-rank-published/fluency_en runs/esc-rank-llama/fluency_en
    """
    done = convert_adapter(src, dst, base)
    if base is None:
        say("note: heads 128 wide, as in every published InternLM2; --base says for certain", err=True)
    say(str(dst) if done else f"{dst}: already converted, every file as written", err=not done)


@app.command("convert-chatglm")
def convert_chatglm_checkpoint(
    src: Annotated[
        Path,
        typer.Argument(help="Folder of the checkpoint: safetensors, config, tokenizer.model and the tokenizer's .py."),
        IN_MODEL,
    ],
    dst: Annotated[
        Path, typer.Argument(help="Folder to make, with the same weights and a tokenizer without code."), OUT_FOLDER
    ],
) -> None:
    """Give a ChatGLM2 or ChatGLM3 checkpoint a tokenizer that loads without remote code, which vLLM's own model then uses.

    The weights are linked, or copied to another disk. Example:

    python -m serve convert-chatglm runs/chatglm3-6b runs/chatglm3-6b-plain
    """
    done = convert_chatglm(src, dst)
    say(str(dst) if done else f"{dst}: already converted, every file as written", err=not done)


@app.command()
def merge(
    base: Annotated[
        str, typer.Argument(help="Folder of the base, hub id (org/name), or embedded:NAME."), Reads("name", IN_MODEL.files)
    ],
    adapter: Annotated[Path, typer.Argument(help="Folder of a PEFT LoRA adapter trained on it."), IN_MODEL],
    dst: Annotated[
        Path, typer.Argument(help="Folder to make, with the whole model, its tokenizer and a model card."), OUT_FOLDER
    ],
    revision: Annotated[str | None, typer.Option(help="Revision of a hub id.")] = None,
) -> None:
    """Merge a LoRA adapter into a copy of its base, shard by shard, in the base's dtype and layout.

    Needs free disk for a copy of the base and little memory. `up` merges by itself where it has to. Example:

    python -m serve merge embedded:smollm2-135m-instruct runs/adapter runs/merged
    """
    done = merge_adapter(base_folder(base, revision, "checkpoint"), adapter, dst)
    say(str(dst) if done else f"{dst}: already merged, every file as written", err=not done)


def main() -> None:
    """Entry point of the console script."""
    run_cli(app)


if __name__ == "__main__":
    main()
