"""Sharded runs: every machine plays its part of a run in a folder of its own, and the parts are merged.

Shard I/N is the I-th of N equal parts of the list of dialogues. The list is ordered by supporter, so most shards need only
one or two supporters' servers. A merged folder has the records, config, usage and finished calls of one run, byte for byte
except for clock times. The unsharded command on that folder makes no calls, or only those that a shard had lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from core.differences import differing_leaves
from core.errors import UserError
from core.files import (
    check_unique,
    each_placed,
    read_bytes,
    read_jsonl,
    sha256_file,
    write_bytes,
    write_json,
    write_jsonl,
    write_lines,
)
from core.grouping import group_by
from core.records import Dialogue, HumanScore, Judgement, Language
from evalsuite.runs.folder import Run, open_run
from evalsuite.runs.judgement_sets import VERDICTS, JudgementSet, sets_of
from evalsuite.runs.people import PEOPLE
from evalsuite.runs.run_config import RunConfig
from evalsuite.runs.shard import Shard, called
from evalsuite.runs.spool import Written
from evalsuite.runs.versions import joined
from serve.failures import FailedCall

GOLD = "gold_judgements.jsonl"
WHOLE = (*PEOPLE, "gold_dialogues.jsonl", "gold_scores.jsonl")  # the same in every shard


def whole(folder: Path, needed: bool = True) -> RunConfig:
    """The config of a run folder whose records are to be read; with `needed` false, an empty one if there is none.

    Every reader of finished runs begins here. Raises `UserError` if there is no config, and for a shard, whose figures could
    be mistaken for those of the run.
    """
    config = RunConfig.read(folder)
    if needed and not config:
        raise UserError(f"not a run folder (no config.json): {folder}: `esc-eval run --config CONFIG --out {folder}` makes one")
    if shard := config.shard:
        raise UserError(f"{folder} holds only {called(shard)} of a run: merge all shards with `esc-eval merge` first")
    return config


@dataclass
class _Part:
    """One shard's folder."""

    run: Run
    shard: Shard
    config: RunConfig
    dialogues: dict[str, Language] = field(default_factory=dict)
    """Language by id, in order: the records themselves stay on disk."""

    @property
    def sets(self) -> list[JudgementSet]:
        """Every judge's records, in the order of its config."""
        return sets_of(self.run.folder, self.config)


def merge(folders: Sequence[Path], out: Path) -> Written[Dialogue]:
    """Merge the finished shards of a run into `out`, reading records one by one; returns the dialogues in the order of one
    run. Gold judgements are merged, too, and their agreement is measured.

    Raises `UserError`, before anything is written, if a shard is missing, doubled or unfinished, if shards have different
    configs, and if dialogues are missing or in two shards.
    """
    from evalsuite.statistics.agreement import agreement, in_steps  # a run that claims its shard loads no statistics
    from evalsuite.statistics.clusters import clusters_of
    from evalsuite.statistics.summary import sums_of

    places = [folder.resolve() for folder in folders]
    if out.resolve() in places:
        raise UserError(f"--out {out}: this is one of the shards; use another folder")
    check_unique("merge", map(str, places), "folders")
    for folder in folders:
        if not (folder / "config.json").exists():
            raise UserError(f"not a run folder (no config.json): {folder}")
    with ExitStack() as opened:
        parts = _parts([opened.enter_context(open_run(folder)) for folder in folders])
        for part in parts:
            _check_finished(part, parts[0])
        _read_dialogues(parts)
        files = [
            (number, name)
            for number, name in product(range(len(parts[0].sets)), (*VERDICTS, GOLD))
            if any((part.sets[number].folder / name).exists() for part in parts)
        ]
        judged = {(number, name): _judgements(parts, number, name) for number, name in files if name in VERDICTS}
        gold = {number: _gold(parts, number) for number, name in files if name == GOLD}
        merged = opened.enter_context(open_run(out))
        merged.claim_shard(None)
        for stage, config in parts[0].config.stages.items():
            merged.claim(stage, config)
        merged.settle()
        for part in parts:
            merged.store.add_from(part.run.store.path)
        for name in WHOLE:
            if (parts[0].run.folder / name).exists():
                write_bytes(out / name, read_bytes(parts[0].run.folder / name, "records"))
        dialogues = Written(Dialogue, [part.run.folder / "dialogues.jsonl" for part in parts])
        write_lines(out / "dialogues.jsonl", dialogues.lines())
        sets = sets_of(out, parts[0].config)
        for (number, name), judgements in judged.items():
            write_lines(sets[number].folder / name, judgements.lines())
        for number, of_gold in gold.items():
            write_jsonl(sets[number].folder / GOLD, of_gold)
            scores = read_jsonl(out / "gold_scores.jsonl", HumanScore, "gold scores")
            clusters = clusters_of(read_jsonl(out / "gold_dialogues.jsonl", Dialogue, "gold dialogues"))
            rubric = next((judged.rubric for judged in parts[0].config.judged.values()), None)
            agreed = agreement(*in_steps(of_gold, scores, rubric), clusters)
            write_json(sets[number].folder / "agreement.json", {"agreement": agreed})
        used_by, failures = [part.run.usage() for part in parts], [part.run.failures() for part in parts]
        for stage in dict.fromkeys(stage for of_part in used_by for stage in of_part):
            used = sums_of(of_part.get(stage, {}) for of_part in used_by)
            merged.keep_usage(stage, {(model, role): usage for (role, model), usage in used.items()})
        for stage in dict.fromkeys(stage for of_part in failures for stage in of_part):
            merged.keep_failures(stage, [FailedCall(**call) for of_part in failures for call in of_part.get(stage, [])])
        merged.keep_versions(joined([part.run.versions() for part in parts]))
        write_json(out / "timing.json", _timing([part.run.timing() for part in parts]))
    return dialogues


def _parts(runs: Sequence[Run]) -> list[_Part]:
    """The shards in order. Raises `UserError` unless they are all shards of one run, each once."""
    parts = []
    for run in runs:
        config = run.config()
        if config.shard is None:
            raise UserError(f"{run.folder} holds a whole run, not a shard of one")
        parts.append(_Part(run, config.shard, config))
    parts.sort(key=lambda part: part.shard)
    first = parts[0]
    folders: dict[Shard, Path] = {}
    for part in parts:
        if part.shard.of != first.shard.of:
            raise UserError(f"{first.run.folder} is shard {first.shard}, {part.run.folder} shard {part.shard}: not of one run")
        if part.shard in folders:
            raise UserError(f"shard {part.shard} twice: {folders[part.shard]} and {part.run.folder}")
        stages, others = part.config.stages, first.config.stages
        if behind := sorted(stages.keys() ^ others.keys()):
            late = part if behind[0] in first.config else first
            raise UserError(f"{late.run.folder}: stage {behind[0]} has not begun in shard {late.shard}, but in others")
        if lines := differing_leaves(others, stages):
            raise UserError(f"{first.run.folder} and {part.run.folder} are not of one run: {'; '.join(lines)}")
        folders[part.shard] = part.run.folder
    wanted = {Shard(index, first.shard.of) for index in range(1, first.shard.of + 1)}
    if missing := sorted(wanted - set(folders)):
        names = ", ".join(map(str, missing[:10])) + (" …" if len(missing) > 10 else "")
        raise UserError(
            f"missing: shard {names}; all {first.shard.of} are needed: run the shards' command with --shard {missing[0]}"
        )
    return parts


def _check_finished(part: _Part, first: _Part) -> None:
    """Raise `UserError` for a shard that did not finish, or whose common files differ from those of the first."""
    folder = part.run.folder
    needed = [folder / "dialogues.jsonl"] if "simulate" in part.config else []
    needed += [judging.folder / "judgements.jsonl" for judging in part.sets]
    needed += [judging.folder / GOLD for judging in part.sets[:1] if "gold" in part.config]
    for path in needed:
        if not path.exists():
            raise UserError(f"shard {part.shard} is not finished (no {path.name} in {path.parent}): run its command again")
    for name in WHOLE:
        ours, others = folder / name, first.run.folder / name
        if ours.exists() != others.exists() or (ours.exists() and sha256_file(ours) != sha256_file(others)):
            raise UserError(f"{ours} and {others} are not of one run")


def _read_dialogues(parts: Sequence[_Part]) -> None:
    """Read the dialogue ids of each part. Raises `UserError` unless they make up one run."""
    for part in parts:
        path = part.run.folder / "dialogues.jsonl"
        records = [(dialogue.id, dialogue.language) for _, dialogue in each_placed(path, Dialogue, "dialogues")]
        check_unique(path, (id for id, _ in records), "dialogue ids")
        part.dialogues = dict(records)
    total = sum(len(part.dialogues) for part in parts)
    if any(len(part.dialogues) != len(part.shard.take(range(total))) for part in parts):
        counts = ", ".join(f"{part.shard}: {len(part.dialogues)}" for part in parts)
        raise UserError(f"dialogues are missing or doubled: no run is divided like this ({counts})")
    claimed = parts[0].config.dialogues
    if claimed and claimed.count != total:
        raise UserError(f"{claimed.count} dialogues were given to be scored, the shards hold {total}")
    check_unique("the shards", (id for part in parts for id in part.dialogues), "dialogue ids")


def _judgements(parts: Sequence[_Part], number: int, name: str) -> Written[Judgement]:
    """One file's judgements by the n-th judge, in the order of the shards. Raises `UserError` if only some dialogues of a
    language are judged."""
    every: dict[str, Language] = {}
    for part in parts:
        judged = {verdict.dialogue_id: verdict.language for verdict in part.sets[number].each(name)}
        if strange := judged.keys() - part.dialogues:
            raise UserError(
                f"{part.sets[number].folder / name}: judges {min(strange)}, which is not among this shard's dialogues"
            )
        every |= judged
    if name == "judgements.jsonl":
        languages, dialogues = set(every.values()), (pair for part in parts for pair in part.dialogues.items())
        if unjudged := [id for id, language in dialogues if language in languages and id not in every]:
            raise UserError(f"{len(unjudged)} dialogues have no judgement while others have ({unjudged[0]}): score every shard")
    paths = (part.sets[number].folder / name for part in parts)
    return Written(Judgement, [path for path in paths if path.exists()])


def _gold(parts: Sequence[_Part], number: int) -> list[Judgement]:
    """The judgements of the gold set by the n-th judge."""
    ids = [dialogue.id for dialogue in read_jsonl(parts[0].run.folder / "gold_dialogues.jsonl", Dialogue, "gold dialogues")]
    by_dialogue: dict[str, list[Judgement]] = {}
    for part in parts:
        judged = group_by(part.sets[number].records(GOLD), lambda judgement: judgement.dialogue_id)
        if set(judged) != set(part.shard.take(ids)):
            raise UserError(f"{part.sets[number].folder}/{GOLD}: not shard {part.shard} of the gold set's {len(ids)}")
        by_dialogue |= judged
    return [judgement for id in ids for judgement in by_dialogue[id]]


def _timing(shards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """timing.json with seconds and tries summed over shards: the cost of the run, not its duration."""
    merged: dict[str, Any] = {}
    for stage in dict.fromkeys(stage for shard in shards for stage in shard):
        timings = [shard[stage] for shard in shards if stage in shard]
        merged[stage] = {
            "seconds": round(sum(timing["seconds"] for timing in timings), 3),
            "tries": sum(timing["tries"] for timing in timings),
            "finished": max(timing["finished"] for timing in timings),
            "shards": len(shards),
        }
    return merged
