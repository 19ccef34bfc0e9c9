"""A child of the kit: its frames, its end, and that nothing of it stays."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slime_events.core.child.frames import PeerEnded, frame, receive_frame, send_frame
from slime_events.core.child.process import Child, kill_tree
from slime_events.core.child.process_table import parent_of, runs
from slime_events.core.run.own_python import own_command
from tests.clock import Clock

LONG_S = 60.0
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
"""Environment in which a child finds the programs of this folder, wherever the tests were started."""
Start = Callable[[str], Child]


@pytest.fixture
def start() -> Iterator[Start]:
    children: list[Child] = []

    def started(what: str) -> Child:
        children.append(Child(own_command("tests.child.programs"), [what], environment=ENVIRONMENT))
        return children[-1]

    yield started
    for child in children:
        if child._writer is None:  # else its test closes it, in its loop
            child.close()
        child.end()


def gone(*pids: int) -> bool:
    until = time.monotonic() + LONG_S
    while any(map(runs, pids)) and time.monotonic() < until:
        time.sleep(0.01)
    return not any(map(runs, pids))


def test_frames_of_every_size_come_back_in_order(start: Start) -> None:
    child, payloads = start("echo"), (b"", b"a", bytes(70_000), os.urandom(3_000_000))
    sender = threading.Thread(target=lambda: [send_frame(child.connection, payload) for payload in payloads])
    sender.start()
    assert [receive_frame(child.connection) for _ in payloads] == list(payloads)
    sender.join()
    assert child.runs
    assert parent_of(child.pid) == os.getpid()


async def test_a_reader_in_a_loop_continues_after_a_timeout(start: Start, clock: Clock) -> None:
    child = start("echo")
    frames, writer = await child.streams()
    late = asyncio.create_task(frames.next(60.0))
    await asyncio.sleep(0.01)
    clock.forward(61.0)
    with pytest.raises(TimeoutError):
        await late
    writer.write(frame(b"first") + frame(b"second"))
    assert [await frames.next(), await frames.next(LONG_S)] == [b"first", b"second"]
    child.close()


async def test_a_closed_connection_ends_a_child_by_itself(start: Start) -> None:
    child = start("echo")
    await child.streams()
    child.close()
    await asyncio.to_thread(child.end, LONG_S)
    assert (child.code, child.ending()) == (0, "exited with code 0")


@pytest.mark.parametrize(("what", "ending"), [("exit", "exited with code 3"), ("half", "exited with code 0")])
async def test_a_child_that_ends_is_the_end_of_the_stream(start: Start, what: str, ending: str) -> None:
    in_thread, in_loop = start(what), start(what)
    send_frame(in_thread.connection, b"now")
    assert receive_frame(in_thread.connection) is None
    frames, writer = await in_loop.streams()
    writer.write(frame(b"now"))
    with pytest.raises(PeerEnded):
        await frames.next()
    in_loop.close()
    for child in (in_thread, in_loop):
        assert await asyncio.to_thread(child.wait, LONG_S)
        assert child.ending() == ending


async def test_garbage_and_frames_above_the_limit_are_refused_at_once(start: Start) -> None:
    child = start("garbage")
    send_frame(child.connection, b"now")
    with pytest.raises(PeerEnded, match="no frames"):
        receive_frame(child.connection)
    child = start("garbage")
    frames, writer = await child.streams()
    writer.write(frame(b"now"))
    with pytest.raises(PeerEnded, match="no frames"):
        await frames.next()
    child.close()
    child = start("echo")
    send_frame(child.connection, bytes(1001))
    with pytest.raises(PeerEnded, match="1001 bytes: at most 1000"):
        receive_frame(child.connection, most=1000)


def test_a_child_that_hangs_is_killed(start: Start) -> None:
    child = start("hang")
    send_frame(child.connection, b"now")
    child.connection.settimeout(0.2)
    with pytest.raises(TimeoutError):
        receive_frame(child.connection)
    assert child.ending() == "stopped answering"
    child.close()
    child.end(0.1)
    assert (child.code, child.ending()) == (-signal.SIGKILL, "was ended by SIGKILL")
    assert gone(child.pid)
    child.signal(signal.SIGTERM)  # has no effect: the pid may be another process's
    child.kill()
    child.end()


def test_the_descendants_end_with_a_child(start: Start) -> None:
    child = start("family")
    send_frame(child.connection, b"now")
    pids = [int(word) for word in (receive_frame(child.connection) or b"").split()]
    assert all(map(runs, pids))
    child.end()
    assert gone(*pids)


def test_what_an_ended_child_has_left_in_its_group_ends_too(start: Start) -> None:
    child = start("leave")
    send_frame(child.connection, b"now")
    left = int(receive_frame(child.connection) or b"0")
    assert child.wait(LONG_S)
    assert child.code == 0
    assert runs(left)
    child.end()
    assert gone(left)


def test_a_child_has_its_own_session_and_only_the_environment_that_it_gets(tmp_path: Path) -> None:
    variables = {name: ENVIRONMENT[name] for name in ("PATH", "PYTHONPATH")}
    with (tmp_path / "log").open("wb") as log:
        child = Child(
            own_command("tests.child.programs"), ["environment"], environment=variables, folder=tmp_path, output=log
        )
    send_frame(child.connection, b"now")
    seen, folder, leads = ast.literal_eval((receive_frame(child.connection) or b"").decode())
    assert ({*seen} - {"LC_CTYPE"}, folder, leads) == ({*variables}, str(tmp_path), True)
    child.close()
    child.end(LONG_S)


def test_a_program_that_cannot_be_started_leaves_nothing() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        Child(["/no/such/program"], environment={})
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_child_does_not_end_with_the_thread_that_asked_for_it(start: Start) -> None:
    children: list[Child] = []
    thread = threading.Thread(target=lambda: children.append(start("echo")))
    thread.start()
    thread.join()
    time.sleep(0.2)
    send_frame(children[0].connection, b"here")
    assert receive_frame(children[0].connection) == b"here"


OWNER = """
import os, sys, time
from slime_events.core.child.frames import send_frame
from slime_events.core.child.process import Child
from slime_events.core.run.own_python import own_command

child = Child(own_command("tests.child.programs"), ["hang"], environment=os.environ)
send_frame(child.connection, b"now")
print(child.pid, flush=True)
time.sleep(600)
"""


async def test_a_child_that_hangs_dies_with_a_killed_parent() -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, stdout=asyncio.subprocess.PIPE, env=ENVIRONMENT
    )
    assert owner.stdout is not None
    child = int(await asyncio.wait_for(owner.stdout.readline(), LONG_S))
    try:
        await asyncio.sleep(0.2)
        assert runs(child)
        owner.kill()
        await owner.wait()
        assert await asyncio.to_thread(gone, child)
    finally:
        kill_tree(child)


def test_no_process_has_no_parent() -> None:
    assert (runs(0), parent_of(0)) == (False, 0)
