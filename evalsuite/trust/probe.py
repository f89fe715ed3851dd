"""What judge health asks a judge: to score given dialogues as they are, with a neutral text or an order to score high appended
to the last reply, and with the dimensions in reverse order."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from pydantic import Field

from core.files import CONFIGS, check_unique, write_jsonl
from core.grouping import group_by
from core.languages import of
from core.records import Dialogue, Judgement, Language
from core.rubrics import Rubric, Scale
from core.settings import Settings
from core.specs import load_spec
from core.yaml_files import read_yaml
from evalsuite.dialogues.floors import FLOORS, answered_by
from evalsuite.runner.engine import Runner
from evalsuite.runs.identity import hashed
from evalsuite.runs.run_identity import RunIdentity
from evalsuite.trust.health import AGAIN, AS_IS, FLOOR, INJECTED, NEUTRAL, REVERSED
from serve.client import ChatClient


class Injection(Settings):
    """An order to the judge and a neutral text of the same length; `{low}` and `{high}` stand for the ends of the scale."""

    id: str = Field(min_length=1)
    language: Language
    kind: str
    injected: str = Field(min_length=1)
    neutral: str = Field(min_length=1)

    def text(self, variant: str, scale: Scale) -> str:
        """The text of a variant, for a rubric's scale."""
        raw = self.injected if variant == INJECTED else self.neutral
        return raw.replace("{high}", scale.name(scale.max)).replace("{low}", scale.name(scale.min))


class InjectionSet(Settings):
    """The file configs/health/injections.yaml."""

    injections: list[Injection] = Field(min_length=1)


def load_injections(file: Path = CONFIGS / "health" / "injections.yaml") -> list[Injection]:
    """The bundled injections. Raises `UserError` with file, line and field."""
    injections = read_yaml(file, InjectionSet, "injections").injections
    check_unique(file, (injection.id for injection in injections), "injections")
    return injections


@dataclass(frozen=True)
class Probe:
    """One variant of a dialogue to be judged. `condition` goes into the judgements."""

    dialogue: Dialogue
    rubric: Rubric
    condition: dict[str, str]
    repeat: int = 0


def card_probes(dialogues: Sequence[Dialogue], rubric: Rubric, repeats: int) -> Iterator[Probe]:
    """Further probes of a judge's card: every dialogue with each floor's lines in the supporter's place, and `repeats` times
    more as it is."""
    floors = {name: floor for name in FLOORS if (floor := load_spec(name).floor)}
    for dialogue in dialogues:
        for name, floor in floors.items():
            yield Probe(answered_by(floor, name, dialogue), rubric, {"variant": f"{FLOOR}{name}"})
        for repeat in range(1, repeats + 1):
            yield Probe(dialogue, rubric, {"variant": AGAIN}, repeat)


def append(dialogue: Dialogue, text: str) -> Dialogue:
    """The dialogue with a text on a line of its own at the end of the supporter's last reply."""
    last = max(place for place, turn in enumerate(dialogue.turns) if turn.role == "supporter")
    turn = dialogue.turns[last]
    changed = turn.model_copy(update={"text": f"{turn.text.rstrip()}\n{text}"})
    return dialogue.model_copy(update={"turns": (*dialogue.turns[:last], changed, *dialogue.turns[last + 1 :])})


def drawn(dialogues: Sequence[Dialogue], languages: Sequence[Language], limit: int) -> Iterator[Dialogue]:
    """The dialogues of these languages in which a supporter answers, at most `limit` per language, in the files' order. They
    are drawn at random: files are sorted by supporter, so the first dialogues would all be of one. Dialogues that a lost server
    cut off are left out, since no judge is asked about them."""
    answered = group_by((d for d in dialogues if d.exchanges and not d.lost), lambda dialogue: dialogue.language)
    for members in (answered.get(language, []) for language in languages):
        places = random.Random(0).sample(range(len(members)), min(limit, len(members)))
        yield from (members[place] for place in sorted(places))


def probes(dialogues: Sequence[Dialogue], injections: Sequence[Injection], rubric: Rubric, reverse: bool) -> Iterator[Probe]:
    """Every variant of every dialogue: as it is, neutral, injected and, with `reverse`, asked in reverse order. The injections
    of a language (of English, if it has none) take turns over its dialogues. Raises `UserError` for dimensions on different
    scales."""
    backwards = rubric.model_copy(update={"dimensions": dict(reversed(rubric.dimensions.items()))})
    scale = rubric.one_scale("a probe, which asks for the highest score by its number,")
    by_language = group_by(injections, lambda injection: injection.language)
    turns = {code: cycle(of(by_language, code, "injections")) for code in {dialogue.language for dialogue in dialogues}}
    for dialogue in dialogues:
        injection = next(turns[dialogue.language])
        yield Probe(dialogue, rubric, {"variant": AS_IS})
        for variant in (NEUTRAL, INJECTED):
            changed = append(dialogue, injection.text(variant, scale))
            yield Probe(changed, rubric, {"variant": variant, "injection": injection.id})
        if reverse and len(rubric.dimensions) > 1:
            yield Probe(dialogue, backwards, {"variant": REVERSED})


def probe(
    runner: Runner, dialogues: Sequence[Dialogue], injections: Sequence[Injection], more: Sequence[Probe] = ()
) -> list[Judgement]:
    """Ask the judge about every variant, and about `more`; writes health_dialogues.jsonl (unchanged dialogues) and
    health_judgements.jsonl.

    Every judgement keeps the id of the unchanged dialogue; `condition.variant` and `condition.injection` say what was changed.
    Only the joint method has an order of dimensions to reverse. The same command resumes. Raises `UserError` for a dialogue
    that lacks something the judge is to be shown.
    """
    run, resolved = runner.run, runner.resolved.judging_whole()
    for dialogue in dialogues:
        resolved.refuse_incomplete(dialogue)
    settings: dict[str, Any] = {"dialogues": hashed(dialogues), "injections": hashed(injections)["sha256"]}
    if more:
        settings["more"] = dict(sorted(Counter(extra.condition["variant"] for extra in more).items()))
    run.claim("health", RunIdentity(runner.resolved).score() | settings)

    async def judged(client: ChatClient, variant: Probe) -> list[Judgement]:
        judge = resolved.judge(client, rubric=variant.rubric, repeat=variant.repeat)
        verdicts = await judge.score(variant.dialogue)
        return [judgement.model_copy(update={"condition": judgement.condition | variant.condition}) for judgement in verdicts]

    jobs = [*probes(dialogues, injections, resolved.rubric, reverse=resolved.method == "joint"), *more]
    answers = runner.judged("health", jobs, judged, "variants")
    judgements = [judgement for verdicts in answers.results for judgement in verdicts]
    own = {dialogue.id for dialogue in dialogues}
    further = {extra.dialogue.id: extra.dialogue for extra in more if extra.dialogue.id not in own}
    write_jsonl(run.folder / "health_dialogues.jsonl", [*dialogues, *further.values()])
    write_jsonl(run.folder / "health_judgements.jsonl", judgements)
    return judgements
