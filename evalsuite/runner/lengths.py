"""How long the requests of a run can get, in tokens: what the caches of its servers must hold."""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache

from core.files import read_text
from core.judge_prompts import ALONE, judge_messages, published, transcript
from core.records import Dialogue, Turn
from core.specs import ModelSpec
from evalsuite.dialogues.hold import Plan
from evalsuite.judge.methods import method_of
from evalsuite.runs.dialogue_framework import DialogueFramework

BYTES_A_TOKEN = 3  # without a tokenizer here: UTF-8, English has about four, Chinese about three
MARKS = 8  # tokens of a chat template around one message, at most
UNSEEN = 2048  # for a prompt that is made while a dialogue goes on


def needs(resolved: DialogueFramework, jobs: Iterable[Plan | Dialogue], score: bool) -> dict[str, int]:
    """Model → tokens of its longest request and reply together.

    A party of a dialogue reads its system prompt and everything that both say, at `max_tokens` a reply; the judge reads its
    prompt and the dialogue, a given one as long as it is. Prompts are counted by the model's own tokenizer where it is on this
    machine. What one model wrote is counted as long for another: an estimate where their tokenizers differ much.
    """
    longest: dict[str, int] = defaultdict(int)
    supporters = {spec.name: spec for spec in resolved.models.supporters} if resolved.models.tested else {}
    seekers = resolved.models.seekers if supporters else []
    count = {spec.name: counter(spec) for spec in (*seekers, *supporters.values(), *([resolved.models.judge] if score else []))}
    systems: dict[tuple[str, str], str] = {}  # (model, supporter) → its longest system prompt
    transcripts: list[int] = []
    for job in jobs:
        if isinstance(job, Dialogue):
            if score:
                transcripts.append(count[resolved.models.judge.name](transcript(job)))
            continue
        sides = [*((spec.name, job.seeker_side) for spec in seekers), (job.opening.supporter, job.supporter_side)]
        for name, side in sides:
            key, text = (name, job.opening.supporter), getattr(side, "system", None) or ""
            systems[key] = max(systems.get(key, ""), text, key=len)
    for (name, supporter), system in systems.items():
        parties = [resolved.models.seeker, *([supporters[supporter]] if supporter in supporters else [])]
        said = resolved.config.exchanges * sum(spec.sampling.max_tokens + MARKS for spec in parties)
        prompt = count[name](system) if system or name in supporters else UNSEEN
        longest[name] = max(longest[name], prompt + MARKS + said)
        transcripts.append(said)
    if score and transcripts:
        judge = resolved.models.judge
        prompt = _judge_prompt(resolved, count[judge.name])
        shown = max(transcripts) * (2 if method_of(resolved.method).together else 1)
        longest[judge.name] = max(longest[judge.name], prompt + shown + judge.sampling.max_tokens)
    return {name: tokens for name, tokens in longest.items() if name}


def _judge_prompt(resolved: DialogueFramework, count: Callable[[str], int]) -> int:
    """Tokens of the longest question to the judge, without the dialogue."""
    if resolved.method in ("json", "criteria"):  # shows what depends on the dialogue
        return count(resolved.rubric.model_dump_json()) // len(resolved.rubric.languages) + UNSEEN
    if published(resolved.method) and (tree := resolved.rubric.questions):
        return max(count("".join((*one.text.values(), *one.examples.values()))) for one in tree.values()) + UNSEEN
    if resolved.method in ALONE:  # so do these, whose packs hold whole dialogues as examples
        files = resolved.judge_prompts.folder.glob("*/*judge*")
        return max((count(read_text(path, "prompt")) for path in files), default=0) + UNSEEN
    dimensions = list(resolved.rubric.dimensions)
    asked = [[name] for name in dimensions] if resolved.method in ("per_dimension", "paper", "tree") else [dimensions]
    longest = 0
    for language in resolved.languages:
        shortest = Dialogue(id="-", language=language, source="-", turns=(Turn(role="seeker", text="-"),))
        for some in asked:
            question = judge_messages(resolved.judge_prompts, resolved.rubric, shortest, resolved.method, some)
            longest = max(longest, sum(count(message["content"]) + MARKS for message in question))
    return longest


def counter(spec: ModelSpec) -> Callable[[str], int]:
    """Counts a text's tokens, by the model's own tokenizer where it is on this machine and can be read."""
    return _counter(spec.checkpoint or "")


@cache
def _counter(place: str) -> Callable[[str], int]:
    from serve.checkpoints.places import tokenizer_folder

    folder = tokenizer_folder(place)
    if folder and (folder / "tokenizer.json").is_file() and importlib.util.find_spec("tokenizers"):
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
    return lambda text: -(-len(text.encode()) // BYTES_A_TOKEN)
