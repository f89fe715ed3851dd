"""Servers with certificates of their own, and addresses that are not what they seem: what is said, and what mends it."""

import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from core.files import CONFIGS
from tests.conftest import EscEval

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
