"""Checks of a run's model and its sampling settings, before anything of the run exists."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from schemas.errors import CheckpointMismatch, InvalidValue
from slime_events.algorithms.estimators import estimator_of
from slime_events.core.checkpoint.vocabulary import vocabulary_of
from slime_events.core.config.reach import REMOTE_CODE
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings
from storage.weights.folder_formats import FolderFormat, format_of

if TYPE_CHECKING:
    from actors.megatron.families.architecture import Architecture

FLAGS = {"max_new_tokens": "max-response-len"}
"""Flags with another name than SGLang's field."""


def check_model(settings: TrainSettings) -> None:
    """Check that the folders hold a model that the trainer supports, with its weights and tokenizer."""
    from actors.megatron.families.registry import read_architecture

    trainer = settings.trainer
    read_architecture(trainer.hf_checkpoint).check_flags(trainer.megatron)
    for folder in filter(None, {settings.engine.hf_checkpoint, trainer.hf_checkpoint}):
        files = _check_weights(folder)
        if not any("token" in name or "vocab" in name for name in files):
            raise InvalidValue(
                f"{folder} holds no tokenizer (tokenizer.json): give the folder of a complete checkpoint"
            )


def check_served(settings: TrainSettings) -> None:
    """Check that engines can serve the model as the trainer trains it. Raises CheckpointMismatch."""
    from actors.megatron.families.registry import family_of, read_architecture

    folder = settings.trainer.hf_checkpoint
    architecture = read_architecture(folder)
    if settings.debug.debug_train_only:
        return
    if architecture.needs_own_code and not settings.engine.sglang.get(REMOTE_CODE):
        raise CheckpointMismatch(
            f"{folder}: SGLang reads model_type mimo only with the checkpoint's own code, which is not run: set "
            "model_type to qwen2 in config.json, whose layers it has, and leave architectures as it is"
        )
    if architecture.tied and not family_of(architecture).served_tied:
        raise CheckpointMismatch(
            f"{folder}: tie_word_embeddings is true, but SGLang would serve a {architecture.model_class} with random "
            "weights as its output layer: add model.embed_tokens.weight as lm_head.weight to the weights, and set "
            "tie_word_embeddings to false in config.json"
        )


def memory_note(settings: TrainSettings) -> str | None:
    """Return a sentence about the memory that a trainer rank needs on its GPU; None if nothing is trained."""
    from actors.megatron.memory import count_parameters, trainer_memory
    from actors.megatron.prediction_settings import trained_architecture

    if settings.debug.debug_rollout_only:
        return None
    architecture = trained_architecture(settings.trainer)
    memory = trainer_memory(architecture, settings.trainer)
    parts = f"weights {_gib(memory.weights)}, gradients {_gib(memory.gradients)}, optimizer {_gib(memory.optimizer)}"
    return (
        f"a trainer rank keeps {_gib(memory.total)} GiB on its GPU ({parts}) of a model of "
        f"{count_parameters(architecture) / 1e9:.2f} billion parameters; activations come on top"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f}"


def check_parallelism(settings: TrainSettings) -> None:
    """Check that the model can be split over the number of ranks."""
    from actors.megatron.families.registry import read_architecture
    from actors.megatron.layout import Layout, check_routing
    from actors.megatron.prediction_settings import check_prediction

    if not settings.debug.debug_rollout_only:
        architecture = read_architecture(settings.trainer.hf_checkpoint)
        layout = Layout.of(settings.trainer)
        layout.check(architecture)
        layout.check_ranks(settings.trainer.world_size)
        check_routing(settings.trainer, architecture)
        _check_prediction_layer(settings, check_prediction(settings.trainer, architecture))


def _check_prediction_layer(settings: TrainSettings, architecture: Architecture) -> None:
    """Check that the folders of the policy and of the reference have the layer that is trained."""
    from actors.megatron.prediction_settings import check_stored_prediction

    trainer, algorithm = settings.trainer, settings.algorithm
    folders: list[tuple[str, str, int | None]] = []
    if trainer.load:
        folders.append(("--load", trainer.load, trainer.ckpt_step))
    if not trainer.load or format_of(trainer.load) is FolderFormat.OURS:  # a rank loads the checkpoint after the model
        folders.append(("--hf-checkpoint", trainer.hf_checkpoint, None))
    if trainer.ref_load and estimator_of(algorithm).needs_reference(algorithm):
        folders.append(("--ref-load", trainer.ref_load, trainer.ref_ckpt_step))
    for flag, folder, step in folders:
        if Path(folder).exists():
            check_stored_prediction(flag, folder, step, architecture)


def _check_weights(folder: str) -> list[str]:
    """Return the names of the folder's files. Raises InvalidValue if none has weights."""
    files = [path.name for path in Path(folder).iterdir()]
    if not any(name.endswith((".safetensors", ".bin", ".pt", ".gguf")) for name in files):
        raise InvalidValue(f"{folder} holds no weights (*.safetensors): give the folder of a complete checkpoint")
    return files


def check_teacher(trainer: TrainerSettings) -> None:
    """Check that the teacher has weights and the student's vocabulary."""
    from actors.megatron.families.vocabulary import check_vocabulary

    if trainer.opd_teacher_load:
        check_vocabulary(trainer.hf_checkpoint, trainer.opd_teacher_load)
        _check_weights(trainer.opd_teacher_load)


def check_sampling_settings(settings: TrainSettings) -> None:
    """Check that engines accept the sampling settings of the run and of each evaluation. Raises InvalidValue.

    Without this check, engines would refuse each of the run's requests.
    """
    from serve_apps.engines.checks import check_sampling
    from slime_events.loop.conductor.plan import make_plan

    rollout = replace(
        settings.rollout, num_rollout=settings.rollout.num_rollout or 1
    )  # --num-epoch may not be resolved yet
    plan, vocabulary = (
        make_plan(rollout, settings.evaluation, settings.trainer),
        vocabulary_of(settings.engine.hf_checkpoint),
    )
    named = {"": plan.sampling} | {f" of evaluation {name}": each.sampling for name, each in plan.evals.items()}
    for whose, sampling in named.items():
        try:
            check_sampling(sampling, vocabulary)
        except InvalidValue as error:
            field, _, message = str(error).partition(": ")
            name = f"{field}{whose}" if whose else f"--rollout-{FLAGS.get(field, field.replace('_', '-'))}"
            raise InvalidValue(f"{name}: {message}") from error
