"""`export_spans`: send the spans of a stretch of a log, with the ids that the live processes gave them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Annotated, Protocol

import msgspec

from schemas.doc import doc
from schemas.errors import StoreUnavailable
from slime_events.core.telemetry.event_spans import span_of
from slime_events.core.telemetry.span import Span
from slime_events.core.telemetry.telemetry import BATCH_SPANS
from storage.log import Readable


class SpanReceiver(Protocol):
    """Takes spans in batches, as the exporters in `slime_events.core.telemetry.exporters` do."""

    def export(self, spans: Sequence[Span]) -> bool:
        """Return whether the spans arrived; an OSError means that they did not."""


class SpanExport(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of an export."""

    run: Annotated[str, doc("name of the run")]
    first: Annotated[int, doc("first position of the log")]
    last: Annotated[int, doc("last position of the log")]
    spans: Annotated[int, doc("number of spans")]
    traces: Annotated[int, doc("number of traces: groups and weight versions")]


async def export_spans(
    log: Readable,
    exporter: SpanReceiver,
    to: str,
    *,
    first: int = 1,
    last: int | None = None,
    share: float = 1.0,
) -> SpanExport:
    """Export the spans of the events from position `first` to `last` (default: the end as it is now), each once.

    to: where the exporter sends them, for the error. share: share of group traces, 0 to 1; with a share above 0, all
    traces of weight versions are exported too. The caller closes the exporter. Raises StoreUnavailable, with the number
    of spans that arrived before, if the exporter does not take them.
    """
    end = await log.position() if last is None else last
    batch, sent, traces = list[Span](), 0, set[int]()

    async def send() -> None:
        nonlocal sent
        try:
            arrived = await asyncio.to_thread(exporter.export, batch)
        except OSError as error:
            raise StoreUnavailable(f"{to} took {sent:,} spans and no more: {error}") from error
        if not arrived:
            raise StoreUnavailable(
                f"{to} took {sent:,} spans and no more. Export them again later: their ids are the same"
            )
        sent += len(batch)
        traces.update(span.trace for span in batch)
        batch.clear()

    if first <= end:
        async with contextlib.aclosing(log.read(first)) as read:  # type: ignore[type-var]
            async for recorded in read:
                if recorded.position > end:
                    break
                if (span := span_of(recorded.envelope, share)) is not None:
                    batch.append(span)
                if len(batch) >= BATCH_SPANS:
                    await send()
                if recorded.position == end:
                    break
    if batch:
        await send()
    return SpanExport(run=log.run, first=first, last=end, spans=sent, traces=len(traces))
