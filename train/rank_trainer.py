"""The ranker's trainer: loss on the answer's tokens only (the logits of the prompt are never computed), as cross-entropy or
with an ordinal term, and a validation in which the model gives its digits itself, as in scoring (`train.decoding`).

Where every answer is one digit, a row holds all questions about a dialogue as a tree (`train.prefix_tree`), read once.

Shapes: B rows, T tokens of the longest row, K answer tokens of the one that has most (end markers included), D scores a row,
S scores of the scale.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import EvalPrediction
from trl import SFTTrainer

from core.statistics.accuracy import accuracy, ece, quadratic_kappa, round_half_up, spearman
from core.statistics.means import mean_of_all
from data_prep.scores.rank_sft import RankExample
from train.chat_templates import IGNORED
from train.decoding import greedy
from train.last_layer import LastLayer
from train.prefix_tree import alike, tree, visible
from train.sampling import SeededOrder

Key = tuple[str, str]  # language, dimension


def keys_of(examples: Sequence[RankExample]) -> list[Key]:
    """Every (language, dimension) that is scored, in the order of first use."""
    return list(dict.fromkeys((e.language, dimension) for e in examples for dimension in e.labels))


def balanced_weights(examples: Sequence[RankExample]) -> dict[tuple[Key, int], float]:
    """A weight for each label of each (language, dimension): inverse to its frequency, with mean 1 over the examples."""
    counts: Counter[tuple[Key, int]] = Counter()
    totals: Counter[Key] = Counter()
    for e in examples:
        for dimension, label in e.labels.items():
            counts[(e.language, dimension), label] += 1
            totals[e.language, dimension] += 1
    present = Counter(key for key, _ in counts)
    return {(key, label): totals[key] / (present[key] * count) for (key, label), count in counts.items()}


def add_scores(
    rows: list[dict[str, Any]],
    examples: Sequence[RankExample],
    keys: Sequence[Key],
    weights: dict[tuple[Key, int], float] | None = None,
) -> None:
    """Give every row `keys` [D] (index of language and dimension), `targets` [D] (mean of the annotators), `weights` [D]."""
    index = {key: number for number, key in enumerate(keys)}
    for row, example in zip(rows, examples, strict=True):
        pairs = [(example.language, dimension) for dimension in example.labels]
        row["keys"] = [index[pair] for pair in pairs]
        row["targets"] = [float(example.target[dimension]) for dimension in example.labels]
        row["weights"] = [
            weights.get((pair, label), 1.0) if weights else 1.0
            for pair, label in zip(pairs, example.labels.values(), strict=True)
        ]


def as_trees(rows: Sequence[dict[str, Any]], examples: Sequence[RankExample]) -> list[dict[str, Any]]:
    """Rows of one answer each as rows of many: those about one dialogue that begin alike in one tree.

    `input_ids`, `positions`, `until` [T] are the tree's, `labels` [K] the answers' tokens and `places` [K]
    where in the tree each of them is foretold; `keys`, `targets`, `weights` [D] follow the answers' order.
    """
    # The last token of an answer is foretold and foretells nothing.
    sequences = [row["input_ids"][:-1] for row in rows]
    packed: list[dict[str, Any]] = []
    for group in alike(sequences, [example.dialogue_id for example in examples]):
        made = tree([sequences[n] for n in group])
        answers = [
            (path[at - 1], label)
            for n, path in zip(group, made.paths, strict=True)
            for at, label in enumerate(rows[n]["labels"])
            if label != IGNORED
        ]
        packed.append(
            {
                "input_ids": made.ids,
                "positions": made.positions,
                "until": made.until,
                "places": [place for place, _ in answers],
                "labels": [label for _, label in answers],
                **{name: [value for n in group for value in rows[n][name]] for name in ("keys", "targets", "weights")},
            }
        )
    return packed


def _right(rows: Sequence[Sequence[float]], fill: float) -> torch.Tensor:
    """Lists of numbers as one tensor [B, longest], filled up on the right."""
    most = max(map(len, rows))
    return torch.tensor([[*row, *([fill] * (most - len(row)))] for row in rows])


def _scores_of(rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """What `add_scores` gave the rows, as tensors [B, D]; absent scores have key -1."""
    return {
        "keys": _right([row["keys"] for row in rows], -1).long(),
        "targets": _right([row["targets"] for row in rows], 0.0),
        "weights": _right([row["weights"] for row in rows], 1.0),
    }


@dataclass
class TreePadding:
    """Batches of `as_trees` rows: lengths [B]; ids, positions, until [B, T]; places, labels [B, K]; scores [B, D]."""

    pad: int

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return {
            "lengths": torch.tensor([len(row["input_ids"]) for row in rows]),
            "input_ids": _right([row["input_ids"] for row in rows], self.pad),
            "until": _right([row["until"] for row in rows], 0),
            "position_ids": _right([row["positions"] for row in rows], 0),
            "places": _right([row["places"] for row in rows], 0),
            "labels": _right([row["labels"] for row in rows], IGNORED),
            **_scores_of(rows),
        }


@dataclass
class LeftPadding:
    """Batches padded on the left, so that the answers end together: [B, T] ids, mask, positions, labels; [B, D] the rest."""

    pad: int

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)

        def left(values: Sequence[int], fill: int) -> list[int]:
            return [fill] * (longest - len(values)) + list(values)

        mask = torch.tensor([left([1] * len(row["input_ids"]), 0) for row in rows])
        return {
            "input_ids": torch.tensor([left(row["input_ids"], self.pad) for row in rows]),
            "attention_mask": mask,
            "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
            "labels": torch.tensor([left(row["labels"], IGNORED) for row in rows]),
            **_scores_of(rows),
        }


@dataclass
class Padding:
    """Batches of trees, or of plain rows: training may read the ones and validation the others."""

    pad: int

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return (TreePadding if "places" in rows[0] else LeftPadding)(self.pad)(rows)


def squared_emd(logits: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Squared earth mover's distance between softmax(logits [N, S]) and the right scores' places [N]: [N], 0 to S - 1.

    The sum over the scale of the squared difference of the cumulative distributions: far misses cost more than near ones.
    """
    mass = F.one_hot(right, logits.shape[-1]).to(logits.dtype)
    return (logits.softmax(-1).cumsum(-1) - mass.cumsum(-1)).square().sum(-1)


class RankTrainer(SeededOrder, SFTTrainer):
    """Cross-entropy on the answer's tokens, over the vocabulary or over the scale; where it is a score, weighted by class."""

    ordinal_weight = 0.0

    def __init__(
        self,
        *args: Any,
        score_tokens: Sequence[int],
        digits: int,
        over_scale: bool = False,
        last_layer: bool = False,
        kept: Path | None = None,
        **kwargs: Any,
    ) -> None:
        """`score_tokens` [S] are the scale's tokens; `digits` are those of the longest answer to validate on.

        `over_scale`: a score's probability is its share among the scale's tokens, and other tokens of an answer carry no loss.
        `last_layer`: trees are read by way of `train.last_layer`, which keeps in folder `kept` what it read (None: in memory).
        """
        super().__init__(*args, **kwargs)
        # transformers counts a batch's labels without the first column, which no shifted loss uses; ours are not shifted.
        self._loss_shifts_labels = False
        self._scores = torch.tensor(list(score_tokens))
        self._digits = digits
        self._over_scale = over_scale
        self._last_layer = LastLayer(self.model.get_base_model(), kept) if last_layer else None

    def answer_loss(self, inputs: dict[str, torch.Tensor], logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The summed loss of a batch: logits as `_answers` gives them, labels [B, K]."""
        scored = torch.isin(labels, self._scores.to(labels.device))
        weights = torch.ones_like(labels, dtype=logits.dtype)
        weights[scored] = inputs["weights"][inputs["keys"] >= 0].to(logits.dtype)
        places = (labels[scored][:, None] == self._scores.to(labels.device)).int().argmax(1)
        if self._over_scale:
            losses = F.cross_entropy(logits[scored], places, reduction="none")
            total = (losses * weights[scored]).sum()
        else:
            losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
            total = (losses * weights.flatten()).sum()
        if self.ordinal_weight:
            emd = squared_emd(self._of_scale(logits[scored]), places)
            total = total + self.ordinal_weight * (emd * weights[scored]).sum()
        return total

    def _of_scale(self, logits: torch.Tensor) -> torch.Tensor:
        """The scores' logits [..., S] of what `_answers` gives."""
        return logits if self._over_scale else logits[..., self._scores.to(logits.device)]

    def _answers(
        self, model: Any, inputs: dict[str, torch.Tensor], use_cache: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """Logits [B, K, vocabulary], or [B, K, S] for a loss over the scale, in fp32, and labels [B, K] of the answers, and the
        cache where it is used."""
        labels = inputs["labels"]
        columns = self._scores.to(labels.device) if self._over_scale else None
        if self._last_layer is not None and "places" in inputs:
            return self._last_layer.logits(model, inputs, columns).float(), labels, None
        cache = None
        if "places" in inputs:
            kept, where = inputs["places"].unique(return_inverse=True)
            asked = {name: inputs[name] for name in ("input_ids", "position_ids")}
            seen = visible(inputs["until"])
            logits = model(**asked, attention_mask=seen, logits_to_keep=kept, use_cache=False).logits
            logits = logits.gather(1, where[..., None].expand(-1, -1, logits.shape[-1]))
        else:
            length = int((labels != IGNORED).any(0).int().argmax())  # where the longest answer begins
            asked = {name: inputs[name] for name in ("input_ids", "attention_mask", "position_ids")}
            out = model(**asked, logits_to_keep=labels.shape[1] - length + 1, use_cache=use_cache)
            logits, labels, cache = out.logits[:, :-1], labels[:, length:], out.past_key_values
        return (logits if columns is None else logits[..., columns]).float(), labels, cache

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The mean loss an answer token. `num_items_in_batch` counts the tokens of all processes and accumulation steps, and
        DDP averages gradients over processes."""
        logits, labels, _ = self._answers(model, inputs)
        total = self.answer_loss(inputs, logits, labels)
        count = (labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        loss = total / torch.as_tensor(count).clamp(min=1)
        if num_items_in_batch is not None and self.args.average_tokens_across_devices:
            loss = loss * self.accelerator.num_processes
        return (loss, logits) if return_outputs else loss

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Loss, probabilities [B, D, S] over the scale, and [B, D, 2]: key and target (-100 where an example has fewer).

        One pass over prompts and right answers gives the loss and the first digits; the further digits are generated after the
        prompts in its cache, with the right answers masked, one token each (trees have none). Every process takes as many
        steps, whatever its batch holds, since all of them have to come to the collective calls of sharded weights.
        """
        inputs = self._prepare_inputs(inputs)
        scale = self._scores.to(inputs["labels"].device)
        with torch.no_grad(), self.compute_loss_context_manager():
            logits, labels, cache = self._answers(model, inputs, use_cache=self._digits > 1)
            total = self.answer_loss(inputs, logits, labels)
            scored = torch.isin(labels, scale)
            if "places" in inputs:
                found = logits.new_zeros((*inputs["keys"].shape, len(scale)), dtype=torch.float64)
                found[inputs["keys"] >= 0] = self._of_scale(logits[scored]).double().softmax(-1)
            else:
                first = self._of_scale(logits[torch.arange(len(labels), device=labels.device), scored.int().argmax(1)])
                asked = inputs["attention_mask"] * ((inputs["labels"] != IGNORED).cumsum(1) == 0)  # the prompts alone
                found = greedy(model, first, asked, cache, scale, self._digits)[:, : inputs["keys"].shape[1]].contiguous()
        told = torch.stack([inputs["keys"].to(found.dtype), inputs["targets"].to(found.dtype)], -1)
        absent = inputs["keys"] < 0
        found[absent] = told[absent] = IGNORED
        return (total / (labels != IGNORED).sum()).float(), found, told


class OrdinalRankTrainer(RankTrainer):
    """Cross-entropy plus `ordinal_weight` times the squared earth mover's distance over the scale."""

    def __init__(self, *args: Any, ordinal_weight: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ordinal_weight = ordinal_weight


def score_metrics(keys: Sequence[Key], scores: Sequence[int]) -> Callable[[EvalPrediction], dict[str, float]]:
    """A `compute_metrics` that gives, for every language and dimension and their average, `en_empathy_acc` and so on.

    They mean what `train.rank_test`'s do: each score of a joint answer follows the model's own scores before it.

    ACC, ACC_soft, quadratic weighted kappa, Spearman, ECE, and the majority baseline's ACC and ACC_soft. The average is over
    dimensions of a language (`en_average_acc`), then over languages (`average_acc`). What is not defined has no entry, and an
    average over it has none either (`mean_of_all`).
    """

    def compute(prediction: EvalPrediction) -> dict[str, float]:
        found, told = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
        rows: dict[Key, dict[str, float | None]] = {}
        for number, key in enumerate(keys):
            at = (told[..., 0] == number) & (told[..., 1] != IGNORED)
            if at.any():
                rows[key] = figures(found[at], told[at][:, 1], scores)
        result = {
            f"{language}_{dimension}_{name}": value
            for (language, dimension), row in rows.items()
            for name, value in row.items()
        }
        averages = {}
        for language in dict.fromkeys(language for language, _ in rows):
            averages[language] = _means([row for (of, _), row in rows.items() if of == language])
            result |= {f"{language}_average_{name}": value for name, value in averages[language].items()}
        result |= {f"average_{name}": value for name, value in _means(list(averages.values())).items()}
        return {name: float(value) for name, value in result.items() if value is not None}

    return compute


def figures(distributions: np.ndarray, targets: np.ndarray, scores: Sequence[int]) -> dict[str, float | None]:
    """The figures of one dimension: distributions [n, S] over `scores`, mean gold scores [n]."""
    values = [scores[place] for place in distributions.argmax(1)]
    gold = [float(target) for target in targets]
    measured = accuracy(values, gold)
    kept = {name: measured[name] for name in ("acc", "acc_soft", "majority_acc", "majority_acc_soft", "n")}
    labels = [round_half_up(target) for target in gold]
    return {
        **kept,
        "kappa": quadratic_kappa(values, labels, scores),
        "spearman": spearman(values, gold),
        "ece": ece(distributions, [scores.index(label) for label in labels]),
    }


def _means(rows: Sequence[dict[str, float | None]]) -> dict[str, float | None]:
    means = {name: mean_of_all(row[name] for row in rows) for name in rows[0] if name != "n"}
    return means | {"n": sum(row["n"] or 0 for row in rows)}
