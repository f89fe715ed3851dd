"""Holds this project's messages against those of the published scripts, on sample dialogues (`import`).

The scripts of the clone are run in a process of their own where nothing but stand-ins is to be had (`stand_ins`): two role
cards per language are played through with replies that are awkward to copy, and the judge is asked about these dialogues and
two of the clone's own. What the scripts would have sent is then compared, character by character, with what `core` makes of the
imported pack.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from core.files import read_bytes, read_json
from core.judge_prompts import judge_messages
from core.prompts import PromptPack
from core.records import Dialogue, Language, Message, RoleCard, Turn
from core.rubrics import load_rubric
from core.side_prompts import chat, greeting, seeker_system, supporter_system
from core.specs import Sampling, load_spec, model_names
from data_prep.published import MARKED, turn_of
from data_prep.published.prompts import DIMENSIONS, PublishedPrompts

SAMPLES = 2  # dialogues per language
Call = Mapping[str, Any]  # model, messages, options, adapter, reply
_STAND_INS = Path(__file__).with_name("stand_ins.py")
_SECONDS = 120
# White space around, markers of the scorer's in what is said, braces, both kinds of line end; an odd number, so that each side
# says all of them.
_REPLIES = (
    "  I feel stuck.\n",
    "The AI assistant hears you.\n\nESC-Role：who says that? ",
    "{{ x }} {% raw %} {# no #}",
    "我睡不着。\t",
    "one\r\ntwo",
)


class PublishedPart(NamedTuple):
    """What was compared in one language, or of how replies are drawn: how much, and the first difference."""

    name: str
    language: Language | None
    calls: int
    difference: str | None = None


class NotCompared(Exception):
    """Why a script could not be run."""


def compare(
    found: PublishedPrompts,
    pack: PromptPack,
    cards: Mapping[Language, tuple[Path, Sequence[RoleCard]]],
    samples: Mapping[Language, Path],
) -> Iterator[PublishedPart]:
    """Seeker, supporter and judge, language by language, then how their replies are drawn. `cards`: their file and what was
    read of it; `samples`: a result file of the clone's.

    Raises `NotCompared` with the reason where a script does not run.
    """
    drawn: dict[str, dict[str, Any]] = {}
    for language, (path, loaded) in cards.items():
        lines: dict[str, dict[str, list[str]]] = {}
        if found.seeker_script and loaded:
            entries = read_json(path, "role card file")[:SAMPLES]
            argv = [found.seeker_script.name, "-ef", "cards.json", "-rf", "./result/", "-lang", language]
            calls, written = _run(found.seeker_script, argv, {"cards.json": json.dumps(entries)}, _REPLIES)
            yield from _sides(calls, pack, loaded[:SAMPLES], language)
            drawn |= {call["model"]: call["options"] for call in calls}
            lines |= {f"held_{language}.json": _marked(text) for text in written[:1]}
        if language in samples:
            own = _marked(read_bytes(samples[language], "result file"))
            lines[f"clone_{language}.json"] = dict(list(own.items())[:SAMPLES])
        if found.judge_script and lines:
            texts = {name: json.dumps(dialogues) for name, dialogues in lines.items()}
            calls, _ = _run(found.judge_script, [found.judge_script.name], texts, ("3",))
            spoken = [spoken for name in sorted(lines) for spoken in lines[name].values()]
            yield _judge(calls, pack, spoken, language)
            drawn |= {call["model"]: call["options"] for call in calls}
    if drawn:
        differences = filter(None, (_drawn_alike(model, options) for model, options in drawn.items()))
        yield PublishedPart("how replies are drawn", None, len(drawn), next(differences, None))


def _marked(text: str | bytes) -> dict[str, list[str]]:
    """The dialogues of a result file whose every line begins as the scorer expects it; none of what is no result file."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}

    def sound(dialogue: Any) -> bool:
        return isinstance(dialogue, list) and all(isinstance(line, str) and line.startswith(MARKED) for line in dialogue)

    return (
        {index: dialogue for index, dialogue in value.items() if dialogue and sound(dialogue)}
        if isinstance(value, dict)
        else {}
    )


def _run(script: Path, argv: Sequence[str], files: Mapping[str, str], replies: Sequence[str]) -> tuple[list[Call], list[str]]:
    """The calls that a script makes, and the texts that it writes."""
    try:
        job = {"source": read_bytes(script, "script").decode(), "argv": argv, "files": files, "replies": replies}
        program = [sys.executable, "-I", str(_STAND_INS)]
        done = subprocess.run(program, input=json.dumps(job), capture_output=True, text=True, timeout=_SECONDS, env={})
        outcome = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise NotCompared(f"{script.name} does not end") from None
    except ValueError:
        raise NotCompared(f"{script.name} broke off") from None
    if problem := outcome.get("problem"):
        raise NotCompared(f"{script.name}: {problem}")
    if not outcome["calls"]:
        raise NotCompared(f"{script.name} asks nothing")
    return outcome["calls"], list(outcome["written"].values())


def _sides(calls: Sequence[Call], pack: PromptPack, cards: Sequence[RoleCard], language: Language) -> Iterator[PublishedPart]:
    """Seeker and supporter. Whoever is asked first is the seeker; a chat of two messages begins a dialogue."""
    seeker, opening = calls[0]["model"], Turn(role="supporter", text=greeting(pack, language))
    counts, found = {"seeker": 0, "supporter": 0}, dict[str, str]()
    turns, number = [opening], -1
    for call in calls:
        role: Any = "seeker" if call["model"] == seeker else "supporter"
        if role == "seeker" and len(call["messages"]) == 2:
            turns, number = [opening], number + 1
        card = cards[number % len(cards)]
        if role == "seeker":
            here = chat(turns, role, seeker_system(pack, card, paper=True))
        else:
            here = chat(turns[1:], role, supporter_system(pack, language))
        counts[role] += 1
        if role not in found and (difference := _difference(call["messages"], here)):
            found[role] = f"card {card.id}, turn {len(turns)}: {difference}"
        turns.append(Turn(role=role, text=call["reply"]))
    yield from (PublishedPart(role, language, count, found.get(role)) for role, count in counts.items())


def _judge(calls: Sequence[Call], pack: PromptPack, dialogues: Sequence[Sequence[str]], language: Language) -> PublishedPart:
    """The judge: a call a dialogue and dimension. A script that names no system message leaves it to the model's own code."""
    rubric, expected = load_rubric("esc_eval"), [(lines, key) for lines in dialogues for key in DIMENSIONS]
    if len(calls) != len(expected):
        return PublishedPart("judge", language, len(calls), f"the script asks {len(calls)} times, here {len(expected)} times")
    for number, (call, (lines, key)) in enumerate(zip(calls, expected, strict=True)):
        turns = tuple(turn_of(line, place) for place, line in enumerate(lines))
        dialogue = Dialogue(id="sample", language=language, source="esc-eval", turns=turns)
        here = judge_messages(pack, rubric, dialogue, "paper", [DIMENSIONS[call["adapter"] or key]])
        if not any(message["role"] == "system" for message in call["messages"]):
            here = here[1:]
        if difference := _difference(call["messages"], here):
            return PublishedPart("judge", language, len(calls), f"dialogue {number // len(DIMENSIONS)}, {key}: {difference}")
    return PublishedPart("judge", language, len(calls))


def _difference(script: Sequence[Message], here: Sequence[Message]) -> str | None:
    """Where two lists of messages part first."""
    if len(script) != len(here):
        return f"{len(script)} messages in the script, {len(here)} here"
    for number, (theirs, ours) in enumerate(zip(script, here, strict=True)):
        if theirs["role"] != ours["role"]:
            return f"message {number} is {theirs['role']}'s in the script, {ours['role']}'s here"
        if theirs["content"] != ours["content"]:
            texts = theirs["content"], ours["content"]
            place = next((n for n, pair in enumerate(zip(*texts, strict=False)) if pair[0] != pair[1]), min(map(len, texts)))
            shown = " and here ".join(repr(text[max(place - 20, 0) : place + 20]) for text in texts)
            return f"message {number} ({theirs['role']}), character {place}: in the script {shown}"
    return None


def _drawn_alike(model: str, options: Mapping[str, Any]) -> str | None:
    """How a model's replies are drawn otherwise than by the script. A length that the script does not name is not compared."""
    here = load_spec("esc-rank-published").sampling  # the judge's calls alone have no length of their own
    if "max_new_tokens" in options:
        specs = [spec for spec in map(load_spec, model_names()) if spec.paper_sampling]
        by_name = {_name(spec.checkpoint or ""): spec.paper_sampling for spec in specs}
        here = by_name.get(_name(model)) or Sampling()
    temperature = 0.0 if options.get("do_sample") is False else options.get("temperature")
    tokens = options.get("max_new_tokens", here.max_tokens)
    if (temperature, tokens) == (here.temperature, here.max_tokens):
        return None
    script, ours = (
        f"{'its own temperature' if degrees is None else f'temperature {degrees:g}'}, {most} tokens"
        for degrees, most in ((temperature, tokens), (here.temperature, here.max_tokens))
    )
    return f"{model}: {script} in the script, {ours} here"


def _name(path: str) -> str:
    """A checkpoint's own name: the script loads some of them from a folder."""
    return path.rpartition("/")[2].casefold()
