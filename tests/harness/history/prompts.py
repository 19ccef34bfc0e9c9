"""`Prompts`: each file of prompts is drawn row after row, none skipped and none twice."""

from __future__ import annotations

from collections.abc import Iterator

from tests.harness.history.finding import Finding, Kind
from tests.harness.history.record import Record
from tests.harness.history.story import Group, Story


class Prompts:
    """The cursor of every source of training prompts. Evaluations have none."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._keys: dict[str, int] = {}

    def apply(self, record: Record) -> Iterator[Finding]:
        """Look at a record."""
        event = record.event
        if record.type == "prompt.submitted":
            purpose = event.get("purpose", "train")
            bound = (event.get("recalled") or {}).get("bound")
            self._story.groups.setdefault(
                event["group"], Group(purpose, event.get("dataset", "train"), event.get("version"), bound=bound)
            )
            if purpose == "train":
                yield from self._drawn(record)
        elif record.type == "prompt.rejected" and event.get("dataset", "train") == "train":
            is_row = event["source"].get("offset", 0) >= 0  # a line without a JSON object has no offset
            yield from self._drawn(record) if is_row else ()

    def _drawn(self, record: Record) -> Iterator[Finding]:
        source = record.event["source"]
        if source["path"] == "inbox":
            key = source["key"]
            first = self._keys.setdefault(key, record.position)
            if first != record.position:
                yield Finding(Kind.PROMPT_REPEATED, record.position, f"key {key!r} was taken at {first} already")
            return
        path, offset = source["path"], source.get("offset", 0)
        expected = self._story.cursors.get(path, 0)
        while expected in self._story.passed.get(path, ()):
            expected += 1
        if offset != expected:
            kind = Kind.PROMPT_SKIPPED if offset > expected else Kind.PROMPT_REPEATED
            yield Finding(kind, record.position, f"{path}: prompt {offset} was drawn, {expected} is next")
        self._story.cursors[path] = max(expected, offset + 1)
