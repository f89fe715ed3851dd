"""MindEval (Pombal et al., arXiv 2511.18491): one model as clinician talks with another as member (the patient), and a judge
rates the chat on five dimensions from 1 to 6.

Protocol: the member's fixed greeting opens the dialogue; the clinician knows a profile's intake data, the member all of the
profile and a narrative; ten exchanges, each begun by the clinician. Members and prompts come from the user's clone (`import`).

Paper mode follows the published scripts: an empty reply counts as dots (natively it ends the dialogue), and in the published
table a dimension without a number counts 3. Records keep no such score.
"""

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import mean
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from core.errors import UserError, near
from core.files import read_text
from core.grouping import group_by
from core.paths import IN_NAME
from core.records import Dialogue, Judgement, Language, RoleCard, Turn
from core.settings import Settings
from core.specs import ModelSpec, Sampling, prompt_text
from core.statistics.bootstrap import SMOOTHED, scale_levels
from core.tables import Cell, Table
from evalsuite.dialogues.hold import ModelSide, Opening, Plan
from evalsuite.judge.judge import Shown
from evalsuite.judge.published_packs import numbers_in
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.framework import ScoredRun
from evalsuite.runs.models import Role, RunModels, drawn_as
from evalsuite.runs.run_config import hashed
from evalsuite.statistics.contestants import card_of
from evalsuite.statistics.paired import one_sided_clusters, over_cards
from evalsuite.statistics.summary import SCORES, supporter_of

UNREAD = 3  # what a dimension without a number counts in the published table
_TAGS = {"seeker": "member", "supporter": "therapist"}


class MindEvalSection(Settings):
    """MindEval's own settings: versions of the published prompts, or your own prompt for the clinician."""

    member: str = "v0_2"
    """The member's prompt."""
    clinician: str = "v0_1"
    """The clinician's prompt."""
    clinician_prompt: str | None = None
    """Your own prompt for the clinician: text, or the path of a text file. `${name}`, `${age}` and the other fields of the
    published prompt are filled in, no others."""
    judge: str = "v0_1"
    """The judge's prompt."""


class MindEvalConfig(EvalConfig):
    """A run of MindEval."""

    framework: Literal["mindeval"] = "mindeval"
    """MindEval."""
    rubric: Annotated[str, IN_NAME] = "mindeval"
    """The rubric for scoring: a name in configs/rubrics, or a file."""
    method: str = "lines"
    """How the judge is asked; the published method is `lines`."""
    cards: Annotated[list[str], IN_NAME, Field(min_length=1)]
    """The members to play: cards.jsonl of the import."""
    languages: Annotated[list[Language], Field(min_length=1, default_factory=lambda: ["en"])]
    """Languages to play and judge."""
    exchanges: Annotated[int, Field(gt=0, le=10**6)] = 10
    """Exchanges per dialogue, each begun by the clinician."""
    mindeval: MindEvalSection = MindEvalSection()
    """MindEval's own settings."""


class MindEvalModels(RunModels):
    """In paper mode, member and judge are sampled as in the published commands, which send no temperature."""

    def sampled(self, spec: ModelSpec, role: Role) -> ModelSpec:
        if self.config.mode != "paper" or role == "supporter":
            return spec
        return drawn_as(spec, Sampling(temperature=None, top_p=None, max_tokens=16_000))


class MindEval(DialogueFramework):
    """A run of MindEval, with everything that its config names."""

    name = "mindeval"
    title = "MindEval"
    config_model = MindEvalConfig
    models_class = MindEvalModels
    config: MindEvalConfig
    templates = ("opening.txt",)
    dialogue_parts: ClassVar = {
        "the greeting": ["opening.txt"],
        "the member's prompt": ["seeker_*.j2"],
        "the clinician's prompt": ["supporter_*.j2"],
    }
    judge_parts: ClassVar = {"the judge's prompt": ["judge_lines.j2", "_judge_*.j2"]}
    importer = "python -m data_prep import"

    def people(self) -> list[RoleCard]:
        return self.load_people(RoleCard, self.config.cards, self.config.limit)

    @cached_property
    def members(self) -> dict[str, RoleCard]:
        """All members by id: given dialogues may be with any of them, whatever `limit` says."""
        return {card.id: card for card in self.load_people(RoleCard, self.config.cards, None, every=True)}

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "member": self.config.mindeval.member, "clinician": self.clinician}

    def judging_identity(self) -> dict[str, Any]:
        return {"version": self.config.mindeval.judge, "cards": hashed([*self.members.values()])}

    @cached_property
    def clinician(self) -> str:
        """The user's own prompt for the clinician, or the version of a published one."""
        if (own := self.config.mindeval.clinician_prompt) is None:
            return self.config.mindeval.clinician
        template = string.Template(text := prompt_text(own))
        published = self.prompts.file("en", f"supporter_{self.config.mindeval.clinician}.j2")
        fields = re.findall(r'details\["(\w+)"\]', read_text(published, "prompt")) if published else []
        for field in template.get_identifiers():
            if field not in fields:
                problem = f"${{{field}}}: no field of the published prompt: {near(field, fields)}"
                raise UserError(f"mindeval.clinician_prompt: {problem}")
        if not template.is_valid():
            raise UserError("mindeval.clinician_prompt: a $ that begins no field: write $$ for a dollar sign")
        return text

    def plan(self, opening: Opening, person: RoleCard, supporter: ModelSpec) -> Plan:
        details, language, section = _details(person), person.language, self.config.mindeval
        greeting = Turn(role="seeker", text=self.prompts.render(language, "opening.txt"))
        member = self.prompts.render(language, f"seeker_{section.member}.j2", details=details)
        if section.clinician_prompt is not None:
            clinician = string.Template(self.clinician).substitute(details)
        else:
            clinician = self.prompts.render(language, f"supporter_{self.clinician}.j2", details=details)
        dots = "..." if self.config.mode == "paper" else ""
        return Plan(
            replace(opening, turns=(greeting,)),
            seeker_side=ModelSide(self.models.seeker, "seeker", opening.id, member, stand_in=dots),
            supporter_side=ModelSide(supporter, "supporter", opening.id, clinician, stand_in=dots),
            exchanges=self.config.exchanges,
            first="supporter",
        )

    @property
    def shown(self) -> Shown:
        def more(dialogue: Dialogue) -> Mapping[str, object]:
            return {"version": self.config.mindeval.judge, "details": self._member_of(dialogue)}

        return Shown(mode=self.config.mode, transcript=tagged, more=more, profile=lambda d: str(self._member_of(d)))

    def _member_of(self, dialogue: Dialogue) -> Mapping[str, str]:
        """The member's details: from the dialogue's card, or from its own fields, as in the experts' dialogues."""
        card = self.members.get(dialogue.card_id or "")
        if card is None and "name" not in dialogue.fields:
            problem = f"its card ({dialogue.card_id}) is not in `cards:`, and its own `fields` have no name"
            raise UserError(f"dialogue {dialogue.id}: the judge needs to know who the member is: {problem}")
        return _details(card) if card else dialogue.fields

    @classmethod
    def tables(cls, run: ScoredRun) -> Iterator[Table]:
        key = "lines", next(iter(run.tally.rubric.dimensions))  # all dimensions are read from one answer
        answers = [judgement for judgement in run.tally.judgements if (judgement.method, judgement.dimension) == key]
        for judge, judgements in group_by(answers, lambda judgement: judgement.judge).items():
            yield published_table(judge, judgements, run)

    @classmethod
    def facts(cls, run: ScoredRun) -> Iterator[tuple[str, str]]:
        if run.config.simulated is not None and run.config.simulated.mode == "paper":
            yield (
                "Differences from the scripts",
                "a refusal or a full context ends a dialogue; an empty reply is retried before it counts as dots; chat "
                "template markers are broken up; no reasoning effort is sent; a number off the scale is not recorded",
            )


def _details(card: RoleCard) -> dict[str, str]:
    return card.details | {"member_narrative": card.problem}


def tagged(dialogue: Dialogue) -> str:
    """The dialogue as the published judge reads it."""
    return "\n".join(f"<{_TAGS[turn.role]}>\n{turn.text}\n</{_TAGS[turn.role]}>" for turn in dialogue.turns)


def published_table(judge: str, judgements: Sequence[Judgement], run: ScoredRun) -> Table:
    """Every supporter's mean on every dimension and overall, 1 to 6, and its cluster in the published significance test."""
    rubric, dialogues = run.tally.rubric, {dialogue.id: dialogue for dialogue in run.tally.dialogues}
    scores: dict[str, dict[tuple[str, int], list[float]]] = {}  # supporter → (member, trial) → by dimension
    for judgement in judgements:
        if "failure" not in judgement.condition:
            dialogue, numbers = dialogues[judgement.dialogue_id], numbers_in(judgement.raw, rubric, judgement.language)
            item = card_of(dialogue), dialogue.trial
            scores.setdefault(supporter_of(dialogue), {})[item] = [numbers.get(name, UNREAD) for name in rubric.dimensions]
    heads = [*(rubric.label(name) for name in rubric.dimensions), "Overall score"]
    rows: list[dict[str, Cell]] = []
    overall = {name: {item: mean(values) for item, values in by_item.items()} for name, by_item in scores.items()}
    for name, cluster in one_sided_clusters(overall).items():
        figures = over_cards(np.array([*scores[name].values()]), [card for card, _ in scores[name]], scale_levels(1, 6))
        rows.append({"supporter": name, **dict(zip(heads, figures, strict=True)), "cluster": cluster})
    notes = (
        f"Mean on 1–6 as in the published scripts: a dimension without a number in the answer counts {UNREAD} (on the board it "
        f"is left out). [{SMOOTHED} over members], n = dialogues.",
        "Cluster: as in the published significance test, by falling mean: a supporter that is worse than one in the cluster "
        "above (paired t, one-sided, 0.05, not corrected for the number of pairs, unlike the board) starts the next cluster.",
    )
    return Table.of(f"mindeval-{judge}", f"MindEval's scores, judged by {judge}", rows, notes, SCORES)
