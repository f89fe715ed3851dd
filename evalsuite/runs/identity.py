"""What a run is, as JSON: a run folder is claimed with it, and the same folder with another config is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.files import digest
from core.records import RoleCard
from core.specs import ModelSpec
from data_prep.profiles import Profile
from evalsuite.runs.config import Resolved

# Fields of an endpoint that say how it is reached and what it may cost, not what is asked there: they may change in a run.
_NOT_ASKED = {"base_url", "api_key_env", "max_response_mb", "any_model", "price", "requests_per_minute", "tokens_per_minute"}


def simulate_config(resolved: Resolved) -> dict[str, Any]:
    """What decides the dialogues of this run, as JSON: the run folder is claimed with it."""
    return {
        "framework": resolved.config.framework,
        "mode": resolved.config.mode,
        **_played(resolved),
        "languages": resolved.config.languages,
        "exchanges": resolved.config.exchanges,
        "trials": resolved.config.trials,
        "seeker": identity(resolved.seeker),
        "supporters": [identity(spec) for spec in resolved.supporters],
        "prompts": {"pack": resolved.config.prompts, "fingerprint": resolved.prompts.fingerprint()},
    }


def _played(resolved: Resolved) -> dict[str, Any]:
    """Who is played, and in EmoHarbor how."""
    if resolved.config.framework == "esc_eval":
        return {"cards": _hashed(resolved.cards)}
    return {
        "profiles": _hashed(resolved.profiles),
        "simulator": resolved.emoharbor.simulator,
        "triples": resolved.emoharbor.triples,
        "thinker": identity(resolved.thinker) if resolved.thinker else None,
    }


def _judging(resolved: Resolved) -> dict[str, Any]:
    """What EmoHarbor's judge is shown beyond the dialogue (nothing for ESC-Eval's)."""
    if resolved.config.framework == "esc_eval" or resolved.method != "json":
        return {}
    own = resolved.emoharbor
    return {
        "judging": own.judging,
        "per_turn": own.per_turn,
        "profiles": _hashed(resolved.known_profiles) if own.judging != "dialogue" else None,
        # States that given dialogues lack are simulated.
        "thinker": identity(resolved.thinker) if resolved.thinker and own.judging == "states" else None,
    }


def score_config(resolved: Resolved) -> dict[str, Any]:
    """What decides the judgements, beyond the dialogues themselves."""
    return {
        "mode": resolved.config.mode,
        "judge": identity(resolved.judge),
        "rubric": resolved.rubric.model_dump(mode="json"),
        "method": resolved.method,
        "prompts": {"pack": resolved.judge_pack, "fingerprint": resolved.judge_prompts.fingerprint()},
        **_judging(resolved),
    }


def gold_config(resolved: Resolved) -> dict[str, Any]:
    """What decides the agreement: the gold set by its hash."""
    dialogues, scores = resolved.gold
    records = [record.model_dump(mode="json") for record in (*dialogues, *scores)]
    assert resolved.config.gold is not None
    return {
        "dialogues": resolved.config.gold.dialogues,
        "limit": resolved.config.gold.limit,
        "count": len(dialogues),
        "sha256": digest(records),
    }


def _hashed(people: Sequence[RoleCard] | Sequence[Profile]) -> dict[str, Any]:
    return {"count": len(people), "sha256": digest([person.model_dump(mode="json") for person in people])}


def identity(spec: ModelSpec) -> dict[str, Any]:
    """What a model is, without where it answers: ports and addresses of servers may change between tries of one run."""
    kept = spec.model_dump(mode="json", exclude={"about", "roles", "licence", "endpoint", "serve"})
    asked = spec.endpoint.model_dump(mode="json", exclude=_NOT_ASKED)
    return kept | {"endpoint": asked, "dtype": spec.serve.dtype, "fingerprint": spec.fingerprint()}
