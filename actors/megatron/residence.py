"""`Residence`: the memory of a frozen model's weights between passes.

On the CPU each frozen model has its own memory. A GPU holds, besides the policy, at most one frozen model, and only
during its passes: between passes the weights are in host memory, as in slime's TensorBackuper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from megatron.core.distributed import DistributedDataParallel
from torch import Tensor

from actors.megatron.cpu import on_cpu
from actors.megatron.weights import all_tensors
from actors.step.heartbeat import beating


def waits_on_host() -> bool:
    """Return whether frozen models stay in host memory between passes: on GPUs, not on the CPU."""
    return not on_cpu()


class Residence(Protocol):
    """The memory of a model's weights."""

    def present(self, policy: torch.nn.Module, *, keep: bool = False) -> AbstractContextManager[torch.nn.Module]:
        """Enter a context with a model on the device that has these weights.

        policy: the model in training; on exit its weights are unchanged, bit for bit, also after an exception. keep:
        keep changes that are made to the frozen weights in the context.
        """
        ...

    def tensors(self) -> Sequence[Tensor]:
        """Return the memory of the weights between passes."""
        ...


class OwnModel:
    """A model that is always on its device."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model.requires_grad_(False)

    @contextmanager
    def present(self, policy: torch.nn.Module, *, keep: bool = False) -> Iterator[torch.nn.Module]:
        yield self._model

    def tensors(self) -> Sequence[Tensor]:
        return all_tensors(self._model)


class VisitingModel:
    """A model whose architecture differs from the policy's: its parameters are on the device only during a pass."""

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        self._model, self._device = model.requires_grad_(False), device
        self._parameters = all_tensors(model)
        self._host = host_copies(self._parameters)
        self._leave()

    @contextmanager
    def present(self, policy: torch.nn.Module, *, keep: bool = False) -> Iterator[torch.nn.Module]:
        try:
            for parameter, host in beating(zip(self._parameters, self._host, strict=True)):
                parameter.data = host.to(self._device, non_blocking=True, copy=True)
            yield self._model
            if keep:
                for parameter, host in beating(zip(self._parameters, self._host, strict=True)):
                    host.copy_(parameter.data)
        finally:
            self._leave()

    def tensors(self) -> Sequence[Tensor]:
        return self._host

    def _leave(self) -> None:
        for parameter, host in zip(self._parameters, self._host, strict=True):
            parameter.data = host


class ExchangedWeights:
    """Weights of the policy's architecture, without a model: during a pass they are exchanged with the policy's.

    There are always two copies of the weights, one on the device and one on the host. During an exchange, no pass with
    a gradient may run.
    """

    def __init__(self, policy: torch.nn.Module) -> None:
        """Allocate weights like the policy's in number and shape, with undefined values."""
        self._host = host_copies(all_tensors(policy))

    @contextmanager
    def present(self, policy: torch.nn.Module, *, keep: bool = False) -> Iterator[torch.nn.Module]:
        """See `Residence`; changes are always kept."""
        weights = all_tensors(policy)
        pairs, exchanged = list(zip(weights, self._host, strict=True)), 0
        with gathered_parameters(policy), _frozen(weights):
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

    def tensors(self) -> Sequence[Tensor]:
        return self._host


def host_copies(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Allocate host memory for each parameter: pinned for a parameter on a GPU, so that copies run at the bus speed."""
    return [torch.empty(part.shape, dtype=part.dtype, pin_memory=part.is_cuda) for part in parameters]


@torch.no_grad()
def _exchange(parameter: Tensor, host: Tensor) -> None:
    """Exchange values in place, since optimizers and gradient buckets refer to the parameter's memory.

    All copies are in order on one stream.
    """
    held = parameter.detach().clone()
    parameter.copy_(host, non_blocking=True)
    host.copy_(held, non_blocking=True)


def _settle(host: Sequence[Tensor]) -> None:
    """Wait until all copies are done."""
    if any(copy.is_pinned() for copy in host[:1]):
        torch.cuda.synchronize()


@contextmanager
def _frozen(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Disable gradients in the context. Even without recording, Megatron and torch multiply in a different order by a
    matrix that requires a gradient, which would give other last bits than a frozen model with the same weights.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_()


@contextmanager
def gathered_parameters(policy: torch.nn.Module) -> Iterator[None]:
    """Gather the policy's parameters now, and not in a forward pass, as Megatron does with `overlap_param_gather`."""
    if not isinstance(policy, DistributedDataParallel) or not policy.use_forward_hook:
        yield
        return
    policy.disable_forward_pre_hook()
    try:
        yield
    finally:
        policy.enable_forward_pre_hook()
