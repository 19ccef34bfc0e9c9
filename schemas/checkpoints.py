"""A checkpoint: model, optimizer and scheduler on disk, and a critic's if the run has one."""

from typing import Annotated

from schemas.doc import doc
from schemas.event import Event


class CheckpointSaved(Event, frozen=True, kw_only=True, tag="checkpoint.saved"):
    """Appended by the trainer when the files are complete."""

    version: Annotated[int, doc("Weight version in the checkpoint.")]
    url: Annotated[str, doc("Folder of the checkpoint.")]
    weights_digest: Annotated[str, doc("sha256 (hex) of the weights, as in `step.committed`.")]
    optimizer_digest: Annotated[str, doc("sha256 (hex) of the optimizer's state, as in `step.committed`.")]
    seconds: Annotated[float, doc("Seconds that saving took.")] = 0.0
    critic_digest: Annotated[str, doc("sha256 (hex) of the critic's state, as in `step.committed`.")] = ""
