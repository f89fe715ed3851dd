"""Small files of every kind that figures are computed from: what `tests/test_row_order.py` permutes.

Scores have tenths, and thirds of them come up: sums of floats then differ with the order of the numbers.
"""

import csv
import random
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import orjson
import yaml

from core.rubrics import load_rubric
from data_prep.cards import load_taxonomy
from data_prep.scores.rank_sft import narrowed
from tests.small_benchmark import SMALL

Rows = list[dict[str, Any]]
RUBRIC = narrowed(load_rubric("feel"), ["helpfulness", "coherence"])
PEOPLE = ("anna", "ben", "cleo")
SUPPORTERS = ("alpha", "beta", "gamma")
_WORDS = ("I am so tired", "of work", "and my friend", "left me", "what can", "we do", "about it", "today", "maybe", "alone")
_DANGER = "I want to kill myself."


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))


def read_sheet(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    with path.open(encoding="utf-8-sig", newline="") as handle:
        reader = csv.DictReader(handle)
        rows = list(reader)
    return list(reader.fieldnames or ()), rows


def write_sheet(path: Path, columns: list[str], rows: Iterable[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8-sig", newline="") as handle:
        writer = csv.DictWriter(handle, columns)
        writer.writeheader()
        writer.writerows(rows)


def write_all(folder: Path, run: Callable[..., str]) -> None:
    """Every file. `run` calls a verb in `folder`: sheets that people fill in are exported first."""
    rng = random.Random(5)
    cards, talks = _cards(rng), _talks(rng)
    write(folder / "cards.jsonl", cards)
    write(folder / "talks.jsonl", talks)
    write(folder / "spoken.jsonl", [talk for talk in talks if talk["language"] == "en"])
    (folder / "rubric.yaml").write_text(yaml.safe_dump(RUBRIC.model_dump(), allow_unicode=True))
    write(folder / "profiles.jsonl", _profiles(rng))
    write(folder / "verdicts.jsonl", [*_verdicts(rng, talks, "whole"), *_verdicts(rng, talks, "tenths")])
    write(folder / "rounds.jsonl", _verdicts(rng, talks, "rounds", *({"method": "bands", "repeat": n} for n in range(3))))
    people = _scores(rng, talks)
    write(folder / "people.jsonl", people)
    write(folder / "people_turns.jsonl", people + _scores(rng, talks, turn=1))
    write(folder / "halves.jsonl", [row | {"value": rng.randint(0, 6) / 2} for row in people])
    columns = ["dialogue_id", "language", "annotator", "rubric", "dimension", "value", "turn"]
    write_sheet(folder / "people.csv", columns, [{k: str(v) for k, v in row.items()} for row in people])
    write(folder / "preferences.jsonl", _preferences(rng, talks, "supporter"))
    write(folder / "seekers.jsonl", _preferences(rng, talks, "simulator"))
    write(folder / "replies.jsonl", _replies(rng, talks))
    write(folder / "references.jsonl", _references(rng, talks))
    for name in ("run", "other"):
        _run_folder(rng, folder / name, cards, talks)
    _benchmark(rng, folder)
    _sheets(rng, folder, run)
    write_sheet(folder / "choices.csv", ["item", "a", "b", "annotator", "question", "degree", "order"], _choices(rng))


def _verdicts(rng: random.Random, talks: Rows, judge: str, *kinds: dict[str, Any]) -> Rows:
    """Those of a judge on every dialogue and dimension, of each kind of request; `whole` gives whole scores with probabilities,
    others tenths."""
    rows = []
    for talk, kind, name in product(talks, kinds or ({},), RUBRIC.dimensions):
        row = _of(talk) | {"judge": judge, "rubric": "feel", "dimension": name} | kind
        if rng.random() < 0.05:
            row["value"] = None
        elif judge == "whole":
            shares = [rng.randint(1, 9) for _ in range(4)]
            distribution = {str(score): share / sum(shares) for score, share in enumerate(shares)}
            expected = sum(int(score) * share for score, share in distribution.items())
            row |= {"value": shares.index(max(shares)), "distribution": distribution, "expected": expected}
        else:
            row["value"] = rng.randint(0, 30) / 10
        rows.append(row)
    return rows


def _scores(
    rng: random.Random, talks: Rows, rubric: str = "feel", names: Iterable[str] = RUBRIC.dimensions, **more: Any
) -> Rows:
    """People's, in tenths."""
    return [
        _of(talk) | {"annotator": person, "rubric": rubric, "dimension": name, "value": rng.randint(0, 30) / 10} | more
        for talk, person, name in product(talks, PEOPLE, names)
    ]


def _choices(rng: random.Random) -> list[dict[str, str]]:
    """People's choices between supporters: degrees in tenths, both orders of some pairs."""
    return [
        {"item": f"i{item:02}", "a": a, "b": b, "annotator": person, "question": question}
        | {"degree": str(rng.randint(-20, 20) / 10), "order": order}
        for item, (a, b), person in product(range(15), (("alpha", "beta"), ("beta", "gamma")), PEOPLE)
        for question in ("Who is kinder?", "Who helps more?")
        for order in rng.choice((("ab",), ("ba",), ("ab", "ba")))
    ]


def _of(talk: dict[str, Any]) -> dict[str, Any]:
    return {"dialogue_id": talk["id"], "language": talk["language"]}


def _text(rng: random.Random) -> str:
    return " ".join(rng.choices(_WORDS, k=rng.randint(3, 8)))


def _cards(rng: random.Random) -> Rows:
    leaves = list(load_taxonomy().leaves)
    return [
        {"id": f"c{n:02}", "language": "zh" if n > 14 else "en", "age": rng.choice(["20", "35"]), "occupation": "teacher"}
        | {"gender": rng.choice(["female", "male"]), "problem": _text(rng), "source": "written", "source_id": f"s{n}"}
        | {"card_method": "written", "category": rng.choice(leaves), "quality": rng.choice(["high", "middle"])}
        for n in range(18)
    ]


def _talks(rng: random.Random) -> Rows:
    """Every card with every supporter, under ids that tell nothing of either; one of them talked to another seeker."""
    numbers = list(range(100, 154))
    rng.shuffle(numbers)
    found = []
    for card in range(18):
        for supporter in SUPPORTERS:
            turns = []
            for _ in range(rng.randint(2, 4)):
                said = _text(rng) + (f" {_DANGER}" if rng.random() < 0.3 else "")
                turns += [{"role": "seeker", "text": said}, {"role": "supporter", "text": _text(rng)}]
            found.append(
                {"id": f"d{numbers.pop()}", "language": "zh" if card > 14 else "en", "framework": "esc_eval"}
                | {"source": "written", "source_id": f"s{card}", "card_id": f"c{card:02}", "supporter": supporter}
                | {"simulator": "base" if supporter == "gamma" else "role", "turns": turns}
                | {"termination": rng.choice(["max_turns", "seeker_ended"])}
                | {"usage": {"calls": 7, "prompt_tokens": rng.randint(1, 999), "completion_tokens": rng.randint(1, 99)}}
            )
    return found


def _preferences(rng: random.Random, talks: Rows, who: str) -> Rows:
    """Every two dialogues on a card that differ in `who`; one annotator answers in both orders."""
    return [
        {"dialogue_a": a["id"], "dialogue_b": b["id"], "annotator": person, "question": "better", "order": order}
        | {"verdict": rng.choice(["a", "b", "tie"])}
        for a in talks
        for b in talks
        if a["id"] < b["id"] and a["card_id"] == b["card_id"] and a[who] != b[who]
        for person in PEOPLE
        for order in (("ab", "ba") if person == "anna" else ("ab",))
    ]


def _replies(rng: random.Random, talks: Rows) -> Rows:
    return [
        {**_of(talk), "turn": turn, "supporter": talk["supporter"], "text": _text(rng), "reference": _text(rng)}
        for talk in talks
        if talk["language"] == "en"
        for turn in (1, 3, 5, 7)
    ]


def _references(rng: random.Random, talks: Rows) -> Rows:
    return [
        {"id": f"reference {card}", "language": "en", "source": "written", "card_id": card}
        | {"turns": [{"role": role, "text": _text(rng)} for _ in range(3) for role in ("seeker", "supporter")]}
        for card in sorted({talk["card_id"] for talk in talks if talk["language"] == "en"})
    ]


def _run_folder(rng: random.Random, folder: Path, cards: Rows, talks: Rows) -> None:
    write(folder / "cards.jsonl", cards)
    write(folder / "dialogues.jsonl", talks)
    joint = {"method": "joint"}
    write(folder / "judgements.jsonl", _verdicts(rng, talks, "whole", joint))
    of_turns = [joint | {"turn": turn, "repeat": repeat} for turn in (1, 3) for repeat in range(3)]
    write(folder / "turn_judgements.jsonl", [row | {"judge": "whole"} for row in _verdicts(rng, talks, "tenths", *of_turns)])
    write(folder / "gold_judgements.jsonl", _verdicts(rng, talks[:8], "whole", joint))
    write(folder / "gold_scores.jsonl", _scores(rng, talks[:8]))
    model = {"checkpoint": "org/model", "fingerprint": "f"}
    config = {
        "simulate": {
            "framework": "esc_eval",
            "mode": "native",
            "supporters": [{"name": name} | model for name in SUPPORTERS],
            "seeker": {"name": "role"} | model,
            "cards": {"sha256": "c"},
        },
        "score": {"rubric": RUBRIC.model_dump(mode="json"), "mode": "native", "judge": {"name": "whole"} | model}
        | {"judging": "dialogue"}
        | {"prompts": {"fingerprint": "p"}},
        "gold": {"sha256": "g", "dialogues": "gold.jsonl"},
    }
    (folder / "config.json").write_bytes(orjson.dumps(config))
    usage = {"simulate": {"supporter": {name: {"calls": 3, "prompt_tokens": 7} for name in SUPPORTERS}}}
    (folder / "usage.json").write_bytes(orjson.dumps(usage))


def _benchmark(rng: random.Random, folder: Path) -> None:
    """Score files of a benchmark in one file (tests.small_benchmark)."""
    (folder / "small.yaml").write_text(SMALL)
    rows = [
        {"model": model, "dataset": dataset, "metric": metric, "item": str(item), "value": value}
        for model in ("m1", "m2", "m3")
        for dataset, metric, values in (("d1", "acc", (0, 1)), ("d13", "acc", (1, 1, 0)), ("d11", "share", (0.1, 0.7, 0.33)))
        for item in range(20)
        for value in [rng.choice(values)]
    ]
    write(folder / "scores.jsonl", rows)


def _profiles(rng: random.Random) -> Rows:
    return [
        {"id": f"p{n}", "language": rng.choice(["en", "zh"]), "scenario": _text(rng), "source": "written"}
        | {"demographics": {"age": rng.randint(15, 60), "gender": rng.choice(["woman", "man"]), "occupation": _text(rng)}}
        | {"preferences": {"mbti": rng.choice(["INTJ", "ESFP"])}, "counselling": {"problem": _text(rng)}}
        for n in range(12)
    ]


def _sheets(rng: random.Random, folder: Path, run: Callable[..., str]) -> None:
    """What people fill in, and what a ranker is trained and tested on."""
    taxonomy = load_taxonomy()
    leaves = list(taxonomy.leaves)[:3]
    run("data_prep sheet export", "--cards", "cards.jsonl", "--out", "workers")
    for name in ("worker_1", "worker_2"):
        columns, rows = read_sheet(folder / "workers" / f"{name}.csv")
        for row in rows:
            row["quality"] = rng.choice(["high", "middle", "invalid"])
            row["category"] = taxonomy.leaves[rng.choice(leaves)].label("zh" if row["card_id"] > "c14" else "en")
        write_sheet(folder / "workers" / f"{name}.csv", columns, rows)
    people = [part for name in PEOPLE for part in ("--annotator", name)]
    given = ("--dialogues", "talks.jsonl", "--rubric", "rubric.yaml")
    run("data_prep sheet export", *given, *people, "--each", 3, "--out", "annotators")
    for name in PEOPLE:
        columns, rows = read_sheet(folder / "annotators" / f"{name}.csv")
        write_sheet(
            folder / "annotators" / f"{name}.csv",
            columns,
            [row | ({"score": str(rng.randint(0, 3))} if row["rules"] else {}) for row in rows],
        )
    run("data_prep sheet export", *given, "--gold", "halves.jsonl", "--out", "again")
    for path in sorted((folder / "again").glob("*.csv")):
        columns, rows = read_sheet(path)
        halves = [f"{rng.randint(0, 6) / 2:g}" for _ in rows]
        write_sheet(
            path, columns, [row | {"score": half if row["rules"] else ""} for row, half in zip(rows, halves, strict=True)]
        )
    esc_eval = ("empathy", "overall")
    talks = [orjson.loads(line) for line in (folder / "talks.jsonl").read_bytes().splitlines()]
    write(folder / "ranked.jsonl", _scores(rng, talks, "esc_eval", esc_eval))
    named = ("--dimensions", ",".join(esc_eval), "--prompts", "esc_rank")
    run("data_prep rank-sft", "--dialogues", "talks.jsonl", "--gold", "ranked.jsonl", *named, "--out", "ranker")
    tested = [orjson.loads(line) for line in (folder / "ranker" / "test.jsonl").read_bytes().splitlines()]
    judged = [
        {"dialogue_id": row["dialogue_id"], "language": row["language"], "judge": judge, "rubric": "esc_eval"}
        | {"dimension": row["dimension"], "value": rng.randint(0, 4), "method": "per_dimension"}
        for row in tested
        if row["language"] == "en"
        for judge in ("trained@1", "trained@2", "untrained")
    ]
    write(folder / "tested.jsonl", judged)
