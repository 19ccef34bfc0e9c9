"""`config.json` of a checkpoint in Hugging Face's format, read without transformers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def config_parts(checkpoint: str | Path) -> Iterator[dict[str, Any]]:
    """The config, then that of its text model, where it has one of its own. Nothing where there is none to be read."""
    try:
        config = json.loads((Path(checkpoint) / "config.json").read_bytes())
    except (OSError, ValueError):
        return
    if isinstance(config, dict):
        yield config
        if isinstance(text := config.get("text_config"), dict):
            yield text
