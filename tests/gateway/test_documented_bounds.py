"""Test that the bounds of a gateway in the guides are its defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_apps.http.gateway.connections import RESERVE, Connections
from serve_apps.http.gateway.limited_http import MOST_AHEAD
from serve_apps.http.gateway.settings import GatewaySettings, parse_listen
from serve_apps.http.gateway.submission import JSON_BYTES, LINES, MOST_LINES, MOST_REFUSED
from slime_events.core.config.gateway import DEFAULT

DOCS = Path(__file__).parents[2] / "docs"
OWN = GatewaySettings()
MB, KB = 1024 * 1024, 1024
SHARED = Connections(OWN.max_connections, OWN.address_share)


@pytest.mark.parametrize(
    "phrase",
    [
        f"(`application/json`, up to {JSON_BYTES / MB:g} MB)",
        f"(`application/x-ndjson`, up to {OWN.max_body / MB:g} MB, taken as they come)",
        f"{SHARED.most:,} requests ({SHARED.per_address:,} of one address) are being answered",
        f"did not come within {OWN.head_s:g} s, or less than {OWN.body_bytes / KB:g} KB of its body within "
        f"{OWN.body_s:g} s",
        f"names the first {LINES:,} and counts the others",
        f"after {MOST_REFUSED:,} that are refused",
        f"a request has {MOST_LINES:,} lines at most",
        f"answers on {OWN.host}:{OWN.port} until Ctrl-C",
    ],
)
def test_the_guide_says_what_it_does(phrase: str) -> None:
    assert phrase in " ".join((DOCS / "gateway.md").read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    "phrase",
    [
        f"three quarters of all for one address, a reserve of {RESERVE}",
        f"| {OWN.write_s:g} s, {MOST_AHEAD} requests ahead, no web sockets |",
        f"{OWN.streams} streams of a source",
    ],
)
def test_the_list_of_dangers_says_what_it_does(phrase: str) -> None:
    assert phrase in (DOCS / "security.md").read_text(encoding="utf-8")


def test_it_listens_where_the_settings_say() -> None:
    assert (OWN.host, OWN.port) == parse_listen(DEFAULT)
    assert OWN.checked() is OWN
