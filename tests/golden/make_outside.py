"""What producers send while nobody conducts the run, for the golden log."""

from __future__ import annotations

from collections.abc import Iterator

from schemas.event import Event
from schemas.prompts import PromptOffered, PromptRejected, Source


def from_outside() -> Iterator[Event]:
    """A prompt that waits, and one that was none."""
    yield PromptOffered(
        group="inbox-2",
        key="k-2",
        prompt=[{"role": "user", "content": "2+4"}],
        sender="quiz",
        label="6",
        metadata={"level": 1},
        tools=[{"type": "function"}],
    )
    yield PromptOffered(group="inbox-3", key="k-3", prompt="2+5", rendered=True)
    source = Source(path="inbox", key="k-3", sender="quiz", offset=-1)
    yield PromptRejected(source=source, reason="empty_prompt: none", dataset="inbox", group="inbox-3")
