"""Settings of the loss, with slime's names and defaults; the formulas are in `slime_events/algorithms/`."""

from typing import Annotated, Literal

from slime_events.core.config.base import Settings, doc
from slime_events.core.config.rules import Later, at_most, excludes, needs, unused_with, unused_without

KlType = Literal["k1", "k2", "k3", "low_var_kl"]
MisLevel = Literal["token", "sequence", "geometric"]
MisMode = Literal["truncate", "clip", "mask"]
LossType = Literal["policy_loss", "sft_loss", "custom_loss"]
TeacherType = Literal["sglang", "megatron"]


_OF_MIS = unused_without(
    *("custom_tis_function_path", "custom_loss_function_path", "custom_advantage_function_path"),
    why="they belong to MIS, and custom_tis_function_path is not set",
)
"""A function of the user's may read the settings of MIS."""
_OWN_LOSS = ("loss_type=custom_loss",)
_OWN_ADVANTAGE = (*_OWN_LOSS, "custom_advantage_function_path")
"""A function of the user's may read the settings of what it replaces."""
_OF_THE_POLICY_LOSS = unused_with("loss_type=sft_loss", why="loss_type sft_loss has neither advantages nor a ratio")
_OF_A_CRITIC = unused_without(
    "advantage_estimator:needs_values",
    why="{advantage_estimator} has no critic",
    unless=_OWN_ADVANTAGE,
)
_OF_REWARD_KL = unused_without(
    "advantage_estimator:takes_kl",
    why="{advantage_estimator} takes no KL from the reward; use_kl_loss adds one to the loss",
    unless=_OWN_ADVANTAGE,
)
_OF_THE_REFERENCE = (
    unused_without("use_kl_loss", "kl_coef", why="no KL to the reference is taken", unless=_OWN_ADVANTAGE),
    unused_without(
        "use_kl_loss",
        "advantage_estimator:takes_kl",
        why="no KL to the reference is taken",
        unless=_OWN_ADVANTAGE,
    ),
)
_OF_NORMALIZATION = unused_without(
    "advantage_estimator:normalizes_rewards",
    why="{advantage_estimator} takes rewards as they are",
    unless=_OWN_ADVANTAGE,
)
_OF_TIS = unused_without("use_tis", "custom_tis_function_path", why="use_tis is not set", unless=_OWN_LOSS)


class AlgorithmSettings(Settings, frozen=True, kw_only=True):
    """Advantage, clipping, KL, importance correction and reduction."""

    LATER = Settings.LATER | Later.LEARN

    loss_type: Annotated[
        LossType,
        doc(
            "loss to minimise: the policy objective, the negative log-likelihood, or your function",
            needs("custom_loss_function_path", why="the function to minimise", value="custom_loss"),
            needs("compute_advantages_and_returns", why="it needs advantages", value="policy_loss"),
            excludes(
                "custom_tis_function_path",
                "custom_pg_loss_reducer_function_path",
                "use_tis",
                "get_mismatch_metrics",
                "use_kl_loss",
                "entropy_coef",
                "use_opsm",
                why="they belong to the policy loss",
                value="sft_loss",
            ),
        ),
    ] = "policy_loss"
    custom_loss_function_path: Annotated[
        str | None,
        doc(
            "your loss of a micro batch: (args, batch, logits, sum_of_sample_mean) -> (loss, metrics)",
            needs("loss_type=custom_loss", why="other losses do not call it"),
        ),
    ] = None
    custom_advantage_function_path: Annotated[
        str | None,
        doc(
            "your function that sets advantages and returns in rollout_data: (args, rollout_data)",
            needs("compute_advantages_and_returns", why="it skips the function"),
        ),
    ] = None
    rollout_data_postprocess_path: Annotated[
        str | None,
        doc(
            "your function to call in each rank with all samples of a step before training; it may change masks, "
            "advantages and log-probs in place: (args, rollout_id, rollout_data)"
        ),
    ] = None
    compute_advantages_and_returns: Annotated[
        bool, doc("compute advantages; a supervised loss or your own loss may not need them")
    ] = True
    advantage_estimator: Annotated[
        str,
        doc(
            "advantage estimator: computes advantages from rewards",
            unused_with(
                "loss_type=sft_loss",
                why="loss_type sft_loss has neither advantages nor a ratio",
                unless=("advantage_estimator:needs_values",),
            ),
            needs("normalize_advantages", why="slime's does too", value=":needs_whitening"),
            needs("compute_advantages_and_returns", why="its critic learns from nothing else", value=":needs_values"),
            excludes(
                "loss_type=sft_loss", why="its critic learns from advantages and returns only", value=":needs_values"
            ),
            also=Later.RESCORE,
        ),
    ] = "grpo"
    eps_clip: Annotated[float, doc("lower clip of the policy ratio (1 - eps)", _OF_THE_POLICY_LOSS, least=0)] = 0.2
    eps_clip_high: Annotated[
        float | None, doc("upper clip (1 + eps); default: eps-clip", _OF_THE_POLICY_LOSS, least=0)
    ] = None
    eps_clip_c: Annotated[
        float | None,
        doc(
            "dual clip for negative advantages, above 1",
            _OF_THE_POLICY_LOSS,
            unused_without(
                "advantage_estimator:has_dual_clip",
                why="{advantage_estimator} has no dual clip",
                unless=_OWN_LOSS,
            ),
            above=1,
        ),
    ] = None
    kl_coef: Annotated[float, doc("KL penalty taken from the reward", _OF_THE_POLICY_LOSS, _OF_REWARD_KL, least=0)] = (
        0.0
    )
    use_kl_loss: Annotated[bool, doc("add the KL divergence from the reference model to the loss")] = False
    kl_loss_coef: Annotated[
        float,
        doc(
            "weight of the KL term of use-kl-loss; 0: only measure it",
            unused_without("use_kl_loss"),
            excludes("kl_coef", why="the KL penalty would apply twice, in the reward and in the loss"),
            least=0,
        ),
    ] = 0.0
    kl_loss_type: Annotated[KlType, doc("KL estimator", _OF_THE_POLICY_LOSS, *_OF_THE_REFERENCE)] = "k1"
    ref_update_interval: Annotated[
        int | None,
        doc(
            "replace the reference model with the policy every N steps; default: never",
            _OF_THE_POLICY_LOSS,
            *_OF_THE_REFERENCE,
            above=0,
        ),
    ] = None
    use_unbiased_kl: Annotated[
        bool,
        doc(
            "multiply the KL term by the importance ratio",
            _OF_THE_POLICY_LOSS,
            unused_without("use_kl_loss", unless=_OWN_LOSS),
        ),
    ] = False
    entropy_coef: Annotated[float, doc("weight of the entropy bonus")] = 0.0
    gamma: Annotated[
        float,
        doc(
            "discount of token rewards",
            _OF_THE_POLICY_LOSS,
            unused_without(
                "advantage_estimator:discounts",
                why="{advantage_estimator} does not discount",
                unless=_OWN_ADVANTAGE,
            ),
            least=0,
            most=1,
            also=Later.RESCORE,
        ),
    ] = 1.0
    lambd: Annotated[float, doc("GAE lambda, for ppo", _OF_THE_POLICY_LOSS, _OF_A_CRITIC, least=0, most=1)] = 1.0
    value_clip: Annotated[
        float,
        doc(
            "for ppo: how far a value may move from its value before the step",
            _OF_THE_POLICY_LOSS,
            _OF_A_CRITIC,
            least=0,
        ),
    ] = 0.2
    num_critic_only_steps: Annotated[
        int, doc("for ppo: the first N steps train only the critic", _OF_THE_POLICY_LOSS, _OF_A_CRITIC, least=0)
    ] = 0
    use_opd: Annotated[
        bool,
        doc(
            "on-policy distillation: subtract log p(student) - log p(teacher) from the advantage of each token",
            excludes("loss_type=sft_loss", why="it changes the advantages"),
            needs("compute_advantages_and_returns", why="it changes the advantages"),
        ),
    ] = False
    opd_type: Annotated[
        TeacherType | None,
        doc(
            "where the teacher runs: in the trainer's ranks (megatron), or behind a URL that the reward function calls "
            "(sglang); default: megatron if opd-teacher-load is set, else sglang",
            needs("use_opd", why="without it there is no teacher"),
            needs("opd_teacher_load", why="the teacher's Hugging Face folder", value="megatron"),
            needs(
                *("custom_rm_path", "custom_generate_function_path", "rollout_sample_hook_path", "debug_train_only"),
                why="a function must set sample.teacher_log_probs, as custom_rm_path "
                "slime.rollout.on_policy_distillation.reward_func does by asking rm_url",
                value="sglang",
            ),
            excludes("opd_teacher_load", why="the teacher runs behind rm_url, not in the trainer", value="sglang"),
        ),
    ] = None
    opd_kl_coef: Annotated[
        float,
        doc(
            "weight of log p(student) - log p(teacher)",
            _OF_THE_POLICY_LOSS,
            unused_without("use_opd", unless=_OWN_LOSS),
            least=0,
        ),
    ] = 1.0
    normalize_advantages: Annotated[
        bool, doc("whiten advantages over the whole step", _OF_THE_POLICY_LOSS, also=Later.RESCORE)
    ] = False
    rewards_normalization: Annotated[
        bool, doc("centre rewards on their group's mean", _OF_THE_POLICY_LOSS, _OF_NORMALIZATION, also=Later.RESCORE)
    ] = True
    grpo_std_normalization: Annotated[
        bool,
        doc(
            "divide by the group's standard deviation; off: Dr.GRPO",
            _OF_THE_POLICY_LOSS,
            _OF_NORMALIZATION,
            unused_without("rewards_normalization", why="rewards are not normalised", unless=_OWN_ADVANTAGE),
            unused_without(
                "advantage_estimator:scales_rewards",
                why="{advantage_estimator} never divides by it",
                unless=_OWN_ADVANTAGE,
            ),
            also=Later.RESCORE,
        ),
    ] = True
    calculate_per_token_loss: Annotated[
        bool, doc("average over tokens instead of over rollouts", also=Later.RESCORE)
    ] = False
    use_rollout_logprobs: Annotated[
        bool,
        doc(
            "use the engine's log-probs as those of the old policy",
            _OF_THE_POLICY_LOSS,
            excludes(
                "use_tis",
                why="TIS corrects log-probs of the engine by those of the trainer, and here both are the engine's",
            ),
        ),
    ] = False
    keep_old_actor: Annotated[
        bool,
        doc(
            "compute the old policy's log-probs of each token with the weights that generated it, not the newest",
            _OF_THE_POLICY_LOSS,
            unused_with(
                "use_rollout_logprobs",
                why="use_rollout_logprobs takes the engine's log-probs as the old policy's",
                unless=_OWN_LOSS,
            ),
            excludes("archive_reuse=rollouts", why="another run has the weights that made the recorded rollouts"),
        ),
    ] = False
    use_tis: Annotated[bool, doc("truncated importance sampling (TIS) between engine and trainer")] = False
    tis_clip: Annotated[float, doc("upper bound of the TIS weight", _OF_THE_POLICY_LOSS, _OF_TIS)] = 2.0
    tis_clip_low: Annotated[
        float,
        doc(
            "lower bound of the TIS weight",
            _OF_THE_POLICY_LOSS,
            _OF_TIS,
            at_most("tis_clip", why="the range is empty"),
            least=0,
        ),
    ] = 0.0
    custom_tis_function_path: Annotated[
        str | None,
        doc(
            "your correction instead of TIS: (args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, "
            "total_lengths, response_lengths) -> (pg_loss, loss_masks, metrics)",
            needs("use_tis", "get_mismatch_metrics", why="they call it"),
        ),
    ] = None
    tis_level: Annotated[
        MisLevel, doc("for MIS: a weight per token, per sequence, or the geometric mean of a sequence", _OF_MIS)
    ] = "token"
    tis_mode: Annotated[
        MisMode,
        doc("for MIS, if a weight is out of bounds: cap it, bound it on both sides, or reject its tokens", _OF_MIS),
    ] = "truncate"
    tis_lower_bound: Annotated[
        float | None, doc("for MIS: lower bound of a weight; default: 1 / tis-upper-bound", _OF_MIS, least=0)
    ] = None
    tis_upper_bound: Annotated[float, doc("for MIS: upper bound of a weight", _OF_MIS, above=0)] = 2.0
    tis_batch_normalize: Annotated[bool, doc("for MIS: scale the weights of a micro batch to mean 1", _OF_MIS)] = False
    use_rs: Annotated[bool, doc("for MIS: reject tokens too, in every tis-mode", _OF_MIS)] = False
    rs_level: Annotated[MisLevel, doc("for MIS with use-rs: unit that is rejected", _OF_MIS)] = "token"
    rs_lower_bound: Annotated[
        float | None, doc("for MIS with use-rs: lower bound; default: tis-lower-bound", _OF_MIS, least=0)
    ] = None
    rs_upper_bound: Annotated[
        float | None, doc("for MIS with use-rs: upper bound; default: tis-upper-bound", _OF_MIS, above=0)
    ] = None
    rs_veto_threshold: Annotated[
        float | None,
        doc("for MIS with use-rs: reject a sample if the ratio of any of its tokens is lower", _OF_MIS, above=0),
    ] = None
    custom_pg_loss_reducer_function_path: Annotated[
        str | None,
        doc(
            "your reduction of the policy loss: (total_lengths, response_lengths, loss_masks, calculate_per_token_loss)"
        ),
    ] = None
    get_mismatch_metrics: Annotated[
        bool, doc("measure how far the engine's probabilities are from the trainer's, without correction")
    ] = False
    use_rollout_entropy: Annotated[
        bool, doc("measure the policy's entropy before the update, over all samples of the step")
    ] = False
    use_opsm: Annotated[bool, doc("mask off-policy sequences with negative advantage")] = False
    opsm_delta: Annotated[
        float,
        doc(
            "sequence KL above which OPSM masks",
            _OF_THE_POLICY_LOSS,
            unused_without("use_opsm", unless=_OWN_LOSS),
            least=0,
        ),
    ] = 1e-4

    @property
    def advantages_by(self) -> str | None:
        """The user's function that may set or change advantages in the trainer; None: there is none."""
        return self.custom_advantage_function_path or self.rollout_data_postprocess_path
