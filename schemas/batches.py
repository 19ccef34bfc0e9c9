"""A batch: what one training step is made of, in order."""

from typing import Any

import msgspec

from schemas.arrays import Array
from schemas.event import Event


class BatchColumn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A list that a user's function made of the samples of a batch, by slime's name of it: `numbers` of all samples end
    to end, `lengths` of each; or the list `values`, one of any JSON kind for each.
    """

    name: str
    numbers: Array | None = None
    lengths: tuple[int, ...] = ()
    values: Any = None


class BatchSealed(Event, frozen=True, kw_only=True, tag="batch.sealed"):
    """The conductor, once per step. It names everything that `step` trains on.

    samples: in training order; rewards: normalised over their groups (the advantages' input), same order; raw_rewards:
    as graded, same order. oldest_version: the oldest weight version in it. digest: sha256 over step, samples, their
    digests and rewards. suspends: training rollouts that were requested before this event and have not ended are
    suspended until they are requested again.

    removed: samples that are not trained on, all their loss masks 0; their rewards counted in the normalisation.
    log_function: the user's function that logged the step in the place of the usual metrics; empty where none did.
    functions: the user's functions that saw the samples of the step, `module:name`, and the sha256 (hex) of their
    sources. post_process, post_process_digest: the same of the one that made rewards and raw_rewards of the graded
    ones; empty without one. converted_by: the one of `functions` that made the batch's train data, and so its rewards
    and raw_rewards; empty without one. columns: what else of that data is not as the samples have it. Its `loss_masks`
    (int8 [response] each) and `truncated` stand in their place, other names are for functions in the trainer.
    commands: of a run that is driven by commands, those that the step is made of, in order, the last of them the one
    that makes it; it has no groups and no samples then.
    """

    step: int
    groups: tuple[str, ...]
    samples: tuple[str, ...]
    rewards: tuple[float, ...]
    raw_rewards: tuple[float, ...]
    digest: str
    oldest_version: int = 0
    suspends: bool = False
    post_process: str = ""
    post_process_digest: str = ""
    removed: tuple[str, ...] = ()
    log_function: str = ""
    functions: dict[str, str] = {}
    converted_by: str = ""
    columns: tuple[BatchColumn, ...] = ()
    commands: tuple[str, ...] = ()
