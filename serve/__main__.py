"""`python -m serve`: bring models up as OpenAI-compatible servers on this machine."""

from core.starting import interrupted  # noqa: F401 - before slow imports

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError, run_cli, say
from core.files import CONFIGS, read_object
from core.machine import Machine
from core.masking import mask_paths
from core.paths import IN_MODEL, IN_SPEC, OUT_FOLDER, Reads
from core.specs import ModelSpec, load_spec, place_of
from core.tables import Screen, to_console
from core.verbs import program
from serve.checkpoints import lora
from serve.checkpoints.internlm2 import convert_adapter, convert_checkpoint, on_internlm2
from serve.checkpoints.merge import merge_adapter
from serve.checkpoints.places import base_folder, materialise
from serve.checkpoints.sentencepiece import convert_chatglm
from serve.launch import Servers
from serve.limits import START_TIMEOUT
from serve.placement import PhaseModels
from serve.plan import overview, plan_servers
from serve.units import Workload

CONVERSIONS = {"internlm2": convert_checkpoint, "chatglm": convert_chatglm}
LOGS = Path("runs/serve")  # where `up` writes server-NAME.log

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
        int | None, typer.Option(min=1, max=65535, help="Port of the first server; the next ones follow. Default: free ports.")
    ] = None,
    print_only: Annotated[
        bool,
        typer.Option("--print", help="Print the servers' memory and shell commands, environment included; start nothing."),
    ] = False,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="GPU,…", help="With --print: plan for these GPUs (8xh100, or gigabytes: 80,80 or 2x80)."),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(min=1024, help="Limit on the tokens of a request, if specs ask for more, to need less cache."),
    ] = None,
    start_timeout: Annotated[
        int, typer.Option(min=1, help="Seconds for a server to load its model and answer, after the download.")
    ] = int(START_TIMEOUT),
    command: Annotated[
        str | None,
        typer.Option(
            "--exec", metavar="COMMAND", help="Run this while the servers are up, then stop them; its exit code is returned."
        ),
    ] = None,
) -> None:
    """Start the servers that the specs need and keep them up until Ctrl-C, or while a command runs.

    The command gets each model's base URL in the environment variable SERVE_URL_NAME (upper case, other characters as _).

    Specs on the same base share one server: several names, or on GPUs several LoRA adapters. A spec with serve.replicas gets
    that many servers behind a router, which has the first port. Example:

    python -m serve up embedded --port 8000
    """
    chosen = [load_spec(name) for name in specs]
    words: list[str] = []
    if command is not None:  # refused before anything is started
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UserError(f"--exec {command!r}: {error}") from None
        if not words or shutil.which(words[0]) is None:
            raise UserError(f"--exec {command!r}: no such command here")
    for spec in chosen:
        if spec.endpoint.base_url is not None:
            say(mask_paths(f"{spec.name}: served at {spec.endpoint.base_url}, nothing to start"), err=True)
    if all(spec.endpoint.base_url is not None for spec in chosen):
        raise UserError("nothing to start: these specs have an endpoint.base_url")
    if gpus and not print_only:
        raise UserError("--gpus only plans for another machine: add --print")
    machine = Machine.parse(gpus) if gpus else Machine.here()
    needs = dict.fromkeys((spec.name for spec in chosen), Workload(context)) if context else {}
    if print_only:
        plans = plan_servers(chosen, LOGS, port, resolve=False, machine=machine, needs=needs)
        for table in overview([PhaseModels(chosen, needs)], [[replace(plan, notes=[]) for plan in plans]], machine):
            to_console(table, Screen(stderr=True))  # notes are printed with the commands
        ports = {plan.name: plan.port or 8000 + number for number, plan in enumerate(plans)}
        spare = max(ports.values())
        for plan in plans:
            for note in plan.notes:
                say(f"# {note}")
            spare += bool(plan.workers)
            say(plan.shell(ports[plan.name], [ports[name] for name in plan.workers], spare))
        return
    try:
        with Servers(plan_servers(chosen, LOGS, port, machine=machine, needs=needs), start_timeout) as servers:
            _show(dict(zip(specs, chosen, strict=True)), servers)
            if words:
                urls = {"SERVE_URL_" + re.sub(r"\W", "_", name).upper(): url for name, url in servers.endpoints.items()}
                try:
                    raise typer.Exit(subprocess.call(words, env=os.environ | urls))
                except OSError as error:  # such as a file without #!
                    raise UserError(f"--exec {command}: {error.strerror or error}") from None
            lost = set[str]()
            while servers.alive():
                for name, problem in servers.poll().items():
                    if name not in lost:
                        say(f"{problem}\n# the other replicas continue", err=True)
                        lost.add(name)
                time.sleep(1)
            raise UserError(next(iter(servers.poll().values())))
    except KeyboardInterrupt:
        say("stopped", err=True)


def _show(specs: Mapping[str, ModelSpec], servers: Servers) -> None:
    """Print the servers' addresses and a command that uses them. `specs` are by the names on the command line."""
    width = max(map(len, servers.endpoints))
    for name, url in servers.endpoints.items():
        say(f"{name:<{width}}  {url}")
    for plan in servers.plans:
        say(f"# {plan.name}: up after {servers.seconds[plan.name]:.0f} s, log {plan.log}")
    say("# Ctrl-C stops the servers. To use them, in another shell:")
    # The demo with these models in roles of their specs. Only dedicated judges judge: the demo has a trained one by default.
    config = CONFIGS / "eval" / "demo.yaml"
    config = config.relative_to(Path.cwd()) if config.is_relative_to(Path.cwd()) else config
    words = ["esc-eval", "run", "--config", str(config)]
    used = set[str]()
    for role in ("supporter", "seeker", "judge"):
        able = [name for name, spec in specs.items() if role in spec.roles and (role != "judge" or spec.roles == ("judge",))]
        if able:
            name = min(able, key=used.__contains__)  # the first without a role so far, if any
            address = servers.endpoints.get(specs[name].name)  # None if the spec has its own
            words += [f"--{role}", f"{name}@{address}" if address else name]
            used.add(name)
    say(shlex.join(words))


@app.command()
def convert(
    source: Annotated[
        str,
        typer.Argument(
            help="Folder of a LoRA adapter (PEFT) or of an InternLM2, ChatGLM2 or ChatGLM3 checkpoint, or `embedded`.",
        ),
        Reads("name", IN_MODEL.files),
    ],
    folder: Annotated[
        Path | None, typer.Argument(help="Folder to make; `embedded` has its own, in the cache."), OUT_FOLDER
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(help="Base of an adapter: a folder, hub id, or embedded:NAME. Default: the adapter's; InternLM2: none."),
        Reads("name", IN_MODEL.files),
    ] = None,
) -> None:
    """Convert a model to a form that transformers, PEFT and vLLM load without remote code:

    - an adapter is merged into a copy of its base, in the base's dtype and layout (`up` does this itself if necessary);
    - an InternLM2 checkpoint, or an adapter on InternLM2's own layers, is rewritten in Llama layout, without loss;
    - a ChatGLM2 or ChatGLM3 checkpoint gets a tokenizer without code, for vLLM's own model class;
    - `embedded` is written as a checkpoint (once, about 20 s), and its folder is printed.

    A checkpoint or merged model needs disk space for a copy of the weights (15.5 GB for a 7B) and memory for one shard.
    Examples:

    python -m serve convert runs/internlm2-chat-7b runs/internlm2-chat-7b-llama

    python -m serve convert runs/adapter runs/merged --base embedded:smollm2-135m-instruct
    """
    if source == "embedded":
        if folder or base:
            raise UserError("embedded: leave out FOLDER and --base, which are fixed")
        say(materialise())
        return
    place = place_of(source)
    if not place.is_dir():
        raise UserError(f"SOURCE {source}: no such folder, and not `embedded`")
    if folder is None:
        raise UserError(f"FOLDER: name the output folder for {source}")
    if (place / lora.CONFIG).is_file() or (place / lora.WEIGHTS).is_file():
        done = _convert_adapter(place, folder, base)
    elif base is not None:
        raise UserError(f"--base {base}: only an adapter has a base; {source} has no {lora.CONFIG}")
    else:
        kind = read_object(place / "config.json", "a model's config").get("model_type")
        if kind not in CONVERSIONS:
            raise UserError(f"{place / 'config.json'}: model_type: {kind!r}: only {' and '.join(CONVERSIONS)} need conversion")
        done = CONVERSIONS[kind](place, folder)
    say(str(folder) if done else f"{folder}: already there, every file as written", err=not done)


def _convert_adapter(adapter: Path, folder: Path, base: str | None) -> bool:
    """Rewrite an adapter on InternLM2's layers, merge any other; False if that was done before."""
    lora.adapter_rank(adapter)
    if on_internlm2(adapter):
        if base is None:
            raise UserError("--base: name the InternLM2 checkpoint, converted or not: its config says how wqkv is grouped")
        return convert_adapter(adapter, folder, place_of(base))
    config = read_object(adapter / lora.CONFIG, "an adapter's config")
    named, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not (base := base or named):
        raise UserError(f"{adapter / lora.CONFIG}: base_model_name_or_path: no base: give it with --base")
    return merge_adapter(base_folder(base, revision if base == named else None, "checkpoint"), adapter, folder)


def main() -> None:
    """Entry point of the console script."""
    run_cli(app)


if __name__ == "__main__":
    main()
