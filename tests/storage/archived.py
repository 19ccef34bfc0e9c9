"""Logs to archive, some of whose payloads lie in blobs."""

from __future__ import annotations

from schemas.event import Event
from schemas.prompts import PromptSubmitted, Source
from storage.blobs import BlobStore
from storage.memory_log import MemoryLog
from storage.payloads import blob_refs, offload
from tests import made


def prompt(i: int, tokens: int = 20) -> PromptSubmitted:
    return made.submitted(f"g{i}", text="what?", tokens=range(i, i + tokens), source=Source("f", row=i))


async def a_log(blobs: BlobStore, sizes: list[int], *, finished: bool = False) -> MemoryLog:
    """A prompt for each size; those above 50 tokens lie in blobs."""
    events: list[Event] = [offload(prompt(i, size), blobs, limit=200) for i, size in enumerate(sizes)]
    if finished:
        events.append(made.finished(steps=0, events=len(sizes), state_digest="d"))
    return await made.log(*events)


def all_there(log: MemoryLog, blobs: BlobStore) -> None:
    for record in log.records:
        for ref in blob_refs(record.envelope.event):
            assert len(blobs.get(ref)) == ref.size
