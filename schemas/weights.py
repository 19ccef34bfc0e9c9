"""A weight version: published by the trainer, activated by each engine."""

import enum

from schemas.event import Event


class WeightsKind(enum.StrEnum):
    """All tensors, or the difference to the parent."""

    FULL = "full"
    DELTA = "delta"


class WeightsPublished(Event, frozen=True, kw_only=True, tag="weights.published"):
    """The trainer. url: folder of HF-named safetensors and their manifest. digest: of all tensors (storage/digests.py).

    parent is None for version 0, the weights a run starts from. bytes: of the files. kind: always full. functions: the
    user's functions that were shown the files before, sha256 (hex) of their source by the setting that names them.
    """

    version: int
    parent: int | None
    url: str
    digest: str
    bytes: int
    kind: WeightsKind = WeightsKind.FULL
    functions: dict[str, str] = {}


class WeightsActivated(Event, frozen=True, kw_only=True, tag="weights.activated"):
    """An engine, once it runs this version and has checked its digest. seconds: from retraction to continuation.

    lag: seconds from publication to activation, 0 where the engine returns to a version. resumed: generations that were
    running and continued. returns: how often this engine has run the version before; it returns to one to finish an
    evaluation of it. refused_batches: appends that this engine's process had to send again since its activation before,
    as the server takes fewer batches at a time than were open.
    """

    version: int
    engine: str
    digest: str
    seconds: float
    lag: float = 0.0
    resumed: int = 0
    returns: int = 0
    refused_batches: int = 0

    def entity(self) -> str:
        return f"{self.version}-{self.engine}"

    def identity(self) -> tuple[str | int, ...]:
        return (self.entity(), self.returns) if self.returns else (self.entity(),)
