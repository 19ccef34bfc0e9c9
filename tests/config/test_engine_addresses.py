"""Addresses of servers become URLs, or are refused."""

import pytest

from schemas.errors import InvalidValue
from slime_events.core.config.engine import EngineSettings
from slime_events.core.config.engine_addresses import engine_url


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("10.0.0.5:30000", "http://10.0.0.5:30000"),
        ("http://node:30000/", "http://node:30000"),
        ("https://node:443", "https://node:443"),
        ("[::1]:30000", "http://[::1]:30000"),
    ],
)
def test_an_address_has_a_url(address: str, url: str) -> None:
    assert engine_url(address) == url


@pytest.mark.parametrize(
    "address", ["", "node", "node:", ":1", "node:port", "node:99999", "ftp://node:1", "a:1/x", "u:p@a:1", "[::1"]
)
def test_anything_else_is_refused(address: str) -> None:
    with pytest.raises(InvalidValue):
        engine_url(address)


def test_each_server_is_an_engine() -> None:
    settings = EngineSettings(rollout_num_gpus=1, rollout_external_engine_addrs=["a:1", "b:1", "c:2"])
    assert settings.replicas == 3
    assert settings.external_urls == ["http://a:1", "http://b:1", "http://c:2"]
