"""Miniatures of MindEval's and ESC-Judge's repositories: their layout and the shape of their files, in words of our own."""

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from data_prep.__main__ import app
from tests.data_prep.sources.fixtures import write
from tests.verbs import printed

# --- MindEval ---------------------------------------------------------------------------------------------------------------

PROMPTS = '''
from string import Template
MEMBER = Template("""You are ${name}, ${age}. Wish: ${program_goal} ($$5, {braces}, {% raw %}, {{ and }}).
${member_narrative}
Stay yourself.""")
INTAKE = Template("""You help $name (${age}).
Mood: ${mood}.""")
BRIEF = Template("""You help $name. Be brief.""")
OWN = Template("""Put your own here.""")
INTERACTION_MEMBER_VERSION_DICT = {"v1": MEMBER, "v0_2": MEMBER}
INTERACTION_CLINICIAN_VERSION_DICT = {"v0_1": INTAKE, "brief": BRIEF, "custom": OWN}
'''
JUDGE = '''
from string import Template
RATE = Template("""Rate the chat with ${name}.
<conversation>
${conversation_str}
</conversation>
Answer as above.""")
JUDGE_PROMPT_TEMPLATE_VERSION_DICT = {"v0_1": RATE}
'''
SCRIPT = """
def run(profile, clinician, member, turns):
    heard = [{"role": "system", "content": clinician}, {"role": "user", "content": "Morning"}]
    own = [{"role": "system", "content": member}, {"role": "assistant", "content": "Morning"}]
    open("ran", "w")
"""
LABELS = (
    *("Clinical Accuracy & Competence", "Ethical & Professional Conduct", "Assessment & Response"),
    *("Therapeutic Relationship & Alliance", "AI-Specific Communication Quality"),
)
ASKED = [f"criterion_{number}" for number in (1, 2, 3, 4, 6, 7, 8, 9, 10)] + ["criterion11"]


def member(name: str, age: int) -> dict[str, Any]:
    attributes = {"name": name, "age": age, "mood": "calm", "gender_identity": "none", "program_goal": "To sleep ${well}"}
    return {"member_attributes": attributes, "member_narrative": f"{name} lies awake, {{and}} counts.", "trace": ""}


def rated(id: str, answers: dict[str, list[int]], turns: int = 3) -> dict[str, Any]:
    """A dialogue that the experts e-one and e-two answered questions about; 3 where `answers` does not say."""
    row: dict[str, Any] = {"id": id, "model": "vendor/some-model", "member_attributes": member("Ada", 40)["member_attributes"]}
    row["messages"] = [{"role": ("assistant", "user")[n % 2], "content": f"{id} line {n}"} for n in range(turns)]
    for name in ASKED:
        row |= {f"{name}.responses": answers.get(name, [3, 3]), f"{name}.responses.users": ["e-one-long", "e-two-long"]}
    return row


def typed(chat: str, text: str) -> dict[str, Any]:
    return {"patient_profile": {"chat_username": chat, "argilla_id": chat[:2], "chat_password": "secret"}, "content": text}


RATED = [
    rated("r1", {"criterion_1": [1, 4], "criterion_2": [4, 5], "criterion_8": [2, 6], "criterion_9": [0, 5]}),
    rated("r2", {"criterion_1": [2, 2], "criterion_2": [2, 3], "criterion_8": [0, 4], "criterion_9": [0, 4]}),
    rated("r3", {"criterion_1": [6, 5], "criterion_2": [6, 6], "criterion_10": [5, 1]}),
]


def mindeval_clone(folder: Path) -> Path:
    rows = {
        "profiles": [member("Ada", 40), member("Bo", 31), member("Cy", 22)],
        "human_annotations": RATED,
        "human_user_turns": [typed("A1_x", "hi there"), typed("A1_x", "bad night"), typed("B2_y", "hello?")],
    }
    texts = {f"data/{name}.jsonl": "".join(json.dumps(row) + "\n" for row in of_one) for name, of_one in rows.items()}
    texts |= {"mindeval/prompts.py": PROMPTS, "mindeval/judge_prompts.py": JUDGE}
    return write(folder, texts | {"mindeval/scripts/generate_interactions.py": SCRIPT})


# --- ESC-Judge --------------------------------------------------------------------------------------------------------------

CHAT = '''
SEEKER_PROMPT_TEMPLATE = """You are this: {description} {{not a field}}

Talk.
"""
def simulate():
    last_question = "Hi {there}."
    open("ran", "w")
'''
COMPARE = "Compare {criteria}: {criteria_description} {{x}}\n\nA:\n{conversation_a}\nB:\n{conversation_b}\n\nSay which."
STAGES = {
    "Exploration": {"Open Questions": "Does it ask?", "Warmth / Care": "Is it warm?"},
    "Insight": {"Meaning": "Does it find meaning?"},
    "Action": {"Steps": "Are there steps?"},
}


def esc_judge_clone(folder: Path) -> Path:
    roles = [{"role": f"- role {n}\n- {{braces}} and a past.", "pid": f"p-{n}", "challenge": f"worry {n}"} for n in range(3)]
    lines = "".join(json.dumps(role) + "\n" for role in roles)
    texts = {f"data/{name}.json": lines for name in ("roles-v1", "roles-v2", "generated_personas")}
    texts |= {"data/ESEval-multidim-cot.txt": COMPARE, "data/exploration_rubric3.jsonl": json.dumps(STAGES)}
    texts |= {"data/emotional_supporter_nodir.txt": " Help. \n", "data/emotional_supporter_hill.txt": "Help in stages.\n"}
    return write(folder, texts | {"langchain_persona_based_chat.py": CHAT, "LICENSE": "\n  Some Licence\nand so on\n"})


@cache
def judges_pack() -> str:
    """A pack that asks by the methods of both, for any rubric."""
    folder = Path(mkdtemp())
    own = {
        "en/judge_lines.j2": "Rate:\n{{ transcript }}\n",
        "en/judge_pairs.j2": "{{ transcript_a }}\nor\n{{ transcript_b }}\n",
    }
    return str(write(folder, own))


def imported(name: str, *more: object, place: object = "clone") -> str:
    """What `esc-data import` of a benchmark's clone prints, in one line; the files are in the folder `in`."""
    return " ".join(printed(app, "import", "--source", f"{name}={place}", "--out", "in", *more).split())
