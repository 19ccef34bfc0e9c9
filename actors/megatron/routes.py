"""`Routes`: the experts of a step's samples, as engines or routers chose them, which its passes use again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from actors.megatron.attention import PackedSequences
from actors.megatron.router_choices import UNKNOWN, Forced, RouterChoices, Routing, leave_alone
from schemas.doc import doc
from schemas.errors import TrainerError
from slime_events.core.training.train_batch import TrainSample

Choices = npt.NDArray[np.unsignedinteger[Any]]
"""Experts of a sample's tokens in the layers of this rank with experts, [tokens, layers, experts per token]."""


class Mixture(Protocol):
    """The sizes of a mixture of experts that routing needs; see `families.experts.Experts`."""

    @property
    def count(self) -> int: ...

    @property
    def per_token(self) -> int: ...

    @property
    def first_dense(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a micro batch over the ranks of a model."""

    samples: Sequence[TrainSample]
    packed: PackedSequences
    parts: Annotated[dist.ProcessGroup | None, doc("ranks that divide the tokens between the cut parameters")] = None

    def mine(self, values: Tensor) -> Tensor:
        """Return the values of the tokens that this rank's routers see, `UNKNOWN` for tokens that fill up.

        values: of the samples' tokens, [tokens, ...].
        """
        own = self.packed.of_own_tokens(values, UNKNOWN)
        return own if self.parts is None else own.tensor_split(self.parts.size())[self.parts.rank()]

    def of_all(self, values: Tensor) -> Tensor:
        """Return the values of the samples' tokens; collective. values: of those that this rank's routers saw."""
        if self.parts is not None:
            every = [torch.empty_like(values) for _ in range(self.parts.size())]
            dist.all_gather(every, values.contiguous(), group=self.parts)
            values = torch.cat(every)
        return self.packed.of_all_tokens(values)[: sum(sample.total_length for sample in self.samples)]


class Routes:
    """Choices by sample, in host memory: a byte for each token, layer and expert, or two beyond 256 experts."""

    def __init__(self, experts: Mixture, layers: int, *, of_engines: bool = False) -> None:
        """layers: of the whole model. of_engines: use the engine's choices before those of the routers here."""
        self._experts, self._layers = experts, layers
        self._dtype: type[np.uint8] | type[np.uint16] = np.uint8 if self._experts.count <= 256 else np.uint16
        self.of_engines = of_engines
        self._choices: dict[str, Choices] = {}

    def forget(self) -> None:
        """Begin a new step."""
        self._choices.clear()

    def recording(self, tokens: Tokens) -> Routing:
        """Return the routing of a pass without gradient that records the experts of all tokens.

        Routers choose for tokens without a choice of the engine.
        """
        return _Pass(self, tokens, self._choices, trains=False)

    def scoring(self, tokens: Tokens) -> Routing:
        """Return the routing of a pass without gradient that uses the engine's choices alone."""
        return _Pass(self, tokens, None, trains=False)

    def training(self, tokens: Tokens) -> Routing:
        """Return the routing that uses the recorded choices, or else the engine's."""
        return _Pass(self, tokens, None, trains=True)

    def engine_share(self, samples: Sequence[TrainSample]) -> float:
        """Return for how many of the tokens, without the last of each sample, the engine's choices are known."""
        routed = 0
        for sample in samples:
            if (choices := self._of_engine(sample)) is not None:
                routed += int((choices[: sample.total_length - 1, -1, 0] != UNKNOWN).sum())
        return routed / max(1, sum(sample.total_length - 1 for sample in samples))

    def forced(self, tokens: Tokens, layers: Sequence[int], *, recorded: bool) -> list[Forced | None]:
        """Return what the router of each of these layers is given for the tokens of this rank.

        recorded: use recorded choices before the engine's.
        """
        every = [self._of_sample(sample, layers, recorded=recorded) for sample in tokens.samples]
        if all(choices is None for choices in every):
            return [None] * len(layers)
        shape = len(layers), self._experts.per_token
        parts = [
            np.full((sample.total_length, *shape), UNKNOWN, np.int32) if choices is None else choices
            for sample, choices in zip(tokens.samples, every, strict=True)
        ]
        mine = tokens.mine(torch.from_numpy(np.concatenate(parts)))
        by_layer = mine.to(torch.int64).transpose(0, 1).contiguous()
        return [Forced(ids, whole=not bool((ids == UNKNOWN).any())) for ids in by_layer]

    def _of_sample(self, sample: TrainSample, layers: Sequence[int], *, recorded: bool) -> npt.NDArray[np.int32] | None:
        """Return the experts of a sample's tokens in some layers, int32 [tokens, layers, each]; None: all unknown."""
        if recorded and (whole := self._choices.get(sample.sample)) is not None:
            return whole.astype(np.int32)
        choices = self._of_engine(sample)
        if choices is None:
            return None
        unknown = np.full((sample.total_length - len(choices), *choices.shape[1:]), UNKNOWN, np.int32)
        return np.concatenate([choices, unknown])[:, list(layers)]

    def _of_engine(self, sample: TrainSample) -> npt.NDArray[np.int32] | None:
        """Return the engine's choices, int32 [known tokens, all layers, each]; None without.

        The first dense layers have no router. A token with the same expert twice in another layer has passed no router
        of the engine: SGLang reports zeros for a token whose keys and values came from elsewhere. Raises TrainerError
        if the choices are not of this model.
        """
        experts = sample.experts if self.of_engines else None
        if experts is None:
            return None
        highest, shape = experts.max(initial=0), (self._layers, self._experts.per_token)
        if experts.shape[1:] != shape or len(experts) > sample.total_length or highest >= self._experts.count:
            raise TrainerError(
                f"sample {sample.sample} of {sample.total_length} tokens has the engine's choices of shape "
                f"{list(experts.shape)} up to expert {highest}, but the trainer's model has {shape[0]} layers that "
                f"choose {shape[1]} of {self._experts.count} experts: is it the model that engines serve?"
            )
        choices = experts.astype(np.int32)
        choices[_repeats(experts[:, min(self._experts.first_dense, self._layers) :])] = UNKNOWN
        return choices

    def of_step(self, tokens: Tokens, choices: Tensor, into: dict[str, Choices]) -> None:
        """Divide the experts of all tokens [tokens, layers, each] by sample."""
        whole: Choices = choices.cpu().numpy().astype(self._dtype)
        begin = 0
        for sample in tokens.samples:
            into[sample.sample] = whole[begin : begin + sample.total_length]
            begin += sample.total_length


def _repeats(experts: Choices) -> npt.NDArray[np.bool_]:
    """Return for which tokens an expert is there twice in a layer, [tokens]. experts: [tokens, layers, each]."""
    places = np.ascontiguousarray(np.moveaxis(experts, -1, 0))  # many times faster than to sort the few of each layer
    twice = np.zeros(experts.shape[:2], np.bool_)
    for place in range(1, len(places)):
        twice |= (places[:place] == places[place]).any(0)
    repeats: npt.NDArray[np.bool_] = np.logical_or.reduce(twice, 1)
    return repeats


@dataclass(frozen=True, slots=True)
class _Pass:
    routes: Routes
    tokens: Tokens
    record: Annotated[dict[str, Choices] | None, doc("filled with the experts of the samples")]
    trains: bool

    def begin(self, routers: Sequence[RouterChoices]) -> None:
        layers = [router.layer for router in routers]
        forced = self.routes.forced(self.tokens, layers, recorded=self.trains)
        for router, ids in zip(routers, forced, strict=True):
            router.begin(ids, records=self.record is not None, trains=self.trains and torch.is_grad_enabled())

    def end(self, routers: Sequence[RouterChoices]) -> None:
        """Record. Else leave the routers as they are: the backward pass may compute a layer again."""
        if self.record is None or not routers:
            return
        chosen = torch.stack([router.chosen for router in routers if router.chosen is not None], 1)
        self.routes.of_step(self.tokens, self.tokens.of_all(chosen), self.record)
        leave_alone(routers)
