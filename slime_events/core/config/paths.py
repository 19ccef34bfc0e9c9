"""`missing_paths`: files and folders in the settings that do not exist."""

import re
from collections.abc import Callable
from pathlib import Path

from schemas.errors import InvalidValue
from slime_events.core.config.settings import TrainSettings


def missing_paths(settings: TrainSettings, exists: Callable[[str], bool] | None = None) -> list[str]:
    """A sentence for each local file or folder in the settings that does not exist, with what to do.

    Remote URLs (`s3://...`) are not checked. exists: asks the file system.
    """
    there = exists or (lambda path: Path(path).exists())
    trainer = settings.trainer
    folders = [("hf_checkpoint", settings.engine.hf_checkpoint), ("ref_load", trainer.ref_load)]
    if trainer.hf_checkpoint != settings.engine.hf_checkpoint:
        folders.append(("hf_checkpoint", trainer.hf_checkpoint))
    files = [("prompt_data", settings.data.prompt_data)]
    files += [("eval_prompt_data", path) for path in settings.evaluation.eval_prompt_data[1::2]]
    found = [_folder(name, path, there) for name, path in folders if path and "://" not in path]
    found += [_file(name, path, there) for name, path in files if path]
    found.append(_archive(settings.data.archive_prompts, there))
    return [problem for problem in found if problem]


def _folder(name: str, path: str, there: Callable[[str], bool]) -> str | None:
    if not there(path):
        cure = f"download the model (`hf download NAME --local-dir {path}`) or mend the path"
        return f"{name} {path} is not there: {cure}."
    if not there(f"{path.rstrip('/')}/config.json"):
        return f"{name} {path} has no config.json: give the folder of a Hugging Face checkpoint."
    return None


def _file(name: str, path: str, there: Callable[[str], bool]) -> str | None:
    local = re.sub(r"@\[[^\]]*\]$", "", path).removeprefix("file://")
    if "://" in local or there(local):
        return None
    return f"{name} {local} is not there: give a JSONL or Parquet file, or an fsspec URL of one."


def _archive(path: str | None, there: Callable[[str], bool]) -> str | None:
    if path is None or "://" in path or "/" not in path or there(path):
        return None
    return f"archive_prompts {path} is not there: give <the --archive-url of a run>/<its name>, or a run's folder."


def require_paths(settings: TrainSettings) -> None:
    """InvalidValue where `missing_paths` finds any."""
    if problems := missing_paths(settings):
        raise InvalidValue("\n".join(problems))
