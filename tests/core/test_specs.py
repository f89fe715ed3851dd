"""Model specs: the groups of table 2, and what a dump of a spec holds."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from core.endpoints import Endpoint, Price
from core.errors import UserError
from core.files import sha256_file
from core.specs import ModelSpec, Sampling, ServeOptions, load_spec, model_names

GROUPS = {  # ESC-Eval, table 2
    "closed": {"gpt-4", "chatgpt"},
    "open": {"vicuna-7b-1.5", "wizardlm2-7b", "qwen1.5-7b-chat", "chatglm3-6b", "yi-6b-chat", "llama3-8b-instruct"},
    "domain": {"chatcounselor", "mindchat", "soulchat", "emollm", "mechat", "extes-llama"},
}


def test_bundled_specs_have_the_groups_of_table_2() -> None:
    assert {group: {name for name in names if load_spec(name).group == group} for group, names in GROUPS.items()} == GROUPS
    ungrouped = {name for name in model_names() if load_spec(name).group is None}
    assert {"embedded", "esc-rank", "esc-role"} <= ungrouped


def test_dumps_hold_a_group_only_where_there_is_one() -> None:
    """A run folder's config compares dumps: runs from before there were groups must still resume."""
    spec = load_spec("embedded")
    assert "group" not in spec.model_dump() and "group" not in spec.model_dump(mode="json")
    assert load_spec("gpt-4").model_dump()["group"] == "closed"
    assert ModelSpec.model_validate(spec.model_dump()) == spec


def test_weights_of_one_adapter_among_several_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    adapters: dict[str, dict[str, str]] = {"en": {}, "zh": {}}
    for language, dimension in (("en", "empathy"), ("zh", "empathy"), ("zh", "skill")):
        folder = tmp_path / language / dimension
        folder.mkdir(parents=True)
        (folder / "adapter_model.safetensors").write_bytes(b"one")
        adapters[language][dimension] = str(folder)
    spec = ModelSpec.model_validate(
        {"name": "m", "about": "a", "roles": ["judge"], "languages": ["en", "zh"], "checkpoint": "c/d", "context_length": 9000}
        | {"adapters": adapters}
    )
    before = spec.fingerprint()
    (tmp_path / "zh" / "skill" / "adapter_model.safetensors").write_bytes(b"two")
    assert spec.fingerprint() != before


@pytest.mark.parametrize("part", [ModelSpec, Endpoint, Price, Sampling, ServeOptions])
def test_every_field_of_a_spec_is_described_in_a_sentence(part: type[BaseModel]) -> None:
    """The reference of the spec format is made of these descriptions."""
    for name, field in part.model_fields.items():
        assert field.description and field.description[-1] == ".", f"{part.__name__}.{name}"


def test_weights_are_read_once_for_their_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run asks for a model's identity in several places; a file that changed is read again."""
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"one")
    spec = load_spec("embedded").model_copy(update={"checkpoint": str(tmp_path)})
    read: list[str] = []
    digest = hashlib.file_digest

    def counted(handle: Any, name: str) -> Any:
        read.append(name)
        return digest(handle, name)

    monkeypatch.setattr("core.files.hashlib.file_digest", counted)
    first = spec.fingerprint()
    assert spec.fingerprint() == first and sha256_file(weights) == hashlib.sha256(b"one").hexdigest() and len(read) == 1
    weights.write_bytes(b"two, which is longer")
    assert spec.fingerprint() != first and len(read) == 2


def test_a_prompt_is_looked_up_beside_its_spec_and_then_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "m.yaml").write_text("name: m\nendpoint: {base_url: http://127.0.0.1:1/v1}\nsystem: kind.txt\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"system prompt not found: kind\.txt"):
        load_spec("specs/m.yaml")
    for place in ("kind.txt", "specs/kind.txt"):
        (tmp_path / place).write_text(f"Be kind: {place}.")
        assert load_spec("specs/m.yaml").system == f"Be kind: {place}."
    (tmp_path / "specs" / "m.yaml").write_text('name: m\nendpoint: {base_url: http://127.0.0.1:1/v1}\nsystem: ""\n')
    with pytest.raises(UserError, match="system prompt '': empty"):
        load_spec("specs/m.yaml")
