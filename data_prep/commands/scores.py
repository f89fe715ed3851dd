"""Score sets: `import-scores` makes one of human scores, a corpus's or one's own; `import-held` one of dialogues that people
held with supporters; `score-set` writes the synthetic one."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer

from core.errors import UserError
from core.ledger import Build
from core.options import OutOption, SeedOption, StrictOption, console, name_and_value, writes
from core.paths import IN_FILE, IN_PLACES
from core.statistics.accuracy import majority
from data_prep.played import load_played, played_text
from data_prep.scores import synthetic
from data_prep.scores.corpora import import_corpus
from data_prep.scores.held import read_held, read_ratings, references
from data_prep.scores.human import Check, Imported, read_dialogues, read_scores

Rubrics = Annotated[
    list[Path] | None,
    typer.Option("--rubric", help="YAML file of a rubric of your own that --gold names. Repeat for more."),
    IN_FILE,
]


def import_scores(
    out: Annotated[OutOption, writes("dialogues.jsonl", "scores.jsonl", "turn_scores.jsonl", "judgements.jsonl")],
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            metavar="NAME=PLACE",
            help="A corpus with scores and where it is: esconv, esconv_failed, esconv_multi, epitome or empathic_comm. "
            "Repeat for more.",
        ),
        IN_PLACES,
    ] = None,
    gold: Annotated[
        list[Path] | None,
        typer.Option(
            "--gold",
            help="A CSV (with header) or JSONL file of your own: dialogue_id, language, annotator, rubric, dimension, value "
            "and, for a score of one turn, turn (from 0). Repeat for more.",
        ),
        IN_FILE,
    ] = None,
    dialogues: Annotated[
        list[Path] | None,
        typer.Option("--dialogues", help="JSONL file with the dialogues that --gold is about. Repeat for more."),
        IN_FILE,
    ] = None,
    rubric: Rubrics = None,
    strict: StrictOption = False,
) -> None:
    """Human scores as records: OUT/dialogues.jsonl and OUT/scores.jsonl; a missing answer gives no score.

    Where there are any: turn_scores.jsonl (scores of single turns) and judgements.jsonl (models' verdicts that a corpus has).
    Files of --gold must be right in every row; malformed rows of corpora are left out, or fatal with --strict.
    """
    form = "NAME=PATH, or NAME=hf:OWNER/DATASET for the hub"
    places = [name_and_value("--source", text, form) for text in source or []]
    if not places and not gold:
        raise UserError("nothing to import: give --source NAME=PLACE or --gold FILE")
    build = Build(out, "import-scores", settings={"strict": strict})
    imported = Imported()
    for name, place in places:
        imported.add(import_corpus(name, place, build, console, strict))
    known = read_dialogues(dialogues or [])
    build.input(*(dialogues or []), *(rubric or []))
    imported.add(Imported(dialogues=known))
    check = Check(rubric or [], imported.dialogues if imported.dialogues else None)
    for path in gold or []:
        read = read_scores(path, check)
        build.input(path)
        build.step(f"read {path.name}", len(read))
        imported.add(Imported(scores=[s for s in read if s.turn is None], turn_scores=[s for s in read if s.turn is not None]))
    imported.write(build)
    build.finish(console)


def import_held(
    dialogues: Annotated[
        list[Path],
        typer.Option(
            "--dialogues",
            help="JSONL with one dialogue a line (situation, supporter, language, turns of role and text), or CSV with one "
            "utterance a row (situation, supporter, language, role, text); role is seeker or supporter. Optional: trial, from "
            "0, for several dialogues on one situation with one supporter; profile or card, who the seeker is or plays. Repeat "
            "for more files.",
        ),
        IN_FILE,
    ],
    scores: Annotated[
        list[Path],
        typer.Option(
            "--gold",
            help="CSV or JSONL with one rating a row: situation, supporter, annotator, rubric, dimension, value and, where the "
            "dialogues have it, trial. Repeat for more files.",
        ),
        IN_FILE,
    ],
    out: Annotated[OutOption, writes("dialogues.jsonl", "scores.jsonl", "references.jsonl")],
    reference: Annotated[
        list[Path] | None,
        typer.Option(
            "--references",
            help="JSONL file with the corpus's own dialogues of the situations (Dialogue records whose source_id is the "
            "situation, as import-scores writes ESConv's). Those needed are written to references.jsonl.",
        ),
        IN_FILE,
    ] = None,
    cards: Annotated[
        list[Path] | None, typer.Option("--cards", help="Role cards that column card names. Repeat for more."), IN_FILE
    ] = None,
    profiles: Annotated[
        list[Path] | None,
        typer.Option("--profiles", help="Profiles that column profile names (EmoHarbor). Repeat for more."),
        IN_FILE,
    ] = None,
    rubric: Rubrics = None,
) -> None:
    """Dialogues that people held with supporters, with their ratings: OUT/dialogues.jsonl and OUT/scores.jsonl.

    Each situation was talked over with every supporter, as in section 3.3 of ESC-Eval. Every row must be right. A dialogue that
    nobody rated is left out and counted. `esc-eval agree --correlate system --sample source` pairs these ratings with scores
    of simulated dialogues on cards made of the same situations, and with metrics of replies on references.jsonl. EmoHarbor's
    table 1 (judges that see a participant's profile) needs column profile: the judge's run then reads the profiles by id.
    """
    build = Build(out, "import-held")
    held = read_held(dialogues)
    ratings = read_ratings(scores, held, Check(rubric or []))
    texts = references(reference, held) if reference else []
    if cards or profiles:
        known = load_played(cards or [], profiles or [])
        for dialogue in held.values():
            if dialogue.card_id or dialogue.profile_id:
                played_text(dialogue, known)  # which raises where it is not among them
    build.input(*dialogues, *scores, *(reference or []), *(rubric or []), *(cards or []), *(profiles or []))
    Imported(dialogues=list(held.values()), scores=ratings).write(build)
    if reference:
        build.write("references.jsonl", texts)
    situations, supporters = {talk.situation for talk in held}, {talk.supporter for talk in held}
    console.print(f"{len(situations)} situations × {len(supporters)} supporters: {len(held)} dialogues")
    build.finish(console)


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
