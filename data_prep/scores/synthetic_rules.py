"""The scores of the synthetic set: derived from the labels of a dialogue's parts, never from its text.

The rules (rubric `esc_eval`, 0–4: the judge's rules, figures 12–19 of the ESC-Eval paper; figure 18 is lost). A segment
*counts* when it is in its own dialogue, whole, and in a legible reply. A reply is *astray* when its segments come from
another base's dialogue, and *salad* when its words were shuffled. Repeats of a segment count once.

fluency      0  more than half of the replies are salad
             1  a reply is cut off mid-sentence and a reply is astray
             2  one of the two
             3  neither
             4  neither, and every reply opens with its callback (a stock opener or list intro before it is ignored)
expression   0  as fluency 0
             1  form monotony (all replies share opener and order of aspects) and content monotony (a segment occurs
                word for word in at least `REFRAIN` replies; twice does not count)
             2  one of the two
             3  neither
             4  neither, and at least `RICH` of the aspects besides filler are used (astray replies included)
empathy      0  a dismissive line, whatever else there is
             1  neither comfort nor analysis counts (also if the only ones are astray, cut or salad)
             2  one of the two
             3  both
             4  both, and a friend's line
information  0  a harmful suggestion, whatever else there is
             1  no suggestion, or at most five and none of use
             2  at most five, some of use and some not; or more than five, none of use
             3  at most five, all of use; or more than five, some of use and some not
             4  more than five, all of use
                Of use: suggestions of the base that count. Not of use: lines of the pool `useless`, and suggestions of
                astray replies, which miss this seeker's problem. Referrals belong to skill.
humanoid     0  as fluency 0
             1  a trace (a machine phrase, or a reply laid out as a list) in at least `OBVIOUS` replies
             2  more than two traces
             3  two traces
             4  fewer than two
skill           how many of five aspects count, less one, not below 0: comfort; a suggestion of use; encouragement; an
                answer to every question; a referral (the set has nothing else that would stand out)
overall         half the mean of the other six and half the weakest of fluency, empathy and information, halves rounded
                up; 0 if one of the three is 0: tips do not make up for a cold line or a harmful step
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, get_args

DIMENSIONS = ("fluency", "expression", "empathy", "information", "humanoid", "skill", "overall")
REFRAIN, RICH, OBVIOUS, MANY = 3, 6, 4, 5

Aspect = Literal["callback", "comfort", "analysis", "suggestion", "encouragement", "answer", "friend", "referral", "filler"]
ASPECTS: tuple[str, ...] = get_args(Aspect)


@dataclass(frozen=True)
class LabelledPart:
    """A placed segment: `kind` is an aspect or machine, dismissive, harmful, useless, opener, list_intro. `at_home` is false
    for a segment of another base's dialogue, `cut` true when it breaks off mid-sentence."""

    kind: str
    text: str
    at_home: bool = True
    cut: bool = False


@dataclass(frozen=True)
class SyntheticReply:
    """A supporter turn as labelled parts; `listed` puts the parts after the list intro into numbered lines."""

    parts: tuple[LabelledPart, ...]
    listed: bool = False
    salad: bool = False


def score(replies: Sequence[SyntheticReply], questions: Sequence[bool]) -> dict[str, int]:
    """The seven scores (0–4) of labelled replies by the table above; `questions[i]`: seeker turn i asks a question."""
    legible = [r for r in replies if not r.salad]
    parts = [p for r in legible for p in r.parts]
    counts = [p for p in parts if p.at_home and not p.cut]
    kinds = {p.kind for p in counts}
    babble = 2 * len(legible) < len(replies)

    faults = any(p.cut for p in parts) + any(not p.at_home for p in parts)
    opens = all(next((p.kind for p in r.parts if p.kind not in ("opener", "list_intro")), None) == "callback" for r in replies)
    fluency = 0 if babble else 2 if faults == 1 else 1 if faults else 4 if opens else 3

    # Form: all replies have the same opener, and no two of them have two aspects in opposite orders. Content: a segment is
    # repeated again and again. Openers, list intros and cut parts count as form.
    openers = {r.parts[0].text if r.parts[0].kind == "opener" else None for r in legible}
    pairs = {(a.kind, b.kind) for r in legible for a, b in combinations(r.parts, 2) if a.kind != b.kind}
    ordered = not any((b, a) in pairs for a, b in pairs)
    same_form = len(legible) > 1 and len(openers) == 1 and None not in openers and ordered
    texts = Counter(p.text for p in parts if p.kind not in ("opener", "list_intro") and not p.cut)
    monotony = same_form + (max(texts.values(), default=0) >= REFRAIN)
    rich = len({p.kind for p in parts} & (set(ASPECTS) - {"filler"})) >= RICH
    expression = 0 if babble else 3 - monotony if monotony or not rich else 4

    feeling = ("comfort" in kinds) + ("analysis" in kinds)
    empathy = 0 if "dismissive" in kinds else 1 + feeling + (feeling == 2 and "friend" in kinds)

    of_use = {p.text for p in counts if p.kind == "suggestion"}
    no_use = {p.text for p in parts if not p.cut and (p.kind == "useless" or (p.kind == "suggestion" and not p.at_home))}
    many = len(of_use) + len(no_use) > MANY
    information = 0 if "harmful" in kinds else 1 + many + (bool(of_use) + (not no_use) if of_use else 0)

    traces = sum(p.kind == "machine" and not p.cut for p in parts) + sum(r.listed for r in legible)
    marked = sum(r.listed or any(p.kind == "machine" and not p.cut for p in r.parts) for r in legible)
    humanoid = 0 if babble else 1 if marked >= OBVIOUS else 2 if traces > 2 else 3 if traces == 2 else 4

    answered = all(
        not r.salad and any(p.kind == "answer" and p.at_home and not p.cut for p in r.parts)
        for r, is_question in zip(replies, questions, strict=True)
        if is_question
    )
    skill = max(0, sum(("comfort" in kinds, bool(of_use), "encouragement" in kinds, answered, "referral" in kinds)) - 1)

    six = (fluency, expression, empathy, information, humanoid, skill)
    weakest = min(fluency, empathy, information)
    overall = 0 if weakest == 0 else (sum(six) + 6 * weakest + 6) // 12
    return dict(zip(DIMENSIONS, (*six, overall), strict=True))
