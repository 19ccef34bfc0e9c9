"""`weight_share`: the whole tensors that one rank writes, hashes or compares.

Each tensor is in one rank's share, so that no rank holds all tensors, and all disks, cores and links work in parallel.
"""

from collections.abc import Iterator, Mapping

import torch

from actors.megatron.families.architecture import Architecture
from actors.megatron.weights import gathered, hf_tensors, model_rules, named_parameters, tensor_bytes
from actors.step.heartbeat import beat
from actors.step.place import Place
from storage.weights.shards import TensorBytes

LEAST_BYTES = 256 * 1024**2
"""Smallest share of a rank. Smaller weights are one rank's work, since more files bring no gain."""


def owners(sizes: Mapping[str, int], ranks: int, least: int) -> dict[str, int]:
    """Assign each parameter to a rank. sizes: bytes of the whole parameters, in the model's order.

    The next parameter goes to the rank with the fewest bytes so far, so that ranks that gather parameters together
    fill and write their files at the same time. Each rank that has a share has about `least` bytes or more.
    """
    has = [0] * max(1, min(ranks, sum(sizes.values()) // least))
    owner = {}
    for name, size in sizes.items():
        owner[name] = has.index(min(has))
        has[owner[name]] += size
    return owner


def weight_share(model: torch.nn.Module, arch: Architecture, place: Place) -> Iterator[TensorBytes]:
    """Yield this rank's tensors under their Hugging Face names, as bytes on the CPU, one Megatron parameter at a time.

    Collective: exhaust the iterator. On the CPU a tensor may share memory with the model: use it before the next
    training step.
    """
    rules, tensor, data = model_rules(model, arch), place.tensor, place.data
    parameters = {name: parameter.detach() for name, parameter in named_parameters(model)}
    sizes = {name: part.nbytes * (1 if rules[name].cut is None else tensor.size()) for name, part in parameters.items()}
    mine = data.rank() * tensor.size() + tensor.rank()
    for name, owner in owners(sizes, data.size() * tensor.size(), LEAST_BYTES).items():
        if owner // tensor.size() != data.rank():
            continue
        parts = gathered(rules[name], parameters[name], tensor)
        if owner == mine:
            yield from (tensor_bytes(*named) for named in hf_tensors(rules[name], parts))
        beat()
