"""`KnownKeys`: the prompts of a run under the keys of producers. A key belongs to a single content permanently."""

from collections.abc import Sequence
from typing import Self

from schemas.event import Event
from schemas.inbox import OTHER_CONTENT, FieldError, InboxPrompt
from schemas.prompts import PromptOffered, PromptSubmitted
from schemas.subjects import of_type
from storage.log import Readable

FIELD = "key"


class KnownKeys:
    """Keys of groups and the contents that they belong to.

    contents: group to content, of groups in the log and in this message. submitted: groups that the run has taken in.
    """

    def __init__(self, contents: dict[str, str], submitted: frozenset[str]) -> None:
        self._contents, self.submitted = contents, submitted

    @classmethod
    async def of(cls, log: Readable, groups: Sequence[str]) -> Self:
        """Look these groups up. Raises StorageError."""
        subjects = [of_type(log.run, f"prompt.{verb}", group) for group in groups for verb in ("submitted", "offered")]
        newest = await log.last_of_each(list(dict.fromkeys(subjects))) if subjects else {}
        events = [recorded.envelope.event for recorded in newest.values()]
        contents = {event.entity(): content for event in events if (content := _content(event))}
        return cls(contents, frozenset(event.entity() for event in events if isinstance(event, PromptSubmitted)))

    def conflict(self, index: int, group: str, content: str) -> FieldError | None:
        """Return an error if the group has a different content; otherwise note its content. index: in its message."""
        if not content or (earlier := self._contents.setdefault(group, content)) == content:
            return None
        why = f"the run has something else under this key ({group}, sha256 {earlier[:12]})"
        return FieldError(index, FIELD, f"{OTHER_CONTENT}: {why}: give what is new a key of its own")


def _content(event: Event) -> str:
    """Return the content of a prompt; empty if an older release took it in."""
    if isinstance(event, PromptOffered):
        return as_given(event).content()
    return event.source.content if isinstance(event, PromptSubmitted) else ""


def as_given(offered: PromptOffered) -> InboxPrompt:
    """Return a prompt as its producer sent it."""
    fields = InboxPrompt.__struct_fields__
    return InboxPrompt(**{name: getattr(offered, name) for name in fields})
