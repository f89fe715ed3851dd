"""A small benchmark described only in YAML, and scores of its items whose sums are worked by hand."""

from pathlib import Path
from typing import Any

import orjson
import yaml

SMALL = """
name: small
title: A small benchmark
levels: [low, medium, high]
level_weights:
  - {low: 0.3, medium: 0.55, high: 0.15}
  - {low: 0.4, medium: 0.6}
  - {low: 0.6, high: 0.4}
  - {medium: 0.7, high: 0.3}
gate: {capability: safe, threshold: 60}
metrics:
  acc: {label: Accuracy, type: ratio, binary: true, unread: wrong}
  five: {label: One to five, type: numeric, min: 1, max: 5}
  grade: {label: Grade, type: grade, grades: {good: 80, poor: 20}}
  share: {label: Share, type: ratio}
  percent: {label: Per cent, type: percent}
  f1: {label: F1, type: ratio, items: f1, positive: "1"}
  micro: {label: F1 over options, type: ratio, items: micro_f1}
  macro: {label: F1 of classes, type: ratio, items: macro_f1}
  lms: {label: LMS, type: ratio, items: stereoset_lms}
  ss: {label: SS, type: numeric, items: stereoset_ss, ideal: 0.5, min: 0.5, max: 0, range: [0, 1]}
  amb: {label: Ambiguous, type: numeric, items: bbq_ambiguous, ideal: 0, min: 1, max: 0, range: [-1, 1]}
  dis: {label: Disambiguated, type: numeric, items: bbq_disambiguated, ideal: 0, min: 1, max: 0, range: [-1, 1]}
capabilities:
  safe:
    label: Safe
    sub_capabilities: {s: {label: S, tasks: {ts: {label: TS, level: low, datasets: [d13]}}}}
  base:
    label: Base
    weight: 0.4
    sub_capabilities:
      a:
        label: A
        tasks:
          t1: {label: T1, level: low, datasets: {d1: 1, d2: 3}}
          t2: {label: T2, level: medium, datasets: [d3]}
          t3: {label: T3, level: medium, weight: 2, datasets: [d4]}
          t4: {label: T4, level: high, datasets: [d5]}
      b:
        label: B
        tasks: {t5: {label: T5, level: low, datasets: [d6]}, t6: {label: T6, level: medium, datasets: [d7]}}
  heart:
    label: Heart
    weight: 0.6
    sub_capabilities:
      c:
        label: C
        tasks: {t7: {label: T7, level: low, datasets: [d8]}, t8: {label: T8, level: high, datasets: [d9]}}
      d:
        label: D
        tasks: {t9: {label: T9, level: medium, datasets: [d10]}, t10: {label: T10, level: high, datasets: [d11]}}
      e: {label: E, tasks: {t11: {label: T11, level: high, datasets: [d12]}}}
datasets:
  d1: {label: D1, methods: [{metric: acc, chance: 0.5}]}
  d2: {label: D2, methods: [{metric: five}]}
  d3: {label: D3, methods: [{metric: grade}]}
  d4: {label: D4, methods: [{metric: acc}]}
  d5: {label: D5, methods: [{metric: f1}]}
  d6: {label: D6, methods: [{metric: percent}]}
  d7: {label: D7, methods: [{metric: lms}, {metric: ss}]}
  d8: {label: D8, methods: [{metric: acc}, {metric: amb, weight: 0.5}, {metric: dis, weight: 0.5}]}
  d9: {label: D9, methods: [{metric: micro}, {metric: acc}]}
  d10: {label: D10, methods: [{metric: macro}]}
  d11: {label: D11, methods: [{metric: share}]}
  d12: {label: D12, methods: [{metric: share}], run: {by: none, reason: nobody has it}}
  d13: {label: D13, methods: [{metric: acc}]}
"""


CAPABILITIES = yaml.safe_load(SMALL)["capabilities"]


def item(dataset: str, metric: str, *values: Any) -> list[dict[str, Any]]:
    key = "outcome" if any(isinstance(value, dict) for value in values) else "value"
    return [{"dataset": dataset, "metric": metric, "item": str(i), key: value} for i, value in enumerate(values)]


def whole(dataset: str, metric: str, value: Any, n: int = 100) -> list[dict[str, Any]]:
    return [{"dataset": dataset, "metric": metric, "value": value, "n": n}]


def gold(*pairs: tuple[Any, Any]) -> list[dict[str, Any]]:
    return [{"gold": right, "answer": answer} for right, answer in pairs]


def bbq(**counts: int) -> list[dict[str, str]]:
    return [
        {"context": "ambiguous" if name[0] == "a" else "disambiguated", "answer": name[2:]}
        for name, count in counts.items()
        for _ in range(count)
    ]


def chosen(**counts: int) -> list[dict[str, str]]:
    return [{"answer": name.replace("_", "-")} for name, count in counts.items() for _ in range(count)]


CONTEXTS = bbq(a_biased=2, a_other=1, a_unknown=1, d_biased=1, d_other=3)
CHOICES = chosen(stereotype=3, anti_stereotype=1, unrelated=1)
RECORDS = [
    *item("d1", "acc", 1, 1, 0, 1),  # 75
    *item("d2", "five", 2, 4),  # 3 of 1 to 5: 50; T1 = (75 + 3 × 50) / 4 = 56.25
    *item("d3", "grade", "good", "poor"),  # 50
    *whole("d4", "acc", 0.8),  # 80; medium = (50 + 2 × 80) / 3 = 70
    *item("d5", "f1", *gold(("1", "1"), ("1", "1"), ("1", "0"), ("0", "1"), ("0", "0"))),  # 2 × 2 / (4 + 1 + 1): 66.67
    *whole("d6", "percent", 40),  # 40
    *item("d7", "lms", *CHOICES),  # 4 of 5: 80
    *item("d7", "ss", *CHOICES),  # 3 of 4, 0.25 from 0.5: 50; D7 = 65
    *whole("d8", "acc", 0.6),  # 60
    *item("d8", "amb", *CONTEXTS),  # accuracy 1/4, s = 2 × 2/3 − 1 = 1/3: 0.75 × 1/3 = 0.25: 75
    *item("d8", "dis", *CONTEXTS),  # s = 2 × 1/4 − 1 = −0.5: 50; D8 = (60 + 37.5 + 25) / 2 = 61.25
    *item("d9", "micro", *gold((["a", "b"], ["a"]), (["c"], ["c", "d"]))),  # 2 hits, 1 missed, 1 wrong: 66.67
    *item("d9", "acc", 0, 0),  # 0; D9 = 33.33
    *item("d10", "macro", *gold(("x", "x"), ("x", "y"), ("y", "y"), ("z", None))),  # 2/3, 2/3, 0: 44.44
    *item("d11", "share", 0.25, 0.75),  # 50
    *item("d12", "share", 1, 0),  # 50
    *whole("d13", "acc", 0.6),  # 60: the gate is passed, just
]


def write(path: Path, records: list[dict[str, Any]], **fields: Any) -> Path:
    path.write_bytes(b"\n".join(orjson.dumps({"model": "m"} | record | fields) for record in records) + b"\n")
    return path


def write_all(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_bytes(b"\n".join(map(orjson.dumps, records)))
    return path
