"""The installed packages' settings are read whatever else this process does meanwhile."""

from __future__ import annotations

import ast
import contextlib
import gc
from collections.abc import Iterator
from typing import Any

from slime_events.core.config.installed import megatron_fields


@contextlib.contextmanager
def parsing_while_collecting() -> Iterator[None]:
    """While inside, each collection of garbage parses too, as a destructor does that prints a traceback."""

    def parse(phase: str, _: dict[str, Any]) -> None:
        if phase == "stop":
            ast.parse("x = 1")

    before = gc.get_threshold()
    gc.callbacks.append(parse)
    gc.set_threshold(50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(parse)


def test_fields_are_read_while_a_destructor_parses() -> None:
    with parsing_while_collecting():
        fields = megatron_fields.__wrapped__()
    assert len(fields) > 200
