"""The return type of a dynamic sampling filter."""

from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc


@dataclass
class DynamicFilterOutput:
    """A filter's verdict on one group. A bare bool is short for `DynamicFilterOutput(keep=...)`."""

    keep: Annotated[object, doc("Whether the step takes the group: a bool, also of numpy or torch.")]
    reason: Annotated[str | None, doc("Reason for dropping the group, counted in the metrics.")] = None
    keep_when_insufficient: Annotated[
        bool, doc("Take a group with keep=False if dropping it would need another round of sampling.")
    ] = False
