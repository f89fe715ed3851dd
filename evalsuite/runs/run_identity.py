"""The identity of a run, with which it claims its folder: its dialogues, its judgements and its gold set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.files import digest
from core.judge_prompts import templates_of
from core.languages import PAPER_LANGUAGES, file_of, fingerprint, tell, words
from core.prompts import PromptPack
from core.rubrics import Rubric
from evalsuite.runs.config import GoldConfig
from evalsuite.runs.dialogue_framework import DialogueFramework
from evalsuite.runs.identity import hashed, identity


@dataclass(frozen=True)
class RunIdentity:
    """The identity of a run, stage by stage, as JSON. Computing it loads and checks everything that the stage uses."""

    of: DialogueFramework

    def simulate(self) -> dict[str, Any]:
        """What determines the dialogues."""
        of, models = self.of, self.of.models
        earlier = of.held.references if of.held else None
        references = digest(sorted(of.replies.items())) if of.replies else earlier
        return {
            "framework": of.config.framework,
            "mode": of.config.mode,
            **of.identity(),
            "languages": of.languages,
            "exchanges": of.config.exchanges,
            "trials": of.trials,
            **({"replay": str(models.recording)} if models.recording else {}),
            "seeker": models.identity(models.seeker),
            "supporters": [models.identity(spec) for spec in models.supporters],
            **({"references": references} if references else {}),
            "prompts": self._prompts(of.pack, of.prompts, of.dialogue_parts),
            **self._texts(of.prompts, [*of.prompts.of_dialogues(of.config.mode == "paper")]),
        }

    def score(self) -> dict[str, Any]:
        """What determines the judgements, in addition to the dialogues."""
        of = self.of
        return {
            "mode": of.config.mode,
            "judge": identity(of.models.judge),
            "rubric": of.rubric.model_dump(mode="json"),
            "method": of.method,
            "prompts": self._prompts(of.judge_pack, of.judge_prompts, of.judge_parts),
            **self._texts(of.judge_prompts, templates_of(of.method), of.rubric),
            **of.judging_identity(),
        }

    def gold(self) -> dict[str, Any]:
        """What determines the agreement: the gold set, by its hash."""
        dialogues, scores = self.of.gold
        gold = self.of.config.gold or GoldConfig()
        records = hashed([*dialogues, *scores]) | {"count": len(dialogues)}
        return {"dialogues": gold.dialogues, "limit": gold.limit, **records}

    def _prompts(self, name: str, pack: PromptPack, parts: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        ours = {"own_wording": pack.own_wording(self.of.languages, parts)} if self.of.config.mode == "paper" else {}
        return {"pack": name, "fingerprint": pack.fingerprint(), **ours}

    def _texts(self, pack: PromptPack, templates: Sequence[str], rubric: Rubric | None = None) -> dict[str, Any]:
        """For languages other than those of the papers: the hash of their own texts, and the texts for which English stands in.
        Empty for runs without such languages."""
        found = []
        for language in (code for code in self.of.languages if code not in PAPER_LANGUAGES):
            names = ["words.yaml", f"prompts/{pack.folder.name}", *([f"rubrics/{rubric.name}.yaml"] if rubric else [])]
            own = fingerprint(language, names)
            lacking = ["words"] if file_of(language, "words.yaml") is None else []
            lacking += ["rubric"] if rubric and not rubric.speaks(language) else []
            lacking += [template for template in templates if pack.file(language, template) is None]
            if lacking:
                tell(language, ", ".join(lacking))
            told = {"english": lacking, "reviewed": words(language).reviewed if own else "no texts of its own"}
            found.append({"name": language, "sha256": own} | told)
        return {"texts": found} if found else {}

    def own_wording(self, simulate: bool, score: bool) -> list[str]:
        """The published prompts that a run in paper mode has in our words, for these stages."""
        of = self.of
        if of.config.mode != "paper":
            return []
        ours = of.prompts.own_wording(of.languages, of.dialogue_parts) if simulate else []
        return ours + (of.judge_prompts.own_wording(of.languages, of.judge_parts) if score else [])
