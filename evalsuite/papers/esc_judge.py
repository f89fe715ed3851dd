"""ESC-Judge (Madani and Srihari, EMNLP 2025): two supporters each talk with the same role, and a judge says on every criterion
of Hill's three stages (exploration, insight, action) which of the two did better.

Protocol: the supporter's fixed greeting opens the dialogue and both sides see it; seven exchanges follow. Roles, criteria and
prompts come from the user's clone (`import`). A dialogue is compared with that of every other supporter on its role (method
`pairs`): the board shows the share won, and the tables show the published choices, in which first the criteria of a stage vote,
and then the stages.

Paper mode follows the published scripts: one order, verbatim replies at temperature 0.8, verdicts read as in their analysis.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from core.errors import UserError
from core.grouping import group_by
from core.paths import IN_NAME
from core.records import Dialogue, Judgement, Language, RoleCard, Turn, Verdict
from core.rubrics import Rubric
from core.settings import Settings
from core.specs import ModelSpec, Sampling
from core.tables import Table
from evalsuite.dialogues.hold import ModelSide, Opening, Plan
from evalsuite.judge.judge import Shown
from evalsuite.judge.published_packs import POINTS
from evalsuite.papers.win_rates import Choice, Mode, Words, win_rate_tables
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.framework import ScoredRun
from evalsuite.runs.models import Role, RunModels, drawn_as
from evalsuite.statistics.summary import SCORES, supporter_of

OVERALL = "overall"
_TEMPERATURES = {"seeker": 0.8, "supporter": 0.8, "judge": 1.0}  # of the published scripts
_VERDICT: dict[float, Verdict] = {points: verdict for verdict, points in POINTS.items()}  # type: ignore[misc]


class EscJudgeSection(Settings):
    """ESC-Judge's own settings."""

    supporter: str = "nodir"
    """The published prompt that supporters get (supporter_NAME.txt of the pack). `nodir` tells them to help, `hill` also how,
    stage by stage."""


class EscJudgeConfig(EvalConfig):
    """A run of ESC-Judge."""

    framework: Literal["esc_judge"] = "esc_judge"
    """ESC-Judge."""
    rubric: Annotated[str, IN_NAME]
    """The criteria: rubric.yaml of the import, or a rubric of your own whose scale has the levels lost, tied and won."""
    method: str = "pairs"
    """How the judge is asked; the published method is `pairs`."""
    cards: Annotated[list[str], IN_NAME, Field(min_length=1)]
    """The roles to play: a card file of the import."""
    languages: Annotated[list[Language], Field(min_length=1, default_factory=lambda: ["en"])]
    """Languages to play and judge."""
    exchanges: Annotated[int, Field(gt=0, le=10**6)] = 7
    """Exchanges per dialogue, each begun by the seeker."""
    esc_judge: EscJudgeSection = EscJudgeSection()
    """The prompt that supporters get."""


class EscJudgeModels(RunModels):
    """The models of a run of ESC-Judge: in paper mode all are sampled at the published temperatures."""

    def sampled(self, spec: ModelSpec, role: Role) -> ModelSpec:
        if self.config.mode != "paper":
            return spec
        return drawn_as(spec, Sampling(temperature=_TEMPERATURES[role], top_p=None, max_tokens=4096))


class EscJudge(DialogueFramework):
    """A run of ESC-Judge, with everything that its config names."""

    name = "esc_judge"
    title = "ESC-Judge"
    config_model = EscJudgeConfig
    models_class = EscJudgeModels
    config: EscJudgeConfig
    templates = ("seeker_system.j2", "greeting.txt")
    dialogue_parts: ClassVar = {
        "the greeting": ["greeting.txt"],
        "the seeker's prompt": ["seeker_system.j2"],
        "the supporter's prompt": ["supporter_*.txt"],
    }
    judge_parts: ClassVar = {"the judge's prompt": ["judge_pairs.j2"]}
    importer = "python -m data_prep import"

    def people(self) -> list[RoleCard]:
        if len(self.models.supporters) < 2:
            raise UserError("ESC-Judge compares supporters in pairs: give two or more --supporter, or `floors: true`")
        return self.load_people(RoleCard, self.config.cards, self.config.limit)

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "supporters_told": self.config.esc_judge.supporter}

    def plan(self, opening: Opening, person: RoleCard, supporter: ModelSpec) -> Plan:
        language, paper = person.language, self.config.mode == "paper"
        greeted = Turn(role="supporter", text=self.prompts.render(language, "greeting.txt"))
        seeker = self.prompts.text(language, "seeker_system.j2", description=person.text or person.problem)
        system = self.prompts.render(language, f"supporter_{self.config.esc_judge.supporter}.txt")
        return Plan(
            replace(opening, turns=(greeted,)),
            seeker_side=ModelSide(self.models.seeker, "seeker", opening.id, seeker, verbatim=paper),
            supporter_side=ModelSide(supporter, "supporter", opening.id, system, verbatim=paper),
            exchanges=self.config.exchanges,
        )

    @property
    def shown(self) -> Shown:
        return Shown(mode=self.config.mode, transcript=written)

    # --- its report -------------------------------------------------------------------------------------------------------

    @classmethod
    def tables(cls, run: ScoredRun) -> Iterator[Table]:
        """Which supporter is preferred at each stage and overall, with our pairwise statistics."""
        simulated = run.config.simulated
        mode: Mode = "paper" if simulated and simulated.mode == "paper" else "native"
        shown_first = [j for j in run.tally.judgements if j.method == "pairs" and j.condition.get("shown") == "first"]
        choices = list(choices_of(shown_first, run.tally.dialogues, run.tally.rubric))
        yield from win_rate_tables(choices, mode, Words(cls.name, "supporter", "roles", SCORES), {OVERALL: "Over all stages"})

    @classmethod
    def facts(cls, run: ScoredRun) -> Iterator[tuple[str, str]]:
        if run.config.simulated is not None and run.config.simulated.mode == "paper":
            yield (
                "Differences from the scripts",
                "the supporter named first is shown first (in the scripts, the file system decides); an empty reply ends a "
                "dialogue; chat template markers are broken up; braces in a turn are kept (the scripts take them for fields)",
            )


def written(dialogue: Dialogue) -> str:
    """The dialogue as the published judge reads it."""
    return "".join(f"{turn.role}: {turn.text}\n" for turn in dialogue.turns)


def choices_of(judgements: Sequence[Judgement], dialogues: Sequence[Dialogue], rubric: Rubric) -> Iterator[Choice]:
    """The published choices: for each pair of dialogues in one order, the winner of every stage and the winner by stages.
    `judgements` are those of the dialogues that were shown first."""
    by_id = {dialogue.id: dialogue for dialogue in dialogues}
    pairs = group_by(judgements, lambda j: (j.judge, j.dialogue_id, j.condition["against"], j.repeat))
    for (judge, id, against, _), answers in pairs.items():
        by_stage: dict[str, list[Verdict | None]] = defaultdict(list)
        for answer in answers:
            verdict = None if answer.value is None else _VERDICT[answer.value]
            by_stage[rubric.facet(answer.dimension, "en") or "all"].append(verdict)
        stages = {stage: majority(verdicts) for stage, verdicts in by_stage.items()}
        dialogue, lost = by_id[id], any(answer.lost for answer in answers)
        item, supporter, trial = str(dialogue.card_id or dialogue.source_id), supporter_of(dialogue), f"trial {dialogue.trial}"
        for stage, verdict in {**stages, OVERALL: majority(stages.values())}.items():
            choice = Choice(dialogue.language, item, supporter, against, verdict, annotator=judge, question=stage)
            yield replace(choice, outputs=(trial, trial), first=supporter, lost=lost).sorted()


def majority(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """The side with most verdicts, a tie if neither has more; None if no verdict could be read."""
    counts = Counter(verdicts)
    if counts["a"] == counts["b"]:
        return "tie" if counts["tie"] or counts["a"] else None
    return "a" if counts["a"] > counts["b"] else "b"
