"""Which judges and simulators share a base model with a supporter, and how such supporters fare with them.

ESC-Eval's appendix B.3 names the risk. Bases are inferred from the names of checkpoints (configs/health/families.yaml): an
uninformative name is "unknown", never "different".
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from core.files import CONFIGS
from core.grouping import group_by
from core.records import Dialogue, Judgement, Language
from core.settings import Pattern, Settings, read_yaml
from core.specs import load_spec, model_names
from core.statistics.bootstrap import SMOOTHED
from core.statistics.inference import TEST, p_text
from core.tables import Cell, Table
from evalsuite.statistics import paired
from evalsuite.statistics.contestants import contestants_of, stack
from evalsuite.statistics.leaderboard import Tally
from evalsuite.statistics.summary import Scorer, supporter_of

Likeness = Literal["same checkpoint", "same family"]
Role = Literal["judge", "simulator"]

HEALTH = "Judge health"
AS_IS = "as_is"  # `condition.variant` of a probe's verdict on an unchanged dialogue


def as_they_are(judgements: Iterable[Judgement]) -> list[Judgement]:
    """The verdicts on unchanged dialogues, asked in the usual way: a probe's `as_is` is the same call that scoring makes."""
    return [
        j.model_copy(update={"condition": {key: value for key, value in j.condition.items() if key != "variant"}})
        for j in judgements
        if j.condition.get("variant", AS_IS) == AS_IS
    ]


class Family(Settings):
    """A family of base models, and the pattern of names in it."""

    family: str
    pattern: Pattern


class Families(Settings):
    """The file configs/health/families.yaml."""

    families: list[Family]


@lru_cache
def _families() -> list[Family]:
    return read_yaml(CONFIGS / "health" / "families.yaml", Families, "model families").families


@dataclass(frozen=True)
class ModelBase:
    """A model's checkpoint (for a model behind an endpoint, its name there) and family; None if its names do not tell."""

    checkpoint: str | None
    family: str | None


def base_of(spec: Mapping[str, Any]) -> ModelBase:
    """The base of a model spec as in a run's config.json (or `{"name": …}`)."""
    served = (spec.get("endpoint") or {}).get("model")
    # The checkpoint's name is more informative than the spec's own.
    names = [name for name in (spec.get("checkpoint"), spec.get("adapter"), served, spec.get("name")) if name]
    families = (family.family for name in names for family in _families() if family.pattern.search(name))
    return ModelBase(spec.get("checkpoint") or served, next(families, None))


def alike(first: str, second: str, base: Mapping[str, ModelBase]) -> Likeness | None:
    """How two models are alike, by name and `base`; None if they are not, or if that is unknown. A model shares its own
    base."""
    own, other = base[first], base[second]
    # A variant is served as its model.
    if first == second or first == other.checkpoint or (own.checkpoint and own.checkpoint == other.checkpoint):
        return "same checkpoint"
    return "same family" if own.family and own.family == other.family else None


@dataclass(frozen=True)
class Sharing:
    """A judge or simulator, and the supporters that share its base, in one language and by one scorer. `alike` maps supporter →
    how; `unknown` are supporters of unknown base, which are on neither side. `difference` is the mean score of those alike
    minus that of the others, in points of 0–100; None if one side is empty."""

    language: Language
    role: Role
    model: str
    base: ModelBase
    scorer: Scorer
    alike: dict[str, Likeness]
    unknown: tuple[str, ...]
    difference: paired.Difference | None


def bases(names: Sequence[str], specs: Mapping[str, Mapping[str, Any]]) -> dict[str, ModelBase]:
    """Model name → base: from the specs of a run (`RunConfig.specs`), else a bundled spec of that name, else the name alone."""
    bundled = {name: load_spec(name).model_dump(mode="json") for name in set(names) & set(model_names()) - specs.keys()}
    return {name: base_of(specs.get(name) or bundled.get(name, {"name": name})) for name in names}


def sharings(tally: Tally, specs: Mapping[str, Mapping[str, Any]]) -> list[Sharing]:
    """A row for every language, scorer, and judge or simulator, even if no supporter shares its base."""
    dialogues = tally.dialogues
    supporters = sorted({supporter_of(dialogue) for dialogue in dialogues})
    simulators = sorted({dialogue.simulator for dialogue in dialogues if dialogue.simulator})
    plain = as_they_are(tally.judgements)
    judges = sorted({judgement.judge for judgement in plain})
    base = bases([*supporters, *simulators, *judges], specs)
    parts: list[tuple[Role, str, Sequence[Dialogue]]] = [("judge", name, dialogues) for name in judges]
    parts += [("simulator", name, [d for d in dialogues if d.simulator == name]) for name in simulators]
    rows = []
    for role, name, played in parts:
        ids = {dialogue.id for dialogue in played}
        verdicts = [j for j in plain if (j.judge == name if role == "judge" else j.dialogue_id in ids)]
        likes = {supporter: alike(name, supporter, base) for supporter in sorted({supporter_of(d) for d in played})}
        sides = {
            supporter: "alike" if how else "others" if base[name].family and base[supporter].family else "unknown"
            for supporter, how in likes.items()
        }
        sided = [dialogue.model_copy(update={"supporter": sides[supporter_of(dialogue)]}) for dialogue in played]
        contestants = contestants_of(sided, verdicts, tally.rubric)
        for (language, scorer), group in group_by(contestants, lambda side: (side.language, side.scorer)).items():
            by_side = {side.supporter: side for side in group}
            difference = None
            if {"alike", "others"} <= by_side.keys():
                both = [by_side["alike"], by_side["others"]]
                (difference,) = paired.differences(*stack(both), [(0, 1)], average_only=True, design=both[0].design)
            present = sorted({supporter_of(dialogue) for dialogue in played if dialogue.language == language})
            same = {supporter: how for supporter in present if (how := likes[supporter])}
            unknown = tuple(supporter for supporter in present if sides[supporter] == "unknown")
            rows.append(Sharing(language, role, name, base[name], scorer, same, unknown, difference))
    return rows


def sharing_table(rows: Sequence[Sharing]) -> Table:
    """The supporters alike of each judge and simulator, and the difference."""
    body: list[dict[str, Cell]] = []
    for row in rows:
        likes, gap = ", ".join(f"{supporter} ({how})" for supporter, how in row.alike.items()), row.difference
        body.append({"language": row.language, "role": row.role, "model": row.model, "family": row.base.family})
        body[-1] |= {"judged by": row.scorer.name, "supporters alike": likes or "none"}
        body[-1] |= {"base unknown": ", ".join(row.unknown) or None}
        body[-1] |= {"alike − others": gap.estimate if gap else None, "p": p_text(gap.p if gap else None)}
    notes = [
        "Bases are inferred from the names of checkpoints (ESC-Eval, appendix B.3, names the risk). Alike − others: average "
        f"score in points of 0–100, [{SMOOTHED} over cards], n = shared cards; p: {TEST}, uncorrected.",
        *[paired.UNPAIRED] * any(row.difference is not None and row.difference.unpaired for row in rows),
        "A difference is no proof of self-preference: supporters of one family may be better. Let a judge of another "
        "family score the same dialogues, and compare its row.",
    ]
    return Table.of("health-bases", "Judges and simulators that share a base with a supporter", body, notes, HEALTH)
