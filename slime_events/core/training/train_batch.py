"""`TrainBatch`: the samples of a step for the trainer, in the order of `batch.sealed`.

A batch is built from the log alone, so the same log gives the same batch.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from schemas.doc import doc
from schemas.rollouts import WeightSpan
from slime_events.core.tokens.kept_tokens import KeptTokens
from slime_events.core.training.datums import CommandedStep, TrainPass


@dataclass(frozen=True, slots=True)
class TrainSample:
    """A sample to train on."""

    sample: str
    group: str
    rollout: Annotated[str, doc("id of the rollout, shared by its fan-out siblings; a step counts rollouts")]
    tokens: Annotated[npt.NDArray[np.int32], doc("int32 [prompt + response]")]
    response_length: Annotated[int, doc("tokens")]
    loss_mask: Annotated[npt.NDArray[np.int8], doc("int8 [response]; 1: trained on")]
    rollout_log_probs: Annotated[
        npt.NDArray[np.float32],
        doc(
            "float32 [response], natural log, of logits / temperature as the engine sampled them; NaN on "
            "trained tokens "
            "that no engine made"
        ),
    ]
    reward: Annotated[float, doc("normalized over its group (slime's post-process)")]
    raw_reward: Annotated[float, doc("as graded")]
    oldest_version: Annotated[int, doc("oldest weight version that made some of its tokens")]
    newest_version: Annotated[int, doc("newest weight version that made some of its tokens")]
    truncated: bool = False
    reused: Annotated[bool, doc("recorded by another run, or made outside")] = False
    teacher_log_probs: Annotated[
        npt.NDArray[np.float32] | None, doc("float32 [response], natural log; None: the grader called no teacher")
    ] = None
    spans: Annotated[tuple[WeightSpan, ...], doc("token ranges with the weight version that made them")] = ()
    kept: Annotated[
        tuple[KeptTokens, ...], doc("vocabulary left by top-p or top-k; log-probs of these tokens are over it")
    ] = ()
    credit: Annotated[
        npt.NDArray[np.float32] | None, doc("float32 [response], factor of each token's advantage; None: 1")
    ] = None

    experts: Annotated[
        npt.NDArray[np.uint8] | npt.NDArray[np.uint16] | None,
        doc("[tokens, layers, each], chosen by the engine's routers for the first tokens; None: unknown"),
    ] = None

    @property
    def total_length(self) -> int:
        """Tokens of prompt and response."""
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A weight version of this run in a Hugging Face folder."""

    version: int
    folder: str
    digest: Annotated[str, doc("sha256 of the weights, hex")]
    checkpoint: Annotated[str, doc("folder of this version's checkpoint with the optimizer; empty: none was saved")] = (
        ""
    )


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """The batch of a `batch.sealed`: `step` makes version `step + 1` from version `step`."""

    step: int
    samples: tuple[TrainSample, ...]
    temperature: Annotated[
        float, doc("sampling temperature; engine and trainer compute log-probs of logits / temperature")
    ] = 1.0
    columns: Annotated[dict[str, list[Any]], doc("a user's own columns by name: an array or a value per sample")] = (
        field(default_factory=dict)
    )
    reference: Annotated[
        StoredVersion | None, doc("the reference model at this step; None: it does not follow the policy")
    ] = None
    old: Annotated[
        tuple[StoredVersion, ...],
        doc("older versions that made some of the tokens, if these need their old log-probs; see `PastVersions`"),
    ] = ()
    commanded: Annotated[CommandedStep | None, doc("the step of a client's commands, instead of samples")] = None

    @property
    def members(self) -> int:
        """The number of samples, or of datums in a client's passes."""
        return len(self.samples) + sum(len(part.datums) for part in self._passes)

    @property
    def tokens(self) -> int:
        """The number of tokens in prompts and responses, or in datums."""
        return sum(sample.total_length for sample in self.samples) + sum(part.tokens for part in self._passes)

    @property
    def _passes(self) -> tuple[TrainPass, ...]:
        return self.commanded.passes if self.commanded else ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a training step."""

    metrics: Annotated[dict[str, float], doc("by name, equal on every rank; times are the slowest rank's seconds")]
    optimizer_digest: Annotated[str, doc("digest of the optimizer's state on all ranks")]
    functions: Annotated[
        dict[str, str], doc("users' functions that took part: setting to sha256 of the source, hex")
    ] = field(default_factory=dict)
    models: Annotated[dict[str, str], doc("further models that gave log-probs: name to digest of the weights")] = field(
        default_factory=dict
    )
    critic_digest: Annotated[str, doc("digest of the critic's weights and optimizer state; empty: no critic")] = ""
