"""Check that files and folders in the settings exist."""

import re
from pathlib import Path

from schemas.errors import InvalidValue
from slime_events.core.config.settings import TrainSettings
from storage.folders.places import is_remote
from storage.weights.folder_formats import FolderFormat, format_of


def missing_paths(settings: TrainSettings) -> list[str]:
    """Return a sentence for each local file or folder in the settings that does not exist, with what to do.

    URLs in object stores (`s3://...`) are not checked: `LocalModels` checks those of models.
    """
    engine, trainer, data = settings.engine, settings.trainer, settings.data
    has_reference = settings.algorithm.use_kl_loss or settings.algorithm.kl_coef
    folders = [("hf_checkpoint", engine.hf_checkpoint), ("ref_load", trainer.ref_load if has_reference else None)]
    folders.append(("opd_teacher_load", trainer.opd_teacher_load))
    if trainer.hf_checkpoint != engine.hf_checkpoint:
        folders.append(("hf_checkpoint", trainer.hf_checkpoint))
    problems = []
    if (copies := engine.update_weight_local_checkpoint_dir) and is_remote(copies):
        cure = "give a folder on each engine's host"
        problems.append(f"update_weight_local_checkpoint_dir {copies} is in an object store: {cure}.")
    for name, path in folders:
        if path and "://" not in path and not Path(path).exists():
            cure = f"download the model (`hf download NAME --local-dir {path}`) or correct the path"
            if name == "ref_load":
                cure += ", or leave --ref-load out if the reference is the model of hf_checkpoint"
            problems.append(f"{name} {path} does not exist: {cure}.")
        elif path and "://" not in path and not Path(path, "config.json").exists():
            is_torch_dist = format_of(path) is FolderFormat.TORCH_DIST
            if name == "ref_load" and is_torch_dist:
                continue
            cure = "give the folder of a Hugging Face checkpoint"
            if is_torch_dist:
                cure += ", from which this folder was converted"
            if name == "ref_load":
                cure += ", or leave --ref-load out if the reference is the model of hf_checkpoint"
            problems.append(f"{name} {path} has no config.json: {cure}.")
    critic = trainer.critic_load or ""
    has_critic = any(Path(critic, name).exists() for name in ("config.json", "critic"))
    if critic and "://" not in critic and not has_critic and format_of(critic) is not FolderFormat.TORCH_DIST:
        cure = "give the folder of a Hugging Face checkpoint, or a trainer checkpoint of a run that had one"
        problems.append(f"critic_load {critic} holds no critic: {cure}.")
    files = [("prompt_data", data.prompt_data or "")]
    evaluation = settings.evaluation
    files += [(f"{evaluation.where(name)}: path", dataset.path) for name, dataset in evaluation.sets().items()]
    for name, path in files:
        local = re.sub(r"@\[[^\]]*\]$", "", path).removeprefix("file://")
        if path and "://" not in local and not Path(local).exists():
            problems.append(f"{name} {local} does not exist: give a JSONL or Parquet file, or an fsspec URL of one.")
    archive = data.archive_prompts or ""
    if "/" in archive and "://" not in archive and not Path(archive).exists():
        cure = "give <the --archive-url of a run>/<its name>, or a run's folder"
        problems.append(f"archive_prompts {archive} does not exist: {cure}.")
    return problems


def require_paths(settings: TrainSettings) -> None:
    """Raise InvalidValue if `missing_paths` returns any."""
    if problems := missing_paths(settings):
        raise InvalidValue("\n".join(problems))
