"""The place of a run's weight versions, and of the copies that each machine has of them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from schemas.trust import is_doubted
from slime_events.core.config.settings import RunSettings
from slime_events.core.run.run_folder import RunFolder, under_name
from storage.folders.cache import FOLDER, GB

STORES = ("AWS_", "AZURE_STORAGE_", "GOOGLE_APPLICATION_CREDENTIALS", "FSSPEC_")
"""Beginnings of the names of variables by which fsspec's object stores find their keys and their server."""


def weights_place(run: RunSettings, folder: RunFolder) -> str:
    """Return the path or URL of a run's weight versions, for its own roles."""
    return under_name(run.weights_url, run.run) if run.weights_url else str(folder.weights)


def cache_variables(run: RunSettings) -> dict[str, str]:
    """Return the environment variables of `HostCache`, for the run's processes."""
    chosen = {FOLDER: run.cache_dir, GB: run.cache_gb}
    return {name: str(value) for name, value in chosen.items() if value is not None}


def store_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the launcher's variables of object stores, which processes on other machines need to open the same URLs.

    They are secrets: pass them as arguments of calls, which Ray shows nowhere, not as a process's environment.
    """
    return {name: value for name, value in environment.items() if name.startswith(STORES)}


def readable_weights(run: RunSettings, folder: RunFolder | None) -> str | None:
    """Return the path or URL of a run's weight versions, for a command; None if it is unknown or not trusted.

    folder: None for an archive. Raises InvalidValue if the folder's settings cannot be read.
    """
    if folder is not None:
        return folder.weights_url()
    return None if run.weights_url is None or is_doubted(run.weights_url) else under_name(run.weights_url, run.run)
