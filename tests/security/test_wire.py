"""TLS, IPv6, names and limits of a gateway behind a real socket."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from pathlib import Path

import pytest

from serve_apps.http.gateway.limited_http import MOST_HEAD
from serve_apps.http.gateway.refusal_log import MOST, WINDOW_S, RefusalLog
from serve_apps.http.gateway.refusals import host_of
from serve_apps.http.gateway.settings import GatewaySettings
from tests.security.wire import Run, Wire, served

HEALTH = "/healthz"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cert.pem and key.pem of `localhost`, 127.0.0.1 and ::1, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-subj", "/CN=localhost", "-addext", names, "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_tls_on_either_kind_of_address(tmp_path: Path, certificate: Path, host: str) -> None:
    cert, key = str(certificate / "cert.pem"), str(certificate / "key.pem")
    settings = GatewaySettings(host=host, port=0, tls_cert=cert, tls_key=key).checked()
    run, trust = Run(tmp_path), ssl.create_default_context(cafile=cert)
    token = run.sources.issue("quiz")
    async with run.simulation, run.app(settings) as app, served(app, settings, trust) as wire:
        sent = await wire.ask(wire.request("POST", "/v1/runs/sim/prompts", b'{"prompt": "a"}', token=token))
        assert sent[0] == 202
        with pytest.raises(ssl.SSLCertVerificationError):
            await Wire(host, wire.port, ssl.create_default_context()).ask(wire.request("GET", HEALTH))
        old = ssl.create_default_context(cafile=cert)
        old.set_ciphers("DEFAULT:@SECLEVEL=0")  # else OpenSSL here would send nothing
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
        with pytest.raises(ConnectionError):  # by the server: an SSLError would be our own side
            await Wire(host, wire.port, old).ask(wire.request("GET", HEALTH))
        plain = await Wire(host, wire.port).ask(wire.request("GET", HEALTH))
        assert plain[0] == 0, "a token that is sent without TLS gets no answer"


async def test_ipv6_without_tls_is_by_its_names_alone(tmp_path: Path) -> None:
    run, settings = Run(tmp_path), GatewaySettings(host="::1", port=0)
    async with run.simulation, run.app(settings) as app, served(app, settings) as wire:
        named = {name: (await wire.ask(wire.request("GET", HEALTH, host=name)))[0] for name in NAMES}
    assert named == NAMES


NAMES = {
    "[::1]:8500": 200,
    "localhost": 200,
    "LOCALHOST:80": 200,
    "127.0.0.1": 200,
    "[::]": 421,
    "[fe80::1]": 421,
    "::1": 421,
}


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("a.example:8500", "a.example"),
        ("[::1]", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        *((wrong, None) for wrong in ("", "[::1", "a@b", "a/b", "a:b", "a:123456", "a b", "[g]", "a\x00", "a:80:80")),
    ],
)
def test_a_host_is_a_name_and_a_port(header: str, name: str | None) -> None:
    assert host_of(header) == name


async def test_a_head_without_end_is_cut(tmp_path: Path) -> None:
    """Cut the head of a client that has shown no token yet."""
    run, settings = Run(tmp_path), GatewaySettings(port=0)
    async with run.simulation, run.app(settings) as app, served(app, settings) as wire:
        assert await _taken(wire, 64 * MOST_HEAD) < 32 * MOST_HEAD
        large = wire.request("GET", HEALTH, headers=(f"X-Large: {'x' * MOST_HEAD}",))
        assert (await wire.ask(large))[0] == 400
        fine = wire.request("GET", HEALTH, headers=(f"X-Large: {'x' * (MOST_HEAD // 2)}",))
        assert (await wire.ask(fine))[0] == 200


async def _taken(wire: Wire, most: int) -> int:
    """Bytes of a header without end that were sent before the connection was closed."""
    _, writer = await asyncio.open_connection(wire.host, wire.port)
    writer.write(b"GET / HTTP/1.1\r\nX-Endless: ")
    for sent in range(0, most, MOST_HEAD):
        try:
            writer.write(b"x" * MOST_HEAD)
            await writer.drain()
        except ConnectionError:
            return sent
        await asyncio.sleep(0.01)
    return most


async def test_connections_beyond_the_limit_are_asked_to_come_again(tmp_path: Path) -> None:
    """Ask connections with requests in progress to come again; silent ones make room."""
    run, settings = Run(tmp_path), GatewaySettings(port=0, max_connections=3, address_share=1.0)
    token = run.sources.issue("quiz")
    async with run.simulation, run.app(settings) as app, served(app, settings) as wire:
        idle = [await asyncio.open_connection(wire.host, wire.port) for _ in range(100)]
        sent = wire.request("POST", "/v1/runs/sim/prompts", b'{"prompt": "a"}', token=token)
        status, answer = await wire.ask(sent)
        assert status == 202
        group = json.loads(answer.partition(b"\r\n\r\n")[2])["groups"][0]["group"]
        following = [await asyncio.open_connection(wire.host, wire.port) for _ in range(3)]
        for _, writer in following:
            writer.write(wire.request("GET", f"/v1/runs/sim/groups/{group}/events", token=token))
        await asyncio.sleep(0.3)
        assert (await wire.ask(sent))[0] == 503
        assert (await wire.ask(wire.request("GET", HEALTH)))[0] == 200
        for _, writer in (*idle, *following):
            writer.transport.abort()
        await asyncio.sleep(1.5)
        assert (await wire.ask(sent))[0] == 202


def test_a_log_of_refusals_does_not_grow_with_them(caplog: pytest.LogCaptureFixture) -> None:
    from starlette.requests import Request

    clock = [0.0]
    refusals = RefusalLog(lambda: clock[0])
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("127.0.0.1", 1)})
    for _ in range(MOST + 50):
        refusals.write(request, 401)
    assert len(caplog.records) == MOST
    clock[0] = WINDOW_S
    refusals.write(request, 401)
    assert caplog.records[MOST].getMessage() == "refused: 50 more requests"
    assert len(caplog.records) == MOST + 2
