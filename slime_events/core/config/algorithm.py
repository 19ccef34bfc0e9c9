"""What the loss is made of (slime's names and defaults; formulas in `slime_events/algorithms/`)."""

from typing import Annotated, Literal

from msgspec import Meta

from slime_events.core.config.base import Settings

KlType = Literal["k1", "k2", "k3", "low_var_kl"]


class AlgorithmSettings(Settings, frozen=True, kw_only=True):
    """Advantage, clipping, KL, importance correction and reduction."""

    advantage_estimator: Annotated[str, Meta(description="how rewards become advantages")] = "grpo"
    eps_clip: Annotated[float, Meta(description="lower clip of the policy ratio (1 - eps)")] = 0.2
    eps_clip_high: Annotated[float | None, Meta(description="upper clip (1 + eps); default: eps-clip")] = None
    eps_clip_c: Annotated[float | None, Meta(description="dual clip for negative advantages, above 1")] = None
    kl_coef: Annotated[float, Meta(description="KL penalty taken from the reward")] = 0.0
    use_kl_loss: Annotated[bool, Meta(description="add a KL term against the reference model to the loss")] = False
    kl_loss_coef: Annotated[float, Meta(description="its weight; 0 only measures it")] = 0.0
    kl_loss_type: Annotated[KlType, Meta(description="KL estimator")] = "k1"
    use_unbiased_kl: Annotated[bool, Meta(description="multiply the KL term by the importance ratio")] = False
    entropy_coef: Annotated[float, Meta(description="weight of the entropy bonus")] = 0.0
    gamma: Annotated[float, Meta(description="discount of token rewards")] = 1.0
    lambd: Annotated[float, Meta(description="GAE lambda")] = 1.0
    normalize_advantages: Annotated[bool, Meta(description="whiten advantages over the whole step")] = False
    rewards_normalization: Annotated[bool, Meta(description="centre rewards on their group's mean")] = True
    grpo_std_normalization: Annotated[bool, Meta(description="divide by the group's std; off is Dr.GRPO")] = True
    calculate_per_token_loss: Annotated[bool, Meta(description="average over tokens instead of over rollouts")] = False
    use_rollout_logprobs: Annotated[bool, Meta(description="take the engine's log-probs as the old policy")] = False
    use_tis: Annotated[bool, Meta(description="truncated importance sampling, engine against trainer")] = False
    tis_clip: Annotated[float, Meta(description="upper bound of the TIS weight")] = 2.0
    tis_clip_low: Annotated[float, Meta(description="lower bound of the TIS weight")] = 0.0
    use_opsm: Annotated[bool, Meta(description="mask off-policy sequences with negative advantage")] = False
    opsm_delta: Annotated[float, Meta(description="sequence KL above which OPSM masks")] = 1e-4
