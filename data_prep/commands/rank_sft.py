"""`rank-sft` builds a ranker's training, validation and test sets from human scores and dialogues."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.progress import track

from core.errors import UserError
from core.files import write_json, write_text
from core.judge_prompts import PromptMethod
from core.ledger import Build
from core.options import OutOption, SeedOption, console, writes
from core.paths import IN_FILE, IN_NAME
from core.prompts import load_pack
from core.records import Dialogue, HumanScore
from core.rubrics import flat_rubric
from data_prep.scores import synthetic
from data_prep.scores.human import read_dialogues, read_scores
from data_prep.scores.rank_sft import SHARES, SplitMethod, cases, describe, mean_targets, narrowed, split_cases

SYNTHETIC = "synthetic"
_FILES = (
    *("train.jsonl", "valid.jsonl", "test.jsonl", "dialogues_test.jsonl", "scores_test.jsonl"),
    *("rubric.yaml", "labels.json", "dialogues.jsonl", "scores.jsonl"),
)


def rank_sft(
    gold: Annotated[
        list[str],
        typer.Option(
            "--gold",
            metavar="FILE",
            help="Human scores, JSONL or CSV (the form that `import` reads and writes; repeat for more), or `synthetic`, the "
            "bundled set.",
        ),
        IN_NAME,
    ],
    out: Annotated[OutOption, writes(*_FILES)],
    dialogues: Annotated[
        list[Path] | None, typer.Option("--dialogues", help="JSONL file of the scored dialogues. Repeat for more."), IN_FILE
    ] = None,
    rubric: Annotated[
        str, typer.Option("--rubric", help="Rubric that the ranker is asked, by name (configs/rubrics) or YAML file."), IN_NAME
    ] = "esc_eval",
    method: Annotated[
        PromptMethod,
        typer.Option("--method", help="One example with all dimensions, or one per dimension (our prompt or the paper's)."),
    ] = "per_dimension",
    split: Annotated[
        SplitMethod,
        typer.Option(
            "--split", help="7:1:2, stratified, with each role card or dialogue in one split; or random, as in the paper."
        ),
    ] = "grouped",
    seed: SeedOption = 0,
    dimensions: Annotated[
        str, typer.Option("--dimensions", help="Only these dimensions, with commas; then score with OUT/rubric.yaml.")
    ] = "",
    prompts: Annotated[
        str, typer.Option("--prompts", help="Prompt pack by name (configs/prompts) or folder."), IN_NAME
    ] = "esc_eval",
) -> None:
    """Ranker examples from human scores: train, valid and test as prompt and completion, with exactly the scorer's messages.

    Several annotators' scores of one dimension are averaged and rounded, halves up. If all scores are on one other rubric (as
    esc_eval_human is to esc_eval), they are used. Also written: the test split's dialogues and scores (to measure agreement
    on), rubric.yaml (the ranker's rubric), and labels.json with label counts and majority baselines.

    --gold synthetic: good hand-written dialogues and controlled degradations of them, en and zh, whose seven scores are true by
    construction (rules: data_prep/scores/synthetic_rules.py). They are written to dialogues.jsonl and scores.jsonl.
    """
    chosen = [name.strip() for name in dimensions.split(",") if name.strip()]
    ranker_rubric, pack = narrowed(flat_rubric(rubric, "a ranker"), chosen), load_pack(prompts)
    settings: dict[str, Any] = {
        "rubric": ranker_rubric.model_dump(mode="json"),
        "prompts": {"pack": prompts, "fingerprint": pack.fingerprint()},
        "method": method,
        "split": split,
    }
    build = Build(out, "rank-sft", seed, settings)
    talks, scores = _scored(gold, dialogues or [], seed, build)
    named = {score.rubric for score in scores}
    score_rubric = settings["score_rubric"] = min(named) if len(named) == 1 else ranker_rubric.name
    if score_rubric != ranker_rubric.name:
        console.print(f"people scored on rubric {score_rubric}; the ranker's rubric is {ranker_rubric.name}")
    targets, used = mean_targets(scores, talks, ranker_rubric, build.step("scores"), score_rubric)
    step = build.step("mean scores")
    examples = cases(talks.values(), targets, ranker_rubric, method, step)
    if not examples:
        reasons = {**build.steps[0].dropped, **step.dropped}
        listed = "; ".join(f"{reason}: {count}" for reason, count in sorted(reasons.items()))
        raise UserError(f"no example can be made of {', '.join(gold)} with rubric {ranker_rubric.name} ({listed})")
    splits = split_cases(examples, split, seed)
    for name, part in splits.items():
        progress = track(part, f"{name} examples", console=console, disable=not console.is_terminal)
        build.write(f"{name}.jsonl", (case.example(pack, ranker_rubric) for case in progress))
    tested = {(case.dialogue.id, key) for case in splits["test"] for key in case.target}
    build.write("dialogues_test.jsonl", {case.dialogue.id: case.dialogue for case in splits["test"]}.values())
    build.write("scores_test.jsonl", [score for score in used if (score.dialogue_id, score.dimension) in tested])
    text = yaml.safe_dump(ranker_rubric.model_dump(), allow_unicode=True, sort_keys=False, width=120)
    write_text(build.folder / "rubric.yaml", text)
    build.output("rubric.yaml")
    summary = describe(splits, ranker_rubric)
    write_json(build.folder / "labels.json", summary)
    build.output("labels.json")
    _show(summary)
    build.finish(console)


def _scored(
    gold: Sequence[str], dialogues: Sequence[Path], seed: int, build: Build
) -> tuple[dict[str, Dialogue], Sequence[HumanScore]]:
    """The dialogues by id, and their scores: from files, or the synthetic set, which is written."""
    if SYNTHETIC in gold:
        if len(gold) > 1 or dialogues:
            raise UserError(f"--gold {SYNTHETIC}: the set has its own dialogues and scores: give no files with it")
        dialogue_set, scores = synthetic.build(seed)
        build.write("dialogues.jsonl", dialogue_set)
        build.write("scores.jsonl", scores)
        console.print(f"{len(dialogue_set)} dialogues, {len(scores)} scores (synthetic: true by construction)")
        return {dialogue.id: dialogue for dialogue in dialogue_set}, scores
    if not dialogues:
        raise UserError("give the scored dialogues with --dialogues FILE")
    files = [Path(name) for name in gold]
    build.input(*dialogues, *files)
    talks = {dialogue.id: dialogue for dialogue in read_dialogues(dialogues)}
    given = [score for path in files for score in read_scores(path)]
    for score in given:
        if score.dialogue_id in talks and (language := talks[score.dialogue_id].language) != score.language:
            raise UserError(f"scores: dialogue {score.dialogue_id} is in {language}, not {score.language}")
    return talks, given


def _show(summary: dict[str, Any]) -> None:
    """Print a line per language and dimension, for all rows and for the test split; then how close the splits are to 7:1:2."""
    rows = [row for row in summary["labels"] if row["split"] in ("all", "test")]
    width = max(len(row["dimension"]) for row in rows)
    for row in rows:
        counts = "  ".join(f"{label}: {count}" for label, count in row["counts"].items())
        baseline = f"majority {row['majority']}: ACC {row['majority_acc']:.1%}, ACC_soft {row['majority_acc_soft']:.1%}"
        labels = f"{row['split']:<5} {row['language']} {row['dimension']:<{width}} n {row['n']}  {counts}"
        console.print(f"{labels}  {baseline}", soft_wrap=True)
    for what, part in summary["shares"].items():
        off = max(abs(part[name] - wanted) for name, wanted in SHARES.items())
        parts = " : ".join(f"{100 * part[name]:.2f}" for name in SHARES)
        several = f"{summary['on_several_sides'].get(what, 0)} on several sides"
        console.print(f"{what}: {parts} % (at most {100 * off:.2f} points off 70 : 10 : 20; {several})", soft_wrap=True)
