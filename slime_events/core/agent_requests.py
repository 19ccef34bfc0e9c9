"""The bodies of agents' requests, as they came. The log has what is new in each, and where the rest stands."""

from collections.abc import Mapping

import numpy as np

from schemas.arrays import EMPTY_BYTES, Array, pack
from schemas.errors import RunNotFound
from schemas.subjects import about
from schemas.turns import AgentTurn, SharedBody, TurnRecorded
from slime_events.core.trajectory import Fetch
from storage.log import Readable

PackedBody = tuple[Array, SharedBody | None]
"""`request` and `shares` of an AgentTurn."""
_STEP = 64 * 1024


def common(one: bytes, other: bytes) -> int:
    """How many bytes they begin with alike. Equal parts are compared at the memory's pace."""
    length, at = min(len(one), len(other)), 0
    if other.startswith(memoryview(one)[:length]):
        return length
    parts = memoryview(one)
    while other.startswith(parts[at : at + _STEP], at):
        at += _STEP
    end = min(at + _STEP, length)
    differs = np.frombuffer(one, np.int8)[at:end] != np.frombuffer(other, np.int8)[at:end]
    return at + int(differs.argmax())


def packed_body(body: bytes, bodies: Mapping[int, bytes], turn: int | None) -> PackedBody:
    """bodies: of turns, by index. turn: a recorded one that the body is likely to begin as."""
    before = bodies.get(turn) if turn is not None else None
    if before is None or turn is None:
        return _packed(body), None
    head = common(before, body)
    tail = common(before[head:][::-1], body[head:][::-1])
    return _packed(body[head : len(body) - tail]), SharedBody(turn, head, tail)


def _packed(body: bytes) -> Array:
    return pack(np.frombuffer(body, np.int8), "int8") if body else EMPTY_BYTES


async def request_body(log: Readable, sample: str, turn: int, fetch: Fetch) -> bytes:
    """The body that an agent asked a turn with, byte by byte. sample: of its session. fetch: an array's numbers, from
    the event or the blob store. Raises RunNotFound, BlobMissing.
    """
    turns = dict[int, AgentTurn]()
    async for recorded in log.read(1, about(log.run, "turn", sample)):
        event = recorded.envelope.event
        if isinstance(event, TurnRecorded) and event.agent is not None:
            turns[event.index] = event.agent
    if turn not in turns:
        raise RunNotFound(f"run {log.run} has no turn {turn} of an agent's session of sample {sample!r}")
    chain = [turns[turn]]
    while (shares := chain[-1].shares) is not None:
        chain.append(turns[shares.turn])
    body = b""
    for agent in reversed(chain):
        own = fetch(agent.request).tobytes()
        shares = agent.shares
        body = own if shares is None else body[: shares.head] + own + body[len(body) - shares.tail :]
    return body
