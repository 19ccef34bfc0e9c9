"""Views: every field of their structs has its text."""

from __future__ import annotations

import importlib
import pkgutil
from typing import get_type_hints

import msgspec
import pytest

from slime_events.analysis import views

MODULES = [
    importlib.import_module(f"{views.__name__}.{module.name}") for module in pkgutil.iter_modules(views.__path__)
]
STRUCTS = [
    struct
    for module in MODULES
    for struct in vars(module).values()
    if isinstance(struct, type) and issubclass(struct, msgspec.Struct) and struct.__module__ == module.__name__
]


def test_each_module_has_a_view() -> None:
    assert {struct.__module__ for struct in STRUCTS} == {module.__name__ for module in MODULES}


@pytest.mark.parametrize("struct", STRUCTS)
def test_every_field_has_its_text(struct: type[msgspec.Struct]) -> None:
    hints = get_type_hints(struct, include_extras=True)
    texts = {name: [meta.description for meta in getattr(hints[name], "__metadata__", ())] for name in hints}
    assert [name for name in struct.__struct_fields__ if not any(texts[name])] == []
