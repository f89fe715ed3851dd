"""Converts examples to token ids and labels, and counts everything that is dropped or cut.

A chat template (`template_of`) marks the assistant's text and the token that ends it for the loss, so that the model learns to
stop. Unlike Qwen1.5's and SmolLM2's own templates, ours add no default system message; nor do they add a date.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from core.errors import UserError
from core.files import CONFIGS, digest, read_object, read_text, sha256_file
from core.markers import markers_of
from core.records import Message
from data_prep.cards import load_cards
from data_prep.role_play.examples import RoleExample
from data_prep.scores.rank_sft import RankExample
from train.example_files import beside, draw, hub_dataset, read_rank, read_role, rubric_beside

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

    from train.recipes import Recipe

IGNORED = -100  # a label that carries no loss
TEMPLATES = CONFIGS / "chat_templates" / "training"
# Our templates by the markers that have to be single tokens of a base's tokenizer.
FAMILIES = {
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "llama3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "gemma": ("<start_of_turn>", "<end_of_turn>"),
    "mistral": ("[INST]", "[/INST]"),
}
SAMPLE: list[Message] = [
    {"role": "system", "content": "you are a."},
    {"role": "user", "content": "hello."},
    {"role": "assistant", "content": "hi."},
    {"role": "user", "content": "how are you."},
    {"role": "assistant", "content": "fine."},
]


@dataclass(frozen=True)
class Template:
    """A chat template that marks the assistant's text for the loss, and the token that ends it."""

    text: str
    end: int


def template_of(tokenizer: PreTrainedTokenizerBase) -> Template:
    """The template to train a base in: its own if that marks the assistant's text, else TRL's, else ours for its family.

    It is the first under which a sample dialogue's labels decode to the assistant's text and an end token, and whose prompts
    are prefixes of the training text. Raises `UserError` if there is none, with the problems of each.
    """
    own = tokenizer.chat_template
    return _template(tokenizer, own.get("default") if isinstance(own, dict) else own)  # a tokenizer may have several, by name


@lru_cache(maxsize=8)
def _template(tokenizer: PreTrainedTokenizerBase, own: str | None) -> Template:
    from trl.chat_template_utils import get_training_chat_template, has_generation_markers

    tried: dict[str, str] = {}
    if own and has_generation_markers(own):
        tried["its own"] = own
    elif own:
        with suppress(ValueError):  # TRL does not know it
            tried["TRL's"] = get_training_chat_template(tokenizer) or own
    for family, markers in sorted(FAMILIES.items(), key=lambda item: item[1][0] not in (own or "")):
        if all(len(tokenizer.encode(marker, add_special_tokens=False)) == 1 for marker in markers):
            # Servers use the checkpoint's own template, and InternLM2's begins with the beginning-of-text token.
            begun = own and tokenizer.bos_token and _rendered(tokenizer, SAMPLE, own).startswith(tokenizer.bos_token)
            start = "{{ bos_token }}" if family == "chatml" and begun and tokenizer.bos_token != markers[0] else ""
            tried[f"ours for {family}"] = start + read_text(TEMPLATES / f"{family}.jinja", "a chat template")
    problems = []
    for name, text in tried.items():
        ends = [_end(tokenizer, text, messages) for messages in (SAMPLE, SAMPLE[1:])]
        if isinstance(ends[0], int) and ends[0] == ends[1]:
            return Template(text, ends[0])
        problems.append(f"{name}: {next((end for end in ends if isinstance(end, str)), 'two tokens end a message')}")
    why, families = "; ".join(problems) or "none that TRL knows", ", ".join(FAMILIES)
    remedy = f"give it one with {{% generation %}}, or the markers of {families} as single tokens"
    raise UserError(f"no chat template that marks the assistant's text ({why}): {remedy}")


def _rendered(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], template: str | None, start: bool = False
) -> str:
    """A dialogue as text, or "refused: " and the reason if the template raises an error."""
    options: dict[str, Any] = {"chat_template": template, "tokenize": False, "add_generation_prompt": start}
    try:
        return str(tokenizer.apply_chat_template([*messages], **options))
    except (TemplateError, TypeError, ValueError) as error:
        return f"refused: {error}"


def _end(tokenizer: PreTrainedTokenizerBase, text: str, messages: Sequence[Message]) -> int | str:
    """The token that ends the assistant's messages under a template, or the template's problem in words."""
    if "strftime_now" in text:
        return "it writes today's date"
    if (problem := _rendered(tokenizer, messages, text)).startswith("refused: "):
        return problem
    ids, labels = encode(tokenizer, messages, Template(text, -1))
    if lost := [message["content"] for message in messages if message["content"] not in tokenizer.decode(ids)]:
        return f"it leaves out {lost[0]!r}"
    ends, place = set[int](), 0
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = encode_prompt(tokenizer, messages[:number], Template(text, -1))
        span = list(takewhile(lambda label: label != IGNORED, labels[len(prompt) :]))
        while span and not tokenizer.decode(span[-1:]).strip():
            span.pop()
        if ids[: len(prompt)] != prompt or any(label != IGNORED for label in labels[place : len(prompt)]):
            return "what it marks does not begin where a prompt ends"
        if not span or tokenizer.decode(span[:-1]).strip() != message["content"]:
            return f"its labels are {tokenizer.decode(span)!r}, not {message['content']!r} and one token that ends it"
        ends.add(span[-1])
        place = len(prompt) + len(span) + 1
    return ends.pop() if len(ends) == 1 else "several tokens end a message"


def unmarked(template: Template) -> str:
    """The template for a server, whose Jinja lacks the generation tags."""
    tags = r"({%-?\s*)(end)?generation(\s*-?%})"
    return re.sub(tags, lambda tag: f"{tag[1]}{'endif' if tag[2] else 'if true'}{tag[3]}", template.text)


def serves_alike(tokenizer: PreTrainedTokenizerBase, with_system: bool = True) -> bool:
    """Whether the tokenizer's own template, which servers use, gives the same prompt as ours."""
    if not tokenizer.chat_template:
        return False
    messages = SAMPLE[not with_system : -1]
    return _rendered(tokenizer, messages, None, True) == _rendered(tokenizer, messages, template_of(tokenizer).text, True)


def neutral(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> tuple[list[Message], int]:
    """The messages without control tokens in their texts, and the number that were broken up."""
    texts = [markers_of(tokenizer).neutral(message["content"]) for message in messages]
    kept: list[Message] = [{"role": m["role"], "content": text} for m, (text, _) in zip(messages, texts, strict=True)]
    return kept, sum(count for _, count in texts)


def encode(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], template: Template | None = None
) -> tuple[list[int], list[int]]:
    """Token ids of a dialogue, and labels of the same length: the id in the assistant's text and its end, else `IGNORED`."""
    template = template or template_of(tokenizer)
    out = tokenizer.apply_chat_template(
        neutral(tokenizer, messages)[0],
        chat_template=template.text,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    ids, labels, ended = list(out["input_ids"]), list[int](), False
    for token, marked in zip(ids, out["assistant_masks"], strict=True):
        labels.append(token if marked and not ended else IGNORED)  # some templates also mark a line end after the end token
        ended = bool(marked) and (ended or token == template.end)
    return ids, labels


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], template: Template | None = None
) -> list[int]:
    """The tokens before the assistant's next line, a prefix of `encode` of the longer dialogue."""
    out = tokenizer.apply_chat_template(
        neutral(tokenizer, messages)[0],
        chat_template=(template or template_of(tokenizer)).text,
        tokenize=True,
        return_dict=True,
        add_generation_prompt=True,
    )
    return list(out["input_ids"])


@dataclass
class Prepared:
    """A tokenised file."""

    path: Path
    """The file."""
    examples: list[Any]
    """The examples that are kept."""
    rows: list[dict[str, Any]]
    """The trainer's rows: `input_ids` and `labels` of equal length, and further columns for the ranker's loss."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Examples left out, by reason."""
    cut: int = 0
    """Examples shortened to fit."""
    markers: int = 0
    """Control markers that were broken up in the texts of all examples."""

    @property
    def tokens(self) -> int:
        return sum(len(row["input_ids"]) for row in self.rows)

    def dataset(self) -> Dataset:
        """The rows as a `datasets` table, in their order."""
        from datasets import Dataset

        return Dataset.from_list(self.rows)

    def identity(self) -> dict[str, Any]:
        """The facts about this file for a model card, and for a training that resumes."""
        manifest = beside(self.path, "manifest.json")
        has_manifest = manifest.is_file()
        settings = read_object(manifest, "the manifest of the examples").get("settings") if has_manifest else None
        pack: str | None = None
        match settings:
            case {"prompts": {"pack": str(pack)}} | {"config": {"prompts": str(pack)}}:  # of rank-sft, of role-sft
                pass
        if hub_dataset(self.path):
            name, content = str(self.path), digest([example.model_dump(mode="json") for example in self.examples])
        elif self.path.is_dir():
            name, content = self.path.name, digest([sha256_file(part) for part in sorted(self.path.glob("*.arrow"))])
        else:
            name, content = self.path.name, sha256_file(self.path)
        return {
            "file": name,
            "sha256": content,
            "manifest_sha256": sha256_file(manifest) if has_manifest else None,
            "examples": len(self.examples),
            **({"prompts": pack} if pack else {}),
        }

    def summary(self) -> str:
        """One line for the log."""
        trained = sum(label != IGNORED for row in self.rows for label in row["labels"])
        parts = [f"{len(self.examples)} examples", f"{self.tokens:,} tokens", f"{trained:,} carry loss"]
        parts += [f"{self.cut} cut to fit"] if self.cut else []
        parts += [f"{self.markers} control markers in texts broken up"] if self.markers else []
        parts += [f"{count} dropped: {reason}" for reason, count in self.dropped.items()]
        return f"{self.path}: " + ", ".join(parts)

    def packed(self) -> str:
        """One line for the log, after `as_trees`."""
        return f"{self.path}: {len(self.rows)} rows, {self.tokens:,} tokens: common prefixes of examples are read once"


@lru_cache(maxsize=8)
def _control_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    return frozenset(tokenizer.convert_tokens_to_ids(markers_of(tokenizer).own))


def _encoded(
    prepared: Prepared, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], template: Template
) -> tuple[list[int], list[int]] | None:
    """`encode` for a file's rows; None, and counted, if the tokenizer still finds a control token in the text."""
    prepared.markers += neutral(tokenizer, messages)[1]
    ids, labels = encode(tokenizer, messages, template)
    control = _control_ids(tokenizer)
    bare, _ = encode(tokenizer, [{"role": message["role"], "content": ""} for message in messages], template)
    if [token for token in ids if token in control] == [token for token in bare if token in control]:
        return ids, labels
    prepared.dropped["a control token in its text that cannot be broken up"] += 1
    return None


def prepare_role(
    path: Path, examples: Sequence[RoleExample], tokenizer: PreTrainedTokenizerBase, max_length: int | None
) -> Prepared:
    """Rows with the loss on seeker lines; a dialogue is cut at `max_length` tokens. Raises `UserError` if nothing is left."""
    prepared, template = Prepared(path, [], []), template_of(tokenizer)
    for example in examples:
        if (row := _encoded(prepared, tokenizer, example.messages, template)) is None:
            continue
        ids, labels = row
        if max_length is not None and len(ids) > max_length:
            ids, labels = ids[:max_length], labels[:max_length]
            prepared.cut += 1
        if all(label == IGNORED for label in labels):
            prepared.dropped[f"no seeker line within max_length {max_length}"] += 1
            continue
        prepared.examples.append(example)
        prepared.rows.append({"input_ids": ids, "labels": labels})
    return _not_empty(prepared, max_length)


def prepare_rank(
    path: Path,
    examples: Sequence[RankExample],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None,
    score_tokens: dict[str, int],
    over_scale: bool = False,
) -> Prepared:
    """Rows with the loss on the answer or, with `over_scale`, only on its scores. `score_tokens` maps each score to its token.
    An example longer than `max_length` is dropped, never cut. Raises `UserError` for a label off the scale, an answer that
    differs from its labels or that the tokenizer merges, and if nothing is left."""
    prepared, template = Prepared(path, [], []), template_of(tokenizer)
    values = set(score_tokens.values())
    for number, example in enumerate(examples, start=1):
        where = f"{path}: example {number} ({example.id})"
        for key, label in example.labels.items():
            if str(label) not in score_tokens:
                raise UserError(f"{where}: labels.{key}: {label} is off the scale ({', '.join(score_tokens)})")
        answer = example.completion[-1]["content"]
        if answer != "".join(map(str, example.labels.values())):
            raise UserError(f"{where}: completion: {answer!r} is not its labels {list(example.labels.values())}")
        if (row := _encoded(prepared, tokenizer, [*example.prompt, *example.completion], template)) is None:
            continue
        ids, labels = row
        digits = [label for label in labels if label in values]
        if digits != [score_tokens[str(label)] for label in example.labels.values()]:
            raise UserError(f"{where}: completion: the base's tokenizer does not write {answer!r} with one token per score")
        if max_length is not None and len(ids) > max_length:
            prepared.dropped[f"longer than max_length {max_length}"] += 1
            continue
        if over_scale:
            labels = [label if label in values else IGNORED for label in labels]
        prepared.examples.append(example)
        prepared.rows.append({"input_ids": ids, "labels": labels})
    return _not_empty(prepared, max_length)


def load_examples(recipe: Recipe[Any], tokenizer: PreTrainedTokenizerBase) -> tuple[Prepared, Prepared, dict[str, int]]:
    """A recipe's training and validation examples (for a supporter role cards), and a ranker's score tokens."""
    data, training, tokens = recipe.data, recipe.training, dict[str, int]()
    if recipe.task == "rank":
        scores = [*map(int, rubric_beside(Path(data.train_file)).scores)]
        tokens = score_tokens(tokenizer, scores, f"base {recipe.model.model_name_or_path}")

    def split(file: str, limit: int, seed: int) -> Prepared:
        path = Path(file)
        if recipe.task == "supporter":
            cards = draw(load_cards(path), limit, seed)
            return Prepared(path, cards, [{"prompt": card.id} for card in cards])
        if recipe.task == "role":
            return prepare_role(path, read_role(path, limit, seed), tokenizer, training.max_length)
        examples = read_rank(path, data.dimension, data.language, limit, seed)
        return prepare_rank(path, examples, tokenizer, training.max_length, tokens, data.loss_over == "scale")

    train = split(data.train_file, data.max_train_examples, training.seed)
    valid = split(data.valid_file, data.max_valid_examples, 0)
    if both := {example.id for example in train.examples} & {example.id for example in valid.examples}:
        raise UserError(f"{valid.path}: shares examples with {train.path}: {min(both)}; validate on other examples")
    return train, valid, tokens


def _not_empty(prepared: Prepared, max_length: int | None) -> Prepared:
    if not prepared.rows:
        reasons = "; ".join(f"{reason}: {count}" for reason, count in prepared.dropped.items())
        raise UserError(f"{prepared.path}: no token to train on is left ({reasons}): raise max_length or give other data")
    return prepared


def score_tokens(tokenizer: PreTrainedTokenizerBase, scores: Sequence[int], what: str) -> dict[str, int]:
    """The token of each score; `UserError` for a score that is not a single token."""
    tokens = {}
    for score in scores:
        # As an answer, since some tokenizers put a space before text without context.
        _, labels = encode(tokenizer, [SAMPLE[1], {"role": "assistant", "content": str(score)}])
        answer = [label for label in labels if label != IGNORED][:-1]  # without the token that ends it
        if len(answer) != 1:
            raise UserError(f"{what}: its tokenizer writes the score {score} with {len(answer)} tokens; one is needed")
        tokens[str(score)] = answer[0]
    return tokens
