"""Sharded runs: every machine plays its part of a run in a folder of its own, and the parts are merged.

Shard I/N is the I-th of N equal parts of the list of dialogues. The list is ordered by supporter, so most shards need only
one or two supporters' servers. A merged folder has the records, config, usage and finished calls of one run, byte for byte
except for clock times. The unsharded command on that folder makes no calls, or only those that a shard had lost.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from shlex import quote
from typing import Any, cast

from core.errors import UserError
from core.files import check_unique, each_placed, read_bytes, read_jsonl, sha256_file, write_bytes, write_json, write_lines
from core.records import Dialogue, HumanScore, Judgement, Language
from core.settings import differing_leaves
from evalsuite.runs.contents import VERDICTS, Written, sets_of
from evalsuite.runs.folder import Run, joined, open_run
from evalsuite.runs.people import PEOPLE
from evalsuite.runs.run_config import RunConfig, Shard
from serve.failures import FailedCall

GOLD = "gold_judgements.jsonl"
WHOLE = (*PEOPLE, "gold_dialogues.jsonl", "gold_scores.jsonl")  # the same in every shard


def whole(folder: Path, needed: bool = True) -> RunConfig:
    """The config of a run folder whose records are to be read; with `needed` false, an empty one if there is none. Raises
    `UserError` if there is no config, and for a shard, whose figures could be mistaken for those of the run."""
    config = RunConfig.read(folder)
    if needed and not config:
        play = f"esc-eval run --config CONFIG --out {quote(str(folder))}"
        raise UserError(f"not a run folder (no config.json): {folder}: `{play}` makes one")
    if shard := config.shard:
        raise UserError(f"{folder} holds only shard {shard} of a run: merge all shards with `esc-eval merge` first")
    return config


def merge(folders: Sequence[Path], out: Path) -> Written[Dialogue]:
    """Merge the finished shards of a run into `out`; returns the dialogues in the order of one run, and measures the judge on
    the whole gold set. Raises `UserError`, before anything is written, if a shard is missing, doubled, unfinished or of
    another config, if dialogues are missing or in two shards, and if only some of them are judged."""
    if out.resolve() in [folder.resolve() for folder in folders]:
        raise UserError(f"--out {out}: this is one of the shards; use another folder")
    check_unique("merge", (str(folder.resolve()) for folder in folders), "folders")
    for folder in folders:
        if not (folder / "config.json").exists():
            raise UserError(f"not a run folder (no config.json): {folder}")
    with ExitStack() as opened:
        runs = _in_order([opened.enter_context(open_run(folder)) for folder in folders])
        config = runs[0].config()
        for run in runs:
            _check_finished(run, runs[0])
        _check_judged(runs, _check_dialogues(runs))
        merged = opened.enter_context(open_run(out))
        merged.claim_shard(None)
        for stage, settings in config.stages.items():
            merged.claim(stage, settings)
        merged.settle()
        for run in runs:
            merged.store.add_from(run.store.path)
        for name in WHOLE:
            if (runs[0].folder / name).exists():
                write_bytes(out / name, read_bytes(runs[0].folder / name, "records"))
        dialogues = Written(Dialogue, [run.folder / "dialogues.jsonl" for run in runs])
        write_lines(out / "dialogues.jsonl", dialogues.lines())
        for number, name in product(range(len(config.judged)), (*VERDICTS, GOLD)):
            paths = [sets_of(run.folder, config)[number].folder / name for run in runs]
            verdicts = Written(Judgement, [path for path in paths if path.exists()])
            if any(path.exists() for path in paths):
                judging = sets_of(out, config)[number]
                write_lines(judging.folder / name, verdicts.lines())
                if name == GOLD:
                    scores = read_jsonl(out / "gold_scores.jsonl", HumanScore, "gold scores")
                    given = read_jsonl(out / "gold_dialogues.jsonl", Dialogue, "gold dialogues")
                    judging.measure(verdicts, scores, given, next(iter(config.judged.values())).rubric)
        _add_up(merged, runs)
    return dialogues


def _in_order(runs: list[Run]) -> list[Run]:
    """The shards in order. Raises `UserError` unless they are all shards of one run, each once."""
    shards: dict[Run, Shard] = {}
    for run in runs:
        if (shard := run.config().shard) is None:
            raise UserError(f"{run.folder} holds a whole run, not a shard of one")
        shards[run] = shard
    first, *others = runs = sorted(runs, key=lambda run: shards[run])
    parts = shards[first].of
    for before, run in zip(runs, others, strict=False):
        if shards[run].of != parts:
            raise UserError(f"{first.folder} is shard {shards[first]}, {run.folder} shard {shards[run]}: not of one run")
        if shards[run] == shards[before]:
            raise UserError(f"shard {shards[run]} twice: {before.folder} and {run.folder}")
        stages, theirs = first.config().stages, run.config().stages
        if behind := sorted(stages.keys() ^ theirs.keys()):
            late = run if behind[0] in stages else first
            raise UserError(f"{late.folder}: stage {behind[0]} has not begun in shard {shards[late]}, but in others")
        if lines := differing_leaves(stages, theirs):
            raise UserError(f"{first.folder} and {run.folder} are not of one run: {'; '.join(lines)}")
    present = {shard.index for shard in shards.values()}
    if missing := [str(Shard(index, parts)) for index in range(1, parts + 1) if index not in present]:
        names = ", ".join(missing[:10]) + (" …" if len(missing) > 10 else "")
        raise UserError(f"missing: shard {names}; all {parts} are needed: run the shards' command with --shard {missing[0]}")
    return runs


def _check_finished(run: Run, first: Run) -> None:
    """Raise `UserError` for a shard that did not finish, or whose common files differ from those of the first."""
    folder, config = run.folder, run.config()
    sets = sets_of(folder, config)
    needed = [folder / "dialogues.jsonl"] if "simulate" in config else []
    needed += [judging.folder / "judgements.jsonl" for judging in sets]
    needed += [judging.folder / GOLD for judging in sets[:1] if "gold" in config]
    for path in needed:
        if not path.exists():
            raise UserError(f"shard {config.shard} is not finished (no {path.name} in {path.parent}): run its command again")
    for name in WHOLE:
        ours, others = folder / name, first.folder / name
        if ours.exists() != others.exists() or (ours.exists() and sha256_file(ours) != sha256_file(others)):
            raise UserError(f"{ours} and {others} are not of one run")


def _check_dialogues(runs: Sequence[Run]) -> list[dict[str, Language]]:
    """Each part's dialogues and their languages. Raises `UserError` unless they make up one run."""
    records = [
        [(d.id, d.language) for _, d in each_placed(run.folder / "dialogues.jsonl", Dialogue, "dialogues")] for run in runs
    ]
    ids = [[id for id, _ in part] for part in records]
    total = sum(map(len, ids))
    parts = {str(run.config().shard): len(part) for run, part in zip(runs, ids, strict=True)}
    if any(len(Shard.parse(shard).take(range(total))) != count for shard, count in parts.items()):
        counts = ", ".join(f"{shard}: {count}" for shard, count in parts.items())
        raise UserError(f"dialogues are missing or doubled: no run is divided like this ({counts})")
    given = runs[0].config().dialogues
    if given and given.count != total:
        raise UserError(f"{given.count} dialogues were given to be scored, the shards hold {total}")
    check_unique("the shards", (id for part in ids for id in part), "dialogue ids")
    return [dict(part) for part in records]


def _check_judged(runs: Sequence[Run], dialogues: Sequence[Mapping[str, Language]]) -> None:
    """Raise `UserError` for a verdict on another shard's dialogue, and where only some dialogues of a language are judged: a
    budget may have ended a shard."""
    config, shards = runs[0].config(), [cast(Shard, run.config().shard) for run in runs]
    gold_file = runs[0].folder / "gold_dialogues.jsonl"
    gold = read_jsonl(gold_file, Dialogue, "gold dialogues") if gold_file.exists() else []
    of_gold = [{dialogue.id: dialogue.language for dialogue in shard.take(gold)} for shard in shards]
    for number, name in product(range(len(config.judged)), (*VERDICTS, GOLD)):
        parts, judged = of_gold if name == GOLD else dialogues, dict[str, Language]()
        for run, part in zip(runs, parts, strict=True):
            judging = sets_of(run.folder, config)[number]
            verdicts = {verdict.dialogue_id: verdict.language for verdict in judging.each(name)}
            if strange := verdicts.keys() - part.keys():
                raise UserError(f"{judging.folder / name}: judges {min(strange)}, which is not among this shard's dialogues")
            judged |= verdicts
        judged_in = set(judged.values())
        unjudged = [id for part in parts for id, language in part.items() if language in judged_in and id not in judged]
        if unjudged and name != "turn_judgements.jsonl":
            lacking = f"{len(unjudged)} dialogues have no judgement while others have ({unjudged[0]})"
            raise UserError(f"{name}: {lacking}: score every shard")


def _add_up(merged: Run, runs: Sequence[Run]) -> None:
    """Write the usage, failures, versions and summed seconds of all shards: the cost of the run, not its duration."""
    from evalsuite.statistics.summary import sums_of

    usages, failures, timings = [run.usage() for run in runs], [run.failures() for run in runs], [run.timing() for run in runs]
    for stage in dict.fromkeys(stage for usage in usages for stage in usage):
        used = sums_of(usage.get(stage, {}) for usage in usages)
        merged.keep_usage(stage, {(model, role): usage for (role, model), usage in used.items()})
    for stage in dict.fromkeys(stage for failed in failures for stage in failed):
        merged.keep_failures(stage, [FailedCall(**call) for failed in failures for call in failed.get(stage, [])])
    merged.keep_versions(joined([run.versions() for run in runs]))
    timing: dict[str, Any] = {}
    for stage in dict.fromkeys(stage for shard in timings for stage in shard):
        times = [shard[stage] for shard in timings if stage in shard]
        timing[stage] = {
            "seconds": round(sum(time["seconds"] for time in times), 3),
            "tries": sum(time["tries"] for time in times),
            "finished": max(time["finished"] for time in times),
            "shards": len(runs),
        }
    write_json(merged.folder / "timing.json", timing)
