"""What a judge is asked: the messages that scoring sends and that a ranker is trained on, from one place.

Methods: `joint` (native: one request answers all dimensions, one digit each), `per_dimension` (native: one digit; the dialogue
comes first, so a server reads it once), `paper` (one dimension, rubric first, as ESC-Eval publishes it, figures 12-19).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from data_prep.prompts import PromptPack
from data_prep.records import Dialogue, Language
from data_prep.rubrics import Rubric
from serve.client import Message

Method = Literal["joint", "per_dimension", "paper"]
_NAMES = {"en": {"seeker": "Seeker", "supporter": "Supporter"}, "zh": {"seeker": "求助者", "supporter": "支持者"}}
_TEMPLATES: dict[Method, str] = {
    "joint": "judge_joint.j2",
    "per_dimension": "judge_dimension.j2",
    "paper": "judge_paper.j2",
}


def check_pack(prompts: PromptPack, method: Method, languages: Iterable[Language]) -> None:
    """Raise `UserError` for a pack that has no judge's prompts for the method (packs may hold the seeker's alone)."""
    prompts.require(languages, [_system(method), _TEMPLATES[method]])


def _system(method: Method) -> str:
    return "judge_paper_system.j2" if method == "paper" else "judge_system.j2"


def transcript(dialogue: Dialogue) -> str:
    """The dialogue as native judges read it: one numbered block a turn; lines inside a turn are indented, so that no text can
    pose as another turn. Whatever breaks a line somewhere (carriage returns, U+2028 and the like) counts as a line break."""
    names = _NAMES[dialogue.language]
    blocks = []
    for number, turn in enumerate(dialogue.turns, start=1):
        blocks.append(f"[{number}] {names[turn.role]}: " + "\n    ".join(turn.text.strip().splitlines()))
    return "\n".join(blocks)


def paper_transcript(dialogue: Dialogue) -> str:
    """The dialogue as the published scorer builds it (ESC-Eval's repository, scoring script), odd parts included.

    Odd: "AI assistant" is replaced wherever it occurs, also inside what was said; the seeker's marker loses its colon and the
    supporter's keeps it; both get Chinese names in English dialogues too.
    """
    lines = [f"{'ESC-Role' if turn.role == 'seeker' else 'AI assistant'}：{turn.text}" for turn in dialogue.turns]
    return "\n\n".join(lines).replace("AI assistant", "**AI助手**").replace("ESC-Role：", "**用户**")


def judge_messages(
    prompts: PromptPack, rubric: Rubric, dialogue: Dialogue, method: Method, dimensions: Sequence[str]
) -> list[Message]:
    """System and user message that ask for the scores of `dimensions` (exactly one unless the method is joint)."""
    language = dialogue.language
    rules = [_rules(rubric, key, language) for key in dimensions]
    values = {"dimensions": rules} if method == "joint" else {"dimension": rules[0]}
    text = paper_transcript(dialogue) if method == "paper" else transcript(dialogue)
    scale = rubric.scale
    prompt = prompts.render(language, _TEMPLATES[method], transcript=text, low=scale.min, high=scale.max, **values)
    return [{"role": "system", "content": prompts.render(language, _system(method))}, {"role": "user", "content": prompt}]


def _rules(rubric: Rubric, key: str, language: Language) -> dict[str, object]:
    dimension = rubric.dimensions[key]
    return {
        "key": key,
        "label": dimension.label[language],
        "about": dimension.about[language],
        "levels": sorted(dimension.levels[language].items()),
    }
