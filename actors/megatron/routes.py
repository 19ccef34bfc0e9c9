"""`Routes`: the experts that routers chose for the samples of a step, which its later passes use again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction

from schemas.doc import doc
from slime_events.core.training.train_batch import TrainSample

Choices = npt.NDArray[np.unsignedinteger[Any]]
"""Experts of a sample's tokens, [tokens, layers with experts, experts per token]."""


class Routing(Protocol):
    """The part of routers in a forward pass."""

    def begin(self, routers: Sequence[RouterReplay]) -> None:
        """Set the routers of all layers with experts, in the order of the layers, before the pass."""

    def end(self, routers: Sequence[RouterReplay]) -> None:
        """Read the routers after the pass."""


class Routes:
    """Choices by sample, in host memory: a byte for each token, layer and expert, or two beyond 256 experts."""

    def __init__(self, experts: int) -> None:
        """experts: number of experts of a layer."""
        self._dtype: type[np.uint8] | type[np.uint16] = np.uint8 if experts <= 256 else np.uint16
        self._choices: dict[str, Choices] = {}

    def forget(self) -> None:
        """Begin a new step."""
        self._choices.clear()

    def recording(self, samples: Sequence[TrainSample]) -> Routing:
        """Return the routing that records the choices for a micro batch of these samples."""
        return _Recording(self._choices, self._dtype, samples)

    def replay(self, samples: Sequence[TrainSample]) -> Routing | None:
        """Return the routing that uses the recorded choices; None if there are none for one of the samples."""
        recorded = [self._choices.get(sample.sample) for sample in samples]
        choices = [choice for choice in recorded if choice is not None]
        if len(choices) < len(recorded):
            return None
        return _Replay(torch.from_numpy(np.concatenate(choices).astype(np.int64)).permute(1, 0, 2).contiguous())


@dataclass(frozen=True, slots=True)
class _Recording:
    choices: dict[str, Choices]
    dtype: type[np.uint8] | type[np.uint16]
    samples: Sequence[TrainSample]

    def begin(self, routers: Sequence[RouterReplay]) -> None:
        for router in routers:
            router.set_router_replay_action(RouterReplayAction.RECORD)

    def end(self, routers: Sequence[RouterReplay]) -> None:
        layers = torch.stack([router.get_recorded_indices() for router in routers], 1)
        whole: Choices = np.asarray(layers.cpu().numpy(), self.dtype)
        begin = 0
        for sample in self.samples:
            self.choices[sample.sample] = whole[begin : begin + sample.total_length]
            begin += sample.total_length
        leave_alone(routers)


@dataclass(frozen=True, slots=True)
class _Replay:
    layers: Annotated[torch.Tensor, doc("int64 [layers with experts, tokens, experts per token]")]

    def begin(self, routers: Sequence[RouterReplay]) -> None:
        for router, experts in zip(routers, self.layers, strict=True):
            router.target_topk_idx = experts
            router.set_router_replay_action(RouterReplayAction.REPLAY_FORWARD)

    def end(self, routers: Sequence[RouterReplay]) -> None:
        """Leave the routers as they are: the backward pass may compute a layer again."""


def leave_alone(routers: Sequence[RouterReplay]) -> None:
    """Let the routers choose, and free what they hold."""
    for router in routers:
        router.clear_router_replay_action()
        router.clear_indices()


def routers_of(model: torch.nn.Module) -> list[RouterReplay]:
    """Return the routers of a model in the order of its layers; none if its config has no routing replay."""
    routers = [module.router_replay for module in model.modules() if isinstance(module, TopKRouter)]
    return [router for router in routers if router is not None]
