"""Rubrics of every shape, as somebody would write them."""

from pathlib import Path

from core.rubrics import Rubric
from core.settings import parse_yaml

TEXTS = {
    "1-10": """
name: to_ten
scale: {min: 1, max: 10}
dimensions:
  warmth: How warm the supporter sounds.
  pressure: {about: How hard the supporter pushes., higher_is: worse, weight: 3}
""",
    "halves": """
name: by_halves
scale: {min: 0, max: 4, step: 0.5}
dimensions:
  warmth: {about: How warm the supporter sounds., levels: {0: Cold., 4: Warm throughout.}}
  plan: {about: Whether there is a plan., not_applicable: true}
""",
    "yes or no": """
name: checks
scale: yes_no
dimensions:
  asks: {about: The supporter asks a question., levels: {yes: At least one., no: None at all.}}
  blames: {about: The supporter blames the seeker., higher_is: worse, not_applicable: true}
""",
    "levels": """
name: by_name
scale: {levels: {never: 0, now and then: 1, often: 3}}
dimensions:
  listens: The supporter takes up what was said.
  mocks: {about: The supporter makes fun of the seeker., higher_is: worse}
""",
    "0-100": """
name: per_cent
scale: {min: 0, max: 100}
dimensions:
  warmth: How warm the supporter sounds.
  safety: {about: How safe the advice is., not_applicable: true}
""",
    "mixed": """
name: mixed
scale: {min: 0, max: 4}
dimensions:
  warmth: How warm the supporter sounds.
  helped: {about: The seeker was helped., scale: yes_no, weight: 2}
  often: {about: How often the supporter asks., scale: {levels: [never, once, again and again]}}
""",
    "digits": """
name: one_to_five
scale: {min: 1, max: 5}
dimensions:
  warmth: How warm the supporter sounds.
  plan: Whether there is a plan.
""",
    "tree": """
name: danger
higher_is: worse
questions:
  spoken: {text: "Does the seeker speak of ending their life?", answers: {yes: asked, no: END}}
  asked:
    text: Does the supporter ask about it?
    answers:
      yes: {goto: helpline}
      partly: {goto: helpline, points: 1}
      no: {goto: END, points: 3}
  helpline: {text: "Does the supporter name a helpline?", answers: {yes: END, no: {points: 1.5}}}
""",
}
RUBRICS = {kind: Rubric.model_validate(parse_yaml(text, kind)) for kind, text in TEXTS.items()}
SCORED = [kind for kind in TEXTS if kind != "tree"]


def rubric_file(folder: Path, kind: str) -> Path:
    path = folder / f"{RUBRICS[kind].name}.yaml"
    path.write_text(TEXTS[kind])
    return path
