"""--custom-model-provider-path: the usual model, of which each layer's attention is watched."""

from __future__ import annotations

from called import note
from megatron.training import get_args
from slime.backends.megatron_utils.model_provider import get_model_provider_func


def provider(pre_process=True, post_process=True, vp_stage=None):
    args = get_args()
    model = get_model_provider_func(args)(pre_process, post_process, vp_stage)
    note("provider", layers=len(model.decoder.layers), hidden=args.hidden_size)
    for layer in model.decoder.layers:
        layer.self_attention.register_forward_hook(lambda module, inputs, output: None)
    return model
