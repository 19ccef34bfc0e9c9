"""The checkpoint's tokenizer, without the weight of torch."""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schemas.errors import InvalidValue


def load_tokenizer(folder: str) -> Any:
    """The tokenizer of an HF folder. Raises InvalidValue where the folder holds none."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    with _without_torch():
        from transformers import AutoTokenizer
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        files = sorted(path.name for path in Path(folder).glob("*")) if Path(folder).is_dir() else "no such folder"
        raise InvalidValue(f"--hf-checkpoint {folder} has no tokenizer ({files}): {error}") from error


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    # transformers imports torch where it finds it: 6 s of start-up and 300 MB that a tokenizer does not need.
    if "torch" in sys.modules or "transformers" in sys.modules:
        yield
        return
    find_spec = importlib.util.find_spec
    importlib.util.find_spec = lambda name, package=None: None if name == "torch" else find_spec(name, package)
    try:
        yield
    finally:
        importlib.util.find_spec = find_spec
