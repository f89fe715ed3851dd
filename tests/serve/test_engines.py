"""Which engine serves which spec, in which chat template: against the registries of the installed vLLM and transformers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from core.errors import UserError
from core.files import CONFIGS
from core.machine import Machine
from core.prompts import load_pack
from core.records import Dialogue, Turn
from core.rubrics import load_rubric
from core.specs import CHAT_TEMPLATES, EMBEDDED_PREFIX, ModelSpec, load_spec, model_names
from evalsuite.judge.judge import Judge
from serve.checkpoints.embedded import materialise
from serve.client import ChatClient
from serve.command import PORT, TRANSFORMERS
from serve.plan import plan_servers
from serve.sizes import architectures_of
from serve.store import CallStore
from tests.answers import Answer, error
from tests.conftest import EscEval
from tests.dialects import Dialect as ServerDialect
from tests.dialects import Speaker
from tests.endpoint import Endpoint
from tests.serve.test_plan import checkpoint, spec, value

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
def test_every_spec_that_an_engine_serves_is_in_its_registry() -> None:
    pytest.importorskip("vllm")
    import transformers
    from vllm import ModelRegistry

    known = set(ModelRegistry.get_supported_archs())
    assert len(SERVED) > 25
    for name in SERVED:
        if (place := str(load_spec(name).checkpoint)).startswith(EMBEDDED_PREFIX):
            materialise(name=place.removeprefix(EMBEDDED_PREFIX))  # on a new machine no other test may have made it yet
        architectures = architectures_of(load_spec(name))
        assert architectures, f"{name}: configs/serve/architectures.yaml lacks its class"
        if load_spec(name).serve.engine == "vllm":
            assert set(architectures) <= known, name
        else:
            assert all(hasattr(transformers, architecture) for architecture in architectures), name


@pytest.mark.vllm
@pytest.mark.slow
def test_what_specs_say_that_nothing_serves_is_in_no_registry() -> None:
    """Once one is, its spec's `unservable` is to go."""
    pytest.importorskip("vllm")
    import transformers
    from vllm import ModelRegistry
    from vllm.model_executor.models.registry import _PREVIOUSLY_SUPPORTED_MODELS
    from vllm.transformers_utils.configs.chatglm import ChatGLMConfig

    known = set(ModelRegistry.get_supported_archs())
    assert architectures_of(load_spec("mindchat")) == ["QWenLMHeadModel"]
    assert "QWenLMHeadModel" not in known and _PREVIOUSLY_SUPPORTED_MODELS["QWenLMHeadModel"].startswith("0.23")
    assert "BlenderbotSmallForConditionalGeneration" not in known
    # `transformers serve` takes its class from the package, remote code or not.
    assert not hasattr(transformers, "QWenLMHeadModel") and not hasattr(transformers, "ChatGLMModel")
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


# --- transformers serve ---------------------------------------------------------------------------------------------------


def by_transformers(**more: Any) -> ModelSpec:
    return spec("m", serve={"engine": "transformers"} | more.pop("serve", {}), **more)


@pytest.mark.engine
def test_transformers_serve_has_one_model_under_its_own_name(
    cpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESC_EVAL_CACHE", str(tmp_path / "cache"))
    folder = Path(checkpoint(tmp_path / "base"))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 2, "architectures": ["LlamaForCausalLM"]}))
    own = {"eos_token_id": [2, 7], "top_k": 20, "repetition_penalty": 1.3, "temperature": 0.6}
    (folder / "generation_config.json").write_text(json.dumps(own))
    (folder / "chat_template.jinja").write_text("the checkpoint's")
    made = by_transformers(checkpoint=str(folder), chat_template="{{ mine }}", endpoint={"model": "org/m.1"})
    other = by_transformers(checkpoint=str(folder)).model_copy(update={"name": "other"})
    first, second = plan_servers([made, other], tmp_path)
    assert first.argv[1:5] == ["-m", TRANSFORMERS, "serve", "org/m.1"] and value(first.argv, "--host") == "127.0.0.1"
    assert value(first.argv, "--port") == PORT and value(first.argv, "--dtype") == "bfloat16"
    assert "--trust-remote-code" not in first.argv and second.argv[4] == "other"
    hub = Path(first.env["HF_HUB_CACHE"])
    assert first.env["HF_HUB_OFFLINE"] == "1" and hub != Path(second.env["HF_HUB_CACHE"])
    (model,) = hub.iterdir()
    commit = (model / "refs" / "main").read_text()
    snapshot = model / "snapshots" / commit
    assert model.name == "models--org--m.1" and (snapshot / "config.json").resolve() == folder / "config.json"
    assert (snapshot / "chat_template.jinja").read_text() == "{{ mine }}"
    sampling = json.loads((snapshot / "generation_config.json").read_text())
    assert sampling == {"eos_token_id": [2, 7], "do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0}
    assert json.loads((folder / "generation_config.json").read_text()) == own, "the checkpoint stays as it is"


@pytest.mark.engine
def test_what_transformers_serve_cannot_do_is_refused(cpu: None, tmp_path: Path) -> None:
    for option, given in (("replicas", 2), ("fp8", ["weights"]), ("tensor_parallel", 2), ("eager", True)):
        with pytest.raises(ValidationError, match=f"{option}: belongs to engine vllm, this spec's is transformers"):
            by_transformers(serve={option: given})
    bad = by_transformers(checkpoint=checkpoint(tmp_path / "b"), endpoint={"model": "a--b"})
    with pytest.raises(UserError, match=r"model m: `transformers serve` knows a model by its name on the hub, and 'a--b'"):
        plan_servers([bad], tmp_path)


@pytest.mark.slow
@pytest.mark.full
def test_the_embedded_model_is_a_supporter_served_by_transformers(
    esc_eval: EscEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real server: launched by the run, asked in its own dialect, gone afterwards."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # beside other work, two threads wait for each other token by token
    materialise()
    own = tmp_path / "hf.yaml"
    own.write_text(
        "name: hf-embedded\nroles: [supporter]\nlanguages: [en]\ncheckpoint: embedded:smollm2-135m-instruct\n"
        "context_length: 8192\nsampling: {temperature: 0.0, max_tokens: 8}\nserve: {engine: transformers, dtype: auto}\n"
    )
    (tmp_path / "run.yaml").write_text("cards: [bundled]\nlanguages: [en]\nexchanges: 2\nout: run\n")

    def behave(body: Any, count: int) -> Answer:
        return Answer("3333333" if "TRANSCRIPT" in str(body) else "I feel low.")

    with Endpoint(behave=behave, models=("m",)) as other:
        place = f"m@{other.url}"
        words = ["run", "--config", "run.yaml", "--supporter", "hf.yaml", "--seeker", place, "--judge", place, "--limit", "1"]
        code, said = esc_eval(*words)
    assert code == 0 and said.startswith("# hf-embedded is served in ")
    assert all(line.startswith("# starting hf-embedded: ") for line in said.splitlines()[1:])
    (dialogue,) = [json.loads(line) for line in (tmp_path / "run" / "dialogues.jsonl").read_text().splitlines()]
    replies = [turn["text"] for turn in dialogue["turns"] if turn["role"] == "supporter"]
    assert dialogue["termination"] == "max_turns" and len(replies) >= 2 and all(replies)
    assert len(set(replies)) > 1, "a model, not a parrot of one line"


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


async def test_what_transformers_serve_takes_is_found_out_though_we_launched_it(tmp_path: Path) -> None:
    """vLLM is taken at its word; this one refuses `structured_outputs`, passes over a schema and tells no probabilities."""
    plain = Speaker(ServerDialect("plain"))

    def behave(body: dict[str, Any], count: int) -> Answer:
        if "structured_outputs" in body:
            return error(422, "Unexpected fields in the request: {'structured_outputs'}")
        return plain(body | {"logprobs": False}, count)

    store = CallStore(tmp_path / "calls.sqlite")
    turns = (Turn(role="seeker", text="I cannot sleep."), Turn(role="supporter", text="Since when?"))
    dialogue = Dialogue(id="d", language="en", framework="esc_eval", source="test", turns=turns)
    with Endpoint(behave, models=("m",)) as endpoint:
        async with ChatClient(store, endpoints={"m": endpoint.url}, launched={endpoint.url}) as client:
            judge = Judge(client, by_transformers(roles=["judge"]), load_rubric("esc_eval"), load_pack("esc_eval"), "joint")
            verdicts = await judge.score(dialogue)
    store.close()
    assert len(verdicts) == 7 and all(verdict.value is not None and verdict.distribution is None for verdict in verdicts)
    assert not {"structured_outputs", "response_format"} & endpoint.requests[-1].keys()
