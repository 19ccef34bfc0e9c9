"""A checkpoint: model, optimizer and scheduler on disk, and those of a critic where there is one."""

from schemas.event import Event


class CheckpointSaved(Event, frozen=True, kw_only=True, tag="checkpoint.saved"):
    """The trainer, after the files are complete. version: the weights in it; url: its folder; seconds: of saving.

    weights_digest, optimizer_digest, critic_digest: sha256, hex, as `step.committed` has them.
    """

    version: int
    url: str
    weights_digest: str
    optimizer_digest: str
    seconds: float = 0.0
    critic_digest: str = ""
