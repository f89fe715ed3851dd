"""Examples become token ids and labels, and nothing is lost on the way without being counted.

The chat template is ours: it writes every message as `<|im_start|>role`, newline, text, `<|im_end|>`, newline (ChatML), adds no
system message of its own (Qwen1.5's and SmolLM2's stock templates do when there is none), and marks the assistant's text and
its `<|im_end|>` for the loss, so that the model learns to stop. Qwen1.5, InternLM2 and SmolLM2 were all trained on this form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import UserError
from core.files import digest, read_object, sha256_file
from core.markers import markers_of
from core.records import Message
from data_prep.role_play.examples import RoleExample
from data_prep.scores.rank_sft import RankExample
from train.example_files import beside, hub_dataset

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

IGNORED = -100  # a label that carries no loss
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}"
    "{{ '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

SAMPLE: list[Message] = [
    {"role": "system", "content": "You are A."},
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "How are you?"},
]


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, what: str) -> None:
    """Raise `UserError` unless both turn markers are single tokens: otherwise the base was not made for ChatML."""
    for marker in ("<|im_start|>", "<|im_end|>"):
        if len(tokenizer.encode(marker, add_special_tokens=False)) != 1:
            raise UserError(f"{what}: {marker} is not one token of its tokenizer: this base does not speak ChatML")


def chatml(tokenizer: PreTrainedTokenizerBase) -> str:
    """Our template for this tokenizer: after its beginning-of-text token where its own template writes one (InternLM2's does),
    because servers prompt with the checkpoint's own template."""
    if not tokenizer.chat_template or not tokenizer.bos_token:
        return CHATML
    text = tokenizer.apply_chat_template(SAMPLE, tokenize=False)
    return (
        "{{ bos_token }}" if text.startswith(tokenizer.bos_token) and tokenizer.bos_token != "<|im_start|>" else ""
    ) + CHATML


def serves_alike(tokenizer: PreTrainedTokenizerBase, with_system: bool = True) -> bool:
    """Whether the tokenizer's own template, which servers use, prompts as ours does, when there is a system message or none."""
    if not tokenizer.chat_template:
        return False
    texts = [
        tokenizer.apply_chat_template(
            SAMPLE if with_system else SAMPLE[1:], chat_template=template, tokenize=False, add_generation_prompt=True
        )
        for template in (None, chatml(tokenizer))
    ]
    return bool(texts[0] == texts[1])


def neutral(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> tuple[list[Message], int]:
    """Messages whose text holds no control token, and how many were broken up. Every role's text is data here."""
    texts = [markers_of(tokenizer).neutral(message["content"]) for message in messages]
    kept: list[Message] = [{"role": m["role"], "content": text} for m, (text, _) in zip(messages, texts, strict=True)]
    return kept, sum(count for _, count in texts)


def encode(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], template: str | None = None
) -> tuple[list[int], list[int]]:
    """Token ids of a dialogue and labels of the same length: the id where the assistant speaks, `IGNORED` elsewhere.

    `template` is `chatml(tokenizer)`, for callers that encode many.
    """
    out = tokenizer.apply_chat_template(
        neutral(tokenizer, messages)[0],
        chat_template=template or chatml(tokenizer),
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    ids = list(out["input_ids"])
    return ids, [token if marked else IGNORED for token, marked in zip(ids, out["assistant_masks"], strict=True)]


def encode_prompt(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], template: str | None = None) -> list[int]:
    """The tokens before the assistant's next line: what `encode` of the longer dialogue begins with."""
    out = tokenizer.apply_chat_template(
        neutral(tokenizer, messages)[0],
        chat_template=template or chatml(tokenizer),
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
    """What the trainer gets: `input_ids` and `labels` of equal length, and what the ranker's loss needs. The ranker may pack
    several examples into a row (`train.trainers.as_trees`)."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Examples left out, by reason."""
    cut: int = 0
    """Examples shortened to fit."""
    markers: int = 0
    """Control markers in the texts of all examples that were read, which were broken up."""

    @property
    def tokens(self) -> int:
        return sum(len(row["input_ids"]) for row in self.rows)

    @property
    def trained_tokens(self) -> int:
        return sum(label != IGNORED for row in self.rows for label in row["labels"])

    def dataset(self) -> Dataset:
        """The rows as a `datasets` table (rows are kept in their order)."""
        from datasets import Dataset

        return Dataset.from_list(self.rows)

    def identity(self) -> dict[str, Any]:
        """What a model card says about this file: its hash (of a data set on the hub, that of its examples), that of the
        manifest beside it, how many examples were used, and the prompt pack that they were written in, where the manifest names
        one."""
        manifest = beside(self.path, "manifest.json")
        there = manifest.is_file()
        settings = read_object(manifest, "the manifest of the examples").get("settings") if there else None
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
            "manifest_sha256": sha256_file(manifest) if there else None,
            "examples": len(self.examples),
            **({"prompts": pack} if pack else {}),
        }

    def summary(self) -> str:
        """One line for the log."""
        parts = [f"{len(self.examples)} examples", f"{self.tokens:,} tokens", f"{self.trained_tokens:,} carry loss"]
        parts += [f"{self.cut} cut to fit"] if self.cut else []
        parts += [f"{self.markers} control markers in texts broken up"] if self.markers else []
        parts += [f"{count} dropped: {reason}" for reason, count in self.dropped.items()]
        return f"{self.path}: " + ", ".join(parts)

    def packed(self) -> str:
        """One line for the log, once examples that begin alike share a row."""
        return f"{self.path}: {len(self.rows)} rows, {self.tokens:,} tokens: what examples share is read once"


@lru_cache(maxsize=8)
def _control_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    return frozenset(tokenizer.convert_tokens_to_ids(markers_of(tokenizer).own))


def _encoded(
    prepared: Prepared, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], template: str
) -> tuple[list[int], list[int]] | None:
    """`encode` for a file's rows. None, and counted, where the tokenizer makes a control token of text all the same: some
    normalise it before they look for tokens."""
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
    """Seeker lines carry the loss; a dialogue longer than `max_length` tokens is cut at its end.

    Raises `UserError` when no example has a token that carries loss.
    """
    prepared, template = Prepared(path, [], []), chatml(tokenizer)
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
    """The answer carries the loss; with `over_scale` only its scores do, not its end marker.

    `score_tokens` maps each score of the scale to its token. An example longer than `max_length` is dropped, never cut: a
    ranker that has not read the whole dialogue learns something else.
    Raises `UserError` for a label off the scale, an answer that is not its labels or that the tokenizer merges, and when
    nothing is left.
    """
    prepared, template = Prepared(path, [], []), chatml(tokenizer)
    values = set(score_tokens.values())
    for number, example in enumerate(examples, start=1):
        where = f"{path}: example {number} ({example.id})"
        for key, label in example.labels.items():
            if str(label) not in score_tokens:
                known = ", ".join(score_tokens)
                raise UserError(f"{where}: labels.{key}: {label} is off the scale ({known})")
        answer = example.completion[-1]["content"]
        if answer != "".join(map(str, example.labels.values())):
            raise UserError(f"{where}: completion: {answer!r} is not its labels {list(example.labels.values())}")
        if (row := _encoded(prepared, tokenizer, [*example.prompt, *example.completion], template)) is None:
            continue
        ids, labels = row
        digits = [label for label in labels if label in values]
        if digits != [score_tokens[str(label)] for label in example.labels.values()]:
            raise UserError(f"{where}: completion: the base's tokenizer does not write {answer!r} as one token a score")
        if max_length is not None and len(ids) > max_length:
            prepared.dropped[f"longer than max_length {max_length}"] += 1
            continue
        if over_scale:
            labels = [label if label in values else IGNORED for label in labels]
        prepared.examples.append(example)
        prepared.rows.append({"input_ids": ids, "labels": labels})
    return _not_empty(prepared, max_length)


def check_disjoint(train: Prepared, valid: Prepared) -> None:
    """Raise `UserError` when validation has examples that are trained on."""
    if {example.id for example in train.examples} & {example.id for example in valid.examples}:
        raise UserError(f"{valid.path}: shares examples with {train.path}: validation on them would mean nothing")


def _not_empty(prepared: Prepared, max_length: int | None) -> Prepared:
    if not prepared.rows:
        reasons = "; ".join(f"{reason}: {count}" for reason, count in prepared.dropped.items())
        raise UserError(f"{prepared.path}: no token to train on is left ({reasons}): raise max_length or give other data")
    return prepared


def score_tokens(tokenizer: PreTrainedTokenizerBase, scores: Sequence[int], what: str) -> dict[str, int]:
    """The token of each score; `UserError` when one is not a single token."""
    tokens = {}
    for score in scores:
        # As an answer: some tokenizers put a space before text that stands alone.
        _, labels = encode(tokenizer, [{"role": "assistant", "content": str(score)}])
        answer = [label for label in labels if label != IGNORED][:-1]  # without <|im_end|>
        if len(answer) != 1:
            raise UserError(f"{what}: its tokenizer writes the score {score} with {len(answer)} tokens; one is needed")
        tokens[str(score)] = answer[0]
    return tokens
