"""The two trainers of adapters. Shapes: B rows, T tokens of the longest row, K answer tokens of the row with the most
(including end markers), D scores per row, S scores of the scale.

The simulator's is TRL's, with perplexity over tokens. The ranker's has its loss on the answer's tokens only (the logits of the
prompt are never computed), and a validation in which the model generates its digits like a constrained server (`greedy`). If
every answer is one digit, a row holds all questions about a dialogue as a tree (`train.steps`), read once.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import trl.trainer.utils
from peft.helpers import disable_input_dtype_casting
from torch.distributed.tensor import DTensor
from transformers import EvalPrediction
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from trl import SFTTrainer
from trl.kernels.chunked_logprob import _use_triton

from core.grouping import mean_of_all
from core.statistics.accuracy import dimension_figures
from data_prep.scores.rank_sft import RankExample
from train.examples import IGNORED
from train.models import share_qkv
from train.steps import SeededOrder, StepClock, alike, positions_of, tree, visible

LanguageDimension = tuple[str, str]  # language, dimension
Figures = dict[str, float | None]
SHOWN = ("acc", "acc_soft", "majority_acc", "majority_acc_soft", "kappa", "spearman", "ece")


class AdapterTrainer(SeededOrder, SFTTrainer):
    """The common parts of both: precision and speed of a step, and saving."""

    def __init__(self, *, args: Any, clock: StepClock | None = None, fused_qkv: bool = False, **kwargs: Any) -> None:
        args = copy(args)
        args.model_init_kwargs = None  # the base was loaded with them (`train.models.load_base`)
        self._clock = clock
        super().__init__(args=args, callbacks=[clock] if clock else None, **kwargs)
        if fused_qkv:
            share_qkv(self.model)

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """PEFT casts the adapters' inputs to fp32, and autocast casts them back before the product. Under autocast the first
        cast is skipped, which saves a copy of every adapted layer's input and gives the same products."""
        if self._clock:
            self._clock.reads(inputs)
        with disable_input_dtype_casting(self.model, active=self.accelerator.mixed_precision in ("bf16", "fp16")):
            return super().training_step(model, inputs, *args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log the steps' `StepClock.rates` beside their loss."""
        super().log(logs | (self._clock.since_log() if self._clock and "loss" in logs else {}), start_time)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the whole adapter alone. All processes have to call this. (transformers would gather the base, too.)"""
        named = self.model.named_parameters(remove_duplicate=False)  # the file has a shared matrix once per module
        trained = {name: weight for name, weight in named if weight.requires_grad}
        gathered: Any = nullcontext()
        if is_deepspeed_zero3_enabled():
            import deepspeed

            gathered = deepspeed.zero.GatheredParameters(list({id(weight): weight for weight in trained.values()}.values()))
        state = {}
        with gathered:
            for name, weight in trained.items():
                full = weight.full_tensor() if isinstance(weight, DTensor) else weight  # every process takes part
                if self.args.should_save:
                    state[name] = full.detach().cpu().clone()
        if self.args.should_save:
            self._save(output_dir, state_dict=state)


def for_measuring(training: Any, out: Path) -> Any:
    """A recipe's training arguments for a trainer that only predicts: rows unchanged, nothing reported."""
    args = copy(training)
    args.output_dir, args.report_to, args.max_length, args.packing, args.padding_free = str(out), [], None, False, False
    args.eval_packing = None
    return args


class RoleTrainer(AdapterTrainer):
    """SFT whose evaluation gives, for every row (a dialogue, or several, packed), the summed negative log-likelihood of its
    scored tokens and their number: TRL's own evaluation loss depends on the batching."""

    def __init__(self, *, args: Any, **kwargs: Any) -> None:
        if args.packing or args.padding_free:
            args = copy(args)
            args.per_device_eval_batch_size = 1  # a batch's rows become one, and processes would count its end twice
        # Without Triton, TRL projects all positions through the head, and seekers speak a fifth of them. This is a private
        # name of trl==1.16.0, used only here; the test of this class's loss guards it.
        trl.trainer.utils._use_triton = lambda device: device.type == "cpu" or _use_triton(device)
        super().__init__(args=args, **kwargs)

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Loss, [batch, 2] (sum in nats, number of tokens), and a dummy [batch] that marks rows as labelled."""
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = model(**inputs, fused_lm_head=True)
        nll = -outputs.log_probs.double().sum(1)
        count = outputs.label_mask.sum(1)
        loss = nll.sum() / count.sum().clamp(min=1)
        return loss.float(), torch.stack([nll, count.double()], 1), torch.zeros_like(count)


def perplexity(prediction: EvalPrediction) -> dict[str, float]:
    """exp of the mean negative log-likelihood per scored token, over all dialogues together."""
    total, tokens = prediction.predictions[:, 0].sum(), prediction.predictions[:, 1].sum()
    return {"perplexity": float(np.exp(total / tokens)), "scored_tokens": float(tokens)}


def keys_of(examples: Sequence[RankExample]) -> list[LanguageDimension]:
    """Every scored (language, dimension), in the order of first use."""
    return list(dict.fromkeys((e.language, dimension) for e in examples for dimension in e.labels))


def balanced_weights(examples: Sequence[RankExample]) -> dict[tuple[LanguageDimension, int], float]:
    """A weight per label of each (language, dimension), inverse to its frequency, with mean 1 over the examples."""
    counts = Counter(((e.language, dimension), label) for e in examples for dimension, label in e.labels.items())
    present = Counter(key for key, _ in counts)
    totals = Counter((e.language, dimension) for e in examples for dimension in e.labels)
    return {(key, label): totals[key] / (present[key] * count) for (key, label), count in counts.items()}


def add_scores(
    rows: list[dict[str, Any]],
    examples: Sequence[RankExample],
    keys: Sequence[LanguageDimension],
    weights: dict[tuple[LanguageDimension, int], float] | None = None,
) -> None:
    """Add to every row `keys` [D] (index of language and dimension), `targets` [D] (mean of the annotators), `weights` [D]."""
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
    """Rows with one answer each joined to trees of those about one dialogue with a common prefix. `input_ids`, `positions`,
    `until` [T] are the tree's, `labels` [K] the answers' tokens, `places` [K] the indices in the tree that predict them;
    `keys`, `targets`, `weights` [D] are in the answers' order."""
    # Nothing is predicted from the last token of an answer.
    sequences = [row["input_ids"][:-1] for row in rows]
    packed: list[dict[str, Any]] = []
    for group in alike(sequences, [example.dialogue_id for example in examples]):
        joined = tree([sequences[n] for n in group])
        answers = [
            (path[at - 1], label)
            for n, path in zip(group, joined.paths, strict=True)
            for at, label in enumerate(rows[n]["labels"])
            if label != IGNORED
        ]
        packed.append(
            {
                "input_ids": joined.ids,
                "positions": joined.positions,
                "until": joined.until,
                "places": [place for place, _ in answers],
                "labels": [label for _, label in answers],
                **{name: [value for n in group for value in rows[n][name]] for name in ("keys", "targets", "weights")},
            }
        )
    return packed


def squared_emd(logits: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Squared earth mover's distance between softmax(logits [N, S]) and the right scores' indices [N]: [N], 0 to S - 1. It is
    the sum over the scale of the squared difference of the cumulative distributions, so far misses cost more than near ones."""
    mass = F.one_hot(right, logits.shape[-1]).to(logits.dtype)
    return (logits.softmax(-1).cumsum(-1) - mass.cumsum(-1)).square().sum(-1)


class RankTrainer(AdapterTrainer):
    """Cross-entropy on the answer's tokens, over the vocabulary or over the scale, with scores weighted by class."""

    def __init__(
        self, *, score_tokens: Sequence[int], digits: int, over_scale: bool = False, ordinal_weight: float = 0.0, **kwargs: Any
    ) -> None:
        """`score_tokens` [S] are the scale's tokens; `digits` are those of the longest answer to validate on. `over_scale`: a
        score's probability is its share among the scale's tokens. `ordinal_weight` is that of `squared_emd`."""
        super().__init__(**kwargs)
        # transformers does not count the first column of labels, which a shifted loss does not use; ours is not shifted.
        self._loss_shifts_labels = False
        self._scores = torch.tensor(list(score_tokens))
        self._digits = digits
        self._over_scale = over_scale
        self._ordinal_weight = ordinal_weight

    def answer_loss(self, inputs: dict[str, torch.Tensor], logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The summed loss of a batch: logits as `_answers` gives them, labels [B, K]."""
        scored = torch.isin(labels, self._scores.to(labels.device))
        weights = torch.ones_like(labels, dtype=logits.dtype)
        weights[scored] = inputs["weights"][inputs["keys"] >= 0].to(logits.dtype)
        right = (labels[scored][:, None] == self._scores.to(labels.device)).int().argmax(1)
        if self._over_scale:
            losses = F.cross_entropy(logits[scored], right, reduction="none")
            total = (losses * weights[scored]).sum()
        else:
            losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
            total = (losses * weights.flatten()).sum()
        if self._ordinal_weight:
            emd = squared_emd(self._of_scale(logits[scored]), right)
            total = total + self._ordinal_weight * (emd * weights[scored]).sum()
        return total

    def _of_scale(self, logits: torch.Tensor) -> torch.Tensor:
        """The scores' logits [..., S] among those of `_answers`."""
        return logits if self._over_scale else logits[..., self._scores.to(logits.device)]

    def _answers(
        self, model: Any, inputs: dict[str, torch.Tensor], use_cache: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """The answers' logits [B, K, vocabulary] in fp32 (over the scale [B, K, S]), labels [B, K], and the cache."""
        labels = inputs["labels"]
        cache = None
        if "places" in inputs:
            places, index = inputs["places"].unique(return_inverse=True)
            tokens = {name: inputs[name] for name in ("input_ids", "position_ids")}
            mask = visible(inputs["until"])
            logits = model(**tokens, attention_mask=mask, logits_to_keep=places, use_cache=False).logits
            logits = logits.gather(1, index[..., None].expand(-1, -1, logits.shape[-1]))
        else:
            length = int((labels != IGNORED).any(0).int().argmax())  # where the longest answer begins
            tokens = {name: inputs[name] for name in ("input_ids", "attention_mask", "position_ids")}
            out = model(**tokens, logits_to_keep=labels.shape[1] - length + 1, use_cache=use_cache)
            logits, labels, cache = out.logits[:, :-1], labels[:, length:], out.past_key_values
        return (logits[..., self._scores.to(logits.device)] if self._over_scale else logits).float(), labels, cache

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The mean loss per answer token: `num_items_in_batch` counts those of all processes, over which DDP averages."""
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

        One pass over prompts and right answers gives the loss and the first digits; further digits (which trees lack) are
        generated in its cache. All processes take equally many steps, for the collective calls of sharded weights.
        """
        inputs = self._prepare_inputs(inputs)
        scale = self._scores.to(inputs["labels"].device)
        with torch.no_grad(), self.compute_loss_context_manager():
            logits, labels, cache = self._answers(model, inputs, use_cache=self._digits > 1)
            total = self.answer_loss(inputs, logits, labels)
            scored = torch.isin(labels, scale)
            if "places" in inputs:
                shares = logits.new_zeros((*inputs["keys"].shape, len(scale)), dtype=torch.float64)
                shares[inputs["keys"] >= 0] = self._of_scale(logits[scored]).double().softmax(-1)
            else:
                first = self._of_scale(logits[torch.arange(len(labels), device=labels.device), scored.int().argmax(1)])
                prompts = inputs["attention_mask"] * ((inputs["labels"] != IGNORED).cumsum(1) == 0)
                shares = greedy(model, first, prompts, cache, scale, self._digits)[:, : inputs["keys"].shape[1]].contiguous()
        targets = torch.stack([inputs["keys"].to(shares.dtype), inputs["targets"].to(shares.dtype)], -1)
        absent = inputs["keys"] < 0
        shares[absent] = targets[absent] = IGNORED
        return (total / (labels != IGNORED).sum()).float(), shares, targets


def greedy(model: Any, logits: torch.Tensor, mask: torch.Tensor, cache: Any, scale: torch.Tensor, digits: int) -> torch.Tensor:
    """Probabilities [B, digits, S] over the tokens `scale` [S], each digit after the model's own most probable digits, as a
    constrained server generates them. `logits` [B, S] are those of the first digit; `cache` holds the T tokens read so far, of
    which those in `mask` [B, T] count. Of equally probable scores the lowest is taken."""
    shares: list[torch.Tensor] = [logits.double().softmax(-1)]
    for _ in range(digits - 1):
        ids = scale[shares[-1].argmax(1)][:, None]  # the first of equals
        mask = torch.cat([mask, torch.ones_like(ids)], 1)
        out = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions_of(mask)[:, -1:],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        shares.append(out.logits[:, -1, scale].double().softmax(-1))
    return torch.stack(shares, 1)


def score_metrics(keys: Sequence[LanguageDimension], scores: Sequence[int]) -> Callable[[EvalPrediction], Figures]:
    """A `compute_metrics` that gives `SHOWN` and `n`, as in `esc-eval agree`, for every language and dimension
    (`en_empathy_acc`), their averages over the dimensions of a language (`en_average_acc`), and over languages (`average_acc`).
    Undefined figures are None, and so are averages of them."""

    def figures_of(shares: np.ndarray, targets: np.ndarray) -> Figures:
        """The figures of one dimension from probabilities [n, S] and mean gold scores [n]."""
        values = [scores[place] for place in shares.argmax(1)]
        distributions = [dict(zip(map(str, scores), row.tolist(), strict=True)) for row in shares]
        figures = dimension_figures(values, targets.tolist(), distributions)
        return {name: figures[name] for name in (*SHOWN, "n")}

    def compute(prediction: EvalPrediction) -> Figures:
        shares, targets = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
        languages: dict[str, dict[str, Figures]] = {}
        for number, (language, dimension) in enumerate(keys):
            rows = (targets[..., 0] == number) & (targets[..., 1] != IGNORED)
            if rows.any():
                languages.setdefault(language, {})[dimension] = figures_of(shares[rows], targets[rows][:, 1])
        for dimensions in languages.values():
            dimensions["average"] = _means(list(dimensions.values()))
        metrics = {
            f"{language}_{dimension}_{name}": value
            for language, dimensions in languages.items()
            for dimension, figures in dimensions.items()
            for name, value in figures.items()
        }
        average = _means([dimensions["average"] for dimensions in languages.values()])
        return metrics | {f"average_{name}": value for name, value in average.items()}

    return compute


def _means(rows: Sequence[Figures]) -> Figures:
    means = {name: mean_of_all(row[name] for row in rows) for name in SHOWN}
    return means | {"n": sum(row["n"] or 0 for row in rows)}
