"""Synthetic ESC: dialogues between friends that GPT-4 wrote to match ESConv's size, ten to a scenario, in CSV files.

A row holds a scenario (two agent profiles, then the scene as each agent sees it) and up to ten conversations as text. Which
of the two supports is told by the strategy tags alone, so a conversation without tags, or with tags on both sides, is
left out: that is all of `test_set_gpt.csv`. Tags stand in several places and brackets; all are removed. The grid of
`datasetEmotionAnnotation.csv` holds no conversations but one emotion of the seeker for each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import AliasChoices, Field

from core.ledger import Step
from core.records import SupportDialogue
from core.rows import Item, Raw, Row, Rows, Source
from data_prep.sources.support import support_dialogue

NO_TAGS = "no strategy tags: who supports is not stated"
BOTH_TAGGED = "strategy tags on both sides"
OTHERS = "a speaker or a label that is none of the two agents"
NO_SPEAKERS = "turns without a speaker"
_LABELS = "datasetEmotionAnnotation"
_CONVERSATION = re.compile(r"Conversation (\d+)")

_STRATEGY = (
    r"(?:questions?|restatements?(?: or paraphras\w+)?|paraphrasing|reflections?(?: of (?:the )?feelings?)?|self[- ]?disclosure"
    r"|affirmations?(?: and reassurances?)?|reassurance|providing (?:suggestions?|information)|suggestions?|information"
    r"|others?)"
)
_LIST = rf"(?:(?:support )?strateg(?:y|ies)(?: used)?: *)?{_STRATEGY}(?:\s*(?:[,&+/;.-]|and|,? *and)*\s*{_STRATEGY})*"
# A tag is a list of strategies in brackets or stars, or anything in brackets that holds an unmistakable one.
_CLEAR = (
    r"(?:(?:providing|proving|offering) suggestions|affirmation and reassurance|reflect\w* (?:of )?feelings|support strategy)"
)
_TAG = re.compile(
    rf"\**[\[({{]\s*\**\s*{_LIST}\s*\**\s*[\])}}]\**|\*+\s*{_LIST}\s*:?\*+|[\[({{][^\])}}]{{0,60}}{_CLEAR}[^\])}}]{{0,60}}[\])}}]",
    re.IGNORECASE,
)
# `[Name - Strategy]: text` and `Name (Strategy): text` become `Name: text` before the tags go.
_NAMED_TAG = re.compile(rf"^[\[(]\s*([A-Za-z .'’-]{{1,30}}?)\s*[-:,]\s*{_LIST}\s*[\])]\s*:?\s*", re.IGNORECASE)
# Strategies without brackets: `Strategy: text` and `Strategy - text` at the start of a turn, ` - Strategy` at its end.
_BARE_TAG = re.compile(rf"^{_LIST}\s*(?:[:–]|\s-)\s*|\s[-–]\s*{_LIST}\.?$|^{_LIST}$", re.IGNORECASE)
_HEAD = re.compile(r"^[\"“*\s(\[]*([^\W\d_][\w.'’ -]{0,30}?)\**\s*(?:\(([^)]*)\))?\s*[\])]?\s*\**\s*:\s*\**")
_LABEL = re.compile(r"^[A-Z][A-Za-z]+(?: [A-Z][A-Za-z]+)?:")
_BRACKETED = re.compile(r"^[(\[*{].*[)\]*}]\.?$")


@dataclass(frozen=True)
class _Agent:
    first: str
    last: str
    age: str
    gender: str
    occupation: str

    def names(self, number: int) -> set[str]:
        """How a conversation may call the agent, in lower case."""
        full = f"{self.first} {self.last}"
        initials = "".join(word[0] for word in full.split())
        calls = {full, self.first, self.first.split()[0], self.last, initials, initials[0]}
        calls |= {f"agent{number}", f"agent {number}", f"agent_{number}", ".".join(initials), ".".join(initials) + "."}
        return {call.lower() for call in calls}


class _Row(Raw):
    scenario: str = Field(validation_alias=AliasChoices("Scenario ID", "Scenar ID"))
    context: str = Field(validation_alias="Scenario context")


@dataclass
class _Spoken:
    """A conversation taken apart: (agent 0 or 1, text) a turn, and how many tags each agent's turns carry."""

    turns: list[tuple[int, str]]
    tags: Counter[int]


def _agents(context: str) -> list[_Agent]:
    """The agent profiles at the head of a scenario."""
    fields = ("first_name", "last_name", "age", "gender", "occupation")
    blocks = re.findall(r"AgentProfile\((.*?)\n\)", context, re.DOTALL)
    return [_Agent(*(_value(block, name) for name in fields)) for block in blocks]


def _value(block: str, name: str) -> str:
    found = re.search(rf"(?m)^\s*{name}=(?:(\d+)|(['\"])(.*?)\2),", block, re.DOTALL)
    return " ".join((found[1] or found[3]).split()) if found else ""


def _names(agents: list[_Agent]) -> dict[str, int]:
    """What the agents may be called → 0 or 1, without what both may be called."""
    first, second = (agent.names(number) for number, agent in enumerate(agents, start=1))
    return dict.fromkeys(first - second, 0) | dict.fromkeys(second - first, 1)


def _spoken(text: str, names: dict[str, int]) -> _Spoken | str:
    """The turns of a conversation, or the reason to drop it."""
    turns: list[tuple[int, str]] = []
    tags: Counter[int] = Counter()
    for line in filter(None, map(str.strip, text.splitlines())):
        tagged = bool(_NAMED_TAG.match(line) or _TAG.search(line))
        rest = " ".join(_TAG.sub(" ", _NAMED_TAG.sub(r"\1: ", line)).split())
        head = _HEAD.match(rest)
        speaker = _speaker(head, names) if head else None
        if head and speaker is not None:
            said = (rest[head.end() :].removesuffix(")") if rest.startswith("(") else rest[head.end() :]).strip()
            again = _HEAD.match(said)  # the name stood before the tag and after it
            if again and _speaker(again, names) == speaker:
                said = said[again.end() :]
            turns.append((speaker, _unquoted(said)))
        elif not rest or _BRACKETED.match(rest) or _BARE_TAG.fullmatch(rest):  # a tag or a stage direction on its own line
            continue
        elif not turns:
            return NO_SPEAKERS
        elif _LABEL.match(rest):
            return OTHERS
        else:
            turns[-1] = (turns[-1][0], f"{turns[-1][1]}\n{rest}")
        who, said = turns[-1]
        turns[-1] = (who, _BARE_TAG.sub("", said).strip())
        tags[who] += tagged or turns[-1][1] != said
    return _Spoken(turns, +tags)


def _speaker(head: re.Match[str], names: dict[str, int]) -> int | None:
    """Whose turn begins here: by name, or by what stands in brackets behind it."""
    for call in (head[1], head[2] or ""):
        if call.strip().lower() in names:
            return names[call.strip().lower()]
    return None


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1].strip() if len(text) > 1 and text[0] in '"“' and text[-1] in '"”' else text


def _item(row: Row, rows: Rows, source_id: str, agents: list[_Agent], emotion: str) -> SupportDialogue | None:
    spoken = _spoken(row.value, _names(agents))
    if isinstance(spoken, str):
        rows.drop(row, spoken)
        return None
    if len(spoken.tags) != 1:
        rows.drop(row, BOTH_TAGGED if spoken.tags else NO_TAGS)
        return None
    (supporter,) = spoken.tags
    seeker = agents[1 - supporter]
    about = {"age": seeker.age, "gender": seeker.gender, "occupation": seeker.occupation, "emotion": emotion}
    roles = [("supporter" if speaker == supporter else "seeker", text) for speaker, text in spoken.turns]
    return support_dialogue(rows, row, "synthetic_esc", source_id, "en", roles, **about)  # type: ignore[arg-type]


def _emotions(file: Path, strict: bool) -> dict[tuple[str, str], str]:
    """(scenario, column) → emotion. Label rows are no units of the corpus, so they are not counted."""
    labels: dict[tuple[str, str], str] = {}
    rows = Rows(Step("labels"), strict)
    for row in rows.csv(file):
        raw = rows.parse(_Row, row)
        if raw is not None:
            for column, label in row.value.items():
                if _CONVERSATION.fullmatch(column):
                    labels[raw.scenario, column] = ", ".join(label.split("\n"))
    return labels


def read(files: list[Path], rows: Rows) -> Iterator[Item]:
    """Every conversation of every row is a unit; `source_id` is `file stem/scenario/number`.

    `age`, `gender` and `occupation` are those of the seeker's profile; `emotion` is the annotated file's label.
    """
    emotions = {key: label for file in files if file.stem == _LABELS for key, label in _emotions(file, rows.strict).items()}
    for file in files:
        if file.stem == _LABELS:
            continue
        for row in rows.csv(file):
            raw = rows.parse(_Row, row)
            agents = _agents(raw.context) if raw else []
            if raw is None:
                continue
            columns = [name for name, text in row.value.items() if _CONVERSATION.fullmatch(name) and text.strip()]
            if len(agents) != 2 or not columns:
                rows.malformed(row, f"expected two agent profiles and a conversation, found {len(agents)} and {len(columns)}")
                continue
            for column in columns:
                where = f"{row.where}, {column}"
                # The row itself is counted already: it stands for its first conversation.
                text = row.value[column]
                unit = Row(where, text) if column == columns[0] else rows.unit(where, text)
                source_id = f"{file.stem}/{raw.scenario}/{column.split()[1]}"
                emotion = emotions.get((raw.scenario, column), "") if file.stem == "datasetStrategiesAnnotation" else ""
                item = _item(unit, rows, source_id, agents, emotion)
                if item is not None:
                    yield item


SOURCES = (
    Source(
        name="synthetic_esc",
        about="Synthetic ESC: 1,900 dialogues between friends that GPT-4 wrote, 1,500 with strategy tags, English, multi-turn",
        kind="support",
        languages=("en",),
        files=("datasetStrategiesAnnotation.csv", "datasetEmotionAnnotation.csv", "test_set_gpt.csv"),
        where="GitHub AnonymousTACLSubmission/Synthetic-Dataset-for-Emotional-Support",
        licence="none stated in the repository",
        paper="anonymous submission to TACL",
        read=read,
    ),
)
