"""HealthBench (Arora et al. 2025): one answer to each published case, which a grader marks by the case's own criteria.

The published JSON lines are read as they are (`data_prep.published.healthbench`). No model plays a seeker: a dialogue is the
published messages and the supporter's answer. Figures are those of the script (`healthbench_eval.py`): means over cases,
clipped to 0–1, over all criteria, and by tags of cases and of criteria. HealthBench-Psych is a list of prompt ids (`only`).

Paper mode sends what the script's `ChatCompletionSampler` sends, with the prompts of a user's clone (`import`): a system
message for supporter and grader, and the supporter's also in the transcript that the grader reads.
"""

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
from evalsuite.judge.judge import Shown
from evalsuite.judge.methods import native_method
from evalsuite.judge.published_packs import WHOLE, bearing, score_of
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.framework import ScoredRun
from evalsuite.runs.models import RunModels
from evalsuite.runs.run_config import hashed
from evalsuite.statistics.contestants import card_of
from evalsuite.statistics.paired import over_cards
from evalsuite.statistics.summary import SCORES, supporter_of

SYSTEM = "supporter_system.j2"
PUBLISHED = "published messages"  # in place of a seeker's name


class HealthBenchConfig(EvalConfig):
    """A run of HealthBench."""

    framework: Literal["healthbench"] = "healthbench"
    """HealthBench."""
    rubric: Annotated[str, IN_NAME] = "healthbench"
    """The rubric for scoring: a name in configs/rubrics, or a file."""
    method: Annotated[str, AfterValidator(native_method)] = "criteria"
    """How the judge is asked; the published method is `criteria`."""
    prompts: Annotated[str | None, IN_NAME] = "criteria"
    """The grader's prompts: a name in configs/prompts, or a folder."""
    languages: Annotated[list[Language], Field(default_factory=lambda: ["en"], min_length=1)]
    """The language of the grader's prompts; the cases do not say theirs."""
    cases: Annotated[list[str], IN_NAME, Field(default_factory=list)]
    """The published JSON lines."""
    only: Annotated[str | None, IN_NAME] = None
    """Some of the cases: a JSON file of prompt ids (a list, or under `prompt_ids`), a tag of cases, or a field that is true."""


class HealthBenchModels(RunModels):
    """The supporters and the judge of a run: no model plays the seeker."""

    seekers: ClassVar[list[ModelSpec]] = []
    simulator = PUBLISHED
    seeker = ModelSpec.model_construct(name="published", sampling=Sampling(max_tokens=4096))  # a case's length, for plans

    def identity(self, spec: ModelSpec) -> dict[str, Any]:
        return {"name": PUBLISHED, "fingerprint": ""} if spec is self.seeker else super().identity(spec)


class HealthBench(DialogueFramework):
    """A run of HealthBench, with everything that its config names."""

    name = "healthbench"
    title = "HealthBench"
    config_model = HealthBenchConfig
    models_class = HealthBenchModels
    config: HealthBenchConfig
    dialogue_parts: ClassVar = {"the supporter's system message": [SYSTEM]}
    judge_parts: ClassVar = {"the grader's prompts": ["judge_*.j2"]}
    importer = "esc-data import --source healthbench=CLONE"

    @cached_property
    def cases(self) -> dict[str, Case]:
        """All cases of the files, by id."""
        if not self.config.cases:
            raise UserError("cases: name HealthBench's published JSON lines (configs/eval/healthbench.yaml): --set cases=FILE")
        return load_cases([Path(name) for name in self.config.cases])

    def people(self) -> list[RoleCard]:
        """The cases to answer, as cards; in the file's order, or at random for a run that may end early."""
        chosen = some_of(self.cases, self.config.only) if self.config.only else [*self.cases.values()]
        chosen = sorted(chosen, key=lambda case: digest(case.prompt_id)) if self.config.until else chosen
        shared = {"language": self.config.languages[0], "source": self.name, "card_method": "written"}
        cards = [{"id": case.prompt_id, "source_id": case.prompt_id, "problem": case.prompt[-1].content} for case in chosen]
        return [RoleCard.model_validate(shared | card) for card in cards[: self.config.limit]]

    def identity(self) -> dict[str, Any]:
        return super().identity() | self.judging_identity()

    def judging_identity(self) -> dict[str, Any]:
        return {"cases": hashed([*self.cases.values()])}

    @cached_property
    def shown(self) -> Shown:
        def profile(dialogue: Dialogue) -> str:
            self._criteria(dialogue)  # a dialogue without criteria is refused before any call
            return ""

        written = self._published if self.config.mode == "paper" else transcript
        return Shown(profile=profile, mode=self.config.mode, criteria=self._criteria, transcript=written)

    def _criteria(self, dialogue: Dialogue) -> Sequence[Criterion]:
        if criterion := dialogue.fields.get("criterion"):  # meta-evaluation: physicians judged a single criterion
            return [_Alone(criterion=criterion, points=1)]
        if (case := self.cases.get(dialogue.card_id or "")) is None:
            raise UserError(f"dialogue {dialogue.id}: its card_id {dialogue.card_id} is no prompt_id of the files in `cases`")
        return case.rubrics

    def _published(self, dialogue: Dialogue) -> str:
        """Odd in the script: the grader also reads the system message that the supporter's sampler put before the case."""
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
        silent = ModelSide(self.models.seeker, "seeker", opening.id)
        answering = ModelSide(supporter, "supporter", opening.id, self._system(case) or None, verbatim=verbatim)
        opened = replace(opening, turns=turns_of(case.prompt), fields=case.fields)
        return Plan(opened, silent, answering, exchanges=1, spoken=1)

    @classmethod
    def tables(cls, run: ScoredRun) -> Iterator[Table]:
        """The published figures: the score, by tags of cases, and by tags of criteria."""
        dialogues = {dialogue.id: dialogue for dialogue in run.tally.dialogues}
        judges = {verdict.judge for verdict in run.tally.verdicts}
        values: dict[str, dict[str, list[tuple[str, float]]]] = defaultdict(lambda: defaultdict(list))
        for verdict in run.tally.verdicts:
            if verdict.method == "criteria" and verdict.dimension == WHOLE and verdict.value is not None:
                dialogue = dialogues[verdict.dialogue_id]
                column = supporter_of(dialogue) + (f", {verdict.judge}" if len(judges) > 1 else "")
                for tag, value in metrics(verdict, dialogue).items():
                    values[tag][column].append((card_of(dialogue), value))
        columns = sorted({column for by_column in values.values() for column in by_column})
        rows = [(tag, *(_clipped(cases[name]) if name in cases else None for name in columns)) for tag, cases in values.items()]
        notes = (
            "Means over cases, clipped to 0–1 as in the published script, [95 % smoothed Bayesian bootstrap over cases, "
            "clipped likewise], n = cases. The leaderboard shows the same mean on 0–100, not clipped.",
            "Tags of cases: the score of those cases. Tags of criteria (axis, level, cluster): the share of their own points.",
        )
        if rows:
            yield Table("healthbench", "HealthBench's score, by tag", ("tag", *columns), tuple(rows), notes, SCORES)

    @classmethod
    def facts(cls, run: ScoredRun) -> Iterator[tuple[str, str]]:
        yield "Cases", "HealthBench, OpenAI (MIT licence): one answer to each case, marked by physicians' criteria"
        if run.config.simulated and run.config.simulated.mode == "paper":
            yield (
                "Differences from the script",
                "a grader whose answer cannot be read is asked once more, not endlessly, and then the case has no score; a "
                "case's own system message and the script's are sent as one",
            )

    @classmethod
    def cautions(cls, run: ScoredRun) -> Iterator[str]:
        yield "HealthBench marks single answers by criteria: it says nothing about whole dialogues, or what no criterion names."


class _Alone(Criterion):
    @property
    def item(self) -> str:
        return self.criterion


def metrics(judgement: Judgement, dialogue: Dialogue) -> dict[str, float]:
    """The script's metrics of a graded answer: its score, that score under each tag of the case, and the score by tags of
    criteria."""
    marks, whole = load_json(judgement.raw), float(judgement.value or 0)
    tags = [f"{name}:{tag}" for name, tags in dialogue.fields.items() for tag in tags.split(", ")]
    by_tag = {tag: score_of(bearing(marks, tag)) for mark in marks for tag in mark["tags"]}
    scored = {tag: score for tag, score in by_tag.items() if score is not None}
    return {"overall_score": whole} | dict.fromkeys(tags, whole) | scored


def _clipped(cases: Sequence[tuple[str, float]]) -> Estimate:
    """The mean of (card, score) pairs, with its interval, clipped to 0–1."""
    estimate = over_cards(100 * np.array([[score] for _, score in cases]), [card for card, _ in cases], BELOW)[0]
    ends = estimate.mean, estimate.low, estimate.high
    mean, low, high = (None if end is None else min(max(end / 100, 0), 1) for end in ends)
    return Estimate(mean, low, high, estimate.n)
