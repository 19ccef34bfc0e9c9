"""A step: a batch that was trained."""

from typing import Annotated

from schemas.doc import doc
from schemas.event import Event


class StepClaimed(Event, frozen=True, kw_only=True, tag="step.claimed"):
    """Appended by a trainer, once, before the first step that it commits.

    A commit is fenced on all events of its step. A claim moves that fence, so an earlier trainer cannot commit the step
    any more.
    """

    step: Annotated[int, doc("Training step, from 0.")]
    trainer: Annotated[str, doc("Worker id of the trainer.")]

    IDENTITY = ("step", "trainer")


class StepCommitted(Event, frozen=True, kw_only=True, tag="step.committed"):
    """Appended by the trainer, once per sealed batch, in one atomic append with `weights.published`."""

    step: Annotated[int, doc("Training step s, from 0.")]
    batch_digest: Annotated[str, doc("Digest of the `batch.sealed`.")]
    parent_version: Annotated[int, doc("Weight version before the step: s.")]
    version: Annotated[int, doc("Weight version after the step: s + 1.")]
    weights_digest: Annotated[str, doc("sha256 (hex) of the weights after the step.")]
    optimizer_digest: Annotated[
        str, doc("sha256 (hex) of the optimizer's state after the step; empty unless `--optimizer-digest` computes it.")
    ]
    samples: Annotated[int, doc("Samples in the batch.")]
    tokens: Annotated[int, doc("Tokens of their prompts and responses.")]
    metrics: Annotated[dict[str, float], doc("Losses, norms and log-prob differences by name.")] = {}
    seconds: Annotated[dict[str, float], doc("Seconds by part of the step.")] = {}
    functions: Annotated[
        dict[str, str],
        doc("User's functions that took part: sha256 (hex) of the source by the setting that names the function."),
    ] = {}
    models: Annotated[
        dict[str, str],
        doc(
            "Models other than the policy that computed log-probs (`reference`, `teacher`): digest of their weights "
            "(`storage/digests.py`) by name."
        ),
    ] = {}
    critic_digest: Annotated[
        str,
        doc(
            "sha256 (hex) of the critic's weights and optimizer state after the step; empty without a critic, and "
            "unless `--optimizer-digest` computes it."
        ),
    ] = ""
    stored: Annotated[
        bool,
        doc("Whether the version's files were complete before. If not, `weights.stored` follows when they are."),
    ] = True
