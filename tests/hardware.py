"""The tables of docs/serve-and-scale.md that say what runs on which GPUs, how long it takes and what it costs, by the planner.

`python -m tests.hardware` writes them there. Runs are those of the configs and recipes that the scripts of configs/launch name.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

from core.errors import UserError
from core.files import CONFIGS
from core.machine import CARDS, CardName, Machine
from core.specs import ModelSpec
from evalsuite.commands.options import resolve
from evalsuite.runner.forecast import forecast, stand_ins, workloads
from evalsuite.runner.pipeline import planned
from evalsuite.runs.dialogue_framework import DialogueFramework
from serve.command import ServerPlan
from serve.placement import Pace, PhaseModels
from serve.plan import plan_servers
from serve.units import Needs

DOCUMENT = Path(__file__).parent.parent / "docs" / "serve-and-scale.md"
BEGIN, END = "<!-- {} by python -m tests.hardware -->\n", "<!-- end -->"
MACHINES = ("rtx4090", "l40s", "h100", "2xh100", "4xh100", "8xh100", "8xh200")
CARD_FILES = ("card_high_en.json", "card_high_zh.json")  # the paper's 655, for which bundled ones stand in
EIGHT_BITS = ("weights", "cache")
DOLLARS = 2.5  # an H100 hour: assumed
LOADING = 0.1  # hours to load a base and to evaluate, of each training: assumed
RANKERS = "esc_rank_internlm2_7b_paper.yaml"
ROLE = "esc_role_qwen1.5_14b.yaml"


@dataclass(frozen=True)
class Run:
    """What is asked of a machine."""

    resolved: DialogueFramework
    needs: Needs
    specs: Sequence[ModelSpec]

    @classmethod
    @cache
    def of(cls, config: str, *supporters: str, shard: str | None = None) -> Self:
        """A run config with the paper's cards."""
        more: dict[str, Any] = {"supporters": [*supporters] or None, "shard": shard, "out": "runs/planned"}
        resolved = resolve(CONFIGS / "eval" / config, [f"cards=[{', '.join(CARD_FILES)}]"], **more)
        stand_ins(resolved, [*resolved.models.seekers, resolved.models.judge])
        jobs, specs = planned(resolved, None, True)
        return cls(resolved, workloads(resolved, jobs, True), [*{spec.name: spec for spec in specs}.values()])

    def models(self, eight: bool) -> list[ModelSpec]:
        """The models that need a server of ours; in 8 bits, if that is wanted."""
        served = [
            spec for spec in self.specs if spec.checkpoint and spec.endpoint.base_url is None and not spec.serve.unservable
        ]
        return [
            spec.model_copy(update={"serve": spec.serve.model_copy(update={"fp8": EIGHT_BITS})}) if eight else spec
            for spec in served
        ]


@dataclass(frozen=True)
class Answer:
    """The planner's answer for a machine: the phases with their servers, or why there are none."""

    machine: Machine
    phases: Sequence[Sequence[ServerPlan]] = ()
    eight: bool = False
    refusal: str = ""

    @property
    def paces(self) -> list[Pace]:
        return [plans[0].pace for plans in self.phases]

    @property
    def hours(self) -> float:
        return sum(found.hours for found in self.paces)

    def cells(self) -> list[str]:
        """What runs where, at which precision, hours, GPU hours, and what takes most of them."""
        if self.refusal:
            best = self.refusal.split("Next best: ")[1].split("; or ")[0]
            return [f"does not fit; {best}", "–", "–", "–", "–"]
        longest = max(self.paces, key=lambda found: found.hours)
        every = [" + ".join(_servers(plans)) for plans in self.phases]
        how = "at once: " if len(every) == 1 else f"in {len(every)} phases: "
        where = how + "; ".join(f"{n} times {text}" if n > 1 else text for text, n in Counter(every).items())
        hours = self.hours
        precision = "fp8 (weights, cache)" if self.eight else "bf16"
        role = _role(longest.bottleneck)
        return [where, precision, f"{hours:.2f}", f"{hours * len(self.machine.gpus):.1f}", f"{role}: {longest.why}"]


def _role(name: str) -> str:
    return {"esc-role": "seeker", "esc-rank": "ranker"}.get(name, "supporter")


def _servers(plans: Sequence[ServerPlan]) -> Iterator[str]:
    copies: dict[str, list[ServerPlan]] = {}
    for plan in plans:
        if not plan.workers:
            copies.setdefault(plan.specs[0].name, []).append(plan)
    supporters = [name for name in copies if _role(name) == "supporter"]
    for name, equal in copies.items():
        place, role = equal[0].place, _role(name)
        assert place is not None
        if role == "supporter" and len(supporters) > 1:
            if name == supporters[0]:
                yield f"{len(supporters)} supporters on {sum(len(copies[one]) for one in supporters)} servers"
            continue
        split = f" over {place.split} GPUs" if place.split > 1 else ""
        yield f"{role}{f' × {len(equal)}' if len(equal) > 1 else ''}{split}"


def answer(run: Run, text: str) -> Answer:
    """The plan of a run on a machine: in 8 bits where it does not fit otherwise."""
    machine, refusal = Machine.parse(text), ""
    for eight in (False, True):
        try:
            parts = run.resolved.models.phases(run.models(eight), run.needs, machine)
            return Answer(machine, [_plans(part, machine) for part in parts], eight)
        except UserError as error:
            refusal = refusal or str(error)
    return Answer(machine, refusal=refusal)


def _plans(part: PhaseModels, machine: Machine) -> list[ServerPlan]:
    return plan_servers(part.specs, Path("logs"), resolve=False, machine=machine, needs=part.needs)


@cache
def training(recipe: str, gpu: CardName, gpus: int, *more: str) -> Mapping[str, Any]:
    """`python -m train plan`."""
    from train.plan import make_plan
    from train.recipes import read_recipe

    return make_plan(read_recipe(CONFIGS / "train" / recipe, [*more, "--use_cpu", "true"]), gpu, gpus)


def rankers(text: str) -> list[str]:
    """Fourteen trainings, one a GPU and as many at a time as there are GPUs."""
    machine = Machine.parse(text)
    name: CardName = next(key for key, card in CARDS.items() if card == machine.gpus[0].card)
    more: tuple[str, ...] = ()
    each = {language: training(RANKERS, name, 1, "--language", language) for language in ("en", "zh")}
    if not each["en"]["fits"]["ddp"]:
        more = ("--gradient_checkpointing", "true")
        each = {language: training(RANKERS, name, 1, "--language", language, *more) for language in ("en", "zh")}
    if not each["en"]["fits"]["ddp"]:
        return ["does not fit", "–", "–", "–", "–"]
    loads = [0.0] * len(machine.gpus)
    for one in (each["en"], each["zh"]):
        for _ in range(7):
            loads[loads.index(min(loads))] += one["hours"] + LOADING
    where = f"{min(len(loads), 14)} at a time{', with gradient checkpointing' if more else ''}"
    return [where, "bf16", f"{max(loads):.1f}", f"{sum(loads):.1f}", "computing"]


RUNS = {"655 cards": ("esc_eval.yaml", "qwen1.5-7b-chat"), "8,522 dialogues": ("esc_eval_full.yaml",)}


def table(named: Sequence[str] = tuple(RUNS)) -> str:
    """What each machine does with each run, or with some of them, in Markdown."""
    lines = ["| GPUs | run | what runs where | precision | hours | GPU hours | bottleneck |", "|---|---|---|---|---|---|---|"]
    runs = {title: Run.of(*RUNS[title]) for title in named}
    for text in MACHINES:
        machine = Machine.parse(text)
        name = f"{len(machine.gpus)} × {machine.gpus[0].card.label} {machine.gpus[0].card.gigabytes} GB"
        rows = {title: answer(run, text).cells() for title, run in runs.items()} | {"14 rankers": rankers(text)}
        lines += [f"| {name} | {title} | {' | '.join(cells)} |" for title, cells in rows.items()]
    return "\n".join(lines) + "\n"


def shards() -> list[Answer]:
    """The seven jobs of configs/launch/slurm_run.sh."""
    return [answer(Run.of("esc_eval_full.yaml", shard=f"{number}/7"), "4xh100") for number in range(1, 8)]


def costs() -> str:
    """What the jobs of configs/launch take, in Markdown."""
    jobs, total = shards(), forecast(planned(Run.of("esc_eval_full.yaml").resolved, None, True)[0], []).total
    closed = [usage for (_, name), usage in total.usage.items() if not total.specs[name].checkpoint]
    read, written = (sum(getattr(usage, name) for usage in closed) / 1e6 for name in ("prompt_tokens", "completion_tokens"))
    role = training(ROLE, "h100", 8)["hours"] + LOADING
    of_rankers = [training(RANKERS, "h100", 1, "--language", language)["hours"] + LOADING for language in ("en", "zh")]
    rows = [
        (
            "8,522 dialogues in 7 shards (`slurm_run.sh`)",
            "7 × 4",
            max(job.hours for job in jobs),
            sum(4 * job.hours for job in jobs),
        ),
        ("ESC-Role (`sky_train_role.yaml`)", "8", role, 8 * role),
        ("the paper's 14 rankers (`slurm_train_rank_paper.sh`)", "14 × 1", max(of_rankers), 7 * sum(of_rankers)),
    ]
    lines = ["| job | GPUs (H100) | hours | GPU hours | at 2.50 $ per hour |", "|---|---|---|---|---|"]
    lines += [f"| {job} | {gpus} | {hours:.2f} | {sum_:.1f} | {sum_ * DOLLARS:.0f} $ |" for job, gpus, hours, sum_ in rows]
    ends = f", and {read:.1f} million tokens in, {written:.1f} million out for the two closed supporters |"
    lines[2] = lines[2].removesuffix(" |") + ends
    return "\n".join(lines) + "\n"


TABLES = {"plans": table, "costs": costs}

if __name__ == "__main__":
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, made in TABLES.items():
        before, rest = text.split(BEGIN.format(name))
        text = f"{before}{BEGIN.format(name)}\n{made()}\n{END}{rest.split(END, 1)[1]}"
    DOCUMENT.write_text(text, encoding="utf-8")
