"""A function with an HTTP client of its own makes the same recorded turns as one that uses slime's `post`."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle
import threading
from pathlib import Path

import pytest
from aiohttp import ClientSession

from schemas.arrays import pack_tokens, unpack
from schemas.errors import EngineError, PlugPointError
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutFailed, RolloutProgressed, RolloutSuspended
from schemas.steps import StepCommitted
from schemas.turns import TurnRecorded
from serve_apps.rollouts.generate.function import UserLoop
from serve_apps.rollouts.generate.listener import Listener
from slime_events.core.tokens.trajectory import Trajectory, content_digest
from slime_events.plugins.args_view import ROUTER, ArgsView, CallArgs
from storage.memory_log import MemoryLog
from tests.generate.scene import a_run, check_log, events, run_until, setup
from tests.generate.test_journal import session_of
from tests.run.sockets import listening
from tests.scripted_engine import Script
from tests.simulation.crash import Crash, Crashed, Fate, Half
from tests.simulation.simulation import make_plan

FILE = Path(__file__).with_name("own_clients.py")


def own(name: str, **args: object):
    return setup(f"{FILE}:{name}", **args)


async def turns_of(folder: Path, name: str) -> list[tuple]:
    run = a_run(folder, own(name), plan=make_plan(steps=1, groups=2, samples=2))
    await run.run()
    check_log(run)
    assert not events(run, RolloutFailed)
    recorded = [
        (turn.sample, turn.index, unpack(turn.tokens).tolist(), turn.spans, turn.stop, turn.extends)
        for turn in events(run, TurnRecorded)
    ]
    done = [
        (event.sample, event.digest, event.text, None if event.loss_mask is None else unpack(event.loss_mask).tolist())
        for event in events(run, RolloutCompleted)
    ]
    return sorted(recorded) + sorted(done)


async def test_every_client_makes_the_turns_of_slimes_post(tmp_path: Path) -> None:
    reference = await turns_of(tmp_path / "post", "by_slimes_post")
    assert len(reference) == 4 * 2 + 4
    for name in ("by_aiohttp", "by_httpx", "by_requests", "by_requests_in_a_thread", "as_a_stream"):
        assert await turns_of(tmp_path / name, name) == reference, name


@pytest.mark.parametrize("half", Half)
@pytest.mark.parametrize("at", range(2, 7))
async def test_a_rollout_goes_on_after_its_last_turn(tmp_path: Path, at: int, half: Half) -> None:
    untouched = a_run(tmp_path / "whole", own("by_aiohttp"))
    await untouched.run()
    run = a_run(tmp_path / "crashed", own("by_aiohttp"), fate=Fate([Crash(at, half, role="engine0")]))
    await run.run()
    check_log(run)
    assert run.fate.exhausted
    assert not events(run, RolloutFailed)
    assert len(events(run, TurnRecorded)) == 2, "no turn is there twice"
    assert events(run, RolloutCompleted)[0].digest == events(untouched, RolloutCompleted)[0].digest
    assert events(run, StepCommitted)[0].weights_digest == events(untouched, StepCommitted)[0].weights_digest


async def test_what_else_the_server_has(tmp_path: Path) -> None:
    run = a_run(tmp_path, own("looks_around", hf_checkpoint="/models/tiny"))
    await run.run()
    (done,) = events(run, RolloutCompleted)
    seen = done.metadata["seen"]
    assert [seen[path][0] for path in ("/health", "/get_model_info", "/v1/models", "/v1/chat/completions")] == [
        200, 200, 200, 404,
    ]  # fmt: skip
    assert json.loads(seen["/get_model_info"][1])["model_path"] == "/models/tiny"
    assert json.loads(seen["/v1/models"][1])["data"][0]["id"] == "/models/tiny"
    assert "session.generate(messages)" in json.loads(seen["/v1/chat/completions"][1])["error"]["message"]
    assert [seen[path][0] for path in ("no JSON", "no prompt", "bad tokens")] == [400, 400, 400]
    assert done.metadata["both"] == 2, "a list of prompts has a list of answers"
    assert len(events(run, TurnRecorded)) == 3


async def test_a_refused_request_is_named_in_the_failure(tmp_path: Path) -> None:
    run = a_run(tmp_path, own("asks_wrongly"))
    await run_until(run, RolloutFailed)
    failed = events(run, RolloutFailed)[0]
    assert failed.kind is FailureKind.INVALID
    assert "HTTPStatusError" in failed.message
    assert "sampling parameter no_stop_trim can only be True" in failed.message


async def test_a_function_that_asks_again_and_again_ends_with_its_engines_error(tmp_path: Path) -> None:
    refused = Script(refused={"train-0-000000-s0-0-1": "no room"})
    run = a_run(tmp_path, own("never_gives_up"), scripts=(refused,))
    await run_until(run, RolloutFailed)
    (failed,) = events(run, RolloutFailed, attempt=0)
    assert (failed.kind, "no room" in failed.message) == (FailureKind.ENGINE, True)


def turn_digest(run: Crashed) -> str:
    """Return the digest of the tokens of a run's only turn."""
    (turn,), draft = events(run, TurnRecorded), Trajectory("turn", pack_tokens([]))
    for chunk in events(run, RolloutProgressed):
        draft.progress(chunk, unpack)
    draft.join(turn.start, turn.tokens, turn.log_probs, unpack)
    return content_digest(draft.tokens, draft.log_probs)


async def test_a_client_that_gives_up_waiting_and_asks_again_gets_the_same_turn(tmp_path: Path) -> None:
    slow = Script(chunk=4, seconds_per_chunk=0.15)
    run = a_run(tmp_path, own("impatient"), scripts=(slow,))
    await run.run()
    check_log(run)
    (turn,), (done,) = events(run, TurnRecorded), events(run, RolloutCompleted)
    assert done.metadata["tries"] > 1
    assert (turn.length, done.length, done.digest) == (12, 12, turn_digest(run))


async def test_a_request_that_nobody_waits_for_ends_with_its_call(tmp_path: Path) -> None:
    run = a_run(tmp_path, own("leaves_one"), scripts=(Script(chunk=4, seconds_per_chunk=0.05),))
    await run.run()
    check_log(run)
    (done,) = events(run, RolloutCompleted)
    assert done.length == 6


async def test_rollouts_are_suspended_and_go_on(tmp_path: Path) -> None:
    plan = make_plan(steps=4, groups=1, samples=2, draw=2, in_prompt_order=False, partial_rollout=True)
    run = a_run(tmp_path, own("uneven"), plan=plan, scripts=(Script(chunk=2, seconds_per_chunk=0.004),))
    await run.run()
    check_log(run)
    assert not events(run, RolloutFailed)
    suspended = {event.sample for event in events(run, RolloutSuspended)}
    assert suspended & {event.sample for event in events(run, RolloutCompleted)}


async def test_a_port_is_open_while_its_call_runs_and_on_loopback(tmp_path: Path) -> None:
    before = listening(os.getpid())
    run = a_run(tmp_path, own("notes_its_port"), plan=make_plan(steps=1, groups=2, samples=2))
    await run.run()
    ports = [done.metadata["port"] for done in events(run, RolloutCompleted)]
    assert len(set(ports)) == 4, "one for each call"
    assert all(done.metadata["listening"] == ["127.0.0.1"] for done in events(run, RolloutCompleted))
    assert listening(os.getpid()) == before


async def test_nothing_opens_once_a_call_or_its_thread_has_ended() -> None:
    loop = UserLoop(1, "listener")
    listener = Listener(await session_of(MemoryLog("r")), loop, lambda: None)
    await listener.close()
    with pytest.raises(PlugPointError, match="has ended"):
        listener.open()
    loop.stop()
    await asyncio.to_thread(loop._thread.join)
    with pytest.raises(EngineError, match="'listener'"):
        loop.begin(asyncio.sleep(0))


async def test_a_request_that_is_under_way_ends_with_its_call() -> None:
    loop, begun, ended = UserLoop(1, "listener"), threading.Event(), threading.Event()
    session = await session_of(MemoryLog("r"))

    async def never(*_: object, **__: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    session.generate = never
    listener = Listener(session, loop, lambda: None)
    _, writer = await asyncio.open_connection("127.0.0.1", listener.open())
    body = b'{"text": "a"}'
    writer.write(b"POST /generate HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    assert await asyncio.to_thread(begun.wait, 10.0)
    writer.close()
    await listener.close()
    assert ended.is_set()
    loop.stop()


async def test_what_the_port_says_of_what_it_cannot_answer() -> None:
    """404 and 400 are the client's fault, and the first of them is kept; after 503 the rollout has ended."""
    loop, failed = UserLoop(1, "listener"), list[int]()
    session = await session_of(MemoryLog("r"))
    listener = Listener(session, loop, lambda: failed.append(1))
    url = f"http://127.0.0.1:{listener.open()}"
    async with ClientSession() as client:
        for path, body, status in (("/nowhere", b"{}", 404), ("/generate", b"{}", 400), ("/generate", b"[", 400)):
            async with client.post(url + path, data=body) as answer:
                assert (answer.status, answer.content_type) == (status, "application/json")
                assert (await answer.json())["error"]["message"]
        assert "/nowhere" in str(listener.refused)
        assert failed == []
        session._journal.failure = EngineError("the engine is lost")
        async with client.post(url + "/generate", json={"text": "a"}) as answer:
            assert (answer.status, failed) == (503, [1])
            assert "the engine is lost" in (await answer.json())["error"]["message"]
    assert "/nowhere" in str(listener.refused)
    await listener.close()
    loop.stop()


async def test_a_connection_that_a_client_keeps_ends_with_the_call() -> None:
    loop = UserLoop(1, "listener")
    listener = Listener(await session_of(MemoryLog("r")), loop, lambda: None)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.open())
    writer.write(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"connection: close" not in head.lower()
    await listener.close()
    async with asyncio.timeout(10):
        assert (await reader.read())[-2:] in (b"{}", b"")
    writer.close()
    loop.stop()


def test_args_open_the_port_when_it_is_read() -> None:
    opened: list[int] = []

    def open_port() -> int:
        opened.append(1)
        return 4000

    args = CallArgs(ArgsView({**ROUTER, "names": ["a"]}), open_port)
    assert (args.names, "sglang_router_port" in args, opened) == (["a"], True, [])
    copies = [copy.copy(args), copy.deepcopy(args), pickle.loads(pickle.dumps(args))]
    assert [each.sglang_router_port for each in (args, *copies)] == [4000] * 4
    assert len(opened) == 1
    args.sglang_router_port = 30000
    assert (args.sglang_router_port, vars(args)["sglang_router_port"]) == (30000, 30000)
    call_args = CallArgs(ArgsView({"sglang_router_port": 30000}), open_port)
    assert (call_args.sglang_router_port, len(opened)) == (30000, 1), "a server of the user's own"
