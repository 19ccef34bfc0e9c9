"""Tensors of a trainer rank whose memory the engine on its device uses between steps."""

from collections.abc import Iterator

from torch import Tensor

from actors.megatron.trained import Trained
from actors.megatron.trainee import Trainee
from actors.megatron.weights import all_tensors


def kept_tensors(trainee: Trainee) -> Iterator[Tensor]:
    """Yield the tensors on the rank's device that the next step needs as they are; some share memory.

    They are the weights, main weights, moments and step counts of the policy and of a critic, and the weights of frozen
    models.
    """
    for tensor in _every_tensor(trainee):
        if tensor.device.type == trainee.place.device.type:
            yield tensor


def gradient_buffers(trainee: Trainee) -> Iterator[Tensor]:
    """Yield the buffers of gradients. Each update clears them before its first pass."""
    for trained in trained_models(trainee):
        for buffer in (*trained.model.buffers, *trained.model.expert_parallel_buffers):
            yield buffer.grad_data


def trained_models(trainee: Trainee) -> list[Trained]:
    """Return the policy, and the critic if there is one."""
    return [trainee, trainee.critic] if trainee.critic else [trainee]


def _every_tensor(trainee: Trainee) -> Iterator[Tensor]:
    for trained in trained_models(trainee):
        yield from all_tensors(trained.model)
        for part in trained.optimizer.chained_optimizers:
            for group in part.optimizer.param_groups:
                yield from group["params"]
            for state in part.optimizer.state.values():
                yield from (value for value in state.values() if isinstance(value, Tensor))
    for frozen in trainee.frozen.values():
        yield from frozen.residence.tensors()
