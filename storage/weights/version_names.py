"""Names of weight versions' folders and files."""

from __future__ import annotations

import re
import secrets

from storage.weights.files import SINGLE

_VERSION = re.compile(r"v(\d{6,})-")


def version_of(name: str) -> int:
    """Return the version of a folder by its name; -1: of another folder."""
    match = _VERSION.match(name)
    return int(match[1]) if match else -1


def prefix(version: int, digest: str | None = None) -> str:
    """Return the beginning of the names of a version's folders."""
    return f"v{version:06d}-{(digest or '')[:12]}"


def by_this_writer(name: str) -> str:
    """Return a name in an object store that no other writer uses."""
    return f"{name}-{secrets.token_hex(4)}"


def file_names(count: int) -> list[str]:
    """Return the names of a version's files of tensors, as `transformers` names them."""
    if count == 1:
        return [SINGLE]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
