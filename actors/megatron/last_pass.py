"""`forget_last_pass`: drop what a model's layers still hold of their last pass, so that the model can be freed."""

from __future__ import annotations

import torch


def forget_last_pass(model: torch.nn.Module) -> None:
    """Drop the tensors of the last pass that Megatron's dispatchers of tokens to experts keep.

    Their autograd graph reaches the model's parameters and, by hooks, the model. The garbage collector cannot follow
    this circle, because a part of it is not in Python: the whole model would stay in memory.
    """
    for module in model.modules():
        dispatcher = getattr(module, "token_dispatcher", None)
        for name, value in list(vars(dispatcher).items()) if dispatcher is not None else ():
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                setattr(dispatcher, name, None)
