"""Every bundled configuration loads through the code that uses it, and says what the papers say."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from core.errors import UserError
from core.files import CONFIGS
from core.judge_prompts import judge_messages
from core.prompts import load_pack
from core.records import Dialogue, Language, RoleCard, Turn
from core.rubrics import Rubric, load_rubric
from core.scales import COUNTED
from core.settings import load_yaml
from core.specs import load_spec, model_names
from evalsuite.papers.emoharbor import EmoHarbor
from evalsuite.papers.feel import Feel, load_feel_config
from evalsuite.papers.reported import load_reported
from evalsuite.runs.config import load_config

LANGUAGES: tuple[Language, ...] = ("en", "zh")
DIMENSIONS = ["fluency", "expression", "empathy", "information", "humanoid", "skill", "overall"]
# Table 2 of ESC-Eval; Chinese lacks Llama 3 and ExTES.
GENERAL = ("gpt-4", "chatgpt", "vicuna-7b-1.5", "wizardlm2-7b", "qwen1.5-7b-chat", "chatglm3-6b", "yi-6b-chat")
SUPPORTERS = (*GENERAL, "llama3-8b-instruct", "chatcounselor", "mindchat", "soulchat", "emollm", "mechat", "extes-llama")
CJK = re.compile(r"[一-鿿]")
LATIN = re.compile(r"[A-Za-z]")


# --- models ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((CONFIGS / "models").glob("*.yaml")), ids=lambda path: path.stem)
def test_model_spec_loads_under_its_file_name(path: Path) -> None:
    spec = load_spec(path.stem)
    assert spec.name == path.stem
    assert load_spec(str(path)) == spec
    assert not spec.serve.trust_remote_code, "remote code is for the user to turn on"
    header = path.read_text(encoding="utf-8").split("\nname:")[0].split("\n")
    assert 1 <= len(header) <= 4 and all(line.startswith("# ") for line in header)
    started = "serve convert embedded" if path.stem == "embedded" else f"configs/models/{path.name}"
    needed = "floors=true" if spec.floor else spec.endpoint.api_key_env or started
    assert needed in "\n".join(header), "the header says how to start it"


def test_the_fourteen_supporters_of_table_2() -> None:
    for name in SUPPORTERS:
        spec = load_spec(name)
        assert spec.languages == (("en",) if name in ("llama3-8b-instruct", "extes-llama") else ("en", "zh"))
        assert "supporter" in spec.roles and spec.licence
        assert (spec.sampling.temperature, spec.sampling.max_tokens) == (0, 512), "ESC-Eval decodes at temperature 0"


@pytest.mark.parametrize("name", ["gpt-4", "chatgpt"])
def test_closed_supporters_are_endpoints(name: str) -> None:
    spec = load_spec(name)
    assert spec.checkpoint is None and spec.endpoint.base_url and spec.endpoint.constraint in ("json_schema", "none")
    assert spec.served_name() == spec.endpoint.model and spec.endpoint.api_key_env == "OPENAI_API_KEY"


def test_esc_models_play_their_parts() -> None:
    assert load_spec("esc-role").roles == ("seeker",)
    ranker = load_spec("esc-rank")
    assert ranker.roles == ("judge",) and ranker.adapter and ranker.adapters is None
    published = load_spec("esc-rank-published")
    assert published.roles == ("judge",) and published.checkpoint == ranker.checkpoint
    assert published.adapters is not None
    folders = {language: {key: Path(p).name for key, p in found.items()} for language, found in published.adapters.items()}
    assert list(folders["zh"]) == list(folders["en"]) == list(load_rubric("esc_eval").dimensions)
    assert list(folders["zh"].values()) == ["fluency", "diversity", "empathic", "suggestion", "human", "tech", "overall"]
    assert list(folders["en"].values()) == [f"{name}_en" for name in folders["zh"].values()]


# --- line-ups -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("table", "language", "file"), [("3", "zh", "emoharbor_table3"), ("5", "en", "emoharbor_table5")])
def test_every_model_of_emoharbors_tables_has_a_spec(table: str, language: str, file: str) -> None:
    """One supporter a row, which `--against` finds again; who thinks, talks and judges is section 3.3's."""
    config = load_config(CONFIGS / "eval" / f"{file}.yaml", {})
    printed = load_reported("emoharbor").tables[table]
    (shown,) = [entry for entry in printed.beside if f"leaderboard-{language}" in entry.tables]
    patterns = {pattern: at["Model"] for pattern, at in shown.rows["supporter"].items()}
    rows = [next(row for pattern, row in patterns.items() if fnmatchcase(name, pattern)) for name in config.supporters]
    assert rows == [row[printed.heads.index("Model")] for row in printed.rows]
    run = EmoHarbor(config)
    assert [spec.name for spec in run.models.supporters] == config.supporters and config.languages == [language]
    assert all(language in spec.languages for spec in run.models.supporters)
    assert run.models.thinker and {run.models.seeker.name, run.models.thinker.name} == {"gpt-4o-2024-11-20"}
    assert run.models.judge.name == "qwen3-235b-a22b"
    assert {spec.sampling.temperature for spec in run.models.supporters} == {0.7} and config.mode == "paper"


def test_feels_panel_and_the_seven_systems() -> None:
    panel = Feel(load_feel_config(CONFIGS / "eval" / "feel_panel.yaml", {}))
    assert [member.spec.name for member in panel.members] == ["ernie-4.0", "glm-4", "gpt-3.5-turbo"]
    assert all(member.spec.endpoint.base_url and member.spec.endpoint.api_key_env for member in panel.members)
    assert (panel.config.rounds, panel.config.methods) == (10, ["bands"])
    systems = load_config(CONFIGS / "eval" / "feel_systems.yaml", {})
    assert len({load_spec(name).name for name in systems.supporters}) == 7 and systems.limit == 10


LINE_UPS = ["esc_eval_full", "emoharbor_table3", "emoharbor_table5", "feel_systems"]


@pytest.mark.parametrize("name", LINE_UPS)
def test_a_line_up_says_of_each_model_what_its_spec_says(name: str) -> None:
    text = (CONFIGS / "eval" / f"{name}.yaml").read_text(encoding="utf-8")
    notes = dict(re.findall(r"^  - (\S+) +# (.+)$", text, re.MULTILINE))
    supporters = load_config(CONFIGS / "eval" / f"{name}.yaml", {}).supporters
    assert notes == {supporter: load_spec(supporter).serving for supporter in supporters}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*model_names()} - {"lecture", "parrot", "silent", "reference"}))
def test_what_serves_a_model_is_what_its_spec_says(name: str) -> None:
    """The sentence for people names the engine and the template that the fields name."""
    spec = load_spec(name)
    if spec.endpoint.base_url:
        assert spec.serving == "its vendor, at the address"
    elif spec.serve.unservable:
        assert spec.serving.startswith("nothing here")
    else:
        assert "vLLM" in spec.serving
        template = re.search(r"in the template (\S+?)(?:[,;]|$)", spec.serving)
        assert (template[1] if template else None) == spec.chat_template


# --- rubrics --------------------------------------------------------------------------------------------------------------


def texts(rubric: Rubric, language: Language) -> list[str]:
    return [
        text
        for dimension in rubric.dimensions.values()
        for text in (dimension.label[language], dimension.about[language], *dimension.levels[language].values())
    ]


@pytest.mark.parametrize("path", sorted((CONFIGS / "rubrics").glob("*.yaml")), ids=lambda path: path.stem)
def test_rubric_loads_under_its_file_name(path: Path) -> None:
    rubric = load_rubric(path.stem)
    assert rubric.name == path.stem
    assert path.read_text(encoding="utf-8").startswith("# ")
    for language in rubric.languages:
        for key, dimension in rubric.dimensions.items():
            if len(rubric.scale_of(key).scores) > COUNTED:  # a share of points: nobody picks its scores
                continue
            levels = list(dimension.levels[language].values())
            assert len(set(levels)) == len(levels), f"{key} ({language}) describes two scores alike"
            assert all(rubric.texts(key, language).values()), f"{key} ({language}): a bundled rubric describes every score"


@pytest.mark.parametrize("name", ["esc_eval", "esc_eval_human"])
def test_esc_eval_rubrics_have_seven_dimensions_on_0_to_4(name: str) -> None:
    rubric = load_rubric(name)
    assert list(rubric.dimensions) == DIMENSIONS
    assert rubric.languages == LANGUAGES
    assert rubric.scale.scores == (0, 1, 2, 3, 4)
    assert not any(LATIN.search(text) for text in texts(rubric, "zh"))
    assert not any(CJK.search(text) for text in texts(rubric, "en"))


def test_judge_and_annotators_differ_as_in_the_paper() -> None:
    """Figure 12 marks down Chinese replies at 1 and 2, figure 13 and table 16 do not; figure 17 and table 16 count traces."""
    judge, human = (load_rubric(name).dimensions for name in ("esc_eval", "esc_eval_human"))
    assert [score for score, text in judge["fluency"].levels["en"].items() if "Chinese" in text] == [1, 2]
    assert not [text for text in judge["fluency"].levels["zh"].values() if re.search("[中英汉]", text)]
    assert not any("Chinese" in text for text in texts(load_rubric("esc_eval_human"), "en"))
    for language in LANGUAGES:
        for key in ("information", "humanoid"):
            assert not [s for s in range(5) if judge[key].levels[language][s] == human[key].levels[language][s]], key
        assert judge["skill"].about[language] != human["skill"].about[language]
    for dimensions, words in (
        (judge, ("more than two", "exactly two", "at most one")),
        (human, ("more than two", "one or two", "nothing")),
    ):
        traces = dimensions["humanoid"].levels["en"]
        assert all(text in traces[score].lower() for score, text in zip((2, 3, 4), words, strict=True))


# --- prompts --------------------------------------------------------------------------------------------------------------

PACK = "esc_eval"
TRANSCRIPT = "[1] Seeker: first words\n[2] Supporter: last words"
END = "[END TRANSCRIPT]"
CARD: dict[str, Any] = {"id": "c", "problem": "a lost letter", "source": "test", "card_method": "written"}
FIELDS = {"age": "ninety-one", "gender": "female", "occupation": "lighthouse keeper"}


def rules(language: Language) -> list[dict[str, object]]:
    return [
        {"label": d.label[language], "about": d.about[language], "levels": sorted(d.levels[language].items())}
        for d in load_rubric("esc_eval").dimensions.values()
    ]


def values(language: Language, template: str) -> dict[str, object]:
    """What the code gives this template, and nothing else."""
    if template == "seeker_system.j2":
        return {"card": RoleCard(language=language, **FIELDS, **CARD)}
    shared: dict[str, object] = {"transcript": TRANSCRIPT, "low": 0, "high": 4}
    if template == "judge_joint.j2":
        return shared | {"dimensions": rules(language)}
    if template in {"judge_dimension.j2", "judge_paper.j2"}:
        return shared | {"dimension": rules(language)[3]}
    return {"dimensions": rules(language)} if template == "judge_system.j2" else {}


def render(language: Language, template: str, **changed: object) -> str:
    return load_pack(PACK).render(language, template, **(values(language, template) | changed))


JUDGES = ("judge_dimension.j2", "judge_joint.j2", "judge_paper.j2", "judge_paper_system.j2", "judge_system.j2")
TEMPLATES = ["greeting.txt", *JUDGES, "seeker_system.j2", "supporter_paper_system.j2"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_template_of_the_pack_renders(language: Language) -> None:
    folder = CONFIGS / "prompts" / PACK / language
    assert sorted(p.name for p in folder.iterdir() if not p.name.startswith("_")) == TEMPLATES
    for template in TEMPLATES:
        text = render(language, template)
        assert text and "{{" not in text and "{%" not in text and "{#" not in text
        chinese = language == "zh" and template != "supporter_paper_system.j2"  # English in both, as published
        assert bool(CJK.search(text)) == (chinese or template == "judge_paper.j2"), template


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "template", sorted({*TEMPLATES} - {"greeting.txt", "judge_paper_system.j2", "supporter_paper_system.j2"})
)
def test_every_variable_is_used(language: Language, template: str) -> None:
    given = values(language, template)
    for name in given:
        with pytest.raises(UserError, match=name):
            load_pack(PACK).render(language, template, **{key: value for key, value in given.items() if key != name})


@pytest.mark.parametrize("pack", ["esc_eval", "esc_rank", "role_play_judge", "seeker_features", "summary"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_native_requests_on_one_dialogue_part_only_after_it(pack: str, language: Language) -> None:
    """A prefix cache then serves the rules to all dialogues and the dialogue to all dimensions."""
    rubric = load_rubric({"esc_rank": "esc_eval", "role_play_judge": "role_play"}.get(pack, pack))
    prompts = load_pack(pack)
    if pack == "role_play_judge":
        prompts = prompts.with_values(card=RoleCard(language=language, **FIELDS, **CARD))
    turns = (Turn(role="seeker", text="first words"), Turn(role="supporter", text="last words"))
    dialogue = Dialogue(id="d", language=language, source="test", turns=turns)
    keys = list(rubric.dimensions)
    requests = [judge_messages(prompts, rubric, dialogue, "joint", keys)]
    requests += [judge_messages(prompts, rubric, dialogue, "per_dimension", [key]) for key in keys]
    assert len({messages[0]["content"] for messages in requests}) == 1
    begins, ends = zip(*(messages[1]["content"].split(END) for messages in requests), strict=True)
    assert len(set(begins)) == 1 and "last words" in begins[0]
    if pack == "esc_eval":
        assert all(len(end) < 400 for end in ends), "what follows is read for every request"
    assert len({messages[1]["content"] for messages in requests}) == 1 + len(keys)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_native_judge_has_all_rules_in_order_and_a_joint_request_lists_the_dimensions_again(language: Language) -> None:
    text = render(language, "judge_system.j2")
    dimensions = load_rubric("esc_eval").dimensions.values()
    position = text.index(END)
    for dimension in dimensions:
        for part in (dimension.label[language], dimension.about[language], *dimension.levels[language].values()):
            position = text.index(part, position)
    request = render(language, "judge_joint.j2").split(END)[1]
    order = request.split("\n")[-1]
    assert re.search(r"\b7\b", request), "it says how many digits"
    places = [order.index(dimension.label[language]) for dimension in dimensions]
    assert places == sorted(places)


@pytest.mark.parametrize("language", LANGUAGES)
def test_single_dimension_prompts_ask_for_that_dimension_only_the_papers_in_the_published_order(language: Language) -> None:
    """Figures 12 to 19: rules, dialogue, then the request for the number."""
    dimensions = list(load_rubric("esc_eval").dimensions.values())
    single = render(language, "judge_dimension.j2")
    assert [d.label["en"] for d in dimensions if d.label[language] in single] == [dimensions[3].label["en"]]
    paper = render(language, "judge_paper.j2")
    assert [d.label["en"] for d in dimensions if d.about[language] in paper] == [dimensions[3].label["en"]]
    end = paper.index(TRANSCRIPT)
    assert all(level in paper[:end] for level in dimensions[3].levels[language].values())
    assert end + len(TRANSCRIPT) < len(paper.rstrip()), "the request comes last"


@pytest.mark.parametrize("language", LANGUAGES)
def test_seeker_prompt_holds_every_field_that_the_card_has(language: Language) -> None:
    full = render(language, "seeker_system.j2")
    assert CARD["problem"] in full
    for field, value in FIELDS.items():
        assert value in full
        without = render(language, "seeker_system.j2", card=RoleCard(language=language, **(FIELDS | {field: ""}), **CARD))
        kept = [line for line in full.split("\n") if value not in line]
        assert without.split("\n") == kept, "an empty field takes its line with it"
    card = RoleCard(language=language, **(CARD | {"problem": "{{ 7 * 7 }} <b>&"}))
    assert "{{ 7 * 7 }} <b>&" in render(language, "seeker_system.j2", card=card), "text, not a template"
    with pytest.raises(UserError, match=r"nothing\.j2"):
        load_pack(PACK).render(language, "nothing.j2")


# --- taxonomy -------------------------------------------------------------------------------------------------------------


def nodes(node: dict[str, Any], *above: str) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every node below one, with its path of English names."""
    for child in node.get("children", node.get("categories", [])):
        path = (*above, child["en"])
        yield path, child
        yield from nodes(child, *path)


def test_taxonomy_is_table_9() -> None:
    tree = dict(nodes(load_yaml(CONFIGS / "taxonomy.yaml", "taxonomy")))
    levels = [[path for path in tree if len(path) == depth] for depth in (1, 2, 3)]
    assert levels[0] == [("Family and Life",), ("Work and Study",), ("Social Interaction and Others",)]
    assert [len(level) for level in levels] == [3, 9, 35]
    leaves = [tree[path] for path in levels[2]]
    assert sum(leaf["middle"] for leaf in leaves) == 2146 == 2801 - 655
    printed = [leaf["high"] for leaf in leaves if leaf["high"] is not None]
    assert len(leaves) - len(printed) == 10 and sum(printed) == 374 == 655 - 281
    assert all(part[0].isupper() for path in tree for part in path)
    chinese = [node["zh"] for node in tree.values()]
    assert len(chinese) == len(set(chinese)) and not any(LATIN.search(name) for name in chinese)
