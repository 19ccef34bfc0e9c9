"""Aliases for slime's names and our own earlier ones, so that command lines, plug-ins and recorded paths work.

`from slime.utils.types import Sample` and the other imports of `SLIME_MODULES` give our types, unless a real `slime`
package is installed, which then goes first. Modules of slime that are not listed do not exist here.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

SLIME_MODULES: dict[str, dict[str, str]] = {
    "slime": {},
    "slime.utils": {},
    "slime.utils.types": {"Sample": "slime_events.plugins.sample:Sample"},
    "slime.utils.http_utils": {"post": "serve_apps.generate.slime_compat:post"},
    "slime.utils.misc": {"load_function": "slime_events.plugins.loader:load_function"},
    "slime.utils.mask_utils": {
        "MultiTurnLossMaskGenerator": "slime_events.plugins.loss_masks:MultiTurnLossMaskGenerator",
    },
    "slime.utils.ppo_utils": {
        "calculate_log_probs_and_entropy": "actors.megatron.slime_names:calculate_log_probs_and_entropy",
        "compute_approx_kl": "slime_events.algorithms.objective:approx_kl",
        "compute_cispo_loss": "slime_events.algorithms.estimators.cispo:cispo_loss",
        "compute_policy_loss": "slime_events.algorithms.clipped_loss:clipped_policy_loss",
        "get_grpo_returns": "actors.megatron.slime_names:get_grpo_returns",
    },
    "slime.backends": {},
    "slime.backends.megatron_utils": {},
    "slime.backends.megatron_utils.loss": {
        "get_log_probs_and_entropy": "actors.megatron.slime_names:get_log_probs_and_entropy",
        "get_responses": "actors.megatron.slime_names:get_responses",
        "policy_loss_function": "actors.megatron.slime_names:policy_loss_function",
        "sft_loss_function": "actors.megatron.slime_names:sft_loss_function",
        "icepop_function": "slime_events.algorithms.mis:icepop_function",
        "vanilla_tis_function": "slime_events.algorithms.mis:vanilla_tis_function",
    },
    "slime.backends.megatron_utils.cp_utils": {
        "all_gather_with_cp": "actors.megatron.slime_names:all_gather_with_cp",
        "get_sum_of_sample_mean": "actors.megatron.slime_names:get_sum_of_sample_mean",
        "slice_log_prob_with_cp": "actors.megatron.slime_names:slice_log_prob_with_cp",
    },
    "slime.rollout": {},
    "slime.rollout.sglang_rollout": {
        "GenerateState": "serve_apps.generate.slime_compat:GenerateState",
        "get_model_url": "serve_apps.generate.slime_compat:get_model_url",
    },
    "slime.rollout.data_source": {
        "DataSource": "slime_events.loop.prompts.data_source:DataSource",
        "RolloutDataSource": "slime_events.loop.prompts.data_source:RolloutDataSource",
        "pop_first": "slime_events.loop.prompts.buffer_filter:pop_first",
    },
    "slime.rollout.filter_hub": {},
    "slime.rollout.filter_hub.base_types": {
        "DynamicFilterOutput": "slime_events.plugins.filters.base_types:DynamicFilterOutput",
    },
    "slime.rollout.filter_hub.dynamic_sampling_filters": {
        "check_reward_nonzero_std": "slime_events.plugins.filters.dynamic_sampling:check_reward_nonzero_std",
        "check_reward_nonzero_std_with_fallback": (
            "slime_events.plugins.filters.dynamic_sampling:check_reward_nonzero_std_with_fallback"
        ),
    },
    "slime.rollout.rm_hub": {},
    "slime.rollout.rm_hub.deepscaler": {
        "get_deepscaler_rule_based_reward": "slime_events.plugins.rewards.deepscaler:get_deepscaler_rule_based_reward",
    },
    "slime.rollout.rm_hub.math_utils": {
        "extract_answer": "slime_events.plugins.rewards.boxed:last_boxed",
        "grade_answer_verl": "slime_events.plugins.rewards.math:grade_answer",
        "grade_answer_mathd": "slime_events.plugins.rewards.mathd:grade_answer_mathd",
        "grade_answer_sympy": "slime_events.plugins.rewards.math:grade_answer_sympy",
    },
    "slime.rollout.rm_hub.math_dapo_utils": {"compute_score": "slime_events.plugins.rewards.dapo:compute_score"},
    "slime.rollout.rm_hub.f1": {"f1_score": "slime_events.plugins.rewards.f1:f1_score"},
    "slime.rollout.rm_hub.gpqa": {"compute_gpqa_reward": "slime_events.plugins.rewards.gpqa:compute_gpqa_reward"},
}
"""What a plug-in written for slime may import: module, name, and its target here.

Targets are names only: a file that holds a reward beside its generate function is imported where nothing is served.
"""

_FILTERS = "slime.rollout.filter_hub.dynamic_sampling_filters"
_LOSS = "slime.backends.megatron_utils.loss"
SLIME_PATHS: dict[str, str] = {
    f"{module}.{name}": target for module in (_FILTERS, _LOSS) for name, target in SLIME_MODULES[module].items()
} | {
    f"{package}train_infer_mismatch_helper.mis.{name}": "slime_events.algorithms.mis:compute_mis_weights_with_cp"
    for package in ("", "examples.")
    for name in ("compute_mis_weights_with_cp",)
}
"""slime's dotted paths as they stand in its command lines, and the functions here that do the same."""

EARLIER_PACKAGES = {
    "slime_events.rewards.coin": "slime_events.plugins.rewards.random_reward",
    "slime_events.filters": "slime_events.plugins.filters",
    "slime_events.rewards": "slime_events.plugins.rewards",
    "slime_events.sample": "slime_events.plugins.sample",
}
"""Module names of plug-ins and recorded settings before 0.2, and their names now; a module goes before its package.

Logs keep such paths for ever.
"""


class _AliasFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves SLIME_MODULES and EARLIER_PACKAGES; last in sys.meta_path, so a real slime package is found before."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if current := _current_name(fullname):
            is_package = hasattr(importlib.import_module(current), "__path__")
            return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)
        if fullname not in SLIME_MODULES:
            return None
        root = sys.modules.get("slime")
        if root is not None and getattr(root.__spec__, "loader", None) is not self:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=not SLIME_MODULES[fullname])

    def exec_module(self, module: ModuleType) -> None:
        if current := _current_name(module.__name__):
            names = vars(importlib.import_module(current))
            vars(module).update({name: value for name, value in names.items() if not name.startswith("__")})
            return
        for name, target in SLIME_MODULES[module.__name__].items():
            home, _, attribute = target.partition(":")
            setattr(module, name, getattr(importlib.import_module(home), attribute))


def _current_name(module: str) -> str | None:
    """Today's name of a module under one of EARLIER_PACKAGES; None for any other."""
    return next(
        (new + module[len(old) :] for old, new in EARLIER_PACKAGES.items() if f"{module}.".startswith(f"{old}.")), None
    )


def install_slime_aliases() -> None:
    """Let `from slime.utils.types import Sample` give ours where no slime is installed. Costs nothing until used."""
    if not any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        sys.meta_path.append(_AliasFinder())
