"""What the loss is made of (slime's names and defaults; formulas in `slime_events/algorithms/`)."""

from typing import Annotated, Literal

from slime_events.core.config.base import Settings, doc

KlType = Literal["k1", "k2", "k3", "low_var_kl"]
MisLevel = Literal["token", "sequence", "geometric"]
MisMode = Literal["truncate", "clip", "mask"]
LossType = Literal["policy_loss", "sft_loss", "custom_loss"]
TeacherType = Literal["sglang", "megatron"]


class AlgorithmSettings(Settings, frozen=True, kw_only=True):
    """Advantage, clipping, KL, importance correction and reduction."""

    loss_type: Annotated[
        LossType, doc("what is minimised: the policy objective, the negative log-likelihood, or your own function")
    ] = "policy_loss"
    custom_loss_function_path: Annotated[
        str | None, doc("own loss of a micro batch: (args, batch, logits, sum_of_sample_mean) -> (loss, metrics)")
    ] = None
    custom_advantage_function_path: Annotated[
        str | None, doc("own advantages: (args, rollout_data), sets advantages and returns in rollout_data")
    ] = None
    rollout_data_postprocess_path: Annotated[
        str | None,
        doc(
            "called in each rank with all samples of a step, before they are trained, changes masks, advantages and "
            "log-probs in place: (args, rollout_id, rollout_data)"
        ),
    ] = None
    compute_advantages_and_returns: Annotated[
        bool, doc("advantages for the loss; a supervised loss or your own may go without")
    ] = True
    advantage_estimator: Annotated[str, doc("how rewards become advantages")] = "grpo"
    eps_clip: Annotated[float, doc("lower clip of the policy ratio (1 - eps)", least=0)] = 0.2
    eps_clip_high: Annotated[float | None, doc("upper clip (1 + eps); default: eps-clip", least=0)] = None
    eps_clip_c: Annotated[float | None, doc("dual clip for negative advantages, above 1")] = None
    kl_coef: Annotated[float, doc("KL penalty taken from the reward", least=0)] = 0.0
    use_kl_loss: Annotated[bool, doc("add a KL term against the reference model to the loss")] = False
    kl_loss_coef: Annotated[float, doc("its weight; 0 only measures it", least=0)] = 0.0
    kl_loss_type: Annotated[KlType, doc("KL estimator")] = "k1"
    ref_update_interval: Annotated[
        int | None, doc("every N steps the reference becomes the policy; default: it stays", above=0)
    ] = None
    use_unbiased_kl: Annotated[bool, doc("multiply the KL term by the importance ratio")] = False
    entropy_coef: Annotated[float, doc("weight of the entropy bonus")] = 0.0
    gamma: Annotated[float, doc("discount of token rewards")] = 1.0
    lambd: Annotated[float, doc("GAE lambda of ppo")] = 1.0
    value_clip: Annotated[float, doc("of ppo: how far a value may move from before the step", least=0)] = 0.2
    num_critic_only_steps: Annotated[
        int, doc("of ppo: the first N steps train the critic alone and leave the weights as they are", least=0)
    ] = 0
    use_opd: Annotated[
        bool, doc("on-policy distillation: take from the advantage what a token is likelier than to the teacher")
    ] = False
    opd_type: Annotated[
        TeacherType | None,
        doc(
            "where the teacher runs: in the trainer's ranks, or behind an address that the reward function asks; "
            "default: megatron with opd-teacher-load, else sglang"
        ),
    ] = None
    opd_kl_coef: Annotated[float, doc("weight of log p(student) - log p(teacher)", least=0)] = 1.0
    normalize_advantages: Annotated[bool, doc("whiten advantages over the whole step")] = False
    rewards_normalization: Annotated[bool, doc("centre rewards on their group's mean")] = True
    grpo_std_normalization: Annotated[bool, doc("divide by the group's std; off is Dr.GRPO")] = True
    calculate_per_token_loss: Annotated[bool, doc("average over tokens instead of over rollouts")] = False
    use_rollout_logprobs: Annotated[bool, doc("take the engine's log-probs as the old policy")] = False
    keep_old_actor: Annotated[
        bool, doc("take the old policy's log-probs of each token from the weights that made it, not from the newest")
    ] = False
    use_tis: Annotated[bool, doc("truncated importance sampling, engine against trainer")] = False
    tis_clip: Annotated[float, doc("upper bound of the TIS weight")] = 2.0
    tis_clip_low: Annotated[float, doc("lower bound of the TIS weight", least=0)] = 0.0
    custom_tis_function_path: Annotated[
        str | None,
        doc(
            "own correction in place of TIS: (args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, "
            "total_lengths, response_lengths) -> (pg_loss, loss_masks, metrics)"
        ),
    ] = None
    tis_level: Annotated[MisLevel, doc("of MIS: one weight for a token, a sequence, or its geometric mean")] = "token"
    tis_mode: Annotated[
        MisMode, doc("of MIS: a weight out of bounds is capped, bounded on both sides, or rejected")
    ] = "truncate"
    tis_lower_bound: Annotated[float | None, doc("of MIS; default: 1 / tis-upper-bound", least=0)] = None
    tis_upper_bound: Annotated[float, doc("of MIS", above=0)] = 2.0
    tis_batch_normalize: Annotated[bool, doc("of MIS: weights of a micro batch have mean 1")] = False
    use_rs: Annotated[bool, doc("of MIS: reject tokens beside weighting them, whatever the mode")] = False
    rs_level: Annotated[MisLevel, doc("of MIS: what is rejected at once")] = "token"
    rs_lower_bound: Annotated[float | None, doc("of MIS; default: the weights'", least=0)] = None
    rs_upper_bound: Annotated[float | None, doc("of MIS; default: the weights'", above=0)] = None
    rs_veto_threshold: Annotated[
        float | None, doc("of MIS with use-rs: one token whose ratio is below rejects its whole sample", above=0)
    ] = None
    custom_pg_loss_reducer_function_path: Annotated[
        str | None,
        doc("own sum of the policy loss: (total_lengths, response_lengths, loss_masks, calculate_per_token_loss)"),
    ] = None
    get_mismatch_metrics: Annotated[
        bool, doc("measure how far the engine's probabilities are from the trainer's; corrects nothing")
    ] = False
    use_rollout_entropy: Annotated[
        bool, doc("measure the policy's entropy before the update, over all samples of the step")
    ] = False
    use_opsm: Annotated[bool, doc("mask off-policy sequences with negative advantage")] = False
    opsm_delta: Annotated[float, doc("sequence KL above which OPSM masks", least=0)] = 1e-4

    @property
    def advantages_by(self) -> str | None:
        """The user's function that made the advantages in the trainer, or may have changed them there."""
        return self.custom_advantage_function_path or self.rollout_data_postprocess_path
