"""What the loss is made of (slime's names and defaults; formulas in `slime_events/algorithms/`)."""

from typing import Annotated, Literal

from slime_events.core.config.base import Settings, doc

KlType = Literal["k1", "k2", "k3", "low_var_kl"]


class AlgorithmSettings(Settings, frozen=True, kw_only=True):
    """Advantage, clipping, KL, importance correction and reduction."""

    advantage_estimator: Annotated[str, doc("how rewards become advantages")] = "grpo"
    eps_clip: Annotated[float, doc("lower clip of the policy ratio (1 - eps)", least=0)] = 0.2
    eps_clip_high: Annotated[float | None, doc("upper clip (1 + eps); default: eps-clip", least=0)] = None
    eps_clip_c: Annotated[float | None, doc("dual clip for negative advantages, above 1")] = None
    kl_coef: Annotated[float, doc("KL penalty taken from the reward", least=0)] = 0.0
    use_kl_loss: Annotated[bool, doc("add a KL term against the reference model to the loss")] = False
    kl_loss_coef: Annotated[float, doc("its weight; 0 only measures it", least=0)] = 0.0
    kl_loss_type: Annotated[KlType, doc("KL estimator")] = "k1"
    use_unbiased_kl: Annotated[bool, doc("multiply the KL term by the importance ratio")] = False
    entropy_coef: Annotated[float, doc("weight of the entropy bonus")] = 0.0
    gamma: Annotated[float, doc("discount of token rewards")] = 1.0
    lambd: Annotated[float, doc("GAE lambda")] = 1.0
    normalize_advantages: Annotated[bool, doc("whiten advantages over the whole step")] = False
    rewards_normalization: Annotated[bool, doc("centre rewards on their group's mean")] = True
    grpo_std_normalization: Annotated[bool, doc("divide by the group's std; off is Dr.GRPO")] = True
    calculate_per_token_loss: Annotated[bool, doc("average over tokens instead of over rollouts")] = False
    use_rollout_logprobs: Annotated[bool, doc("take the engine's log-probs as the old policy")] = False
    use_tis: Annotated[bool, doc("truncated importance sampling, engine against trainer")] = False
    tis_clip: Annotated[float, doc("upper bound of the TIS weight")] = 2.0
    tis_clip_low: Annotated[float, doc("lower bound of the TIS weight", least=0)] = 0.0
    use_opsm: Annotated[bool, doc("mask off-policy sequences with negative advantage")] = False
    opsm_delta: Annotated[float, doc("sequence KL above which OPSM masks", least=0)] = 1e-4
