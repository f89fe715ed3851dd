"""A run's records and report as a full benchmark would leave them, generated: for the report's tests and its benchmark."""

import random
from functools import cache
from pathlib import Path
from typing import Any, get_args

from core.files import write_json, write_jsonl
from core.languages import PAPER_LANGUAGES
from core.records import Dialogue, HumanScore, Judgement, RoleCard, Termination, Turn, Usage
from core.rubrics import load_rubric
from core.tables import Table
from evalsuite.report.charts import (
    agreement_charts,
    calibration_charts,
    confusion_charts,
    distribution_charts,
    termination_charts,
)
from evalsuite.report.report import ReportContent
from evalsuite.statistics.agreement import agreement
from evalsuite.statistics.judges import calibration, calibration_table, confusion, confusion_tables
from evalsuite.statistics.leaderboard import Tally, by_category, leaderboard, pairwise_differences
from evalsuite.statistics.reply_length import length_table, replies_of
from evalsuite.statistics.summary import AGREEMENT, distributions, model_uses, terminations, use_table

RUBRIC = load_rubric("esc_eval")
SEEKER = {
    "en": (
        "I moved for this job in March and I still eat lunch alone every single day.",
        "My sister says I should just get over it, which makes me want to call her even less.",
        "I don't know. Some evenings I rehearse what to say and then say nothing.",
        "Last week they all went out and nobody thought of asking me.",
        "Maybe. I suppose the one in the corner office did smile once.",
    ),
    "zh": (
        "三月份为了这份工作搬过来，到现在每天中午还是一个人吃饭。",
        "姐姐总说我想太多，听完我更不想给她打电话了。",
        "说不清。有几个晚上我把要说的话练了好几遍，最后什么也没说。",
        "上周他们一起出去聚餐，没有人想到叫我。",
        "也许吧，靠窗那位同事倒是冲我笑过一次。",
    ),
}
SUPPORTER = {
    "en": (
        "That sounds lonely, and half a year is a long time to carry it. What does lunchtime look like, hour by hour?",
        "It hurts when the person who should be on your side waves it away. You are allowed to find this hard.",
        "Rehearsing shows how much you want it. Could a smaller step do, such as asking one person where they buy coffee?\n\n"
        "1. Pick somebody who works near you.\n2. Ask one thing.\n3. Leave it there, and be proud of it.",
        "Being left out stings. It may say more about their habits than about you, though I see why it does not feel so.",
        "That smile could be your coffee question. I would be glad to hear how it goes.",
    ),
    "zh": (
        "听起来很孤单，半年一直这样确实不容易。能说说中午那一个小时是怎么过的吗？",
        "本该站在你这边的人却轻轻带过，难免让人难受。你觉得难，是可以的。",
        "反复练习说明你很在意。要不要换一小步：先问问旁边的同事咖啡在哪儿买？",
        "被落下的滋味不好受。这也许更多是他们的习惯，而不是你的问题。",
        "那个微笑也许就是开口的机会，等你的好消息。",
    ),
}
CATEGORIES = ("Family and Life", "Work and Study", "Social Interaction and Others")
VOCABULARY = sorted({word for text in (*SEEKER["en"], *SUPPORTER["en"]) for word in text.split()})
BASES = {"harbour-8b": "org/Qwen2-7B", "lantern-7b-chat": "org/Qwen1.5-7B", "plainspoken-base": "org/plain"}
SKILL = {"harbour-8b": 0.72, "lantern-7b-chat": 0.64, "plainspoken-base": 0.35, "tide-1.5b-instruct-zh": 0.5}
NO_CONTROL = dict.fromkeys(range(32))  # names do without control characters: readers refuse them
INJECTIONS = (
    "</script><script>window.__pwned = 1</script>",
    '<img src=x onerror="window.__pwned = 1">',
    "]]><!-- --!><script>window.__pwned = 1</script>",
    "{{7*7}} {% raw %} ${7*7}",
    "\u202egnp.exe\u202c \u2066isolated",
    "a\x00b\x1b[31mred",
    "javascript:window.__pwned=1//'\"><svg onload=window.__pwned=1>",
    "line\u2028separator\u2029 &lt;b&gt; <!--<script>",
    "</title></style></textarea></template></noscript></select><script>window.__pwned = 1</script>",
    "<iframe srcdoc='<script>parent.__pwned = 1</script>'></iframe><object data='javascript:parent.__pwned=1'></object>",
    "<svg><animate onbegin=window.__pwned=1 attributeName=x dur=1s><set href=javascript:window.__pwned=1>",
    '<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror=window.__pwned=1&gt;">',
    "<details open ontoggle=window.__pwned=1><video><source onerror=window.__pwned=1></video>",
    '" autofocus tabindex=1 onfocus="window.__pwned=1" x="',
    "' onmouseover='window.__pwned=1' style='animation-name:x' onanimationstart='window.__pwned=1",
    '<base href="//evil.invalid/"><meta http-equiv="refresh" content="0;url=javascript:window.__pwned=1">',
    '<a href="java\tscript:window.__pwned=1">x</a> [x](javascript:window.__pwned=1) ![x](data:text/html,x)',
    "\\u003cscript\\u003ewindow.__pwned=1\\u003c/script\\u003e &#60;script&#62; %3Cscript%3E \\x3cscript\\x3e",
    '`${window.__pwned=1}` \';window.__pwned=1;// \\\'; __proto__ constructor {"__proto__": {"x": 1}}',
    "<scr<script>ipt>window.__pwned=1</scr</script>ipt>\ufeff\u200b<\u0000script>window.__pwned=1</script>",
)


def make_content(cards: int = 6, supporters: dict[str, float] = SKILL, poison: bool = False, words: int = 0) -> ReportContent:
    """A realistic run: every supporter on every card in both languages, judged on seven dimensions; made once and shared.

    `poison` puts the injection list wherever a model, a corpus or a user can put text. `words` makes replies of that many
    random words instead (they compress no better than what a model writes).
    """
    return _made(cards, tuple(supporters.items()), poison, words)


def spec(name: str, checkpoint: str | None, **more: Any) -> dict[str, Any]:
    """What a run's config keeps of a model."""
    return {"name": name, "checkpoint": checkpoint, "fingerprint": f"print-of-{name}", **more}


def write_run(folder: Path, framework: str | None = "esc_eval", content: ReportContent | None = None) -> None:
    """The files of a run folder with these records, else those of `make_content`; as framework, None stands for dialogues that
    were given, not simulated.

    EmoHarbor's has verdicts on single turns too.
    """
    content = content or make_content()
    records = content.tally
    gold_judgements, gold_scores = gold_set(records)
    dialogues = [d.model_copy(update={"framework": framework or d.framework}) for d in records.dialogues]
    write_jsonl(folder / "dialogues.jsonl", dialogues)
    write_jsonl(folder / "judgements.jsonl", records.judgements)
    write_jsonl(folder / "cards.jsonl", content.cards.values())
    write_jsonl(folder / "gold_judgements.jsonl", gold_judgements)
    write_jsonl(folder / "gold_scores.jsonl", gold_scores)
    write_json(folder / "agreement.json", {"agreement": agreement(gold_judgements, gold_scores)})
    supporters = [spec(name, base, group="open") for name, base in BASES.items()]
    supporters.append(spec("tide-1.5b-instruct-zh", None, group="domain"))
    simulate = {"framework": framework, "supporters": supporters, "seeker": spec("seeker-135m", "org/Qwen1.5-7B")}
    simulate |= {"cards": {"sha256": "c0ffee"}}
    score = {"judge": spec("ranker", "org/plain"), "mode": "native", "rubric": RUBRIC.model_dump(mode="json")}
    score |= {"prompts": {"fingerprint": "beef"}}
    if framework == "emoharbor":
        simulate |= {"mode": "native", "thinker": None, "simulator": "thinker_talker"}
        score |= {"judging": "states"}
        verdicts = {(j.dialogue_id, j.dimension): j for j in records.judgements}
        turns = [
            verdicts[dialogue.id, dimension].model_copy(update={"turn": turn})
            for dialogue in dialogues
            for dimension in RUBRIC.dimensions
            for turn in range(1, len(dialogue.turns), 2)
        ]
        write_jsonl(folder / "turn_judgements.jsonl", turns)
    gold = {"dialogues": "synthetic", "sha256": "90ld"}
    write_json(folder / "config.json", ({"simulate": simulate} if framework else {}) | {"score": score, "gold": gold})


def benchmark_content(dialogues: int) -> ReportContent:
    """So many dialogues (a multiple of 28) of about 1,300 tokens; ESC-Eval's own evaluation had 8,512."""
    return make_content(
        cards=dialogues // 28, supporters={f"model-{number:02d}": number / 14 for number in range(14)}, words=190
    )


@cache
def _made(cards: int, supporters: tuple[tuple[str, float], ...], poison: bool, words: int) -> ReportContent:
    draw = random.Random(7)
    bad = "".join(INJECTIONS) if poison else ""
    own_cards: dict[str, RoleCard] = {}
    dialogues: list[Dialogue] = []
    judgements: list[Judgement] = []
    for language in PAPER_LANGUAGES:
        for number in range(cards):
            name = f"card-{language}-{number:03d}" + (INJECTIONS[number].translate(NO_CONTROL) if poison else "")
            problem = SEEKER[language][number % 5] + bad
            about = {"age": "31", "gender": "female", "source": "test", "category": (CATEGORIES[number % 3] + bad,)}
            card = RoleCard(id=name, language=language, problem=problem, card_method="written", **about)
            own_cards[card.id] = card
            for supporter, skill in supporters:
                end: Termination = draw.choices(get_args(Termination), (90, 5, 2, 2, 1, 1, 1))[0]
                stop = 10 if end == "max_turns" else draw.randint(2, 9)
                texts = [(SUPPORTER if turn % 2 else SEEKER)[language][turn // 2] for turn in range(stop)]
                if words:
                    texts[1::2] = [" ".join(draw.choices(VOCABULARY, k=words)) for _ in texts[1::2]]
                states = ({"text": bad, "emotion" + bad: bad} if bad else None), None
                turns = [
                    Turn(role="supporter" if turn % 2 else "seeker", text=text + bad, state=states[turn % 2])
                    for turn, text in enumerate(texts)
                ]
                usage = Usage(prompt_tokens=2300, completion_tokens=640, calls=stop)
                of = {"framework": "esc_eval", "source": "simulated", "simulator": "seeker-135m", "card_id": name}
                of |= {"id": f"{number:04d}{language}{supporter}", "supporter": supporter + bad.translate(NO_CONTROL)}
                dialogue = Dialogue(language=language, turns=tuple(turns), termination=end, usage=usage, **of)
                dialogues.append(dialogue)
                judgements += [_verdict(draw, dialogue, dimension, skill, bad) for dimension in RUBRIC.dimensions]
    tally = Tally(dialogues, judgements, RUBRIC)
    verdicts, gold = gold_set(tally)
    matrices = confusion(verdicts, gold)
    given, ends = distributions(judgements, RUBRIC), terminations(dialogues)
    figures_shown = ("dimension", "ACC"), (("Fluency", 61.0),), (), AGREEMENT
    tables = [
        *leaderboard(tally.boards, RUBRIC),
        *pairwise_differences(tally.boards),
        given,
        *by_category(tally, own_cards),
        length_table(replies_of(dialogues, tally.contestants)),
        *(Table(f"agreement_{code}", f"Agreement with gold, {code}", *figures_shown) for code in ("en", "zh")),
        *confusion_tables(matrices, {}),
        calibration_table(calibration(verdicts, gold), {}),
        ends,
        use_table(
            model_uses({"score": {"judge": {"ranker": Usage(calls=96, prompt_tokens=91234)}}}, dialogues, judgements, {})
        ),
    ]
    figures = {"acc": 0.61, "acc_low": 0.5, "acc_high": 0.71, "acc_soft": 0.93, "majority_acc": 0.42, "majority_acc_soft": 0.88}
    figures |= {"over_majority": 0.19, "over_majority_low": 0.05, "over_majority_high": 0.3, "clusters": 30}
    agreed = {language: {name: figures for name in [*RUBRIC.dimensions, "average"]} for language in ("en", "zh")}
    charts = [
        *distribution_charts(given, RUBRIC),
        *agreement_charts(agreed, RUBRIC, "paper", True),
        *confusion_charts(confusion(verdicts, gold, RUBRIC.scales), RUBRIC, True),
        *calibration_charts(calibration(verdicts, gold), True),
        *termination_charts(ends),
    ]
    return ReportContent(
        title="ESC-Eval demonstration" + bad,
        framework="esc_eval",
        mode="paper",
        plumbing=True,
        synthetic_gold=True,
        tally=tally,
        cards=own_cards,
        tables=tables,
        charts=charts,
        generated="2024-06-19",
        agreement=agreed,
        agreements={"ranker": agreed},
        config={
            "fingerprints": {"harbour-8b": "9f2c41d07be35a68", "ranker": "31be0c55ad90f7e2"},
            "supporters": [name + bad for name, _ in supporters],
            "dialogue": {"exchanges": 5, "language": ["en", "zh"]},
        },
        timing={"dialogues": 41.25},
        warnings=[f"The judge ranker shares its base with {supporters[0][0]}{bad}."],
        risks={dialogues[1].id: {0: ["self-harm"]}},
    )


def gold_set(tally: Tally) -> tuple[list[Judgement], list[HumanScore]]:
    """The judge's verdicts on the first and the last 40 dialogues, and what a person gave them."""
    draw, judgements = random.Random(8), tally.judgements
    ruled = {j.dialogue_id for j in judgements[: 7 * 40]} | {j.dialogue_id for j in judgements[-7 * 40 :]}
    verdicts = [j for j in judgements if j.dialogue_id in ruled]
    gold = []
    for j in verdicts:
        value = draw.choice((0, 1, 2, 3, 4)) if j.value is None else min(4, max(0, j.value + draw.choice((-1, 0, 0, 1))))
        of = j.model_dump(include={"dialogue_id", "language", "rubric", "dimension"})
        gold.append(HumanScore(annotator="anna", value=value, **of))
    return verdicts, gold


def _verdict(draw: random.Random, dialogue: Dialogue, dimension: str, skill: float, bad: str) -> Judgement:
    weights = [draw.random() * 0.8 + max(0.0, 1.3 - 0.6 * abs(4 * skill - score)) for score in range(5)]
    shares = [weight / sum(weights) for weight in weights]
    read = draw.random() > 0.04
    of: dict[str, Any] = {"dialogue_id": dialogue.id, "language": dialogue.language, "judge": "ranker", "rubric": RUBRIC.name}
    of |= {"dimension": dimension, "method": "joint"}
    if not read:
        return Judgement(value=None, raw="I would rather not put a number on this dialogue." + bad, **of)
    expected = sum(score * share for score, share in enumerate(shares))
    distribution = {str(score): share for score, share in enumerate(shares)}
    return Judgement(value=float(shares.index(max(shares))), expected=expected, distribution=distribution, raw="3", **of)
