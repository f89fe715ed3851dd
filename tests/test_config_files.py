"""Every file of configs/ goes through the code that uses it."""

import fnmatch
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import jinja2
import pytest
from packaging.requirements import Requirement

from core.files import CONFIGS
from core.languages import words
from core.prompts import PromptPack, load_pack
from core.rubrics import load_rubric
from core.settings import load_yaml, read_yaml
from core.specs import load_spec
from data_prep.cards import Taxonomy
from data_prep.profiles.record import Vocabulary
from data_prep.role_play.mix import RoleSftConfig
from data_prep.sources import CorpusList, Quotas
from evalsuite.checks.risk import load_lexicon
from evalsuite.checks.shared_bases import Families
from evalsuite.papers.ecdbench.plan import layout_of
from evalsuite.papers.ecdbench.registry import load_benchmark, load_models
from evalsuite.papers.feel import load_feel_config
from evalsuite.papers.reported import load_reported
from evalsuite.people.commands.people_create import StudyConfig
from evalsuite.runs.config import load_config
from evalsuite.trust.commands.judge_card import load_injections
from tests.train.test_strategies import launch

CPU = ("--use_cpu", "true")  # without a GPU the trainer's settings refuse bf16 unless they hear of a CPU


def compile_template(path: Path) -> None:
    pack = PromptPack(str(path.parents[1]))
    pack._environment(path.parent.name).get_template(path.name)


def compile_translation(path: Path) -> None:
    load_pack(path.parent.name)._environment(path.parents[2].name).get_template(path.name)


def parse_constraints(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            Requirement(line)


def build_architectures(path: Path) -> None:
    from serve.sizes import config_size

    assert all(config_size(fields) for fields in load_yaml(path, "architectures").values())


def parse_recipe_file(path: Path) -> None:
    from train.recipes import read_recipe

    read_recipe(path, CPU)


def parse_marked(path: Path) -> None:
    from transformers.utils.chat_template_utils import _compile_jinja_template

    _compile_jinja_template(path.read_text(encoding="utf-8"))


PARSERS: dict[str, Callable[[Path], object]] = {
    "accelerate/*.yaml": launch,
    "chat_templates/*.jinja": lambda path: jinja2.Environment().parse(path.read_text(encoding="utf-8")),
    "chat_templates/training/*.jinja": lambda path: parse_marked(path),
    "score_sheets.yaml": lambda path: load_yaml(path, "wording of score sheets"),
    "card_*.yaml": lambda path: load_yaml(path, "words of role cards"),
    "constraints-*.txt": parse_constraints,
    "containers/*.Containerfile": lambda path: path.read_text(encoding="utf-8"),  # by hadolint in tests/test_habits.py
    "data/corpora.yaml": lambda path: read_yaml(path, CorpusList, "list of corpora"),
    "data/role_*.yaml": lambda path: read_yaml(path, RoleSftConfig, "role-play mix"),
    "data/table5.yaml": lambda path: read_yaml(path, Quotas, "quotas"),
    "ecdbench/local.yaml": lambda path: layout_of(None),
    "ecdbench/models.yaml": lambda path: load_models(path.stem),
    "ecdbench/registry.yaml": lambda path: load_benchmark(path.parent.name),
    "ecdbench/tasks/*.yaml": lambda path: load_yaml(path, "task"),  # more in tests/evalsuite/test_ecdbench_files.py
    "eval/*.yaml": lambda path: (load_feel_config if path.stem in ("feel", "feel_panel") else load_config)(path, {}),
    "init/*": lambda path: path.read_text(encoding="utf-8"),  # run by tests/evalsuite/test_cli.py
    "launch/*.sh": lambda path: subprocess.run(["bash", "-n", str(path)], check=True),  # more in tests/test_launch_files.py
    "launch/*.yaml": lambda path: load_yaml(path, "launch file"),  # more in tests/launch
    "models/*.yaml": lambda path: load_spec(str(path)),
    "line_checks.yaml": lambda path: [re.compile(phrase) for part in load_yaml(path, "phrases").values() for phrase in part],
    "hashes-*.txt": lambda path: path.read_text(encoding="utf-8"),  # more in tests/test_house.py
    "people/*.yaml": lambda path: read_yaml(path, StudyConfig, "study"),
    "people/*.txt": lambda path: path.read_text(encoding="utf-8"),
    "profiles/labels.yaml": lambda path: load_yaml(path, "labels of profiles"),
    "profiles/sage.yaml": lambda path: load_yaml(path, "words of SAGE's profiles"),
    "profiles/scenarios.yaml": lambda path: read_yaml(path, Vocabulary, "scenarios"),
    "language_names.yaml": lambda path: load_yaml(path, "names of languages"),
    "languages/*/words.yaml": lambda path: words(path.parent.name),
    "languages/*/trades.yaml": lambda path: load_yaml(path, "trades"),
    "languages/*/floors.yaml": lambda path: load_yaml(path, "floors"),
    "languages/*/rubrics/*.yaml": lambda path: load_yaml(path, "texts of a rubric"),  # more in tests/core/test_languages.py
    "languages/*/prompts/*/*": compile_translation,
    "prompts/*/*/*": compile_template,
    "rubrics/*.yaml": lambda path: load_rubric(str(path)),
    "serve/[!a]*.yaml": lambda path: load_yaml(path, "words of servers"),
    "serve/answers.yaml": lambda path: load_yaml(path, "words of servers"),
    "taxonomy.yaml": lambda path: read_yaml(path, Taxonomy, "taxonomy"),
    "health/families.yaml": lambda path: read_yaml(path, Families, "model families"),
    "health/injections.yaml": load_injections,
    "reported/*/*.yaml": lambda path: load_reported(path.parent.name).table(path.stem.removeprefix("table_")),
    "risk/*.yaml": lambda path: load_lexicon(path.stem),
    "serve/architectures.yaml": build_architectures,
    "train/esc_*.yaml": parse_recipe_file,
}
FILES = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*") if path.is_file() and path.suffix != ".pyc")
SLOW = ("accelerate/", "train/")  # these load torch


def marks(name: str) -> Iterator[pytest.MarkDecorator]:
    if name.startswith(SLOW):
        yield pytest.mark.slow
    if name.startswith("chat_templates/training/"):  # transformers compiles them
        yield pytest.mark.engine


@pytest.mark.parametrize("name", [pytest.param(name, marks=[*marks(name)]) for name in FILES])
def test_every_file_is_parsed_by_the_code_that_uses_it(name: str) -> None:
    found = [pattern for pattern in PARSERS if fnmatch.fnmatch(name, pattern) and pattern.count("/") == name.count("/")]
    assert len(found) == 1, f"configs/{name}: name its parser in PARSERS"
    PARSERS[found[0]](CONFIGS / name)


def test_every_parser_has_a_file() -> None:
    assert [pattern for pattern in PARSERS if not fnmatch.filter(FILES, pattern)] == []
