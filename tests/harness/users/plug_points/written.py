"""--custom-update-weight-post-write-path: looks at the written weights before the engines load them."""

from __future__ import annotations

from pathlib import Path

from called import note


def push(args, version_dir, rollout_engines) -> None:
    files = sorted(path.name for path in Path(version_dir).iterdir())
    note("push", version=Path(version_dir).name, weights=sum(name.endswith(".safetensors") for name in files))
