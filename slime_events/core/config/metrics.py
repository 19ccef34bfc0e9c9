"""Which metrics there are beyond the usual ones, and which loggers they are written to (slime's names)."""

from typing import Annotated, Literal

from slime_events.core.config.base import Settings, doc


class MetricsSettings(Settings, frozen=True, kw_only=True):
    """Metrics are a fold of the log: loggers may be chosen, changed and added at any time, and hold nothing up."""

    use_tensorboard: Annotated[bool, doc("write metrics for TensorBoard")] = False
    tb_project_name: Annotated[
        str | None,
        doc("... into tensorboard_log/PROJECT/EXPERIMENT; default: the variable TENSORBOARD_DIR, or the run folder"),
    ] = None
    tb_experiment_name: Annotated[str | None, doc("default: the run's name")] = None
    use_wandb: Annotated[bool, doc("write metrics to Weights & Biases")] = False
    wandb_mode: Annotated[
        Literal["online", "offline", "disabled"] | None, doc("default: the variable WANDB_MODE, or online")
    ] = None
    wandb_project: Annotated[str | None, doc("W&B project")] = None
    wandb_team: Annotated[str | None, doc("W&B entity")] = None
    wandb_group: Annotated[str | None, doc("W&B group and name of the W&B run; default: the run's name alone")] = None
    wandb_random_suffix: Annotated[bool, doc("make group and name unique by the end of the W&B run's id")] = True
    wandb_run_id: Annotated[str | None, doc("id of the W&B run; default: one that follows from the run")] = None
    wandb_key: Annotated[str | None, doc("W&B API key; default: the variable WANDB_API_KEY, or W&B's own login")] = None
    wandb_host: Annotated[str | None, doc("URL of a W&B server of one's own")] = None
    wandb_dir: Annotated[str | None, doc("folder for W&B's files; default: the run folder")] = None
    wandb_always_use_train_step: Annotated[
        bool, doc("count optimizer steps on the axes of rollouts and evaluations too")
    ] = False
    use_otlp: Annotated[
        bool, doc("send metrics to the collector of otlp-endpoint, else to OTEL_EXPORTER_OTLP_ENDPOINT")
    ] = False
    log_passrate: Annotated[bool, doc("passrate/: pass@1, 2, 4, ... of a step's groups and of evaluations")] = False
    log_multi_turn: Annotated[bool, doc("multi_turn/: lengths with and without what tools said, and rounds")] = False
    log_reward_category: Annotated[
        str | None, doc("entry of the grader's dict: error_cat/ has the share of samples with each of its values")
    ] = None
    log_correct_samples: Annotated[bool, doc("lengths and entropy of the samples whose reward is 1")] = False
