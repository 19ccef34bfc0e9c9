"""Checks of a run's model, and of how its tokens are drawn, before anything of the run exists."""

from pathlib import Path

from msgspec.structs import replace

from schemas.errors import InvalidValue
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.vocabulary import vocabulary_of

FLAGS = {"max_new_tokens": "max-response-len"}
"""What SGLang's names are called in flags, where these are not the same."""


def check_model(settings: TrainSettings) -> None:
    """Whether the folders hold a model that the trainer has, with its weights and its tokenizer."""
    from actors.megatron.architecture import Architecture

    trainer = settings.trainer
    Architecture.read(trainer.hf_checkpoint).check_flags(trainer.megatron)
    for folder in filter(None, {settings.engine.hf_checkpoint, trainer.hf_checkpoint}):
        files = _check_weights(folder)
        if not any("token" in name or "vocab" in name for name in files):
            raise InvalidValue(f"{folder} holds no tokenizer (tokenizer.json): give the folder of a whole checkpoint")


def check_parallelism(settings: TrainSettings) -> None:
    """Whether the model can be cut over so many ranks."""
    from actors.megatron.architecture import Architecture

    if not settings.debug.debug_rollout_only:
        Architecture.read(settings.trainer.hf_checkpoint).check_parallelism(settings.trainer)


def _check_weights(folder: str) -> list[str]:
    """The names of its files."""
    files = [path.name for path in Path(folder).iterdir()]
    if not any(name.endswith((".safetensors", ".bin", ".pt", ".gguf")) for name in files):
        raise InvalidValue(f"{folder} holds no weights (*.safetensors): give the folder of a whole checkpoint")
    return files


def check_teacher(trainer: TrainerSettings) -> None:
    """Whether the teacher has weights, and the student's tokens."""
    from actors.megatron.architecture import check_vocabulary

    if trainer.opd_teacher_load:
        check_vocabulary(trainer.hf_checkpoint, trainer.opd_teacher_load)
        _check_weights(trainer.opd_teacher_load)


def check_sampling_settings(settings: TrainSettings) -> None:
    """Whether the model's engines take the run's sampling, and that of each evaluation. Raises InvalidValue: else each
    of the run's requests would be refused.
    """
    from serve_apps.engine.checks import check_sampling
    from slime_events.loop.conductor.plan import make_plan

    rollout = replace(settings.rollout, num_rollout=settings.rollout.num_rollout or 1)  # it may not be counted yet
    plan, vocabulary = (
        make_plan(rollout, settings.evaluation, settings.trainer),
        vocabulary_of(settings.engine.hf_checkpoint),
    )
    named = {"": plan.sampling} | {f" of evaluation {name}": one.sampling for name, one in plan.evals.items()}
    for whose, sampling in named.items():
        try:
            check_sampling(sampling, vocabulary)
        except InvalidValue as error:
            field, _, message = str(error).partition(": ")
            name = f"{field}{whose}" if whose else f"--rollout-{FLAGS.get(field, field.replace('_', '-'))}"
            raise InvalidValue(f"{name}: {message}") from error
