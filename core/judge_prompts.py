"""What a judge is asked: the messages that scoring sends and that a ranker is trained on, from one place.

Methods: `joint` (native: one request answers all dimensions, one digit each), `per_dimension` (native: one digit), `paper` (one
dimension, rubric first, as ESC-Eval publishes it, figures 12-19). Rankers are trained on these. Two more are only asked, with
one request for all dimensions: `bands` (the probability of every score, as FEEL has it) and `json` (a JSON object, as EmoHarbor
has it). `tree` asks the questions of a tree one by one, `tree_once` all of them in one request. `criteria` asks about each of a
case's own criteria (`evalsuite.judge.criteria`). `lines` and `pairs` ask in the words of a published pack alone, without a
system message: of all dimensions, and of one dimension of two dialogues.

Native prompts go from what is the same everywhere to what changes: the rules of all dimensions (system message), the dialogue,
the request. A server with a prefix cache then reads the rules once for a whole run and a dialogue once for all dimensions. The
packs decide how much of that they show; a pack for trained rankers leaves the rules out, EmoHarbor's keeps the paper's order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal

from core.files import CONFIGS
from core.languages import of, words
from core.prompts import PromptPack
from core.records import Dialogue, Language, Message, Turn
from core.rubrics import Rubric
from core.scales import NOT_APPLICABLE, word

PromptMethod = Literal["joint", "per_dimension", "paper"]
ALONE = ("lines", "pairs")  # asked in one message, which says all that the judge is told


def check_pack(prompts: PromptPack, method: str, languages: Iterable[Language]) -> None:
    """Raise `UserError` for a pack that has no judge's prompts for the method (packs may hold the seeker's alone)."""
    prompts.require(languages, templates_of(method))


def templates_of(method: str) -> list[str]:
    """The templates of the judge's system message and request."""
    return [_request(method)] if method in ALONE else [_system(method), _request(method)]


def published(method: str) -> bool:
    """Whether a method asks and reads as somebody published it: `paper`, and those of other frameworks, `…_paper`. It has a
    system message and a request of its own in the pack, and no config names it: it comes with mode: paper."""
    return method == "paper" or method.endswith("_paper")


def says_scale(prompts: PromptPack) -> bool:
    """Whether a pack says what the scale is and how to answer, of any rubric; others take digits, and their texts."""
    return any(prompts.folder.glob("*/_scale.j2"))


def asks(prompts: PromptPack, method: str, rubric: Rubric) -> bool:
    """Whether a pack asks by this method, and so that a judge learns the rubric's scale: of bundled packs, outside paper
    mode."""
    if published(method) or method in ("criteria", *ALONE) or says_scale(prompts):  # what these ask has no scale, or says it
        return True
    asked = any(prompts.folder.glob(f"*/{_request(method)}"))
    return asked and (rubric.told or (rubric.digits and prompts.folder.parent != CONFIGS / "prompts"))


def _system(method: str) -> str:
    return f"judge_{method}_system.j2" if published(method) else "judge_system.j2"


def _request(method: str) -> str:
    return "judge_dimension.j2" if method == "per_dimension" else f"judge_{method}.j2"


def transcript(dialogue: Dialogue) -> str:
    """The dialogue as native judges read it: see `transcript_of_turns`."""
    return transcript_of_turns(dialogue.turns, dialogue.language)


def transcript_of_turns(turns: Sequence[Turn], language: Language, states: bool = False, thought: str | None = None) -> str:
    """Turns as text: one numbered block a turn; lines inside a turn are indented, so that no text can pose as another turn.
    Whatever breaks a line somewhere (carriage returns, U+2028 and the like) counts as a line break.

    With `states`, what the seeker thought (`state.text`) stands before what it then said, as a block of the same number;
    `thought` is what it thinks now, before its next turn.
    """
    names, blocks = words(language), []
    inwardly = names.seeker + names.inwardly
    for number, turn in enumerate(turns, start=1):
        if states and (before := str((turn.state or {}).get("text", "")).strip()):
            blocks.append(f"[{number}] {inwardly}: {_indented(before)}")
        blocks.append(f"[{number}] {names[turn.role]}: {_indented(turn.text)}")
    if thought is not None:
        blocks.append(f"[{len(turns) + 1}] {inwardly}: {_indented(thought)}")
    return "\n".join(blocks)


def _indented(text: str) -> str:
    return "\n    ".join(text.strip().splitlines())


def paper_transcript(dialogue: Dialogue) -> str:
    """The dialogue as the published scorer builds it (ESC-Eval's repository, scoring script), odd parts included.

    Odd: "AI assistant" is replaced wherever it occurs, also inside what was said; the seeker's marker loses its colon and the
    supporter's keeps it; both get Chinese names in English dialogues too.
    """
    lines = [f"{'ESC-Role' if turn.role == 'seeker' else 'AI assistant'}：{turn.text}" for turn in dialogue.turns]
    return "\n\n".join(lines).replace("AI assistant", "**AI助手**").replace("ESC-Role：", "**用户**")


def judge_messages(
    prompts: PromptPack,
    rubric: Rubric,
    dialogue: Dialogue,
    method: str,
    dimensions: Sequence[str],
    more: Mapping[str, object] | None = None,
) -> list[Message]:
    """System and user message that ask for the scores of `dimensions` (exactly one by the methods per_dimension and paper).

    `more` are further values for both templates; a `transcript` among them is shown in place of the dialogue.
    """
    language, asked = dialogue.language, (rubric, dialogue.language, method, tuple(dimensions))
    values: dict[str, object] = {"transcript": paper_transcript(dialogue) if method == "paper" else transcript(dialogue)}
    values |= _asked_for(*asked) | dict(more or {})
    request: Message = {"role": "user", "content": prompts.render(language, _request(method), **values)}
    if method in ALONE:
        return [request]
    system = _system_message(prompts, *asked, more) if more else _shared_system_message(prompts, *asked)
    return [{"role": "system", "content": system}, request]


@lru_cache(maxsize=256)  # the same for all dialogues of a run
def _asked_for(rubric: Rubric, language: Language, method: str, dimensions: tuple[str, ...]) -> dict[str, object]:
    """What the request's template shows of the rubric."""
    scales = [rubric.scale_of(key) for key in dimensions]
    rules = _labelled(rubric, dimensions, language, method)
    one = method in ("per_dimension", "paper", "tree", "pairs")
    shown: dict[str, object] = {"dimension": rules[0]} if one else {"dimensions": rules}
    low, high = min(scale.min for scale in scales), max(scale.max for scale in scales)
    return shown | {"low": low, "high": high, "digits": rubric.digits}


def _system_message(
    prompts: PromptPack,
    rubric: Rubric,
    language: Language,
    method: str,
    dimensions: tuple[str, ...],
    more: Mapping[str, object],
) -> str:
    rules = _labelled(rubric, dimensions, language, method)
    if method == "per_dimension":  # it sees the rules of all: only so do its requests share the dialogue
        rules = [_rules(rubric, key, language) for key in rubric.dimensions]
    if method.startswith("tree"):  # a question stands where it is asked
        rules = []
    shown = {} if method == "paper" else {"dimensions": rules, "method": method, "digits": rubric.digits}
    return prompts.render(language, _system(method), **shown, **more)


@lru_cache(maxsize=256)
def _shared_system_message(
    prompts: PromptPack, rubric: Rubric, language: Language, method: str, dimensions: tuple[str, ...]
) -> str:
    """The same for all dialogues of a run: rendered once."""
    return _system_message(prompts, rubric, language, method, dimensions, {})


def _labelled(rubric: Rubric, dimensions: Sequence[str], language: Language, method: str) -> list[dict[str, object]]:
    """The rules of dimensions; where their scales differ, with the scale in the label."""
    rules = [_rules(rubric, key, language) for key in dimensions]
    scales = [rubric.scale_of(key) for key in dimensions]
    # The template of bands shows every score; and its answers, as all that are no digits, are found by the label.
    if len(set(scales)) > 1 and method != "bands" and rubric.digits:
        for rule, scale in zip(rules, scales, strict=True):
            rule["label"] = f"{rule['label']} ({scale.min}-{scale.max})"
    return rules


def _rules(rubric: Rubric, key: str, language: Language) -> dict[str, object]:
    """What templates show of a dimension. `levels` has every score of its scale, which is how a judge learns it where the
    dimensions' scales differ; a dash stands for a text that the rubric lacks. The pack `any_rubric` says what the scale is."""
    dimension, scale, nothing = rubric.dimensions[key], rubric.scale_of(key), word(NOT_APPLICABLE, language)
    levels = {scale.name(score, language): text for score, text in rubric.texts(key, language).items()}
    question = (rubric.questions or {}).get(key)
    return {
        "names": [*levels],
        "texts": [(name, text) for name, text in levels.items() if text],
        "named": bool(scale.levels),
        "low": f"{scale.min:g}",
        "high": f"{scale.max:g}",
        "step": scale.step,
        "worse": dimension.higher_is == "worse",
        "nothing": nothing if dimension.not_applicable else "",
        "leads": [
            (word(name, language), rubric.label(to.goto, language) if to.goto in rubric.dimensions else "")
            for name, to in (question.answers if question else {}).items()
        ],
        "key": key,
        "label": rubric.label(key, language),
        "facet": rubric.facet(key, language),
        "about": rubric.about(key, language),
        "examples": of(question.examples, language, "examples") if question and question.examples else "",
        "levels": [(score, text or "–") for score, text in rubric.texts(key, language).items()],
    }
