"""`Event`: the base class of every event struct."""

import enum
from typing import ClassVar

import msgspec


class Purpose(enum.StrEnum):
    """Use of a prompt and its rollouts. `call`: a generation that a rollout function or an agent requested."""

    TRAIN = "train"
    EVAL = "eval"
    CALL = "call"


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True, gc=False):
    """An immutable fact. Its tag is `<noun>.<verb>`, its schema version the class variable `SCHEMA`.

    Evolution: a new field has a default and keeps the version; a breaking change raises `SCHEMA` and adds an upcaster
    (`schemas/upcast.py`); a tag is never reused. A reader ignores fields it does not know.

    The garbage collector skips events, which halves the time to read many: a decoded event holds no cycle.
    """

    SCHEMA: ClassVar[int] = 1
    IDENTITY: ClassVar[tuple[str, ...]] = ()
    """Fields that `identity` returns; if empty, it returns the entity alone."""
    MARK: ClassVar[str] = ""
    """Last item of `identity`; if empty, there is none."""

    def entity(self) -> str:
        """Return the last token of the event's subject, such as a sample or a group: by default its first field."""
        return str(getattr(self, self.__struct_fields__[0]))

    def identity(self) -> tuple[str | int, ...]:
        """Return the values from which the id is derived: equal for two appends of the same event."""
        fields = tuple([getattr(self, name) for name in self.IDENTITY]) if self.IDENTITY else (self.entity(),)
        return (*fields, self.MARK) if self.MARK else fields


def type_of(event: Event | type[Event]) -> str:
    """Return the tag, such as `rollout.completed`."""
    return str(event.__struct_config__.tag)
