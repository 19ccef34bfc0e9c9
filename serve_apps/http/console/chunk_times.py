"""`RolloutTimes`: when the log got each part of a rollout, for a replay at that pace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.doc import doc
from schemas.ids import requested_sample
from schemas.rollouts import RolloutCompleted, RolloutProgressed, RolloutRequested
from schemas.turns import TurnRecorded, TurnRole
from slime_events.core.tokens.trajectory import Fetch
from slime_events.model.lookup import LogPart
from storage.log import Readable, Recorded

Tokens = npt.NDArray[np.int32]


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that the log got at one time."""

    start: Annotated[int, doc("index of the first response token")]
    end: Annotated[int, doc("index after the last response token")]
    at: Annotated[int, doc("UTC of the event [ns]; for tokens between two turns, of the beginning of the next turn")]
    since: Annotated[
        int | None, doc("UTC at which their generation began [ns], `at` if they were not generated; None if unknown")
    ] = None


class RolloutTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a rollout."""

    sample: Annotated[str, doc("id of the sample")]
    requested_at: Annotated[int | None, doc("UTC of its first request [ns]; None if the log has none")]
    begun_at: Annotated[
        int | None,
        doc(
            "UTC at which its engine began [ns]: the end of its one attempt, less the seconds of generation; None if "
            "the log does not have them, or it had several attempts"
        ),
    ]
    turns: Annotated[int, doc("number of turns in the log, also those of other samples of the rollout")]
    by_turn: Annotated[bool, doc("the turns give exactly its tokens, so `chunks` have their times")]
    chunks: Annotated[tuple[Chunk, ...], doc("chunks with tokens, in order, without a gap")]


async def read_times(log: Readable, sample: str, fetch: Fetch) -> RolloutTimes:
    """Read the times of a rollout by its id. A sample that the log does not have has no chunks.

    fetch: returns an array's numbers. Raises BlobMissing.
    """
    name = requested_sample(sample)
    classes = (RolloutRequested, RolloutProgressed, RolloutCompleted, TurnRecorded)
    events = await LogPart(log).about(classes, dict.fromkeys((name, sample)))
    requests = [each.envelope.at for each in events if isinstance(each.envelope.event, RolloutRequested)]
    begun_at, chunks = None, list[Chunk]()
    by_turn: list[Chunk] | None = None
    for recorded in events:
        event, at = recorded.envelope.event, recorded.envelope.at
        if isinstance(event, RolloutProgressed) and event.turn is None and event.sample == sample and event.tokens.n:
            chunks.append(Chunk(start=event.start, end=event.start + event.tokens.n, at=at))
        elif isinstance(event, RolloutCompleted) and event.sample == sample:
            took = event.timings.generating + event.timings.updating
            begun_at = at - round(took * 1e9) if took and len(requests) == 1 else None
            if event.length > event.start:
                chunks.append(Chunk(start=event.start, end=event.length, at=at))
            by_turn = _by_turn(events, fetch(event.tokens), fetch) if event.start == 0 else None
    return RolloutTimes(
        sample=sample,
        requested_at=requests[0] if requests else None,
        begun_at=begun_at,
        turns=sum(isinstance(each.envelope.event, TurnRecorded) for each in events),
        by_turn=by_turn is not None,
        chunks=tuple(by_turn or chunks),
    )


class _Turn:
    """A generation, with its chunks."""

    def __init__(self, event: TurnRecorded, at: int, chunks: Sequence[tuple[RolloutProgressed, int]], fetch: Fetch):
        self.extends = event.extends
        self.observed: Tokens = fetch(event.observed)
        self.begun_at = at - round(event.seconds * 1e9)
        parts = {
            chunk.start: (fetch(chunk.tokens), chunk_at) for chunk, chunk_at in chunks if chunk.start < event.start
        }
        self.parts: list[tuple[Tokens, int]] = [parts[start] for start in sorted(parts)]
        if event.tokens.n:
            self.parts.append((fetch(event.tokens), at))


def _by_turn(events: Sequence[Recorded], response: Tokens, fetch: Fetch) -> list[Chunk] | None:
    """Return the chunks of the turns whose tokens are those of the response; None if no turns give them."""
    chunks: defaultdict[int, list[tuple[RolloutProgressed, int]]] = defaultdict(list)
    turns: dict[int, _Turn] = {}
    for recorded in events:
        event, at = recorded.envelope.event, recorded.envelope.at
        if isinstance(event, RolloutProgressed) and event.turn is not None:
            chunks[event.turn].append((event, at))
        elif isinstance(event, TurnRecorded) and event.role is TurnRole.ASSISTANT:
            turns[event.index] = _Turn(event, at, chunks[event.index], fetch)
    for last in reversed(turns):
        pieces = list(_pieces(turns, last))
        if not pieces or sum(len(tokens) for tokens, _, _ in pieces) != len(response):
            continue
        if np.array_equal(np.concatenate([tokens for tokens, _, _ in pieces]), response):
            return list(_joined(pieces))
    return None


def _pieces(turns: Mapping[int, _Turn], last: int) -> Iterator[tuple[Tokens, int, int]]:
    """Yield the tokens after the first prompt, up to the end of a turn, with their end and beginning [UTC, ns]."""
    path: list[_Turn] = []
    index: int | None = last
    while index is not None and index in turns and len(path) < len(turns):
        path.append(turns[index])
        index = turns[index].extends
    for number, turn in enumerate(reversed(path)):
        if number:
            yield turn.observed, turn.begun_at, turn.begun_at
        since = turn.begun_at
        for tokens, at in turn.parts:
            yield tokens, at, since
            since = at


def _joined(pieces: Sequence[tuple[Tokens, int, int]]) -> Iterator[Chunk]:
    start = 0
    for tokens, at, since in pieces:
        if len(tokens):
            yield Chunk(start=start, end=start + len(tokens), at=at, since=since)
            start += len(tokens)
