"""The judge's prompts: the messages that scoring sends, and that rankers are trained on.

Methods: `joint` (native: one request for all dimensions, one digit each), `per_dimension` (native: one digit), `paper` (one
dimension, rubric first, as in ESC-Eval's figures 12-19); rankers are trained on these three. `bands` (the probability of every
score, as in FEEL) and `json` (an object, as in EmoHarbor) have one request for all dimensions. `tree` asks the questions of a
tree one by one, `tree_once` in one request, `criteria` about each of a case's own criteria. `lines` and `pairs` send a
published prompt without a system message: about all dimensions, and about one dimension of two dialogues.

Native prompts begin with what never changes: the rules (system message), then the dialogue, then the request, so that a server
with a prefix cache reads the rules once per run and a dialogue once for all dimensions.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal

from core.errors import UserError
from core.files import CONFIGS
from core.languages import of, words
from core.prompts import PromptPack
from core.records import Dialogue, Language, Message, Turn
from core.rubrics import Rubric
from core.scales import NOT_APPLICABLE, word

PromptMethod = Literal["joint", "per_dimension", "paper"]
ALONE = ("lines", "pairs")  # one user message, without a system message


def check_pack(prompts: PromptPack, method: str, languages: Iterable[Language]) -> None:
    """Raise `UserError` for a pack without judge prompts for the method (some packs have only the seeker's)."""
    prompts.require(languages, templates_of(method))


def templates_of(method: str) -> list[str]:
    """The templates of the judge's system message and request."""
    return [_request(method)] if method in ALONE else [_system(method), _request(method)]


def published(method: str) -> bool:
    """Whether a method follows a publication: `paper`, or `…_paper` of other frameworks. It has its own system message and
    request in the pack, and is chosen by `mode: paper`, never by name in a config."""
    return method == "paper" or method.endswith("_paper")


def says_scale(prompts: PromptPack) -> bool:
    """Whether a pack explains the scale and the form of the answer for any rubric. Other packs assume digits."""
    return any(prompts.folder.glob("*/_scale.j2"))


def asks(prompts: PromptPack, method: str, rubric: Rubric) -> bool:
    """Whether a pack has this method's request, and tells the judge the scale. Users' own packs are trusted to tell digits."""
    if published(method) or method in ("criteria", *ALONE) or says_scale(prompts):
        return True
    has_request = any(prompts.folder.glob(f"*/{_request(method)}"))
    return has_request and (rubric.told or (rubric.digits and prompts.folder.parent != CONFIGS / "prompts"))


def _system(method: str) -> str:
    return f"judge_{method}_system.j2" if published(method) else "judge_system.j2"


def _request(method: str) -> str:
    return "judge_dimension.j2" if method == "per_dimension" else f"judge_{method}.j2"


def transcript(dialogue: Dialogue) -> str:
    """The dialogue as native judges read it; see `transcript_of_turns`."""
    return transcript_of_turns(dialogue.turns, dialogue.language)


def transcript_of_turns(turns: Sequence[Turn], language: Language, states: bool = False, thought: str | None = None) -> str:
    """Turns as text, one numbered block per turn. Lines inside a turn are indented, so that no text can pose as another turn.
    With `states`, the seeker's thought (`state.text`) precedes its turn; `thought` is its thought before the next turn."""
    names, blocks = words(language), []
    inwardly = names.seeker + names.inwardly
    for number, turn in enumerate(turns, start=1):
        if states and (state := str((turn.state or {}).get("text", "")).strip()):
            blocks.append(f"[{number}] {inwardly}: {_indented(state)}")
        blocks.append(f"[{number}] {names[turn.role]}: {_indented(turn.text)}")
    if thought is not None:
        blocks.append(f"[{len(turns) + 1}] {inwardly}: {_indented(thought)}")
    return "\n".join(blocks)


def _indented(text: str) -> str:
    return "\n    ".join(text.strip().splitlines())


def paper_transcript(dialogue: Dialogue) -> str:
    """The dialogue as the published scorer builds it (ESC-Eval's repository), with its oddities: "AI assistant" is replaced
    inside turns too, only the seeker's marker loses its colon, and both have Chinese names in English dialogues too."""
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
    """The messages that ask for scores on `dimensions` (a single one with per_dimension, paper, tree and pairs). `more` has
    further values for both templates; a `transcript` among them replaces the dialogue's."""
    language, key = dialogue.language, (rubric, dialogue.language, method, tuple(dimensions))
    values: dict[str, object] = {"transcript": paper_transcript(dialogue) if method == "paper" else transcript(dialogue)}
    values |= _rubric_values(*key) | dict(more or {})
    content = prompts.render(language, _request(method), **values)
    if not more and str(values["transcript"])[:4] not in content:  # the mark of its first turn
        raise UserError(f"{prompts.folder}: {_request(method)} does not show the dialogue: keep {{{{ transcript }}}}")
    request: Message = {"role": "user", "content": content}
    if method in ALONE:
        return [request]
    system = _system_message(prompts, *key, more) if more else _shared_system_message(prompts, *key)
    return [{"role": "system", "content": system}, request]


@lru_cache(maxsize=256)  # the same for all dialogues of a run
def _rubric_values(rubric: Rubric, language: Language, method: str, dimensions: tuple[str, ...]) -> dict[str, object]:
    scales = [rubric.scale_of(key) for key in dimensions]
    rules = _labelled(rubric, dimensions, language, method)
    single = method in ("per_dimension", "paper", "tree", "pairs")
    values: dict[str, object] = {"dimension": rules[0]} if single else {"dimensions": rules}
    low, high = min(scale.min for scale in scales), max(scale.max for scale in scales)
    return values | {"low": low, "high": high, "digits": rubric.digits}


def _system_message(
    prompts: PromptPack,
    rubric: Rubric,
    language: Language,
    method: str,
    dimensions: tuple[str, ...],
    more: Mapping[str, object],
) -> str:
    rules = _labelled(rubric, dimensions, language, method)
    if method == "per_dimension":  # all rules, so that the requests about a dialogue share their prefix
        rules = [_rules(rubric, key, language) for key in rubric.dimensions]
    if method.startswith("tree"):  # the request has the question
        rules = []
    values = {} if method == "paper" else {"dimensions": rules, "method": method, "digits": rubric.digits}
    return prompts.render(language, _system(method), **values, **more)


@lru_cache(maxsize=256)
def _shared_system_message(
    prompts: PromptPack, rubric: Rubric, language: Language, method: str, dimensions: tuple[str, ...]
) -> str:
    """The system message without `more`, the same for all dialogues of a run."""
    return _system_message(prompts, rubric, language, method, dimensions, {})


def _labelled(rubric: Rubric, dimensions: Sequence[str], language: Language, method: str) -> list[dict[str, object]]:
    """The rules of dimensions; if their scales differ, labels include the scale."""
    rules = [_rules(rubric, key, language) for key in dimensions]
    scales = [rubric.scale_of(key) for key in dimensions]
    # The template of bands shows every score. Its answers, like all that are not digits, are found by their label.
    if len(set(scales)) > 1 and method != "bands" and rubric.digits:
        for rule, scale in zip(rules, scales, strict=True):
            rule["label"] = f"{rule['label']} ({scale.min}-{scale.max})"
    return rules


def _rules(rubric: Rubric, key: str, language: Language) -> dict[str, object]:
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
