"""Bodies of agents' requests, byte for byte. The log has only the new part of each, and a reference to the rest."""

from collections.abc import Mapping

import numpy as np

from schemas.arrays import EMPTY_BYTES, Array, pack
from schemas.errors import RunNotFound
from schemas.subjects import about
from schemas.turns import AgentTurn, SharedBody, TurnRecorded
from slime_events.core.tokens.trajectory import Fetch
from storage.log import Readable

PackedBody = tuple[Array, SharedBody | None]
"""The `request` and `shares` fields of an AgentTurn."""
_STEP = 64 * 1024


def common_prefix(a: bytes, b: bytes) -> int:
    """Return the number of equal bytes at the start of both. Compares equal parts at memory speed."""
    length, at = min(len(a), len(b)), 0
    if b.startswith(memoryview(a)[:length]):
        return length
    parts = memoryview(a)
    while b.startswith(parts[at : at + _STEP], at):
        at += _STEP
    end = min(at + _STEP, length)
    differs = np.frombuffer(a, np.int8)[at:end] != np.frombuffer(b, np.int8)[at:end]
    return at + int(differs.argmax())


def packed_body(body: bytes, bodies: Mapping[int, bytes], turn: int | None) -> PackedBody:
    """Return the fields of a body. bodies: by turn index. turn: index of a recorded turn with a similar body."""
    before = bodies.get(turn) if turn is not None else None
    if before is None or turn is None:
        return _packed(body), None
    head = common_prefix(before, body)
    tail = common_prefix(before[head:][::-1], body[head:][::-1])
    return _packed(body[head : len(body) - tail]), SharedBody(turn, head, tail)


def _packed(body: bytes) -> Array:
    return pack(np.frombuffer(body, np.int8), "int8") if body else EMPTY_BYTES


async def request_body(log: Readable, sample: str, turn: int, fetch: Fetch) -> bytes:
    """Return the body of an agent's request for a turn, byte for byte. sample: the session's sample.

    fetch: returns an array's numbers, from the event or the blob store. Raises RunNotFound or BlobMissing.
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
