"""Devices that the trainer and the engines of a run use in turns."""

import enum
from typing import Annotated

from schemas.doc import doc
from schemas.event import Event

SHARED = "shared"
"""Entity of all devices of a run that are used in turns."""


class Side(enum.StrEnum):
    """Part of a run that uses the devices in its turn."""

    TRAINER = "trainer"
    ENGINES = "engines"


class DeviceWanted(Event, frozen=True, kw_only=True, tag="device.wanted"):
    """Appended by a trainer when it starts. It needs the devices, although no batch may be sealed: it builds its ranks,
    and writes the first version or restores the newest state.

    The trainer has its turn until its next `device.released`. The event is fenced on all events about the devices, so
    that one of an earlier trainer cannot arrive late.
    """

    worker: Annotated[str, doc("Worker id of the trainer.")]
    incarnation: Annotated[int, doc("Incarnation of the run that the trainer belongs to.")] = 0

    IDENTITY = ("worker",)

    def entity(self) -> str:
        return SHARED


class DeviceTaken(Event, frozen=True, kw_only=True, tag="device.taken"):
    """Appended by a trainer or an engine before it uses memory of the devices, in its turn.

    It is fenced on all events about the devices, so the writer has read who holds them: an engine takes them if no
    trainer holds them, the trainer if no engine does. A trainer takes the place of an earlier trainer, whose processes
    have ended.
    """

    worker: Annotated[str, doc("Id of the worker.")]
    side: Annotated[Side, doc("Part of the run that the worker belongs to.")]
    number: Annotated[int, doc("How often the worker took the devices before.")]
    incarnation: Annotated[int, doc("Incarnation of the run that the worker belongs to.")] = 0
    pid: Annotated[int, doc("Process id of the worker on the machine `node`.")] = 0
    node: Annotated[str, doc("Host name of the machine.")] = ""
    seconds: Annotated[float, doc("Seconds from the beginning of its turn, or of its start, until it had them.")] = 0.0

    IDENTITY = ("worker", "number")

    def entity(self) -> str:
        return SHARED


class DeviceReleased(Event, frozen=True, kw_only=True, tag="device.released"):
    """Appended by the holder of the devices after it has given their memory back."""

    worker: Annotated[str, doc("Id of the worker.")]
    side: Annotated[Side, doc("Part of the run that the worker belongs to.")]
    number: Annotated[int, doc("Number of the `device.taken` that this event ends.")]
    seconds: Annotated[float, doc("Seconds that it took to give the memory back.")] = 0.0

    IDENTITY = ("worker", "number")

    def entity(self) -> str:
        return SHARED
