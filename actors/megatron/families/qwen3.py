"""Qwen3, dense: a norm on each query and key head."""

from actors.megatron.families.dense import Dense


class Qwen3(Dense):
    """Qwen3-0.6B to Qwen3-32B."""

    model_class = "Qwen3ForCausalLM"
    qk_layernorm = True
