"""The README as the first page of the site: a hook of mkdocs. Links into docs/ become links between pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]


def on_files(files: Any, config: Any) -> Any:
    """Add `index.md`. What the README links to outside of docs/ is named, not linked: it is not on the site."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    text = re.sub(r"\[([^\]]+)\]\((?:CONTRIBUTING\.md|CHANGELOG\.md|LICENSE|examples)[^)]*\)", r"\1", text)
    files.append(File.generated(config, "index.md", content=text))
    return files
