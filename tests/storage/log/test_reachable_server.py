"""A run's own server that other machines reach: with credentials and TLS, and the same certificate after a restart."""

from __future__ import annotations

import ipaddress
import json
import ssl
import stat
from pathlib import Path

import msgspec
import pytest

from schemas.errors import AccessDenied
from storage.jetstream.address import NatsAddress, NatsPlace, read_credentials
from storage.jetstream.log import JetStreamLog
from storage.nats import server as server_module
from storage.nats.accounts import Access, file_of
from storage.nats.certificate import certificate_for
from storage.nats.ports import is_loopback, with_port
from storage.nats.server import NatsServer
from storage.open_log import open_run_log, own_server

RUN = "r"


@pytest.fixture
def beyond(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an address that counts as one of a network: a machine of tests may have no other than loopback."""
    monkeypatch.setattr(server_module, "is_loopback", lambda host: host != "127.0.0.2")
    return "127.0.0.2"


async def position(address: NatsAddress) -> int:
    log = await JetStreamLog.open(address, RUN, deadline_s=5)
    try:
        return await log.position()
    finally:
        await log.close()


async def test_it_wants_credentials_and_shows_a_certificate_that_its_files_have(
    tmp_path: Path, beyond: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with await own_server(tmp_path, RUN, host=beyond) as server:
        assert server.host == beyond
        own = server.address(Access.ROLES)
        assert await position(own) == 0
        for access in Access:
            assert read_credentials(file_of(server.folder, access)).ca == own.ca
        place = NatsPlace(url=server.url, creds=str(file_of(server.folder, Access.ROLES)))
        assert await position(place.address()) == 0, "a producer elsewhere needs no other file"
        with pytest.raises(AccessDenied, match="not trusted"):
            await position(msgspec.structs.replace(own, ca=""))
        with pytest.raises(AccessDenied, match="credentials"):
            await position(NatsAddress(url=server.url, ca=own.ca))
        async with open_run_log(tmp_path, RUN) as log:
            assert await log.position() == 0
    assert not [record for record in caplog.records if record.name == "asyncio"], "the end of a connection is no news"
    certificate = certificate_for(server.folder, beyond)
    assert stat.S_IMODE(certificate.key.stat().st_mode) == 0o600
    ssl.create_default_context(cadata=certificate.text)


async def test_a_server_that_is_started_again_has_its_certificate_and_loopback_has_none(
    tmp_path: Path, beyond: str
) -> None:
    async with await own_server(tmp_path, RUN, host=beyond) as first:
        before = first.address(Access.ROLES)
    async with await own_server(tmp_path, RUN, host=beyond, port=first.port) as again:
        assert (again.url, again.address(Access.ROLES)) == (first.url, before)
        here = await own_server(tmp_path, RUN)
        assert here.pid != again.pid, "a server with another address is replaced"
        async with here:
            assert here.url == f"nats://{with_port('127.0.0.1', here.port)}"
            assert here.address(Access.ROLES).ca == ""
            assert "ca" not in json.loads(file_of(here.folder, Access.VIEWER).read_text())
            assert await position(here.address(Access.ROLES)) == 0


async def test_without_credentials_it_listens_on_loopback_alone(tmp_path: Path, beyond: str) -> None:
    with pytest.raises(AccessDenied, match=beyond):
        await NatsServer.start(tmp_path, host=beyond)


def test_a_certificate_is_made_again_for_another_address(tmp_path: Path) -> None:
    first = certificate_for(tmp_path, "10.0.0.5")
    assert certificate_for(tmp_path, "10.0.0.5") == first
    assert certificate_for(tmp_path, "fd00::5").text != first.text


@pytest.mark.parametrize(
    ("host", "here"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("10.0.0.5", False), ("a.b", False)]
)
def test_what_other_machines_reach(host: str, *, here: bool) -> None:
    assert is_loopback(host) == here
    assert ipaddress.ip_address("127.0.0.2").is_loopback
