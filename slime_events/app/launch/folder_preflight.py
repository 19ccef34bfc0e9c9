"""`check_folders`: check each folder or store that a new run writes, before anything starts."""

import os
from collections.abc import Callable
from pathlib import Path

import fsspec

from schemas.errors import ConfigError, InvalidValue, SlimeEventsError
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.trainer import TrainerSettings
from storage.folders.places import is_remote
from storage.weights.folder_formats import FolderFormat, format_of, iteration_folder
from storage.weights.store import WeightStore


def check_folders(settings: TrainSettings) -> None:
    """Check each folder or store that a new run writes, and the checkpoint that it begins with."""
    run, trainer = settings.run, settings.trainer
    attempt("--runs-dir", _check_local, run.runs_dir)
    if trainer.save:
        attempt("--save", _check_writable, trainer.save)
    urls = {"archive": run.archive_url, "blob": run.blob_url, "weights": run.weights_url}
    for flag, url in ((f"--{name}-url", url) for name, url in urls.items() if url):
        attempt(flag, _check_writable, url)
    if trainer.save_hf:
        attempt("--save-hf", _check_local, trainer.save_hf)
        attempt("--save-hf", _check_writable, str(Path(trainer.save_hf.format(rollout_id=0)).parent))
    if run.archive_url:
        attempt("--archive-url", _check_unused, run.archive_url, run.run)
    if run.weights_url:
        attempt("--weights-url", _check_no_versions, f"{run.weights_url.rstrip('/')}/{run.run}")
    if trainer.load:
        attempt("--load", _check_checkpoint, trainer)
    if trainer.ref_load and format_of(trainer.ref_load) is FolderFormat.TORCH_DIST:
        attempt("--ref-load", iteration_folder, trainer.ref_load, trainer.ref_ckpt_step, "--ref-ckpt-step")
    elif trainer.ref_ckpt_step is not None:
        raise InvalidValue(f"--ref-ckpt-step {trainer.ref_ckpt_step}: {trainer.ref_load} has no iterations")


def _check_local(path: str) -> None:
    """Check that a folder is on a disk and can be written."""
    if is_remote(path):
        raise InvalidValue(
            f"{path} is in an object store, but these files are on a disk: give a path. What can be at a URL is in "
            "docs/run-folder.md"
        )
    if "{" not in path:
        _check_writable(path)


def _check_writable(url: str) -> None:
    """Check that a local folder can be created or written, or that there is a client for a store."""
    scheme, _, rest = url.rpartition("://")
    if scheme not in ("", "file"):
        try:
            fsspec.get_filesystem_class(scheme.partition("::")[0])
        except (ImportError, ValueError) as error:
            raise InvalidValue(f"{url} cannot be opened: {error}") from error
        return
    folder = Path(rest).absolute()
    above = next(path for path in (folder, *folder.parents) if path.exists() or path.is_symlink())
    if not above.is_dir():
        raise InvalidValue(f"{url} cannot be a folder: {above} is a file")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InvalidValue(f"{url} cannot be written: you have no permission for {above}")


def _check_unused(url: str, run: str) -> None:
    """Check that there is no archive of another run of this name, to which the run would append."""
    from storage.archive.reader import ArchiveReader

    if last := ArchiveReader(url, run).last:
        raise InvalidValue(
            f"{url}/{run} holds the archive of another run, to position {last}: choose another name with --run"
        )


def _check_no_versions(url: str) -> None:
    """Check that there are no weights of another run of this name, whose versions would be mixed with the run's."""
    if versions := WeightStore(url).versions():
        raise InvalidValue(
            f"{url} holds weight versions of another run, to version {versions[-1]}: choose another name with --run"
        )


def _check_checkpoint(trainer: TrainerSettings) -> None:
    from actors.megatron.formats.registry import check_beginning

    folder = str(trainer.load)
    if format_of(folder) is None:
        exists = Path(folder).exists()
        problem = (
            "is neither a trainer checkpoint, a Hugging Face nor a torch_dist folder" if exists else "does not exist"
        )
        raise InvalidValue(
            f"--load {folder} {problem}: leave --load out to begin with --hf-checkpoint, or give a folder in "
            "<run>/checkpoints or the folder of a model (to continue an interrupted run, use `slime-events resume`)"
        )
    check_beginning(folder, trainer.ckpt_step, optimizer=trainer.load_optim)


def attempt(flag: str, check: Callable[..., object], *arguments: object) -> None:
    """Call a check, and add the flag to its error."""
    try:
        check(*arguments)
    except ConfigError as error:
        raise type(error)(_one_line(flag, error)) from error
    except SlimeEventsError as error:
        raise InvalidValue(_one_line(flag, error)) from error
    except OSError as error:
        raise InvalidValue(f"{flag}: {error.strerror or error}: {error.filename}") from error


def _one_line(flag: str, error: Exception) -> str:
    message = "; ".join(line.strip() for line in str(error).splitlines() if line.strip(" ^"))
    return message if flag in message else f"{flag}: {message}"
