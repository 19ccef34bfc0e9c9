"""A batch: the samples of one training step, in order."""

from typing import Annotated, Any

import msgspec

from schemas.arrays import Array
from schemas.doc import doc
from schemas.event import Event


class BatchColumn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A per-sample list that a user's function made for a batch: numbers with lengths, or JSON values."""

    name: Annotated[str, doc("slime's name for the list.")]
    numbers: Annotated[Array | None, doc("Numbers of all samples, concatenated in training order.")] = None
    lengths: Annotated[tuple[int, ...], doc("How many of `numbers` each sample has.")] = ()
    values: Annotated[Any, doc("Used instead of `numbers`: a list with one JSON value per sample.")] = None


class BatchSealed(Event, frozen=True, kw_only=True, tag="batch.sealed"):
    """Appended by the conductor, once per step. It names everything that the step trains on."""

    step: Annotated[int, doc("Training step, from 0.")]
    groups: Annotated[tuple[str, ...], doc("Groups in the batch.")]
    samples: Annotated[tuple[str, ...], doc("Samples in training order.")]
    rewards: Annotated[
        tuple[float, ...], doc("Rewards normalised over their groups (the input of the advantages), by sample.")
    ]
    raw_rewards: Annotated[tuple[float, ...], doc("Rewards as graded, by sample.")]
    digest: Annotated[str, doc("sha256 (hex) over the step, the samples, their digests and their rewards.")]
    oldest_version: Annotated[int, doc("Oldest weight version that generated a token of the batch.")] = 0
    suspends: Annotated[
        bool,
        doc("Unfinished training rollouts requested before this event are suspended until they are requested again."),
    ] = False
    post_process: Annotated[
        str, doc("User's function that computed `rewards` and `raw_rewards`, `module:name`; empty if there is none.")
    ] = ""
    post_process_digest: Annotated[str, doc("sha256 (hex) of the source of `post_process`.")] = ""
    removed: Annotated[
        tuple[str, ...],
        doc("Samples whose loss mask is all 0. They are not trained on; the normalisation counts their rewards."),
    ] = ()
    log_function: Annotated[
        str, doc("User's function that logged the step instead of the usual metrics; empty if there is none.")
    ] = ""
    functions: Annotated[
        dict[str, str],
        doc("User's functions that saw the step's samples: sha256 (hex) of the source by `module:name`."),
    ] = {}
    converted_by: Annotated[
        str,
        doc(
            "Entry of `functions` that converted the samples to train data, including `rewards` and `raw_rewards`; "
            "empty if there is none."
        ),
    ] = ""
    columns: Annotated[
        tuple[BatchColumn, ...],
        doc(
            "Train data that differs from the samples. `loss_masks` (int8 [response] each) and `truncated` override "
            "the samples' values; other columns are for functions in the trainer."
        ),
    ] = ()
    commands: Annotated[
        tuple[str, ...],
        doc(
            "If clients drive the run by commands: the commands of the step in order, ending with the command that "
            "makes the step. Such a batch has no groups and no samples."
        ),
    ] = ()
