"""`TrainBatch`: the samples of one step for the trainer, in the order of `batch.sealed`.

It is built from the log alone, so the same log gives the same batch.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.rollouts import WeightSpan
from slime_events.core.datums import CommandedStep, TrainPass
from slime_events.core.kept_tokens import KeptTokens


@dataclass(frozen=True, slots=True)
class TrainSample:
    """One rollout.

    tokens: int32 [prompt + response]. loss_mask: int8 [response], 1 = trained on. rollout_log_probs: float32
    [response], natural log, of logits / temperature as the engine sampled them; NaN on trained tokens that no
    engine made. reward: after normalisation over its group (slime's post-process); raw_reward: as graded. rollout:
    shared by fan-out siblings; a step counts rollouts.
    oldest_version, newest_version: of the weights that made its tokens. reused: recorded by another run, or made
    outside.
    teacher_log_probs: float32 [response], where its grader asked a teacher. spans: which version made which tokens.
    kept: what top-p or top-k left of the vocabulary; there log-probs, the engine's too, are over that.
    credit: float32 [response], what the advantage of each token is multiplied by; None is 1.
    """

    sample: str
    group: str
    rollout: str
    tokens: npt.NDArray[np.int32]
    response_length: int
    loss_mask: npt.NDArray[np.int8]
    rollout_log_probs: npt.NDArray[np.float32]
    reward: float
    raw_reward: float
    oldest_version: int
    newest_version: int
    truncated: bool = False
    reused: bool = False
    teacher_log_probs: npt.NDArray[np.float32] | None = None
    spans: tuple[WeightSpan, ...] = ()
    kept: tuple[KeptTokens, ...] = ()
    credit: npt.NDArray[np.float32] | None = None

    @property
    def total_length(self) -> int:
        """Prompt + response, in tokens."""
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A weight version of this run in a Hugging Face folder. digest: of its weights, sha256 (hex). checkpoint: folder
    of one of it, with the optimizer's state; empty where none was saved.
    """

    version: int
    folder: str
    digest: str
    checkpoint: str = ""


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """The batch of one `batch.sealed`: `step` makes version `step + 1` from version `step`.

    temperature: of the rollouts; engine and trainer take log-probs of logits / temperature. columns: by name, what a
    user's function made of the samples for others of his in the trainer: an array or a value for each of them.
    reference: what the reference model is at this step, where it follows the policy. old: the older versions that made
    some of its tokens, where these have old log-probs of their own; see `PastVersions`. commanded: what a client made
    the step of, in the place of samples.
    """

    step: int
    samples: tuple[TrainSample, ...]
    temperature: float = 1.0
    columns: dict[str, list[Any]] = field(default_factory=dict)
    reference: StoredVersion | None = None
    old: tuple[StoredVersion, ...] = ()
    commanded: CommandedStep | None = None

    @property
    def members(self) -> int:
        """Samples, or the datums of a client's passes."""
        return len(self.samples) + sum(len(one.datums) for one in self._passes)

    @property
    def tokens(self) -> int:
        """Of prompts and responses, or of datums."""
        return sum(one.total_length for one in self.samples) + sum(one.tokens for one in self._passes)

    @property
    def _passes(self) -> tuple[TrainPass, ...]:
        return self.commanded.passes if self.commanded else ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """metrics: by name, the same on every rank (seconds: the slowest rank's). optimizer_digest: of all ranks' state.
    functions: a user's own that had a part in it, sha256 of their source by the setting that names them. models: those
    that gave log-probs beside the policy, digest of their weights by name. critic_digest: of a critic's weights and its
    optimizer's state.
    """

    metrics: dict[str, float]
    optimizer_digest: str
    functions: dict[str, str] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    critic_digest: str = ""
