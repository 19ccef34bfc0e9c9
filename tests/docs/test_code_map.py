"""docs/code-map.md shows all of it: every event, every package, every file that packages share."""

from __future__ import annotations

from schemas.event import type_of
from schemas.registry import EVENT_CLASSES
from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "code-map.md").read_text(encoding="utf-8")


def test_the_flow_has_every_event() -> None:
    flow = PAGE.partition("```")[2].partition("```")[0]
    assert [name for name in map(type_of, EVENT_CLASSES) if name not in flow] == []


def test_every_package_has_its_line() -> None:
    homes = [ROOT / "slime_events", ROOT / "actors", ROOT / "serve_apps"]
    packages = [path.parent for home in homes for path in home.glob("*/__init__.py")]
    assert [path.name for path in packages if f"| `{path.relative_to(ROOT)}/` |" not in PAGE] == []


def test_every_shared_file_is_named() -> None:
    files = [path.name for path in (ROOT / "slime_events").glob("[a-z]*.py")]
    assert [name for name in files if f"`{name}`" not in PAGE] == []
