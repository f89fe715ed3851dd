"""Ranker training sets from human scores and dialogues: exactly the messages that scoring sends, with people's answers.

There is one example per dimension (`paper`, as ESC-Eval section 3.4 trains ESC-RANK; `per_dimension`, the native prompt) or one
with all dimensions (`joint`). The messages come from `core.judge_prompts`, like those of scoring.
"""

import random
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field

from core.errors import UserError, at, near, need_modules
from core.files import digest
from core.grouping import exact_mean
from core.judge_prompts import PromptMethod, judge_messages
from core.ledger import BuildStep
from core.prompts import PromptPack
from core.records import Dialogue, HumanScore, Identifier, Language, Message, Name, Number, Record, Whole
from core.rubrics import Rubric, load_rubric
from core.statistics.accuracy import majority, round_half_up
from data_prep.scores import synthetic
from data_prep.scores.human import check_scale

Split = Literal["train", "valid", "test"]
SplitMethod = Literal["grouped", "random"]
Targets = dict[str, dict[str, float]]  # dialogue id → dimension → mean score


class RankExample(Record):
    """A prompt and its right answer, in the prompt-completion form with messages.

    The answer is one digit per dimension, without separators, in the rubric's order. `labels` are whole scores of the rubric's
    scale by dimension, `target` the means of the annotators before rounding (halves up). `dimension` is null in joint
    examples. A grouped split keeps examples with the same `group` together.
    """

    id: Identifier
    prompt: Annotated[tuple[Message, ...], Field(min_length=1)]
    completion: Annotated[tuple[Message, ...], Field(min_length=1)]
    language: Language
    dialogue_id: Identifier
    group: str
    dimension: Name | None
    labels: dict[str, Whole]
    target: dict[str, Number]


@dataclass(frozen=True)
class RankCase:
    """The data of one example. `target` maps its dimensions, in the rubric's order, to mean scores."""

    dialogue: Dialogue
    target: dict[str, float]
    method: PromptMethod

    @property
    def id(self) -> str:
        return f"{self.dialogue.id}/{'joint' if self.method == 'joint' else next(iter(self.target))}"

    def example(self, prompts: PromptPack, rubric: Rubric) -> RankExample:
        labels = {key: round_half_up(mean) for key, mean in self.target.items()}
        messages = judge_messages(prompts, rubric, self.dialogue, self.method, list(self.target))
        return RankExample(
            id=self.id,
            prompt=tuple(messages),
            completion=({"role": "assistant", "content": "".join(map(str, labels.values()))},),
            language=self.dialogue.language,
            dialogue_id=self.dialogue.id,
            group=group_of(self.dialogue),
            dimension=None if self.method == "joint" else next(iter(labels)),
            labels=labels,
            target=self.target,
        )


def narrowed(rubric: Rubric, dimensions: Sequence[str]) -> Rubric:
    """The rubric with only these dimensions, in its own order (all if none is named). Judges ask about every dimension of a
    rubric, so a ranker of fewer is trained and scored with this rubric. Raises `UserError` for an unknown dimension."""
    for key in dimensions:
        if key not in rubric.dimensions:
            raise UserError(f"--dimensions: {key!r} is not in rubric {rubric.name}: {near(key, rubric.dimensions)}")
    kept = {key: value for key, value in rubric.dimensions.items() if key in dimensions or not dimensions}
    return rubric.model_copy(update={"dimensions": kept})


def mean_targets(
    scores: Iterable[HumanScore],
    dialogues: dict[str, Dialogue],
    rubric: Rubric,
    step: BuildStep,
    score_rubric: str | None = None,
) -> tuple[Targets, list[HumanScore]]:
    """Means over annotators by dialogue and dimension, and the scores (of `score_rubric`, by default the rubric itself) that
    went into them; others are dropped with a reason. Raises `UserError` for a value off the scale and for a second score."""
    values: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    used = step.sieve(
        scores,
        lambda score: _unused(score, dialogues, rubric, score_rubric or rubric.name),
        lambda score: f"{score.dialogue_id}/{score.dimension}",
    )
    for score in used:
        with at(f"dialogue {score.dialogue_id}, dimension {score.dimension}"):
            check_scale(score, rubric)
        by_annotator = values[score.dialogue_id][score.dimension]
        if score.annotator in by_annotator:
            raise UserError(f"scores: {score.annotator} gave {score.dialogue_id} / {score.dimension} in two files")
        by_annotator[score.annotator] = score.value
    return {name: {key: exact_mean(by.values()) for key, by in scored.items()} for name, scored in values.items()}, used


def _unused(score: HumanScore, dialogues: dict[str, Dialogue], rubric: Rubric, score_rubric: str) -> str | None:
    if score.rubric != score_rubric:
        return f"of rubric {score.rubric}"
    if score.dimension not in rubric.dimensions:
        return f"dimension {score.dimension} not asked"
    if score.turn is not None:
        return "of a single turn"
    dialogue = dialogues.get(score.dialogue_id)
    if dialogue is None:
        return "no such dialogue"
    if dialogue.lost or not dialogue.exchanges:
        return "dialogue that no judge is asked about (no answered seeker turn, or a server failed)"
    return None


def cases(
    dialogues: Iterable[Dialogue], targets: Targets, rubric: Rubric, method: PromptMethod, step: BuildStep
) -> list[RankCase]:
    """One case per dialogue (joint) or per dialogue and dimension, in the order of dialogues and of the rubric. The step counts
    mean scores; joint drops those of a dialogue that lacks another dimension. Raises `UserError` if the dimensions' scales
    differ, or a native method's scores have more than one digit."""
    scale = rubric.one_scale("a ranker")  # its loss and figures are over the tokens of one scale
    if not rubric.digits and (method != "paper" or rubric.questions or not scale.whole):
        raise UserError(f"rubric {rubric.name}: native methods answer one digit per dimension, the scale must be in 0-9")
    result = []
    for dialogue in dialogues:
        dimensions = targets.get(dialogue.id, {})
        target = {key: dimensions[key] for key in rubric.dimensions if key in dimensions}
        step.taken += len(target)
        if method != "joint":
            result += [RankCase(dialogue, {key: mean}, method) for key, mean in target.items()]
        elif len(target) == len(rubric.dimensions):
            result.append(RankCase(dialogue, target, method))
        else:
            missing = ", ".join(key for key in rubric.dimensions if key not in target)
            for key in target:
                step.drop(f"no joint answer without {missing}", f"{dialogue.id}/{key}")
            continue
        step.kept += len(target)
    return result


def split_cases(every_case: Sequence[RankCase], method: SplitMethod, seed: int) -> dict[Split, list[RankCase]]:
    """The cases of each split, in their order. Grouped splits are stratified by language, dimension and label."""
    if method == "random":
        units = [case.dialogue.id for case in every_case]
        split_of = random_split({case.dialogue.id: case.dialogue.language for case in every_case}, seed)
    else:
        units = [group_of(case.dialogue) for case in every_case]
        rows = [
            (unit, f"{case.dialogue.language} {key} {round_half_up(mean)}")
            for unit, case in zip(units, every_case, strict=True)
            for key, mean in case.target.items()
        ]
        split_of = grouped_split([group for group, _ in rows], [stratum for _, stratum in rows], seed)
    return {name: [case for unit, case in zip(units, every_case, strict=True) if split_of[unit] == name] for name in SHARES}


@cache
def synthetic_test() -> tuple[tuple[Dialogue, ...], tuple[HumanScore, ...]]:
    """The synthetic set's test split as `rank-sft` makes it with seed 0, which shares no base dialogue with the training split.
    Cached, since it takes seconds and a run needs it twice."""
    rubric = load_rubric("esc_eval")
    dialogues, scores = synthetic.build()
    targets, _ = mean_targets(scores, {dialogue.id: dialogue for dialogue in dialogues}, rubric, BuildStep("scores"))
    split = split_cases(cases(dialogues, targets, rubric, "joint", BuildStep("mean scores")), "grouped", 0)["test"]
    held_out = {case.dialogue.id for case in split}
    return tuple(case.dialogue for case in split), tuple(score for score in scores if score.dialogue_id in held_out)


def describe(splits: dict[Split, list[RankCase]], rubric: Rubric) -> dict[str, Any]:
    """The content of labels.json: shares of the splits (against 7:1:2) and, for all and for each split, labels and baselines by
    language and dimension. A dialogue or group in several splits counts once in each."""
    order, rows = list(rubric.dimensions), []
    placed = [(split, case) for split, part in splits.items() for case in part]
    for split, part in (("all", [case for _, case in placed]), *splits.items()):
        means: dict[tuple[str, int], list[float]] = defaultdict(list)
        for case in part:
            for key, mean in case.target.items():
                means[case.dialogue.language, order.index(key)].append(mean)
        for (language, place), values in sorted(means.items()):
            rows.append({"split": split, "language": language, "dimension": order[place]} | majority(values))
    sides = {
        "examples": [(split, case.id) for split, case in placed],
        "dialogues": list(dict.fromkeys((split, case.dialogue.id) for split, case in placed)),
        "groups": list(dict.fromkeys((split, group_of(case.dialogue)) for split, case in placed)),
    }
    counted = {what: Counter(split for split, _ in pairs) for what, pairs in sides.items()}
    several = {what: sum(count > 1 for count in Counter(name for _, name in pairs).values()) for what, pairs in sides.items()}
    return {
        "wanted": dict(SHARES),
        "shares": {
            what: {split: counted[what][split] / max(1, len(pairs)) for split in SHARES} for what, pairs in sides.items()
        },
        "on_several_sides": {what: several[what] for what in ("dialogues", "groups")},
        "labels": rows,
    }


# --- train, valid and test --------------------------------------------------------------------------------------------------
# The paper's random split by dialogue, and splits that keep related dialogues together.


SHARES: dict[Split, float] = {"train": 0.7, "valid": 0.1, "test": 0.2}
_FOLDS: tuple[Split, ...] = ("train",) * 7 + ("valid",) + ("test",) * 2
_SIGNS = re.compile(r"\W+")
_FAMILIES = frozenset({"synthetic", "epitome"})  # sources whose source_id is BASE/VARIANT: variants of one seeker's text


def group_of(dialogue: Dialogue) -> str:
    """The key of dialogues that belong in one split: the role card (or profile) that was played, else the text that the
    dialogue is a variant of, else its own letters (some corpora have a dialogue under two ids)."""
    if dialogue.card_id is not None:
        return f"card {dialogue.card_id}"
    if dialogue.profile_id is not None:
        return f"profile {dialogue.profile_id}"
    if dialogue.source in _FAMILIES and dialogue.source_id is not None:
        return f"{dialogue.source} {dialogue.source_id.rpartition('/')[0] or dialogue.source_id}"
    return "dialogue " + digest(_SIGNS.sub("", "".join(turn.text for turn in dialogue.turns).lower()), 16)


def random_split(languages: Mapping[str, Language], seed: int) -> dict[str, Split]:
    """{dialogue id: split} of {dialogue id: language}, 7:1:2 of each language up to rounding: the paper's procedure (ESC-Eval
    section 3.4, table 4). A role card can be in train and in test, which flatters the ranker."""
    result: dict[str, Split] = {}
    for language in sorted(set(languages.values())):
        names = [name for name, its in languages.items() if its == language]
        random.Random(f"{seed}/random split/{language}").shuffle(names)
        train, valid = round(0.7 * len(names)), round(0.8 * len(names))
        result |= {name: "train" if n < train else "valid" if n < valid else "test" for n, name in enumerate(names)}
    return result


def grouped_split(groups: Sequence[str], labels: Sequence[str], seed: int) -> dict[str, Split]:
    """{group: split}, about 7:1:2 by rows, with about equal shares of each label in all splits. `groups` and `labels` have one
    entry per row; a group with rows of many labels (one per dimension) counts for each of them. Of ten folds by scikit-learn's
    StratifiedGroupKFold seven train, one validates, two test. Raises `UserError` for fewer than ten groups."""
    need_modules("sklearn", purpose="a grouped split")
    from sklearn.model_selection import StratifiedGroupKFold

    names = list(dict.fromkeys(groups))
    if len(names) < len(_FOLDS):
        raise UserError(
            f"a grouped 7:1:2 split needs at least {len(_FOLDS)} groups (role cards, or dialogues without one), and there are "
            f"{len(names)}: use --split random, or more dialogues"
        )
    codes = {label: code for code, label in enumerate(sorted(set(labels)))}
    classes = [codes[label] for label in labels]
    if max(Counter(classes).values()) < len(_FOLDS):
        classes = [0] * len(classes)  # too few rows of every label to stratify by
    rng = random.Random(f"{seed}/grouped split")
    folds = StratifiedGroupKFold(n_splits=len(_FOLDS), shuffle=True, random_state=rng.randrange(2**32))
    parts = rng.sample(_FOLDS, len(_FOLDS))  # the library only shuffles equal groups, so the roles of the folds are drawn here
    result: dict[str, Split] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a rare label has fewer rows than there are folds
        for split, (_, rows) in zip(parts, folds.split(classes, classes, list(groups)), strict=True):
            result |= {groups[row]: split for row in rows}
    return {name: result[name] for name in names}
