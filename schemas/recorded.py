"""Recorded rollouts that a run trains on as they are: whose they are, and how old they count here."""

from __future__ import annotations

import msgspec


class CommonVersion(msgspec.Struct, frozen=True, gc=False):
    """The last weights that two runs both have: version `here` of this one has the digest of version `there`."""

    here: int
    there: int

    def number(self, version: int) -> int:
        """What `version` there counts as here: as far behind the common weights as optimizer steps lie between the
        two, whether it came before them or was made of them. It may be negative.
        """
        return self.here - abs(version - self.there)


class Recalled(msgspec.Struct, frozen=True, gc=False):
    """Of a prompt: its rollouts are those that `run` has recorded of the group in the prompt's source.

    samples: theirs there, in index order. common: what weight versions there count as here is reckoned from it.
    oldest: what the oldest weights that made a token of them count as. bound: optimizer steps that these may lie behind
    the weights that they train.
    """

    run: str
    samples: tuple[str, ...]
    common: CommonVersion
    oldest: int
    bound: int
