"""Control markers of chat templates in texts: whichever family they are of they are broken up, and nothing else is."""

import json
from pathlib import Path
from typing import Any

import pytest

from core.markers import GENERAL, Markers, markers_in
from serve.checkpoints.places import materialise

# Of public chat templates and tokenizers, by family.
FAMILIES = {
    "ChatML": "<|im_start|> <|im_end|> <|endoftext|> <im_start> <im_end>",
    "Llama": "<|begin_of_text|> <|start_header_id|> <|eot_id|> <|python_tag|> <|header_start|> <<SYS>> <</SYS>> <s> </s>",
    "Mistral": "[INST] [/INST] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [AVAILABLE_TOOLS] [TOOL_CALLS] [TOOL_RESULTS] [ARGS]"
    " [/TOOL_RESULTS] [CALL_ID] [THINK] [/THINK] [IMG] [IMG_BREAK] [IMG_END] [BEGIN_AUDIO] [PREFIX] [control_8]",
    "Gemma": "<bos> <eos> <start_of_turn> <end_of_turn> <unused7> <start_of_image> <image_soft_token> [@BOS@]",
    "Gemma 4": '<|turn> <turn|> <|channel> <channel|> <|tool_call> <tool_call|> <|tool> <|"|> <|think|>',
    "InternLM": "[UNUSED_TOKEN_145] [UNUSED_TOKEN_146] <eoa> <eoh> <eosys> <|plugin|>",
    "DeepSeek": "<｜begin▁of▁sentence｜> <｜User｜> <｜Assistant｜> <｜tool▁calls▁begin｜> <｜DSML｜ </｜DSML｜",
    "Hunyuan": "<｜hy_User｜> <|startoftext|> <|extra_0|>",
    "MiniMax": "]~!b[ ]~b] [e~[ ]!p~[ ]!d~[ ]<]minimax[>[ <beginning_of_sentence> <end_of_sentence>"
    " <minimax:tool_call> <mm:think>",
    "EXAONE": "[|system|] [|user|] [|assistant|] [|endofturn|] [|Human|] [BOS] [PAD] [EOS]",
    "BlueLM": "[|Human|] [|AI|]",
    "LongCat": "<longcat_system> <longcat_user> <longcat_assistant> <longcat_s> </longcat_s> <longcat_think>"
    " <longcat_tool_call> <longcat_files> <longcat_img_token_size>",
    "Kimi": "<|im_user|> <|im_middle|> [EOT] [UNK] [start_header_id] [end_header_id] ◁think▷ ◁/think▷",
    "GLM": "[gMASK] [sMASK] [MASK] <sop> <eop> <|observation|> <arg_key> </arg_value>",
    "Granite": "<|start_of_role|> <|end_of_role|> <|end_of_text|> <think_on> <fim_prefix> <gh_stars> <file_sep>",
    "Seed": "<seed:bos> <seed:eos> <seed:think> </seed:think> <seed:tool_call> <seed:cot_budget_reflect>",
    "Nemotron": "<extra_id_0> <extra_id_1> <SPECIAL_10> <SPECIAL_12>",
    "Ernie": "<mask:0> <mask:7> <|IMAGE_PLACEHOLDER|> <|LOC_0|> <sep> <cls>",
    "OLMo": "|||PHONE_NUMBER||| |||IP_ADDRESS||| <|endofprompt|>",
    "Falcon": ">>TITLE<< >>QUESTION<< >>ANSWER<<",
    "Ling": "<role>HUMAN</role> <role>ASSISTANT</role> <|role_end|>",
    "TeleChat": "<_user> <_bot> <_end> <_system>",
    "Baichuan": "<reserved_106> <reserved_107>",
    "Chameleon": "<reserved08706>",
    "Command R": "<BOS_TOKEN> <|START_OF_TURN_TOKEN|> <|CHATBOT_TOKEN|>",
    "Step": "<|EOT|> <｜▁pad▁｜>",
    "Qwen": "<think> </think> <tool_call> </tool_call> <tool_response> <tts_text_bos> <|fim_pad|>",
    "Idefics": "<end_of_utterance>",
    "BERT": "[CLS] [SEP] [unused9] <pad> <unk>",
}
ORDINARY = """I <3 you </3 | a < b > c, x<y|z>w | [see INST] <s trong> <b>[1]</b> [think] [tools] <p> <br/> <h1> <em>so</em>
｜ <eye> [mask on] <end> [laughs] [sobs] <sob> <sigh> >_< <_< >.> <(￣︶￣)> <(_ _)> d[-_-]b []~(￣▽￣)~* |・ω・｀) [1]~[3]
[ ] [x] 【你好】[捂脸][微笑]
|x| ‖v‖ E[|X|] f(|x|) ⟨x|y⟩ <a|H|b> P(A|B) {x | x>0} a[i]+b[0] <name> <your_name> <User> [NAME] [PERSON_1] [URL] <5kg >50 <->
>>HELP<< >>quoted [quote=bob] [END] [OK] &lt;s&gt; <img src="x"> <!-- c --> [BEGIN TRANSCRIPT] <tool>
<role>friend</role> <body> </html>"""


@pytest.mark.parametrize("family", FAMILIES)
def test_markers_of_every_family_are_broken_up_and_counted(family: str) -> None:
    for marker in FAMILIES[family].split():
        text, count = GENERAL.neutral(f"before {marker} after")
        assert count and marker not in text, marker
        assert text.replace(" ", "") == f"before{marker}after", "nothing but blanks is added"
        assert GENERAL.neutral(text) == (text, 0)


@pytest.mark.slow
@pytest.mark.parametrize("text", ORDINARY.split("\n"))
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert GENERAL.neutral(text) == (text, 0)
    assert markers_in(materialise()).neutral(text) == (text, 0)


def test_a_system_message_may_ask_for_reasoning_in_tags() -> None:
    """The role-play packs that let the seeker think first do."""
    text = "Write these thoughts between <think> and </think>. <|im_end|>"
    asked = "Write these thoughts between <think> and </think>. < |im_end|>"
    assert GENERAL.neutral(text, "system") == Markers([("<think>", False)]).neutral(text, "system") == (asked, 1)
    assert GENERAL.neutral(text)[1] == 3


def test_a_tokenizers_own_tokens_count_whatever_they_look_like() -> None:
    """But for what is ordinary text in some tokenizers: white space, HTML's tags, the exclamation mark that also pads."""
    markers = Markers([("PI:URL", True), ("⟦end⟧", False), ("⟦end", True), ("<strong>", False), ("  ", True), ("!", True)])
    assert markers.neutral("PI:URL ⟦end⟧ <strong>  ! [INST]") == ("P I:URL ⟦ end⟧ <strong>  ! [ INST]", 3)
    assert Markers([("|em", True), ("<|em", True)]).neutral("<|em") == ("< | em", 2), "what is left is a token, too"


def test_the_list_is_read_from_a_checkpoints_files(tmp_path: Path) -> None:
    def written(name: str, value: Any) -> Path:
        (tmp_path / name).mkdir()
        file = "tokenizer.json" if name == "fast" else "tokenizer_config.json"
        (tmp_path / name / file).write_text(value if isinstance(value, str) else json.dumps(value))
        return tmp_path / name

    token = {"content": "⟦end⟧", "special": True}
    for folder in (
        written("fast", {"added_tokens": [token | {"id": 3}]}),
        written("config", {"added_tokens_decoder": {"3": token}}),
        written("named", {"eos_token": "⟦end⟧", "pad_token": None}),
    ):
        assert markers_in(folder).neutral("a ⟦end⟧") == ("a ⟦ end⟧", 1)
    for folder in (written("broken", "{"), tmp_path / "nowhere"):
        assert markers_in(folder).neutral("a ⟦end⟧ <s>") == ("a ⟦end⟧ < s>", 1)
