"""Llama 2, 3 and models of the same layers."""

from actors.megatron.families.dense import Dense


class Llama(Dense):
    """Llama, SmolLM2, and the models of DeepSeek-R1-Distill-Llama."""

    model_class = "LlamaForCausalLM"
