"""Where prompts came from: a file, a line of it, or what a producer sent."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePosixPath

from schemas.batches import BatchSealed
from schemas.event import type_of
from schemas.ids import INBOX
from schemas.prompts import PromptSubmitted, Source
from slime_events.analysis.model.ancestry import Part, Past


@dataclass(frozen=True, slots=True)
class SourceLine:
    """path: of a file, its name, or its URL; `inbox` for what was sent. line: from 1, or the key that was sent with it;
    None for all.
    """

    path: str
    line: str | None = None

    @classmethod
    def of(cls, text: str) -> SourceLine:
        """`FILE`, `FILE:LINE`, or `inbox:KEY`."""
        path, colon, line = text.rpartition(":")
        if colon and (line.isdigit() or path == INBOX):
            return cls(path, line)
        return cls(text)

    def __str__(self) -> str:
        return self.path if self.line is None else f"{self.path}:{self.line}"

    def matches(self, source: Source) -> bool:
        """Whether a prompt of that source is meant: the whole path, or the end of it from a / on."""
        have, want = PurePosixPath(source.path).parts, PurePosixPath(self.path).parts
        if self.path != source.path and have[-len(want) :] != want:
            return False
        return self.line is None or self.line == (source.key if source.path == INBOX else str(source.line))


async def find_groups(past: Past, source: SourceLine) -> dict[Part, list[str]]:
    """The groups of a source by the run whose log has their prompts. Reads all prompts of the past."""
    found: dict[Part, list[str]] = {}
    async for part in past.parts():
        found[part] = []
        async for recorded in part.of_type(type_of(PromptSubmitted)):
            event = recorded.envelope.event
            if isinstance(event, PromptSubmitted) and source.matches(event.source):
                found[part].append(event.group)
    return found


async def steps_of_groups(past: Past, origin: Part, groups: Collection[str]) -> dict[str, int]:
    """The step of this past that has each of `origin`'s groups, where one has. Reads all batches of the runs."""
    named, steps = frozenset(groups), dict[str, int]()
    async for part in past.parts():
        if part is not origin and not part.follows:
            continue
        async for recorded in part.of_type(type_of(BatchSealed)):
            event = recorded.envelope.event
            if isinstance(event, BatchSealed) and part.has(event.step):
                steps |= dict.fromkeys(named.intersection(event.groups), event.step)
        if part is origin:
            break
    return steps
