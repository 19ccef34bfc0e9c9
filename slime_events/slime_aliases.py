"""slime's names for what is ours, so that its command lines and the plug-ins written for it work as they are.

`from slime.utils.types import Sample` and the other imports of `SLIME_MODULES` lead to our types, unless a real
`slime` package is installed, which then goes first. Modules that are not listed are not there.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

SLIME_PATHS: dict[str, str] = {
    "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std": (
        "slime_events.filters.dynamic_sampling:check_reward_nonzero_std"
    ),
    "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std_with_fallback": (
        "slime_events.filters.dynamic_sampling:check_reward_nonzero_std_with_fallback"
    ),
}
"""slime's own dotted paths, as they stand in its command lines, and the functions here that do the same."""

SLIME_MODULES: dict[str, dict[str, str]] = {
    "slime": {},
    "slime.utils": {},
    "slime.utils.types": {"Sample": "slime_events.sample:Sample"},
    "slime.utils.http_utils": {"post": "serve_apps.generate.slime_face:post"},
    "slime.utils.misc": {"load_function": "slime_events.plug_points:load_function"},
    "slime.rollout": {},
    "slime.rollout.sglang_rollout": {
        "GenerateState": "serve_apps.generate.slime_face:GenerateState",
        "get_model_url": "serve_apps.generate.slime_face:get_model_url",
    },
    "slime.rollout.data_source": {
        "DataSource": "slime_events.data.data_source:DataSource",
        "RolloutDataSource": "slime_events.data.data_source:RolloutDataSource",
        "pop_first": "slime_events.data.buffer_filter:pop_first",
    },
    "slime.rollout.filter_hub": {},
    "slime.rollout.filter_hub.base_types": {
        "DynamicFilterOutput": "slime_events.filters.base_types:DynamicFilterOutput",
    },
    "slime.rollout.filter_hub.dynamic_sampling_filters": {
        "check_reward_nonzero_std": "slime_events.filters.dynamic_sampling:check_reward_nonzero_std",
        "check_reward_nonzero_std_with_fallback": (
            "slime_events.filters.dynamic_sampling:check_reward_nonzero_std_with_fallback"
        ),
    },
    "slime.rollout.rm_hub": {},
    "slime.rollout.rm_hub.deepscaler": {
        "get_deepscaler_rule_based_reward": "slime_events.rewards.deepscaler:get_deepscaler_rule_based_reward",
    },
    "slime.rollout.rm_hub.math_utils": {
        "extract_answer": "slime_events.rewards.boxed:last_boxed",
        "grade_answer_verl": "slime_events.rewards.math:grade_answer",
        "grade_answer_mathd": "slime_events.rewards.mathd:grade_answer_mathd",
        "grade_answer_sympy": "slime_events.rewards.math:grade_answer_sympy",
    },
    "slime.rollout.rm_hub.math_dapo_utils": {"compute_score": "slime_events.rewards.dapo:compute_score"},
    "slime.rollout.rm_hub.f1": {"f1_score": "slime_events.rewards.f1:f1_score"},
    "slime.rollout.rm_hub.gpqa": {"compute_gpqa_reward": "slime_events.rewards.gpqa:compute_gpqa_reward"},
}
"""What a plug-in written for slime may import, by module and name, and where it is here.

By name only: a file that holds a reward beside its generate function is imported where nothing is served.
"""


class _SlimeAliases(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves the modules of SLIME_MODULES; last in sys.meta_path, so a real slime package is found before."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in SLIME_MODULES:
            return None
        root = sys.modules.get("slime")
        if root is not None and getattr(root.__spec__, "loader", None) is not self:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=not SLIME_MODULES[fullname])

    def exec_module(self, module: ModuleType) -> None:
        for name, place in SLIME_MODULES[module.__name__].items():
            home, _, attribute = place.partition(":")
            setattr(module, name, getattr(importlib.import_module(home), attribute))


def install_slime_aliases() -> None:
    """Let `from slime.utils.types import Sample` lead to ours where no slime is installed. Costs nothing until used."""
    if not any(isinstance(finder, _SlimeAliases) for finder in sys.meta_path):
        sys.meta_path.append(_SlimeAliases())
