"""`Facts`: the machines that a plan may use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc
from slime_events.core.planning.assumptions import GIB


@dataclass(frozen=True, slots=True)
class Facts:
    """Machines with GPUs of one kind."""

    gpus: Annotated[tuple[int, ...], doc("GPUs that are free, by machine.")]
    gpu_bytes: Annotated[int | None, doc("Memory of a GPU; None if unknown: the smallest of all machines.")] = None
    host_bytes: Annotated[int | None, doc("Memory of a machine; None if unknown.")] = None
    source: Annotated[str, doc("Where the numbers come from.")] = "flags"
    added: Annotated[int | None, doc("GPUs of a machine that may be added; None: as the largest.")] = None

    @property
    def total(self) -> int:
        """GPUs of all machines."""
        return sum(self.gpus)

    @property
    def largest(self) -> int:
        """GPUs of the machine with the most."""
        return max(self.gpus, default=0)

    @property
    def machine(self) -> int:
        """GPUs of a machine that may be added."""
        return max(self.added or 1, self.largest)

    def __str__(self) -> str:
        memory = f" of {self.gpu_bytes / GIB:.0f} GiB" if self.gpu_bytes else ""
        kinds = sorted(set(self.gpus), reverse=True)
        parts = [f"{self.gpus.count(kind)} x {kind}" for kind in kinds]
        return f"{' and '.join(parts) or 'no'} GPUs{memory}"
