"""A miniature of the published ESC-Eval repository: its layout and the shape of its scripts, in words of our own."""

from pathlib import Path
from typing import Any

from core.records import Language
from data_prep.published.esc_eval import DIMENSIONS
from tests.data_prep.sources.fixtures import write

KEYS = list(DIMENSIONS)
WORDS = ["smoothness", "variety", "warmth", "tips' use", "likeness", 'know-"how"', "liking"]
RULES: dict[Language, list[str]] = {
    "en": [f"Rate {word} {{not a field}} {{{{ nor this }}}}.\n0: no {{% raw %}}\n4: yes\n" for word in WORDS],
    "zh": [f"Rate {word} of a Chinese chat.\n0: no\n4: yes\n" for word in WORDS],
}
SEEKER: dict[Language, tuple[str, str]] = {
    "en": ("Be somebody in trouble. Your card: '", "\n' Talk like one."),
    "zh": ("扮演有烦恼的人。卡片：“", "\n 像人一样说话。"),
}
HELLO: dict[Language, str] = {"en": "Hi! What brings you here? {# not a comment #}", "zh": "你好！怎么了？"}
HELPFUL = "Be of {{ use }}."

# As published: a class for every model; the system message is put into the very list that the dialogue is kept in.
EVALUATE = f"""
import argparse, json, os
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

class Seeker():
    def __init__(self):
        self.tokens = AutoTokenizer.from_pretrained("here/ESC-Role")
        self.weights = AutoModelForCausalLM.from_pretrained("here/ESC-Role", device_map="auto").eval()
    def __call__(self, heard) -> str:
        if heard[0]['role'] != "system":
            heard.insert(0, {{"role": "system", "content": {HELPFUL!r}}})
        text = self.tokens.apply_chat_template(heard, tokenize=False, add_generation_prompt=True)
        given = self.tokens([text], return_tensors="pt").to(device)
        made = self.weights.generate(given.input_ids, max_new_tokens=512)
        made = [out[len(ids):] for ids, out in zip(given.input_ids, made)]
        return self.tokens.batch_decode(made, skip_special_tokens=True)[0]

class Helper():
    def __init__(self):
        self.tokens = AutoTokenizer.from_pretrained("Qwen/Qwen1.5-7B-Chat")
        self.weights = AutoModelForCausalLM.from_pretrained("Qwen/Qwen1.5-7B-Chat").eval()
    def __call__(self, heard, warmth=0.0) -> str:
        if heard[0]['role'] != "system":
            heard.insert(0, {{"role": "system", "content": {HELPFUL!r}}})
        ids = self.tokens.apply_chat_template(heard, return_tensors="pt").to(self.weights.device)
        out = self.weights.generate(ids, max_new_tokens=512)
        return self.tokens.decode(out[0][ids.shape[-1]:], skip_special_tokens=True)

def play(args):
    seeker = Seeker()
    for kind in [Helper]:
        helper, held = kind(), dict()
        with open(args.file, 'r', encoding='utf-8') as f:
            data = json.load(f)
        for index, card in tqdm(enumerate(data), ncols=80):
            if args.language == "zh":
                prompt={SEEKER["zh"][0]!r}+card['base']+\\
                {SEEKER["zh"][1]!r}
                heard = [{{"role": "system", "content": prompt}}]
                heard.append({{"role": "user", "content": {HELLO["zh"]!r}}})
            else:
                prompt={SEEKER["en"][0]!r}+card['base']+{SEEKER["en"][1]!r}
                heard = [{{"role": "system", "content": prompt}}]
                heard.append({{"role": "user", "content": {HELLO["en"]!r}}})
            other = []
            for i in range(5):
                said = seeker.__call__(heard)
                heard.append({{"role": "assistant", "content": said}})
                other.append({{"role": "user", "content": said}})
                said = helper(other)
                heard.append({{"role": "user", "content": said}})
                other.append({{"role": "assistant", "content": said}})
            names = {{"user": "AI assistant：", "assistant": "ESC-Role："}}
            held[str(index)] = [names[one['role']] + one['content'] for one in heard if one['role'] in names]
        with open(args.results + "today/" + type(helper).__name__ + "_" + args.language + ".json", 'w') as f:
            f.write(json.dumps(held, ensure_ascii=False))
        f.close()
        if hasattr(helper, "weights"):
            helper.weights.to('cpu')

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description='play')
    parser.add_argument('--file', '-ef', type=str, required=True)
    parser.add_argument('--results', '-rf', type=str, required=True)
    parser.add_argument('--language', '-lang', type=str, default='zh')
    play(parser.parse_args())
"""
SUMMED = """
                text=rules[i]+"\\n  The chat: \\n"+chat.strip()+"\\n"
                text+='Give the '+word+' score.'
"""
# The way that InternLM2's code takes its system message: the default of an argument, in two literals.
INTERNLM2_SYSTEM = "You are somebody.\n- You are {{ kind }} (书)."
INTERNLM2 = """
class Model:
    def chat(self, tokenizer, query: str, history=None, temperature: float = 0.8,
             meta_instruction: str = "You are somebody.\\n" "- You are {{ kind }} (书).", **kwargs):
        raise SystemExit("this was run")
"""


def score_script(message: str = SUMMED, more: str = "") -> str:
    return f"""
{more}
import json, os
from peft import PeftMixedModel
from transformers import AutoModelForCausalLM, AutoTokenizer
RULES_EN={RULES["en"]!r}
RULES_ZH={RULES["zh"]!r}
class Ranker():
    def __init__(self):
        self.tokens = AutoTokenizer.from_pretrained("there/base", trust_remote_code=True)
        self.weights = PeftMixedModel.from_pretrained(AutoModelForCausalLM.from_pretrained("there/base").eval(), "./{KEYS[0]}")
        self.weights.load_adapter("./{KEYS[1]}", adapter_name="{KEYS[1]}")
    def __call__(self, asked, which=None) -> str:
        self.weights.set_adapter(which)
        answer, told = self.weights.chat(self.tokens, asked[0]['content'], temperature=0.0, do_sample=False, history=[])
        return answer
if __name__=="__main__":
    words={WORDS!r}
    keys={KEYS!r}
    labels=["0","1","2","3","4"]
    for file in os.listdir('./result/'):
        with open('./result/'+file,'r',encoding='utf-8') as f:
            data=json.load(f)
        if 'zh' in file:
            rules=RULES_ZH
        else:
            rules=RULES_EN
        found, ranker = dict(), Ranker()
        for _, one in enumerate(data.items()):
            index, tem = one
            found[index] = dict()
            for i, word in enumerate(words):
                chat='\\n\\n'.join(tem).replace("AI assistant","**AI助手**").replace("ESC-Role：","**用户**")
{message}
                answer = ranker([{{"role": "user", "content": text}}], which=keys[i])
                for label in labels:
                    if label in answer:
                        found[index][keys[i]] = int(label)
                        break
        with open('./score/'+file,'w',encoding='utf-8') as f:
            f.write(json.dumps(found))
"""


def published_card(number: int, language: Language) -> dict[str, Any]:
    """A card as the card files have it. Odd: "not mentioned" is written in two ways."""
    en = "Age: not mentioned\nGender: Female\nOccupation: Not mentioned\nProblem: Her oven broke and the bank wants its money."
    zh = "年龄：青年\n性别：未提及\n职业：未提及\n问题：他的猫走丢了，室友说是他没关门。"
    base, name = (en, "english") if language == "en" else (zh, "chinese")
    return {"id": number, "base": base, "base_biaozhu": base, "res": "家庭生活", "source": "own", "language": name}


def lines(language: Language, supporter: str = "AI assistant") -> list[str]:
    return [f"{supporter}：{HELLO[language]}", "ESC-Role： Bad day &amp; night.\nVery bad.\n", f"{supporter}：Tell me more."]


SCORES = dict(zip(KEYS, (4, 3, 2, 1, 0, -1, 2), strict=True))


def make_clone(folder: Path) -> Path:
    """The published layout: cards in data/, results in result/DATE/, scores in score/, scripts at the top."""
    files: dict[str, Any] = {
        "data/card_high_en.json": [published_card(n, "en") for n in (1, 2, 3)],
        "data/card_high_ch.json": [published_card(n, "zh") for n in (7, 8)],
        "data/test_en.json": [published_card(1, "en")],
        "data/test_zh.json": [published_card(7, "zh"), published_card(8, "zh")],
        "result/2024-01-02/Model_A_en.json": {"0": lines("en"), "1": lines("en", "AI assitant")},
        "result/2024-01-02/Model_A_zh.json": {"0": lines("zh")},
        "score/Model_A_en.json": {"0": SCORES, "1": SCORES},
        "score/Model_A_zh.json": {"0": SCORES},
        ".git/score/Model_A_en.json": {},
    }
    return write(folder, files | {"evaluate.py": EVALUATE, "score.py": score_script()})
