"""Conversion of weights between a Hugging Face folder and this rank's slice of a Megatron model, by name.

A `Rule` per Megatron parameter (families/rules.py) names its Hugging Face tensors and says how it is cut over ranks.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor

from actors.megatron.families.architecture import Architecture
from actors.megatron.families.registry import family_of
from actors.megatron.families.rules import Copy, Rule
from actors.megatron.holders import Holder, holders
from actors.step.heartbeat import beat, beating
from actors.step.place import Place
from schemas.errors import CheckpointMismatch
from storage.digests import TensorDigest, tensor_digests
from storage.weights.shards import TensorBytes


class _Slice(Protocol):
    def get_shape(self) -> list[int]: ...


class _TensorFile(Protocol):
    def get_tensor(self, name: str) -> Tensor: ...

    def get_slice(self, name: str) -> _Slice: ...


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
    table, names = (arch.vocab_size, arch.hidden_size), list(names)
    rules: dict[str, Rule] = {
        EMBEDDING: Copy.of("model.embed_tokens.weight", *table, cut=0),
        "decoder.final_layernorm.weight": Copy.of("model.norm.weight", arch.hidden_size),
        "output_layer.weight": Copy.of("lm_head.weight", *table, cut=0),
    }
    family = family_of(arch)
    for layer in range(arch.num_layers):
        rules |= family.layer_rules(arch, layer)
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
    return re.sub(r"^(module\.)+", "", whole)


@torch.no_grad()
def load_hf_weights(model: torch.nn.Module, arch: Architecture, folder: str | Path, place: Place) -> None:
    """Load the model from a Hugging Face folder of safetensors; each rank loads its slice. Collective.

    If the folder has no value head, a critic's head is unchanged. Raises CheckpointMismatch for a missing or unexpected
    tensor or a wrong shape, before the model is changed.
    """
    own = dict(named_tensors(model))
    rules = rules_of(holders(own, place), arch)
    with ExitStack() as files:
        tensors = _open_folder(Path(folder), files)
        if VALUE_BIAS in rules:
            rules = {name: rule for name, rule in rules.items() if not _is_headless(rule, tensors)}
        _check_tensors(tensors, rules, arch, str(folder))
        for name, tensor in own.items():
            if (rule := rules.get(name)) is None:
                continue
            whole, group = [tensors[hf_name].get_tensor(hf_name) for hf_name in rule.names], place.group(rule.axis)
            tensor.copy_(rule.merge(whole, group.rank(), group.size()))
            beat()
        for copy in filter(is_tied_copy, model.parameters()):
            rule = rules[EMBEDDING]
            (table,) = (tensors[hf_name].get_tensor(hf_name) for hf_name in rule.names)
            copy.copy_(rule.merge([table], place.tensor.rank(), place.tensor.size()))


def _is_headless(rule: Rule, tensors: Mapping[str, object]) -> bool:
    return rule.names[0].startswith("score.") and rule.names[0] not in tensors


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


def _open_folder(folder: Path, files: ExitStack) -> dict[str, _TensorFile]:
    """Return the open safetensors file of each tensor, by the tensor's name."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    elif (folder / "model.safetensors").is_file():
        shards = ["model.safetensors"]
    else:
        raise CheckpointMismatch(f"{folder} has neither model.safetensors nor model.safetensors.index.json")
    tensors = {}
    for shard in shards:
        try:
            file = files.enter_context(safe_open(str(folder / shard), framework="pt"))
        except (OSError, SafetensorError) as error:
            raise CheckpointMismatch(f"{folder / shard} cannot be read: {error}; download it again") from error
        tensors.update(dict.fromkeys(file.keys(), file))
    return tensors


def _check_tensors(
    tensors: Mapping[str, _TensorFile], rules: Mapping[str, Rule], arch: Architecture, where: str
) -> None:
    expected = {name: shape for rule in rules.values() for name, shape in zip(rule.names, rule.shapes, strict=True)}
    missing = sorted(expected.keys() - tensors.keys())
    # A tied checkpoint may repeat the embedding as lm_head; old checkpoints carry RoPE frequencies.
    unexpected = sorted(
        name
        for name in tensors.keys() - expected.keys()
        if not ((arch.tied and name == "lm_head.weight") or name.endswith("rotary_emb.inv_freq"))
    )
    problems = [f"{name}: missing" for name in missing] + [f"{name}: unexpected" for name in unexpected]
    for name in sorted(expected.keys() & tensors.keys()):
        shape = tuple(tensors[name].get_slice(name).get_shape())
        if shape != expected[name]:
            problems.append(f"{name}: shape {list(shape)}, but the model has {list(expected[name])}")
    if problems:
        shown = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise CheckpointMismatch(f"{where} does not fit its config.json: {shown}")


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
