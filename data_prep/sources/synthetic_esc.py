"""Synthetic ESC: dialogues between friends that GPT-4 wrote to match ESConv's size, ten per scenario, in CSV files.

A row has a scenario (two agent profiles, then the scene as each agent sees it) and up to ten conversations as text. Only the
strategy tags show which of the two supports, so conversations without tags, or with tags on both sides, are left out: all of
`test_set_gpt.csv`. Tags occur in several positions and brackets; all are removed. `datasetEmotionAnnotation.csv` has the
seeker's emotion in each conversation instead of the conversation.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import AliasChoices, Field

from core.ledger import BuildStep
from core.records import Role, SupportDialogue
from core.rows import CorpusItem, CorpusReader, CorpusRow, Dropped, Malformed, RowModel
from data_prep.sources.support import support_dialogue

_LABELS = "datasetEmotionAnnotation"
_CONVERSATION = re.compile(r"Conversation (\d+)")

_STRATEGY = (
    r"(?:questions?|restatements?(?: or paraphras\w+)?|paraphrasing|reflections?(?: of (?:the )?feelings?)?|self[- ]?disclosure"
    r"|affirmations?(?: and reassurances?)?|reassurance|providing (?:suggestions?|information)|suggestions?|information"
    r"|others?)"
)
_LIST = rf"(?:(?:support )?strateg(?:y|ies)(?: used)?: *)?{_STRATEGY}(?:\s*(?:[,&+/;.-]|and|,? *and)*\s*{_STRATEGY})*"
# A tag is a list of strategies in brackets or stars, or anything in brackets with an unmistakable one.
_CLEAR = (
    r"(?:(?:providing|proving|offering) suggestions|affirmation and reassurance|reflect\w* (?:of )?feelings|support strategy)"
)
_TAG = re.compile(
    rf"\**[\[({{]\s*\**\s*{_LIST}\s*\**\s*[\])}}]\**|\*+\s*{_LIST}\s*:?\*+|[\[({{][^\])}}]{{0,60}}{_CLEAR}[^\])}}]{{0,60}}[\])}}]",
    re.IGNORECASE,
)
# `[Name - Strategy]: text` and `Name (Strategy): text` become `Name: text` before tags are removed.
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
        """The agent's names in a conversation, in lower case."""
        full = f"{self.first} {self.last}"
        initials = "".join(word[0] for word in full.split())
        calls = {full, self.first, self.first.split()[0], self.last, initials, initials[0]}
        calls |= {f"agent{number}", f"agent {number}"}
        return {call.lower() for call in calls}


class _Row(RowModel):
    scenario: str = Field(validation_alias=AliasChoices("Scenario ID", "Scenar ID"))
    context: str = Field(validation_alias="Scenario context")


def _agents(context: str) -> list[_Agent]:
    def value(block: str, name: str) -> str:
        match = re.search(rf"(?m)^\s*{name}=(?:(\d+)|(['\"])(.*?)\2),", block, re.DOTALL)
        return " ".join((match[1] or match[3]).split()) if match else ""

    fields = ("first_name", "last_name", "age", "gender", "occupation")
    blocks = re.findall(r"AgentProfile\((.*?)\n\)", context, re.DOTALL)
    return [_Agent(*(value(block, name) for name in fields)) for block in blocks]


def _spoken(text: str, agents: list[_Agent]) -> tuple[list[tuple[int, str]], Counter[int]]:
    """The turns of a conversation as (agent 0 or 1, text), and the number of each agent's turns with tags."""
    first, second = (agent.names(number) for number, agent in enumerate(agents, start=1))
    names = dict.fromkeys(first - second, 0) | dict.fromkeys(second - first, 1)  # without names that fit both
    turns: list[tuple[int, str]] = []
    tags: Counter[int] = Counter()
    for line in filter(None, map(str.strip, text.splitlines())):
        tagged = bool(_NAMED_TAG.match(line) or _TAG.search(line))
        untagged = " ".join(_TAG.sub(" ", _NAMED_TAG.sub(r"\1: ", line)).split())
        head = _HEAD.match(untagged)
        speaker = _speaker(head, names) if head else None
        if head and speaker is not None:
            words = untagged[head.end() :].removesuffix(")" if untagged.startswith("(") else "").strip()
            repeated = _HEAD.match(words)  # the name occurred before and after the tag
            if repeated and _speaker(repeated, names) == speaker:
                words = words[repeated.end() :].strip()
            quoted = len(words) > 1 and words[0] in '"“' and words[-1] in '"”'
            turns.append((speaker, words[1:-1].strip() if quoted else words))
        elif not untagged or _BRACKETED.match(untagged) or _BARE_TAG.fullmatch(untagged):  # a lone tag or stage direction
            continue
        elif not turns:
            raise Dropped("turns without a speaker")
        elif _LABEL.match(untagged):
            raise Dropped("a speaker or a label that is none of the two agents")
        else:
            turns[-1] = (turns[-1][0], f"{turns[-1][1]}\n{untagged}")
        agent, words = turns[-1]
        turns[-1] = (agent, _BARE_TAG.sub("", words).strip())
        tags[agent] += tagged or turns[-1][1] != words
    return turns, +tags


def _speaker(head: re.Match[str], names: dict[str, int]) -> int | None:
    calls = (call.strip().lower() for call in (head[1], head[2] or ""))
    return next((names[call] for call in calls if call in names), None)


def _item(text: str, source_id: str, agents: list[_Agent], emotion: str) -> SupportDialogue:
    turns, tags = _spoken(text, agents)
    if len(tags) != 1:
        raise Dropped("strategy tags on both sides" if tags else "no strategy tags: who supports is not stated")
    (supporter,) = tags
    seeker = agents[1 - supporter]
    about = {"age": seeker.age, "gender": seeker.gender, "occupation": seeker.occupation, "emotion": emotion}
    roles: dict[int, Role] = {supporter: "supporter", 1 - supporter: "seeker"}
    return support_dialogue("synthetic_esc", source_id, "en", [(roles[agent], line) for agent, line in turns], **about)


def _emotions(file: Path, strict: bool) -> dict[tuple[str, str], str]:
    """(scenario, column) → emotion. Rows of labels are no units of the corpus, so they are not counted."""
    labels: dict[tuple[str, str], str] = {}
    reader = CorpusReader(BuildStep("labels"), strict)
    for row in reader.csv(file):
        with reader.accounting(row):
            scenario = _Row.model_validate(row.value).scenario
            for column, label in row.value.items():
                if _CONVERSATION.fullmatch(column):
                    labels[scenario, column] = ", ".join(label.split("\n"))
    return labels


def read(files: list[Path], reader: CorpusReader) -> Iterator[CorpusItem]:
    """Every conversation of every row is a unit; `source_id` is `file stem/scenario/number`. `age`, `gender` and `occupation`
    come from the seeker's profile, `emotion` from the annotated file."""
    emotions = {key: label for file in files if file.stem == _LABELS for key, label in _emotions(file, reader.strict).items()}
    for file in files:
        if file.stem == _LABELS:
            continue
        for row in reader.csv(file):
            columns: list[str] = []
            with reader.accounting(row):
                raw = _Row.model_validate(row.value)
                agents = _agents(raw.context)
                columns = [name for name, text in row.value.items() if _CONVERSATION.fullmatch(name) and text.strip()]
                if len(agents) != 2 or not columns:
                    counts, columns = f"found {len(agents)} and {len(columns)}", []
                    raise Malformed(f"expected two agent profiles and a conversation, {counts}")
            for column in columns:
                where, text = f"{row.where}, {column}", row.value[column]
                # The row itself is counted already, as its first conversation.
                unit = CorpusRow(where, text) if column == columns[0] else reader.row(where, text)
                source_id = f"{file.stem}/{raw.scenario}/{column.split()[1]}"
                emotion = emotions.get((raw.scenario, column), "") if file.stem == "datasetStrategiesAnnotation" else ""
                with reader.accounting(unit):
                    yield _item(text, source_id, agents, emotion)
