"""`rank-sft` turns human scores and dialogues into a ranker's training, validation and test sets."""

from __future__ import annotations

from collections import defaultdict
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
from core.prompts import PromptPack, load_pack
from core.records import HumanScore
from core.rubrics import Rubric, load_rubric
from core.statistics.accuracy import majority
from data_prep.scores import synthetic
from data_prep.scores.human import read_dialogues, read_scores
from data_prep.scores.rank_sft import SHARES, Case, Split, SplitMethod, cases, describe, mean_targets, narrowed, split_cases

_FILES = (
    *("train.jsonl", "valid.jsonl", "test.jsonl", "dialogues_test.jsonl", "scores_test.jsonl"),
    *("rubric.yaml", "labels.json"),
)


def rank_sft(
    dialogues: Annotated[list[Path], typer.Option("--dialogues", help="JSONL file of dialogues. Repeat for more."), IN_FILE],
    scores: Annotated[
        list[Path],
        typer.Option("--gold", help="Human scores, JSONL or CSV (the form that `import` reads and writes). Repeat for more."),
        IN_FILE,
    ],
    out: Annotated[OutOption, writes(*_FILES)],
    rubric: Annotated[
        str, typer.Option("--rubric", help="Rubric that the ranker is asked, by name (configs/rubrics) or YAML file."), IN_NAME
    ] = "esc_eval",
    method: Annotated[
        PromptMethod,
        typer.Option("--method", help="One example with all dimensions, or one a dimension (native or paper's prompt)."),
    ] = "per_dimension",
    split: Annotated[
        SplitMethod,
        typer.Option(
            "--split", help="7:1:2 with no role card or dialogue on two sides, by score; or by dialogue, as in the paper."
        ),
    ] = "grouped",
    seed: SeedOption = 0,
    dimensions: Annotated[
        str, typer.Option("--dimensions", help="Only these dimensions, with commas; score with OUT/rubric.yaml then.")
    ] = "",
    score_rubric: Annotated[
        str | None,
        typer.Option(
            "--gold-rubric",
            help="Name of the rubric that people scored on, where it is another (as esc_eval_human is to esc_eval).",
        ),
    ] = None,
    annotator: Annotated[
        list[str] | None,
        typer.Option("--annotator", help="Only scores of this annotator. Repeat for more; their mean is taken."),
    ] = None,
    prompts: Annotated[
        str, typer.Option("--prompts", help="Prompt pack by name (configs/prompts) or folder."), IN_NAME
    ] = "esc_eval",
) -> None:
    """Ranker examples from human scores: train, valid and test as prompt and completion, with exactly the scorer's messages.

    Several annotators' scores of one dimension are averaged and rounded, halves up. Beside the examples: the test split's
    dialogues and scores (to score and measure agreement on), rubric.yaml (the rubric that was asked), and labels.json with
    label counts and majority baselines.
    """
    chosen = [name.strip() for name in dimensions.split(",") if name.strip()]
    asked, pack = narrowed(load_rubric(rubric), chosen), load_pack(prompts)
    settings = {
        "rubric": asked.model_dump(mode="json"),
        "prompts": {"pack": prompts, "fingerprint": pack.fingerprint()},
        "method": method,
        "split": split,
        "score_rubric": score_rubric or asked.name,
        "annotators": sorted(annotator or []),
    }
    build = Build(out, "rank-sft", seed, settings)
    talks = {dialogue.id: dialogue for dialogue in read_dialogues(dialogues)}
    human_scores = [score for path in scores for score in read_scores(path)]
    _refuse_other_languages(human_scores, {name: talk.language for name, talk in talks.items()})
    build.input(*dialogues, *scores)
    targets, used = mean_targets(human_scores, talks, asked, build.step("scores"), score_rubric, annotator or ())
    step = build.step("mean scores")
    examples = cases(talks.values(), targets, asked, method, step)
    if not examples:
        reasons = {**build.steps[0].dropped, **step.dropped}
        listed = "; ".join(f"{reason}: {count}" for reason, count in sorted(reasons.items()))
        raise UserError(f"no example can be made of {', '.join(map(str, scores))} with rubric {asked.name} ({listed})")
    splits = split_cases(examples, split, seed)
    _write(build, splits, used, pack, asked)
    summary = describe(splits, asked)
    write_json(build.folder / "labels.json", summary)
    build.output("labels.json")
    _show(summary)
    build.finish(console)


def _refuse_other_languages(scores: Sequence[HumanScore], languages: dict[str, str]) -> None:
    for score in scores:
        if languages.get(score.dialogue_id, score.language) != score.language:
            raise UserError(f"scores: dialogue {score.dialogue_id} is in {languages[score.dialogue_id]}, not {score.language}")


def _write(
    build: Build, splits: dict[Split, list[Case]], scores: Sequence[HumanScore], pack: PromptPack, rubric: Rubric
) -> None:
    for name, part in splits.items():
        progress = track(part, f"{name} examples", console=console, disable=not console.is_terminal)
        build.write(f"{name}.jsonl", (case.example(pack, rubric) for case in progress))
    tested = {(case.dialogue.id, key) for case in splits["test"] for key in case.target}
    build.write("dialogues_test.jsonl", {case.dialogue.id: case.dialogue for case in splits["test"]}.values())
    build.write("scores_test.jsonl", [score for score in scores if (score.dialogue_id, score.dimension) in tested])
    text = yaml.safe_dump(rubric.model_dump(), allow_unicode=True, sort_keys=False, width=120)
    write_text(build.folder / "rubric.yaml", text)
    build.output("rubric.yaml")


def _show(summary: dict[str, Any]) -> None:
    """One line a language and dimension, of all rows and of the test split; then how near the splits are to 7:1:2."""
    rows = [row for row in summary["labels"] if row["split"] in ("all", "test")]
    width = max(len(row["dimension"]) for row in rows)
    for row in rows:
        counts = "  ".join(f"{label}: {count}" for label, count in row["counts"].items())
        acc, soft = 100 * row["majority_acc"], 100 * row["majority_acc_soft"]
        baseline = f"majority {row['majority']}: ACC {acc:.1f} %, ACC_soft {soft:.1f} %"
        console.print(
            f"{row['split']:<5} {row['language']} {row['dimension']:<{width}} n {row['n']}  {counts}  {baseline}",
            soft_wrap=True,
        )
    for what, part in summary["shares"].items():
        off = max(abs(part[name] - wanted) for name, wanted in SHARES.items())
        parts = " : ".join(f"{100 * part[name]:.2f}" for name in SHARES)
        both = summary["on_several_sides"].get(what, 0)
        tail = f"; {both} on several sides" if both else ""
        console.print(f"{what}: {parts} % (at most {100 * off:.2f} points off 70 : 10 : 20{tail})", soft_wrap=True)


def score_set(out: Annotated[OutOption, writes("dialogues.jsonl", "scores.jsonl")], seed: SeedOption = 0) -> None:
    """Write the synthetic score set: dialogues whose seven scores hold by construction, en and zh.

    Good hand-written dialogues and their controlled degradations; the rules are in data_prep/scores/synthetic_rules.py.
    """
    dialogues, scores = synthetic.build(seed)
    build = Build(out, "score-set", seed, {"synthetic": True})
    build.write("dialogues.jsonl", dialogues)
    build.write("scores.jsonl", scores)
    console.print(f"{len(dialogues)} dialogues, {len(scores)} scores (synthetic: scores hold by construction)")
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for score in scores:
        values[score.language, score.dimension].append(score.value)
    for (language, dimension), numbers in values.items():
        labels = majority(numbers)
        counts = "  ".join(f"{label}: {count}" for label, count in labels["counts"].items())
        console.print(f"{language} {dimension:<12} {counts}  majority {100 * labels['majority_acc']:.1f} %")
    build.finish(console)
