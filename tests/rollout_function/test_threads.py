"""The thread of a rollout function: no process waits for it, and what it gives or raises comes to who asked."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from serve_apps.rollouts.rollout_function.function import in_daemon


async def test_no_process_waits_for_it() -> None:
    def call() -> tuple[str, bool]:
        return threading.current_thread().name, threading.current_thread().daemon

    assert await in_daemon(call, "own") == ("own", True)


async def test_what_it_raises_is_raised() -> None:
    def call() -> Any:
        raise KeyError("gone")

    with pytest.raises(KeyError):
        await in_daemon(call, "own")
