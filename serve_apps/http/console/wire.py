"""`WirePage`: the requests behind a rollout as the log holds them: of a producer, of the conductor and of an agent."""

from __future__ import annotations

from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.errors import RunNotFound
from schemas.ids import group_of, requested_sample
from schemas.prompts import PromptOffered, PromptSubmitted
from schemas.rollouts import RolloutRequested
from schemas.turns import TurnRecorded
from slime_events.core.sessions.agent_requests import request_body
from slime_events.core.tokens.trajectory import Fetch
from slime_events.model.json_values import plain_event
from slime_events.model.lookup import LogPart
from storage.log import Readable, Recorded

MOST = 1_000_000
"""Characters of a request that are sent to the page."""


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request."""

    position: Annotated[int, doc("position of the event that holds it")]
    at: Annotated[int, doc("UTC of the event [ns]; an agent's turn is recorded when it has ended")]
    type: Annotated[str, doc("type of the event")]
    producer: Annotated[str, doc("worker that appended it")]
    turn: Annotated[int | None, doc("turn of an agent that it asked for; None for other requests")]
    attempt: Annotated[int | None, doc("attempt of the rollout; None for other requests")]
    dialect: Annotated[str, doc("API of an agent's request; empty for other requests")]
    client: Annotated[str, doc("User-Agent of an agent; empty for other requests")]


class WirePage(msgspec.Struct, frozen=True, kw_only=True):
    """The requests behind a rollout."""

    sample: Annotated[str, doc("id of the requested sample")]
    requests: Annotated[tuple[WireRequest, ...], doc("the requests, in the order of the log")]


class WireText(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it was sent."""

    text: Annotated[
        str, doc("body of an agent's request, with bytes outside UTF-8 as \\xNN; or the event as JSON, in full")
    ]
    length: Annotated[int, doc("length of the whole [characters]; `text` may be its beginning")]


async def read_wire(log: Readable, sample: str) -> WirePage:
    """Read the list of a rollout's requests. sample: the id of a sample, also of a further one of a rollout."""
    name = requested_sample(sample)
    return WirePage(sample=name, requests=tuple(map(_listed, await _requests(log, name))))


async def read_wire_text(log: Readable, sample: str, position: int, fetch: Fetch) -> WireText:
    """Read one of the requests. Raises RunNotFound if none of them is at this position, BlobMissing."""
    name = requested_sample(sample)
    recorded = next((each for each in await _requests(log, name) if each.position == position), None)
    if recorded is None:
        raise RunNotFound(f"position {position} of run {log.run} has no request for sample {name!r}")
    event = recorded.envelope.event
    if isinstance(event, TurnRecorded):
        text = (await request_body(log, name, event.index, fetch)).decode("utf-8", "backslashreplace")
    else:
        text = msgspec.json.format(msgspec.json.encode(plain_event(recorded, full=True)), indent=1).decode()
    return WireText(text=text[:MOST], length=len(text))


async def _requests(log: Readable, sample: str) -> list[Recorded]:
    events = await LogPart(log).about(
        (PromptOffered, PromptSubmitted, RolloutRequested, TurnRecorded), (group_of(sample), sample)
    )
    return [each for each in events if not isinstance(each.envelope.event, TurnRecorded) or each.envelope.event.agent]


def _listed(recorded: Recorded) -> WireRequest:
    event = recorded.envelope.event
    agent = event.agent if isinstance(event, TurnRecorded) else None
    return WireRequest(
        position=recorded.position,
        at=recorded.envelope.at,
        type=recorded.envelope.type,
        producer=recorded.envelope.producer,
        turn=event.index if isinstance(event, TurnRecorded) else None,
        attempt=event.attempt if isinstance(event, RolloutRequested) else None,
        dialect=agent.dialect if agent else "",
        client=agent.client if agent else "",
    )
