"""The models of a recipe: its base and tokenizer, LoRA adapters put on that base, and what they say: how likely lines are to
base and adapter, what each says next, and a ranker's answers.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from core.errors import UserError
from core.files import read_object
from core.tables import Screen
from data_prep.scores.rank_sft import RankExample
from serve.checkpoints.lora import CONFIG, WEIGHTS, adapter_rank
from serve.checkpoints.model_card import read_training
from serve.checkpoints.places import resolve_checkpoint
from serve.checkpoints.tensors import check_finite, stored_tensors, weight_files
from train.examples import IGNORED, Prepared, check_tokenizer, encode_stock, serves_alike
from train.recipes import Recipe, check_targets, lora_config
from train.run import check_numbers, is_main_process, say, weights_are_divided

if TYPE_CHECKING:
    import torch
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Floats = NDArray[np.float64]
Shares = NDArray[np.float64]
Row = dict[str, list[int]]

BATCH_TOKENS = 4096  # padding included
HEAD_TOKENS = 512  # scored tokens whose logits are held at a time
NEW_TOKENS = 64


def base_folder(recipe: Recipe[Any]) -> str:
    """Where transformers finds the base: a checked local folder, or a hub id as it is."""
    name = recipe.model.model_name_or_path
    assert name is not None
    place = resolve_checkpoint(name, "model_name_or_path")
    config = Path(place) / "config.json"
    if config.is_file() and read_object(config, "a model's config").get("model_type") == "internlm2":
        raise UserError(
            f"model_name_or_path: {place} is in InternLM2's layout, which transformers no longer loads: "
            f"python -m serve convert {place} {place}-llama"
        )
    return place


def load_tokenizer(recipe: Recipe[Any]) -> PreTrainedTokenizerBase:
    """The base's tokenizer, with a padding token and ChatML's markers as single tokens."""
    from transformers import AutoTokenizer

    with _loading(recipe):
        tokenizer = AutoTokenizer.from_pretrained(base_folder(recipe), revision=recipe.model.model_revision)
    check_tokenizer(tokenizer, f"base {recipe.model.model_name_or_path}")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if not serves_alike(tokenizer, recipe.task != "supporter"):
        say("note: the base's own chat template prompts otherwise than ours; serve the adapter with chat_template in its spec")
    return tokenizer


def policy_end(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that ends a message."""
    return int(tokenizer.convert_tokens_to_ids("<|im_end|>"))


def load_base(recipe: Recipe[Any]) -> PreTrainedModel:
    """The base model in the recipe's dtype, without remote code, from safetensors, straight to the device that trains it.

    Raises `UserError` for a folder whose weights are not finite, and for target modules that it lacks.
    """
    from transformers import AutoModelForCausalLM

    if is_main_process() and (folder := Path(base_folder(recipe))).is_dir():
        check_finite(weight_files(folder), "model_name_or_path")
    rate = recipe.data.attention_dropout
    divided = weights_are_divided(recipe.training)  # then DeepSpeed or FSDP says where they go
    with _loading(recipe):
        model = AutoModelForCausalLM.from_pretrained(
            base_folder(recipe),
            revision=recipe.model.model_revision,
            dtype=recipe.model.dtype,
            attn_implementation=recipe.model.attn_implementation,
            use_safetensors=True,
            device_map=None if divided else {"": recipe.training.device},
            **({"attention_dropout": rate} if rate else {}),  # not every architecture's config knows it
        )
    if recipe.model.use_peft:
        check_targets(model, lora_config(recipe.model))
    return model


@contextmanager
def _loading(recipe: Recipe[Any]) -> Iterator[None]:
    """What the libraries raise for a base that is not there, or that needs a package which is not, as one line."""
    try:
        yield
    except (OSError, ImportError, ValueError, TypeError) as error:
        line = " ".join(str(error).split())
        raise UserError(f"model_name_or_path: {recipe.model.model_name_or_path} cannot be loaded: {line[:300]}") from error


def check_adapters(recipe: Recipe[Any], folders: Iterable[Path]) -> None:
    """Raise `UserError` for a folder that is no adapter, or half written, and for an adapter of the other task."""
    kinds = {"role": "a seeker simulator", "rank": "a ranker", "supporter": "a supporter"}
    for folder in folders:
        adapter_rank(folder, "--adapter")
        training = read_training(folder)
        if training is not None and training.kind != recipe.task:
            raise UserError(f"--adapter: {folder} is {kinds[training.kind]}, not {kinds[recipe.task]}")


def load_adapters(base: PreTrainedModel, recipe: Recipe[Any], folders: Mapping[str, Path]) -> PeftModel:
    """The recipe's base with one or more checked adapters on it, the n-th under the name `an` (from 0).

    Says so when an adapter was trained on another base. Raises `UserError` when its modules or shapes are not the base's, and
    when its file lacks a tensor or has one too many (PEFT goes on with untrained values then).
    """
    from peft import PeftModel, get_peft_model_state_dict

    model: Any = base
    for number, (name, folder) in enumerate(folders.items()):
        training = read_training(folder)
        config = read_object(folder / CONFIG, "an adapter's config")
        trained_on = training.base if training else config.get("base_model_name_or_path")
        if trained_on not in (recipe.model.model_name_or_path, base_folder(recipe)):
            say(f"warning: {name}: {folder} was trained on {trained_on}, and is put on {recipe.model.model_name_or_path}")
        misfit = f"--adapter: base and adapter do not fit: {name}: {folder} on {recipe.model.model_name_or_path}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of missing keys: they are an error below
                if number == 0:
                    model = PeftModel.from_pretrained(base, str(folder), adapter_name="a0")
                else:
                    model.load_adapter(str(folder), adapter_name=f"a{number}")
        except (ValueError, RuntimeError, TypeError, KeyError) as error:
            # The first line of PEFT's errors says only that loading failed.
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise UserError(f"{misfit}: {lines[min(1, len(lines) - 1)] if lines else type(error).__name__}") from None
        wanted = set(get_peft_model_state_dict(model, adapter_name=f"a{number}", save_embedding_layers=False))
        stored = set(stored_tensors([folder / WEIGHTS]))
        for what, tensors in (("lacks", wanted - stored), ("has, and its config does not adapt,", stored - wanted)):
            if tensors:
                raise UserError(f"{misfit}: {WEIGHTS} {what} {len(tensors)} tensors, for example {min(tensors)}")
    return model.eval()


def adapter_switched_on(model: Any, number: int | None) -> AbstractContextManager[Any]:
    """The model of `load_adapters` with one of its adapters on; with None (or a model without adapters) the base alone."""
    if number is not None:
        model.set_adapter(f"a{number}")
        return nullcontext()
    return model.disable_adapter() if hasattr(model, "peft_config") else nullcontext()


def precision(recipe: Recipe[Any]) -> AbstractContextManager[Any]:
    """Autocast as the recipe trains: bf16, fp16, or none."""
    import torch

    dtype = torch.bfloat16 if recipe.training.bf16 else torch.float16 if recipe.training.fp16 else None
    return torch.autocast(recipe.training.device.type, dtype) if dtype else nullcontext()


def greedy_lines(
    model: Any, tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]], limit: int, together: bool = False
) -> list[tuple[str, bool]]:
    """The greedy continuation of each prompt (token ids), and whether it ended within `limit` tokens. All in one batch.

    `together`: the weights are divided among processes, which all generate the same and take as many steps.
    """
    import torch

    from train.batches import left_padded

    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    ends = sorted({end, tokenizer.eos_token_id} - {None})
    ids, mask = left_padded(prompts, end)
    with torch.no_grad():
        generated = model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=limit,
            do_sample=False,
            num_beams=1,
            repetition_penalty=1.0,  # some bases' generation config sets one, and it applies to greedy search, too
            eos_token_id=ends,
            pad_token_id=end,
            synced_gpus=together,
        )
    lines = []
    for tokens in generated[:, ids.shape[1] :].tolist():
        stop = next((place for place, token in enumerate(tokens) if token in ends), None)
        lines.append((tokenizer.decode(tokens[:stop], skip_special_tokens=True).strip(), stop is not None))
    return lines


def _progress(batches: list[list[int]], what: str) -> Iterable[list[int]]:
    console = Screen(stderr=True)
    return track(batches, what, console=console, transient=True, disable=not console.is_terminal)


@dataclass
class BaseAndAdapter:
    """A base with an adapter on it (`train.models.load_adapters`)."""

    peft: PeftModel
    """The model, in evaluation mode."""
    tokenizer: PreTrainedTokenizerBase
    """The base's."""
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Gives the context that the recipe's precision asks for."""
    budget: int = BATCH_TOKENS
    """Tokens of a batch, padding included."""

    @contextmanager
    def _as(self, voice: str) -> Iterator[None]:
        import torch

        with torch.inference_mode(), adapter_switched_on(self.peft, None if voice == "base" else 0), self.autocast():
            yield

    def nll(self, rows: Sequence[Row], voice: str, what: str) -> Floats:
        """Negative log-likelihood of each row's labelled tokens, summed, in nats: [rows]. `voice` is base or adapter.

        Logits are made for labelled positions only, by the output layer alone: a base that scales or caps its logits
        afterwards is refused with `UserError`.
        """
        import torch

        from train.batches import padded

        inner: PreTrainedModel = self.peft.get_base_model()
        head = inner.get_output_embeddings()
        for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
            if getattr(inner.config, name, None) not in (None, 1, 1.0):
                raise UserError(
                    f"base: its config sets {name}, which this comparison does not apply: its perplexity would be wrong"
                )
        sums = np.zeros(len(rows))
        for batch in _progress(token_batches([len(row["input_ids"]) for row in rows], self.budget), what):
            ids = padded([rows[i]["input_ids"] for i in batch], 0).to(inner.device)
            mask = padded([[1] * len(rows[i]["input_ids"]) for i in batch], 0).to(inner.device)
            labels = padded([rows[i]["labels"] for i in batch], IGNORED).to(inner.device)[:, 1:]
            scored = labels != IGNORED
            with self._as(voice):
                hidden = inner.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
                parts = zip(hidden[:, :-1][scored].split(HEAD_TOKENS), labels[scored].split(HEAD_TOKENS), strict=True)
                losses = [torch.nn.functional.cross_entropy(head(h).float(), w, reduction="none") for h, w in parts]
            summed = torch.zeros(len(batch), dtype=torch.float64, device=inner.device)
            summed.index_add_(0, scored.nonzero()[:, 0], torch.cat(losses).double())
            sums[batch] = summed.cpu().numpy()
        check_numbers(sums, voice)
        return sums

    def lines(self, prompts: Sequence[list[int]], voice: str, what: str) -> list[tuple[str, bool]]:
        """The greedy continuation of each prompt (token ids), and whether it ended within `NEW_TOKENS`."""
        lines: dict[int, tuple[str, bool]] = {}
        for batch in _progress(token_batches([len(prompt) for prompt in prompts], self.budget), what):
            with self._as(voice):
                generated = greedy_lines(self.peft.get_base_model(), self.tokenizer, [prompts[i] for i in batch], NEW_TOKENS)
            lines.update(zip(batch, generated, strict=True))
        return [lines[index] for index in range(len(prompts))]


def stock_rows(prepared: Prepared, tokenizer: PreTrainedTokenizerBase) -> list[Row]:
    """The same dialogues under the tokenizer's own template, with the same tokens labelled (cut where ours were cut).

    Raises `UserError` when the tokens that would be scored differ, or the template cannot be scored turn by turn.
    """
    rows = []
    for example, ours in zip(prepared.examples, prepared.rows, strict=True):
        ids, labels = encode_stock(tokenizer, example.messages)
        places = [place for place, label in enumerate(labels) if label != IGNORED]
        wanted = [label for label in ours["labels"] if label != IGNORED]
        if [labels[place] for place in places[: len(wanted)]] != wanted:
            raise UserError(f"dialogue {example.id}: the base's own template makes other tokens of the same seeker lines")
        # What follows the last scored token is scored by nobody and seen by nothing that is.
        size = len(ids) if len(places) == len(wanted) else places[len(wanted) - 1] + 1
        rows.append({"input_ids": ids[:size], "labels": labels[:size]})
    return rows


# --- a ranker's answers -----------------------------------------------------------------------------------------------------
# As a constrained server gives them: greedily, digit after digit, each among the scale's tokens and after the digits before it
# (the model's own, not the right ones). Scoring a test split and validation in training both decode here.
# Shapes: R rows (examples) in a batch, T tokens, D digits of the longest answer, S scores of the scale.


@dataclass(frozen=True)
class PromptGroup:
    """The examples of one dialogue (their places in the file): `head` begins all their prompts, each of `tails` ends one.

    Neither is ever empty: prompts begin with the same role marker, and every tail keeps at least its last token.
    """

    places: tuple[int, ...]
    head: list[int]
    tails: tuple[list[int], ...]

    @property
    def cached(self) -> int:
        """Tokens held in the cache while its answers are generated."""
        return len(self.tails) * (len(self.head) + max(map(len, self.tails)))


def prompt_groups(examples: Sequence[RankExample], prompts: Sequence[list[int]], fits: Sequence[bool]) -> list[PromptGroup]:
    """The examples that fit, by dialogue, with what their prompts have in common apart."""
    of_dialogue: dict[str, list[int]] = defaultdict(list)
    for place, example in enumerate(examples):
        if fits[place]:
            of_dialogue[example.dialogue_id].append(place)
    dialogues = []
    for places in of_dialogue.values():
        sequences = [prompts[place] for place in places]
        columns = enumerate(zip(*sequences, strict=False))
        shared = next((i for i, column in columns if len(set(column)) > 1), min(map(len, sequences)))
        head = min(shared, *(len(sequence) - 1 for sequence in sequences))
        dialogues.append(PromptGroup(tuple(places), sequences[0][:head], tuple(sequence[head:] for sequence in sequences)))
    return dialogues


def token_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Places in batches of like length, each of at most `budget` tokens with padding (a longer one alone).

    The longest come first: a batch that is too large for the memory is the first one.
    """
    batches: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > budget:
            batches.append([])
        batches[-1].append(place)
    return batches


class Decoder:
    """Probabilities [R, digits, S] over `tokens` of a batch's answers; the model has to be in evaluation mode."""

    def __call__(self, model: Any, batch: Sequence[PromptGroup], tokens: Sequence[int], digits: int) -> Shares:
        import torch

        from train.batches import left_padded

        with torch.inference_mode():
            # What stands in for the padding is masked, so any token will do.
            ids, mask = (tensor.to(model.device) for tensor in left_padded([group.head for group in batch], 0))
            cache = _forward(model, ids, mask, None).past_key_values
            owner = torch.tensor([number for number, group in enumerate(batch) for _ in group.tails], device=model.device)
            cache.batch_select_indices(owner)
            ids, fresh = (tensor.to(model.device) for tensor in left_padded([t for group in batch for t in group.tails], 0))
            mask = torch.cat([mask[owner], fresh], 1)
            scale = torch.tensor(list(tokens), device=model.device)
            logits = _forward(model, ids, mask, cache).logits[:, -1, scale]
            result: Floats = greedy(model, logits, mask, cache, scale, digits).cpu().numpy()
            return result

    def take_spared(self) -> float:
        """Seconds of reading that were spared since this was last asked, because an earlier adapter had read the same."""
        return 0.0


def greedy(model: Any, logits: torch.Tensor, mask: torch.Tensor, cache: Any, scale: torch.Tensor, digits: int) -> torch.Tensor:
    """Probabilities [R, digits, S] over the tokens `scale` [S], each digit after the most probable ones before it.

    `logits` [R, S] are those of the first digit; `cache` holds the T tokens read so far, of which `mask` [R, T] says which
    count: after them it is one token a further digit, `digits` − 1 passes. Of equal scores the lowest is taken.
    """
    import torch

    shares: list[torch.Tensor] = []
    for step in range(digits):
        if step:
            ids = scale[shares[-1].argmax(1)][:, None]  # the first of equals
            mask = torch.cat([mask, torch.ones_like(ids)], 1)
            logits = _forward(model, ids, mask, cache).logits[:, -1, scale]
        shares.append(logits.double().softmax(-1))
    return torch.stack(shares, 1)


def _forward(model: Any, ids: torch.Tensor, mask: torch.Tensor, cache: Any) -> Any:
    """The model's output for `ids`, the last tokens of `mask`: a token's position is the count of unmasked ones before it."""
    from train.batches import positions_of

    positions = positions_of(mask)[:, -ids.shape[1] :]
    return model(
        input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
    )
