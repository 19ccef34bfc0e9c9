"""Forty things and more that a producer's token does not allow: each is refused, changes nothing, and is in the log.

What a producer's NATS credentials do not allow is in tests/harness/strangers/forbidden.py.
"""

from __future__ import annotations

import gzip
import json
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from schemas.prompts import PromptSubmitted
from serve_apps.http.gateway.settings import GatewaySettings
from tests.security.wire import Run, Wire, served

PROMPTS = "/v1/runs/sim/prompts"
MINE = json.dumps({"prompt": "a"}).encode()
MOST = 20_000
LINE = re.compile(r"refused: (\d{3}) (\w+) (\S+) of (.+?) at (\S+): (.+)")


@dataclass(frozen=True, slots=True)
class Try:
    """A request, and the statuses that refuse it. raw: all of its bytes, with HOST and TOKEN to be filled in. parsed:
    it is HTTP, so the gateway sees it and logs the refusal; what is none ends at the HTTP server."""

    name: str
    statuses: tuple[int, ...]
    method: str = "POST"
    path: str = PROMPTS
    body: bytes = MINE
    token: str | None = "TOKEN"
    headers: tuple[str, ...] = ()
    host: str | None = None
    raw: bytes = b""
    parsed: bool = True
    more: dict[str, int] = field(default_factory=dict)

    def bytes_of(self, wire: Wire, tokens: dict[str, str]) -> bytes:
        if self.raw:
            request = self.raw.replace(b"HOST", wire.authority.encode())
        else:
            request = wire.request(
                self.method, self.path, self.body, token=self.token, headers=self.headers, host=self.host, **self.more
            )
        for name, token in tokens.items():
            request = request.replace(name.encode(), token.encode())
        return request


def prompt(**fields: object) -> bytes:
    return json.dumps({"prompt": "a"} | fields).encode()


POST = f"POST {PROMPTS} HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\nAuthorization: Bearer TOKEN\r\n".encode()
JSON = b"Content-Type: application/json\r\n"
SMUGGLED = b"GET /healthz HTTP/1.1\r\nHost: HOST\r\n\r\n"
TRIES = (
    # who one is
    Try("no token", (401,), token=None),
    Try("a guess", (401,), token="guess" * 8),
    Try("a token that was revoked", (401,), token="REVOKED"),
    Try("a token that was replaced", (401,), token="ROTATED"),
    Try("the token of another run's source", (401,), token="FOREIGN"),
    Try("the digest that the file has", (401,), token="DIGEST"),
    Try("half a token", (401,), token="HALF"),
    Try("a token and more", (401,), token="TOKENx"),
    Try("a session's agent key", (401,), token="AGENT"),
    Try("the token in the query", (401,), token=None, path=f"{PROMPTS}?token=TOKEN"),
    Try("the token as a cookie", (401,), token=None, headers=("Cookie: token=TOKEN",)),
    Try("the token by Basic", (401,), token=None, headers=("Authorization: Basic VE9LRU46",)),
    Try("the token as x-api-key", (401,), token=None, headers=("X-Api-Key: TOKEN",)),
    # another run, another's group
    Try("another run", (404,), path="/v1/runs/other/prompts"),
    Try("every run", (404,), path="/v1/runs/*/prompts"),
    Try("a run by a NATS wildcard", (404,), path="/v1/runs/%3E/prompts"),
    Try("a run by a path", (404,), path="/v1/runs/../runs/sim/prompts"),
    Try("a run by a path that is encoded", (404,), path="/v1/runs/..%2Fsim/prompts"),
    Try("a run with a zero byte", (404,), path="/v1/runs/sim%00/prompts"),
    Try("another's group", (404,), "GET", "/v1/runs/sim/groups/GROUP", b""),
    Try("the events of another's group", (404,), "GET", "/v1/runs/sim/groups/GROUP/events", b""),
    Try("a group of the run's own data", (404,), "GET", "/v1/runs/sim/groups/train-0-000000", b""),
    Try("every group", (404,), "GET", "/v1/runs/sim/groups/*", b""),
    Try("all subjects", (404,), "GET", "/v1/runs/sim/groups/%3E", b""),
    Try("a group by a path", (404,), "GET", "/v1/runs/sim/groups/..%2F..%2F..%2Fetc%2Fpasswd", b""),
    # what is in a prompt
    Try("a prompt in another's name", (422,), body=prompt(sender="other")),
    Try("a prompt with its own group", (422,), body=prompt(group="train-0-000000")),
    Try("a prompt with its own grader", (422,), body=prompt(custom_rm_path="os:system")),
    Try("a prompt with a function to make it", (422,), body=prompt(generate_function_path="os:system")),
    Try("a prompt with its own tokens", (422,), body=prompt(tokens=[1, 2])),
    Try("a key that is too long", (422,), body=prompt(key="k" * 300)),
    Try("one key for several", (400,), body=b"[" + MINE + b"]", headers=("Idempotency-Key: k",)),
    # size and form
    Try("a large body", (413,), body=prompt(label="x" * MOST)),
    Try("a large body in chunks", (413,), raw=POST + JSON + b"Transfer-Encoding: chunked\r\n\r\n"
        + (b"2000\r\n" + b"x" * 0x2000 + b"\r\n") * 4 + b"0\r\n\r\n"),
    Try("many lines", (413,), body=(MINE + b"\n") * MOST, headers=("Content-Type: application/x-ndjson",)),
    Try("deep brackets", (400,), body=b"[" * 15_000),
    Try("no JSON", (422,), body=b"prompt=a"),
    Try("packed JSON", (422,), body=gzip.compress(MINE), headers=("Content-Encoding: gzip",)),
    Try("a pickle", (415,), body=b"\x80\x04.", headers=("Content-Type: application/x-pickle",)),
    Try("a form", (415,), body=b"prompt=a", headers=("Content-Type: application/x-www-form-urlencoded",)),
    Try("large headers", (0, 400, 431), headers=(f"X-Large: {'x' * (1 << 17)}",), parsed=False),
    # where it comes from
    Try("another host's name", (421,), host="rebound.example"),
    Try("no host", (400, 421), raw=POST.replace(b"Host: HOST\r\n", b"") + JSON + b"Content-Length: 15\r\n\r\n" + MINE),
    Try("two hosts", (400, 421), headers=("Host: rebound.example",)),
    Try("a host with a login", (421,), host="127.0.0.1@rebound.example"),
    Try("a host that is not a name", (400, 421), host="[::1"),
    Try("a web page", (403,), headers=("Origin: https://page.example",)),
    Try("a page without an origin", (403,), headers=("Origin: null",)),
    Try("what a web page asks first", (403,), "OPTIONS", PROMPTS, b"", None, ("Origin: https://page.example",)),
    # another method or route
    Try("removing prompts", (405,), "DELETE"),
    Try("writing a group", (405,), "PUT", "/v1/runs/sim/groups/GROUP"),
    Try("another method by a header", (405,), "GET", PROMPTS, b"", headers=("X-HTTP-Method-Override: POST",)),
    Try("tracing", (405,), "TRACE", PROMPTS, b""),
    Try("a tunnel", (0, 400, 404, 405), raw=b"CONNECT evil.example:443 HTTP/1.1\r\nHost: HOST\r\n\r\n", parsed=False),
    Try("the docs page", (404,), "GET", "/docs", b""),
    Try("a file", (404,), "GET", "/../../etc/passwd", b""),
    Try("opening no session by its name", (401,), "GET", "/v1/sessions/SESSION", b""),
    Try("sealing a session", (401,), "POST", "/v1/sessions/SESSION/seal", b'{"reward": 1}'),
    Try("a turn of a session", (401,), "POST", "/v1/chat/completions", b'{"messages": []}'),
    # two requests in one
    Try("length and chunks", (400,), raw=POST + JSON + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"0\r\n\r\n" + SMUGGLED, parsed=False),
    Try("two lengths", (400,), raw=POST + b"Content-Length: 15\r\nContent-Length: 4\r\n\r\n" + MINE, parsed=False),
    Try("a length that is none", (400,), raw=POST + JSON + b"Content-Length: +15\r\n\r\n" + MINE, parsed=False),
    Try("chunks by another name", (400,), raw=POST + b"Transfer-Encoding: xchunked\r\n\r\n" + MINE, parsed=False),
    Try("a space before the colon", (400,), raw=POST + JSON + b"Content-Length : 15\r\n\r\n" + MINE, parsed=False),
    Try("a chunk that lies", (400,), raw=POST + JSON + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", parsed=False),
)  # fmt: skip


@pytest.fixture
def refusals(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG)
    return caplog


async def test_what_a_producer_may_not_do(tmp_path: Path, refusals: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path)
    tokens = {"TOKEN": run.sources.issue("quiz"), "OTHER": run.sources.issue("other")}
    tokens |= {"REVOKED": run.sources.issue("gone"), "ROTATED": run.sources.issue("new"), "HALF": tokens["TOKEN"][:20]}
    run.sources.revoke("gone")
    run.sources.issue("new")
    tokens["DIGEST"] = json.loads((tmp_path / "gateway" / "sources.json").read_text())["quiz"]
    (tmp_path / "elsewhere").mkdir()
    elsewhere = type(run.sources)(tmp_path / "elsewhere")
    tokens |= {"FOREIGN": elsewhere.issue("quiz"), "AGENT": "s.0.key", "SESSION": "train-0-000000-s0.0"}
    settings = GatewaySettings(port=0, max_body=MOST)
    async with run.simulation, run.app(settings) as app, served(app, settings) as wire:
        other = await wire.ask(wire.request("POST", PROMPTS, prompt(key="theirs"), token=tokens["OTHER"]))
        tokens["GROUP"] = json.loads(other[1].partition(b"\r\n\r\n")[2])["groups"][0]["group"]
        let: list[tuple[str, int, bytes]] = []
        unsaid: list[tuple[str, int, list[str]]] = []
        for attempt in TRIES:
            refusals.clear()
            status, answer = await wire.ask(attempt.bytes_of(wire, tokens))
            if status not in attempt.statuses:
                let.append((attempt.name, status, answer[:200]))
            lines = [LINE.search(record.getMessage()) for record in refusals.records]
            if attempt.parsed and [int(line[1]) for line in lines if line] != [status]:
                unsaid.append((attempt.name, status, [record.getMessage() for record in refusals.records]))
            everything = " ".join(record.getMessage() for record in refusals.records)
            assert not [name for name in ("TOKEN", "REVOKED", "FOREIGN") if tokens[name] in everything], attempt.name
        assert not let, "\n".join(map(str, let))
        assert not unsaid, "\n".join(map(str, unsaid))
        assert len(TRIES) > 60
        assert len(run.simulation.events(PromptSubmitted, dataset="inbox")) == 1, "it had no effect"
        assert (await wire.ask(wire.request("POST", PROMPTS, MINE, token=tokens["TOKEN"])))[0] == 202


async def test_a_refusal_names_source_place_and_reason(tmp_path: Path, refusals: pytest.LogCaptureFixture) -> None:
    run = Run(tmp_path)
    token = run.sources.issue("quiz")
    settings = GatewaySettings(port=0)
    async with run.simulation, run.app(settings) as app, served(app, settings) as wire:
        await wire.ask(wire.request("POST", f"/v1/runs/{token}%0A/prompts", MINE, token=token))
    (line,) = [match for record in refusals.records if (match := LINE.search(record.getMessage()))]
    assert line.groups()[:5] == ("404", "POST", "/v1/runs/{run_name}/prompts", "quiz", "127.0.0.1")
    assert "***" in line[6], "the token is not said even where the client put it into a path"
    assert "\n" not in line[6]
