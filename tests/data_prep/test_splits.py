"""Splits: the paper's random dialogues, and grouped ones that keep a card's dialogues together."""

import random
from collections import Counter

import pytest

from core.errors import UserError
from core.records import Dialogue, Language, Turn
from data_prep.scores.rank_sft import SHARES, group_of, grouped_split, random_split


@pytest.mark.parametrize(("count", "expected"), [(10, (7, 1, 2)), (100, (70, 10, 20)), (8_522, (5_965, 853, 1_704))])
def test_random_dialogues_are_7_1_2(count: int, expected: tuple[int, int, int]) -> None:
    found = Counter(random_split({f"d{n}": "en" for n in range(count)}, 3).values())
    assert (found["train"], found["valid"], found["test"]) == expected


def test_the_papers_arithmetic() -> None:
    """59,654 ratings: 331 en cards with 14 supporters, 324 zh with 12, 7 dimensions. Table 4's shares are of 927 and of 779
    (a fifth of 3,888 is 777.6) in each dimension: dialogues of a language are divided, not ratings."""
    languages: dict[str, Language] = {f"{card}/{supporter}": "en" for card in range(331) for supporter in range(14)}
    languages |= {f"{card}/{supporter} (zh)": "zh" for card in range(324) for supporter in range(12)}
    assert 7 * len(languages) == 59_654
    splits = random_split(languages, 0)
    assert Counter(languages[name] for name, split in splits.items() if split == "test") == {"en": 927, "zh": 778}


def test_random_dialogues_do_not_depend_on_the_other_languages() -> None:
    english: dict[str, Language] = {f"e{n}": "en" for n in range(50)}
    both: dict[str, Language] = {f"z{n}": "zh" for n in range(50)}
    both |= english
    assert random_split(english, 1).items() <= random_split(both, 1).items()
    assert random_split(both, 1) != random_split(both, 2)


def rated(count: int = 300, rows: int = 6) -> tuple[list[str], list[str]]:
    """Groups of 1 to `rows` rows; label 4 is rare, and a group leans to one label."""
    rng = random.Random(5)
    groups, labels = [], []
    for group in range(count):
        lean = rng.choices(range(5), (40, 30, 20, 7, 3))[0]
        for _ in range(rng.randint(1, rows)):
            groups.append(f"card {group}")
            labels.append(str(lean if rng.random() < 0.7 else rng.randrange(4)))
    return groups, labels


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, -7, 2**40])
def test_grouped_split_is_near_7_1_2_and_near_the_whole_in_every_label(seed: int) -> None:
    groups, labels = rated()
    split = grouped_split(groups, labels, seed)
    assert list(split) == list(dict.fromkeys(groups))
    rows = [split[group] for group in groups]
    for name, share in ((split, rows.count(split) / len(rows)) for split in SHARES):
        assert abs(share - {"train": 0.7, "valid": 0.1, "test": 0.2}[name]) < 0.01
    for name in SHARES:
        mine = [label for label, row in zip(labels, rows, strict=True) if row == name]
        for label in set(labels):
            assert abs(mine.count(label) / len(mine) - labels.count(label) / len(labels)) < 0.03, (name, label)


def test_ten_groups_with_hardly_a_label_in_common_still_split() -> None:
    names = [f"g{i}" for i in range(10)]
    assert Counter(grouped_split(names, names, 0).values()) == {"train": 7, "valid": 1, "test": 2}
    with pytest.raises(UserError, match="at least 10 groups.*there are 9"):
        grouped_split(names[:9], names[:9], 0)


@pytest.mark.parametrize(
    ("fields", "group"),
    [
        ({"source": "esc_eval", "source_id": "a/b", "card_id": "c7"}, "card c7"),
        ({"source": "simulated", "profile_id": "p"}, "profile p"),
        ({"source": "synthetic", "source_id": "base-3/cold"}, "synthetic base-3"),
        ({"source": "epitome", "source_id": "post/reply"}, "epitome post"),
        ({"source": "esconv", "source_id": "train/0"}, "dialogue 782beb2948d61c6b"),  # of its letters, "ab"
        ({"source": "esconv_multi", "source_id": "valid/7"}, "dialogue 782beb2948d61c6b"),
    ],
)
def test_what_belongs_together(fields: dict[str, str], group: str) -> None:
    turns = (Turn(role="seeker", text="a"), Turn(role="supporter", text="b"))
    assert group_of(Dialogue.model_validate({"id": "d", "language": "en", "turns": turns} | fields)) == group
