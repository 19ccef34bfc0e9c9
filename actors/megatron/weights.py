"""Conversion of weights between a Hugging Face folder and this rank's slice of a Megatron model, by name.

A `Rule` per Megatron parameter (families/rules.py) names its Hugging Face tensors and says how it is cut over ranks.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import accumulate
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.model_rules import whole_rules
from actors.megatron.families.rules import Copy, Rule
from actors.megatron.formats.registry import open_weights
from actors.megatron.formats.weights import check_weights
from actors.megatron.holders import Holder, holders
from actors.step.heartbeat import beat, beating
from actors.step.place import Place
from storage.digests import TensorDigest, tensor_digests
from storage.weights.shards import TensorBytes

EMBEDDING = "embedding.word_embeddings.weight"
VALUE_BIAS = "output_layer.bias"
"""A parameter that only critics have."""
STORED_BUFFERS = ("router.expert_bias",)
"""Ends of the names of buffers that a checkpoint stores."""


def model_rules(model: torch.nn.Module, arch: Architecture) -> dict[str, Rule]:
    """Return the rule of each parameter and stored buffer that this rank has, in the model's order."""
    return rules_of([name for name, _ in named_tensors(model)], arch)


def rules_of(names: Iterable[str], arch: Architecture) -> dict[str, Rule]:
    """Return the rules of a model's tensors by Megatron name, in the order of `names`."""
    rules, names = whole_rules(arch), list(names)
    if VALUE_BIAS in names:
        rules["output_layer.weight"] = Copy.of("score.weight", 1, arch.hidden_size)
        rules[VALUE_BIAS] = Copy.of("score.bias", 1)
    return {name: rules[name] for name in names}


def named_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield the parameters that this rank has under their names in the whole model.

    These are Megatron's names without the prefixes of wrappers, with the number of a layer among all layers and that
    of an expert among all experts of its layer. The last stage's copy of a tied embedding is
    left out.
    """
    numbers = _numbers(model)
    for name, parameter in model.named_parameters():
        if not is_tied_copy(parameter):
            yield _whole_name(name, numbers), parameter


def is_tied_copy(parameter: torch.nn.Parameter) -> bool:
    """Return whether it is the last stage's copy of the embedding, as Megatron marks it.

    A pipeline has the copy if the output layer shares the embedding's weights. Both have the same gradient.
    """
    return bool(getattr(parameter, "shared", False))


def is_expert(name: str) -> bool:
    """Return whether a parameter is one of the experts that a router chooses, by its name in `named_parameters`."""
    return ".experts.local_experts." in name


def named_tensors(model: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield `named_parameters`, then the buffers that a checkpoint stores."""
    yield from named_parameters(model)
    numbers = _numbers(model)
    for name, buffer in model.named_buffers():
        if name.endswith(STORED_BUFFERS):
            yield _whole_name(name, numbers), buffer


def all_tensors(model: torch.nn.Module) -> list[Tensor]:
    """Return the tensors of `named_tensors` and any copy of a tied embedding."""
    return [tensor for _, tensor in named_tensors(model)] + list(filter(is_tied_copy, model.parameters()))


def _numbers(model: torch.nn.Module) -> dict[str, int]:
    """Return the numbers of layers and experts in the whole model, by the name of their module in this rank's model."""
    numbers = {}
    for name, module in model.named_modules():
        if re.search(r"(^|\.)decoder\.layers\.\d+$", name) and hasattr(module, "layer_number"):
            numbers[name] = module.layer_number - 1
        for index, number in enumerate(getattr(module, "local_expert_indices", ())):
            numbers[f"{name}.experts.local_experts.{index}"] = number
    return numbers


def _whole_name(name: str, numbers: Mapping[str, int]) -> str:
    parts = name.split(".")
    paths = accumulate(parts, lambda path, part: f"{path}.{part}")
    whole = ".".join(str(numbers.get(path, part)) for path, part in zip(paths, parts, strict=True))
    return re.sub(r"^(module\.|stages\.\d+\.)+", "", whole)


@torch.no_grad()
def load_hf_weights(
    model: torch.nn.Module, arch: Architecture, folder: str | Path, place: Place, step: int | None = None
) -> int:
    """Load the model from a Hugging Face folder, or another of `FORMATS`; return the bytes that this rank read.

    Each rank reads its part of its own tensors. Collective.

    If the folder has no value head, a critic's head is unchanged. step: the iteration of a torch_dist folder. Raises
    CheckpointMismatch for a missing or unexpected tensor or a wrong shape, before the model is changed.
    """
    own = dict(named_tensors(model))
    rules = rules_of(holders(own, place), arch)
    with closing(open_weights(folder, arch, step)) as weights:
        if VALUE_BIAS in rules:
            rules = {name: rule for name, rule in rules.items() if not _is_headless(rule, weights.names)}
        check_weights(weights, rules, arch, str(folder))
        for name, tensor in own.items():
            if (rule := rules.get(name)) is None:
                continue
            group = place.group(rule.axis)
            tensor.copy_(weights.parameter(rule, group.rank(), group.size()))
            beat()
        for copy in filter(is_tied_copy, model.parameters()):
            copy.copy_(weights.parameter(rules[EMBEDDING], place.tensor.rank(), place.tensor.size()))
        return weights.bytes_read


def _is_headless(rule: Rule, names: Collection[str]) -> bool:
    return rule.names[0].startswith("score.") and rule.names[0] not in names


def export_hf_weights(model: torch.nn.Module, arch: Architecture, place: Place) -> Iterator[tuple[str, Tensor]]:
    """Yield the whole weights as (Hugging Face name, tensor) on rank 0, in the model's dtype; nothing on other ranks.

    Every rank must exhaust the iterator. A tensor may share memory with the model: use it before the next training
    step.
    """
    return whole_tensors({name: tensor.detach() for name, tensor in named_tensors(model)}, arch, place)


def whole_tensors(parts: Mapping[str, Tensor], arch: Architecture, place: Place) -> Iterator[tuple[str, Tensor]]:
    """Yield whole tensors as (Hugging Face name, tensor) on rank 0, one Megatron parameter at a time.

    parts: a tensor for each parameter that this rank has, such as its gradient, by the parameter's name. Every rank
    must exhaust the iterator.
    """
    sources = holders(parts, place)
    rules = rules_of(sources, arch)
    for name, source in sources.items():
        rule = rules[name]
        if name not in parts:
            if place.rank == 0:
                yield from _receive(rule, source, place)
        elif place.group(rule.copies).rank() == 0:
            pieces = gathered(rule, parts[name], place)
            if place.rank == 0:
                yield from hf_tensors(rule, pieces)
            elif place.group(rule.axis).rank() == 0:
                for _, tensor in hf_tensors(rule, pieces):
                    dist.send(tensor, 0)


def _receive(rule: Rule, source: Holder, place: Place) -> Iterator[tuple[str, Tensor]]:
    for name, shape in zip(rule.names, rule.shapes, strict=True):
        tensor = torch.empty(shape, dtype=source.dtype, device=place.device)
        dist.recv(tensor, source.rank)
        yield name, tensor


def gathered(rule: Rule, part: Tensor, place: Place) -> list[Tensor]:
    """Gather a parameter's parts from the ranks of the rule's axis, in rank order; if it is not cut, only this part."""
    group = place.group(rule.axis)
    if group.size() == 1 or rule.cut is None:
        return [part]
    parts = [torch.empty_like(part) for _ in range(group.size())]
    dist.all_gather(parts, part, group)
    return parts


def hf_tensors(rule: Rule, parts: list[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the whole Hugging Face tensors by name, from the `gathered` parts."""
    return zip(rule.names, (tensor.contiguous() for tensor in rule.split(parts)), strict=True)


# Names of dtypes in safetensors.
DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def tensor_bytes(name: str, tensor: Tensor) -> TensorBytes:
    """Return a tensor in the form of the weight store, without a copy if it is on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return name, DTYPES[tensor.dtype], tuple(tensor.shape), flat.view(torch.uint8).numpy().data


def digest_tensors(named: Iterable[tuple[str, Tensor]]) -> dict[str, TensorDigest]:
    """Return the digests of tensors on any device, by name."""
    stored = (tensor_bytes(name, tensor) for name, tensor in beating(named))
    return tensor_digests((name, (dtype, shape, memoryview(data))) for name, dtype, shape, data in stored)
