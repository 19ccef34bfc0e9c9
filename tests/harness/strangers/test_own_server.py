"""A NATS server of the user's own, with what `nats-config` prints, and with TLS."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from schemas.errors import AccessDenied, InvalidValue
from slime_events.app.cli.checks import Outcome
from slime_events.app.cli.commands import nats_config
from slime_events.app.cli.nats_access import check_anybody, check_credentials
from storage.jetstream.address import NatsAddress, NatsPlace, read_credentials
from storage.jetstream.log import JetStreamLog
from storage.nats.accounts import Access
from storage.nats.server import NatsServer
from storage.open_log import open_run_log
from tests.cli.invoke import arguments, command
from tests.harness.strangers.forbidden import commit_all
from tests.run.cheap import Parts, cheap_parts
from tests.run.tiny import run_with, tiny


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert nats_config.run(arguments("nats-config", *words)) == 0
    return capsys.readouterr().out


async def test_a_run_on_a_server_with_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for access, name in nats_config.PLACEHOLDERS.items():
        monkeypatch.setenv(name[1:], f"of-{access}")
    creds = tmp_path / "creds.json"
    creds.write_text('{"user": "slime-roles", "password": "of-roles"}')
    async with await NatsServer.start(tmp_path / "nats", more=printed(capsys, "--run", "own")) as server:
        settings = tiny(tmp_path, "own", run={"nats_url": server.url, "nats_creds": str(creds)})
        with cheap_parts(Parts()):
            summary = await run_with(settings)
        assert summary["failure"] is None

        def address_of(access: Access) -> NatsAddress:
            return NatsAddress(url=server.url, user=f"slime-{access}", password=f"of-{access}")

        assert await commit_all("own", address_of) == []
        async with open_run_log(tmp_path / "runs" / "own", "own") as log:
            assert await log.position() >= summary["events"]
        moved = creds.rename(tmp_path / "moved.json")
        words = ["own", "--runs-dir", str(tmp_path / "runs")]
        with pytest.raises(InvalidValue, match=r"creds\.json cannot be read"):
            await asyncio.to_thread(command("resume"), words)
        assert await asyncio.to_thread(command("resume"), [*words, "--nats-creds", str(moved)]) == 0
        assert "has finished all its 3 steps" in capsys.readouterr().err


async def test_passwords_are_made_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "access"
    output = printed(capsys, "--out", str(folder))
    text = (folder / nats_config.FILE).read_text()
    files = {access: folder / f"{access}.json" for access in Access}
    for path in files.values():
        assert str(path) in output
        assert read_credentials(path).password in text
        assert read_credentials(path).password not in output
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(InvalidValue, match="not empty"):
        printed(capsys, "--out", str(folder))
    async with await NatsServer.start(tmp_path / "nats", more=text) as server:
        log = await JetStreamLog.open(NatsPlace(url=server.url, creds=str(files[Access.ROLES])).address(), "any")
        await log.close()
        let = await commit_all("any", lambda access: read_credentials(files[access], server.url))
    assert let == ["producer publishes on slime.any-2.inbox.prompts"], "of any run"


@pytest.fixture
async def tls(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """A server that shows a certificate and asks for one, both of an authority of its own, in `tmp_path`."""
    authority = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    for who in ("ca", "server", "run"):
        key = authority if who == "ca" else ec.generate_private_key(ec.SECP256R1())
        subject = name if who == "ca" else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, who)])
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
        builder = builder.not_valid_after(now + datetime.timedelta(hours=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=who == "ca", path_length=None), critical=True)
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        signed = builder.add_extension(here, critical=False).sign(authority, hashes.SHA256())
        (tmp_path / f"{who}.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        (tmp_path / f"{who}.key").write_bytes(key.private_bytes(*plain))
    files = f'cert_file: "{tmp_path}/server.pem", key_file: "{tmp_path}/server.key", ca_file: "{tmp_path}/ca.pem"'
    async with await NatsServer.start(tmp_path / "nats", more=f"tls {{ {files}, verify: true }}") as server:
        yield server


async def test_certificates_on_both_sides(tls: NatsServer, tmp_path: Path) -> None:
    place = NatsPlace(
        url=tls.url,
        tls_ca=str(tmp_path / "ca.pem"),
        tls_cert=str(tmp_path / "run.pem"),
        tls_key=str(tmp_path / "run.key"),
    )
    log = await JetStreamLog.open(place.address(), "r")
    assert await log.position() == 0
    await log.close()
    with pytest.raises(AccessDenied, match="--nats-tls-ca"):
        await JetStreamLog.open(tls.url, "r")
    with pytest.raises(InvalidValue, match="--nats-tls-"):
        NatsPlace(url=tls.url, tls_cert=str(tmp_path / "run.pem"), tls_key=str(tmp_path / "ca.key")).address().options()


@pytest.mark.parametrize("text", ["", "{}", '{"user": "a"}', "[1]", "no JSON: pw", '{"user": 1, "password": "pw"}'])
def test_a_file_with_no_credentials_is_refused_without_its_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "creds"
    path.write_text(text)
    with pytest.raises(InvalidValue, match="--nats-creds") as refused:
        read_credentials(path)
    assert "pw" not in str(refused.value)
    with pytest.raises(InvalidValue, match="No such file"):
        read_credentials(tmp_path / "nowhere")


async def test_doctor_tells_an_open_server_from_a_guarded_one(tls: NatsServer, tmp_path: Path) -> None:
    (tmp_path / "creds").write_text('{"user": "me", "password": "pw"}')
    async with await NatsServer.start(tmp_path / "open") as server:
        assert (await asyncio.to_thread(check_anybody, server.url)).outcome is Outcome.WARN
    guarded = 'authorization { user: "me", password: "pw" }'
    async with await NatsServer.start(tmp_path / "guarded", more=guarded) as server:
        assert (await asyncio.to_thread(check_anybody, server.url)).outcome is Outcome.OK
        good, bad = NatsPlace(url=server.url, creds=str(tmp_path / "creds")), NatsPlace(url=server.url)
        assert (await asyncio.to_thread(check_credentials, good)).outcome is Outcome.OK
        assert (await asyncio.to_thread(check_credentials, bad)).outcome is Outcome.FAIL
    assert (await asyncio.to_thread(check_anybody, tls.url)).outcome is Outcome.OK, "it asks for a certificate"
    encrypted = f'tls {{ cert_file: "{tmp_path}/server.pem", key_file: "{tmp_path}/server.key" }}'
    async with await NatsServer.start(tmp_path / "encrypted", more=encrypted) as server:
        assert (await asyncio.to_thread(check_anybody, server.url)).outcome is Outcome.WARN
