"""`Residence`: where the weights of a model that is not trained are between the passes that ask it.

On the CPU each has a model of its own. A GPU holds one model's parameters besides what is trained: the others wait on
the host, and come for the passes that ask them. slime does so too (its TensorBackuper).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from megatron.core.distributed import DistributedDataParallel
from torch import Tensor

from actors.megatron.cpu import on_cpu
from actors.megatron.heartbeat import beating


def waits_on_host() -> bool:
    """Whether models that are not trained wait on the host: on the CPU they would move from memory to memory."""
    return not on_cpu()


class Residence(Protocol):
    """Of one model's weights."""

    def present(self, policy: torch.nn.Module, *, keep: bool = False) -> AbstractContextManager[torch.nn.Module]:
        """A model with these weights on the device. policy: the model in training, whose weights are the same
        afterwards, bit for bit, also after an exception. keep: what is written to the weights meanwhile stays.
        """
        ...


class OwnModel:
    """A model that is always on its device."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model.requires_grad_(False)

    @contextmanager
    def present(self, policy: torch.nn.Module, *, keep: bool = False) -> Iterator[torch.nn.Module]:
        """See `Residence`."""
        yield self._model


class VisitingModel:
    """A model of another architecture than the policy: its parameters are on the device for a pass alone."""

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        self._model, self._device = model.requires_grad_(False), device
        self._parameters = list(model.parameters())
        self._host = host_copies(self._parameters)
        self._leave()

    @contextmanager
    def present(self, policy: torch.nn.Module, *, keep: bool = False) -> Iterator[torch.nn.Module]:
        """See `Residence`."""
        try:
            for parameter, host in beating(zip(self._parameters, self._host, strict=True)):
                parameter.data = host.to(self._device, non_blocking=True, copy=True)
            yield self._model
            if keep:
                for parameter, host in beating(zip(self._parameters, self._host, strict=True)):
                    host.copy_(parameter.data)
        finally:
            self._leave()

    def _leave(self) -> None:
        for parameter, host in zip(self._parameters, self._host, strict=True):
            parameter.data = host


class ExchangedWeights:
    """Weights of the policy's architecture, without a model: for a pass they change places with the policy's.

    Two copies of the weights are there at any time, one on the device and one on the host. No pass with a gradient may
    be under way.
    """

    def __init__(self, policy: torch.nn.Module) -> None:
        """Like those of the policy in number and shape; what they are is not said before something is written."""
        self._host = host_copies(policy.parameters())

    @contextmanager
    def present(self, policy: torch.nn.Module, *, keep: bool = False) -> Iterator[torch.nn.Module]:
        """See `Residence`; keep is always so."""
        pairs, exchanged = list(zip(policy.parameters(), self._host, strict=True)), 0
        with _whole(policy), _frozen([parameter for parameter, _ in pairs]):
            try:
                for parameter, host in beating(pairs):
                    _exchange(parameter, host)
                    exchanged += 1
                _settle(self._host)
                yield policy
            finally:
                for parameter, host in beating(pairs[:exchanged]):
                    _exchange(parameter, host)
                _settle(self._host)


def host_copies(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Memory on the host for each; of one on a GPU it is pinned, so that copies go at the bus's speed."""
    return [torch.empty(one.shape, dtype=one.dtype, pin_memory=one.is_cuda) for one in parameters]


@torch.no_grad()
def _exchange(parameter: Tensor, host: Tensor) -> None:
    """In place: optimizers and buckets of gradients know the parameter's own memory. In order on one stream."""
    held = parameter.detach().clone()
    parameter.copy_(host, non_blocking=True)
    host.copy_(held, non_blocking=True)


def _settle(host: Sequence[Tensor]) -> None:
    """Wait until the copies are made."""
    if any(one.is_pinned() for one in host[:1]):
        torch.cuda.synchronize()


@contextmanager
def _frozen(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Meanwhile none wants a gradient. Megatron and torch multiply by a matrix that does in another order, also without
    recording: a frozen model of its own has other last bits than the policy with the same weights.
    """
    trained = [one for one in parameters if one.requires_grad]
    for one in trained:
        one.requires_grad_(False)
    try:
        yield
    finally:
        for one in trained:
            one.requires_grad_()


@contextmanager
def _whole(policy: torch.nn.Module) -> Iterator[None]:
    """Meanwhile no forward pass gathers parameters of the policy, which Megatron does with `overlap_param_gather`: they
    are gathered before.
    """
    if not isinstance(policy, DistributedDataParallel) or not policy.use_forward_hook:
        yield
        return
    policy.disable_forward_pre_hook()
    try:
        yield
    finally:
        policy.enable_forward_pre_hook()
