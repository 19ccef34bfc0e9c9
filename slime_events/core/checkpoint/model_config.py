"""Read `config.json` of a checkpoint in Hugging Face's format, without transformers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def config_parts(checkpoint: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the config, then the config of its text model if it has one. Yield nothing if there is no valid file."""
    try:
        config = json.loads((Path(checkpoint) / "config.json").read_bytes())
    except (OSError, ValueError):
        return
    if isinstance(config, dict):
        yield config
        if isinstance(text := config.get("text_config"), dict):
            yield text
