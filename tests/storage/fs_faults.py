"""Faults under an `ObjectFolder`: a process that dies, an answer that is lost, at the Nth change of the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from storage.object_store import ObjectFolder


class Died(BaseException):
    """The process is gone: nothing catches this."""


def die_at(patch: pytest.MonkeyPatch, number: int, *, stored: bool) -> Callable[[], int]:
    """Let the `number`th write (from 1) kill its process, before or after it is `stored`; gives the writes so far."""
    count = 0

    def dying(write: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: ObjectFolder, name: str, data: bytes) -> Any:
            nonlocal count
            count += 1
            if count == number:
                if stored:
                    write(self, name, data)
                raise Died
            return write(self, name, data)

        return call

    for method in ("create", "replace"):
        patch.setattr(ObjectFolder, method, dying(getattr(ObjectFolder, method)))
    return lambda: count
