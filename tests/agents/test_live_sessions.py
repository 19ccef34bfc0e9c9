"""A session as a gateway knows it: its keys, its turns, whether it takes more of them, and what is kept of requests."""

from __future__ import annotations

import asyncio
import base64
import stat
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from schemas.arrays import pack_log_probs, pack_tokens, unpack
from schemas.rollouts import FailureKind, StopReason
from schemas.sessions import SealReason, SessionOpened, SessionSealed
from schemas.turns import AgentTurn, TurnRecorded
from serve_apps.http.gateway import agents as keys_module
from serve_apps.http.gateway.agents import Capability, SessionKeys, session_keys
from serve_apps.rollouts.agents.agent_request import AgentRequest, Content, DialectName, Part
from serve_apps.rollouts.agents.live_session import LiveSession, LoadedTurn, Turn, TurnRefused, check_open
from serve_apps.rollouts.agents.off_loop import SMALL, off_loop
from serve_apps.rollouts.agents.parsing import ParserNames, Parsers
from serve_apps.rollouts.agents.reading import AllRequests, Requests
from serve_apps.rollouts.agents.setup import AgentRules
from serve_apps.rollouts.calls import Call
from slime_events.core.sessions.session import Session
from slime_events.core.tokens.trajectory import Trajectory
from tests import made
from tests.agents.stage import RULES, TOKENIZER

ASKED = AgentRequest(DialectName.CHAT, "m")


def test_a_key_is_of_one_session_and_one_capability() -> None:
    keys, other = SessionKeys(b"secret"), SessionKeys(b"another")
    mine = keys.of("s.0", Capability.AGENT)
    assert len(base64.urlsafe_b64decode(mine + "=")) == 32
    assert "=" not in mine
    assert keys.check("s.0", mine, Capability.AGENT)
    assert not keys.check("s.0", mine, Capability.CONTROL)
    assert not keys.check("s.1", mine, Capability.AGENT)
    assert not other.check("s.0", mine, Capability.AGENT)
    assert not keys.check("s.0", "", Capability.AGENT)
    assert not keys.check("s.0", "\u4e16", Capability.AGENT)


def test_a_bearer_s_session() -> None:
    keys = SessionKeys(b"secret")
    mine, control = keys.of("s.0", Capability.AGENT), keys.of("s.0", Capability.CONTROL)
    assert keys.session_of(f"s.0.{mine}") == "s.0"
    for bearer in (mine, f"s.1.{mine}", f"s.0.{control}", "s.0", "", ".", f".{mine}", f"s.0.{mine}.x"):
        assert keys.session_of(bearer) is None
    assert keys.session_of(keys.of("", Capability.AGENT)) is None


def test_gateways_of_a_run_have_one_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run" / "keys"
    mine = session_keys(folder).of("s", Capability.AGENT)
    assert session_keys(folder).of("s", Capability.AGENT) == mine
    assert session_keys(tmp_path / "other").of("s", Capability.AGENT) != mine
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / keys_module.FILE)] == [0o700, 0o600]
    assert len((folder / keys_module.FILE).read_text()) == 43

    def faster(path: Path, text: str, *, new: bool) -> None:
        assert new
        path.write_text("theirs")
        raise FileExistsError

    monkeypatch.setattr(keys_module, "write_private", faster)
    assert session_keys(tmp_path / "third").of("s", Capability.AGENT) == SessionKeys(b"theirs").of(
        "s", Capability.AGENT
    )


REQUEST = made.requested(max_new_tokens=4, attempt=1)
OPENED = SessionOpened(sample="g-s0", attempt=1, group="g", sender="t", key="k", gateway="gw")
SEALED = SessionSealed(
    sample="g-s0", attempt=1, reason=SealReason.IDLE, gateway="gw", exit_code=None, reward=None, rewards={}, leaves=(),
    orphans=(), credit="all", metadata={}, turns=0, seconds=0.0, discount=1.0,  # type: ignore[arg-type]
)  # fmt: skip
FAILED = made.failed("g-s0", attempt=1, kind=FailureKind.AGENT, message="x", engine="gw")


@pytest.mark.parametrize(
    ("name", "more", "status"),
    [
        ("g-s0.1", {"opened": OPENED}, None),
        ("g-s0.0", {"opened": OPENED}, 409),
        ("g-s0.1", {}, 404),
        ("g-s0.1", {"opened": OPENED, "sealed": SEALED}, 409),
        ("g-s0.1", {"opened": OPENED, "ended": FAILED}, 409),
    ],
)
def test_whether_a_session_takes_turns(name: str, more: dict[str, Any], status: int | None) -> None:
    live = LiveSession(name, Session("g-s0", request=REQUEST, **more), unpack)
    assert live.takes_turns is (status is None)
    if status is None:
        check_open(live)
    else:
        with pytest.raises(TurnRefused) as error:
            check_open(live)
        assert (error.value.status, error.value.again_s) == (status, None)


def recorded(index: int, extends: int | None, observed: list[int], generated: list[int], **more: Any) -> TurnRecorded:
    agent = AgentTurn(
        key="", dialect="chat", call="c", messages=(f"m{index}",), answered=more.pop("answered", f"a{index}"), frame="f"
    )
    fields = {"stop": StopReason.STOP} | more
    return made.turn(
        "g-s0", index=index, extends=extends, observed=pack_tokens(observed), tokens=pack_tokens(generated),
        log_probs=pack_log_probs([-1.0] * len(generated)), agent=agent, **fields,
    )  # fmt: skip


def live_of(*turns: TurnRecorded) -> LiveSession:
    session = Session("g-s0", request=REQUEST, opened=OPENED)
    for turn in turns:
        session._record(turn)
    return LiveSession("g-s0.1", session, unpack)


FOREST = (recorded(0, None, [1], [2]), recorded(1, 0, [3], [4]), recorded(2, None, [5], [6]), recorded(3, 1, [], [7]))


def test_the_turns_of_a_session() -> None:
    live = live_of(*FOREST)
    assert [turn.index for turn in live.turns()] == [0, 1, 2, 3]
    assert live.turn(1) is live.turn(1)
    assert (live.turn(1).extends, live.turn(1).frame, live.turn(1).messages) == (0, "f", ("m1",))
    answered = live.answered("a2")
    assert answered is not None
    assert (answered.index, answered.stop, live.answered("none")) == (2, StopReason.STOP, None)
    assert live.end(3).whole().tolist() == [1, 2, 3, 4, 7]
    assert live.end(2).whole().tolist() == [5, 6]
    assert live.end(0).whole().tolist() == [1, 2]
    assert live.prompt(3, np.array([8], np.int32)).whole().tolist() == [1, 2, 3, 4, 7, 8]
    assert live.prompt(None, np.array([8], np.int32)).whole().tolist() == [8]
    again = recorded(0, None, [9], [2])
    live.folded._record(again)
    assert live.turn(0).observed.tolist() == [9], "of another attempt"
    assert LoadedTurn.of(recorded(0, None, [1], [2], stop=None), unpack).stop is StopReason.STOP


def test_turns_that_are_fixed_stay_as_they_were() -> None:
    live = live_of(*FOREST[:2], recorded(2, None, [5], [6], answered="a1"))
    fixed = live.fixed()
    live.folded._record(FOREST[3])
    assert [turn.index for turn in fixed.turns()] == [0, 1, 2]
    newest = fixed.answered("a1")
    assert newest is not None
    assert (newest.index, fixed.answered("a3")) == (2, None)


class Turns:
    """A turn of which a call tells bit by bit."""

    def __init__(self) -> None:
        self.call = Call(REQUEST, Trajectory("g-s0", REQUEST.prompt))
        self.recording: asyncio.Future[LoadedTurn] = asyncio.Future()
        reader = Parsers(ParserNames(), TOKENIZER).reader(ASKED, "t", [])
        self.turn = Turn("t", 1, ASKED, np.array([1], np.int32), reader, self.call)
        self.turn.task = asyncio.ensure_future(self._record())
        self._notices = list[int]()
        self.tell([])

    async def _record(self) -> LoadedTurn:
        return await self.recording

    def tell(self, tokens: Sequence[int]) -> None:
        self._notices += tokens
        self.call.trajectory = Known(np.array(self._notices, np.int32))  # type: ignore[assignment]
        self.call.moved.set()


class Known:
    """The tokens so far."""

    def __init__(self, tokens: Any) -> None:
        self.tokens, self.length = tokens, len(tokens)
        self.log_probs = -tokens.astype(np.float32)


def tokens_of(parts: Sequence[Part]) -> list[tuple[int, float]]:
    """Tokens and log-probs of parts."""
    contents = [part for part in parts if isinstance(part, Content)]
    return [pair for part in contents for pair in zip(part.tokens, part.log_probs, strict=True)]


async def test_an_answer_is_read_once_as_it_comes_and_its_rest_from_the_log() -> None:
    turns = Turns()
    parts, beside = turns.turn.parts(60.0), replace(turns.turn, request=ASKED).parts(60.0)
    turns.tell([5, 6])
    assert tokens_of(await anext(parts)) == [(5, -5.0), (6, -6.0)]
    turns.tell([7])
    assert tokens_of(await anext(parts)) == [(7, -7.0)]
    assert tokens_of(await anext(beside)) == [(5, -5.0), (6, -6.0), (7, -7.0)], "of the same reader"
    turns.recording.set_result(LoadedTurn.of(recorded(0, None, [1], [5, 6, 7, 8]), unpack))
    for of_one in (parts, beside):
        assert tokens_of([part for rest in [item async for item in of_one] for part in rest]) == [(8, -1.0)]
    (whole,) = [item async for item in turns.turn.parts(60.0)]
    assert tokens_of(whole) == [(5, -5.0), (6, -6.0), (7, -7.0), (8, -1.0)]
    answer = await turns.turn.answer()
    assert (answer.tokens, answer.log_probs) == ((5, 6, 7, 8), (-1.0,) * 4)
    assert (answer.text, answer.message) == (turns.turn.reader.text, turns.turn.reader.message)
    assert turns.turn.reader.length == 4


async def test_the_end_of_an_answer_comes_once_the_log_has_the_turn() -> None:
    turns = Turns()
    parts = turns.turn.parts(0.001)
    turns.tell([5])
    assert tokens_of(await anext(parts)) == [(5, -5.0)]
    turns.turn.read(np.array([5], np.int32), np.array([-5.0], np.float32), StopReason.STOP)
    turns.turn.reader.last = [Content("held back")]
    assert await anext(parts) == []
    turns.recording.set_result(LoadedTurn.of(recorded(0, None, [1], [5]), unpack))
    assert [item async for item in parts] == [[Content("held back")]]


async def test_a_stream_that_is_quiet_says_so() -> None:
    turns = Turns()
    parts = turns.turn.parts(0.001)
    assert [await anext(parts) for _ in range(2)] == [[], []]
    turns.recording.set_exception(TurnRefused(504, "no"))
    with pytest.raises(TurnRefused):
        _ = [part async for part in parts]


async def test_whoever_waits_for_a_turn_does_not_end_it() -> None:
    turns = Turns()
    waiting = asyncio.create_task(turns.turn.end())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    turns.recording.set_result(loaded := LoadedTurn.of(FOREST[0], unpack))
    assert await turns.turn.end() is loaded
    assert turns.turn.recorded is loaded


async def test_large_requests_are_read_beside_others() -> None:
    assert await off_loop(1000, threading.get_ident) == threading.get_ident()
    assert await off_loop(10**6, threading.get_ident) != threading.get_ident()
    assert await off_loop(SMALL, threading.get_ident) == threading.get_ident()
    assert await off_loop(SMALL + 1, threading.get_ident) != threading.get_ident()


def test_the_bodies_of_four_turns_are_kept() -> None:
    requests = Requests()
    for turn in range(6):
        requests.keep(turn, bytes([turn]) * (turn + 1))
    assert list(requests.bodies) == [2, 3, 4, 5]
    assert requests.size == 3 + 4 + 5 + 6
    requests.keep(6, requests.bodies[5])
    assert requests.size == 4 + 5 + 6, "one body is counted once"


def test_rules_say_how_long_a_request_may_be() -> None:
    def rules(context: int | None, room: int | None) -> AgentRules:
        return replace(RULES, context=context, room=room)

    assert [rules(*limits).longest for limits in ((100, 50), (100, None), (None, 50), (50, 100))] == [50, 100, 50, 100]
    assert rules(None, None).longest > 100_000
    assert 10**6 < rules(1, None).most_bytes < 2 * 10**6
    assert rules(1001, None).most_bytes - rules(1, None).most_bytes == 32_000


def test_bytes_of_all_requests_are_bounded() -> None:
    """The session that asked for nothing the longest is the first to go; the last is never."""
    kept = AllRequests(most=10)
    by_name = {name: kept.of(name) for name in "abc"}
    for name in "abc":
        kept.of(name).keep(0, b"x" * 5)
    assert kept.of("a") is by_name["a"]
    assert kept.of("b") is by_name["b"]
    assert kept.of("c") is by_name["c"]
    assert kept.of("b") is by_name["b"]
    assert kept.of("a") is not by_name["a"], "three have more than ten bytes"
    kept.forget("b")
    kept.forget("b")
    assert kept.of("c") is by_name["c"]
    assert kept.of("b") is not by_name["b"]
    lone = AllRequests(most=10)
    (kept_ := lone.of("a")).keep(0, b"x" * 50)
    assert lone.of("a") is lone.of("a") is kept_
    assert msgspec.json.encode(list(kept_.bodies)) == b"[0]"
