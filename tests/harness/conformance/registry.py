"""Which function runs the cases of which family.

A runner takes a case and returns what its function gives, in slime's shape. It is written from the function's
signature: whatever the function takes, a case may have. A family without one is listed as missing, never passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.harness.conformance import advantages, data, filters, graders, loop, losses, samples, scheduling
from tests.harness.conformance.case import Case

Runner = Callable[[Case], Any]

RUNNERS: dict[str, Runner] = {
    "cispo_loss": losses.cispo,
    "compute_advantages": advantages.advantages,
    "convert_train_data": samples.convert_train_data,
    "dapo_normalize": graders.dapo_normalize,
    "data_source": data.data_source,
    "discounted_returns": advantages.returns,
    "dp_schedule": scheduling.schedule,
    "dynamic_sampling_loop": loop.dynamic_sampling,
    "filter_metrics": filters.metrics,
    "filter_nonzero_std": filters.nonzero_std,
    "filter_should_drop": filters.drops,
    "first_fit": scheduling.first_fit_pack,
    "gae": advantages.gae_rows,
    "grpo_returns": advantages.grpo_returns,
    "gspo": losses.gspo,
    "karmarkar_karp": scheduling.balanced_partitions,
    "kl": losses.kl,
    "logprob_entropy": losses.logprob_entropy,
    "loss_reduce": losses.loss_reduce,
    "math_normalize": graders.math_normalize,
    "mis": losses.mis,
    "opd": losses.opd,
    "opsm": losses.opsm,
    "partial_rollout": loop.partial_rollout,
    "passrate": samples.passrate,
    "path_slice": data.path_slice,
    "policy_loss": losses.policy_loss,
    "reinforce_pp": advantages.reinforce_pp,
    "reinforce_pp_baseline": advantages.reinforce_pp_baseline,
    "repetition": samples.repetition,
    "reward_norm": samples.reward_norm,
    "rm_dapo": graders.dapo,
    "rm_deepscaler": graders.deepscaler,
    "rm_dispatch": graders.dispatch,
    "rm_f1": graders.f1,
    "rm_gpqa": graders.gpqa,
    "rm_math": graders.math,
    "sample_append": samples.sample_append,
    "shuffle": data.shuffle,
    "tis": losses.tis,
    "value_loss": losses.value_loss,
    "whiten": advantages.whiten,
}
