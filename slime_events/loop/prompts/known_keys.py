"""`KnownKeys`: what a run has under the keys of producers. A key stands for one content for ever."""

from collections.abc import Sequence
from typing import Self

from schemas.event import Event
from schemas.inbox import OTHER_CONTENT, FieldError, InboxPrompt
from schemas.prompts import PromptOffered, PromptSubmitted
from schemas.subjects import of_type
from storage.log import Readable

FIELD = "key"


class KnownKeys:
    """contents: of groups that the log has, and of those that were looked at since. submitted: groups that the run has
    taken in.
    """

    def __init__(self, contents: dict[str, str], submitted: frozenset[str]) -> None:
        self._contents, self.submitted = contents, submitted

    @classmethod
    async def of(cls, log: Readable, groups: Sequence[str]) -> Self:
        """Looks these groups up. Raises StorageError."""
        subjects = [of_type(log.run, f"prompt.{verb}", group) for group in groups for verb in ("submitted", "offered")]
        found = await log.last_of_each(list(dict.fromkeys(subjects))) if subjects else {}
        events = [recorded.envelope.event for recorded in found.values()]
        contents = {event.entity(): content for event in events if (content := _content(event))}
        return cls(contents, frozenset(event.entity() for event in events if isinstance(event, PromptSubmitted)))

    def conflict(self, index: int, group: str, content: str) -> FieldError | None:
        """Says that the group has another content; otherwise it has this one from now on. index: in its message."""
        if not content or (known := self._contents.setdefault(group, content)) == content:
            return None
        why = f"the run has something else under this key ({group}, sha256 {known[:12]})"
        return FieldError(index, FIELD, f"{OTHER_CONTENT}: {why}: give what is new a key of its own")


def _content(event: Event) -> str:
    """Empty for a prompt that an older version took in."""
    if isinstance(event, PromptOffered):
        return as_given(event).content()
    return event.source.content if isinstance(event, PromptSubmitted) else ""


def as_given(offered: PromptOffered) -> InboxPrompt:
    """What the producer sent."""
    fields = InboxPrompt.__struct_fields__
    return InboxPrompt(**{name: getattr(offered, name) for name in fields})
