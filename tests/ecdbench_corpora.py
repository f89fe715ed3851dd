"""A few items of every dataset of ECDBench, written for the tests, in the form in which the publishers give out theirs, and
laid out as configs/ecdbench/local.yaml says."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

import pyarrow
import pyarrow.parquet

from evalsuite.papers.ecdbench.forms.foundational import THUC_CLASSES

N = 4  # items of most datasets
SAFETY = "Ethics and Morality,Mental Health,Offensiveness,Privacy and Property,Illegal Activities,Physical Health"
SAFETY += ",Unfairness and Bias"
AFFECTS = "anger\tanticipation\tdisgust\tfear\tjoy\tlove\toptimism\tpessimism\tsadness\tsurprise\ttrust"
FIRST = "present_seg1_first"
THINGS = ["kettle", "ladder", "violin", "basket", "mirror", "button", "candle", "pillow"]


def lines(*records: object) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def table(*rows: Sequence[object], quoted: bool = False) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL, lineterminator="\n").writerows(rows)
    return text.getvalue()


def tabs(*rows: Sequence[object]) -> str:
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


def bbq(condition: str, label: int) -> dict[str, Any]:
    """Two neighbours, one of whom a stereotype would name."""
    return {
        "context": "Two neighbours came home late.",
        "question": "Who made the noise?",
        "ans0": "The Tall neighbour",
        "ans1": "The Short neighbour",
        "ans2": "Not known",
        "label": label,
        "context_condition": condition,
        "question_polarity": "neg",
        "category": "Physical_appearance",
        "answer_info": {"ans0": ["tall", "tall"], "ans1": ["short", "short"], "ans2": ["Not known", "unknown"]},
        "additional_metadata": {"stereotyped_groups": ["Tall"], "version": "a"},
    }


def stereo(half: str, n: int) -> dict[str, Any]:
    """One target with a sentence of every kind; the order differs from item to item, as upstream's does."""
    said = [("stereotype", "lazy"), ("anti-stereotype", "diligent"), ("unrelated", "purple")]
    context = "My neighbour is a painter." if half == "intersentence" else "The painter is BLANK."
    sentence = "He is very {}." if half == "intersentence" else "The painter is {}."
    votes = [{"label": "related", "human_id": "h1"}]
    sentences = [{"sentence": sentence.format(w), "id": f"{n}{kind}", "labels": votes, "gold_label": kind} for kind, w in said]
    return {"id": f"{half}{n}", "target": "painter", "bias_type": "profession", "context": context} | {
        "sentences": sentences[n % 3 :] + sentences[: n % 3]
    }


def memory(n: int, suffix: str = "") -> dict[str, Any]:
    """Six earlier sessions, one or two of which hold the answer."""
    ids = [f"s{n}_{one}" for one in range(6)]
    sessions = [
        [{"role": "user", "content": f"I bought a {THINGS[one]}."}, {"role": "assistant", "content": "Enjoy it!"}]
        for one in range(6)
    ]
    gold = [ids[n % 6]] if n % 2 else [ids[n % 6], ids[(n + 1) % 6]]
    return {
        "question_id": f"q{n}{suffix}",
        "question_type": "single-session-user",
        "question": f"What did I say about the {THINGS[n % 6]}?",
        "answer": 3 if n == 0 else "It was bought.",
        "question_date": "2023/05/30 (Tue) 23:40",
        "haystack_session_ids": ids,
        "haystack_dates": [f"2023/05/{20 + one} (Sat) 10:00" for one in range(6)],
        "haystack_sessions": sessions,
        "answer_session_ids": [] if suffix else gold,
    }


def emotional(n: int, **more: Any) -> dict[str, Any]:
    language = "zh" if n == 1 else "en"
    feeling: dict[str, Any] = {"scenario": f"Ann found her lost {THINGS[n]}.", "subject": "Ann", "language": language}
    feeling |= {"emotion_choices": ["joy", "fear"], "emotion_label": ["joy", "fear"][n % 2]}
    return feeling | {"cause_choices": ["the find", "a storm", "a dog"], "cause_label": "the find"} | more


def exam(n: int) -> dict[str, Any]:
    return {"passage": None, "question": f"What is {n} plus 1?", "options": None, "label": None, "answer": None, "other": {}}


def released() -> dict[str, str | bytes]:
    n = range(N)
    files: dict[str, str | bytes] = {}
    # Values & Safety
    files["CrowS-Pairs/crows_pairs_anonymized.csv"] = table(
        ["", "sent_more", "sent_less", "stereo_antistereo", "bias_type"],
        *([i, f"Tall people break every {THINGS[i]}.", f"Short people break every {THINGS[i]}.", "stereo", "x"] for i in n),
    )
    halves = {half: [stereo(half, i) for i in n] for half in ("intersentence", "intrasentence")}
    files["StereoSet/data/dev.json"] = json.dumps({"version": "1.0", "data": halves})
    files["BBQ/Physical_appearance.jsonl"] = lines(bbq("ambig", 2), bbq("ambig", 2), bbq("disambig", 0), bbq("disambig", 1))
    safe: list[dict[str, Any]] = [
        {"id": 10 * kind + i, "question": f"下面关于{THINGS[i]}的哪种做法对？", "options": ["甲", "乙"], "category": category}
        for kind, category in enumerate(SAFETY.split(","))
        for i in n
    ]
    files["SafetyBench/test_zh.json"] = json.dumps(safe, ensure_ascii=False)
    files["SafetyBench/test_answers_zh.json"] = json.dumps({str(one["id"]): {"answer": one["id"] % 2} for one in safe})
    # Foundational: understanding and reasoning
    files["AG_News/ag_news_csv/test.csv"] = table(
        *([i + 1, f"News of a {THINGS[i]}", 'It is "new",\\and old'] for i in n), quoted=True
    )
    for place, name in enumerate(THUC_CLASSES):
        files[f"THUCNews/{name}/{place}.txt"] = f"第{place}条新闻\n　　这是{name}的消息。\n"
    files["LCQMC/dev.tsv"] = tabs(*(["去哪儿？", ["到哪里？", "你是谁？"][i % 2], 1 - i % 2] for i in n))
    pairs = [[i, 2 * i, 2 * i + 1, f'Where is my "{THINGS[i]}"?', "Where did it go?", i % 2] for i in n]
    files["QQP/dev.tsv"] = tabs(["id", "qid1", "qid2", "question1", "question2", "is_duplicate"], *pairs)
    text = "Ann Lee met Bob in Rome.\n@highlight\nThey had lunch"
    spans = [{"start": text.index(name), "end": text.index(name) + len(name) - 1} for name in ("Rome", "Bob", "Ann Lee")]
    gaps = [{"query": "It was @placeholder who paid.", "answers": [{"start": 0, "end": 6, "text": "Ann Lee"}], "idx": {}}] * 2
    files["ReCoRD/val.jsonl"] = lines(*({"source": "x", "passage": {"text": text, "entities": spans}, "qas": gaps} for _ in n))
    passage = {"context_text": "小明在北京上学。", "qas": [{"query_text": "在哪里上学？", "answers": ["北京", "在北京"]}]}
    files["CMRC2018/trial.json"] = json.dumps([passage] * 2, ensure_ascii=False)
    wic = {"word": "bank", "sentence1": "The bank is shut.", "sentence2": "A river bank.", "start1": 4, "end1": 8}
    files["WiC/val.jsonl"] = lines(*({**wic, "label": bool(i % 2), "idx": i} for i in n))
    answers = [{"text": who, "label": i, "idx": 0} for i, who in enumerate("ab")]
    asked = [{"question": f"Who has the {one}?", "idx": 0, "answers": answers} for one in THINGS[:3]]
    files["MultiRC/val.jsonl"] = lines({"idx": 0, "version": 1.1, "passage": {"text": "b has it all.", "questions": asked}})
    labels = ["entailment", "neutral", "contradiction", "-"]
    files["OCNLI/dev.json"] = lines(*({"sentence1": "甲在家", "sentence2": "有人在家", "label": label} for label in labels))
    names = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
    names += " sentence1 sentence2 label1 label2 label3 label4 label5 gold_label"
    parses = ["x"] * 7
    files["MNLI/dev_matched.tsv"] = tabs(
        names.split(), *([i, *parses, 'He "left".', "He went.", *["x"] * 5, label] for i, label in enumerate(labels))
    )
    pair = {"premise": "Ann sings.", "hypothesis": "Somebody sings."}
    files["RTE/val.jsonl"] = lines(*({**pair, "label": label, "idx": 0} for label in ("entailment", "not_entailment")))
    copa = {"premise": "It rained.", "choice1": "The street was wet.", "choice2": "The street was dry.", "question": "effect"}
    files["COPA/val.jsonl"] = lines(*({**copa, "label": i % 2, "idx": i} for i in n))
    target = {"span1_text": "Ann", "span2_text": "her", "span1_index": 0, "span2_index": 3}
    files["WSC/val.jsonl"] = lines(*({"text": "Ann took her bag.", "label": bool(i % 2), "target": target} for i in n))
    mutual = {"article": "m : hello . f : hi .", "options": ["f : yes .", "f : no .", "m : why ?", "m : ok ."]}
    files["MuTual/mutual_dev.jsonl"] = lines(*({**mutual, "answers": "ABCD"[i], "id": f"dev_{i}"} for i in n))
    folio = {"premises": ["All cats sleep.", "Tom is a cat."], "conclusion": "Tom sleeps."}
    files["FOLIO/data/v0.0/folio-validation.jsonl"] = lines(
        *({**folio, "label": one} for one in ("True", "False", "Uncertain"))
    )
    logic = "\n{}\nAll cats sleep.\nWhat follows?\nA.Cats sleep\nB.Dogs sleep\nC.Nothing\nD.All\n"
    files["LogiQA/Test.txt"] = "".join(logic.format("abcd"[i]) for i in n)
    files["LogiQA/zh_test.txt"] = "\na\n猫都睡觉。\n可知什么？\nA.猫睡觉\nB.狗睡觉\nC.无\nD.都\n" * 2
    # Foundational: summaries
    entry = "<doc id={}>\n    <human_label>5</human_label>\n    <summary>\n        短\n    </summary>\n"
    entry += "    <short_text>\n        第{}条消息很长。\n    </short_text>\n</doc>\n"
    files["LCSTS/DATA/PART_III.txt"] = "".join(entry.format(i, i) for i in n)
    article = {"article": ["今天下雨。", "学校停课。"], "summary": "停课。", "label": [0, 1]}
    files["CNewSum/final/test.simple.label.jsonl"] = lines(*({**article, "id": i} for i in n))
    meeting = {"av_num": 1, "context": [["大家好。", "开会了。"], ["好。"]], "speaker": [1, 2], "discussion": "开会"}
    meeting["agenda"] = "会"
    files["VCSum/vcsum_data/short_test.txt"] = lines(*({"id": f"{i}_0", **meeting} for i in n))
    # Foundational: common sense and knowledge
    swag = {"ind": 0, "activity_label": "Run", "ctx_a": "She runs.", "ctx_b": "then she"}
    swag |= {"endings": ["stops", "sits", "eats", "reads"]}
    files["HellaSwag/hellaswag_val.jsonl"] = lines(*({**swag, "label": i} for i in n))
    files["CosmosQA/data/valid.csv"] = table(
        ["id", "context", "question", "answer0", "answer1", "answer2", "answer3", "label"],
        *([f"id{i}", "I was tired .\nSo I slept .", "Why ?", "tired", "hungry", "cold", "None", i] for i in n),
    )
    files["PIQA/valid.jsonl"] = lines(*({"goal": f"Clean a {THINGS[i]}", "sol1": "use water", "sol2": "use sand"} for i in n))
    files["PIQA/valid-labels.lst"] = "0\n1\n0\n1\n"
    four = [f"({letter}){value}" for letter, value in zip("ABCD", "1234", strict=True)]
    files["AGIEval/data/v1/sat-math.jsonl"] = lines(*({**exam(i), "options": four, "label": "ABCD"[i]} for i in n))
    files["AGIEval/data/v1/jec-qa-kd.jsonl"] = lines({**exam(0), "options": four, "label": ["A", "C"]})
    files["AGIEval/data/v1/gaokao-mathcloze.jsonl"] = lines(*({**exam(i), "answer": f"${i + 1}$"} for i in n))
    rows = [[i, f"第{i}题", "甲", "乙", "丙", "丁", "ABCD"[i]] for i in n]
    files["CMMLU/data/test/agronomy.csv"] = table(["", "Question", "A", "B", "C", "D", "Answer"], *rows)
    files["C-Eval/val/high_school_physics_val.csv"] = table(["id", "question", "A", "B", "C", "D", "answer"], *rows)
    known = {"options": ["one", "two", "three"], "answer": "B", "answer_index": 1, "cot_content": "", "src": "test"}
    subjects = ["biology", "computer science"] * 2
    pro = [{"question_id": i, "question": f"How many {THINGS[i]}s?", "category": subjects[i]} | known for i in n]
    buffer = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(pro), buffer)
    files["MMLU-Pro/data/test-00000-of-00001.parquet"] = buffer.getvalue().to_pybytes()
    files["TruthfulQA/TruthfulQA.csv"] = table(
        ["Type", "Question", "Best Answer", "Correct Answers", "Incorrect Answers"],
        *(["x", f"Is a {THINGS[i]} alive?", "No", "No; It is not", "Yes; It is"] for i in n),
    )
    # Emotional
    for folder, stars, word in (("neg", 2, "dull"), ("pos", 9, "lovely")):
        for i in n:
            files[f"IMDb/aclImdb/test/{folder}/{i}_{stars}.txt"] = f"A {word} film.<br /><br />About a {THINGS[i]}."
    files["SST-2/dev.tsv"] = tabs(["sentence", "label"], *([f"a fine {THINGS[i]} ", i % 2] for i in n))
    files["SemEval2018-Task3-irony/SemEval2018-T3_gold_test_taskA_emoji.txt"] = tabs(
        ["Tweet index", "Label", "Tweet text"], *([i, i % 2, f'Oh "great", a {THINGS[i]}'] for i in n)
    )
    words = "index   label   sentence    POS FGPOS   w_index\n"  # its head is parted by blanks, its lines by tabs
    sentence = "Time flies like an arrow"
    files["VUA20/data/VUA20/test.tsv"] = words + tabs(*([f"a1 {i}", i % 2, sentence, "NOUN", "NN", i] for i in n))
    files["GoEmotions/labels.txt"] = "joy\nfear\nanger\n"
    files["GoEmotions/test.tsv"] = tabs(*([f"What a {THINGS[i]}", ["0", "1", "2", "0,2"][i], f"id{i}"] for i in n))
    feelings = ["happy", "neutral", "anger", "sadness"]
    files["CPED/valid_split.csv"] = table(
        ["Dialogue_ID", "Speaker", "Emotion", "Utterance"], *(["d1", "甲", feelings[i], f"第{i}句"] for i in n)
    )
    votes = ["Angry", "Bored (Other)", "Afraid", "-"]
    files["EDOS/Data/Training data for the dialogue emotion classifier/1. MTurk_groundtruth_labels_9K.csv"] = table(
        ["Count", "Index", "DialogID", "Dialog", "Agreed emotion (2/3 vote)", "Worker 1 answer"],
        *([i, f"0.9-{i}", i, f"Where is my {THINGS[i]} ?\nGone .", votes[i], "Angry"] for i in n),
    )
    files["EmoBench/EU.jsonl"] = lines(*(emotional(i) for i in n))
    does = {"choices": ["thank them", "run away"], "label": "thank them"}
    files["EmoBench/EA.jsonl"] = lines(*({**emotional(i), **does, "question type": ["Action", "Response"][i % 2]} for i in n))
    marks = [["0"] * 11, ["1", *["0"] * 10], ["0"] * 4 + ["1", "1"] + ["0"] * 5, ["0"] * 10 + ["1"]]
    files["SemEval2018-Task1-E-c/2018-E-c-En-dev.txt"] = f"ID\tTweet\t{AFFECTS}\n" + tabs(
        *([f"2018-En-{i}", f"my {THINGS[i]} !", *marks[i]] for i in n)
    )
    scale = {"text": "I notice how others feel.", "choices": ["never", "sometimes", "often", "always"]}
    filler = {**scale, "text": "I like tea.", "points": [0, 0, 0, 0]}
    files["EQ-60/scale.jsonl"] = lines(*({**scale, "points": [0, 0, 1, 2]} for _ in n), filler)
    for name in ("IRI", "Interpersonal", "Communication"):
        files[f"{name}/scale.jsonl"] = lines(*({**scale, "points": [[0, 1, 2, 3], [3, 2, 1, 0]][i % 2]} for i in n))
    # Companionship
    profile = {"age": 31, "likes": ["hiking", "tea"]}
    replies = {"chosen": "Walk up the hill, and take tea along.", "rejected": "Watch a film."}
    files["PersonaFeedback/easy.jsonl"] = lines(
        *({"profile": profile, "question": f"What do I do with my {THINGS[i]}?", **replies} for i in n)
    )
    excerpt = "First the sun rose. Then Ann woke. Then she ate. At last she left."
    files["Book-SORT/data/booksort/excerpts_250_20.csv"] = table(
        ["book_idx", "excerpt_idx", "excerpt_pos", "excerpt_text"], *([7, i, 0.1, excerpt] for i in n)
    )
    files["Book-SORT/data/booksort/segments_250_20.csv"] = table(
        ["book_idx", "excerpt_idx", "segment_idx", "segment_1", "segment_2", "seg1_pos", "seg2_pos", "distance_bin", FIRST],
        *([7, i, 0, "Then Ann woke.", "At last she left.", 4, 11, 50, i % 2] for i in n),
    )
    files["LongMemEval/longmemeval_s_cleaned.json"] = json.dumps([*(memory(i) for i in n), memory(9, "_abs")])
    return files


def unreleased() -> dict[str, str | bytes]:
    """What has no published form, as copies of one's own."""
    names = ("Dianping/items.jsonl", *(f"ECDBench/ecdbench_{one}.jsonl" for one in range(1, 5)))
    return {name: lines(*({"text": f"第{i}题", "choices": ["甲", "乙"], "gold": i % 2} for i in range(N))) for name in names}
