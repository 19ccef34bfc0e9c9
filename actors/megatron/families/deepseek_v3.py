"""DeepSeek V3 and models of the same layers: latent attention, and experts chosen by a sigmoid and a bias."""

from __future__ import annotations

from actors.megatron.families.latent_dense import LatentDense
from actors.megatron.families.sigmoid_mixture import SigmoidMixture


class DeepseekV3(SigmoidMixture, LatentDense):
    """DeepSeek V3 and R1, Moonlight-16B-A3B, Kimi K2."""

    model_class = "DeepseekV3ForCausalLM"
