"""slime-events: reinforcement learning of language models over an event log. Its public API: docs/python-api.md.

Each name is imported on first use, so `import slime_events` itself loads nothing.
"""

from __future__ import annotations

import sys

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    # For `python -m slime_events...`: search installed packages before the working directory.
    sys.path.append(sys.path.pop(0))

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schemas.errors import ConfigError, RunNotFound, SlimeEventsError
    from serve_apps.rollouts.generate.session import Session, Turn, current_session
    from slime_events.analysis.query.answer import Answer
    from slime_events.app.api import (
        OpenRun,
        RunProcess,
        branch_run,
        demo_settings,
        open_run,
        parse_settings,
        resume_run,
        start_run,
        stop_run,
    )
    from slime_events.app.gateway_client import AsyncGatewayClient, GatewayClient
    from slime_events.app.harness import Harness
    from slime_events.app.harness_session import HarnessSession
    from slime_events.app.python_settings import check_settings, settings_toml
    from slime_events.app.signatures import (
        BufferFilter,
        DynamicFilter,
        GenerateFunction,
        GroupRewardFunction,
        PromptSource,
        RewardFunction,
    )
    from slime_events.core.config.agents import AgentSettings
    from slime_events.core.config.algorithm import AlgorithmSettings
    from slime_events.core.config.data import DataSettings
    from slime_events.core.config.engine import EngineSettings
    from slime_events.core.config.evaluation import EvalSettings
    from slime_events.core.config.gateway import RunGatewaySettings
    from slime_events.core.config.metrics import MetricsSettings
    from slime_events.core.config.reward import RewardSettings
    from slime_events.core.config.rollout import RolloutSettings
    from slime_events.core.config.settings import DebugSettings, RunSettings, TrainSettings
    from slime_events.core.config.trainer import TrainerSettings
    from slime_events.model.run_status import RunStatus
    from slime_events.plugins.args_view import ArgsView
    from slime_events.plugins.filters.base_types import DynamicFilterOutput
    from slime_events.plugins.sample import Sample
    from storage.log import Recorded

__version__ = "0.2.0"
__all__ = [
    "AgentSettings",
    "AlgorithmSettings",
    "Answer",
    "ArgsView",
    "AsyncGatewayClient",
    "BufferFilter",
    "ConfigError",
    "DataSettings",
    "DebugSettings",
    "DynamicFilter",
    "DynamicFilterOutput",
    "EngineSettings",
    "EvalSettings",
    "GatewayClient",
    "GenerateFunction",
    "GroupRewardFunction",
    "Harness",
    "HarnessSession",
    "MetricsSettings",
    "OpenRun",
    "PromptSource",
    "Recorded",
    "RewardFunction",
    "RewardSettings",
    "RolloutSettings",
    "RunGatewaySettings",
    "RunNotFound",
    "RunProcess",
    "RunSettings",
    "RunStatus",
    "Sample",
    "Session",
    "SlimeEventsError",
    "TrainSettings",
    "TrainerSettings",
    "Turn",
    "__version__",
    "branch_run",
    "check_settings",
    "current_session",
    "demo_settings",
    "open_run",
    "parse_settings",
    "resume_run",
    "settings_toml",
    "start_run",
    "stop_run",
]
_PLACES = {
    "schemas.errors": ("ConfigError", "RunNotFound", "SlimeEventsError"),
    "serve_apps.rollouts.generate.session": ("Session", "Turn", "current_session"),
    "slime_events.analysis.query.answer": ("Answer",),
    "slime_events.app.gateway_client": ("AsyncGatewayClient", "GatewayClient"),
    "slime_events.app.harness": ("Harness",),
    "slime_events.app.harness_session": ("HarnessSession",),
    "slime_events.model.run_status": ("RunStatus",),
    "slime_events.app.python_settings": ("check_settings", "settings_toml"),
    "slime_events.app.signatures": (
        *("BufferFilter", "DynamicFilter", "GenerateFunction"),
        *("GroupRewardFunction", "PromptSource", "RewardFunction"),
    ),
    "slime_events.core.config.agents": ("AgentSettings",),
    "slime_events.core.config.algorithm": ("AlgorithmSettings",),
    "slime_events.core.config.data": ("DataSettings",),
    "slime_events.core.config.engine": ("EngineSettings",),
    "slime_events.core.config.evaluation": ("EvalSettings",),
    "slime_events.core.config.gateway": ("RunGatewaySettings",),
    "slime_events.core.config.metrics": ("MetricsSettings",),
    "slime_events.core.config.reward": ("RewardSettings",),
    "slime_events.core.config.rollout": ("RolloutSettings",),
    "slime_events.core.config.settings": ("DebugSettings", "RunSettings", "TrainSettings"),
    "slime_events.core.config.trainer": ("TrainerSettings",),
    "slime_events.plugins.args_view": ("ArgsView",),
    "slime_events.plugins.filters.base_types": ("DynamicFilterOutput",),
    "slime_events.plugins.sample": ("Sample",),
    "storage.log": ("Recorded",),
}
"""Modules that define the names of `__all__`; other names are in `slime_events.app.api`."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = next((place for place, names in _PLACES.items() if name in names), "slime_events.app.api")
    value: object = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
