"""HealthBench (Arora et al. 2025): one answer to each published case, which a grader marks by the case's own criteria.

The published JSON lines are read as they are (`data_prep.published.healthbench`). No model plays a seeker: a dialogue is the
published messages and the supporter's answer. Figures are those of the script (`healthbench_eval.py`): means over cases, cut to
0–1, of all criteria, and by tags of cases and of criteria. HealthBench-Psych is a list of prompt ids (`only`).

Paper mode sends what the script sends by its own `ChatCompletionSampler`, with the prompts of a user's clone (`import`): a
system message for supporter and grader, and the supporter's in the transcript that the grader reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, Field

from core.errors import UserError
from core.files import digest, load_json
from core.judge_prompts import transcript
from core.paths import IN_NAME
from core.records import Dialogue, Judgement, Language, RoleCard
from core.rubrics import Criterion
from core.specs import ModelSpec, Sampling
from core.statistics.bootstrap import BELOW
from core.tables import Estimate, Table
from data_prep.published.healthbench import Case, load_cases, some_of, turns_of
from evalsuite.dialogues.hold import ModelSide, Opening, Plan
from evalsuite.judge.criteria import WHOLE, bearing, score_of
from evalsuite.judge.judge import Shown
from evalsuite.judge.methods import native_method
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.framework import ScoredRun
from evalsuite.runs.identity import hashed
from evalsuite.runs.models import RunModels
from evalsuite.statistics.clusters import card_of
from evalsuite.statistics.paired import over_cards
from evalsuite.statistics.summary import SCORES, supporter_of

SYSTEM = "supporter_system.j2"
PUBLISHED = "published messages"  # what stands for a seeker's name


class HealthBenchConfig(EvalConfig):
    """A run of HealthBench."""

    framework: Literal["healthbench"] = "healthbench"
    """HealthBench."""
    rubric: Annotated[str, IN_NAME] = "healthbench"
    """As of any run."""
    method: Annotated[str, AfterValidator(native_method)] = "criteria"
    """As of any run."""
    prompts: Annotated[str | None, IN_NAME] = "criteria"
    """The grader's prompts, by name (configs/prompts) or folder."""
    languages: Annotated[list[Language], Field(default_factory=lambda: ["en"], min_length=1)]
    """The grader's prompts are in this language; the cases do not say theirs."""
    cases: Annotated[list[str], IN_NAME, Field(default_factory=list)]
    """The published JSON lines."""
    only: Annotated[str | None, IN_NAME] = None
    """Some of the cases: a JSON file of prompt ids (a list, or under `prompt_ids`), a tag of cases, or a field that is true."""


class HealthBenchModels(RunModels):
    """Supporters and a judge: nobody plays the seeker."""

    seekers: ClassVar[list[ModelSpec]] = []
    simulator = PUBLISHED
    seeker = ModelSpec.model_construct(name="published", sampling=Sampling(max_tokens=4096))  # as long as a case, for plans

    def identity(self, spec: ModelSpec) -> dict[str, Any]:
        return {"name": PUBLISHED, "fingerprint": ""} if spec is self.seeker else super().identity(spec)


class HealthBench(DialogueFramework):
    """A run of HealthBench with everything that its config names."""

    name = "healthbench"
    title = "HealthBench"
    config_model = HealthBenchConfig
    config: HealthBenchConfig
    dialogue_parts: ClassVar = {"the supporter's system message": [SYSTEM]}
    judge_parts: ClassVar = {"the grader's prompts": ["judge_*.j2"]}
    importer = "esc-data import --source healthbench=CLONE"

    @cached_property
    def models(self) -> HealthBenchModels:
        return HealthBenchModels(self.config, self.held, self.given)

    @cached_property
    def cases(self) -> dict[str, Case]:
        """Every case of the files, by its id."""
        if not self.config.cases:
            raise UserError("cases: name HealthBench's published JSON lines (configs/eval/healthbench.yaml): --set cases=FILE")
        return load_cases([Path(name) for name in self.config.cases])

    def people(self) -> list[RoleCard]:
        """The cases that are answered, as cards; in the file's order, or at random for a run that may end early."""
        chosen = some_of(self.cases, self.config.only) if self.config.only else [*self.cases.values()]
        chosen = sorted(chosen, key=lambda case: digest(case.prompt_id)) if self.config.until else chosen
        made = {"language": self.config.languages[0], "source": self.name, "card_method": "written"}
        own = [{"id": case.prompt_id, "source_id": case.prompt_id, "problem": case.prompt[-1].content} for case in chosen]
        return [RoleCard.model_validate(made | card) for card in own[: self.config.limit]]

    def identity(self) -> dict[str, Any]:
        return super().identity() | self.judging_identity()

    def judging_identity(self) -> dict[str, Any]:
        return {"cases": hashed([*self.cases.values()])}

    @cached_property
    def shown(self) -> Shown:
        def profile(dialogue: Dialogue) -> str:
            self._criteria(dialogue)  # a dialogue without any is refused before anything is asked
            return ""

        shown = self._published if self.config.mode == "paper" else transcript
        return Shown(profile=profile, mode=self.config.mode, criteria=self._criteria, transcript=shown)

    def _criteria(self, dialogue: Dialogue) -> Sequence[Criterion]:
        if alone := dialogue.fields.get("criterion"):  # a row of the meta-evaluation, on which physicians judged one criterion
            return [_Alone(criterion=alone, points=1)]
        if (case := self.cases.get(dialogue.card_id or "")) is None:
            raise UserError(f"dialogue {dialogue.id}: its card_id {dialogue.card_id} is no prompt_id of the files in `cases`")
        return case.rubrics

    def _published(self, dialogue: Dialogue) -> str:
        """Odd in the script: the grader reads the system message that the supporter's sampler put before the case."""
        system = self._system(self.cases[dialogue.card_id or ""]) if dialogue.framework == self.name else ""
        names = {"seeker": "user", "supporter": "assistant"}
        return "\n\n".join(
            [f"system: {system}"] * bool(system) + [f"{names[turn.role]}: {turn.text}" for turn in dialogue.turns]
        )

    def _system(self, case: Case) -> str:
        paper = self.prompts.render(self.config.languages[0], SYSTEM) if self.config.mode == "paper" else ""
        return "\n\n".join(filter(None, [paper, case.system]))

    def plan(self, opening: Opening, person: RoleCard, supporter: ModelSpec) -> Plan:
        case, verbatim = self.cases[person.id], self.config.mode == "paper"
        nobody = ModelSide(self.models.seeker, "seeker", opening.id)
        answering = ModelSide(supporter, "supporter", opening.id, self._system(case) or None, verbatim=verbatim)
        opened = replace(opening, turns=turns_of(case.prompt), fields=case.fields)
        return Plan(opened, nobody, answering, exchanges=1, spoken=1)

    @classmethod
    def tables(cls, run: ScoredRun) -> Iterator[Table]:
        """The published figures: the score, by tags of cases, and by tags of criteria."""
        dialogues = {dialogue.id: dialogue for dialogue in run.tally.dialogues}
        judges = {one.judge for one in run.tally.verdicts}
        values: dict[str, dict[str, list[tuple[str, float]]]] = defaultdict(lambda: defaultdict(list))
        for one in run.tally.verdicts:
            if one.method == "criteria" and one.dimension == WHOLE and one.value is not None:
                dialogue = dialogues[one.dialogue_id]
                column = supporter_of(dialogue) + (f", {one.judge}" if len(judges) > 1 else "")
                for tag, value in metrics(one, dialogue).items():
                    values[tag][column].append((card_of(dialogue), value))
        columns = sorted({column for of_tag in values.values() for column in of_tag})
        rows = [(tag, *(_cut(of_tag[name]) if name in of_tag else None for name in columns)) for tag, of_tag in values.items()]
        notes = (
            "Means over cases, cut to 0–1, as the published script has them, [95 % smoothed Bayesian bootstrap over cases, cut "
            "likewise], n = cases. The leaderboard has the same mean on 0–100, and does not cut it.",
            "Tags of cases: the score of those cases. Tags of criteria (axis, level, cluster): the share of their own points.",
        )
        if rows:
            yield Table("healthbench", "HealthBench's score, by tag", ("tag", *columns), tuple(rows), notes, SCORES)

    @classmethod
    def facts(cls, run: ScoredRun) -> Iterator[tuple[str, str]]:
        yield "Cases", "HealthBench, OpenAI (MIT licence): physicians' criteria, of one answer to each case"
        if run.config.simulated and run.config.simulated.mode == "paper":
            told = "an unreadable answer of the grader is asked for once more, not for ever, and then the case has no score"
            yield "Otherwise than the script", f"{told}; a case's own system message and the script's are one"

    @classmethod
    def cautions(cls, run: ScoredRun) -> Iterator[str]:
        yield "HealthBench marks single answers by criteria: no evidence of a whole dialogue, or of what no criterion names."


class _Alone(Criterion):
    @property
    def item(self) -> str:
        return self.criterion


def metrics(judgement: Judgement, dialogue: Dialogue) -> dict[str, float]:
    """What the script makes of a graded answer: its score, the same by tags of the case, and the score by tags of criteria."""
    marks, whole = load_json(judgement.raw), float(judgement.value or 0)
    tags = [f"{name}:{tag}" for name, tags in dialogue.fields.items() for tag in tags.split(", ")]
    own = {tag: score_of(bearing(marks, tag)) for mark in marks for tag in mark["tags"]}
    return {"overall_score": whole} | dict.fromkeys(tags, whole) | {tag: one for tag, one in own.items() if one is not None}


def _cut(values: Sequence[tuple[str, float]]) -> Estimate:
    found = over_cards(100 * np.array([[value] for _, value in values]), [card for card, _ in values], BELOW)[0]
    mean, low, high = (None if end is None else min(max(end / 100, 0), 1) for end in (found.mean, found.low, found.high))
    return Estimate(mean, low, high, found.n)
