"""Small records for tests of statistics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.files import write_json, write_jsonl
from core.records import Dialogue, Judgement, Language, Turn
from core.rubrics import Dimension, Rubric, Scale


def make_rubric(*names: str, low: int = 0, high: int = 4) -> Rubric:
    levels = {score: f"level {score}" for score in range(low, high + 1)}
    dimensions = {n: Dimension(label={"en": n.title()}, about={"en": n}, levels={"en": levels}) for n in names}
    scale = Scale(min=low, max=high)
    return Rubric(name="test", source="made up", languages=("en",), scale=scale, dimensions=dimensions)


def make_dialogue(name: str, supporter: str | None = "m", language: Language = "en", **more: Any) -> Dialogue:
    # Each has words of its own: dialogues in which the very same is said are one.
    turns = more.pop("turns", None) or (Turn(role="seeker", text=f"a {name}"), Turn(role="supporter", text="b"))
    return Dialogue(id=name, language=language, source="corpus", supporter=supporter, turns=turns, **more)


def make_judgement(dialogue: str, dimension: str, value: float | None, **more: Any) -> Judgement:
    base = {"language": "en", "judge": "j", "rubric": "test", "method": "joint", "raw": "raw"}
    return Judgement.model_validate(base | {"dialogue_id": dialogue, "dimension": dimension, "value": value} | more)


def fed_rubric() -> Rubric:
    """Three scales in one rubric, few texts of levels, as FED's questions have it: 0–2, yes or no, 0–4."""
    return Rubric.model_validate(
        {
            "name": "fed_like",
            "source": "made up",
            "languages": ["en"],
            "scale": {"min": 0, "max": 2},
            "dimensions": {
                "lively": {"label": {"en": "Lively"}, "about": {"en": "Pace."}, "levels": {"en": {0: "dull", 2: "lively"}}},
                "consistent": {"label": {"en": "Consistent"}, "about": {"en": "No break."}, "scale": {"min": 0, "max": 1}},
                "overall": {"label": {"en": "Overall"}, "about": {"en": "All in all."}, "scale": {"min": 0, "max": 4}},
            },
        }
    )


RUBRIC = make_rubric("fluency", "empathy")


Scores = Mapping[str, list[int | None]]  # supporter → score on each card


def make_run(folder: Path, scores: Scores, judge: str = "j", rubric: Any = RUBRIC, **config: Any) -> Path:
    """A scored run folder: each supporter's dialogue on card `c0`, `c1`, … has one score on all dimensions."""
    dialogues, judgements = [], []
    for supporter, own in scores.items():
        for card, score in enumerate(own):
            turns = (Turn(role="seeker", text=f"{card}"), Turn(role="supporter", text=f"{supporter} of {folder.name}"))
            dialogues.append(make_dialogue(f"{supporter}-{card}", supporter, card_id=f"c{card}", turns=turns))
            judgements += [make_judgement(dialogues[-1].id, name, score, judge=judge) for name in RUBRIC.dimensions]
    folder.mkdir(parents=True)
    write_jsonl(folder / "dialogues.jsonl", dialogues)
    write_jsonl(folder / "judgements.jsonl", judgements)
    supporters = [{"name": name, "checkpoint": f"weights/{name}"} for name in scores]
    simulate = {"exchanges": 5, "supporters": supporters} | config
    write_json(
        folder / "config.json",
        {"simulate": simulate, "score": {"judge": {"name": judge}, "rubric": rubric.model_dump(mode="json")}},
    )
    return folder
