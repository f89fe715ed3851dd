"""MindEval (Pombal et al., arXiv 2511.18491): members, prompts, experts' scores and people's turns of a clone.

Each of the judge's dimensions covers two of the experts' questions, the last one covers one: that reproduces the published
judge's examples, which are means over the experts. The examples count an expert's 0 as a score; here it is missing: 81 of the
82 zeros answer criterion 4 or 9, most of them by two or three experts. `criterion11` is in no dimension.
"""

import ast
import json
import string
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from core.errors import UserError
from core.files import read_placed, validated
from core.grouping import exact_mean
from core.ledger import Build
from core.records import Dialogue, HumanScore, Identifier, RoleCard, System, Turn
from data_prep.published import Checkout, escaped, pack_of, write_pack

NAME = "mindeval"
QUESTIONS = {
    "clinical_accuracy": ("criterion_1", "criterion_2"),
    "ethical_conduct": ("criterion_3", "criterion_4"),
    "assessment_response": ("criterion_6", "criterion_7"),
    "therapeutic_alliance": ("criterion_8", "criterion_9"),
    "ai_communication": ("criterion_10",),
}
_PROMPTS, _JUDGE, _SCRIPT = "mindeval/prompts.py", "mindeval/judge_prompts.py", "mindeval/scripts/generate_interactions.py"
_PROFILES, _RATED, _TURNS = "data/profiles.jsonl", "data/human_annotations.jsonl", "data/human_user_turns.jsonl"
_VERSIONS = {  # dictionary in a script, from version to name of a template: (script, file name here)
    "INTERACTION_MEMBER_VERSION_DICT": (_PROMPTS, "seeker_{}.j2"),
    "INTERACTION_CLINICIAN_VERSION_DICT": (_PROMPTS, "supporter_{}.j2"),
    "JUDGE_PROMPT_TEMPLATE_VERSION_DICT": (_JUDGE, "_judge_{}.j2"),
}
_CUSTOM = "custom"  # a placeholder for the user's own clinician prompt
_ROLES = {"user": "seeker", "assistant": "supporter"}


class _PublishedRow(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class _Member(_PublishedRow):
    member_attributes: dict[str, Any]
    member_narrative: str


class _ByExperts(_PublishedRow):
    id: Identifier
    model: System
    member_attributes: dict[str, Any]
    messages: list[dict[Literal["role", "content"], str]]


class _Typed(_PublishedRow):
    patient_profile: dict[str, Any]
    content: str


def import_mindeval(clone: Checkout, build: Build) -> None:
    """Write cards.jsonl (members), prompts, dialogues.jsonl with the experts' scores.jsonl, and people_turns.jsonl."""
    build.input(*(clone.file(name) for name in (_PROMPTS, _JUDGE, _SCRIPT, _PROFILES, _RATED, _TURNS)))
    write_pack(build, pack_of({f"en/{name}": text for name, text in _templates(clone).items()}))
    members = read_placed(clone.file(_PROFILES), _Member, "members")
    rows = read_placed(clone.file(_RATED), _ByExperts, "experts' scores")
    rated = [(where, row, _dialogue(where, row)) for where, row in rows]
    records: dict[str, list[Any]] = {
        "cards.jsonl": [_card(row, place) for place, (_, row) in enumerate(members, start=1)],
        "dialogues.jsonl": [dialogue for _, _, dialogue in rated],
        "scores.jsonl": [score for where, row, dialogue in rated for score in _scores(where, row, dialogue)],
        "people_turns.jsonl": _people([row for _, row in read_placed(clone.file(_TURNS), _Typed, "people's turns")]),
    }
    for name, values in records.items():
        build.step(name, len(values))
        build.write(name, values)


# --- prompts ----------------------------------------------------------------------------------------------------------------


def _templates(clone: Checkout) -> dict[str, str]:
    """The prompts of every version, as templates of `details` and, for the judge, `transcript`."""
    files = {"judge_lines.j2": '{% include "_judge_" ~ version ~ ".j2" %}', "opening.txt": escaped(_opening(clone))}
    for dictionary, (script, file) in _VERSIONS.items():
        assignments = (node for node in clone.code(script).body if isinstance(node, ast.Assign))
        texts = {node.targets[0].id: node.value for node in assignments if isinstance(node.targets[0], ast.Name)}
        if not isinstance(versions := texts.get(dictionary), ast.Dict):
            raise UserError(f"{clone.file(script)}: no dictionary {dictionary}")
        for key, name in zip(versions.keys, versions.values, strict=True):
            match key, texts.get(getattr(name, "id", "")):
                case ast.Constant(value=str(version)), ast.Call(args=[ast.Constant(value=str(text), lineno=line)]):
                    if version != _CUSTOM:
                        files[file.format(version)] = _template(text, f"{clone.file(script)}:{line}")
                case _:
                    raise UserError(f"{clone.file(script)}:{name.lineno}: {dictionary}: no version with a Template of a text")
    return files


def _template(text: str, where: str) -> str:
    parts, end = [], 0
    for match in string.Template.pattern.finditer(text):
        field = match["named"] or match["braced"]
        if field is None and match["escaped"] is None:
            raise UserError(f"{where}: a $ that begins no field")
        shown = "transcript" if field == "conversation_str" else f"details[{json.dumps(field)}]"
        parts += [escaped(text[end : match.start()]), f"{{{{ {shown} }}}}" if field else "$"]
        end = match.end()
    return "".join([*parts, escaped(text[end:])])


def _opening(clone: Checkout) -> str:
    """The member's fixed first message: the only message of a user whose text is a constant."""
    for node in ast.walk(clone.code(_SCRIPT)):
        match node:
            case ast.Dict(values=[ast.Constant(value="user"), ast.Constant(value=str(text))]):
                return text
    raise UserError(f"{clone.file(_SCRIPT)}: no first message of the user")


# --- people -----------------------------------------------------------------------------------------------------------------


def _details(attributes: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in attributes.items() if isinstance(value, str | int | float)}


def _card(row: _Member, place: int) -> RoleCard:
    details = _details(row.member_attributes)
    columns = {"age": "age", "gender": "gender_identity", "occupation": "profession"}
    fields = {"id": f"{NAME}-{place}", "language": "en", "source": NAME, "source_id": str(place), "card_method": "llm"}
    fields |= {field: details.get(name, "") for field, name in columns.items()}
    return RoleCard.model_validate(fields | {"problem": row.member_narrative, "details": details})


def _dialogue(where: str, row: _ByExperts) -> Dialogue:
    turns = [{"role": _ROLES.get(message["role"], message["role"]), "text": message["content"]} for message in row.messages]
    identity = {"id": f"{NAME}-{row.id}", "source": NAME, "source_id": row.id, "supporter": row.model.rpartition("/")[2]}
    content = {"language": "en", "turns": turns, "fields": _details(row.member_attributes)}
    return validated(Dialogue, identity | content, f"{where}: messages")


def _scores(where: str, row: _ByExperts, dialogue: Dialogue) -> Iterator[HumanScore]:
    """The mean of each expert's answers to each dimension's questions, if any of them applies."""
    for dimension, questions in QUESTIONS.items():
        answers: dict[str, list[float]] = defaultdict(list)
        for question in questions:
            values, experts = (row.model_extra.get(f"{question}.{part}") for part in ("responses", "responses.users"))  # type: ignore[union-attr]
            if not (isinstance(values, list) and isinstance(experts, list) and len(values) == len(experts)):
                raise UserError(f"{where}: {question}.responses: expected a score for each name in {question}.responses.users")
            for expert, value in zip(experts, values, strict=True):
                if value not in range(7):
                    raise UserError(f"{where}: {question}.responses: {str(value)[:60]!r} is not a whole number from 0 to 6")
                answers[str(expert)] += [value] * (value > 0)
        for expert, given in sorted(answers.items()):
            if given:
                by = {"dialogue_id": dialogue.id, "language": dialogue.language, "annotator": f"expert-{expert[:8]}"}
                yield HumanScore.model_validate(by | {"rubric": NAME, "dimension": dimension, "value": exact_mean(given)})


def _people(rows: list[_Typed]) -> list[Dialogue]:
    """The turns that people wrote as members, by dialogue (the clinician's are not published); field `user` is the author."""
    by_chat: dict[str, list[_Typed]] = defaultdict(list)
    for row in rows:
        by_chat[str(row.patient_profile.get("chat_username"))].append(row)
    return [
        Dialogue(
            id=f"{NAME}-people-{place}",
            language="en",
            source=NAME,
            source_id=f"people-{place}",
            turns=tuple(Turn(role="seeker", text=row.content) for row in chat),
            fields={"user": str(chat[0].patient_profile.get("argilla_id"))},
        )
        for place, chat in enumerate(by_chat.values(), start=1)
    ]
