"""A weight version: published and stored by the trainer, activated by each engine."""

import enum
from typing import Annotated

from schemas.doc import doc
from schemas.event import Event


class WeightsKind(enum.StrEnum):
    """All tensors, or the changes since an earlier version, in slime's format."""

    FULL = "full"
    DELTA = "delta"


class WeightsCarrier(enum.StrEnum):
    """Source of the bytes of a version on an engine's host."""

    FILES = "files"
    SHARED_MEMORY = "shared_memory"
    COLLECTIVE = "collective"


class WeightsPublished(Event, frozen=True, kw_only=True, tag="weights.published"):
    """Appended by the trainer when engines can take a version: from now on, or once its files are complete.

    The files are complete before, unless `step.committed` of the version says otherwise (`stored`).
    """

    version: Annotated[int, doc("Weight version, from 0.")]
    parent: Annotated[int | None, doc("Version from which it was trained; None for version 0.")]
    url: Annotated[str, doc("Folder of HF-named safetensors and their manifest.")]
    digest: Annotated[str, doc("Digest of all tensors (`storage/digests.py`).")]
    bytes: Annotated[
        int,
        doc(
            "Size of the tensors that the files have, in bytes; of a delta: of its compressed changes. Of a version "
            "that is not stored yet: of all its tensors."
        ),
    ]
    kind: Annotated[
        WeightsKind, doc("Whether the files have all tensors, or the changes since an earlier version.")
    ] = WeightsKind.FULL
    functions: Annotated[
        dict[str, str],
        doc("User's functions that saw the files before: sha256 (hex) of the source by the setting that names it."),
    ] = {}
    carrier: Annotated[
        WeightsCarrier, doc("How engines can take the version, as long as the trainer offers it, besides its files.")
    ] = WeightsCarrier.FILES


class WeightsStored(Event, frozen=True, kw_only=True, tag="weights.stored"):
    """Appended by a trainer when the files of a version are complete and durable, if its step was committed before."""

    version: Annotated[int, doc("Weight version.")]
    digest: Annotated[str, doc("Digest of all tensors, as in `step.committed`.")]
    url: Annotated[str, doc("Folder of HF-named safetensors and their manifest.")]
    bytes: Annotated[
        int, doc("Size of the tensors that the files have, in bytes; of a delta: of its compressed changes.")
    ]
    kind: Annotated[
        WeightsKind, doc("Whether the files have all tensors, or the changes since an earlier version.")
    ] = WeightsKind.FULL
    seconds: Annotated[float, doc("Seconds that writing the files took; 0 if an earlier trainer wrote them.")] = 0.0

    IDENTITY = ("version", "digest")


class WeightsActivated(Event, frozen=True, kw_only=True, tag="weights.activated"):
    """Appended by an engine that runs the version and has checked its digest."""

    version: Annotated[int, doc("Weight version.")]
    engine: Annotated[str, doc("Worker id of the engine.")]
    digest: Annotated[str, doc("Digest of all tensors (`storage/digests.py`).")]
    seconds: Annotated[float, doc("Seconds from retracting the running generations to continuing them.")]
    lag: Annotated[float, doc("Seconds from publication to activation; 0 if the engine returns to the version.")] = 0.0
    resumed: Annotated[int, doc("Generations that were running and continued.")] = 0
    returns: Annotated[
        int,
        doc("How often the engine ran the version before; it returns to a version to finish an evaluation of it."),
    ] = 0
    refused_batches: Annotated[
        int,
        doc(
            "Appends that the engine's process repeated since its last activation, because the server had too many "
            "open batches."
        ),
    ] = 0
    carrier: Annotated[WeightsCarrier, doc("How the engine took the version.")] = WeightsCarrier.FILES

    def entity(self) -> str:
        return f"{self.version}-{self.engine}"

    def identity(self) -> tuple[str | int, ...]:
        return (self.entity(), self.returns) if self.returns else (self.entity(),)
