"""Who may do what on a study's server: links, sessions, forms, headers, sizes, rates, and requests from afar."""

import http.client
import json
import socket
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from evalsuite.people import guard
from evalsuite.people.guard import HEADERS, LONGEST, RequestRate
from tests.conftest import EscEval
from tests.evalsuite.test_people_server import KEYS
from tests.people_study import SCRIPT, Client, links, listening, make_study, rating, served

pytestmark = pytest.mark.slow
USUAL = {name.lower(): value for name, value in HEADERS.items()}.items()


def test_a_link_of_another_study_a_guess_and_a_revoked_link_open_nothing(study: Path, esc_eval: EscEval) -> None:
    make_study(esc_eval, name="t")
    with served(study) as (address, store):
        stranger = Client(address)
        stolen = links(study.parent / "t")
        for link in (stolen["r01"], stolen["organiser"], "/r/guess", "/o/" + links(study)["r01"].removeprefix("/r/") + "x"):
            status, page, _ = stranger.request("GET", link)
            assert status == 404 and "opens nothing" in page
        with served(study.parent / "t") as (other, _):
            elsewhere = Client(other).enter(stolen["r01"])
            # A browser gives one host's cookies to all its ports: nobody is signed out.
            both = f"{Client(address).enter(links(study)['r02']).cookie}; {elsewhere.cookie}"
            assert [Client(place, both).request("GET", "/")[0] for place in (address, other)] == [200, 200]
        thief = Client(address, elsewhere.cookie, elsewhere.csrf)
        assert thief.request("GET", "/")[0] == 401, "a cookie of another study is none here"
        rater, organiser = Client(address).enter(links(study)["r01"]), Client(address).enter(links(study)["organiser"])
        assert rater.request("POST", "/api/organiser/revoke", {"code": "r02"})[0] == 403
        assert organiser.request("POST", "/api/organiser/revoke", {"code": "r01"})[0] == 200
        assert rater.request("GET", "/")[0] == 401 and stranger.request("GET", links(study)["r01"])[0] == 404
        new = json.loads(organiser.request("POST", "/api/organiser/link", {"code": "r01"})[1])["link"]
        again = Client(address).enter("/r/" + new.rpartition("/")[2])
        assert again.tasks() == [task.id for task in store.tasks("r01")] and rater.request("GET", "/")[0] == 401
        assert organiser.request("POST", "/api/organiser/link", {"code": "nobody"})[0] == 404


def test_nothing_a_rater_sends_changes_anothers_work(study: Path) -> None:
    with served(study) as (address, store):
        one, two = (Client(address).enter(links(study)[code]) for code in ("r01", "r02"))
        theirs = two.tasks()[0]
        assert one.put(theirs, "empathy", value=0)[0] == 404 and one.submit(theirs)[0] == 404
        assert one.request("GET", f"/task/{theirs}")[0] == 404
        assert theirs not in store.answers()


def test_a_forged_form_is_refused(study: Path) -> None:
    with rating(study) as (rater, task, store):
        body = {"question": "empathy", "value": 0}
        forged = Client(rater.address, rater.cookie)  # the browser sends the cookie; the other site does not know the token
        assert forged.request("PUT", f"/api/task/{task}/answer", body)[0] == 403
        forged.csrf = Client(rater.address).enter(links(study)["r02"]).csrf
        assert forged.request("PUT", f"/api/task/{task}/answer", body)[0] == 403
        for header in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert rater.request("PUT", f"/api/task/{task}/answer", body, header)[0] == 403
        assert rater.request("GET", "/", headers={"Host": "evil.example"})[0] == 421
        assert rater.request("PUT", f"/api/task/{task}/answer", body, {"X-CSRF": "é"})[0] == 403
        assert not store.answers()
        assert rater.request("PUT", f"/api/task/{task}/answer", body, {"Origin": f"http://{rater.address}"})[0] == 200


def test_headers_and_cookie_hold_the_page_to_itself(study: Path) -> None:
    with served(study) as (address, _):
        _, _, headers = Client(address).request("GET", links(study)["r01"])
        assert {"httponly", "samesite=lax"} <= set(headers["set-cookie"].lower().split("; "))
        for path in ("/", "/static/people.js", "/static/people.css", "/nowhere"):
            status, _, headers = Client(address).request("GET", path)
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'") and "unsafe" not in policy, (path, status)
            assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        for path in ("/static/words.yaml", "/static/base.html", "/static/../store.py", "/docs", "/openapi.json"):
            assert Client(address).request("GET", path)[0] in (404, 405), path


def test_what_is_too_large_or_no_answer_is_refused_and_nothing_is_written(study: Path) -> None:
    with rating(study) as (rater, task, store):
        status, said, _ = rater.request("PUT", f"/api/task/{task}/answer", {"question": "comment", "text": "x" * 5_000_000})
        assert status == 413 and "too long" in said
        assert rater.put(task, "comment", text="x" * 4001)[1]["word"] == "too_large"
        assert len(json.dumps({"text": "字" * 4000}).encode()) < LONGEST
        assert rater.put(task, "comment", text="字" * 4000)[0] == 200
        wrong: list[tuple[str, dict[str, Any]]] = [
            ("empathy", {"value": 5}),
            ("empathy", {"value": 1.5}),
            ("empathy", {"value": 1, "cannot": True}),
            ("empathy", {"choice": "a"}),
            ("empathy", {"text": "x"}),
            ("empathy", {}),
            ("nothing", {"value": 1}),
            ("empathy", {"value": 1, "more": 2}),
        ]
        for question, answer in wrong:
            assert rater.put(task, question, **answer)[0] == 422, (question, answer)
        assert rater.put(task, "empathy", 1, value=1)[0] == 422, "whole dialogues are rated here"
        assert rater.request("PUT", f"/api/task/{task}/answer", b"{")[0] == 422
        assert set(store.answers()[task]) == {("comment", None)}


def test_a_body_of_unknown_length_is_cut_off_and_a_submitted_task_takes_no_replay(study: Path) -> None:
    with rating(study) as (rater, task, store):
        connection = http.client.HTTPConnection(rater.address, timeout=10)
        headers = {"Cookie": rater.cookie, "X-CSRF": rater.csrf, "Content-Type": "application/json"}
        pieces = iter([b'{"question": "comment", "text": "', *[b"x" * 16_384] * 20, b'"}'])
        try:
            connection.request("PUT", f"/api/task/{task}/answer", pieces, headers, encode_chunked=True)
            assert connection.getresponse().status == 413
        except OSError:  # the server closed it before all was sent
            pass
        connection.close()
        assert not store.answers()
        rater.rate(task, KEYS, 2)
        assert rater.submit(task)[0] == 200, "sent again, it is submitted still"
        sent = {"question": KEYS[0], "value": 2, "version": 0}
        assert rater.request("PUT", f"/api/task/{task}/answer", sent)[0] == 200, "the same answer again changes nothing"
        replayed = rater.request("PUT", f"/api/task/{task}/answer", sent | {"value": 4, "version": 1})
        assert replayed[0] == 409 and store.answers()[task][KEYS[0], None][0].value == 2


def test_text_of_models_and_raters_is_text(esc_eval: EscEval, tmp_path: Path) -> None:
    make_study(esc_eval, text=SCRIPT)
    with rating(tmp_path / "s") as (rater, task, _):
        first = rater.request("GET", f"/task/{task}")[1]
        assert 'data-question="comment" maxlength="4000" rows="3" data-version="0"' in first, "the first one replaces nothing"
        assert rater.put(task, "comment", text="</textarea>" + SCRIPT)[0] == 200
        page = rater.request("GET", f"/task/{task}")[1]
        assert SCRIPT not in page and page.count("&lt;script&gt;") == 2


@pytest.fixture
def time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request is earned by waiting, however slow the machine is."""
    monkeypatch.setattr("evalsuite.people.guard.RequestRate", partial(RequestRate, clock=lambda: 0.0))


def test_a_rate_is_earned_back_by_waiting() -> None:
    now = [0.0]
    rate = RequestRate(3, 1, lambda: now[0])
    assert [rate.allows("a") for _ in range(4)] == [True, True, True, False] and rate.allows("b")
    now[0] += 1
    assert rate.allows("a") and not rate.allows("a")


@pytest.mark.usefixtures("time_stands_still")
def test_too_many_requests_are_told_to_wait(study: Path) -> None:
    with served(study) as (address, _):
        answers = [
            Client(address).request("GET", "/r/guess", headers={"Accept-Language": language}) for language in ["zh"] * 15
        ]
        told = [Client(address).request("POST", "/api/me", {}) for _ in range(61)]
    assert [status for status, _, _ in answers] == [404] * 10 + [429] * 5
    _, page, headers = answers[-1]
    assert 'http-equiv="refresh"' in page and "请求太多" in page and int(headers["retry-after"]) > 0
    assert [status for status, _, _ in told] == [401] * 60 + [429]
    assert json.loads(told[-1][1])["word"] == "too_often", "a script reads JSON"


@pytest.mark.usefixtures("time_stands_still")
def test_made_up_cookies_are_no_way_round_the_rate(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalsuite.people.guard.OF_ADDRESSES", (20, 1))
    with served(study) as (address, _):
        name = Client(address).enter(links(study)["r01"]).cookie.split("=")[0]
        statuses = [Client(address, cookie=f"{name}=guess{n}").request("GET", "/")[0] for n in range(40)]
    assert statuses[:15] == [401] * 15 and 429 in statuses


def test_a_class_behind_one_address_opens_its_links_at_once(esc_eval: EscEval, tmp_path: Path) -> None:
    make_study(esc_eval, raters=200)
    pages: list[tuple[int, str]] = []

    def opens(address: str, link: str) -> None:
        client = Client(address)
        _, _, headers = client.request("GET", link)
        client.cookie = headers.get("set-cookie", "").split(";")[0]
        pages.extend(client.request("GET", path)[:2] for path in ("/", "/static/people.css", "/static/people.js"))

    with served(tmp_path / "s") as (address, _), ThreadPoolExecutor(32) as people:
        for link in [path for code, path in links(tmp_path / "s").items() if code != "organiser"]:
            people.submit(opens, address, link)
    assert [status for status, _ in pages] == [200] * 600


def test_sessions_end_and_the_organisers_link_is_renewed(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(study) as (address, _):
        rater, organiser, elsewhere = (Client(address).enter(links(study)[code]) for code in ("r01", "organiser", "organiser"))
        assert rater.request("POST", "/api/organiser/key", {})[0] == 403
        link = json.loads(organiser.request("POST", "/api/organiser/key", {})[1])["link"]
        assert (organiser.request("GET", "/")[0], elsewhere.request("GET", "/")[0]) == (200, 401)
        assert Client(address).request("GET", links(study)["organiser"])[0] == 404, "the old link opens nothing"
        assert Client(address).enter("/o/" + link.rpartition("/")[2]).request("GET", "/")[0] == 200
        also = Client(address).enter(links(study)["r01"])
        assert rater.request("POST", "/api/leave", {})[0] == 200
        assert (rater.request("GET", "/")[0], also.request("GET", "/")[0]) == (401, 200), "only who signs out is signed out"
        now = time.time()
        for days, status in ((0.9, (200, 200)), (1.1, (200, 401)), (31, (401, 401))):
            monkeypatch.setattr("evalsuite.people.store.time.time", lambda days=days: now + days * 86_400)
            assert (also.request("GET", "/")[0], organiser.request("GET", "/")[0]) == status


# --- requests that arrive half, from afar or by mistake -----------------------------------------------------------------------


def visit(esc_eval: EscEval, monkeypatch: pytest.MonkeyPatch, study: Path, what: Callable[[str], None]) -> None:
    """Call `what` with the address of the server that `people serve` starts, with its own settings."""

    def run(app: object, **settings: object) -> None:
        with listening(app, **settings) as address:
            what(address)

    monkeypatch.setattr(uvicorn, "run", run)
    assert esc_eval("people", "serve", study)[0] == 0


HALVES = [
    b"",
    b"GET / HT",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ",
    b"POST /api/me HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 40\r\n\r\n{",
    b"GET /favicon.ico HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HTTP",
]


def test_half_a_request_is_not_waited_for(study: Path, esc_eval: EscEval, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "WHOLE_WITHIN_S", 1.0)

    def send(address: str) -> None:
        host, _, port = address.partition(":")
        for half in HALVES:
            with socket.create_connection((host, int(port)), timeout=10) as line:
                line.sendall(half)
                line.settimeout(0.2)
                with suppress(ConnectionError):
                    for _ in range(300):  # a byte now and then gains no time
                        with suppress(TimeoutError):
                            if not line.recv(4096):
                                break
                        line.sendall(b"x" * bool(half))
                    else:
                        pytest.fail(f"still waited for: {half!r}")
        assert Client(address).enter(links(study)["r01"]).request("GET", "/")[0] == 200

    visit(esc_eval, monkeypatch, study, send)


def test_a_task_that_cannot_be_is_not_found(study: Path) -> None:
    with served(study) as (address, _):
        client = Client(address).enter(links(study)["r01"])
        for number in ("1" * 23, "9" * 5000, "-" + "1" * 30, "99", "one", "2147483648"):
            for method, path, body in (
                ("GET", f"/task/{number}", None),
                ("POST", f"/api/task/{number}/submit", {}),
                ("PUT", f"/api/task/{number}/answer", {"question": "empathy", "value": 1}),
            ):
                status, _, headers = client.request(method, path, body)
                assert status == 404 and headers.items() >= USUAL, (method, status)


@pytest.mark.parametrize("named", [None, "127.0.0.1"])
def test_only_a_named_proxy_says_where_a_request_is_from(
    named: str | None, study: Path, esc_eval: EscEval, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", named)
    seen: list[str] = []
    allows = guard.RequestRate.allows

    def noted(self: guard.RequestRate, client: str) -> bool:
        seen.append(client)
        return allows(self, client)

    monkeypatch.setattr(guard.RequestRate, "allows", noted)

    def ask(address: str) -> None:
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as line:
            line.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forwarded-For: 203.0.113.7\r\nConnection: close\r\n\r\n")
            while line.recv(4096):
                pass

    visit(esc_eval, monkeypatch, study, ask)
    assert ("203.0.113.7" in seen) == bool(named) and ("127.0.0.1" in seen) != bool(named)


def test_a_folder_that_was_there_keeps_its_mode_and_what_is_secret_is_private(esc_eval: EscEval, tmp_path: Path) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o755)
    for folder, expected in (("mine", 0o755), ("new", 0o700)):
        make_study(esc_eval, name=folder)
        assert mode(tmp_path / folder) == expected
        assert {mode(tmp_path / folder / name) for name in ("links.csv", "study.sqlite")} == {0o600}
