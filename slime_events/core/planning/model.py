"""`PlannedModel`: what a plan asks of the trainer's arithmetic about a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

from schemas.doc import doc
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.planning.assumptions import Assumptions


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Numbers of a whole model, before it is divided."""

    parameters: int
    active: Annotated[int, doc("Parameters that process a token, without the embedding.")]
    layers: int
    copied: Annotated[int, doc("Parameters that each GPU of an engine has: norms and routers.")]
    cut: Annotated[int, doc("Parameters that tensor parallel GPUs divide, without experts.")]
    experts: Annotated[int, doc("Parameters of all experts.")]
    key_value_heads: int
    key_value_width: Annotated[int, doc("Values of a key and a value of one head.")]
    latent_width: Annotated[int | None, doc("Cached values of a token and layer with latent attention; else None.")]


@dataclass(frozen=True, slots=True)
class RankBytes:
    """Bytes on the GPU of a rank, and on its host."""

    parameters: Annotated[int, doc("Parameters of the rank, a number.")]
    weights: int
    gradients: int
    optimizer: int
    activations: Annotated[int, doc("Values that are kept for the backward pass of one micro batch, or of several.")]
    logits: int
    runtime: Annotated[int, doc("CUDA context, buffers of NCCL, workspaces, fragmentation.")]
    host: Annotated[int, doc("Host memory: frozen models, and an optimizer that is offloaded.")]

    @property
    def state(self) -> int:
        """Bytes that stay between steps. They are exact."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        """All bytes on the GPU."""
        return self.state + self.activations + self.logits + self.runtime


@dataclass(frozen=True, slots=True)
class TokenLoad:
    """Lengths of samples."""

    longest: Annotated[int, doc("Tokens of the longest sample: prompt and response.")]
    mean: Annotated[float, doc("Mean tokens of a sample.")]
    response: Annotated[float, doc("Mean tokens of a response.")]
    longest_response: int


class PlannedModel(Protocol):
    """A model, and how a trainer divides it."""

    @property
    def shape(self) -> ModelShape: ...

    def rank(self, trainer: TrainerSettings, load: TokenLoad, assumed: Assumptions) -> RankBytes:
        """Return the bytes of the fullest rank. trainer: settings of a run on GPUs whose layout `refusal` accepts."""
        ...

    def refusal(self, trainer: TrainerSettings) -> str | None:
        """Return why the model cannot be divided over the ranks; None if it can."""
        ...

    def forward_flops(self, tokens: int) -> int:
        """Return the floating point operations of a forward pass over a sample."""
        ...
