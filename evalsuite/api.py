"""The harness from Python: a run folder's records (`load_run`), and the two stages of a run (`simulate`, `score`) on your own
objects, with callables as models if you like.

The engine is that of the commands, with the same stages, store and errors. With `out`, there is a run folder like any other,
which can be resumed and extended; without it, everything is kept in memory.
"""

import asyncio
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from core.errors import UserError, clean
from core.files import check_unique, read_jsonl, write_jsonl
from core.records import Dialogue, Judgement, Language, RoleCard
from core.rubrics import Rubric
from core.specs import ModelSpec
from core.tables import Estimate, Screen
from data_prep.dialogue_files import read_given
from data_prep.profiles import Profile
from data_prep.scores.human import read_dialogues
from evalsuite.given import FrameRecords, People, given_dialogues, given_people, only_language, with_rubric
from evalsuite.report.report import PLUMBING
from evalsuite.runner import pipeline
from evalsuite.runner.engine import Runner
from evalsuite.runner.work import Outcome, problems_of
from evalsuite.runs import shards
from evalsuite.runs.config import EvalConfig
from evalsuite.runs.contents import chosen_set, sets_of
from evalsuite.runs.dialogue_framework import DialogueFramework, RunIdentity, dialogue_framework, run_of
from evalsuite.runs.folder import open_run
from evalsuite.runs.people import languages_with
from evalsuite.statistics.leaderboard import Board, Score, Tally
from evalsuite.statistics.paired import rank_text
from evalsuite.statistics.summary import AVERAGE, Scorer, languages_of, supporter_of
from serve.callables import CALLERS_LOOP, Models, OneModel, named_models, one_model
from serve.limits import Budget

_Out = str | Path | None
_Settings = Mapping[str, Any]
_COMMANDS_ONLY = ("gold", "shard", "replay")  # fields of a config that Python does not support


@dataclass(frozen=True)
class Standing:
    """A supporter's row of a leaderboard, on 0–100."""

    language: Language
    scorer: Scorer
    """Judge, method and condition."""
    rank: str | None
    """The ranks among models that are possible given the differences, as `1–2`; None for a floor, and without tests."""
    supporter: str
    group: str | None
    scores: Mapping[str, Estimate]
    """Dimension, and `average` → mean, interval and n."""


@dataclass(frozen=True)
class Results:
    """The records of a run, its scores and its leaderboard."""

    dialogues: FrameRecords[Dialogue]
    judgements: FrameRecords[Judgement]
    """Verdicts on whole dialogues, by all judges or the one named."""
    rubric: Rubric | None = None
    """The rubric of the scores; None if nothing was scored."""
    folder: Path | None = None
    """The run folder; None if the results are only in memory."""
    notes: Sequence[str] = ()
    """What readers of the scores must know."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Supporter → group."""
    floors: Collection[str] = ()
    """Supporters that need no model."""

    def __repr__(self) -> str:
        """Three lines: the dialogues, the models' average scores, and the folder."""
        supporters = dict.fromkeys(supporter_of(dialogue) for dialogue in self.dialogues)
        count = f"dialogues: {len(self.dialogues)} of {', '.join(supporters)} ({', '.join(languages_of(self.dialogues))})"
        means = (f"{row.supporter} {row.scores[AVERAGE].mean:.1f}" for row in self.leaderboard if row.scores[AVERAGE].n)
        scores = f"average on 0–100 ({self.rubric.name}): {', '.join(means)}" if self.rubric else "not scored"
        return f"{count}\n{scores}\n{self.folder or 'in memory: `out=FOLDER` keeps it'}"

    @property
    def scores(self) -> FrameRecords[Score]:
        """The leaderboard's cells: language × scorer × supporter × dimension (`average` last), on 0–100."""
        return FrameRecords([cell for board in self._boards for cell in board.cells], _score_row)

    @property
    def leaderboard(self) -> FrameRecords[Standing]:
        """A row per supporter, by falling average within each language."""
        return FrameRecords([standing for board in self._boards for standing in self._standings(board)], _standing_row)

    @cached_property
    def _boards(self) -> list[Board]:
        return Tally(self.dialogues, self.judgements, self.rubric, self.floors).boards if self.rubric else []

    def _standings(self, board: Board) -> Iterator[Standing]:
        for place in board.order:
            block, rank = board.scores[place], rank_text(board.ranks[place])
            scores = {cell.dimension: cell.estimate for cell in block}
            group = self.groups.get(block[0].supporter)
            yield Standing(board.language, board.scorer, rank, block[0].supporter, group, scores)


_Dialogues = str | Path | Results | Iterable[Dialogue | Mapping[str, Any]]


def load_run(folder: str | Path, judge: str | None = None) -> Results:
    """The records of a run folder, with the verdicts of all judges or only of `judge`. Raises `UserError` for other folders."""
    folder = Path(folder)
    config = shards.whole(folder)
    sets = [chosen_set(folder, config, judge)] if judge else sets_of(folder, config)
    scored, dialogues = config.scored, read_jsonl(folder / "dialogues.jsonl", Dialogue, "dialogues", allow_empty=True)
    return Results(
        dialogues=FrameRecords(dialogues, Dialogue.model_dump),
        judgements=FrameRecords([judgement for judging in sets for judgement in judging.records()], Judgement.model_dump),
        rubric=scored.rubric if scored else None,
        folder=folder,
        notes=[PLUMBING] if config.plumbing else [],
        groups=config.groups(),
        floors=config.floors(),
    )


def simulate(
    cards: People,
    *,
    supporter: Models,
    seeker: OneModel,
    judge: OneModel | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Results:
    """Hold a dialogue on every card (or profile) with every supporter and, with a `judge`, score it.

    `cards`: records, dicts with a `problem`, a data frame with such a column, a file of cards, or `bundled`. `supporter`: one
    model or several. `out`: a run folder, which the same call resumes. `settings`: further fields of a run's config, such as
    `exchanges=3` or `framework="emoharbor"`; a `rubric` may be a name, a file, a dict or a `Rubric`. `quiet`: no progress on
    stderr. Warns if answers of a model are missing. Raises `UserError` as `esc-eval run` does.
    """
    return _simulation(cards, supporter, seeker, judge, out, quiet, settings).here()


async def simulate_async(
    cards: People,
    *,
    supporter: Models,
    seeker: OneModel,
    judge: OneModel | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Results:
    """`simulate`, to be awaited: the event loop keeps running, and async callables run in it."""
    return await _simulation(cards, supporter, seeker, judge, out, quiet, settings).beside()


def score(
    dialogues: str | Path | Results | Iterable[Dialogue | Mapping[str, Any]],
    *,
    judge: OneModel,
    out: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Results:
    """Score dialogues: records, dicts (also in chat format: `{"messages": […]}`), a file of them, or `Results`. Without `out`,
    results of a run folder are scored in that folder, as by a further judge.

    `out`, `quiet` and `settings` (`rubric`, `method`, …) are as in `simulate`.
    """
    return _scoring(dialogues, judge, out, quiet, settings).here()


async def score_async(
    dialogues: str | Path | Results | Iterable[Dialogue | Mapping[str, Any]],
    *,
    judge: OneModel,
    out: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Results:
    """`score`, to be awaited like `simulate_async`."""
    return await _scoring(dialogues, judge, out, quiet, settings).beside()


@dataclass
class _Work:
    """A stage to run. It needs its own event loop, so if one is running already, as in notebooks, it runs in a thread."""

    resolved: DialogueFramework
    stage: Callable[[Runner], Outcome]
    quiet: bool
    exits: ExitStack
    """Removes temporary files when the stage ends."""
    lasting: bool
    """Whether the run folder is kept."""

    def __post_init__(self) -> None:
        config = self.resolved.config
        self.budget = Budget(config.max_time, config.max_calls, config.max_cost)

    def here(self) -> Results:
        """Run the stage, blocking the caller."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._results()
        with ThreadPoolExecutor(1) as thread:
            working = thread.submit(copy_context().run, self._results)
            try:
                return working.result()
            except BaseException:
                self._stop()
                raise

    async def beside(self) -> Results:
        """Run the stage in a thread, with async callables in this event loop."""
        before = CALLERS_LOOP.set(asyncio.get_running_loop())
        try:
            return await asyncio.to_thread(self._results)
        except BaseException:
            self._stop()
            raise
        finally:
            CALLERS_LOOP.reset(before)

    def _stop(self) -> None:
        """Ask no more questions. Calls in flight are finished and stored."""
        self.budget.max_time = 0.0

    def _results(self) -> Results:
        folder = self.resolved.out
        with self.exits, open_run(folder) as run:
            run.budget = self.budget
            with Runner(run, self.resolved, Screen(stderr=True, quiet=self.quiet)) as runner:
                outcome = self.stage(runner)
            if problems := problems_of([outcome]):
                text = f"{'; '.join(problems)}. With `out`, the same call asks again for only those"
                warnings.warn(clean(text), stacklevel=2)
            results = load_run(folder)
        return results if self.lasting else replace(results, folder=None)


def _simulation(
    cards: People, supporter: Models, seeker: OneModel, judge: OneModel | None, out: _Out, quiet: bool, settings: _Settings
) -> _Work:
    specs = dict[str, ModelSpec]()
    config: dict[str, Any] = {"supporters": named_models(supporter, specs), "seeker": one_model("seeker", seeker, specs)}
    if judge is not None:
        config["judge"] = one_model("judge", judge, specs)
    model = dialogue_framework(settings).config_model
    played = "profiles" if "profiles" in model.model_fields else "cards"
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        if isinstance(cards, str | Path):
            config[played] = [str(cards)]
            if str(cards) != "bundled" and "languages" not in settings:
                record = Profile if played == "profiles" else RoleCard
                default = EvalConfig.model_fields["languages"].default
                config["languages"] = languages_with(default, {record: config[played]}, (), {})
        else:
            people = given_people(cards, played == "profiles", settings)
            check_unique(played, (person.id for person in people), "ids")
            write_jsonl(folder / f"{played}.jsonl", people)
            config |= {played: [str(folder / f"{played}.jsonl")], "languages": languages_of(people)}
        if played not in model.model_fields:
            raise UserError(f"framework {settings.get('framework')}: its config takes no cards, so Python cannot give it any")
        resolved = _resolved(config, out or folder / "run", with_rubric(settings, folder), specs)
        RunIdentity(resolved).simulate()  # raises for errors before anything is started
        if judge is not None:
            RunIdentity(resolved).score()
        stage = partial(pipeline.simulate, score=judge is not None)
        return _Work(resolved, stage, quiet, exits.pop_all(), out is not None)


def _scoring(dialogues: _Dialogues, judge: OneModel, out: _Out, quiet: bool, settings: _Settings) -> _Work:
    specs = dict[str, ModelSpec]()
    config: dict[str, Any] = {"judge": one_model("judge", judge, specs)}
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        if isinstance(dialogues, Results):
            out = out or dialogues.folder
            dialogues = dialogues.dialogues
        if isinstance(dialogues, str | Path):
            path = Path(dialogues)
            records = read_given(path, only_language(settings), settings.get("roles")).dialogues
        else:
            records, path = given_dialogues(dialogues, settings), folder / "dialogues.jsonl"
            if out is not None and (stored := Path(out) / "dialogues.jsonl").exists() and read_dialogues([stored]) == records:
                path = stored
            else:
                write_jsonl(path, records)
        config["languages"] = languages_of(records)
        resolved = _resolved(config, out or folder / "run", with_rubric(settings, folder), specs)
        RunIdentity(resolved).score()
        return _Work(resolved, partial(pipeline.score, dialogues=path), quiet, exits.pop_all(), out is not None)


def _resolved(config: _Settings, out: str | Path, settings: _Settings, specs: Mapping[str, ModelSpec]) -> DialogueFramework:
    """The resolved config of a call, with its models."""
    for name in settings:
        if name in _COMMANDS_ONLY:
            raise UserError(f"{name}: only `esc-eval run` has it: leave it out")
        if name in config and name != "languages":
            raise UserError(f"{name}: give it by the function's own parameter, not as a setting")
    return run_of({**config, "out": str(out), **settings}, specs)


def _score_row(cell: Score) -> Mapping[str, Any]:
    row = {"language": cell.language, **cell.scorer.record(), "supporter": cell.supporter, "dimension": cell.dimension}
    row |= {"score": cell.estimate.mean, "low": cell.estimate.low, "high": cell.estimate.high, "n": cell.estimate.n}
    return row | {"asked": cell.asked, "read": cell.read}


def _standing_row(standing: Standing) -> Mapping[str, Any]:
    row = {"language": standing.language, **standing.scorer.record(), "rank": standing.rank}
    row |= {"supporter": standing.supporter, "group": standing.group}
    average = standing.scores[AVERAGE]
    row |= {AVERAGE: average.mean, "low": average.low, "high": average.high, "n": average.n}
    return row | {name: cell.mean for name, cell in standing.scores.items() if name != AVERAGE}
