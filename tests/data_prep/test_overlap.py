"""Parts of other dialogues are found, whoever speaks them; small talk in common is not enough."""

from __future__ import annotations

import pytest

from data_prep.role_play.repeats import parts_of_others

SCENE = [
    "The harbour is frozen again.",
    "Then we walk to the island.",
    "With the piano?",
    "Especially with the piano.",
    "I see.",
]
OTHER = [
    "Nobody told the baker about the flood.",
    "He will notice when he opens the cellar.",
    "I see.",
    "Poor man, poor bread.",
]


@pytest.mark.parametrize(
    ("dialogues", "expected"),
    [
        ([SCENE, OTHER], [None, None]),
        ([SCENE, SCENE[:2]], [None, 0]),
        ([SCENE[:2], SCENE], [1, None]),  # the whole is kept, wherever it stands
        ([SCENE, SCENE], [None, 0]),
        ([SCENE, [line.upper().replace(" ", "  ") for line in SCENE[1:4]]], [None, 0]),
        ([SCENE, [SCENE[0], *OTHER]], [None, None]),  # one line in common of many
        ([["好的，我这就去港口看看情况。", "嗯"], ["好的，我这就去港口看看情况！"]], [None, 0]),
        ([], []),
        ([[], ["Yes."], ["Yes."]], [None, None, None]),  # nothing to tell them apart by: exact duplicates are another step
    ],
)
def test_parts(dialogues: list[list[str]], expected: list[int | None]) -> None:
    assert parts_of_others(dialogues) == expected


def test_lines_that_everybody_says_do_not_count() -> None:
    opening = "Hello, how are you doing today?"
    dialogues = [[opening, f"My {word} broke down in the middle of the night."] for word in "abcdefghijklmnopqrstuvwxyz"]
    assert parts_of_others([*dialogues, [opening]])[-1] is None
