"""A study under load: how long raters wait for a click to be saved, on SQLite, server and raters on one machine."""

import asyncio
import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import aiohttp
import numpy as np
import psutil
import typer

from core.rubrics import load_rubric
from evalsuite.people.server import create_app
from evalsuite.people.store import StudyStore
from evalsuite.people.study import Person, Study, assign, rated_items
from tests.bench.figures import OUT, Bench, OutOption
from tests.people_study import Client, dialogue, free_port, process, url_of

RUBRIC = load_rubric("esc_eval_human")
KEYS = list(RUBRIC.dimensions)
PAUSE = 2.0  # seconds between two clicks of a rater, on average


def main(
    raters: Annotated[int, typer.Option(min=1, help="How many click.")] = 200,
    seconds: Annotated[float, typer.Option(help="How long they do.")] = 30.0,
    out: OutOption = OUT,
) -> None:
    """Raters who click all at once, and then each in their own time; every acknowledged click has to be there afterwards."""
    bench = Bench("people", "A study's server under clicks", raters=raters, seconds=seconds, pause=PAUSE)
    with TemporaryDirectory() as place:
        folder = Path(place) / "study"
        folder.mkdir()
        tokens, store = _study(folder, raters)
        port = free_port()
        with process(folder, port) as server:
            address = f"127.0.0.1:{port}"
            bench.say(f"{raters} raters sign in")
            clients = [_signed_in(store, address, code, token) for code, token in tokens.items()]
            before = sum(psutil.Process(server.pid).cpu_times()[:2])
            at_once, in_turn, acknowledged = asyncio.run(_load(address, clients, seconds))
            spent = sum(psutil.Process(server.pid).cpu_times()[:2]) - before
        kept = {(t, name): answer.value for t, found in store.answers().items() for (name, _), (answer, _) in found.items()}
        store.close()
    lost = sum(kept.get(key) != value for key, value in acknowledged.items())
    bench.add("ms to save a click, all at once, 95th percentile", float(np.percentile(at_once, 95)))
    bench.add("ms to save a click, 95th percentile", float(np.percentile(in_turn, 95)), at_most=200)
    bench.add("ms to save a click, median", float(np.median(in_turn)))
    bench.add("ms of the server's CPU a click", 1000 * spent / (len(in_turn) + len(at_once)))
    bench.add("clicks saved a second", len(in_turn) / seconds)
    bench.add("acknowledged answers that are not there", lost, at_most=0)
    bench.notes.append("Clients and server share the cores. Every commit is on the disk before it is acknowledged.")
    bench.deliver(out)


def _study(folder: Path, raters: int) -> tuple[dict[str, str], StudyStore]:
    """Every rater's token, and the store."""
    dialogues = [dialogue(f"s{number % 4}", number) for number in range(raters)]
    items, expected = rated_items(dialogues, RUBRIC, {})
    people = [Person(f"r{number:03d}", ("en",)) for number in range(raters)]
    study = Study(name="study", kind="rate", rubric=RUBRIC, expected=expected, overlap=2)
    store = StudyStore(url_of(folder), "study")
    _, tokens = store.create(study, items, people, assign([item for item, _ in items], people, 2, 0, seed=0))
    return tokens, store


def _signed_in(store: StudyStore, address: str, code: str, token: str) -> tuple[Client, int]:
    """A rater's cookie without the page of links, whose rate holds back guesses from one address; and the first task."""
    session = store.enter(token) or ""
    row = store.session(session)
    assert row is not None
    return Client(address, f"{create_app(store).state.cookie}={session}", row[0].csrf), store.tasks(code)[0].id


async def _load(
    address: str, clients: list[tuple[Client, int]], seconds: float
) -> tuple[list[float], list[float], dict[tuple[int, str], int]]:
    acknowledged: dict[tuple[int, str], int] = {}

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def click(client: Client, task: int, key: str, value: int) -> float:
            versions = client.versions
            body = {"question": key, "value": value, "version": versions.get((task, key, None), 0)}
            headers = {"Cookie": client.cookie, "X-CSRF": client.csrf}
            begun = time.perf_counter()
            async with session.put(f"http://{address}/api/task/{task}/answer", json=body, headers=headers) as response:
                said = await response.json()
            took = 1000 * (time.perf_counter() - begun)
            assert response.status == 200, said
            versions[task, key, None], acknowledged[task, key] = said["version"], value
            return took

        at_once: list[float] = []
        for key in KEYS:
            at_once += await asyncio.gather(*(click(client, task, key, 1) for client, task in clients))
        in_turn: list[float] = []
        ends = time.perf_counter() + seconds

        async def rater(number: int, client: Client, task: int) -> None:
            rng = random.Random(number)
            await asyncio.sleep(rng.uniform(0, PAUSE))
            while time.perf_counter() < ends:
                in_turn.append(await click(client, task, rng.choice(KEYS), rng.randrange(5)))
                await asyncio.sleep(rng.uniform(0, 2 * PAUSE))

        await asyncio.gather(*(rater(number, client, task) for number, (client, task) in enumerate(clients)))
    return at_once, in_turn, acknowledged
