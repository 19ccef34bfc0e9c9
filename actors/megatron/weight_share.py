"""`weight_share`: the whole tensors that one rank writes, hashes or compares. `model_digest`: their digest.

Each tensor is in one rank's share, so that no rank holds all tensors, and all disks, cores and links work in parallel.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.rules import Rule
from actors.megatron.weights import gathered, hf_tensors, model_rules, named_tensors, tensor_bytes
from actors.step.heartbeat import beat
from actors.step.place import Axis, Place
from storage.digests import tensor_digests, weights_digest
from storage.weights.shards import TensorBytes

LEAST_BYTES = 256 * 1024**2
"""Smallest share of a rank. Smaller weights are one rank's work, since more files bring no gain."""
SHARING = (Axis.TENSOR, Axis.REPLICAS, Axis.EXPERT_TENSOR, Axis.EXPERT_DATA)
"""Axes along which ranks have parts or copies of the same tensors."""


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
    rules = model_rules(model, arch)
    parts = {name: tensor.detach() for name, tensor in named_tensors(model)}
    owner = dict[str, int]()
    for sizes in _by_ranks(parts, rules, place):
        rule = rules[next(iter(sizes))]
        ranks = place.group(rule.copies).size() * place.group(rule.axis).size()
        owner |= owners(sizes, ranks, LEAST_BYTES)
    for name, part in parts.items():
        cut, copies = place.group(rules[name].axis), place.group(rules[name].copies)
        copy, rank = divmod(owner[name], cut.size())
        if copy != copies.rank():
            continue
        pieces = gathered(rules[name], part, place)
        if rank == cut.rank():
            yield from (tensor_bytes(*named) for named in hf_tensors(rules[name], pieces))
        beat()


def _by_ranks(parts: Mapping[str, Tensor], rules: Mapping[str, Rule], place: Place) -> Iterable[dict[str, int]]:
    """Return the bytes of the whole parameters by name, separately for each set of ranks that have the same ones."""
    members = {axis: tuple(dist.get_process_group_ranks(place.group(axis))) for axis in SHARING}
    sizes = dict[tuple[object, object], dict[str, int]]()
    for name, part in parts.items():
        rule = rules[name]
        ranks = 1 if rule.cut is None else len(members[rule.axis])
        sizes.setdefault((members[rule.axis], members[rule.copies]), {})[name] = part.nbytes * ranks
    return sizes.values()


def model_digest(model: torch.nn.Module, arch: Architecture, place: Place) -> str:
    """Return the digest of the whole weights (storage/digests.py); each rank hashes its share. Collective."""
    share = weight_share(model, arch, place)
    mine = tensor_digests((name, (dtype, shape, data)) for name, dtype, shape, data in share)
    every = place.of_each_rank(mine)
    return weights_digest({name: digest for digests in every for name, digest in digests.items()})
