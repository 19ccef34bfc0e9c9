"""`open_loggers`: open the loggers that a run's settings name."""

import importlib.util
from collections.abc import Iterator

from schemas.errors import MissingPart
from slime_events.app.loggers.logger import LoggedRun, Logger, wandb_mode
from slime_events.core.config.metrics import MetricsSettings
from slime_events.core.config.settings import TrainSettings


def logger_flags(settings: MetricsSettings) -> Iterator[str]:
    """Yield the `--use-` flags of the enabled loggers."""
    if settings.use_tensorboard:
        yield "--use-tensorboard"
    if wandb_mode(settings) != "disabled":
        yield "--use-wandb"
    if settings.use_otlp:
        yield "--use-otlp"


PACKAGES = {"--use-tensorboard": "tensorboard", "--use-wandb": "wandb", "--use-otlp": "opentelemetry.exporter.otlp"}


def missing(settings: MetricsSettings) -> dict[str, str]:
    """Return the flags of enabled loggers whose package is not installed, with a message for each."""
    return {
        flag: f"{flag} needs the package {PACKAGES[flag]}, which is not installed: pip install 'slime-events[{extra}]'"
        for flag in logger_flags(settings)
        if not _is_installed(PACKAGES[flag])
        for extra in [flag.removeprefix("--use-")]
    }


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def open_loggers(settings: TrainSettings, run: LoggedRun) -> list[Logger]:
    """Return loggers that expect the run's first row. Raises MissingPart, StoreUnavailable; OSError for folders."""
    if sentences := missing(settings.metrics):
        raise MissingPart("\n".join(sentences.values()))
    loggers: list[Logger] = []
    for flag in logger_flags(settings.metrics):
        if flag == "--use-tensorboard":
            from slime_events.app.loggers.tensorboard_logger import TensorBoardLogger

            loggers.append(TensorBoardLogger(settings.metrics, run))
        elif flag == "--use-otlp":
            from slime_events.app.loggers.otlp_logger import OtlpLogger

            loggers.append(OtlpLogger(settings.run.otlp_endpoint, run))
        else:
            from slime_events.app.loggers.wandb_logger import WandbLogger

            loggers.append(WandbLogger(settings, run))
    return loggers
