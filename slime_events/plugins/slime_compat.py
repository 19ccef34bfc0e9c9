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

from slime_events.plugins.rm_hub_names import RM_HUB
from slime_events.plugins.trainer_names import TRAINER_NAMES, TRAINER_PATHS

SLIME_MODULES: dict[str, dict[str, str]] = {
    "slime": {},
    "slime.observability": {},
    "slime.observability.trace_utils": {
        name: f"slime_events.plugins.traces:{name}"
        for name in ("bind_trace", "build_sglang_meta_trace_attrs", "trace_event", "trace_function", "trace_span")
    },
    "slime.utils": {},
    "slime.utils.async_utils": {
        "get_async_loop": "slime_events.plugins.slime_utils:get_async_loop",
        "run": "slime_events.plugins.slime_utils:run",
    },
    "slime.utils.data": {"Dataset": "slime_events.loop.prompts.dataset:Dataset"},
    "slime.utils.types": {
        "RolloutBatch": "slime_events.plugins.rollout_types:RolloutBatch",
        "Sample": "slime_events.plugins.sample:Sample",
    },
    "slime.utils.http_utils": {
        "get": "serve_apps.generate.slime_compat:get",
        "post": "serve_apps.generate.slime_compat:post",
    },
    "slime.utils.misc": {
        "load_function": "slime_events.plugins.loader:load_function",
        "SingletonMeta": "slime_events.plugins.slime_utils:SingletonMeta",
    },
    "slime.utils.processing_utils": {
        name: f"slime_events.plugins.slime_utils:{name}"
        for name in (
            "build_processor_kwargs",
            "encode_image_for_rollout_engine",
            "load_processor",
            "load_tokenizer",
            "process_vision_info",
        )
    },
    "slime.rollout": {},
    "slime.rollout.base_types": {
        name: f"slime_events.plugins.rollout_types:{name}"
        for name in ("RolloutFnEvalOutput", "RolloutFnTrainOutput", "call_rollout_fn")
    },
    "slime.rollout.sglang_rollout": {
        "GenerateState": "serve_apps.generate.slime_compat:GenerateState",
        "get_model_url": "serve_apps.generate.slime_compat:get_model_url",
        **{
            name: f"serve_apps.generate.slime_rollout:{name}"
            for name in ("abort", "generate", "generate_and_rm", "generate_and_rm_group")
        },
        **{
            name: f"serve_apps.rollout_function.slime_loop:{name}"
            for name in ("eval_rollout", "generate_rollout", "generate_rollout_async")
        },
    },
    "slime.rollout.sglang_streaming_rollout": {"generate_streaming": "serve_apps.generate.slime_rollout:generate"},
    "slime.rollout.fully_async_rollout": {
        "generate_rollout_fully_async": "serve_apps.rollout_function.slime_loop:generate_rollout",
    },
    "slime.rollout.on_policy_distillation": {
        name: f"slime_events.plugins.rewards.teacher:{name}" for name in ("post_process_rewards", "reward_func")
    },
    "slime.rollout.data_source": {
        "DataSource": "slime_events.loop.prompts.data_source:DataSource",
        "RolloutDataSource": "slime_events.loop.prompts.data_source:RolloutDataSource",
        "RolloutDataSourceWithBuffer": "slime_events.loop.prompts.data_source:RolloutDataSourceWithBuffer",
        "pop_first": "slime_events.loop.prompts.buffer_filter:pop_first",
    },
    "slime.rollout.filter_hub": {},
    "slime.rollout.filter_hub.base_types": {
        "DynamicFilterOutput": "slime_events.plugins.filters.base_types:DynamicFilterOutput",
        "MetricGatherer": "slime_events.plugins.filters.gathering:MetricGatherer",
        "call_dynamic_filter": "slime_events.plugins.filters.gathering:call_dynamic_filter",
    },
    "slime.rollout.filter_hub.dynamic_sampling_filters": {
        "check_reward_nonzero_std": "slime_events.plugins.filters.dynamic_sampling:check_reward_nonzero_std",
        "check_reward_nonzero_std_with_fallback": (
            "slime_events.plugins.filters.dynamic_sampling:check_reward_nonzero_std_with_fallback"
        ),
    },
    **RM_HUB,
    **TRAINER_NAMES,
}
"""What a plug-in written for slime may import: module, name, and its target here.

Targets are names only: a file that holds a reward beside its generate function is imported where nothing is served.
"""

_FILTERS = "slime.rollout.filter_hub.dynamic_sampling_filters"
_DISTILLATION = "slime.rollout.on_policy_distillation"
SLIME_PATHS: dict[str, str] = {
    **{
        f"{module}.{name}": target
        for module in (_FILTERS, _DISTILLATION)
        for name, target in SLIME_MODULES[module].items()
    },
    **TRAINER_PATHS,
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
        is_package = any(module.startswith(f"{fullname}.") for module in SLIME_MODULES)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)

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
