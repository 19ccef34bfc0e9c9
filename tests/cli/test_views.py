"""Views: every field of their structs is documented, and a JSON Schema has them."""

from __future__ import annotations

import msgspec
import pytest

from slime_events.analysis.views.group import GroupView
from slime_events.analysis.views.sample import SampleView
from slime_events.analysis.views.step import StepView
from slime_events.analysis.views.version import VersionView

VIEWS = (StepView, VersionView, GroupView, SampleView)


@pytest.mark.parametrize("view", VIEWS)
def test_every_field_has_its_text(view: type[msgspec.Struct]) -> None:
    _, structs = msgspec.json.schema_components([view])
    fields = {f"{name}.{field}": schema for name, struct in structs.items()
              for field, schema in struct.get("properties", {}).items()}  # fmt: skip
    assert f"{view.__name__}.{view.__struct_fields__[0]}" in fields
    bare = {place for place, schema in fields.items() if not schema.get("description")}
    assert {place for place in bare if not place.endswith(".type")} == set()
