"""`Voters`: the real tokens of a micro batch, which alone count in the load of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from schemas.doc import doc


@dataclass(frozen=True, slots=True)
class Voters:
    """The sequence of each token. Tokens that fill up a micro batch, or that keep an idle rank busy, have none."""

    sequence: Annotated[
        Tensor, doc("int64 [this rank's tokens]: index of the token's sequence; the number of sequences for padding")
    ]
    lengths: Annotated[Tensor, doc("float32 [sequences]: real tokens of each sequence on all ranks")]

    @classmethod
    def of(
        cls,
        lengths: Sequence[int],
        fill: int,
        device: torch.device,
        token_of: npt.NDArray[np.int64] | None = None,
    ) -> Voters:
        """Return the voters of sequences of these lengths, which `fill` tokens of padding follow.

        token_of: int64 [this rank's tokens], the packed token of each, or the number of packed tokens for padding, if
        the rank has a part of the sequences.
        """
        real = np.asarray(lengths, dtype=np.int64)
        sequence = np.append(np.repeat(np.arange(len(real)), real), np.full(max(fill, 1), len(real)))
        own = sequence[: real.sum() + fill] if token_of is None else sequence[token_of]
        return cls(torch.from_numpy(own).to(device), torch.from_numpy(real).float().to(device))

    def none(self) -> Voters:
        """Return voters of as many tokens, all of which are padding."""
        return Voters(torch.zeros_like(self.sequence), self.lengths[:0])

    @property
    def real(self) -> Tensor:
        """Whether a token is real, bool [this rank's tokens]."""
        return self.sequence < len(self.lengths)

    def part(self, rank: int, tokens: int) -> Voters:
        """Return the voters among a sequence parallel rank's tokens, which are `tokens` consecutive ones."""
        if tokens == len(self.sequence):
            return self
        return Voters(self.sequence[rank * tokens : (rank + 1) * tokens], self.lengths)
