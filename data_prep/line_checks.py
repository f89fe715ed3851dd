"""What a line written by a simulator is checked for: phrases that no seeker says, its length, how much it repeats itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from core.patterns import Patterns
from core.records import Language

# What a line says that gives the machine away, and what a supporter says rather than a seeker. Fixed phrases, so both lists
# miss what is put otherwise, and know no irony and no quotation. A figure means something only beside that of real lines,
# which is how often the lists are wrong about seekers. Of ESConv's 12,066 seeker messages they take 0.02 % and 0.2 %, of its
# supporters' 1.4 % and 10 %; of SmileChat's (its sample: 11,268 and 10,969) 0.0 % and 0.2 %, of its supporters' 1.1 % and 23 %.
# Both languages' lists are tried on every line.
_AI = r"(?:artificial intelligence|ai|(?:large )?language model|chat ?bot|computer program|(?:virtual|digital) assistant)"
_TRADE = r"(?![- ](?:engineer|research|scien|develop|student|major|company|expert|trainer|user|artist|safety))"
_ZH_AI = r"(?:人工智能|AI|(?:大型?)?语言模型|聊天机器人|(?:虚拟|智能)助[手理])"
_ZH_TRADE = r"(?!的?(?:专业|系|行业|领域|方向|公司|工程|研究|研发|从业|学生|老师|开发|产品|训练))"
_HERE_TO = r"\bi(?:'?m| am)(?: just| always)? here to (?:help|assist|support|listen)\b(?! (?:my|our|his|her|their|the|a)\b)"
MACHINE = (
    rf"\b(?:as|(?:i'?m|i am)(?: just| only| actually)?) an? {_AI}\b{_TRADE}",
    _HERE_TO,
    r"\bhow (?:can|may|could) i (?:help|assist|support) you\b",
    r"\bwhat can i (?:do for|help) you\b",
    r"\bi(?:'d| would) be happy to (?:help|assist)\b",
    rf"(?:作为|身为)(?:一[个名位款种])?{_ZH_AI}{_ZH_TRADE}",
    rf"我(?:只|仅仅|就|不过)?是(?:一[个名位款种])?{_ZH_AI}{_ZH_TRADE}",
    r"我(?:可以|能够?|会|很乐意|在这里)(?:尽力)?(?:为|帮助?|协助)[你您](?!们)",
    r"(?:有)?什么(?:我)?(?:可以|能够?)(?:为|帮助?到?|协助)[你您]",
    r"很高兴(?:能)?(?:为|帮助?)[你您]",
)
SUPPORTER = (
    r"\bi(?:'?m| am) here for you\b",
    r"\bi(?:'?m| am) (?:so |really |very )?sorry (?:to hear|you(?:'re| are)|that you(?:'re| are))\b",
    r"\bi(?:'?m| am) (?:so |really |very )?(?:glad|happy|proud) (?:that )?you(?:'re| are) (?:able|doing|feeling|on|taking)\b",
    r"\bit sounds like you\b",
    r"\bi (?:can |completely |totally |really )*(?:understand|hear|see) (?:how|what|why) you(?:'re| are)? (?:feel|go)",
    r"\bthank(?:s| you) for (?:sharing|opening up|reaching out)\b",
    r"\byou(?:'re| are) not alone\b",
    r"\bhave you (?:tried|considered|thought about|talked to|spoken to)\b",
    r"\b(?:can|could|would|do) you (?:like to |want to )?(?:tell me|share|talk) (?:a (?:bit|little) )?(?:more|about|what)",
    r"\bhow (?:are you feeling|does that make you feel|did that make you feel)\b",
    r"\bit'?s (?:okay|ok|normal|understandable|important) (?:for you )?to (?:feel|remember|take care|talk)\b",
    r"我(?:很|能|可以|完全|非常)*(?:理解|明白|体会)到?[你您](?:的|现在|此刻|这种)*(?:感[受觉]|心情|处境|困扰|痛苦|焦虑|担[心忧])",
    r"[你您](?:并不|不是)(?:是)?(?:一个人|孤单|孤独)",
    r"(?:谢谢|感谢)[你您](?:的|愿意)?(?:分享|信任|倾诉)",
    r"(?:我)?(?:建议|鼓励)[你您]",
    r"[你您](?:可以|不妨|有没有)(?:试着|尝试|试试|考虑|想过)",
    r"[你您](?:能|可以|愿意)(?:和我|跟我|再)?(?:多)?(?:说说|谈谈|分享|聊聊|具体说)",
    r"听起来[你您]",
)


def phrase(patterns: tuple[str, ...], line: str) -> str | None:
    """What the first of the phrases (`MACHINE`, `SUPPORTER`) that occurs takes of a line, None if none does.

    Case and the form of apostrophes do not matter.
    """
    plain = line.replace("’", "'")
    span = next(iter(searched(patterns).spans(plain)), None)
    return plain[slice(*span)] if span else None


@lru_cache
def searched(patterns: tuple[str, ...]) -> Patterns:
    """The phrases as they are searched: their letters are those of ASCII, so that a word ends where Chinese begins."""
    return Patterns.model_validate([f"(?a){pattern}" for pattern in patterns])


def says(patterns: tuple[str, ...], line: str) -> bool:
    """Whether a line holds one of the phrases."""
    return phrase(patterns, line) is not None


def units(line: str, language: Language) -> list[str]:
    """What length and distinct-n count: lower-cased words (en); Chinese characters and runs of Latin letters or digits (zh)."""
    if language == "en":
        return re.findall(r"\w+(?:'\w+)*", line.lower().replace("’", "'"))
    return re.findall(r"[一-鿿]|[a-z0-9]+", line.lower())


def distinct(lines: Sequence[Sequence[str]], n: int) -> float | None:
    """Distinct n-grams as a share of all n-grams of all lines together (none runs over the end of a line); None without any."""
    grams = [tuple(line[i : i + n]) for line in lines for i in range(len(line) - n + 1)]
    return len(set(grams)) / len(grams) if grams else None
