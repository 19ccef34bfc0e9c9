"""A batch: what one training step is made of, in order."""

from schemas.event import Event


class BatchSealed(Event, frozen=True, kw_only=True, tag="batch.sealed"):
    """The conductor, once per step. It names everything that `step` trains on.

    samples: in training order; rewards: normalised over their groups (the advantages' input), same order; raw_rewards:
    as graded, same order. oldest_version: the oldest weight version in it. digest: sha256 over step, samples, their
    digests and rewards. suspends: training rollouts that were requested before this event and have not ended are
    suspended until they are requested again.

    removed: samples that are not trained on, all their loss masks 0; their rewards counted in the normalisation.
    log_function: the user's function that logged the step in the place of the usual metrics; empty where none did.
    functions: the user's functions that saw the samples of the step, `module:name`, and the sha256 (hex) of their
    sources.
    """

    step: int
    groups: tuple[str, ...]
    samples: tuple[str, ...]
    rewards: tuple[float, ...]
    raw_rewards: tuple[float, ...]
    digest: str
    oldest_version: int = 0
    suspends: bool = False
    removed: tuple[str, ...] = ()
    log_function: str = ""
    functions: dict[str, str] = {}
