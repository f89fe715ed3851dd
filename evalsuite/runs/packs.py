"""Which prompt pack a role is asked in: one that its model has learnt, or for a plain model what the config says."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from core.errors import UserError
from core.judge_prompts import check_pack
from core.prompts import load_pack
from core.specs import ModelSpec, packs_without_rules
from evalsuite.runs.models import Role, RunModels

PACK = "esc_eval"  # for plain seekers and judges


def seeker_pack(models: RunModels) -> str:
    """The pack of the seekers, by name. Raises `UserError` for a pack that a seeker's spec does not claim."""
    wanted = models.config.prompts.rstrip("/") if models.config.prompts else None
    packs = [_learnt("seeker", spec, wanted, "prompts") for spec in models.seekers]
    return next(filter(None, packs), wanted or PACK)


def judge_pack(models: RunModels, method: str) -> str:
    """The pack of the judge, by name; a plain model's states the rules. Raises `UserError` for a pack that the judge's spec
    does not claim, and for a method that it was not trained for."""
    judge, wanted = models.judge, (models.config.judge_prompts or "").rstrip("/") or None
    if wanted is not None:
        load_pack(wanted)  # what is wrong with the pack itself comes first
    if (methods := judge.learnt_methods) and method not in methods:
        how = "--mode paper" if "paper" in methods else f"method: {methods[0]}"
        raise UserError(f"judge {judge.name} was not trained to be asked by method {method}, but {', '.join(methods)}: {how}")
    if learnt := _learnt("judge", judge, wanted, "judge_prompts"):
        return learnt
    pack = wanted or models.config.prompts or _of_seeker(models, method) or PACK
    if pack != PACK and (ranker := packs_without_rules().get(pack)):
        raise UserError(
            f"judge {judge.name} has not learnt the prompt pack {pack}, which leaves the rules out "
            f"(it is {ranker}'s): leave out judge_prompts, or write `learnt: [{pack}]` into its spec if it was"
        )
    return pack


def _of_seeker(models: RunModels, method: str) -> str | None:
    """The pack that the named seeker has learnt, where it has the judge's prompts, too: a published one is for both."""
    name = models.config.seeker or models.config.model
    for pack in models.model(name).learnt if name else ():
        with suppress(UserError):
            check_pack(load_pack(pack), method, models.config.languages)
            return pack
    return None


def _learnt(role: Role, spec: ModelSpec, wanted: str | None, option: str) -> str | None:
    """The pack that a model is asked in because it has learnt it; None for one that has learnt none.

    Raises `UserError` where another is wanted, and where the folder of a pack is not there.
    """
    if not spec.learnt:
        return None
    if wanted is not None and wanted not in spec.learnt:
        raise UserError(
            f"{role} {spec.name} has learnt the prompt pack {spec.learnt[0]} and is not asked in {wanted}: leave out {option}, "
            f"or add {wanted} to `learnt` in its spec if it was trained in it"
        )
    pack = wanted or spec.learnt[0]
    if "/" in pack and not Path(pack).is_dir():
        raise UserError(
            f"{role} {spec.name} has learnt the prompts in {pack}, which is no folder: see its spec (published prompts come "
            f"from your clone: python -m data_prep import --source esc_eval=CLONE --out {Path(pack).parent})"
        )
    return pack
