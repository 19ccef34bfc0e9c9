"""Bytes of anybody's: no decoder and no route breaks. `make soak` tries many more, and with coverage (`fuzz.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_apps.http.gateway.settings import GatewaySettings
from tests.security.decoders import DECODERS, Decoder
from tests.security.wire import Run

MANY = 1 if settings.default and settings.default.derandomize else 50
"""Examples of `make soak`, for one in the suite."""
PARTS = (
    b"",
    b"\x00",
    b"\xff" * 8,
    b"[" * 2000,
    b'{"a":' * 2000,
    b"\x91" * 2000,
    b"1e999",
    b"-0",
    b'"\\ud800"',
    b"9" * 400,
)
"""What breaks readers: depth, numbers beyond all bounds, half of a character."""
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(("\x00", "\ud800", ">")),
    lambda few: st.lists(few, max_size=4) | st.dictionaries(st.text(max_size=8), few, max_size=4),
    max_leaves=12,
)


@st.composite
def damaged(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """A seed with parts taken out, put in and doubled; or anything."""
    data = draw(st.sampled_from(seeds) if seeds else st.just(b""))
    for _ in range(draw(st.integers(0, 4))):
        begin, end = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
        data = (
            data[:begin] + draw(st.binary(max_size=8) | st.sampled_from(PARTS) | st.just(data[begin:end])) + data[end:]
        )
    return data


@st.composite
def renamed(draw: st.DrawFn, seed: bytes) -> bytes:
    """A JSON object with other values, also instead of a field's own."""
    fields: dict[str, Any] = json.loads(seed)
    for name in draw(st.lists(st.sampled_from(sorted(fields) or ["x"]), max_size=3)):
        fields[name] = draw(JSON)
    return json.dumps(fields | draw(st.dictionaries(st.text(max_size=8), JSON, max_size=2))).encode()


def read(decoder: Decoder, data: bytes) -> None:
    with contextlib.suppress(*decoder.raises):
        decoder.read(data)


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=20 * MANY)
@given(data=st.data())
def test_no_bytes_break_a_decoder(name: str, data: st.DataObject) -> None:
    decoder = DECODERS[name]
    objects = [renamed(seed) for seed in decoder.seeds if seed[:1] == b"{"]
    read(decoder, data.draw(st.one_of(st.binary(max_size=64), damaged(decoder.seeds), *objects)))


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_reads_what_is_right_and_survives_what_breaks_others(name: str) -> None:
    decoder = DECODERS[name]
    for data in (*PARTS, *(b"[" * depth + b"]" * depth for depth in (500, 100_000))):
        read(decoder, data)
    if name.endswith(("envelope", "segment", "frame", "shard", "credentials", "manifest")):
        for seed in decoder.seeds:
            assert decoder.read(seed) is not None


@pytest.mark.soak
@pytest.mark.parametrize("name", DECODERS)
def test_no_path_through_a_decoder_breaks(name: str, tmp_path: Path) -> None:
    """Fuzz by coverage: atheris looks for new paths."""
    pytest.importorskip("atheris", reason="pip install --group fuzz; it has wheels for some Pythons only")
    words = [sys.executable, "-m", "tests.security.fuzz", name, "--seconds", "30", "--found", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


PATHS = [
    ("POST", f"/v1/runs/sim/{kind}", seed)
    for kind, seed in (
        ("prompts", b'{"key": "k", "prompt": "a"}'),
        ("trajectories", b'{"key": "k", "prompt": "a", "samples": [{"tokens": [1], "reward": 1.0}]}'),
        ("rewards", b'{"sample": "s", "reward": 1.0}'),
        ("sessions", b'{"wait_s": 0}'),
    )
] + [
    ("POST", "/v1/sessions/{NAME}/seal", b'{"reward": 1.0}'),
    ("GET", "/v1/sessions/{NAME}", b"{}"),
    ("POST", "/v1/chat/completions", b'{"messages": [{"role": "user", "content": "a"}]}'),
    ("POST", "/v1/responses", b'{"input": "a"}'),
    ("POST", "/v1/messages", b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}'),
    ("POST", "/v1/messages/count_tokens", b'{"messages": [{"role": "user", "content": "a"}]}'),
    ("POST", "/generate", b'{"text": "a"}'),
    ("GET", "/v1/runs/sim/groups/g", b"{}"),
]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as folder:
        yield Run(Path(folder))


@pytest.mark.parametrize(("method", "path", "seed"), PATHS, ids=lambda value: value if isinstance(value, str) else "")
@settings(max_examples=6 * MANY)
@given(data=st.data())
def test_no_request_breaks_a_route(run: Run, method: str, path: str, seed: bytes, data: st.DataObject) -> None:
    """Answer every client with a token by what is wrong. 503: the run is not on."""
    body = data.draw(st.one_of(damaged((seed,)), renamed(seed)))
    headers = data.draw(
        st.dictionaries(
            st.sampled_from(
                ("idempotency-key", "content-type", "x-stainless-retry-count", "accept", "content-encoding")
            ),
            st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)
            | st.sampled_from(("application/json", "application/x-ndjson", "-1", "9" * 30)),
        )
    )
    status = asyncio.run(_status(run, method, path, body, headers))
    assert status < 500 or status == 503, status


async def _status(run: Run, method: str, path: str, body: bytes, headers: dict[str, str]) -> int:
    name = "train-0-000000-s0.0"
    harness, agent = (run.keys.of(name, kind) for kind in ("control", "agent"))  # type: ignore[arg-type]
    key = harness if "{NAME}" in path else run.sources.issue("quiz") if "/runs/" in path else f"{name}.{agent}"
    settings = GatewaySettings()
    async with run.app(settings) as app:
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8500") as client:
            all_headers = {"content-type": "application/json"} | headers | {"authorization": f"Bearer {key}"}
            answer = await client.request(method, path.format(NAME=name), content=body, headers=all_headers)
            return answer.status_code
