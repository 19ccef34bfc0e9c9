"""`Policy`: the model in training, as a step on a rank sees it. Each training backend implements it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, NamedTuple, Protocol

from torch import Tensor

from actors.step.micro_batch import MicroBatch
from actors.step.place import Place
from actors.step.schedule import Figures, Forward, Loss, Output, Schedule
from schemas.doc import doc
from slime_events.core.training.datums import AdamParams, Datum
from slime_events.core.training.train_batch import StoredVersion, TrainSample
from slime_events.loop.training.past_versions import OLD_ACTOR

REFERENCE = "reference"
TEACHER = "teacher"
PREFIXES = {REFERENCE: "ref_", TEACHER: "teacher_", OLD_ACTOR: ""}
"""Names of frozen models, and slime's prefixes of the columns of their log-probs."""
Timed = Callable[[str], AbstractContextManager[None]]
OfSamples = dict[int, Tensor]
"""A column by index into the batch, float32 [response] each, in host memory."""
Packed = MicroBatch[Any]
"""A micro batch in the layout of the backend, which only the backend reads."""


class Outputs(NamedTuple):
    """Result of a forward pass, per sample."""

    log_probs: Annotated[list[Tensor], doc("float32 [response] each, in nats")]
    entropy: Annotated[list[Tensor], doc("float32 [response] each, in nats")]


class UpdateSize(NamedTuple):
    """The samples of an optimizer step on all ranks."""

    sequences: int
    tokens: Annotated[int, doc("tokens of prompts and responses")]


def untimed(part: str) -> AbstractContextManager[None]:
    """Measure nothing. See `StepMetrics.timed`."""
    return nullcontext()


class Trained(Protocol):
    """A model in training with its optimizer and its learning rate schedule. Methods are collective."""

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next update."""
        ...

    @property
    def schedule(self) -> Schedule:
        """Order of the passes over micro batches."""
        ...

    def update(
        self,
        batches: Sequence[list[int]],
        forward: Forward[Output],
        loss: Loss[Output, Figures],
        *,
        what: str,
        timed: Timed = untimed,
        before: Callable[[], None] = lambda: None,
        size: UpdateSize | None = None,
    ) -> tuple[float, list[Figures]]:
        """Sum the gradients over micro batches and ranks, and step.

        Return the norm of the gradient before clipping, and the figures of each micro batch. loss: divided by the
        weight of the whole optimizer step. what: name of the step in errors. timed: context around each part. before:
        called with cleared gradients. size: of the step, without which losses of the backend are not added. Raises
        TrainerError if the norm is not finite.
        """
        ...


class ValueModel(Trained, Protocol):
    """A critic in training."""

    def values(self, packed: Packed) -> list[Tensor]:
        """Return the value at each position that predicts a response token, float32 [response] per sample."""
        ...


class Frozen(Protocol):
    """A model that computes log-probs and is not trained."""

    def become(self, stored: StoredVersion) -> None:
        """Load a version of this run; collective. Raises CheckpointMismatch if its folder holds different weights."""
        ...

    def score(self, samples: Sequence[TrainSample], indices: Sequence[int], temperature: float) -> OfSamples:
        """Return the log-probs of each response by index, without gradient."""
        ...


class Policy(Trained, Protocol):
    """The policy in training on this rank, with the models beside it."""

    @property
    def place(self) -> Place:
        """This process among the ranks."""
        ...

    @property
    def vocab_size(self) -> int:
        """Smallest vocabulary of the policy and the frozen models."""
        ...

    @property
    def critic(self) -> ValueModel | None:
        """The value model, if the estimator needs values."""
        ...

    @property
    def replays_routing(self) -> bool:
        """Whether `score` records the experts of each token, which later passes of the step use again."""
        ...

    def engine_routed(self, samples: Sequence[TrainSample]) -> float | None:
        """Return the share of the samples' tokens with experts of the engine; None if these are not used."""
        ...

    @property
    def uses_every_sample(self) -> bool:
        """Whether samples whose loss is 0 change the weights too, by losses of the backend."""
        ...

    @property
    def handles(self) -> tuple[list[Any], Any, Any]:
        """Models, optimizer and schedule of the backend, which a user's function gets."""
        ...

    def frozen_model(self, name: str) -> Frozen | None:
        """Return the frozen model of this name; None if the settings need none."""
        ...

    def deal(self, samples: Sequence[TrainSample] | Sequence[Datum], indices: Sequence[int]) -> list[list[int]]:
        """Return this rank's micro batches, as `indices` into `samples`. All ranks give the same arguments."""
        ...

    def pack(self, samples: Sequence[TrainSample], indices: Sequence[int]) -> Packed:
        """Pack samples to a micro batch on this rank's device."""
        ...

    def begin_update(self, samples: Sequence[TrainSample], masks: Sequence[Tensor], indices: Sequence[int]) -> None:
        """Prepare a loss that the policy adds to each pass of the next update, if it has one.

        samples, masks: of the batch; masks [response] of trained tokens. indices: the update's samples on all ranks.
        """
        ...

    def pack_datums(self, datums: Sequence[Datum]) -> Packed:
        """Pack a client's sequences to a micro batch on this rank's device."""
        ...

    def forward(self, packed: Packed, temperature: float, *, entropy_gradient: bool = False) -> Outputs:
        """Return log-probs and entropy of logits / temperature. entropy_gradient: the entropy carries a gradient."""
        ...

    def logits(self, packed: Packed) -> Tensor:
        """Return the logits of all positions, float32 [1, tokens, vocabulary / tensor parallel ranks].

        They are not divided by the temperature.
        """
        ...

    def score(
        self,
        samples: Sequence[TrainSample],
        indices: Sequence[int],
        temperature: float,
        entropies: OfSamples | None = None,
    ) -> OfSamples:
        """Return the log-probs of each response by index, without gradient. entropies: filled in the same form."""
        ...

    def own_metrics(self) -> dict[str, float]:
        """Return metrics of the backend over the updates since the last call, the same on all ranks; collective."""
        ...

    def clear_gradients(self) -> None:
        """Begin a new sum of gradients."""
        ...

    def apply(self, update: AdamParams) -> tuple[float, bool]:
        """Exchange the summed gradients and step with a client's parameters.

        Return the norm of the gradient before clipping, and whether the step was taken: not if the norm is not finite.
        """
        ...
