"""HealthBench's published files (Arora et al. 2025): its cases as they are, and the prompts of a clone of its script.

A case: {prompt_id, prompt: [{role, content}], rubrics: [{criterion, points, tags}], example_tags}.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from core.errors import UserError
from core.files import read_json
from core.ledger import Build
from core.records import Identifier, Role, Turn
from core.rows import RowModel, read_table
from core.rubrics import Criterion
from data_prep.published import Checkout, escaped, pack_of, write_pack


class CaseMessage(RowModel):
    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Field(min_length=1)]


Prompt = Annotated[tuple[CaseMessage, ...], Field(min_length=1)]


def turns_of(prompt: Sequence[CaseMessage]) -> tuple[Turn, ...]:
    """The messages of user and assistant as turns."""
    roles: dict[str, Role] = {"user": "seeker", "assistant": "supporter"}
    return tuple(Turn(role=roles[message.role], text=message.content) for message in prompt if message.role in roles)


class Case(RowModel):
    """One published case."""

    model_config = ConfigDict(extra="allow", frozen=True)
    prompt_id: Identifier
    prompt: Prompt
    rubrics: tuple[Criterion, ...]
    example_tags: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _answerable(self) -> Self:
        if self.prompt[-1].role != "user" or any(message.role == "system" for message in self.prompt[1:]):
            raise ValueError("prompt: a user's message has to be last, and a system message can only be first")
        if not any(criterion.points > 0 for criterion in self.rubrics):
            raise ValueError("rubrics: no criterion has points above 0, so there is no score")
        return self

    @property
    def system(self) -> str:
        """Its own system message; "" for none."""
        return self.prompt[0].content if self.prompt[0].role == "system" else ""

    @property
    def fields(self) -> dict[str, str]:
        """Its tags by the part before their last colon, as `report --by` takes them."""
        parts = [tag.rpartition(":") for tag in self.example_tags]
        return {name or "tag": ", ".join(tag for other, _, tag in parts if other == name) for name, _, _ in parts}


def load_cases(paths: Sequence[Path]) -> dict[str, Case]:
    """The cases of published JSON lines by prompt id. Raises `UserError` with file, line and field of all faults of a file."""
    cases, places = dict[str, Case](), dict[str, str]()

    def add(where: str, case: Case) -> None:
        if (first := places.setdefault(case.prompt_id, where)) != where:
            raise UserError(f"{where}: prompt_id: {case.prompt_id} is also that of {first}")
        cases[case.prompt_id] = case

    for path in paths:
        read_table(path, Case, "cases", add)
    return cases


def some_of(cases: Mapping[str, Case], only: str) -> list[Case]:
    """The cases in a JSON file of prompt ids (a list, or under `prompt_ids`, as HealthBench-Psych publishes them), or those
    with the tag `only`, or with that field true. Raises `UserError` for none, and for an unknown id."""
    if not Path(only).is_file():
        kept = [case for case in cases.values() if only in case.example_tags or (case.model_extra or {}).get(only) is True]
        if not kept:
            raise UserError(f"only: {only} is no file, no case has this tag, and no line has this field with the value true")
        return kept
    ids = read_json(Path(only), "prompt ids")
    ids = ids.get("prompt_ids") if isinstance(ids, Mapping) else ids
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
        raise UserError(f"{only}: expected a JSON list of prompt ids, or an object with the field prompt_ids")
    if unknown := [id for id in ids if id not in cases]:
        raise UserError(f"{only}: {len(unknown)} of {len(ids)} prompt ids are in no file of `cases`, the first is {unknown[0]}")
    return [cases[id] for id in dict.fromkeys(ids)]


def import_healthbench(clone: Checkout, build: Build) -> None:
    """The prompts of a clone of simple-evals as a pack for paper mode: the grader's, and the system message that the script's
    sampler puts before every chat, of supporter and grader alike."""
    grader = escaped(clone.constant("healthbench_eval.py", "GRADER_TEMPLATE"))
    system = escaped(clone.constant("sampler/chat_completion_sampler.py", "OPENAI_SYSTEM_MESSAGE_API"))
    question = grader.replace("<<conversation>>", "{{ transcript }}").replace("<<rubric_item>>", "{{ item }}")
    files = {"judge_criteria.j2": question, "judge_system.j2": system, "supporter_system.j2": system}
    write_pack(build, pack_of({f"en/{name}": text for name, text in files.items()}))
