"""Test whose credentials a gateway uses on a NATS server of the user's own."""

from __future__ import annotations

import json
from pathlib import Path

from storage.jetstream.address import NatsPlace
from storage.nats.accounts import Access, user_of
from storage.open_log import live_address, record_place
from tests.cli.invoke import arguments


def test_a_gateway_may_have_less_than_its_run(tmp_path: Path) -> None:
    files = {access: tmp_path / f"{access}.json" for access in (Access.ROLES, Access.GATEWAY)}
    for access, file in files.items():
        file.write_text(json.dumps({"user": user_of(access), "password": "p", "url": "nats://elsewhere:1"}))
    record_place(tmp_path, NatsPlace(url="nats://logs:4222", creds=str(files[Access.ROLES])))
    own, addresses = (live_address(tmp_path, Access.GATEWAY, creds) for creds in (None, str(files[Access.GATEWAY])))
    assert own is not None
    assert addresses is not None
    assert (own.user, addresses.user) == (user_of(Access.ROLES), user_of(Access.GATEWAY))
    assert own.url == addresses.url == "nats://logs:4222", "the run's, whatever the file says"


def test_the_command_takes_them() -> None:
    assert arguments("gateway", "r", "--nats-creds", "gateway.json").nats_creds == "gateway.json"
