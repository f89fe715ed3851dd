"""The training of a supporter with TRL's own GRPOTrainer: a tiny random model, and a seeker and a judge behind HTTP."""

import inspect
import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
import pytest

from core.errors import UserError
from core.files import CONFIGS
from core.records import Dialogue, Judgement, Turn
from core.rubrics import load_rubric
from core.specs import load_spec
from evalsuite.environment import Brevity, Environment, judged
from serve.checkpoints.model_card import read_training
from tests.endpoint import Answer, Endpoint
from tests.peers import packages_with, python_with
from tests.train.grpo_toy import WANTED, behave, rewards, share, toy_cards, toy_recipe, train_toy
from tests.train.test_configs import header
from tests.train.test_training import launch
from tests.vllm_parser import server_parser
from train.recipes import parse_recipe

ROOT = Path(__file__).parents[2]
TRAIN = """
import runpy, sys

sys.path += [sys.argv[1]]  # behind our own: only what is missing here comes from there
sys.argv = ["train/esc_supporter.py", *sys.argv[2:]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
TRACKED = """
import json, trackio
from trackio.sqlite_storage import SQLiteStorage

(run,) = trackio.Api().runs("esc-supporter")
print(json.dumps([run.name, run.config, SQLiteStorage.get_logs("esc-supporter", run.name)], default=str))
"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served() -> Iterator[Endpoint]:
    with Endpoint(behave=behave, models=("seeker", "judge")) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def trained(served: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Three steps in one go, with what each batch of dialogues came to."""
    from train.rollouts import Rollouts

    folder = tmp_path_factory.mktemp("toy")
    batches: list[dict[str, Any]] = []
    made = Rollouts.__call__

    def kept(self: Any, prompts: list[str], trainer: Any) -> dict[str, Any]:
        came = made(self, prompts, trainer)
        batches.append({"prompts": prompts, "training": trainer.model.training} | came)
        return came

    with patch.object(Rollouts, "__call__", kept):
        train_toy(folder, served.url, 0, 3, save_steps=1, save_total_limit=3)
    yield folder, batches


def test_what_is_trained_is_what_was_said_and_scored(trained: tuple[Path, list[dict[str, Any]]]) -> None:
    """Token by token: the policy's replies carry the loss, the seeker's lines do not, and the reward is the judge's of them."""
    from transformers import AutoTokenizer

    folder, batches = trained
    tokenizer = AutoTokenizer.from_pretrained(folder / "base")
    (batch, *_) = [batch for batch in batches if batch["training"]]
    assert [len(set(batch["prompts"][place : place + 8])) for place in (0, 8)] == [1, 1], "a group has one card"
    assert len(batch["prompts"]) == 16 and batch["prompts"][0] != batch["prompts"][8]
    for place, ids in enumerate(batch["completion_ids"]):
        own = batch["env_mask"][place]
        text = tokenizer.decode(batch["prompt_ids"][place] + ids)
        assert text.startswith("<|im_start|>user\ni lie awake.<|im_end|>\n<|im_start|>assistant\n"), "no system message"
        replies = tokenizer.decode([token for token, mine in zip(ids, own, strict=True) if mine], skip_special_tokens=True)
        others = tokenizer.decode([token for token, mine in zip(ids, own, strict=True) if not mine])
        line = "\n<|im_start|>user\nit is the work.<|im_end|>\n<|im_start|>assistant\n"
        assert others.removeprefix("<|im_end|>") == (line if 0 in own else "")
        letters = "".join(replies.split())
        left = 0 not in own or not own[-1]  # a reply without a letter ends the dialogue
        assert batch["judged"][place] == (0 if left else round(letters.count(WANTED) / len(letters) * 28) / 28)
        assert batch["brevity"][place] == 0


def test_the_adapter_comes_with_a_card_floors_and_a_spec(trained: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = trained
    out = folder / "out-0"
    card = read_training(out / "adapter")
    assert card is not None and card.kind == "supporter" and card.metrics["steps"] == 3
    assert set(card.baselines) == {"the base", "floor silent", "floor parrot", "floor lecture"}
    assert card.baselines["floor silent"]["reward"] == 0 and 0 <= card.metrics["reward"] <= 1
    spec = load_spec(str(out / "model.yaml"))
    assert spec.roles == ("supporter",) and spec.adapter and spec.chat_template is None
    assert [data.file for data in card.data] == ["train.jsonl", "valid.jsonl"]


def test_a_training_that_was_cut_off_goes_on_as_if_it_had_not_been(
    trained: tuple[Path, list[dict[str, Any]]], served: Endpoint, tmp_path: Path
) -> None:
    from transformers import TrainerCallback

    class Killed(Exception):
        """Ends the training after its second step."""

    def stop(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2:
            raise Killed

    whole, _ = trained
    (tmp_path / "base").symlink_to(whole / "base")
    with patch.object(TrainerCallback, "on_step_begin", stop), pytest.raises(Killed):
        train_toy(tmp_path, served.url, 0, 3, save_steps=1, save_total_limit=3)
    for _ in range(2):  # the second time as if it had been killed after its last step
        train_toy(tmp_path, served.url, 0, 3, save_steps=1, save_total_limit=3)
        assert rewards(tmp_path / "out-0") == rewards(whole / "out-0") and len(rewards(tmp_path / "out-0")) == 3
        (tmp_path / "out-0" / "metrics.json").unlink()


@pytest.mark.full
def test_two_processes_hold_dialogues_of_their_own_and_learn_together(tmp_path: Path) -> None:
    """Over gloo, eight dialogues a process and step."""
    with Endpoint(behave=behave, models=("seeker", "judge")) as endpoint:
        recipe = toy_recipe(tmp_path, endpoint.url, 0, 12, per_device_train_batch_size=8, per_device_eval_batch_size=4)
        assert "2 process(es)" in launch("supporter", recipe, 2)
    curve = rewards(tmp_path / "out-0")
    assert len(curve) == 12 and sum(curve[-3:]) / 3 > curve[0] + 0.3, curve
    card = read_training(tmp_path / "out-0" / "adapter")
    assert card is not None and card.hardware.startswith("2 process(es)")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"judge": ""}, "seeker, judge: name the served models"),
        ({"length_cost": -1}, "length_cost, free_characters: not below 0"),
        ({"num_generations": 7}, "divisible"),
        ({"use_peft": False}, "use_peft: set it to true"),
        ({"seeker": "embedded"}, "model embedded: no server is started for training"),
        ({"valid_file": "train.jsonl"}, "train.jsonl: train-0; validate on other examples"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    from train import esc_supporter

    if "valid_file" in changes:
        changes = {"valid_file": str(tmp_path / "train.jsonl")}
    recipe = toy_recipe(tmp_path, "http://127.0.0.1:1/v1", 0, 1, **changes)
    with pytest.raises(UserError, match=message):
        esc_supporter.main(parse_recipe("supporter", ["--config", str(recipe)]))


def test_a_judge_that_is_gone_ends_the_training(tmp_path: Path) -> None:
    def mute(body: dict[str, Any], count: int) -> Answer:
        return Answer("no idea") if body["model"] == "judge" else behave(body, count)

    with (
        Endpoint(behave=mute, models=("seeker", "judge")) as endpoint,
        pytest.raises(UserError, match="no dialogue of this step has a reward: no verdict of the judge could be read"),
    ):
        train_toy(tmp_path, endpoint.url, 0, 1)


def test_a_policys_server_that_is_not_there_is_said_in_one_line(served: Endpoint, tmp_path: Path) -> None:
    gone = "http://127.0.0.1:9"
    settings = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": gone, "vllm_server_timeout": 0}
    with pytest.raises(UserError, match=rf"^vllm_server_base_url: The vLLM server can't be reached at {gone} .*[^\n]$"):
        train_toy(tmp_path, served.url, 0, 1, **settings)


@pytest.mark.full
def test_trackio_keeps_the_figures_on_this_machine(served: Endpoint, tmp_path: Path) -> None:
    """trackio itself, without a network, in the process of a training and read back in another: before, in and after the steps;
    the same command goes on in the same run."""
    packages = packages_with("trackio")  # it wants an older pillow than vLLM does
    nowhere = "http://127.0.0.1:9"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRACKIO_"))}
    environment |= {"TRACKIO_DIR": str(tmp_path / "store"), "HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": str(ROOT)}
    environment |= {"HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere, "NO_PROXY": "127.0.0.1", "OMP_NUM_THREADS": "1"}

    def output_of(*command: str | Path) -> str:
        done = subprocess.run(
            [*map(str, command)], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False
        )
        assert not done.returncode, done.stdout + done.stderr[-3000:]
        return done.stdout

    out = tmp_path / "out-0"
    recipe = toy_recipe(tmp_path, served.url, 0, 2, report_to="trackio", run_name="toy")
    for _ in range(2):
        output_of(sys.executable, "-c", TRAIN, packages, "--config", recipe)
        (out / "metrics.json").rename(out / "kept.json")  # as if it had been killed before its end
    name, config, logs = orjson.loads(output_of(python_with("trackio"), "-c", TRACKED).splitlines()[-1])
    assert name.startswith("toy-") and config["num_generations"] == 8
    assert [log["train/reward"] for log in logs if "train/reward" in log] == rewards(out)
    card = read_training(out / "adapter")
    assert card is not None
    evaluated = [log["eval/reward"] for log in logs if "eval/reward" in log]
    # Before the first training, after it, and after the second, whose adapter the card is of.
    assert [evaluated[0], evaluated[-1]] == [card.baselines["the base"]["reward"], card.metrics["reward"]]
    assert len(evaluated) == 3


# --- the reward ------------------------------------------------------------------------------------------------------------


def made(*turns: str, termination: Any = "max_turns") -> Dialogue:
    roles: tuple[Any, Any] = ("supporter", "seeker")
    said = tuple(Turn(role=roles[place % 2], text=text) for place, text in enumerate(turns))
    return Dialogue(id="d", language="en", source="s", turns=said, termination=termination)


def verdicts(*values: int | None, expected: float | None = None) -> list[Judgement]:
    names = list(load_rubric("esc_eval").dimensions)
    common: dict[str, Any] = {"dialogue_id": "d", "language": "en", "judge": "j", "rubric": "esc_eval", "expected": expected}
    return [Judgement(dimension=name, value=value, **common) for name, value in zip(names, values, strict=True)]


def test_the_reward_is_the_mean_of_the_scores_and_none_where_one_is_missing() -> None:
    rubric, whole = load_rubric("esc_eval"), made("Hello.", "I am sad.", "Oh.")
    assert judged(whole, verdicts(4, 3, 2, 1, 0, 4, 4), rubric) == pytest.approx(18 / 28)
    assert judged(whole, verdicts(*[4] * 7, expected=3.0), rubric) == 0.75
    assert judged(whole, verdicts(4, 4, 4, None, 4, 4, 4), rubric) is None
    assert judged(made("Hello.", "Sad.", termination="empty_reply"), verdicts(*[4] * 7), rubric) == 0, "the supporter left"
    assert judged(made("Hello.", "Sad.", "Oh.", termination="empty_reply"), verdicts(*[4] * 7), rubric) == 1, "the seeker left"
    assert judged(made("Hello.", termination="infrastructure"), verdicts(*[4] * 7), rubric) is None


def test_length_costs_from_where_it_is_not_free() -> None:
    long = made("Hello, and this greeting is no reply.", "Sad.", "x" * 100, "Yes.", "x" * 200)
    assert Brevity(free=150, cost=0.1).of(long) == 0
    assert Brevity(free=100, cost=0.1).of(long) == pytest.approx(-0.05)
    assert Brevity(free=10, cost=0).of(long) == 0


async def test_a_group_begins_with_one_line_of_the_seekers(tmp_path: Path) -> None:
    """Also where the seeker draws its lines; later ones are each dialogue's own."""
    asked: list[int] = []

    def drawn(body: dict[str, Any], count: int) -> Answer:
        asked.append(count)
        return Answer(f"line {len(asked)}")

    files = toy_cards(tmp_path)
    with Endpoint(behave=drawn, models=("seeker", "judge")) as endpoint:
        settings = {"seeker": f"seeker@{endpoint.url}", "judge": f"judge@{endpoint.url}", "cards": [files["train_file"]]}
        environment = Environment(settings | {"languages": ["en"], "exchanges": 2}, tmp_path / "calls.sqlite")
        async with environment.open() as client:
            group = environment.group(client, "train-0", [0, 1, 2])
            first = [await episode.prompt() for episode in group]
            for episode in group:
                episode.reply("Tell me more.")
            second = [await episode.prompt() for episode in group]
            for episode in group:
                episode.abandon()
    assert {shown[-1]["content"] for shown in first if shown} == {"line 1"}
    assert len({shown[-1]["content"] for shown in second if shown}) == 3


def test_the_toys_judge_counts_by_hand() -> None:
    said = f"[1] Supporter: {WANTED}!\n[2] Seeker: {WANTED}\n[3] Supporter: {WANTED}a b\n    {WANTED}\n[5] Supporter: abcd"
    assert share(said) == 0.25
    message = {"role": "user", "content": f"[1] Supporter: Hi.\n[3] Supporter: {WANTED}a"}
    assert behave({"model": "judge", "messages": [message]}, 0).text == "4442000"


RECIPE = CONFIGS / "train" / "esc_supporter.yaml"


def test_the_server_has_every_route_that_trls_client_calls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Started with the line in the recipe's head. TRL's module loads with all that it takes from vLLM."""
    caplog.set_level(logging.root.level)  # restored at the end: a package of vLLM 0.33's API server raises it to ERROR
    from trl.generation import vllm_client
    from vllm.entrypoints.launchers.app import build_app

    (line,) = [line for line in header(RECIPE) if "vllm serve" in line]
    words = shlex.split(line)
    monkeypatch.setenv(*words[words.index("VLLM_SERVER_DEV_MODE=1")].split("="))
    args = server_parser().parse_args(["--model", *words[words.index("serve") + 1 :]])
    there = {getattr(route, "path", "") for route in build_app(args, ("generate",)).routes}
    called = set(re.findall(r"\{self\.base_url\}(/\w[\w/]*)\"", inspect.getsource(vllm_client)))
    assert len(called) >= 10 and called <= there, sorted(called - there)


def test_weights_are_announced_and_sent_in_vllms_form() -> None:
    from trl.generation import vllm_client
    from vllm.distributed.weight_transfer import nccl_engine

    source = inspect.getsource(vllm_client.VLLMClient)
    init = {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 2, "packed": True}
    update = {"names": ["x"], "dtype_names": ["bfloat16"], "shapes": [[1]]}
    assert all(f'"{field}"' in source for field in init | update)
    nccl_engine.NCCLWeightTransferInitInfo(**init)
    nccl_engine.NCCLWeightTransferUpdateInfo(**update)
    inspect.signature(vllm_client.open_trainer_endpoint).bind(init)
    words = re.search(r"packed_nccl_broadcast_producer\((.*?)\n", source, re.DOTALL)
    assert words
    sent: dict[str, object] = {"iterator": iter([]), "group": None, "src": 0, "post_iter_func": None}
    assert all(f"{name}=" in source for name in sent)
    inspect.signature(vllm_client.packed_nccl_broadcast_producer).bind(**sent)


def test_what_trl_sets_on_import_does_not_reach_a_training_or_its_servers() -> None:
    """A warning to be ignored hides the others, and at log level ERROR a server does not say what its cache holds."""
    program = "import os, train.esc_supporter, trl; trl.GRPOTrainer; print(os.environ['VLLM_LOGGING_LEVEL'])"
    silent = {name: value for name, value in os.environ.items() if name != "VLLM_LOGGING_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=silent, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0 and "TRL currently supports" not in done.stderr, done.stderr
    assert done.stdout.split()[-1] == "INFO"


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_reward_rises_over_thirty_steps(served: Endpoint, tmp_path: Path, seed: int) -> None:
    curve = train_toy(tmp_path, served.url, seed, 30)
    assert len(curve) == 30 and curve[0] < 0.15 and sum(curve[-5:]) / 5 > 0.9, curve
