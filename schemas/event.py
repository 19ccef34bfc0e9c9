"""`Event`: what every event struct has in common."""

import enum
from typing import ClassVar

import msgspec


class Purpose(enum.StrEnum):
    """What a prompt and its rollouts are for. call: a generation that a rollout function or an agent asked for."""

    TRAIN = "train"
    EVAL = "eval"
    CALL = "call"


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True, gc=False):
    """An immutable fact. Its tag is `<noun>.<verb>`, its schema version the class variable `SCHEMA`.

    Evolution: a new field has a default and keeps the version; a break raises `SCHEMA` and brings an upcaster
    (`schemas/upcast.py`); a tag is never reused. A reader ignores fields it does not know.

    The garbage collector passes events over, which halves the time to read many: what was decoded holds no cycle.
    """

    SCHEMA: ClassVar[int] = 1
    IDENTITY: ClassVar[tuple[str, ...]] = ()
    """The fields that `identity` is of; none: the entity alone."""
    MARK: ClassVar[str] = ""
    """A word that `identity` ends with; none where it is empty."""

    def entity(self) -> str:
        """What the event is about: the last token of its subject. Its first field, if its class does not say else."""
        return str(getattr(self, self.__struct_fields__[0]))

    def identity(self) -> tuple[str | int, ...]:
        """What makes it this event and no other, whenever it is appended."""
        fields = tuple([getattr(self, name) for name in self.IDENTITY]) if self.IDENTITY else (self.entity(),)
        return (*fields, self.MARK) if self.MARK else fields


def type_of(event: Event | type[Event]) -> str:
    """The tag, e.g. `rollout.completed`."""
    return str(event.__struct_config__.tag)
