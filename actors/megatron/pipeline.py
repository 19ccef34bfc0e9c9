"""`Pipeline`: Megatron's schedule over the stages of a model whose layers are cut over ranks.

Each stage packs the same micro batches. The first stage embeds the tokens, each next stage gets the hidden states of
the stage before it, and the last stage computes log-probs and losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import ChainedOptimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_attr_wrapped_model, get_model_config
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from actors.megatron.cpu import stand_in
from actors.megatron.virtual_stages import known_lengths, virtual_stages
from actors.step.schedule import Figures, Forward, Gradients, Loss, Output
from schemas.doc import doc


def has_output(model: torch.nn.Module) -> bool:
    """Return whether this rank has the model's last stage, which alone has an output layer."""
    if parallel_state.get_pipeline_model_parallel_world_size() == 1:
        return True
    is_last: bool = get_attr_wrapped_model(model, "post_process")
    return is_last


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A schedule of several stages. The figures of the last stage are copied to all stages."""

    model: DistributedDataParallel
    optimizer: ChainedOptimizer

    def run(
        self, batches: Sequence[list[int]], forward: Forward[Output], loss: Loss[Output, Figures], gradients: Gradients
    ) -> list[Figures]:
        """See `Schedule`. Collective over the stages, which all give the same micro batches."""
        if not batches:
            return []
        stages, learns = virtual_stages(self.model), gradients is not Gradients.NONE
        models = [self.model] if stages is None else list(stages.stages)
        config = get_model_config(models[0])
        with self._hidden_states(models) as hidden, self._functions(config, gradients):

            def step(members_of: Iterator[list[int]], model: object) -> tuple[object, Callable[[Any], Any]]:
                members = next(members_of)
                if stages is not None:
                    stages.run_next(model)
                output = forward(members)

                def loss_of(_: object) -> tuple[Tensor, Tensor, Figures]:
                    value, figures = loss(output, members)
                    # Megatron divides by this number of tokens only if the config asks for it, and ours does not.
                    return torch.zeros(()) if value is None else value, torch.tensor(1), figures

                return (hidden.pop() if hidden else output), loss_of

            held = self.model.no_sync() if gradients is Gradients.ADD else nullcontext()
            with stand_in(), held, torch.set_grad_enabled(learns):
                own = {"model": self.model, "data_iterator": iter(batches)}
                if stages is not None:
                    own = {"model": models, "data_iterator": [iter(batches) for _ in models]}
                    own |= known_lengths(config, stages.lengths(forward, batches), len(models))
                virtual = None if stages is None else len(models)
                schedule = get_forward_backward_func(config.pipeline_model_parallel_size, virtual)
                figures: list[Figures] = schedule(
                    forward_step_func=step,
                    num_microbatches=len(batches),
                    seq_length=1,  # the stages exchange the length of each micro batch, or know it
                    micro_batch_size=1,
                    forward_only=not learns,
                    **own,
                )
        return of_last_stage(figures)

    @contextmanager
    def _functions(self, config: TransformerConfig, gradients: Gradients) -> Iterator[None]:
        """Give Megatron's schedule its functions in the config, where they must not stay: they hold the model and its
        optimizer, and a reset builds the next model from the same config.
        """
        config.grad_scale_func = self.optimizer.scale_loss
        # Megatron leaves this context for the last backward pass of each stage.
        config.no_sync_func = self.model.no_sync if gradients is Gradients.COMPLETE else None
        try:
            yield
        finally:
            config.grad_scale_func = config.no_sync_func = None

    @contextmanager
    def _hidden_states(self, models: Sequence[torch.nn.Module]) -> Iterator[list[Tensor]]:
        """Collect the hidden states that a stage before the last one computes."""
        collected: list[Tensor] = []
        inner = [get_attr_wrapped_model(model, "post_process", return_model_obj=True) for model in models]
        hooks = [
            stage.register_forward_hook(lambda _, inputs, output: collected.append(output))
            for stage in inner
            if not stage.post_process
        ]
        try:
            yield collected
        finally:
            for hook in hooks:
                hook.remove()


class _Sent(NamedTuple):
    """A tensor among the figures, in the message to the other stages."""

    shape: torch.Size
    dtype: torch.dtype
    on_host: Annotated[bool, doc("it is in host memory, also where the ranks have GPUs")]


def of_last_stage(figures: list[Figures]) -> list[Figures]:
    """Return the figures of the last stage; collective over the stages.

    Figures are tensors and picklable values in any lists, tuples, named tuples and dicts.
    """
    group = parallel_state.get_pipeline_model_parallel_group()
    last, device = parallel_state.get_pipeline_model_parallel_last_rank(), torch.device(torch.cuda.current_device())
    is_last = dist.get_rank() == last
    leaves, structure = tree_flatten(figures)
    own = [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)]
    message: list[Any] = [[_message_of(leaf) for leaf in leaves], structure]
    dist.broadcast_object_list(message, last, group=group)
    sent, structure = message
    tensors = [part for part in sent if isinstance(part, _Sent)]
    received: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(part.dtype for part in tensors):
        numbers = [number for number, part in enumerate(tensors) if part.dtype == dtype]
        sizes = [tensors[number].shape.numel() for number in numbers]
        flat = torch.empty(sum(sizes), dtype=dtype, device=device)
        if is_last:
            flat = torch.cat([own[number].to(device).reshape(-1) for number in numbers])
        dist.broadcast(flat, last, group=group)
        for number, values in zip(numbers, torch.split(flat, sizes), strict=True):
            shaped = values.view(tensors[number].shape)
            received[number] = shaped.cpu() if tensors[number].on_host else shaped
    if is_last:
        return figures
    arrived = iter([received[number] for number in range(len(tensors))])
    whole = [next(arrived) if isinstance(part, _Sent) else part for part in sent]
    copied: list[Figures] = tree_unflatten(whole, structure)
    return copied


def _message_of(leaf: object) -> object:
    """Return a part of the figures, or the shape of a tensor that follows the message."""
    return _Sent(leaf.shape, leaf.dtype, leaf.device.type == "cpu") if isinstance(leaf, Tensor) else leaf
