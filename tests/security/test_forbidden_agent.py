"""Forty things and more that an agent's key does not allow: each is refused, changes nothing, and is in the log."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest

from schemas.event import Event
from schemas.sessions import SessionOpened, SessionSealed
from schemas.turns import TurnRecorded
from serve_apps.http.gateway.settings import GatewaySettings
from storage.nats.accounts import guard
from storage.nats.server import NatsServer
from tests.scripted_engine import Script
from tests.security.test_forbidden_producer import LINE, Try
from tests.security.wire import Run, Wire, served

CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}).encode()
MOST = 20_000


def chat(**fields: Any) -> bytes:
    return json.dumps(json.loads(CHAT) | fields).encode()


def part(**content: Any) -> bytes:
    return chat(messages=[{"role": "user", "content": [content]}])


MINE = "/v1/sessions/AGENT/v1/chat/completions"
SGLANG = "/v1/sessions/AGENT/generate"
PLAIN = json.dumps({"text": "hello", "sampling_params": {"max_new_tokens": 4}}).encode()


def generate(**fields: Any) -> bytes:
    return json.dumps(json.loads(PLAIN) | fields).encode()


TRIES = (
    # who one is
    Try("no key", (401,), "POST", "/v1/chat/completions", CHAT, None),
    Try("a session's name alone", (401,), "POST", "/v1/sessions/NAME/v1/chat/completions", CHAT, None),
    Try("a name and a point", (401,), "POST", "/v1/sessions/NAME./v1/chat/completions", CHAT, None),
    Try("half a key", (401,), "POST", "/v1/sessions/HALF/v1/chat/completions", CHAT, None),
    Try("a key and more", (401,), "POST", "/v1/sessions/AGENTx/v1/chat/completions", CHAT, None),
    Try("the key in capitals", (401,), "POST", "/v1/sessions/CAPITALS/v1/chat/completions", CHAT, None),
    Try("the key of another run's gateway", (401,), "POST", "/v1/chat/completions", CHAT, "FOREIGN"),
    Try("the control key for turns", (401,), "POST", "/v1/chat/completions", CHAT, "NAME.CONTROL"),
    Try("a source's token for turns", (401,), "POST", "/v1/chat/completions", CHAT, "SOURCE"),
    Try("the key in the query", (401,), "POST", "/v1/chat/completions?key=AGENT", CHAT, None),
    Try("the key as a cookie", (401,), "POST", "/v1/chat/completions", CHAT, None, ("Cookie: key=AGENT",)),
    Try("a wrong key beside a right one", (401,), "POST", "/v1/sessions/NAME.x/v1/chat/completions", CHAT, "AGENT"),
    # another session
    Try("its own key for another session", (401,), "POST", "/v1/sessions/SWAPPED/v1/chat/completions", CHAT, None),
    Try("another attempt", (401,), "POST", "/v1/sessions/ATTEMPT/v1/chat/completions", CHAT, None),
    Try("another's state", (401,), "GET", "/v1/sessions/OTHER", b"", "AGENT"),
    Try("sealing another", (401,), "POST", "/v1/sessions/OTHER/seal", b'{"reward": 0}', "AGENT"),
    Try("another session by a path", (404,), "POST", "/v1/sessions/AGENT/../OTHER/v1/chat/completions", CHAT, None),
    Try("a path that is encoded", (404, 401), "POST", "/v1/sessions/AGENT%2F..%2FOTHER/v1/models", CHAT, None),
    Try("a zero byte", (401,), "POST", "/v1/sessions/NAME%00.KEY/v1/chat/completions", CHAT, None),
    # what is its harness's
    Try("its own state", (401,), "GET", "/v1/sessions/NAME", b"", "AGENT"),
    Try("its own reward", (401,), "POST", "/v1/sessions/NAME/seal", b'{"reward": 1}', "AGENT"),
    Try("its own end", (401,), "POST", "/v1/sessions/NAME/seal", b'{"exit_code": 0}', "KEY"),
    Try("its own reward by its address", (401, 404), "POST", "/v1/sessions/AGENT/seal", b'{"reward": 1}', None),
    Try("its own reward by its address and key", (401,), "POST", "/v1/sessions/AGENT/seal", b'{"reward": 1}', "AGENT"),
    Try("its reward as x-api-key", (401,), "POST", "/v1/sessions/NAME/seal", b"{}", None, ("X-Api-Key: CONTROL",)),
    Try("another session", (401,), "POST", "/v1/runs/sim/sessions", b"{}", "AGENT"),
    Try("prompts", (401,), "POST", "/v1/runs/sim/prompts", b'{"prompt": "a"}', "AGENT"),
    Try("finished trajectories", (401,), "POST", "/v1/runs/sim/trajectories", b"{}", "AGENT"),
    Try("rewards of samples", (401,), "POST", "/v1/runs/sim/rewards", b'{"sample": "x", "reward": 1}', "AGENT"),
    Try("what became of a group", (401,), "GET", "/v1/runs/sim/groups/train-0-000000", b"", "AGENT"),
    Try("another run", (401, 404), "POST", "/v1/runs/other/sessions", b"{}", "AGENT"),
    # what is in a turn
    Try("a picture at a URL", (400,), "POST", MINE,
        part(type="image_url", image_url={"url": "http://169.254.169.254/latest"}), None),
    Try("a picture of a file", (400,), "POST", MINE, 
        part(type="image_url", image_url={"url": "file:///etc/passwd"}), None),
    Try("a sound", (400,), "POST", MINE, part(type="input_audio", input_audio={"data": "", "format": "wav"}), None),
    Try("a file", (400,), "POST", MINE, part(type="file", file={"file_id": "../../etc/passwd"}), None),
    Try("several answers", (400,), "POST", MINE, chat(n=2), None),
    Try("a field that nobody knows", (400,), "POST", MINE, chat(run_this="os.system"), None),
    Try("code that chooses tokens", (400,), "POST", SGLANG, generate(custom_logit_processor="gASV"), None),
    Try("weights of its own", (400,), "POST", SGLANG, generate(lora_path="/tmp/lora"), None),
    Try("embeddings in place of tokens", (400,), "POST", SGLANG, generate(input_embeds=[[0.0]]), None),
    Try("a picture for the engine", (400,), "POST", SGLANG, generate(image_data="http://evil.example/x.png"), None),
    Try("another engine's session", (400,), "POST", SGLANG, generate(session_params={"id": "x"}), None),
    Try("tokens below zero", (400,), "POST", SGLANG, json.dumps({"input_ids": [-1]}).encode(), None),
    Try("an answer without an end", (400,), "POST", MINE, chat(max_tokens=-1), None),
    Try("a role that there is not", (400,), "POST", MINE, chat(messages=[{"role": "root", "content": "a"}]), None),
    Try("deep brackets", (400,), "POST", MINE, b"[" * 15_000, None),
    Try("no JSON", (400,), "POST", MINE, b"\x80\x04.", None, ("Content-Type: application/x-pickle",)),
    Try("a number that is none", (400,), "POST", MINE, b'{"messages": [], "temperature": NaN}', None),
    Try("a large body", (413,), "POST", MINE, chat(user="x" * MOST), None),
    # where it comes from, and how
    Try("another host's name", (421,), "POST", MINE, CHAT, None, (), "rebound.example"),
    Try("a web page", (403,), "POST", MINE, CHAT, None, ("Origin: https://page.example",)),
    Try("reading a turn", (405,), "GET", MINE, b"", None),
    Try("removing its session", (405,), "DELETE", "/v1/sessions/NAME", b"", "AGENT"),
    Try("length and chunks", (400,), raw=f"POST {MINE} HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\n".encode()
        + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", parsed=False),
)  # fmt: skip


async def opened(wire: Wire, token: str) -> dict[str, str]:
    status, answer = await wire.ask(wire.request("POST", "/v1/runs/sim/sessions", b'{"wait_s": 20}', token=token))
    assert status == 201, answer
    return dict(json.loads(answer.partition(b"\r\n\r\n")[2]))


def standing(run: Run) -> list[Event]:
    """Return the lasting events of all sessions."""
    return [event for kind in (SessionOpened, SessionSealed, TurnRecorded) for event in run.simulation.events(kind)]


async def test_what_an_agent_may_not_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    run, settings = Run(tmp_path), GatewaySettings(port=0, max_body=MOST)
    source = run.sources.issue("team")
    async with run.simulation, run.app(settings) as app, served(app, settings) as wire:
        run.simulation.start_engine(Script(chunk=4))
        mine, other = await opened(wire, source), await opened(wire, source)
        key, name = mine["agent_key"].rpartition(".")[2], mine["session"]
        words = {
            "SOURCE": source, "NAME": name, "OTHER": other["session"], "CONTROL": mine["control_key"],
            "SWAPPED": f"{other['session']}.{key}", "ATTEMPT": f"{mine['sample']}.7.{key}",
            "HALF": mine["agent_key"][:-10], "CAPITALS": f"{name}.{key.swapcase()}",
            "FOREIGN": f"{name}.{type(run.keys)(b'another').of(name, 'agent')}",  # type: ignore[arg-type]
            "AGENT": mine["agent_key"], "KEY": key,
        }  # fmt: skip
        before, let, unsaid = standing(run), [], []
        for attempt in TRIES:
            caplog.clear()
            status, answer = await wire.ask(attempt.bytes_of(wire, words))
            if status not in attempt.statuses:
                let.append((attempt.name, status, answer[-200:]))
            lines = [record.getMessage() for record in caplog.records]
            if attempt.parsed and [int(line[1]) for line in map(LINE.search, lines) if line] != [status]:
                unsaid.append((attempt.name, status, lines))
            assert not [word for word in ("KEY", "CONTROL", "SOURCE") if words[word] in " ".join(lines)], attempt.name
        assert not let, "\n".join(map(str, let))
        assert not unsaid, "\n".join(map(str, unsaid))
        assert len(TRIES) > 50
        assert standing(run) == before, "it had no effect"
        await _late(wire, words, mine)


async def _late(wire: Wire, words: dict[str, str], mine: dict[str, str]) -> None:
    """Try what an agent may do until its session is sealed, and not afterwards."""
    turn = wire.request("POST", MINE.replace("AGENT", words["AGENT"]), CHAT)
    assert (await wire.ask(turn))[0] == 200
    seal = wire.request("POST", f"/v1/sessions/{words['NAME']}/seal", b'{"reward": 1}', token=mine["control_key"])
    assert (await wire.ask(seal))[0] == 200
    late = wire.request("POST", MINE.replace("AGENT", words["AGENT"]), CHAT.replace(b"hello", b"again"))
    assert (await wire.ask(late))[0] == 409


async def test_an_agent_writes_no_event(tmp_path: Path) -> None:
    """Its key, and all that it gets, open nothing at the run's NATS server."""
    guard(tmp_path, "sim")
    key = "train-0-000000-s0.0.Zm9yYmlkZGVu"
    async with await NatsServer.start(tmp_path) as server:
        for proof in ({}, {"token": key}, {"user": "slime-roles", "password": key}, {"user": key, "password": key}):
            with pytest.raises((nats.errors.Error, OSError)):
                await nats.connect(server.url, allow_reconnect=False, connect_timeout=2, **proof)
