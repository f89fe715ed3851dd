"""Which specs vLLM serves, and in which chat template: against the registry of the installed vLLM."""

import re
from pathlib import Path

import pytest

from core.errors import UserError
from core.files import CONFIGS
from core.machine import Machine
from core.specs import CHAT_TEMPLATES, EMBEDDED_PREFIX, load_spec, model_names
from serve.checkpoints.places import materialise
from serve.plan import plan_servers
from serve.sizes import architectures_of
from tests.serve.conftest import spec

SERVED = [name for name in model_names() if (s := load_spec(name)).checkpoint and not s.serve.unservable]
TALK = [
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hello, what brings you here?"},
    {"role": "user", "content": "My cat ran away."},
]
VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and polite "
    "answers to the user's questions."
)


# --- what the engines have ------------------------------------------------------------------------------------------------


@pytest.mark.vllm
@pytest.mark.slow
def test_every_spec_that_vllm_serves_is_in_its_registry() -> None:
    pytest.importorskip("vllm")
    from vllm import ModelRegistry

    known = set(ModelRegistry.get_supported_archs())
    assert len(SERVED) > 25
    for name in SERVED:
        if (place := str(load_spec(name).checkpoint)).startswith(EMBEDDED_PREFIX):
            materialise(name=place.removeprefix(EMBEDDED_PREFIX))  # on a new machine no other test may have made it yet
        architectures = architectures_of(load_spec(name))
        assert architectures, f"{name}: configs/serve/architectures.yaml lacks its class"
        assert set(architectures) <= known, name


@pytest.mark.vllm
@pytest.mark.slow
def test_what_specs_say_that_nothing_serves_is_in_no_registry() -> None:
    """Once one is, its spec's `unservable` is to go."""
    pytest.importorskip("vllm")
    from vllm import ModelRegistry
    from vllm.model_executor.models.registry import _PREVIOUSLY_SUPPORTED_MODELS
    from vllm.transformers_utils.configs.chatglm import ChatGLMConfig

    known = set(ModelRegistry.get_supported_archs())
    assert architectures_of(load_spec("mindchat")) == ["QWenLMHeadModel"]
    assert "QWenLMHeadModel" not in known and _PREVIOUSLY_SUPPORTED_MODELS["QWenLMHeadModel"].startswith("0.23")
    assert "BlenderbotSmallForConditionalGeneration" not in known
    # The first generation's settings mean nothing to vLLM's ChatGLM.
    second = ChatGLMConfig()
    assert not hasattr(second, "position_encoding_2d") and not hasattr(second, "inner_hidden_size")


@pytest.mark.engine
def test_unservable_specs_are_refused_together_and_with_a_way_out(cpu: None, tmp_path: Path) -> None:
    line_up = [load_spec(name) for name in ("mindchat", "yi-6b-chat", "soulchat")]
    with pytest.raises(UserError) as error:
        plan_servers(line_up, tmp_path)
    first, second = str(error.value).split("\n")
    assert first.startswith("model mindchat cannot be served here: vLLM dropped QWenLMHeadModel after 0.23")
    assert second.endswith("give its address: --set endpoints.soulchat=http://HOST:PORT/v1")
    (planned,) = plan_servers([load_spec("mindchat")], tmp_path, resolve=False)
    assert any("cannot be served here" in note for note in planned.notes)
    elsewhere = load_spec("mindchat@http://127.0.0.1:1/v1")
    assert plan_servers([elsewhere], tmp_path) == []


# --- chat templates -------------------------------------------------------------------------------------------------------


def rendered(template: str, messages: list[dict[str, str]], more: bool = True) -> str:
    """As transformers renders it, for a tokenizer that begins a text with <s> and ends one with </s>."""
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>", chat_template=template
    )
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=more))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vicuna-7b-1.5", "wizardlm2-7b", "chatcounselor"])
def test_vicunas_template_is_the_form_that_it_was_trained_in(name: str) -> None:
    """FastChat's vicuna_v1.1: the system sentence, a space, `USER: … ASSISTANT: …</s>`, nothing before the next USER."""
    template = load_spec(name).template() or ""
    spoken = "USER: Hello. ASSISTANT: Hello, what brings you here?</s>USER: My cat ran away. ASSISTANT:"
    assert rendered(template, TALK) == f"<s>{VICUNA} {spoken}"
    assert rendered(template, [{"role": "system", "content": "Be kind."}, *TALK]) == f"<s>Be kind. {spoken}"
    assert rendered(template, TALK, more=False) == f"<s>{VICUNA} {spoken.removesuffix('ASSISTANT:')}"
    assert rendered(template, [{"role": "system", "content": "Be kind."}]) == "<s>Be kind. ASSISTANT:", "it speaks first"


def test_a_template_counts_by_its_text(tmp_path: Path) -> None:
    """Where it lies does not matter, what it says does."""
    named = load_spec("vicuna-7b-1.5")
    copied = tmp_path / "mine.jinja"
    copied.write_text((CHAT_TEMPLATES / "vicuna.jinja").read_text())
    same = named.model_copy(update={"chat_template": str(copied)})
    assert same.fingerprint() == named.fingerprint()
    copied.write_text("{{ messages }}")
    assert same.fingerprint() != named.fingerprint()
    with pytest.raises(UserError, match=r"model m: chat_template not found: vicunna: did you mean vicuna\?"):
        spec(chat_template="vicunna").fingerprint()


# --- what headers promise -------------------------------------------------------------------------------------------------

COUNTS = {"One": 1, "Two": 2, "Four": 4, "Eight": 8, "two": 2, "four": 4, "eight": 8}
PROMISE = re.compile(rf"\b({'|'.join(COUNTS)}) (\d+) GB(?: GPUs?)?(?: or ({'|'.join(COUNTS)}) (\d+) GB)?")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SERVED if not name.startswith("embedded")])
def test_a_spec_fits_the_gpus_that_its_header_names(name: str, tmp_path: Path) -> None:
    """By the planner, with the context that the spec asks for; one GPU is the smallest of the usual ones that will do."""
    header = " ".join((CONFIGS / "models" / f"{name}.yaml").read_text(encoding="utf-8").split("\nname:")[0].split("\n# "))
    promise = PROMISE.search(header)
    assert promise, header

    def fits(count: int, memory: int) -> bool:
        try:
            (server,) = plan_servers([load_spec(name)], tmp_path, resolve=False, machine=Machine.parse(f"{count}x{memory}"))
        except UserError:
            return False
        return server.place is not None and server.place.dialogues >= 1

    for count, memory in ((promise[1], promise[2]), (promise[3], promise[4])):
        assert count is None or fits(COUNTS[count], int(memory))
    if COUNTS[promise[1]] == 1:
        assert int(promise[2]) == next(memory for memory in (24, 40, 48, 80, 141) if fits(1, memory))
