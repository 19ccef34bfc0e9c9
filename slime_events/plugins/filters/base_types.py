"""The return type of a dynamic sampling filter."""

from dataclasses import dataclass
from typing import Any


@dataclass
class DynamicFilterOutput:
    """A filter's verdict on one group. A bare bool stands for `DynamicFilterOutput(keep=...)`.

    `keep_when_insufficient`: a group with keep=False is still taken where dropping it would need another round of
    sampling.
    """

    keep: Any
    reason: str | None = None
    keep_when_insufficient: bool = False
