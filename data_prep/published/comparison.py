"""Compares this project's messages with those of the published scripts, on sample dialogues (`import`).

The scripts of the clone run in their own process with stand-ins for all that they import (`stand_ins`): two role cards per
language are played with replies that are awkward to copy, and the judge is asked about these dialogues and two of the clone's
own. The messages that the scripts would have sent are then compared, character by character, with those that `core` makes
with the imported pack.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from core.files import read_bytes, read_json
from core.judge_prompts import judge_messages
from core.prompts import PromptPack, chat, greeting, seeker_system, supporter_system
from core.records import Dialogue, Language, Message, RoleCard, Turn
from core.rubrics import load_rubric
from core.specs import Sampling, load_spec, model_names
from data_prep.published.esc_eval import DIMENSIONS, MARKED, PublishedPrompts, turn_of

SAMPLES = 2  # dialogues per language
Call = Mapping[str, Any]  # model, messages, options, adapter, reply
_STAND_INS = Path(__file__).with_name("stand_ins.py")
_SECONDS = 120
# Surrounding white space, the scorer's markers inside a text, braces, both kinds of line end; an odd number, so that each side
# says all of them.
_REPLIES = (
    "  I feel stuck.\n",
    "The AI assistant hears you.\n\nESC-Role：who says that? ",
    "{{ x }} {% raw %} {# no #}",
    "我睡不着。\t",
    "one\r\ntwo",
)


class PublishedPart(NamedTuple):
    """One comparison, in one language or of the sampling: how many calls (or models), and the first difference."""

    name: str
    language: Language | None
    calls: int
    difference: str | None = None


class NotCompared(Exception):
    """Why a script could not be run."""


def compare(
    prompts: PublishedPrompts,
    pack: PromptPack,
    cards: Mapping[Language, tuple[Path, Sequence[RoleCard]]],
    samples: Mapping[Language, Path],
) -> Iterator[PublishedPart]:
    """Compare seeker, supporter and judge, language by language, then the sampling of their replies. `cards` are files with the
    cards in them, `samples` a result file of the clone. Raises `NotCompared` with the reason if a script does not run."""
    options_of: dict[str, dict[str, Any]] = {}
    for language, (path, loaded) in cards.items():
        lines: dict[str, dict[str, list[str]]] = {}
        if prompts.seeker_script and loaded:
            entries = read_json(path, "role card file")[:SAMPLES]
            argv = [prompts.seeker_script.name, "-ef", "cards.json", "-rf", "./result/", "-lang", language]
            calls, written = _run(prompts.seeker_script, argv, {"cards.json": json.dumps(entries)}, _REPLIES)
            yield from _sides(calls, pack, loaded[:SAMPLES], language)
            options_of |= {call["model"]: call["options"] for call in calls}
            lines |= {f"held_{language}.json": _marked(text) for text in written[:1]}
        if language in samples:
            own = _marked(read_bytes(samples[language], "result file"))
            lines[f"clone_{language}.json"] = dict(list(own.items())[:SAMPLES])
        if prompts.judge_script and lines:
            texts = {name: json.dumps(dialogues) for name, dialogues in lines.items()}
            calls, _ = _run(prompts.judge_script, [prompts.judge_script.name], texts, ("3",))
            judged = [dialogue for name in sorted(lines) for dialogue in lines[name].values()]
            yield _judge(calls, pack, judged, language)
            options_of |= {call["model"]: call["options"] for call in calls}
    if options_of:
        differences = filter(None, (_sampling_difference(model, options) for model, options in options_of.items()))
        yield PublishedPart("how replies are drawn", None, len(options_of), next(differences, None))


def _marked(text: str | bytes) -> dict[str, list[str]]:
    """The dialogues of a result file in which every line begins as the scorer expects; empty for other files."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {
        index: dialogue
        for index, dialogue in (value.items() if isinstance(value, dict) else ())
        if dialogue
        and isinstance(dialogue, list)
        and all(isinstance(line, str) and line.startswith(MARKED) for line in dialogue)
    }


def _run(script: Path, argv: Sequence[str], files: Mapping[str, str], replies: Sequence[str]) -> tuple[list[Call], list[str]]:
    """The calls that a script makes, and the texts that it writes. Raises `NotCompared` if it does not run to its end."""
    try:
        job = {"source": read_bytes(script, "script").decode(), "argv": argv, "files": files, "replies": replies}
        program = [sys.executable, "-I", str(_STAND_INS)]
        process = subprocess.run(program, input=json.dumps(job), capture_output=True, text=True, timeout=_SECONDS, env={})
        outcome = json.loads(process.stdout)
    except subprocess.TimeoutExpired:
        raise NotCompared(f"{script.name} does not end") from None
    except ValueError:
        raise NotCompared(f"{script.name} crashed") from None
    if problem := outcome.get("problem"):
        raise NotCompared(f"{script.name}: {problem}")
    if not outcome["calls"]:
        raise NotCompared(f"{script.name} calls no model")
    return outcome["calls"], list(outcome["written"].values())


def _sides(calls: Sequence[Call], pack: PromptPack, cards: Sequence[RoleCard], language: Language) -> Iterator[PublishedPart]:
    """Compare seeker and supporter. The model that is called first is the seeker; a chat of two messages begins a dialogue."""
    seeker, opening = calls[0]["model"], Turn(role="supporter", text=greeting(pack, language))
    counts, differences = {"seeker": 0, "supporter": 0}, dict[str, str]()
    turns, number = [opening], -1
    for call in calls:
        role: Any = "seeker" if call["model"] == seeker else "supporter"
        if role == "seeker" and len(call["messages"]) == 2:
            turns, number = [opening], number + 1
        card = cards[number % len(cards)]
        if role == "seeker":
            own = chat(turns, role, seeker_system(pack, card, paper=True))
        else:
            own = chat(turns[1:], role, supporter_system(pack, language))
        counts[role] += 1
        if role not in differences and (difference := _difference(call["messages"], own)):
            differences[role] = f"card {card.id}, turn {len(turns)}: {difference}"
        turns.append(Turn(role=role, text=call["reply"]))
    yield from (PublishedPart(role, language, count, differences.get(role)) for role, count in counts.items())


def _judge(calls: Sequence[Call], pack: PromptPack, dialogues: Sequence[Sequence[str]], language: Language) -> PublishedPart:
    """Compare the judge, called once per dialogue and dimension; the model's own code may add a system message."""
    rubric, expected = load_rubric("esc_eval"), [(lines, key) for lines in dialogues for key in DIMENSIONS]
    if len(calls) != len(expected):
        return PublishedPart("judge", language, len(calls), f"{len(calls)} calls in the script, {len(expected)} here")
    for number, (call, (lines, key)) in enumerate(zip(calls, expected, strict=True)):
        turns = tuple(turn_of(line, place) for place, line in enumerate(lines))
        dialogue = Dialogue(id="sample", language=language, source="esc-eval", turns=turns)
        own = judge_messages(pack, rubric, dialogue, "paper", [DIMENSIONS[call["adapter"] or key]])
        if not any(message["role"] == "system" for message in call["messages"]):
            own = own[1:]
        if difference := _difference(call["messages"], own):
            return PublishedPart("judge", language, len(calls), f"dialogue {number // len(DIMENSIONS)}, {key}: {difference}")
    return PublishedPart("judge", language, len(calls))


def _difference(script: Sequence[Message], own: Sequence[Message]) -> str | None:
    if len(script) != len(own):
        return f"{len(script)} messages in the script, {len(own)} here"
    for number, (theirs, ours) in enumerate(zip(script, own, strict=True)):
        if theirs["role"] != ours["role"]:
            return f"message {number} is {theirs['role']}'s in the script, {ours['role']}'s here"
        if theirs["content"] != ours["content"]:
            texts = theirs["content"], ours["content"]
            place = next((n for n, pair in enumerate(zip(*texts, strict=False)) if pair[0] != pair[1]), min(map(len, texts)))
            shown = " and here ".join(repr(text[max(place - 20, 0) : place + 20]) for text in texts)
            return f"message {number} ({theirs['role']}), character {place}: in the script {shown}"
    return None


def _sampling_difference(model: str, options: Mapping[str, Any]) -> str | None:
    """How a model's sampling differs from the script's. A length that the script does not set is not compared."""
    own = load_spec("esc-rank-published").sampling  # only the judge's calls set no length
    if "max_new_tokens" in options:
        specs = [spec for spec in map(load_spec, model_names()) if spec.paper_sampling]
        # By a checkpoint's own name: the script loads some of them from a folder.
        by_name = {Path(spec.checkpoint or "").name.casefold(): spec.paper_sampling for spec in specs}
        own = by_name.get(Path(model).name.casefold()) or Sampling()
    temperature = 0.0 if options.get("do_sample") is False else options.get("temperature")
    tokens = options.get("max_new_tokens", own.max_tokens)
    if (temperature, tokens) == (own.temperature, own.max_tokens):
        return None
    script, ours = (
        f"{'its own temperature' if degrees is None else f'temperature {degrees:g}'}, {most} tokens"
        for degrees, most in ((temperature, tokens), (own.temperature, own.max_tokens))
    )
    return f"{model}: {script} in the script, {ours} here"
