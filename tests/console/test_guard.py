"""Who may read a console: names of the host, origins of pages, tokens; and the headers of every answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import Scope, Sources
from tests.console.served import URL, client_of, small

NETWORK = GatewaySettings(host="192.0.2.1", insecure=True, hosts=("runs.example",))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:8600"}, 200),
        ({"host": "127.0.0.1"}, 200),
        ({"host": "[::1]:9000"}, 200),
        ({"host": "evil.example"}, 421),
        ({"host": "localhost.evil.example:8600"}, 421),
        ({"host": "localhost:8600@evil"}, 421),
        ({"host": "localhost:8600", "origin": "http://localhost:8600"}, 200),
        ({"host": "localhost:8600", "origin": "http://localhost:1"}, 403),
        ({"host": "localhost:8600", "origin": "null"}, 403),
    ],
)
async def test_a_request_of_another_page_or_name_is_refused(headers: dict[str, str], status: int) -> None:
    async with client_of(await small()) as client:
        for path in ("/api/runs", "/"):
            assert (await client.get(path, headers=headers)).status_code == status


async def test_every_answer_forbids_foreign_scripts_and_frames() -> None:
    async with client_of(await small()) as client:
        for path in ("/", "/runs/a/metrics", "/assets/console.js", "/api/runs", "/api/none", "/openapi.json"):
            headers = (await client.get(path)).headers
            policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
            assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cross-origin-resource-policy"] == "same-origin"


async def test_elsewhere_a_token_with_the_right_view_is_needed(tmp_path: Path) -> None:
    sources = Sources(tmp_path)
    tokens = {
        "reader": sources.issue("reader", [Scope.VIEW]),
        "producer": sources.issue("producer", [Scope.PROMPTS]),
        "unlimited": sources.issue("unlimited"),
    }

    async with client_of(await small(), NETWORK, sources) as client:

        async def status(token: str, path: str = f"{URL}/samples") -> int:
            headers = {"host": "runs.example", "authorization": f"Bearer {token}"}
            return (await client.get(path, headers=headers)).status_code

        assert await status(tokens["reader"]) == 200
        assert await status(tokens["producer"]) == 403
        assert await status(tokens["unlimited"]) == 403
        assert await status("") == await status("made up") == 401
        assert await status("", "/api/runs") == await status("", f"{URL}/changes") == 401
        assert await status("", "/") == 200  # the page itself holds nothing of a run
        sources.revoke("reader")
        assert await status(tokens["reader"]) == 401


def test_only_a_source_that_names_it_may_view() -> None:
    sources = {"all": None, "view": (Scope.VIEW,), "prompts": (Scope.PROMPTS,)}
    from serve_apps.http.gateway.sources import Source

    assert {name: Source("", may).allows(Scope.VIEW) for name, may in sources.items()} == {
        "all": False,
        "view": True,
        "prompts": False,
    }
    assert Source("").allows(Scope.PROMPTS)
    assert not Source("", (Scope.VIEW,)).allows(Scope.PROMPTS)
