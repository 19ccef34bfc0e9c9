"""Recorded rollouts that a run reuses: which run made them, and how old they count in this run."""

from typing import Annotated

import msgspec

from schemas.doc import doc


class CommonVersion(msgspec.Struct, frozen=True, gc=False):
    """The last weights that two runs share, under their version number in each run."""

    here: Annotated[int, doc("Version in this run.")]
    there: Annotated[int, doc("Version in the other run; it has the same digest.")]

    def number(self, version: int) -> int:
        """Return the version of this run that `version` of the other run counts as.

        That is the common version minus the optimizer steps between the two, in either direction. It may be negative.
        """
        return self.here - abs(version - self.there)


class Recalled(msgspec.Struct, frozen=True, gc=False):
    """The recorded group whose rollouts a prompt reuses. The prompt's source names the group."""

    run: Annotated[str, doc("Run that recorded the rollouts.")]
    samples: Annotated[tuple[str, ...], doc("Ids of the samples in that run, in index order.")]
    common: Annotated[CommonVersion, doc("Maps weight versions of that run to versions of this run.")]
    oldest: Annotated[int, doc("Version of this run that the oldest weights of the rollouts count as.")]
    bound: Annotated[int, doc("Optimizer steps that the rollouts may be behind the weights that they train.")]
