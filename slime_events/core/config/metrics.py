"""Settings of metrics and their loggers, with slime's names."""

from typing import Annotated, Literal

from slime_events.core.config.base import Settings, doc
from slime_events.core.config.rules import Later, unused_without


class MetricsSettings(Settings, frozen=True, kw_only=True):
    """Optional metrics and loggers. Metrics are a fold of the log, so loggers may change at any time."""

    LATER = Settings.LATER | Later.RESUME | Later.LEARN

    use_tensorboard: Annotated[bool, doc("write metrics for TensorBoard")] = False
    tb_project_name: Annotated[
        str | None,
        doc(
            "write to tensorboard_log/PROJECT/EXPERIMENT; default: the variable TENSORBOARD_DIR, or the run folder",
            unused_without("use_tensorboard"),
        ),
    ] = None
    tb_experiment_name: Annotated[
        str | None,
        doc("EXPERIMENT in the folder of tb-project-name; default: the run's name", unused_without("use_tensorboard")),
    ] = None
    use_wandb: Annotated[bool, doc("write metrics to Weights & Biases")] = False
    wandb_mode: Annotated[
        Literal["online", "offline", "disabled"] | None,
        doc("mode of W&B; default: the variable WANDB_MODE, or online", unused_without("use_wandb")),
    ] = None
    wandb_project: Annotated[str | None, doc("W&B project", unused_without("use_wandb"))] = None
    wandb_team: Annotated[str | None, doc("W&B entity", unused_without("use_wandb"))] = None
    wandb_group: Annotated[
        str | None,
        doc(
            "W&B group and name of the W&B run; default: only the name, which is the run's", unused_without("use_wandb")
        ),
    ] = None
    wandb_random_suffix: Annotated[bool, doc("append the end of the W&B run's id to group and name")] = True
    wandb_run_id: Annotated[
        str | None, doc("id of the W&B run; default: derived from the run", unused_without("use_wandb"))
    ] = None
    wandb_key: Annotated[str | None, doc("W&B API key; default: the variable WANDB_API_KEY, or W&B's own login")] = None
    wandb_host: Annotated[str | None, doc("URL of a self-hosted W&B server", unused_without("use_wandb"))] = None
    wandb_dir: Annotated[
        str | None, doc("folder for W&B's files; default: the run folder", unused_without("use_wandb"))
    ] = None
    wandb_always_use_train_step: Annotated[
        bool, doc("use optimizer steps as the axis of rollout and evaluation metrics too", unused_without("use_wandb"))
    ] = False
    use_otlp: Annotated[
        bool, doc("send metrics to the collector at otlp-endpoint; default: OTEL_EXPORTER_OTLP_ENDPOINT")
    ] = False
    log_passrate: Annotated[bool, doc("log passrate/: pass@1, 2, 4, ... of each step's groups and of evaluations")] = (
        False
    )
    log_multi_turn: Annotated[
        bool, doc("log multi_turn/: number of turns, and lengths with and without tool output")
    ] = False
    log_reward_category: Annotated[
        str | None, doc("entry of the grader's dict; logs error_cat/: the share of samples with each value of it")
    ] = None
    log_correct_samples: Annotated[bool, doc("log lengths and entropy of the samples whose reward is 1")] = False
