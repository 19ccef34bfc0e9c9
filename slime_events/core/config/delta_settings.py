"""Settings of how weight versions are stored, in full or as deltas, and how they reach engines."""

from typing import Annotated, Literal

from slime_events.core.config.base import doc
from slime_events.core.config.rules import Later, unused_without
from slime_events.core.config.trainer_folders import FolderSettings
from storage.weights.delta_rule import DeltaChecksum, DeltaEncoding, DeltaRule


class DeltaSettings(FolderSettings, frozen=True, kw_only=True):
    """Which weight versions are deltas, and how engines take versions. They are settings of the component `trainer`."""

    update_weight_mode: Annotated[
        Literal["full", "delta"],
        doc(
            "delta: store the changes of a weight version from the one before, except every Nth version; engines apply "
            "them to a copy on their host",
            also=Later.RESUME,
        ),
    ] = "full"
    update_weight_full_every: Annotated[
        int,
        doc(
            "store every Nth weight version in full",
            unused_without("update_weight_mode=delta", why="all versions are full"),
            above=0,
            also=Later.RESUME,
        ),
    ] = 128
    update_weight_delta_encoding: Annotated[
        Literal["xor", "overwrite"],
        doc(
            "content of a delta before compression: new XOR old, or positions and new values of the changed bytes",
            unused_without("update_weight_mode=delta", why="all versions are full"),
            also=Later.RESUME,
        ),
    ] = "xor"
    update_weight_delta_checksum: Annotated[
        Literal["xxh3-128", "adler32"],
        doc(
            "checksum of a tensor's new bytes, which its delta carries",
            unused_without("update_weight_mode=delta", why="all versions are full"),
            also=Later.RESUME,
        ),
    ] = "xxh3-128"

    update_weight_transport: Annotated[
        Literal["disk", "shared-memory", "collective"],
        doc(
            "how engines take a weight version: from its files; on the trainer's host from the trainer's memory; or "
            "by a broadcast from the trainer. Its files are stored in all cases",
            also=Later.RESUME,
        ),
    ] = "disk"
    store_before_commit: Annotated[
        bool,
        doc(
            "commit a step when the files of its weights are stored. Off: hold them in the host's memory, commit the "
            "step, and store the files while the next step trains",
            also=Later.RESUME,
        ),
    ] = True

    @property
    def delta_rule(self) -> DeltaRule | None:
        """Which weight versions are stored as deltas; None if all are stored in full."""
        if self.update_weight_mode == "full":
            return None
        return DeltaRule(
            self.update_weight_full_every,
            DeltaEncoding(self.update_weight_delta_encoding),
            DeltaChecksum(self.update_weight_delta_checksum),
        )
