"""Bodies are capped while they are decompressed, redirects are not followed; certificates and odd addresses are explained."""

import datetime
import gzip
import socket
import ssl
import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from core.errors import UserError
from core.files import CONFIGS
from serve.client import ChatClient
from serve.failures import Rejected, ServerLost
from serve.store import CallStore
from tests.conftest import EscEval
from tests.endpoint import Answer, Endpoint, bomb, error
from tests.serve.test_client import ask, question, spec

WHOLE = orjson.dumps({"choices": [{"message": {"content": "I hear you " + "x" * 70_000}, "finish_reason": "stop"}]})


def raw_deflate(body: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(body) + stream.flush()


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("identity", WHOLE),
        ("gzip", gzip.compress(WHOLE)),
        ("GZIP", gzip.compress(WHOLE[:100]) + gzip.compress(WHOLE[100:])),
        ("deflate", zlib.compress(WHOLE)),
        ("deflate", raw_deflate(WHOLE)),
    ],
    ids=["identity", "gzip", "gzip of two members", "deflate", "deflate without a header"],
)
async def test_bodies_are_decompressed(tmp_path: Path, encoding: str, body: bytes) -> None:
    with Endpoint(lambda request, count: Answer(body=body, headers={"Content-Encoding": encoding})) as endpoint:
        (reply,) = await ask(tmp_path, endpoint, question())
        assert endpoint.headers[0]["Accept-Encoding"] == "gzip, deflate"
    assert reply.text == "I hear you " + "x" * 70_000


@pytest.mark.parametrize(
    "fault",
    [
        Answer(body=b"no gzip", headers={"Content-Encoding": "gzip"}),
        Answer(body=gzip.compress(WHOLE)[:-200], headers={"Content-Encoding": "gzip"}),
        Answer(body=WHOLE, headers={"Content-Encoding": "br"}),
    ],
    ids=["not gzip", "cut off", "an encoding that was not asked for"],
)
async def test_a_body_that_cannot_be_decompressed_is_asked_again(tmp_path: Path, fault: Answer) -> None:
    with Endpoint(lambda request, count: fault if count == 1 else Answer("fine")) as endpoint:
        assert [reply.text for reply in await ask(tmp_path, endpoint, question())] == ["fine"]


@pytest.mark.slow
@pytest.mark.parametrize("status", [200, 400])
async def test_a_gzip_bomb_costs_no_memory(tmp_path: Path, status: int) -> None:
    """64 MB in 64 kB; the cap is 8 MB, held once as it grows and once as bytes. Of an error 1 MB is read."""
    fault = bomb(64)
    fault = Answer(status=status, body=fault.body, headers=fault.headers)
    with Endpoint(lambda request, count: fault) as endpoint:
        tracemalloc.start()
        try:
            with pytest.raises(Rejected, match="more than 8 MB" if status == 200 else "HTTP 400"):
                await ask(tmp_path, endpoint, question())
            assert tracemalloc.get_traced_memory()[1] < 25 * 2**20
        finally:
            tracemalloc.stop()
        assert len(endpoint.requests) == 1 or status == 400  # where the cause is looked for


@pytest.mark.parametrize("encoded", [False, True])
async def test_the_cap_is_the_specs_and_exact(tmp_path: Path, encoded: bool) -> None:
    empty = len(orjson.dumps({"choices": [{"message": {"content": ""}}]}))

    def behave(request: dict[str, object], count: int) -> Answer:
        body = orjson.dumps({"choices": [{"message": {"content": "x" * (2**20 - empty + count - 1)}}]})
        return Answer(body=gzip.compress(body), headers={"Content-Encoding": "gzip"}) if encoded else Answer(body=body)

    with Endpoint(behave) as endpoint:
        model = spec(endpoint.url, endpoint={"max_response_mb": 1})
        (reply,) = await ask(tmp_path, endpoint, question(), model=model)
        assert len(reply.text) == 2**20 - empty
        with pytest.raises(Rejected, match="more than 1 MB"):
            await ask(tmp_path, endpoint, question("another"), model=model)


@pytest.mark.slow
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_named_and_not_followed(tmp_path: Path, status: int) -> None:
    """Neither to another origin nor to the same: what they point at is told, without what may be a secret."""

    def behave(request: dict[str, object], count: int) -> Answer:
        host = f"user:hunter2@127.0.0.1:{elsewhere.port}" if count == 1 else f"127.0.0.1:{endpoint.port}"
        return Answer(status=status, headers={"Location": f"http://{host}/elsewhere?api_key=hunter2"}, body=b"")

    with Endpoint() as elsewhere, Endpoint(behave) as endpoint:
        for target in (elsewhere.port, endpoint.port):
            with pytest.raises(Rejected, match=f"HTTP {status}: redirects to http://127.0.0.1:{target}/elsewhere, ") as caught:
                await ask(tmp_path, endpoint, question())
            assert "hunter2" not in str(caught.value)
        assert elsewhere.followed == endpoint.followed == 0


async def test_a_list_of_models_that_redirects_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    store = CallStore(tmp_path / "calls.sqlite")
    with Endpoint() as endpoint:
        async with ChatClient(store) as client:
            with pytest.raises(UserError, match=f"redirects to http://127.0.0.1:{endpoint.port}/elsewhere; .*use that URL"):
                await client.check(spec(endpoint.url.replace("/v1", "/moved")), ["my-model"])
        assert endpoint.followed == 0
    store.close()


SECRET = "tenant-value-of-mine"


async def test_a_spec_adds_fields_headers_and_a_query_and_its_secrets_are_in_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENANT", SECRET)
    added = {"extra_body": {"enable_thinking": False}, "headers": {"X-Tenant": "TENANT"}, "query": {"api-version": "1"}}
    with Endpoint(lambda body, count: Answer(f"You are {SECRET}.") if count == 1 else error(400, f"no, {SECRET}")) as endpoint:
        model = spec(endpoint.url, endpoint=added)
        (reply,) = await ask(tmp_path, endpoint, question(), model=model)
        with pytest.raises(Rejected, match=r"no, \*\*\*"):
            await ask(tmp_path, endpoint, question("again"), model=model)
        assert endpoint.requests[0]["enable_thinking"] is False and endpoint.headers[0]["X-Tenant"] == SECRET
        assert endpoint.queries[0] == {"api-version": "1"}
    assert reply.text == "You are ***."


@pytest.mark.parametrize(
    "added",
    [
        {"extra_body": {"temperature": 1}},
        {"headers": {"X-Tenant": "not a variable"}},
        {"headers": {"X Tenant": "TENANT"}},
        {"query": {"api-key": "x"}},
    ],
)
def test_what_a_spec_may_not_add(added: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(added))):
        spec("http://127.0.0.1:1/v1", endpoint=added)


def test_what_a_spec_adds_is_part_of_the_model_but_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(**added: Any) -> str:
        return spec("http://127.0.0.1:1/v1", endpoint=added).fingerprint()

    monkeypatch.setenv("TENANT", SECRET)
    before = known(headers={"X-Tenant": "TENANT"})
    monkeypatch.setenv("TENANT", "another")
    assert before == known(headers={"X-Tenant": "OTHER"}) != known()
    assert len({known(), known(extra_body={"enable_thinking": False}), known(query={"api-version": "1"})}) == 3


async def test_a_proxy_of_the_environment_is_taken_but_not_for_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Endpoint(lambda body, count: Answer("fine")) as proxy, Endpoint(lambda body, count: Answer("here")) as here:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        far = spec("http://model.invalid/v1")
        assert [reply.text for reply in await ask(tmp_path, here, question(), model=far)] == ["fine"]
        assert [reply.text for reply in await ask(tmp_path, here, question("again"))] == ["here"]
        monkeypatch.setenv("no_proxy", "model.invalid")
        with pytest.raises(ServerLost):
            await ask(tmp_path, here, question("once more"), model=far, attempts=1)
        assert len(proxy.requests) == len(here.requests) == 1


MODELS = b'{"object": "list", "data": [{"id": "m", "object": "model"}]}'


class Listing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(MODELS)))
        self.end_headers()
        self.wfile.write(MODELS)

    def log_message(self, *given: object) -> None: ...


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key, in one PEM file."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + datetime.timedelta(1))
    made = made.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(private + made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def ports(certificate: Path) -> Iterator[dict[str, int]]:
    """Three servers: `tls`, `plain`, and one that closes every connection (`closing`)."""
    servers = {name: ThreadingHTTPServer(("127.0.0.1", 0), Listing) for name in ("tls", "plain")}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    servers["tls"].socket = context.wrap_socket(servers["tls"].socket, server_side=True)
    closing = socket.create_server(("127.0.0.1", 0))

    def close_all() -> None:
        while True:
            try:
                closing.accept()[0].close()
            except OSError:
                return

    threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in servers.values()]
    for thread in [*threads, threading.Thread(target=close_all, daemon=True)]:
        thread.start()
    yield {name: server.server_address[1] for name, server in servers.items()} | {"closing": closing.getsockname()[1]}
    closing.close()
    for server in servers.values():
        server.shutdown()
        server.server_close()


def run(esc_eval: EscEval, model: str) -> tuple[int, str]:
    return esc_eval("run", "--config", CONFIGS / "eval" / "api.yaml", "--model", model, "--limit", 1, "--out", "run")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://127.0.0.1:{tls}/v1", "its certificate is not trusted (self-signed certificate)"),
        ("https://127.0.0.1:{plain}/v1", "it does not speak HTTPS: write http://"),
        ("http://127.0.0.1:{tls}/v1", "if it speaks HTTPS, write https://"),
        ("http://127.0.0.1:{closing}/v1", "it closes the connection without an answer"),
        ("http://127.0.0.1:99999/v1", "the port is a number from 0 to 65535"),
        ("http://127.0.0.1:1/v1", "Connection refused"),
        ("http://no-such-host.invalid/v1", "not known"),
    ],
)
def test_what_is_wrong_with_an_address_is_said(esc_eval: EscEval, ports: dict[str, int], url: str, told: str) -> None:
    code, error = run(esc_eval, f"m@{url.format(**ports)}")
    assert code == 2 and told in error and error.count("\n") == 1 and "Operation not permitted" not in error, error


@pytest.mark.parametrize("way", ["ca_bundle", "verify", "SSL_CERT_FILE"])
def test_a_certificate_of_ones_own_is_trusted_by_spec_or_variable(
    esc_eval: EscEval, ports: dict[str, int], certificate: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    endpoint: dict[str, object] = {"base_url": f"https://127.0.0.1:{ports['tls']}/v1"}
    if way == "SSL_CERT_FILE":
        monkeypatch.setenv(way, str(certificate))
    else:
        endpoint[way] = str(certificate) if way == "ca_bundle" else False
    Path("m.yaml").write_text(yaml.safe_dump({"name": "m", "endpoint": endpoint}))
    assert esc_eval("models", "m.yaml", "--check") == (0, "")


@pytest.mark.parametrize(("text", "told"), [(None, "No such file"), ("no certificate", "no certificate in PEM")])
def test_a_bundle_that_is_none_is_named(esc_eval: EscEval, text: str | None, told: str) -> None:
    if text:
        Path("ca.pem").write_text(text)
    endpoint = {"base_url": "https://127.0.0.1:1/v1", "ca_bundle": "ca.pem"}
    Path("m.yaml").write_text(yaml.safe_dump({"name": "m", "endpoint": endpoint}))
    code, error = run(esc_eval, "m.yaml")
    assert code == 2 and "endpoint.ca_bundle: ca.pem" in error and told in error
