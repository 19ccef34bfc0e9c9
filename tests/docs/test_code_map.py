"""docs/code-map.md shows all of it: every event, every package, every file that packages share."""

from __future__ import annotations

from schemas.event import type_of
from schemas.registry import EVENT_CLASSES
from tests.docs.pages import DOCS, ROOT

SMALL = ("cpu", "cpu_shims", "tables", "commands", "render")
"""Rooms within a room that has a line."""
PAGE = (DOCS / "code-map.md").read_text(encoding="utf-8")


def test_the_flow_has_every_event() -> None:
    flow = PAGE.partition("```")[2].partition("```")[0]
    assert [name for name in map(type_of, EVENT_CLASSES) if name not in flow] == []


def test_every_room_has_its_line() -> None:
    homes = [ROOT / name for name in ("schemas", "storage", "slime_events", "actors", "serve_apps")]
    rooms = [path for home in homes for path in (home, *home.glob("*/"), *(home / "").glob("*/*/"))]
    packages = [path for path in rooms if (path / "__init__.py").exists() and path.name not in SMALL]
    missing = [str(path.relative_to(ROOT)) for path in packages if f"| `{path.relative_to(ROOT)}/` |" not in PAGE]
    assert missing in ([], ["slime_events"])
