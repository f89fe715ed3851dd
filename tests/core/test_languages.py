"""Languages: codes, what is taken from whose folder, and what English stands in for."""

import ast
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from core.files import CONFIGS
from core.judge_prompts import judge_messages
from core.languages import PAPER_LANGUAGES, Language, canonical, cut, direction, in_order, lineage, name_of, words
from core.prompts import greeting, load_pack, seeker_system
from core.records import Dialogue, RoleCard, Turn
from core.rubrics import Rubric, load_rubric
from core.specs import load_spec
from data_prep.cards import bundled_cards, load_cards
from evalsuite.dialogues.hold import text_of

ROOT = Path(__file__).parents[2]
BUNDLED = ("de", "es", "hi")
TURNS = (Turn(role="seeker", text="…"), Turn(role="supporter", text="…"))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder, in which nothing has been said about any language."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("core.languages._told", set())


def card(language: str) -> RoleCard:
    return RoleCard(id="c", language=language, problem="P", source="own", card_method="written")


def asked(language: str, rubric: Rubric | None = None) -> tuple[str, str]:
    """What a judge is told and asked about a dialogue in the language."""
    dialogue = Dialogue(id="d", language=language, source="own", turns=TURNS)
    rubric = rubric or load_rubric("esc_eval")
    system, request = judge_messages(load_pack("esc_eval"), rubric, dialogue, "joint", [*rubric.dimensions])
    return system["content"], request["content"]


@pytest.mark.parametrize(
    "code", ["en", "zh", "de", "pt-BR", "zh-Hant", "zh-Hant-TW", "yue", "es-419", "sr-Latn", "de-1996", "en-x-us", "no"]
)
def test_codes_in_canonical_form_are_taken(code: str) -> None:
    assert TypeAdapter(Language).validate_python(code) == code


@pytest.mark.parametrize(
    ("code", "meant"),
    [("EN", "write en"), ("pt_br", "write pt-BR"), ("zh-hant", "write zh-Hant"), (" de", "write de"),
     ("german", "did you mean de?"), ("xx", "did you mean"), ("", "zh-Hant"), ("d", "zh-Hant"), ("en-", "not a language"),
     ("Chinese", "did you mean zh?")],
)  # fmt: skip
def test_other_codes_are_refused_with_what_to_write(code: str, meant: str) -> None:
    with pytest.raises(ValidationError, match=meant) as error:
        TypeAdapter(Language).validate_python(code)
    assert error.value.error_count() == 1


def test_a_language_is_looked_up_by_what_it_is_a_variety_of() -> None:
    assert lineage("zh-Hant-TW") == ("zh-Hant-TW", "zh-Hant", "zh")
    assert words("zh-Hant").seeker == words("zh").seeker and asked("zh-Hant")[1].startswith("下面") == asked("zh")[
        1
    ].startswith("下面")
    assert in_order(["fr", "zh", "ar", "en", "fr"]) == ["en", "zh", "ar", "fr"]
    assert (name_of("pt-BR"), name_of("ar"), name_of("xyz"), name_of("mul")) == ("Portuguese", "Arabic", "xyz", "all languages")


@pytest.mark.parametrize("code", ["ar", "he", "fa-IR", "ur", "az-Arab"])
def test_what_is_written_from_the_right(code: str) -> None:
    assert (direction(code), direction("de"), direction("zh")) == ("rtl", "ltr", "ltr")


@pytest.mark.parametrize(
    ("language", "text", "parts"),
    [("de", "Ich weiß's nicht – schön?", ["ich", "weiß", "s", "nicht", "schön"]),
     ("hi", "हिन्दी में, ठीक।", ["हिन्दी", "में", "ठीक"]),
     ("ar", "مرحبا، كيف؟", ["مرحبا", "كيف"]), ("ja", "犬がDNA", ["犬", "が", "dna"]), ("th", "หมา", ["ห", "ม", "า"])],
)  # fmt: skip
def test_texts_are_cut_into_words_or_characters(language: str, text: str, parts: list[str]) -> None:
    assert cut(text, language) == parts


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("language", BUNDLED)
def test_a_bundled_language_needs_nothing_from_english(language: str, capsys: pytest.CaptureFixture[str]) -> None:
    system, request = asked(language)
    english = asked("en")
    rubric = load_rubric("esc_eval")
    for key in rubric.dimensions:
        assert rubric.about(key, language) in " ".join(system.split()) or rubric.about(key, language) in system
        assert len(rubric.texts(key, language)) == 5 and "" not in rubric.texts(key, language).values()
        assert rubric.label(key, language) in request and rubric.texts(key, language) != rubric.texts(key, "en")
    assert not {*system.splitlines(), *request.splitlines()} & {
        line for line in "\n".join(english).splitlines() if len(line) > 20
    }
    told = [seeker_system(load_pack("esc_eval"), card(language)), greeting(load_pack("esc_eval"), language)]
    told += [text_of(spec.floor, name, language) for name in ("silent", "lecture") if (spec := load_spec(name)).floor]
    assert capsys.readouterr().err == "" and not set(told) & {seeker_system(load_pack("esc_eval"), card("en")), "Hello."}
    cards = load_cards(bundled_cards(language))
    assert len(cards) == 4 and {one.language for one in cards} == {language}
    assert words(language).reviewed == "not reviewed by a native clinician"


@pytest.mark.usefixtures("told")
def test_english_stands_in_for_a_missing_language_and_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    (french, request), (english, _) = asked("fr"), asked("en")
    assert french == english and "[1] Seeker: …" in request
    prompt = seeker_system(load_pack("esc_eval"), card("fr"))
    assert "- Write in French, and only" in prompt and "English" not in prompt
    assert "- Write in English, and only" in seeker_system(load_pack("esc_eval"), card("en"))
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "French (fr) has no texts: English stands in; `esc-data language new fr` lays them out to be translated"


@pytest.mark.usefixtures("told")
def test_ones_own_folder_comes_first_and_what_it_lacks_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "languages" / "de"
    (folder / "prompts" / "esc_eval").mkdir(parents=True)
    (folder / "prompts" / "esc_eval" / "greeting.txt").write_text("Moin.")
    (folder / "words.yaml").write_text("seeker: Mensch\n")
    assert greeting(load_pack("esc_eval"), "de") == "Moin." and "[1] Mensch: …" in asked("de")[1]
    assert "Du bewertest" in asked("de")[0], "what the folder lacks comes from the package"
    assert capsys.readouterr().err == "" and words("de-AT").seeker == "Mensch" and words("de").age == "Alter"


def test_a_rubric_in_one_language_is_asked_in_that_one(capsys: pytest.CaptureFixture[str]) -> None:
    english = load_rubric("esc_eval").model_dump() | {"name": "own", "languages": ["de"]}
    for dimension in english["dimensions"].values():
        dimension |= {name: {"de": text["en"]} for name, text in dimension.items() if isinstance(text, dict) and "en" in text}
    rubric = Rubric.model_validate(english)
    assert rubric.about("empathy", "hi") == rubric.about("empathy", "de") and not rubric.speaks("hi") and rubric.speaks("de-AT")


# Figures that the papers and their corpora have for their two languages only.
PUBLISHED_FIGURES = {
    "data_prep/cards/__init__.py: PUBLISHED",
    "data_prep/commands/check.py: TABLE6",
    "train/plan.py: RANK_DIALOGUES",
}


@pytest.mark.slow
def test_no_module_keeps_texts_by_language() -> None:
    """What is said in a language stands in its folder: a dict of both languages in the code would raise for a third."""
    found = set()
    for path in (path for room in ("core", "serve", "data_prep", "train", "evalsuite") for path in (ROOT / room).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(("data_prep/sources/", "data_prep/published/", "evalsuite/papers/ecdbench/")):  # readers of corpora
            continue
        tree = ast.parse(path.read_text())
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.Dict)):
            if {key.value for key in node.keys if isinstance(key, ast.Constant)} >= {*PAPER_LANGUAGES}:
                owner = next((one for one in tree.body if one.lineno <= node.lineno <= (one.end_lineno or 0)), None)
                target = getattr(owner, "target", None)
                found.add(f"{name}: {getattr(target, 'id', node.lineno)}")
    assert found == PUBLISHED_FIGURES


def test_every_language_folder_has_the_files_that_the_code_reads() -> None:
    files = {
        path.relative_to(folder).as_posix() for folder in (CONFIGS / "languages").iterdir() for path in folder.rglob("*.*")
    }
    known = {"words.yaml", "trades.yaml", "floors.yaml"}
    assert {name for name in files if not name.startswith(("rubrics/", "prompts/esc_eval/"))} == known
    assert {canonical(folder.name) for folder in (CONFIGS / "languages").iterdir()} == {"en", "zh", *BUNDLED}
