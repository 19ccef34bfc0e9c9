"""Names of Megatron's parameters in torch_dist files.

Megatron stores the layers of a model as one tensor with a further axis if they are all alike, and the experts of a
layer likewise. It names norms as Transformer Engine does, also if the model was built without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Annotated, NamedTuple

from schemas.doc import doc

FUSED = {
    "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
    "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
    "self_attention.q_layernorm.": "self_attention.linear_q_up_proj.layer_norm_",
    "self_attention.kv_layernorm.": "self_attention.linear_kv_up_proj.layer_norm_",
    "self_attention.post_norm.": "post_self_attn_layernorm.",
    "mlp.post_norm.": "post_mlp_layernorm.",
}
"""Beginning of a name within a layer to the name that Megatron-LM's files may have."""
POST_NORMS = ("self_attention.post_norm.", "mlp.post_norm.")
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_PREDICTION = re.compile(r"(mtp\.layers\.\d+\.transformer_layer\.)(.+)")
_EXPERT = re.compile(r"(mlp\.experts\.)local_experts\.(\d+)\.(.+)")


class StoredName(NamedTuple):
    """A tensor of a torch_dist folder, or a part of it."""

    key: str
    at: Annotated[tuple[int, ...], doc("Position along the first axes: layer, expert.")] = ()

    def __str__(self) -> str:
        return self.key + "".join(f"[{place}]" for place in self.at)


def stored_names(name: str) -> Iterator[StoredName]:
    """Yield the places where a parameter may be. name: Megatron's, with layer and expert of the whole model."""
    if match := _PREDICTION.fullmatch(name):
        for inner, expert in _within(match[2]):
            yield StoredName(match[1] + inner, expert)
        return
    match = _LAYER.fullmatch(name)
    if match is None:
        yield StoredName(name)
        return
    layer, within = int(match[1]), match[2]
    prefixes = (("decoder.layers.", (layer,)), (f"decoder.layers.{layer}.", ()))
    for (prefix, stacked), (inner, expert) in product(prefixes, _within(within)):
        yield StoredName(prefix + inner, (*stacked, *expert))


def _within(within: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    if match := _EXPERT.fullmatch(within):
        before, expert, after = match.groups()
        yield f"{before}experts.{after}", (int(expert),)
        yield f"{before}experts.{expert}.{after}", ()
        return
    yield within, ()
    for own, theirs in FUSED.items():
        if within.startswith(own):
            yield theirs + within.removeprefix(own), ()
        elif within.startswith(theirs):
            yield own + within.removeprefix(theirs), ()


def written_name(names: Iterable[str], *, stacked: bool) -> StoredName:
    """Return the place where Megatron-LM's saver puts a parameter.

    names: the parameter's names with and without Transformer Engine. stacked: all layers are alike.
    """
    every = list(names)
    fused = [name for name in every if ".layer_norm_" in name]
    name = (fused or every)[0]
    match = _LAYER.fullmatch(name) or _PREDICTION.fullmatch(name)
    if match is None:
        return StoredName(name)
    within = match[2]
    for own in POST_NORMS:
        if within.startswith(own):
            within = FUSED[own] + within.removeprefix(own)
    inner, expert = next(_within(within)) if _EXPERT.fullmatch(within) else (within, ())
    if match.re is _PREDICTION:
        return StoredName(match[1] + inner, expert)
    layer = int(match[1])
    if stacked:
        return StoredName(f"decoder.layers.{inner}", (layer, *expert))
    return StoredName(f"decoder.layers.{layer}.{inner}", expert)
