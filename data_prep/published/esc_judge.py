"""ESC-Judge (Madani and Srihari, EMNLP 2025): roles, criteria and prompts of a clone of the published repository."""

import math
import re

from pydantic import BaseModel, ConfigDict, RootModel

from core.files import read_object, read_placed, validated
from core.ledger import Build
from core.records import RoleCard
from data_prep.published import Checkout, escaped, pack_of, template_of_format, write_pack, write_rubric

NAME = "esc_judge"
_CHAT, _JUDGE, _CRITERIA = "langchain_persona_based_chat.py", "data/ESEval-multidim-cot.txt", "data/exploration_rubric3.jsonl"
_FIELDS = "{% set conversation_a, conversation_b, criteria, criteria_description = transcript_a, transcript_b, dimension.label, dimension.about %}\n"  # noqa: E501


_Stages = RootModel[dict[str, dict[str, str]]]  # stage → criterion → what is judged


class _Role(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)
    role: str
    pid: str
    challenge: str = ""


def import_esc_judge(clone: Checkout, build: Build) -> None:
    """Write cards_*.jsonl (a file of roles each), rubric.yaml (the criteria) and prompts."""
    roles = [clone.file("data/roles-v1.json"), clone.file("data/roles-v2.json"), clone.file("data/generated_personas.json")]
    supporters = sorted((clone.folder / "data").glob("emotional_supporter_*.txt"))
    build.input(*roles, *supporters, *(clone.file(name) for name in (_CHAT, _JUDGE, _CRITERIA)))
    templates = {
        "seeker_system.j2": template_of_format(clone.constant(_CHAT, "SEEKER_PROMPT_TEMPLATE")),
        "greeting.txt": escaped(clone.constant(_CHAT, "last_question")),
        "judge_pairs.j2": _FIELDS + template_of_format(clone.text(_JUDGE)),
    }
    for path in supporters:
        templates[path.name.replace("emotional_supporter_", "supporter_")] = escaped(clone.text(f"data/{path.name}").strip())
    write_pack(build, pack_of({f"en/{name}": text for name, text in templates.items()}))
    for path in roles:
        cards = [
            RoleCard(
                **{"id": f"{NAME}-{role.pid}", "language": "en", "source": NAME, "source_id": role.pid},
                **{"card_method": "llm", "problem": role.challenge or role.role, "text": role.role},
            )
            for _, role in read_placed(path, _Role, "roles")
        ]
        build.step(path.stem, len(cards))
        build.write(f"cards_{path.stem.replace('-', '_')}.jsonl", cards)
    # The criteria are dimensions on which a dialogue wins, ties or loses; the three stages have equal weight.
    path = clone.file(_CRITERIA)
    stages = validated(_Stages, read_object(path, "criteria"), path).root
    most = math.lcm(*(len(criteria) for criteria in stages.values()))
    dimensions = {
        re.sub(r"\W+", "_", label).strip("_").lower(): {
            **{"label": label, "facet": stage, "about": about, "weight": most // len(criteria)}
        }
        for stage, criteria in stages.items()
        for label, about in criteria.items()
    }
    levels = {"levels": {"lost": 0, "tied": 0.5, "won": 1}}
    rubric = {"name": NAME, "source": "ESC-Judge, criteria", "scale": levels, "dimensions": dimensions}
    write_rubric(build, rubric, path)
