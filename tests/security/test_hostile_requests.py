"""Any bytes in a path, a query, a header or a body, over a real socket: an answer of JSON below 500, and the gateway
continues. 503: the run is not on.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_apps.http.gateway.settings import GatewaySettings
from tests.agents.stage import Stage
from tests.scripted_engine import Script
from tests.security.wire import Run, served

NAME = "train-0-000000-s0.0"
HALF, LOW, NUL = "\ud83d", "\udc00", "\x00"
DEEP = 3000
BYTES = st.binary(max_size=40) | st.sampled_from(
    (
        b"\xff\xfe",
        b"\x00",
        b"%00",
        b"%ed%a0%bd",
        b"%",
        b"%zz",
        b"../" * 20,
        b"\xc3\xa9",
        b"${HOME}",
        b"a" * 5000,
        b"*",
        b">",
    )
)
SAFE = st.text(st.characters(min_codepoint=33, max_codepoint=255, exclude_characters="\x7f"), max_size=30)
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *("idempotency-key", "content-type", "content-length", "accept", "user-agent", "origin", "host"),
                *("authorization", "x-api-key", "x-stainless-retry-count", "content-encoding", "expect", "upgrade"),
                *("transfer-encoding", "connection", "cookie", "x-forwarded-for", "x-forwarded-proto", "range"),
            )
        ),
        SAFE | st.sampled_from(("-1", "9" * 400, "chunked", "gzip", "100-continue", "Bearer", "Bearer a b", "é" * 50)),
    ),
    max_size=4,
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from((10**400, -(2**63) - 1, 2**64, HALF, LOW, NUL, "\u202e", "\x1b[2J", "a" * 10_000, "", "${HOME}"))
    | st.text(max_size=10),
    lambda few: st.lists(few, max_size=3) | st.dictionaries(st.text(max_size=6) | st.just(HALF), few, max_size=3),
    max_leaves=8,
)
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "m",
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "c"},
        ],
        "tools": [
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
        ],
    },
    "/v1/responses": {
        "model": "m",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "o"},
        ],
        "instructions": "i",
    },
    "/v1/messages": {
        "model": "m",
        "max_tokens": 4,
        "system": "s",
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}]},
        ],
    },
    "/v1/messages/count_tokens": {"model": "m", "messages": [{"role": "user", "content": "a"}]},
    "/generate": {"text": "a", "sampling_params": {"max_new_tokens": 4, "stop": ["x"]}},
    f"/v1/sessions/{NAME}/seal": {"reward": 1.0, "rewards": {"0": 1.0}, "exit_code": 0, "metadata": {"a": "b"}},
    "/v1/runs/sim/sessions": {"group": "g", "wait_s": 0},
    "/v1/runs/sim/prompts": {"key": "k", "prompt": "a", "label": "l", "metadata": {"a": 1}},
    "/v1/runs/sim/trajectories": {"key": "k", "prompt": "a", "samples": [{"tokens": [1], "reward": 1.0, "text": "t"}]},
    "/v1/runs/sim/rewards": {"sample": "s", "reward": 1.0},
}
PATHS_OF_TURNS = [
    path for path in ASKED if path == "/generate" or path.startswith(("/v1/chat", "/v1/resp", "/v1/mess"))
]
PATHS = [
    *ASKED,
    "/v1/models",
    "/healthz",
    "/openapi.json",
    "/v1/runs/sim/groups/g",
    "/v1/runs/sim/groups/g/events",
    f"/v1/sessions/{NAME}",
    "/",
]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as folder:
        yield Run(Path(folder))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places in a JSON value that have values."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner_value in inner:
        yield from places(inner_value, (*path, name))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The value with another one in this place."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = put(value[path[0]], path[1:], new)
    return copy


def key_of(run: Run, path: str) -> str:
    harness, agent = (run.keys.of(NAME, kind) for kind in ("control", "agent"))  # type: ignore[arg-type]
    return harness if NAME in path else run.sources.issue("quiz") if "/runs/" in path else f"{NAME}.{agent}"


async def answers(run: Run, requests: list[bytes]) -> list[tuple[int, bytes]]:
    """One connection each, and whether the gateway is well after them."""
    settings = GatewaySettings(port=0, head_s=1.0, body_s=1.0, streams=10_000)
    async with run.app(settings) as app, served(app, settings) as wire:
        replies = [await wire.ask(item.replace(b"HOST", wire.authority.encode())) for item in requests]
        assert (await wire.ask(wire.request("GET", "/healthz")))[0] == 200
        return replies


def check(status: int, answer: bytes) -> None:
    assert status < 500 or status == 503, answer
    if status >= 400:
        body = answer.partition(b"\r\n\r\n")[2]
        assert json.loads(body), "an error is JSON"


def request(method: str, path: bytes, key: str, body: bytes, headers: list[tuple[str, str]] = ()) -> bytes:  # type: ignore[assignment]
    names = {name for name, _ in headers}
    lines = [f"{name}: {value}".encode("latin-1") for name, value in headers]
    defaults = {"host": "HOST", "connection": "close", "authorization": f"Bearer {key}"}
    defaults |= {"content-type": "application/json", "content-length": f"{len(body)}"} if method == "POST" else {}
    lines += [f"{name}: {value}".encode() for name, value in defaults.items() if name not in names]
    return b"\r\n".join((method.encode() + b" " + path + b" HTTP/1.1", *lines, b"", body))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_path_query_and_headers(run: Run, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(PATHS))
    where = path.encode() + data.draw(st.sampled_from((b"", b"?", b"/"))) + data.draw(BYTES)
    if data.draw(st.booleans()):
        where = path.encode()
    method = "POST" if path in ASKED else "GET"
    method = data.draw(st.sampled_from((method, method, method, "HEAD", "PUT", "OPTIONS", "DELETE")))
    sent = request(method, where, key_of(run, path), json.dumps(ASKED.get(path, {})).encode(), data.draw(HEADERS))
    for status, answer in asyncio.run(answers(run, [sent])):
        if method != "HEAD":
            check(status, answer)


@pytest.mark.parametrize("path", ASKED)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_value_in_any_place(run: Run, path: str, data: st.DataObject) -> None:
    body = ASKED[path]
    for _ in range(data.draw(st.integers(1, 2))):
        body = put(body, data.draw(st.sampled_from(sorted(places(body), key=str))), data.draw(VALUES))
        if not isinstance(body, dict):
            break
    encoded = json.dumps(body).encode()
    sent = request("POST", path.encode(), key_of(run, path), encoded)
    for status, answer in asyncio.run(answers(run, [sent])):
        check(status, answer)


HOSTILE: dict[str, bytes] = {
    "half a character": b'"\\ud83d"',
    "its other half": b'"\\udc00"',
    "NUL": b'"\\u0000"',
    "not UTF-8": b'"\xff\xfe"',
    "a half in UTF-8": b'"\xed\xa0\xbd"',
    "a deep list": b"[" * DEEP + b"]" * DEEP,
    "a deep object": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "a number beyond all": b"9" * 5000,
    "1e999": b"1e999",
    "not a number": b"NaN",
    "a half in a name": b'{"\\ud83d": 1}',
    "the same name twice": b'{"a": 1, "a": "\\ud83d"}',
    "half a character in JSON in a text": b'"{\\"a\\": \\"\\\\ud83d\\"}"',
    "a deep list in a text": b'"' + b"[" * DEEP + b'"',
    "a number beyond all in a text": b'"' + b"9" * 5000 + b'"',
    "1e999 in a text": b'"1e999"',
    "an escape": b'"\\u001b[2J"',
}


@pytest.mark.parametrize("path", ASKED)
def test_each_hostile_value_in_each_place(run: Run, path: str) -> None:
    mark, body, key = "MARK-5e1", ASKED[path], key_of(run, path)
    sent = list[bytes]()
    for place in list(places(body))[1:]:
        template = json.dumps(put(body, place, mark)).encode()
        sent += [
            request("POST", path.encode(), key, template.replace(b'"%s"' % mark.encode(), value))
            for value in HOSTILE.values()
        ]
    for request_, (status, answer) in zip(sent, asyncio.run(answers(run, sent)), strict=True):
        try:
            check(status, answer)
        except AssertionError as error:
            raise AssertionError(request_[-300:]) from error


@pytest.mark.parametrize("path", PATHS_OF_TURNS)
async def test_each_hostile_value_in_a_session_that_is_open(tmp_path: Path, path: str) -> None:
    """Generate and record what is accepted, then seal the session and read its log as usual."""
    stage = Stage(tmp_path)
    async with stage.simulation, stage.gateway() as client:
        stage.simulation.start_engine(Script(chunk=8))
        session = await stage.open(client)
        headers = {"authorization": f"Bearer {session['agent_key']}", "content-type": "application/json"}
        plain = {name: value for name, value in ASKED[path].items() if name != "tools"}  # without a parser
        fine = await client.post(path, json=plain, headers=headers)
        assert fine.status_code == 200, fine.text
        for place in list(places(plain))[1:]:
            template = json.dumps(put(plain, place, "MARK-5e1")).encode()
            for name, value in HOSTILE.items():
                body = template.replace(b'"MARK-5e1"', value)
                answer = await client.post(path, content=body, headers=headers)
                assert answer.status_code < 500, (name, place, answer.text)
                assert answer.json(), (name, place)
        headers["authorization"] = f"Bearer {session['control_key']}"
        for value in HOSTILE.values():
            for template in (b'{"reward": %s}', b'{"exit_code": %s}', b'{"reward": 1, "metadata": {"a": [%s]}}'):
                where = f"/v1/sessions/{session['session']}/seal"
                answer = await client.post(where, content=template % value, headers=headers)
                assert answer.status_code < 500, (value[:20], template, answer.text)
        assert [record async for record in stage.simulation.log.read(1)]
