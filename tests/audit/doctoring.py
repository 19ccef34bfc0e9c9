"""`Doctoring`: one small change to a clean log, and the events that one check has to find in it.

The verbs make the changes: `change`, `again`, `drop`, `move`, `say`, and `both` for several of them. A verb gives the
records that it touched, and those have to be found where a doctoring names no others. `the` chooses a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.event import Event
from tests.audit.doctored import Doctored, Record

Select = Callable[[Doctored], Record]
Several = Callable[[Doctored], list[Record]]
Doctor = Callable[[Doctored], list[Record]]
"""Works on a log; the records that it touched."""


@dataclass(frozen=True)
class Doctoring:
    """check: the one that is asked. title: what was done, in a few words. doctor: does it.

    found: the records that the check must find, and no others, one for each finding in the order of the findings; None:
    those that were touched; (): none, an edge that is still right. They are chosen before the log is worked on.
    names: what the first finding has to name. log: the clean log that is doctored, one of `tests/audit/clean.py`.
    counts: some of what the check has counted.
    """

    check: str
    title: str
    doctor: Doctor
    located: tuple[Select | Several, ...] | None = None
    names: tuple[object, ...] = ()
    log: str = "synchronous"
    counts: Mapping[str, object] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.check}: {self.title}"


def the(kind: str, nth: int = 0, **fields: Any) -> Select:
    """The nth event of a type that has these fields. A dict is of fields of a field, None of one that is not
    there, ... of any value."""
    return lambda log: log.find(kind, where=lambda event: _has(event, fields), nth=nth)


def every(kind: str, **fields: Any) -> Several:
    """All events like that: how many there are may hang on who was fast."""
    return lambda log: [record for record in log.records if record.type == kind and _has(record.event, fields)]


def chosen(log: Doctored, selects: Iterable[Select | Several]) -> list[Record]:
    """The records, one after the other."""
    selected = [select(log) for select in selects]
    return [record for item in selected for record in (item if isinstance(item, list) else [item])]


def following(select: Select) -> Select:
    """The record behind it."""
    return lambda log: log.records[log.place(select(log)) + 1]


def change(select: Select, *, record: Mapping[str, Any] | None = None, **fields: Any) -> Doctor:
    """Give an event other fields. A dict changes fields of a field; what can be called is called with what was there.
    record: changes beside the event (producer, cause, subject, run).
    """

    def doctor(log: Doctored) -> list[Record]:
        selected = select(log)
        _change(selected, record or {}, fields)
        return [selected]

    return doctor


def again(
    select: Select, *, after: Select | None = None, record: Mapping[str, Any] | None = None, **fields: Any
) -> Doctor:
    """Say an event once more, behind itself or `after` another, with other fields."""

    def doctor(log: Doctored) -> list[Record]:
        inserted = log.insert(select(log), after=(after or select)(log))
        _change(inserted, record or {}, fields)
        log.renumber()
        return [inserted]

    return doctor


def say(event: Event, after: Select) -> Doctor:
    """Say what nobody said."""

    def doctor(log: Doctored) -> list[Record]:
        record = log.say(event, after(log))
        log.renumber()
        return [record]

    return doctor


def drop(*selects: Select | Several, renumber: bool = True) -> Doctor:
    """Take events out."""

    def doctor(log: Doctored) -> list[Record]:
        gone = chosen(log, selects)
        log.delete(*gone)
        if renumber:
            log.renumber()
        return gone

    return doctor


def move(select: Select, *, before: Select, renumber: bool = True) -> Doctor:
    """Put an event in front of another."""

    def doctor(log: Doctored) -> list[Record]:
        moved = select(log)
        log.move(moved, before(log))
        if renumber:
            log.renumber()
        return [moved]

    return doctor


def both(*doctors: Doctor) -> Doctor:
    """One after the other. What the last one touched counts."""

    def doctor(log: Doctored) -> list[Record]:
        return [apply(log) for apply in doctors][-1]

    return doctor


def also(doctor: Doctor, *selects: Select | Several) -> Doctor:
    """Add records to locate after the touched ones."""

    def doctored(log: Doctored) -> list[Record]:
        others = chosen(log, selects)
        return [*doctor(log), *others]

    return doctored


def position(select: Select) -> Callable[[Doctored], int]:
    """Return its final position, for a name."""
    return lambda log: select(log).position


def _has(event: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    for name, expected in fields.items():
        value = event.get(name)
        if isinstance(expected, dict) and isinstance(value, dict):
            if not _has(value, expected):
                return False
        elif value is None if expected is ... else value != expected:
            return False
    return True


def _change(record: Record, beside: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    for name, value in beside.items():
        if name == "subject":
            record.subject = value
        else:
            record.body[name] = value
    _merge(record.event, fields)


def _merge(values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(values.get(name), dict):
            _merge(values[name], value)
        else:
            values[name] = value(values[name]) if callable(value) else value
