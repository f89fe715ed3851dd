"""The simulator's trainer: TRL's, with perplexity counted over tokens and seeker lines sampled at every evaluation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import orjson
import torch
import trl.trainer.utils
from transformers import EvalPrediction, TrainerCallback
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from trl import SFTTrainer
from trl.kernels.chunked_logprob import _use_triton

from data_prep.role_play.examples import RoleExample
from train.batches import SeededOrder
from train.examples import encode_prompt
from train.models import greedy_lines
from train.run import is_main_process, wandb_run

SAMPLE_TOKENS = 48


def score_labelled_tokens_only_on_cpu() -> None:
    """TRL projects only labelled positions through the head where Triton runs, and all of them elsewhere, for accelerators that
    compile a program for every shape. A CPU compiles nothing, and seekers speak a fifth of the tokens.

    It replaces a private name of trl==1.16.0, here and nowhere else; the test of RoleTrainer's loss watches it.
    """
    trl.trainer.utils._use_triton = lambda device: device.type == "cpu" or _use_triton(device)


class RoleTrainer(SeededOrder, SFTTrainer):
    """SFT whose evaluation gives, for every dialogue, the summed negative log-likelihood of its scored tokens and their number.

    TRL's own evaluation loss averages batch means, which depends on how dialogues fall into batches.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        score_labelled_tokens_only_on_cpu()
        super().__init__(*args, **kwargs)

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
    """exp of the mean negative log-likelihood a scored token, over all dialogues together."""
    total, tokens = prediction.predictions[:, 0].sum(), prediction.predictions[:, 1].sum()
    return {"perplexity": math.exp(total / tokens), "scored_tokens": float(tokens)}


class SampleLines(TrainerCallback):
    """Seeker lines generated after every evaluation for the same few validation dialogues, into samples.jsonl and wandb."""

    def __init__(self, examples: list[RoleExample], tokenizer: Any, out: Path) -> None:
        self._examples, self._tokenizer, self._out = examples, tokenizer, out

    def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        # Under ZeRO-3 one process cannot generate alone.
        if not self._examples or not is_main_process() or is_deepspeed_zero3_enabled():
            return
        training = model.training
        model.eval()
        rows = [{"step": state.global_step, "id": e.id, **self._line(model, e)} for e in self._examples]
        model.train(training)
        with (self._out / "samples.jsonl").open("ab") as handle:
            for row in rows:
                handle.write(orjson.dumps(row) + b"\n")
        if run := wandb_run():
            import wandb

            run.log({"samples": wandb.Table(columns=list(rows[0]), data=[[*row.values()] for row in rows])}, commit=False)

    def _line(self, model: Any, example: RoleExample) -> dict[str, str]:
        """The first line of the seeker after a supporter's question, generated greedily, beside the real one."""
        last = min(4, len(example.messages) - 1)  # the second line where there is one: the first is mostly a greeting
        prompt = encode_prompt(self._tokenizer, example.messages[:last])
        [(line, _)] = greedy_lines(model, self._tokenizer, [prompt], SAMPLE_TOKENS)
        return {"asked": example.messages[last - 1]["content"], "said": line, "real": example.messages[last]["content"]}
