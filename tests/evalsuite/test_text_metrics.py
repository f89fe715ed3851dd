"""Reference metrics against the libraries called directly, figures worked by hand, and what must hold for any text."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from types import SimpleNamespace

import jieba
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU

from core.errors import UserError
from core.files import write_jsonl
from core.languages import cut
from core.records import Judgement, Language
from core.tables import Estimate
from data_prep.responses import Response
from evalsuite.papers import text_metrics
from evalsuite.papers.text_metrics import (
    BLEU_ORDERS,
    LABELS,
    Unit,
    figures,
    figures_json,
    judgements,
    measure,
    metric_tables,
    signature,
    tokenize,
    units,
)
from tests.evalsuite.oracles import smoothed
from tests.evalsuite.test_respond import call, dialogue

pytestmark = pytest.mark.slow

EN = [
    ("d1", 1, "I hear you, that must be so hard.", "I hear you. That sounds very hard for you."),
    ("d1", 3, "Have you talked to a friend about the exam?", "Have you talked to anyone about it?"),
    ("d2", 1, "Yes.", "That is a good start, well done!"),
    ("d3", 1, "What would help you\nmost right now?", "What would help you most today?"),
]
ZH = [
    ("z1", 1, "我理解你的感受，这一定很难受。", "我能理解你，这真的很难受。"),
    ("z2", 1, "你可以和 friend 聊聊吗？", "你可以和朋友聊一聊。"),
]


def responses(
    rows: Sequence[tuple[str, int, str, str | None]], language: Language = "en", supporter: str = "s"
) -> list[Response]:
    return [
        Response(dialogue_id=id, language=language, turn=turn, supporter=supporter, text=text, reference=reference)
        for id, turn, text, reference in rows
    ]


def empty(id: str, termination: str, reference: str | None = "Take your time.") -> Response:
    about = {"dialogue_id": id, "language": "en", "turn": 1, "supporter": "s", "text": "", "reference": reference}
    return Response.model_validate(about | {"termination": termination})


def estimate(given: Sequence[Response], metric: str, level: str, unit: Unit = "word") -> Estimate:
    (found,) = (f.estimate for f in figures(measure(given)) if (f.metric, f.level, f.unit) == (metric, level, unit))
    return found


def value(text: str, reference: str | None, metric: str, language: Language = "en", unit: Unit = "word") -> float | None:
    (found,) = (s.values[metric] for s in measure(responses([("d", 1, text, reference)], language)) if s.unit == unit)
    return found


@pytest.mark.parametrize("unit", ["word", "character", "jieba"])
@pytest.mark.parametrize("metric", BLEU_ORDERS)
def test_bleu_is_sacrebleus(unit: Unit, metric: str) -> None:
    rows, language = (EN, "en") if unit == "word" else (ZH, "zh")
    hypotheses, references = [row[2] for row in rows], [row[3] for row in rows]
    tokenizer = {"word": "13a", "character": "zh", "jieba": "none"}[unit]
    if unit == "jieba":
        hypotheses, references = ([" ".join(jieba.cut(text)) for text in texts] for texts in (hypotheses, references))
    order = BLEU_ORDERS[metric]
    whole = BLEU(tokenize=tokenizer, max_ngram_order=order)
    one = BLEU(tokenize=tokenizer, max_ngram_order=order, effective_order=True)
    given = responses(rows, language)
    assert estimate(given, metric, "corpus", unit).mean == pytest.approx(whole.corpus_score(hypotheses, [references]).score)
    wanted = [one.sentence_score(h, [r]).score for h, r in zip(hypotheses, references, strict=True)]
    assert [s.values[metric] for s in measure(given) if s.unit == unit] == pytest.approx(wanted)
    assert estimate(given, metric, "responses", unit).mean == pytest.approx(sum(wanted) / len(wanted))
    if unit != "jieba":
        assert signature(unit)["bleu"] == str(whole.get_signature())


@pytest.mark.slow
def test_rouge_is_rouge_scores_and_chinese_is_counted_by_hand() -> None:
    names = {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL"}
    scorer = RougeScorer(list(names.values()))
    for metric, name in names.items():
        wanted = [100 * scorer.score(reference, text)[name].fmeasure for _, _, text, reference in EN]
        assert [s.values[metric] for s in measure(responses(EN))] == pytest.approx(wanted)
    # pairs of words: 1 of 3 and 1 of 2; a one-word reference has none, a one-word reply misses those of its reference
    assert value("we can talk now", "we can go", "rouge_2") == pytest.approx(100 * 2 * 1 / 5)
    assert value("Yes", "Yes!", "rouge_2") is None and value("Yes", "Yes, do", "rouge_2") == 0
    # 我很, 很难, 难过 against 我真, 真难, 难过, 过啊
    assert value("我很难过！", "我真难过啊。", "rouge_2", "zh", "character") == pytest.approx(100 * 2 * 1 / 7)
    # characters without punctuation: 我很难过 against 我真难过啊: 我难过 of 4 and of 5
    assert value("我很难过！", "我真难过啊。", "rouge_l", "zh", "character") == pytest.approx(100 * 2 * 3 / 9)
    assert value("！！", "。", "rouge_l", "zh", "character") == 0


@pytest.mark.parametrize(
    ("language", "unit", "tokenizer", "text", "reference"),
    [
        ("de", "13a", "13a", "Ich höre dir zu, wirklich.", "Ich höre dir gut zu."),
        ("hi", "13a", "13a", "मैं सुन रहा हूँ, सच में।", "मैं सब सुन रहा हूँ।"),
        ("ar", "13a", "13a", "أنا أسمعك، حقا.", "أنا أسمعك دائما."),
        ("th", "char", "char", "ฉันฟังคุณ", "ฉันฟังคุณอยู่"),
    ],
)
def test_every_other_language_is_cut_by_sacrebleu_and_has_rouge_in_its_script(
    language: Language, unit: Unit, tokenizer: str, text: str, reference: str
) -> None:
    assert units(language) == (unit,) and f"tok:{tokenizer}" in signature(unit)["bleu"]
    for metric, order in BLEU_ORDERS.items():
        one = BLEU(tokenize=tokenizer, max_ngram_order=order, effective_order=True)
        assert value(text, reference, metric, language, unit) == pytest.approx(one.sentence_score(text, [reference]).score)
    said, wanted = (cut(part, language) for part in (text, reference))
    shared = sum((Counter(said) & Counter(wanted)).values())
    found = value(text, reference, "rouge_1", language, unit)
    assert unit == "char" or found == pytest.approx(100 * 2 * shared / (len(said) + len(wanted)))
    assert found and value(text, text, "rouge_l", language, unit) == value(text, text, "rouge_2", language, unit) == 100
    assert value("nichts", "anders", "meteor", "de", "13a") == 0 and "no stems" in signature(unit)["meteor"]


def test_meteor_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_metrics, "_synonyms", lambda: None)
    # he = he, helps ~ helped by their stem; one chunk of two: F = 2/3, penalty 0.5 · (1/2)³
    assert value("he helps me", "he helped them", "meteor") == pytest.approx(100 * 2 / 3 * (1 - 0.5 / 8))
    # 3 of 4 and 3 of 3 words match in two chunks: P = 3/4, R = 1, F = PR / (0.9 P + 0.1 R)
    wanted = 0.75 / (0.9 * 0.75 + 0.1) * (1 - 0.5 * (2 / 3) ** 3)
    assert value("talk now we can", "we can talk", "meteor") == pytest.approx(100 * wanted)
    assert value("nothing", "shared", "meteor") == 0


def test_meteor_says_which_matchers_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    lemma = SimpleNamespace(name=lambda: "blue")
    wordnet = SimpleNamespace(synsets=lambda word: [SimpleNamespace(lemmas=lambda: [lemma])] if word == "sad" else [])
    for there, matched, said in ((None, 1, "no synonyms (no WordNet data here)"), (wordnet, 2, "WordNet synonyms of stems")):
        monkeypatch.setattr(text_metrics, "_synonyms", lambda there=there: there)
        signature.cache_clear()
        share = matched / 2  # precision and recall
        assert value("so sad", "so blue", "meteor") == pytest.approx(100 * share * (1 - 0.5 / matched**3))
        assert said in signature("word")["meteor"]
        assert "no synonyms for Chinese" in signature("jieba")["meteor"]
    signature.cache_clear()


def test_distinct_by_hand_and_its_jackknife() -> None:
    rows = [("d1", 1, "a b a", None), ("d1", 3, "a c", None), ("d2", 1, "b d", None), ("d3", 1, "e", None)]
    given = responses(rows)
    assert [s.values["distinct_1"] for s in measure(given)] == pytest.approx([200 / 3, 100, 100, 100])
    assert [s.values["distinct_2"] for s in measure(given)] == [100, 100, 100, None]  # one word has no pair
    more = figures(measure([*given, *responses([("d3", 3, "f g", None)])]))
    assert [f.dialogues for f in more if f.metric == "distinct_2"] == [3, 3]
    assert estimate(given, "distinct_2", "responses").n == 3
    found = estimate(given, "distinct_1", "corpus")
    assert found.mean == pytest.approx(100 * 5 / 8) and found.n == 4
    words = {"d1": "a b a a c", "d2": "b d", "d3": "e"}
    without = []
    for left_out in words:
        rest = " ".join(text for id, text in words.items() if id != left_out).split()
        without.append(100 * len(set(rest)) / len(rest))
    middle = sum(without) / 3
    half = 1.959964 * math.sqrt(2 / 3 * sum((one - middle) ** 2 for one in without))
    assert found.low == pytest.approx(max(62.5 - half, 0)) and found.high == pytest.approx(min(62.5 + half, 100))
    # pairs do not reach from one reply into the next
    assert estimate(given, "distinct_2", "corpus").mean == 100


def test_intervals_draw_dialogues_whole() -> None:
    given = responses([("d1", 1, "a b x", "a b c"), ("d1", 3, "x", "a"), ("d2", 1, "a b c", "a b c")])
    assert estimate(given, "bleu_2", "corpus").low is None, "two dialogues have three resamples: no interval"
    third = [*given, *responses([("d3", 1, "a c b", "a b c")])]
    # A resample of three dialogues is one of them three times in 1 of 27 draws: the interval reaches the worst and the best.
    texts = {"d1": (["a b x", "x"], ["a b c", "a"]), "d2": (["a b c"], ["a b c"]), "d3": (["a c b"], ["a b c"])}
    drawn = []
    for chosen in combinations_with_replacement(texts, 3):
        hypotheses, references = ([line for name in chosen for line in texts[name][side]] for side in (0, 1))
        drawn.append(BLEU(max_ngram_order=2).corpus_score(hypotheses, [references]).score)
    found = estimate(third, "bleu_2", "corpus")
    assert (found.low, found.high) == (pytest.approx(min(drawn)), pytest.approx(max(drawn)))
    assert found.n == 4
    mean = estimate(given, "bleu_1", "responses")
    assert (mean.mean, mean.n) == (pytest.approx((200 / 3 + 0 + 100) / 3), 3)
    assert (mean.low, mean.high) == pytest.approx(smoothed([200 / 3, 100], range(0, 101, 25), [2, 1]), abs=3)


def test_empty_replies_count_as_nothing_and_lost_ones_do_not_count() -> None:
    given = [*responses([("d1", 1, "Take your time.", "Take your time.")])]
    given += [empty("d2", "empty_reply"), empty("d3", "refusal"), empty("d4", "infrastructure")]
    given += responses([("d5", 1, "Who are you?", None)])
    found = {(f.metric, f.level): f.estimate for f in figures(measure(given))}
    assert found["bleu_1", "responses"].mean == pytest.approx(100 / 3) and found["bleu_1", "responses"].n == 3
    assert found["rouge_l", "responses"].n == found["meteor", "responses"].n == found["bleu_4", "corpus"].n == 3
    assert found["distinct_1", "responses"].n == found["distinct_1", "corpus"].n == 2
    # empty replies shorten the whole: four of twelve words were given
    assert found["bleu_1", "corpus"].mean == pytest.approx(100 * math.exp(1 - 12 / 4))
    notes = " ".join(next(metric_tables([*figures(measure(given))], given)).notes)
    assert (
        "1 of 5 replies were never given" in notes and "1 empty_reply, 1 refusal" in notes and "1 replies have no ref" in notes
    )


def test_without_any_text_or_reference_nothing_is_defined() -> None:
    bare = figures(measure([empty("d", "empty_reply", None)]))
    assert all(f.estimate == Estimate(None, None, None, 0) and f.dialogues == 0 for f in bare)
    silent = {f.metric: f.estimate for f in figures(measure([empty("d", "empty_reply")])) if f.level == "corpus"}
    assert silent["bleu_4"] == Estimate(0, None, None, 1) and silent["distinct_1"] == Estimate(None, None, None, 0)


tokens = st.sampled_from(["a", "b", "c", "help", "helps", "Helped", "I'm", "ok.", "3.5", "…"])
words = st.lists(tokens, max_size=6).map(" ".join)
pairs = st.lists(st.tuples(st.sampled_from(["d1", "d2", "d3"]), words, words.filter(bool)), min_size=1, max_size=6)


@given(pairs)
def test_any_texts(drawn: list[tuple[str, str, str]]) -> None:
    given = []
    for turn, (id, text, reference) in enumerate(drawn):
        about = {"dialogue_id": id, "language": "en", "turn": turn, "supporter": "s", "text": text, "reference": reference}
        given.append(Response.model_validate(about | ({} if text else {"termination": "empty_reply"})))
    samples = measure(given)
    for s in samples:
        for metric, figure in s.values.items():
            short = metric.startswith("distinct") and len(tokenize(s.response.text, "word")) < int(metric[-1])
            bare = metric == "rouge_2" and len(re.findall("[a-z0-9]+", (s.response.reference or "").lower())) < 2
            assert (figure is None) == (short or bare)
            assert figure is None or 0 <= figure <= 100
            assert s.response.text or figure in (0, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("core.statistics.bootstrap.RESAMPLES", 50)
        found = [*figures(samples)]
    for f in found:
        own = {s.response.dialogue_id for s in samples if s.values[f.metric] is not None}
        e = f.estimate
        assert (e.mean is None) == (not own) and (e.low is None) == (e.high is None) and (e.low is None or len(own) > 1)
        if e.mean is not None and e.low is not None and e.high is not None:
            assert 0 <= e.low < e.high <= 100.000001
        if f.level == "responses":
            values = [v for s in samples if (v := s.values[f.metric]) is not None]
            assert e.n == len(values) and (not values or e.mean == pytest.approx(sum(values) / len(values)))
            if e.low is not None and e.high is not None:
                assert e.low < e.high, "equal replies are no certainty"


def test_judgements_name_metric_unit_and_supporter() -> None:
    found = [*judgements(measure([*responses([("d", 3, "Yes", "No")]), *responses(ZH[:1], "zh", "other")]))]
    assert {j.judge for j in found if j.language == "en"} == {name.replace("_", "-") for name in LABELS}
    assert {j.dimension for j in found if j.language == "zh"} == {
        f"{name}_{u}" for name in LABELS for u in ("character", "jieba")
    }
    by_name = {j.judge: j for j in found}
    assert by_name["bleu-1"] == Judgement(
        dialogue_id="d", language="en", judge="bleu-1", rubric="text_metrics", dimension="bleu_1", value=0, turn=3,
        condition={"supporter": "s"},
    )  # fmt: skip
    assert by_name["distinct-2"].value is None
    assert by_name["distinct-2"].condition == {"supporter": "s", "failure": "undefined"}
    assert by_name["bleu-1-jieba"].condition == {"supporter": "other"}


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.checkpoints.places.importlib.util.find_spec", lambda name: None if name == "jieba" else object())
    with pytest.raises(UserError, match="needs jieba, not installed"):
        measure(responses(ZH, "zh"))
    assert measure(responses(EN)), "Chinese words are not needed for English"


# -- the verb -----------------------------------------------------------------------------------------------------------------


def test_the_verb_prints_writes_and_hands_on(tmp_path: Path) -> None:
    file, out = tmp_path / "r.jsonl", tmp_path / "out"
    write_jsonl(file, [*responses(EN), *responses(ZH, "zh")])
    printed = call("--responses", file, "--out", out)
    assert "ROUGE-L" in printed and "no stemming" in printed and "jieba" in printed
    assert sorted(p.name for p in out.glob("[!.]*")) == [
        *("metric_judgements.jsonl", "metrics.json", "metrics_corpus_en.csv", "metrics_corpus_zh.csv"),
        *("metrics_responses_en.csv", "metrics_responses_zh.csv"),
    ]
    figures_given = orjson.loads(call("--responses", file, "--json"))
    assert figures_given == orjson.loads((out / "metrics.json").read_bytes())
    assert figures_given == figures_json([*figures(measure([*responses(EN), *responses(ZH, "zh")]))])
    assert set(figures_given["signatures"]) == {"word", "character", "jieba"}
    assert len((out / "metric_judgements.jsonl").read_text().splitlines()) == len(LABELS) * (4 + 2 * 2)


def test_the_verb_pairs_whole_dialogues(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [dialogue("1", "*hi|sad|*oh no|very|*I see", source_id="7", supporter="m")])
    write_jsonl(tmp_path / "b.jsonl", [dialogue("2", "sad|*oh no", source_id="7"), dialogue("3", "sad|*oh", source_id="8")])
    found = orjson.loads(call("--dialogues", tmp_path / "a.jsonl", "--references", tmp_path / "b.jsonl", "--json"))["metrics"]
    bleu = next(f for f in found if f["metric"] == "bleu_1" and f["level"] == "responses")
    assert (bleu["supporter"], bleu["value"], bleu["n"]) == ("m", 100, 1)  # the second reply has no partner
    assert next(f for f in found if f["metric"] == "distinct_1" and f["level"] == "responses")["n"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "or --responses"),
        (("--dialogues", "a"), "--dialogues with --references"),
        (("--responses", "r", "--references", "b"), "--dialogues with --references"),
        (("--responses", "r", "--set", "limit=3"), "--set: no model is asked without --config"),
        (("--responses", "lost"), "no reply to measure"),
        (("--responses", "r", "--responses", "r"), "duplicate responses: s on d1 turn 1"),
        (("--responses", "bare"), "bare:1: record: text: a reply without text needs a termination"),
        (("--dialogues", "a", "--references", "b"), "dialogue 1: 2 references have its source_id '7': 2, 3"),
    ],
)
def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(Path("r"), responses(EN))
    write_jsonl(Path("lost"), [empty("d", "infrastructure")])
    Path("bare").write_text('{"dialogue_id": "d", "language": "en", "turn": 1, "supporter": "s", "text": " "}\n')
    write_jsonl(Path("a"), [dialogue("1", "sad|*oh", source_id="7")])
    write_jsonl(Path("b"), [dialogue(id, "sad|*oh", source_id="7") for id in "23"])
    with pytest.raises(UserError) as caught:
        call(*arguments)
    assert said in str(caught.value)
