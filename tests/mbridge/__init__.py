"""Weights of Megatron as mbridge has them, which slime's users convert checkpoints with."""
