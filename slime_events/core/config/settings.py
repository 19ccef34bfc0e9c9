"""`TrainSettings`: all component settings of one run, as resolved from flags or TOML and recorded in run.started."""

from __future__ import annotations

from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.base import Settings
from slime_events.core.config.data import DataSettings
from slime_events.core.config.debug import DebugSettings
from slime_events.core.config.engine import EngineSettings
from slime_events.core.config.evaluation import EvalSettings
from slime_events.core.config.reward import RewardSettings
from slime_events.core.config.rollout import RolloutSettings
from slime_events.core.config.run import RunSettings
from slime_events.core.config.trainer import TrainerSettings


class TrainSettings(Settings, frozen=True, kw_only=True):
    """Handed out piece by piece: a component sees its own struct, never this one."""

    run: RunSettings = RunSettings()
    data: DataSettings = DataSettings()
    rollout: RolloutSettings = RolloutSettings()
    reward: RewardSettings = RewardSettings()
    evaluation: EvalSettings = EvalSettings()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    engine: EngineSettings = EngineSettings()
    trainer: TrainerSettings = TrainerSettings()
    debug: DebugSettings = DebugSettings()
