"""`idle_settings`: find settings of algorithm and critic that are set but have no effect, and say why."""

from collections.abc import Iterator

from msgspec.structs import replace

from slime_events.algorithms.estimators import estimator_of
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings

DEFAULTS = AlgorithmSettings()
_OF_THE_POLICY_LOSS = (
    *("advantage_estimator", "eps_clip", "eps_clip_high", "eps_clip_c", "kl_coef", "kl_loss_type", "use_unbiased_kl"),
    *("gamma", "lambd", "normalize_advantages", "rewards_normalization", "grpo_std_normalization"),
    *("use_rollout_logprobs", "keep_old_actor", "ref_update_interval", "opd_kl_coef", "tis_clip", "tis_clip_low"),
    *("opsm_delta", "value_clip", "num_critic_only_steps"),
)
_OF_A_CRITIC = ("critic_load", "critic_lr", "critic_lr_warmup_iters", "critic_num_nodes", "critic_num_gpus_per_node")


def idle_settings(settings: TrainSettings) -> Iterator[str]:
    """Yield a sentence for each group of settings without effect, except those that a user's function may read."""
    algorithm = settings.algorithm
    for names, reason in _idle(algorithm):
        changed = [name for name in names if getattr(algorithm, name) != _default(name, settings)]
        if changed:
            yield _sentence(changed, reason)
    default = TrainerSettings()
    changed = [name for name in _OF_A_CRITIC if getattr(settings.trainer, name) != getattr(default, name)]
    if changed and not estimator_of(algorithm).needs_values:
        yield _sentence(changed, f"advantage_estimator {algorithm.advantage_estimator} has no critic")


def _sentence(names: list[str], reason: str) -> str:
    return f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect: {reason}."


def _default(name: str, settings: TrainSettings) -> object:
    """Return the value of an unset setting: derived from other settings, or its own default."""
    derived = {"eps_clip_high": settings.algorithm.eps_clip}
    if settings.rollout.n_samples_per_prompt == 1:
        derived["grpo_std_normalization"] = False
    return derived.get(name, getattr(DEFAULTS, name))


def _idle(settings: AlgorithmSettings) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield settings that nothing reads, set or not, and the reason."""
    if settings.loss_type == "custom_loss":
        return
    if settings.loss_type == "sft_loss":
        yield _OF_THE_POLICY_LOSS, "loss_type sft_loss has neither advantages nor a ratio"
        return
    if not settings.custom_advantage_function_path:
        yield from _of_the_advantage(settings)
    estimator = settings.advantage_estimator
    if not estimator_of(settings).has_dual_clip:
        yield ("eps_clip_c",), f"advantage_estimator {estimator} has no dual clip"
    if not settings.use_kl_loss:
        yield ("use_unbiased_kl",), "use_kl_loss is not set"
    if not (settings.use_tis or settings.custom_tis_function_path):
        yield ("tis_clip", "tis_clip_low"), "use_tis is not set"
    if settings.use_rollout_logprobs:
        yield ("keep_old_actor",), "use_rollout_logprobs takes the engine's log-probs as the old policy's"
    if not settings.use_opd:
        yield ("opd_kl_coef",), "use_opd is not set"
    if not settings.use_opsm:
        yield ("opsm_delta",), "use_opsm is not set"


def _of_the_advantage(settings: AlgorithmSettings) -> Iterator[tuple[tuple[str, ...], str]]:
    name, estimator = settings.advantage_estimator, estimator_of(settings)
    if not estimator.needs_values:
        yield ("lambd", "value_clip", "num_critic_only_steps"), f"advantage_estimator {name} has no critic"
        if estimator.discount(settings) != settings.gamma:
            yield ("gamma",), f"advantage_estimator {name} does not discount"
    if not estimator.takes_kl:
        yield ("kl_coef",), f"advantage_estimator {name} takes no KL from the reward; use_kl_loss adds one to the loss"
    if not settings.use_kl_loss and not (estimator.takes_kl and settings.kl_coef):
        yield ("kl_loss_type", "ref_update_interval"), "no KL to the reference is taken"
    pair = [0.0, 1.0]
    if estimator.reward_normalisation(pair, settings) == pair:
        names = ("rewards_normalization", "grpo_std_normalization")
        yield names, f"advantage_estimator {name} takes rewards as they are"
    elif not settings.rewards_normalization:
        yield ("grpo_std_normalization",), "rewards are not normalised"
    elif _normalised(settings, scale=True) == _normalised(settings, scale=False):
        yield ("grpo_std_normalization",), f"advantage_estimator {name} never divides by it"


def _normalised(settings: AlgorithmSettings, *, scale: bool) -> list[float]:
    chosen = replace(settings, grpo_std_normalization=scale)
    return estimator_of(settings).reward_normalisation([0.0, 1.0], chosen)
