"""The identity of a run, with which its folder is claimed: dialogues, judgements and gold set."""

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
    """The identity of a run by stage, as JSON. Each method loads and checks everything that its stage uses."""

    framework: DialogueFramework

    def simulate(self) -> dict[str, Any]:
        """What the dialogues depend on."""
        framework, models = self.framework, self.framework.models
        earlier = framework.held.references if framework.held else None
        references = digest(sorted(framework.replies.items())) if framework.replies else earlier
        return {
            "framework": framework.config.framework,
            "mode": framework.config.mode,
            **framework.identity(),
            "languages": framework.languages,
            "exchanges": framework.config.exchanges,
            "trials": framework.trials,
            **({"replay": str(models.recording)} if models.recording else {}),
            "seeker": models.identity(models.seeker),
            "supporters": [models.identity(spec) for spec in models.supporters],
            **({"references": references} if references else {}),
            "prompts": self._prompts(framework.pack, framework.prompts, framework.dialogue_parts),
            **self._texts(framework.prompts, [*framework.prompts.of_dialogues(framework.config.mode == "paper")]),
        }

    def score(self) -> dict[str, Any]:
        """What the judgements depend on in addition to the dialogues."""
        framework = self.framework
        return {
            "mode": framework.config.mode,
            "judge": identity(framework.models.judge),
            "rubric": framework.rubric.model_dump(mode="json"),
            "method": framework.method,
            "prompts": self._prompts(framework.judge_pack, framework.judge_prompts, framework.judge_parts),
            **self._texts(framework.judge_prompts, templates_of(framework.method), framework.rubric),
            **framework.judging_identity(),
        }

    def gold(self) -> dict[str, Any]:
        """What the agreement depends on: the gold set, by its hash."""
        dialogues, scores = self.framework.gold
        gold = self.framework.config.gold or GoldConfig()
        records = hashed([*dialogues, *scores]) | {"count": len(dialogues)}
        return {"dialogues": gold.dialogues, "limit": gold.limit, **records}

    def _prompts(self, name: str, pack: PromptPack, parts: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        paper = self.framework.config.mode == "paper"
        ours = {"own_wording": pack.own_wording(self.framework.languages, parts)} if paper else {}
        return {"pack": name, "fingerprint": pack.fingerprint(), **ours}

    def _texts(self, pack: PromptPack, templates: Sequence[str], rubric: Rubric | None = None) -> dict[str, Any]:
        """For each language beyond those of the papers: the hash of its texts, and the texts that are English instead."""
        texts = []
        for language in (code for code in self.framework.languages if code not in PAPER_LANGUAGES):
            names = ["words.yaml", f"prompts/{pack.folder.name}", *([f"rubrics/{rubric.name}.yaml"] if rubric else [])]
            own = fingerprint(language, names)
            lacking = ["words"] if file_of(language, "words.yaml") is None else []
            lacking += ["rubric"] if rubric and not rubric.speaks(language) else []
            lacking += [template for template in templates if pack.file(language, template) is None]
            if lacking:
                tell(language, ", ".join(lacking))
            reviewed = words(language).reviewed if own else "no texts of its own"
            texts.append({"name": language, "sha256": own, "english": lacking, "reviewed": reviewed})
        return {"texts": texts} if texts else {}

    def own_wording(self, simulate: bool, score: bool) -> list[str]:
        """The parts of the published prompts that have our wording, of these stages of a run in paper mode."""
        framework, languages = self.framework, self.framework.languages
        if framework.config.mode != "paper":
            return []
        ours = framework.prompts.own_wording(languages, framework.dialogue_parts) if simulate else []
        return ours + (framework.judge_prompts.own_wording(languages, framework.judge_parts) if score else [])
