"""A step: a batch that was trained."""

from schemas.event import Event


class StepClaimed(Event, frozen=True, kw_only=True, tag="step.claimed"):
    """A trainer, once, before the first step that it commits: no trainer before it can commit that step any more.

    A commit is fenced on all events of its step, and this moves the fence. trainer: its worker id.
    """

    step: int
    trainer: str

    IDENTITY = ("step", "trainer")


class StepCommitted(Event, frozen=True, kw_only=True, tag="step.committed"):
    """The trainer, once per sealed batch, in one atomic append with `weights.published`.

    Step s makes version s + 1 from version s. weights_digest, optimizer_digest: sha256 hex after the step; the
    optimizer's is empty where it was not computed (`--optimizer-digest`).
    batch_digest: that of the `batch.sealed`. samples: in it; tokens: of their prompts and responses.
    metrics: losses, norms, log-prob differences, by name. seconds: of the parts, by name. functions: the user's own
    functions that had a part in it, sha256 (hex) of their source by the setting that names them. models: those that
    gave log-probs beside the policy (`reference`, `teacher`), digest of their weights (storage/digests.py) by name.
    critic_digest: of the critic's weights and its optimizer's state after the step; empty without a critic, and as
    the optimizer's.
    """

    step: int
    batch_digest: str
    parent_version: int
    version: int
    weights_digest: str
    optimizer_digest: str
    samples: int
    tokens: int
    metrics: dict[str, float] = {}
    seconds: dict[str, float] = {}
    functions: dict[str, str] = {}
    models: dict[str, str] = {}
    critic_digest: str = ""
