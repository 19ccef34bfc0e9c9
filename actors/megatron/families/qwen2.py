"""Qwen2 and Qwen2.5, dense: biases of query, key and value."""

from actors.megatron.families.dense import Dense


class Qwen2(Dense):
    """Qwen2 and Qwen2.5, and the models of DeepSeek-R1-Distill-Qwen."""

    model_class = "Qwen2ForCausalLM"
    add_qkv_bias = True
    ignored = frozenset({"attention_bias"})
