"""Test where a gateway listens, by which names it answers, and how its user set that."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import InvalidValue
from serve_apps.http.gateway import listening
from serve_apps.http.gateway.deadlines import Deadlines
from serve_apps.http.gateway.listening import bound, bound_again, undelayed
from serve_apps.http.gateway.serving import url_of
from serve_apps.http.gateway.settings import GatewaySettings, ipaddress_or_none, is_loopback, parse_listen
from slime_events.core.config.gateway import RunGatewaySettings

HOSTS = st.sampled_from(["127.0.0.1", "10.0.0.1", "localhost", "::1", "name.example"])


@settings(max_examples=30)
@given(HOSTS, st.integers(0, 65535))
def test_a_place_is_read_as_it_is_written(host: str, port: int) -> None:
    shown = f"[{host}]" if ":" in host else host
    assert parse_listen(f"{shown}:{port}") == (host, port)
    assert parse_listen(f":{port}") == parse_listen(str(port)) == ("127.0.0.1", port)


@pytest.mark.parametrize("wrong", ["", "host", "host:", "host:x", "127.0.0.1:65536", "1:-1", "1:\u00b2"])
def test_what_is_no_place_is_refused_by_its_flag(wrong: str) -> None:
    with pytest.raises(InvalidValue, match="--tinker"):
        parse_listen(wrong, "--tinker")
    with pytest.raises(InvalidValue, match="--listen"):
        parse_listen(wrong)


@pytest.mark.parametrize(
    ("host", "own"),
    [("localhost", True), ("127.0.0.2", True), ("::1", True), ("10.0.0.1", False), ("name.example", False)],
)
def test_an_address_of_this_machine_alone(host: str, own: bool) -> None:
    assert is_loopback(host) is own
    assert GatewaySettings(host=host).is_loopback is own
    assert (ipaddress_or_none(host) is None) is (host in ("localhost", "name.example"))


@pytest.mark.parametrize(
    ("fields", "names", "url"),
    [
        ({}, {"localhost", "127.0.0.1", "::1"}, "http://127.0.0.1:8500"),
        ({"host": "::1", "port": 1}, {"localhost", "127.0.0.1", "::1"}, "http://[::1]:1"),
        ({"host": "127.0.0.1", "hosts": ("a",)}, {"localhost", "127.0.0.1", "::1", "a"}, "http://127.0.0.1:8500"),
        ({"host": "10.0.0.1"}, {"10.0.0.1"}, "http://10.0.0.1:8500"),
        ({"host": "0.0.0.0", "hosts": ("a", "b")}, {"0.0.0.0", "a", "b"}, "http://a:8500"),
        ({"host": "10.0.0.1", "tls_cert": "c"}, {"10.0.0.1"}, "https://10.0.0.1:8500"),
    ],
)
def test_it_is_reached_by_its_names(fields: dict[str, Any], names: set[str], url: str) -> None:
    settings_ = GatewaySettings(**fields)
    assert settings_.names == names
    assert settings_.own_url == url


@pytest.mark.parametrize(
    ("role", "listen", "other", "listens"),
    [(True, "--gateway", "--gateway-x", "--gateway h:1"), (False, "--listen", "--x", "--listen h:1")],
)
def test_flags_are_those_of_who_was_started(role: bool, listen: str, other: str, listens: str) -> None:
    own = GatewaySettings(host="h", port=1, role=role)
    assert (own.flag("listen"), own.flag("x"), own.listens) == (listen, other, listens)
    assert GatewaySettings().flag("x") == "--x", "the command's, where nothing says so"


@pytest.mark.parametrize(
    ("fields", "is_fine"),
    [
        ({}, True),
        ({"tls_cert": "c"}, False),
        ({"tls_key": "k"}, False),
        ({"tls_cert": "c", "tls_key": "k"}, True),
        ({"host": "10.0.0.1"}, False),
        ({"host": "10.0.0.1", "insecure": True}, True),
        ({"host": "name.example", "tls_cert": "c", "tls_key": "k"}, True),
        ({"host": "0.0.0.0", "insecure": True}, False),
        ({"host": "::", "insecure": True}, False),
        ({"host": "::", "insecure": True, "hosts": ("a",)}, True),
        ({"role": True, "port": 0}, False),
        ({"role": False, "port": 0}, True),
        ({"role": True, "port": 1}, True),
    ],
)
def test_what_would_not_be_safe_or_found_is_refused(fields: dict[str, Any], is_fine: bool) -> None:
    own = GatewaySettings(**fields)
    if is_fine:
        assert own.checked() is own
    else:
        with pytest.raises(InvalidValue):
            own.checked()


def test_a_run_s_flags_are_its_gateway_s_settings() -> None:
    run = RunGatewaySettings(
        gateway="10.0.0.1:9",
        gateway_tls_cert="c",
        gateway_tls_key="k",
        gateway_allow_origin=["https://a"],
        gateway_host_name=["a"],
        gateway_insecure=True,
    )
    own = GatewaySettings.of_run(run, nats_creds="n")
    assert (own.host, own.port, own.tls_cert, own.tls_key) == ("10.0.0.1", 9, "c", "k")
    assert (own.origins, own.hosts, own.insecure, own.nats_creds) == (("https://a",), ("a",), True, "n")
    assert own.role
    command = GatewaySettings.of_run(RunGatewaySettings(), role=False)
    assert (command.host, command.port, command.tls_cert, command.tls_key) == ("127.0.0.1", 8500, "", "")
    assert (command.role, command.insecure, command.nats_creds) == (False, False, "")
    for role, flag in ((True, "--gateway x"), (False, "--listen x")):
        with pytest.raises(InvalidValue, match=flag):
            GatewaySettings.of_run(RunGatewaySettings(gateway="x"), role=role)


def test_deadlines_are_those_that_were_given() -> None:
    own = GatewaySettings(head_s=1, body_s=2, body_bytes=3, write_s=4)
    assert own.deadlines == Deadlines(head_s=1, body_s=2, body_bytes=3, write_s=4)


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_it_listens_where_it_is_told_to(host: str, shown: str) -> None:
    if ":" in host and not socket.has_ipv6:
        pytest.skip("no IPv6")
    with bound(GatewaySettings(host=host, port=0)) as listening_:
        port = listening_.getsockname()[1]
        assert url_of(listening_, GatewaySettings()) == f"http://{shown}:{port}"
        assert url_of(listening_, GatewaySettings(tls_cert="c")) == f"https://{shown}:{port}"
        assert listening_.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        with pytest.raises(InvalidValue, match=f"--listen {host}:{port}"):
            bound(GatewaySettings(host=host, port=port))


def test_a_socket_is_itself_without_delay() -> None:
    with socket.socket() as own:
        assert undelayed(own) is own
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_port_that_is_held_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as holding:
        held = holding.enter_context(socket.create_server(("127.0.0.1", 0)))
        own, now = GatewaySettings(port=held.getsockname()[1]), 0.0

        async def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds
            if now > 1.0:
                held.close()

        monkeypatch.setattr(listening, "time", SimpleNamespace(monotonic=lambda: now))
        monkeypatch.setattr(listening, "asyncio", SimpleNamespace(sleep=sleep))
        with await bound_again(own) as again:
            assert again.getsockname()[1] == own.port
        assert 1.0 < now < 2.0


async def test_a_port_that_is_never_free_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = 0.0, 0

    async def sleep(seconds: float) -> None:
        nonlocal now, slept
        now, slept = now + seconds, slept + 1
        await asyncio.sleep(0)

    with socket.create_server(("127.0.0.1", 0)) as held:
        own = GatewaySettings(port=held.getsockname()[1])
        monkeypatch.setattr(listening, "time", SimpleNamespace(monotonic=lambda: now))
        monkeypatch.setattr(listening, "asyncio", SimpleNamespace(sleep=sleep))
        with pytest.raises(InvalidValue):
            await bound_again(own)
    assert slept * listening.LOOK_S == pytest.approx(listening.FREE_S, rel=0.1)
