"""Recorded rollouts that a run reuses: of which run, and how old they count here."""

import msgspec


class CommonVersion(msgspec.Struct, frozen=True, gc=False):
    """The last weights that two runs both have: version `here` of this one has the digest of version `there`."""

    here: int
    there: int

    def number(self, version: int) -> int:
        """The version here that `version` there counts as: the common version minus the optimizer steps between the
        two, in either direction. It may be negative.
        """
        return self.here - abs(version - self.there)


class Recalled(msgspec.Struct, frozen=True, gc=False):
    """Of a prompt: its rollouts are those that `run` has recorded of the group in the prompt's source.

    samples: their ids there, in index order. common: maps weight versions there to versions here. oldest: the version
    here that the oldest weights in them count as. bound: optimizer steps that these may be behind the weights that they
    train.
    """

    run: str
    samples: tuple[str, ...]
    common: CommonVersion
    oldest: int
    bound: int
