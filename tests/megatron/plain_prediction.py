"""A tiny model with a multi-token prediction layer, and the layer in plain torch around transformers' own layer."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from slime_events.core.training.train_batch import TrainBatch, TrainSample
from tests.megatron.gradients import _as_stored
from tests.megatron.tiny import make_model

FILE = "model.safetensors"
FAMILIES = ("glm4_moe", "deepseek_v3", "mimo")
COPIES = ("embed_tokens.weight", "shared_head.head.weight")
"""Ends of the names of the layer's copies of other tensors, which are not trained."""


OWN = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "norm": "shared_head.norm"}
OWN_OF_MIMO = {
    "enorm": "token_layernorm",
    "hnorm": "hidden_layernorm",
    "eh_proj": "input_proj",
    "norm": "final_layernorm",
}
"""Names of the tensors that a layer has besides those of a transformer layer. MiMo's projection gets the hidden state
first, all others get the embedding first."""
PREFIX_OF_MIMO = "model.mtp_layers.0."


def make_prediction_model(folder: Path, family: str) -> None:
    """Save a model whose last layer predicts the token after the next one."""
    make_model(folder, family, tied=False)
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    make_model(folder, family, tied=False, num_hidden_layers=layers + 1)
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": layers, "num_nextn_predict_layers": 1}
    for kinds in ("mlp_layer_types", "layer_types"):
        if kinds in config:
            config[kinds].pop()
    (folder / "config.json").write_text(json.dumps(config))
    hidden, prefix = config["hidden_size"], f"model.layers.{layers}."
    tensors, names = load_file(folder / FILE), OWN
    if family == "mimo":
        tensors = {name.replace(prefix, PREFIX_OF_MIMO): tensor for name, tensor in tensors.items()}
        prefix, names = PREFIX_OF_MIMO, OWN_OF_MIMO
    own = {names[name]: torch.randn(hidden) * 0.1 + 1 for name in ("enorm", "hnorm", "norm")}
    own[names["eh_proj"]] = torch.randn(hidden, 2 * hidden) * 0.2
    if family != "mimo":
        copies = {"embed_tokens": "model.embed_tokens.weight", "shared_head.head": "lm_head.weight"}
        own |= {name: tensors[of].clone() for name, of in copies.items()}
    save_file(tensors | {f"{prefix}{name}.weight": tensor for name, tensor in own.items()}, folder / FILE)


class PlainPrediction:
    """The layer of a folder: formulas (21) to (25) of the DeepSeek-V3 report, sample by sample.

    The transformer layer is that of a transformers model of one layer, whose last norm is the layer's own.
    """

    def __init__(self, folder: Path) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        config = self.model.config
        self.is_mimo = config.architectures == ["MiMoForCausalLM"]
        self.prefix = PREFIX_OF_MIMO if self.is_mimo else f"model.layers.{config.num_hidden_layers}."
        self.names = OWN_OF_MIMO if self.is_mimo else OWN
        stored = load_file(folder / FILE)
        self.own = {
            name: stored[f"{self.prefix}{self.names[name]}.weight"].clone().requires_grad_()
            for name in ("enorm", "hnorm", "eh_proj")
        }
        single = copy.deepcopy(config)
        single.num_hidden_layers, single.first_k_dense_replace = 1, 0
        if hasattr(single, "mlp_layer_types"):
            single.mlp_layer_types = ["sparse"]
        if hasattr(single, "layer_types"):
            single.layer_types = single.layer_types[:1]
        tensors = {name.replace(self.prefix, "model.layers.0."): tensor for name, tensor in stored.items()}
        tensors["model.norm.weight"] = stored[f"{self.prefix}{self.names['norm']}.weight"]
        alone = folder.parent / f"{folder.name}-layer"
        alone.mkdir(exist_ok=True)
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, alone / FILE)
        single.save_pretrained(alone)
        self.layer: Any = AutoModelForCausalLM.from_pretrained(alone, dtype=torch.float32)

    def losses(self, sample: TrainSample) -> Tensor:
        """Return -log p of each trained token that a position two places before it predicts."""
        tokens = torch.from_numpy(sample.tokens).long()
        with torch.no_grad():
            hidden = self.model.model(tokens[None]).last_hidden_state
            following = self.model.model.embed_tokens(tokens[None, 1:])
        epsilon = self.model.config.rms_norm_eps
        parts = [(following, "enorm"), (hidden[:, :-1], "hnorm")]
        if self.is_mimo:
            parts.reverse()
        joined = torch.cat([self._norm(part, self.own[name], epsilon) for part, name in parts], -1)
        logits = self.layer(inputs_embeds=joined @ self.own["eh_proj"].T, use_cache=False).logits[0]
        first = len(tokens) - sample.response_length
        places = [first + place for place, trained in enumerate(sample.loss_mask) if trained and first + place >= 2]
        log_probs = logits.log_softmax(-1)
        return torch.stack([-log_probs[place - 2, tokens[place]] for place in places])

    @staticmethod
    def _norm(values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        return values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + epsilon) * weight

    def gradients(self, batch: TrainBatch, factor: float) -> tuple[float, dict[str, Tensor]]:
        """Return the mean loss, and the gradients of the loss times `factor` by the names of the checkpoint."""
        losses = torch.cat([self.losses(sample) for sample in batch.samples])
        (losses.mean() * factor).backward()
        gradients = {f"{self.prefix}{self.names[name]}.weight": tensor.grad for name, tensor in self.own.items()}
        gradients[f"{self.prefix}{self.names['norm']}.weight"] = self.layer.model.norm.weight.grad
        for name, parameter in self.layer.named_parameters():
            if "layers.0." in name:
                renamed = name.replace("model.layers.0.", self.prefix)
                gradients.update(_as_stored(renamed, parameter.grad))
        return float(losses.mean()), {name: gradient for name, gradient in gradients.items() if gradient is not None}
