"""`RolloutTimes`: when the log got each part of a rollout, for a replay at that pace."""

from __future__ import annotations

from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.ids import requested_sample
from schemas.rollouts import RolloutCompleted, RolloutProgressed, RolloutRequested
from schemas.turns import TurnRecorded
from slime_events.model.lookup import LogPart
from storage.log import Readable


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that the log got at one time."""

    start: Annotated[int, doc("index of the first response token")]
    end: Annotated[int, doc("index after the last response token")]
    at: Annotated[int, doc("UTC of the event [ns]")]


class RolloutTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a rollout."""

    sample: Annotated[str, doc("id of the sample")]
    requested_at: Annotated[int | None, doc("UTC of its first request [ns]; None if the log has none")]
    begun_at: Annotated[
        int | None,
        doc("UTC at which its engine began [ns]: the end of its one attempt, less the seconds of generation; None if "
            "it had several attempts, or the log does not have them"),
    ]  # fmt: skip
    turns: Annotated[int, doc("number of turns; with turns, the log has the whole response in one chunk")]
    chunks: Annotated[tuple[Chunk, ...], doc("chunks with tokens, in order, without a gap")]


async def read_times(log: Readable, sample: str) -> RolloutTimes:
    """Read the times of a rollout by its id. A sample that the log does not have has no chunks."""
    name = requested_sample(sample)
    events = await LogPart(log).about(
        (RolloutRequested, RolloutProgressed, RolloutCompleted, TurnRecorded), dict.fromkeys((name, sample))
    )
    requests, turns, begun_at = list[int](), 0, None
    chunks: list[Chunk] = []
    for recorded in events:
        event, at = recorded.envelope.event, recorded.envelope.at
        if isinstance(event, RolloutRequested):
            requests.append(at)
        elif isinstance(event, TurnRecorded):
            turns += 1
        elif isinstance(event, RolloutProgressed) and event.turn is None and event.sample == sample and event.tokens.n:
            chunks.append(Chunk(start=event.start, end=event.start + event.tokens.n, at=at))
        elif isinstance(event, RolloutCompleted) and event.sample == sample:
            took = event.timings.generating + event.timings.updating
            if took and len(requests) == 1:
                begun_at = at - round(took * 1e9)
            if event.length > event.start:
                chunks.append(Chunk(start=event.start, end=event.length, at=at))
    return RolloutTimes(
        sample=sample,
        requested_at=requests[0] if requests else None,
        begun_at=begun_at,
        turns=turns,
        chunks=tuple(chunks),
    )
