"""Before a run: `esc-eval init` writes the files of a first one, `models` lists the models that a role can be given, and
`doctor` shows what this machine has and lacks."""

import asyncio
import os
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import aiohttp
import typer

from core.errors import UserError, say
from core.files import CONFIGS, read_bytes, write_bytes
from core.options import console
from core.paths import MaybeModels, Writes
from core.specs import ModelSpec, load_spec, model_names
from core.tables import Cell, Table
from evalsuite.commands.options import JsonOption
from evalsuite.commands.output import deliver
from serve import http
from serve.doctor import findings
from serve.sizes import GIB, OVERHEAD, architectures_of, size_of

EXAMPLE, FILES = CONFIGS / "init", ("config.yaml", "cards.csv", "rubric.yaml", "prompt.txt")
_COLUMNS = ("model", "roles", "served by", "licence")


def models(
    names: Annotated[
        MaybeModels,
        typer.Argument(
            metavar="MODEL…", help="Only these: names in configs/models, spec files, NAME@URL. Default: all of configs/models."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check that the models with an address answer; this uses no tokens.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the models that a role can be given, and what each needs: GPU memory, the variable with its key, its licence.

    With --check, the exit code is 1 if an address does not answer or does not serve the model. Example:

    esc-eval models my-model@http://127.0.0.1:8000/v1 --check
    """
    specs = [load_spec(name) for name in names or model_names()]
    answers = asyncio.run(_answers(specs)) if check else {}
    figures = [_figures(spec) | ({"answers": answers.get(spec.name)} if check else {}) for spec in specs]
    rows = [_row(spec, figure) for spec, figure in zip(specs, figures, strict=True)]
    table = Table(
        "models",
        "Models",
        (*_COLUMNS, *(["answers"] if check else [])),
        tuple(rows),
        (
            *(note for spec in specs if names and (note := _note(spec))),
            "served by: the engine started for it, with the model's own chat template unless one of configs/chat_templates is "
            "named; esc-eval models NAME gives the reason",
            "GPU: memory of one copy, with the cache for one dialogue of full length and an assumed overhead; "
            "esc-eval run --plan computes it for your GPUs",
            "any served model can take any role as NAME@URL; --json adds addresses, checkpoints and descriptions",
        ),
    )
    deliver("models", figures, [table], None, as_json)
    if any(answer and not answer["served"] for answer in answers.values()):
        raise typer.Exit(1)


async def _answers(specs: list[ModelSpec]) -> dict[str, dict[str, Any]]:
    """Model → whether its address serves it, and what the server says; only models that have an address."""

    async def ask(session: aiohttp.ClientSession, spec: ModelSpec) -> dict[str, Any]:
        try:
            route = http.Route.to(spec, str(spec.endpoint.base_url).rstrip("/"))
            listing = await http.served_models(session, route, [spec.served_name()], spec.sampling.max_tokens)
        except UserError as error:
            return {"served": False, "said": str(error)}
        if listing.problem:
            return {"served": False, "said": listing.problem}
        if listing.contexts is None:
            return {"served": True, "said": "it does not list its models", "context": None}
        return {"served": True, "said": "yes", "context": listing.contexts[spec.served_name()]}

    remote = [spec for spec in specs if spec.endpoint.base_url]
    async with aiohttp.ClientSession() as session:
        answers = await asyncio.gather(*(ask(session, spec) for spec in remote))
    return {spec.name: answer for spec, answer in zip(remote, answers, strict=True)}


def _figures(spec: ModelSpec) -> dict[str, Any]:
    """What a model is and needs, as JSON. `gpu_gib`: memory of one copy with the cache for one dialogue of full length; null if
    nothing is served here or its size is unknown."""
    key = spec.endpoint.api_key_env
    size = size_of(spec) if spec.checkpoint and not spec.endpoint.base_url else None
    memory = size.weights() + size.cache(spec.context_length or 0) + OVERHEAD if size else 0
    fields = ("name", "about", "roles", "learnt", "serving", "chat_template", "checkpoint", "licence")
    return {name: getattr(spec, name) for name in fields} | {
        "languages": spec.languages if "languages" in spec.model_fields_set else None,
        "engine": None if spec.floor or spec.endpoint.base_url or spec.serve.unservable else "vllm",
        "architectures": architectures_of(spec),
        "unservable": spec.serve.unservable,
        "base_url": spec.endpoint.base_url,
        "gpu_gib": round(memory / GIB, 1) if size else None,
        "key": key,
        "key_is_set": bool(os.environ.get(key)) if key else None,
    }


def _row(spec: ModelSpec, figures: dict[str, Any]) -> tuple[Cell, ...]:
    answer = figures.get("answers")
    gpu = f"{figures['gpu_gib']:.1f} GiB of a GPU" if figures["gpu_gib"] else "a GPU, size unknown" if spec.checkpoint else None
    key = f"{figures['key']} ({'set' if figures['key_is_set'] else 'not set'})" if figures["key"] else None
    needs = None if spec.floor else key if spec.endpoint.base_url else gpu
    text = answer["said"] + (f"; reads {answer['context']} tokens" if answer.get("context") else "") if answer else None
    roles = f"{', '.join(spec.roles)} ({', '.join(figures['languages'] or ['any language'])})"
    template = spec.chat_template and ("in the spec" if "{" in spec.chat_template else spec.chat_template)
    served = "its address" if spec.endpoint.base_url else "nothing here" if spec.serve.unservable else "vLLM"
    if spec.floor:
        served = "no model"
    elif served == "vLLM" and template:
        served = f"vLLM, template {template}"
    return (spec.name, roles, ": ".join(filter(None, [served, needs])), spec.licence, *([text] if "answers" in figures else []))


def _note(spec: ModelSpec) -> str:
    """A model's engine classes, and why it is served as it is, or cannot be; "" if there is no reason to give."""
    reason = f"nothing here can serve it: {spec.serve.unservable}" if spec.serve.unservable else spec.serving
    classes = ", ".join(architectures_of(spec))
    return f"{spec.name}{f' ({classes})' if classes else ''}: {reason}" if reason else ""


def doctor() -> None:
    """Show what this machine has and lacks for serving and training, one line each, with what to do about it.

    Checks GPU, driver, torch, vLLM, compiler and headers, disk space, ports, Slurm and Ray, keys. `--` marks what only some
    uses need. Exit code 1 if something is missing that an installed package needs.
    """
    missing = 0
    for finding in findings():
        say(finding)
        missing += finding.state == "missing"
    if missing:
        say(f"{missing} missing")
        raise typer.Exit(1)


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder to write to; existing files are never replaced."), Writes(FILES)
    ],
) -> None:
    """Write the files of a first run: a config, four role cards, a rubric of four questions, and a supporter's system prompt.

    They run as they are, with any model behind an OpenAI-compatible URL; then adapt them. Example:

    esc-eval init mine

    esc-eval run --config mine/config.yaml --model my-model@http://127.0.0.1:8000/v1
    """
    if existing := [name for name in FILES if (folder / name).exists()]:
        raise UserError(f"{folder}: {', '.join(existing)}: exists already and is not replaced: choose another folder")
    for name in FILES:
        write_bytes(folder / name, read_bytes(EXAMPLE / name, "example"))
    console.print(
        f"written: {', '.join(FILES)}\nesc-eval run --config {quote(str(folder / 'config.yaml'))} --model NAME@URL",
        soft_wrap=True,
    )
