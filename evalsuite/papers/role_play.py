"""Role-play evaluation (ESC-Eval sections 2.3.2 and B.2, tables 1 and 10): how well models play the seeker.

This module reads the seekers to compare and has a judge who knows the role card score them, for table 1, which may also be of
people's scores, or say which of two is closer to a human (figure 3), in both orders of every pair.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from core.errors import UserError
from core.files import check_unique, first_object, read_jsonl
from core.grouping import exact_mean, group_by
from core.judge_prompts import transcript
from core.prompts import load_pack
from core.records import LOST, Dialogue, HumanScore, Judgement, Language, Order, Preference, RoleCard, SupportDialogue, Verdict
from core.rubrics import Rubric
from core.statistics.bootstrap import SMOOTHED, scale_levels
from core.tables import Cell, Estimate, Table
from data_prep.profiles import Played, load_played
from data_prep.scores.human import read_dialogues
from evalsuite.papers.win_rates import Choice, Mode, Words, win_rate_tables
from evalsuite.runner.engine import Runner
from evalsuite.runs import shards
from evalsuite.runs.dialogue_framework import RunIdentity
from evalsuite.runs.folder import Run
from evalsuite.runs.people import read_people
from evalsuite.runs.run_config import hashed, identity
from evalsuite.statistics.contestants import card_of
from evalsuite.statistics.correlation import known_dialogue
from evalsuite.statistics.leaderboard import ends
from evalsuite.statistics.paired import over_cards
from evalsuite.statistics.summary import AVERAGE, checked, dimension_label, languages_of, scorer_of, seeker_of
from serve.client import ChatClient
from serve.failures import Unanswered
from serve.questions import Question

ROLE_PLAY = "Role play"  # heading of the report
PRINTED = 10  # table 1 prints a mean on 0–2 as one on 0–10
_NAME = re.compile(r"[^\s:=/][^:=/]{0,59}")


# --- the seekers ------------------------------------------------------------------------------------------------------------


@dataclass
class Field:
    """The dialogues of the seekers to compare, and each dialogue's card or profile (by dialogue id).

    Every dialogue has its seeker's name as `simulator` and in its id, `SEEKER:ID`, since one model under two prompting
    strategies holds dialogues of the same id. `unplaced` counts each seeker's imported dialogues that belong to no card.
    """

    dialogues: list[Dialogue] = field(default_factory=list)
    cards: dict[str, Played] = field(default_factory=dict)
    unplaced: Counter[str] = field(default_factory=Counter)


def read_field(
    places: Sequence[str],
    card_files: Sequence[Path],
    languages: Sequence[Language] | None,
    limit: int | None = None,
    profile_files: Sequence[Path] = (),
) -> Field:
    """Seekers in the languages (None: all) from `NAME=PLACE`, where a place is a run folder or a JSONL file of dialogues.

    Files may also hold `SupportDialogue` records. Cards and profiles come from the run folders and from files. An imported
    dialogue without `card_id` belongs to the card made from it: the one with the same `source` and `source_id`. With `limit`,
    that many cards per language are kept, those played by most seekers first. Raises `UserError` for a name given twice, a
    simulated dialogue whose card is missing, two cards made from one dialogue, a seeker without any dialogue, and a folder
    with only a part of a run.
    """
    shared_cards = load_played(card_files, profile_files).values()
    compared, names = Field(), []
    for place in places:
        name, _, where = place.partition("=")
        if not where or not _NAME.fullmatch(name):
            raise UserError(f"--seeker {place!r}: expected NAME=RUN_FOLDER or NAME=FILE.jsonl; no colon or slash in NAME")
        names.append(name)
        folder, cards = Path(where), [*shared_cards]
        if folder.is_dir():
            shards.whole(folder, needed=False)
            cards += read_people(folder)
            dialogues = read_dialogues([folder / "dialogues.jsonl"])
        elif "dialogue" in first_object(folder, "dialogues"):  # a support corpus, as `python -m data_prep read` writes it
            dialogues = [item.dialogue for item in read_jsonl(folder, SupportDialogue, "dialogues")]
            check_unique(folder, (dialogue.id for dialogue in dialogues), "dialogue ids")
        else:
            dialogues = read_dialogues([folder])
        _place(compared, name, where, [d for d in dialogues if languages is None or d.language in languages], cards)
    check_unique("--seeker", names, "seeker names")
    if limit is not None:
        seekers: dict[tuple[Language, str], set[str]] = defaultdict(set)  # (language, card) → its seekers
        for dialogue in compared.dialogues:
            seekers[dialogue.language, compared.cards[dialogue.id].id].add(seeker_of(dialogue))
        by_language = group_by(seekers, lambda key: key[0]).values()
        # The sort is stable: among cards with equally many seekers, the first to appear.
        kept = {key for keys in by_language for key in sorted(keys, key=lambda key: -len(seekers[key]))[:limit]}
        compared.dialogues = [d for d in compared.dialogues if (d.language, compared.cards[d.id].id) in kept]
        compared.cards = {dialogue.id: compared.cards[dialogue.id] for dialogue in compared.dialogues}
    return compared


def _place(compared: Field, name: str, where: str, dialogues: Sequence[Dialogue], cards: Iterable[Played]) -> None:
    by_id: dict[str, Played] = {}
    for card in cards:
        if by_id.setdefault(card.id, card) != card:
            kind = "role card" if isinstance(card, RoleCard) else "profile"
            raise UserError(f"{kind} {card.id} is given twice with other contents")
    by_source = group_by(by_id.values(), lambda card: (card.source, card.source_id))
    before = len(compared.dialogues)
    for dialogue in dialogues:
        if (id := dialogue.card_id or dialogue.profile_id) is not None:
            if id not in by_id:
                kind, option = ("role card", "--cards") if dialogue.card_id else ("profile", "--profiles")
                raise UserError(f"{where}: dialogue {dialogue.id}: no {kind} {id!r}; give its file with {option}")
            card = by_id[id]
        else:  # imported: that of the card which was made from it
            own = by_source.get((dialogue.source, dialogue.source_id), []) if dialogue.source_id else []
            if len(own) > 1:
                listed = ", ".join(card.id for card in own[:3])
                raise UserError(f"{where}: dialogue {dialogue.id}: several cards were made from it ({listed}); set its card_id")
            if not own:
                compared.unplaced[name] += 1
                continue
            card = own[0]
        field = "card_id" if isinstance(card, RoleCard) else "profile_id"
        renamed = dialogue.model_copy(update={"id": f"{name}:{dialogue.id}", "simulator": name, field: card.id})
        compared.dialogues.append(renamed)
        compared.cards[renamed.id] = card
    if len(compared.dialogues) == before:
        problem = "none of its dialogues belongs to a given role card" if dialogues else "no dialogue in the chosen languages"
        raise UserError(f"seeker {name} ({where}): {problem}")


def claim(run: Run, stage: str, settings: Mapping[str, Any], seekers: Field) -> None:
    """Claim a folder for a stage with these dialogues and cards. Raises `UserError` for the folder of an evaluation run, whose
    files are about supporters."""
    if others := {"simulate", "score"} & run.config().stages.keys():
        raise UserError(f"--out {run.folder} holds another run's records ({', '.join(sorted(others))}); use another --out")
    cards = [seekers.cards[dialogue.id] for dialogue in seekers.dialogues]
    run.claim(stage, {**settings, "dialogues": hashed(seekers.dialogues), "cards": {"sha256": hashed(cards)["sha256"]}})


# --- scores by a judge ------------------------------------------------------------------------------------------------------


def score_seekers(runner: Runner, seekers: Field) -> list[Judgement]:
    """A judgement of every dialogue on every dimension of the rubric, by a judge who sees the role card. Native mode only."""
    resolved = runner.resolved
    if resolved.method == "paper":
        raise UserError("--mode paper: people rated the seekers in the paper; give their scores to `paper role-play --gold`")
    if profiles := sorted({card.id for card in seekers.cards.values() if not isinstance(card, RoleCard)}):
        raise UserError(
            f"{profiles[0]} is a profile: rubric {resolved.rubric.name} rates seekers against role cards; "
            "`--pairs` compares seekers of profiles"
        )

    async def judged(client: ChatClient, dialogue: Dialogue) -> list[Judgement]:
        pack = resolved.judge_prompts.with_values(card=seekers.cards[dialogue.id])
        return await resolved.judge(client, prompts=pack).score(dialogue)

    claim(runner.run, "role_play", RunIdentity(resolved).score(), seekers)
    answers = runner.judged("role-play score", seekers.dialogues, judged, "dialogues")
    return [judgement for judgements in answers.results for judgement in judgements]


# --- table 1 ----------------------------------------------------------------------------------------------------------------


def role_play_tables(
    dialogues: Sequence[Dialogue], rubric: Rubric, judgements: Sequence[Judgement] = (), scores: Sequence[HumanScore] = ()
) -> list[Table]:
    """Table 1, one per language: seekers × metrics on 0–10 with 95 % intervals and n, their average on both scales, parse rate.

    A score s becomes (s − min) / (max − min) × 10, so on 0–2 the mean × 5. If the metrics' scales differ, the average is on
    0–10 only. A dialogue's annotators, repeats and turns are averaged first; each judge has its own rows, people share theirs.
    Records on other rubrics are skipped. Raises `UserError` for a verdict off the rubric, a score of a dialogue that is not
    given, and if there is no score on this rubric. People's scores are checked where they are read.
    """
    by_id = {dialogue.id: dialogue for dialogue in dialogues}
    human = [score for score in scores if score.rubric == rubric.name]
    count = len({score.annotator for score in human})
    people = f"people ({count} {'annotator' if count == 1 else 'annotators'})"
    ratings: list[Judgement | HumanScore] = [*checked(judgements, rubric), *human]
    groups: dict[tuple[Language, str, str], list[Judgement | HumanScore]] = defaultdict(list)
    for rating in ratings:
        scorer = scorer_of(rating).name if isinstance(rating, Judgement) else people
        if rating.dialogue_id not in by_id:
            raise UserError(f"score by {scorer}: dialogue_id: no dialogue {rating.dialogue_id!r} among those given")
        dialogue = by_id[rating.dialogue_id]
        groups[dialogue.language, scorer, seeker_of(dialogue)].append(rating)
    if not groups:
        raise UserError(f"no score on rubric {rubric.name}")
    labels = [dimension_label(rubric, dimension) for dimension in rubric.dimensions]
    shared = rubric.shared_scale if rubric.alike else None
    unprinted = [f"{AVERAGE} on {shared.min}–{shared.max}"] if shared else []
    columns = ("seeker", "judged by", *labels, AVERAGE, *unprinted, "parse rate %")
    average = columns.index(AVERAGE)
    notes = (
        f"Mean score on 0–{PRINTED} as the paper prints it ({ends(rubric, PRINTED)}; on 0–2 the mean × 5), "
        f"[{SMOOTHED} over cards, each drawn with all its dialogues; none for a single card], "
        "n = dialogues with a readable score.",
        f"{AVERAGE}: unweighted mean of the metrics; its n counts dialogues with any readable score. Rubric {rubric.name}.",
        "Unreadable verdicts are in no mean and lower the parse rate; verdicts lost with a server do not.",
    )
    tables = []
    for language in languages_of(dialogues):
        rows = [_row(key[2], key[1], members, rubric, by_id) for key, members in groups.items() if key[0] == language]
        means = {row: cell.mean if isinstance(cell := row[average], Estimate) else None for row in rows}
        rows.sort(key=lambda row: (str(row[1]), means[row] is None, -(means[row] or 0.0), str(row[0])))
        if rows:
            title = f"How well seekers are played, {language}"
            tables.append(Table(f"role_play-{language}", title, columns, tuple(rows), notes, ROLE_PLAY))
    return tables


def _row(
    seeker: str, scorer: str, ratings: Sequence[Judgement | HumanScore], rubric: Rubric, dialogues: Mapping[str, Dialogue]
) -> tuple[Cell, ...]:
    places = {name: place for place, name in enumerate(sorted({rating.dialogue_id for rating in ratings}))}
    columns = {name: place for place, name in enumerate(rubric.dimensions)}
    scores: dict[tuple[int, int], list[float]] = defaultdict(list)
    for rating in ratings:
        if rating.value is not None:
            scores[places[rating.dialogue_id], columns[rating.dimension]].append(rating.value)
    means = np.full((len(places), len(columns)), np.nan)
    for place, values in scores.items():
        means[place] = exact_mean(values)
    worst, best = np.array([rubric.ends(name) for name in rubric.dimensions]).T
    cards, weights = [card_of(dialogues[id]) for id in places], None if rubric.weights is None else np.array(rubric.weights)
    cells = over_cards((means - worst) * PRINTED / (best - worst), cards, scale_levels(0, PRINTED), weights)
    answered = sum(isinstance(rating, HumanScore) or not (rating.lost or rating.unasked) for rating in ratings)
    read = 100 * sum(rating.value is not None for rating in ratings) / answered if answered else None
    average, shared = cells[-1], rubric.shared_scale if rubric.alike else None
    if shared is None:
        return seeker, scorer, *cells, read
    bounds = (average.mean, average.low, average.high)
    mean, least, most = (None if x is None else shared.min + x * shared.span / PRINTED for x in bounds)
    return seeker, scorer, *cells, Estimate(mean, least, most, average.n), read


# --- which of two is closer to a human --------------------------------------------------------------------------------------

QUESTION = "closer_to_human"
TITLES = {QUESTION: "Closer to a human"}
WORDS = Words("role_play", "seeker", "cards", ROLE_PLAY)
Pair = tuple[Dialogue, Dialogue]


class PairAnswer(Preference):
    """One answer on two dialogues shown in one order; `verdict` is null if it could not be read or was not given."""

    verdict: Verdict | None  # type: ignore[assignment]
    raw: str = ""
    failure: str | None = None

    def preference(self) -> Preference | None:
        """The answer as the record used for people's answers; None without a verdict."""
        return None if self.verdict is None else Preference.model_validate(self.model_dump(exclude={"raw", "failure"}))


def pairs_of(seekers: Field) -> tuple[list[Pair], Counter[str]]:
    """Pairs of two seekers' dialogues on the same card or profile, simulated ones with the same supporter in the same trial;
    and how many dialogues of each seeker are left out because they have no exchange or a server failed. Raises `UserError` if
    there is no pair at all."""
    by_card: dict[str, list[Dialogue]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    for dialogue in seekers.dialogues:
        if dialogue.lost or not dialogue.exchanges:
            left_out[seeker_of(dialogue)] += 1
        else:
            by_card[seekers.cards[dialogue.id].id].append(dialogue)
    pairs = [
        (a, b)
        for dialogues in by_card.values()
        for a, b in combinations(dialogues, 2)
        if seeker_of(a) != seeker_of(b)
        and a.language == b.language
        and (a.supporter is None or b.supporter is None or (a.supporter, a.trial) == (b.supporter, b.trial))
    ]
    if not pairs:
        raise UserError("no card was played by two seekers (with the same supporter and trial): nothing to compare")
    return pairs, left_out


def shown(pair: Pair, mode: Mode) -> tuple[str, str]:
    """Both transcripts as a judge reads them.

    They begin with the seeker's first line: what the supporter says before is fixed in simulations and absent in corpora. In
    native mode the longer chat is cut to the number of turns of the shorter one, so that length does not tell them apart.
    """
    starts = [next(place for place, turn in enumerate(d.turns) if turn.role == "seeker") for d in pair]
    turns = [dialogue.turns[start:] for dialogue, start in zip(pair, starts, strict=True)]
    length = min(map(len, turns)) if mode == "native" else None
    a, b = (transcript(d.model_copy(update={"turns": part[:length]})) for d, part in zip(pair, turns, strict=True))
    return a, b


def read_answer(text: str, order: Order) -> Verdict | None:
    """The verdict of "1", "2" or "tie" on the chats as shown, whatever its case, quotes and full stop; None for other text."""
    answer = text.strip().strip("\"'“”.。").strip().lower()
    if answer not in ("1", "2"):
        return "tie" if answer == "tie" else None
    return "a" if (answer == "1") == (order == "ab") else "b"


def compare_seekers(runner: Runner, seekers: Field, pairs: Sequence[Pair]) -> list[PairAnswer]:
    """The judge's answers on every pair of `seekers` in both orders. A lost server, a rejected call or an overflow gives a
    null verdict with its `failure`."""
    resolved, pack = runner.resolved, runner.resolved.judge_pack
    spec, mode = resolved.models.judge, resolved.config.mode
    prompts = load_pack(pack)  # not `judge_prompts`: the pack need not have prompts for scores
    prompts.require({a.language for a, _ in pairs}, ["pairwise_system.j2", "pairwise.j2"])
    settings = {"mode": mode, "judge": identity(spec), "question": QUESTION}
    settings["prompts"] = {"pack": pack, "fingerprint": prompts.fingerprint()}
    claim(runner.run, "pairwise", settings, seekers)

    async def answer(client: ChatClient, job: tuple[Pair, Order]) -> PairAnswer:
        pair, order = job
        first, second = shown(pair, mode) if order == "ab" else shown(pair, mode)[::-1]
        system = prompts.render(pair[0].language, "pairwise_system.j2")
        user = prompts.render(pair[0].language, "pairwise.j2", first=first, second=second)
        sample = {"dialogue_a": pair[0].id, "dialogue_b": pair[1].id, "order": order, "question": QUESTION}
        question = Question(
            [{"role": "system", "content": system}, {"role": "user", "content": user}],
            sample=sample,
            sampling=spec.sampling,
            served_name=spec.served_name(),
            purpose="judge",
            choices=("1", "2", "tie"),
            held_tokens=4,
        )
        text, failure = "", None
        try:
            reply = await client.ask(spec, question)
            text = reply.text
            failure = "context_overflow" if reply.finish_reason == "context_overflow" else "refusal" if reply.refused else None
        except Unanswered as error:
            failure = error.outcome
        verdict = None if failure else read_answer(text, order)
        answered = {"annotator": spec.name, "verdict": verdict, "raw": text, "failure": failure}
        return PairAnswer.model_validate(sample | answered)

    orders: tuple[Order, ...] = ("ab", "ba")
    jobs = [(pair, order) for pair in pairs for order in orders]
    return runner.judged("role-play pairwise", jobs, answer, "answers").results


def choices_of(answers: Sequence[Preference], dialogues: Sequence[Dialogue]) -> list[Choice]:
    """Answers on these dialogues as choices between their seekers. Raises `UserError` for a dialogue that is not given, and
    two dialogues of one seeker or on different cards (or profiles)."""
    by_id = {dialogue.id: dialogue for dialogue in dialogues}
    choices = []
    for answer in answers:
        where = f"answer by {answer.annotator} on {answer.dialogue_a} and {answer.dialogue_b}"
        a, b = (known_dialogue(by_id, id, where) for id in (answer.dialogue_a, answer.dialogue_b))
        if seeker_of(a) == seeker_of(b):
            raise UserError(f"{where}: both are of seeker {seeker_of(a)}")
        person, other = a.card_id or a.profile_id, b.card_id or b.profile_id
        if person is None or person != other:
            persons = f"{person or 'none'} and {other or 'none'}"
            raise UserError(f"{where}: card_id or profile_id: {persons}; both dialogues of a pair need the same")
        choice = Choice(
            *(a.language, person, seeker_of(a), seeker_of(b), answer.verdict),
            annotator=answer.annotator,
            question=answer.question,
            outputs=(a.id, b.id),
            first=seeker_of(a if answer.order == "ab" else b),
            lost=isinstance(answer, PairAnswer) and answer.failure in LOST,
        )
        choices.append(choice.sorted())
    return choices


def pairwise_tables(answers: Sequence[Preference], dialogues: Sequence[Dialogue], mode: Mode) -> list[Table]:
    """Win rates of every seeker, every pair of seekers, and the effect of the order shown (figure 3, and beyond)."""
    return [*win_rate_tables(choices_of(answers, dialogues), mode, WORDS, TITLES)]
