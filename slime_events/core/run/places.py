"""The place of a run's weight versions, and of the copies that each machine has of them."""

from __future__ import annotations

from schemas.trust import is_doubted
from slime_events.core.config.settings import RunSettings
from slime_events.core.run.run_folder import RunFolder, under_name
from storage.folders.cache import FOLDER, GB


def weights_place(run: RunSettings, folder: RunFolder) -> str:
    """Return the path or URL of a run's weight versions, for its own roles."""
    return under_name(run.weights_url, run.run) if run.weights_url else str(folder.weights)


def cache_variables(run: RunSettings) -> dict[str, str]:
    """Return the environment variables of `HostCache`, for the run's processes."""
    chosen = {FOLDER: run.cache_dir, GB: run.cache_gb}
    return {name: str(value) for name, value in chosen.items() if value is not None}


def readable_weights(run: RunSettings, folder: RunFolder | None) -> str | None:
    """Return the path or URL of a run's weight versions, for a command; None if it is unknown or not trusted.

    folder: None for an archive. Raises InvalidValue if the folder's settings cannot be read.
    """
    if folder is not None:
        return folder.weights_url()
    return None if run.weights_url is None or is_doubted(run.weights_url) else under_name(run.weights_url, run.run)
