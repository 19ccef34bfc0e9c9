"""The checkpoint's tokenizer, without the weight of torch."""

import contextlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from schemas.errors import InvalidValue


def load_tokenizer(folder: str) -> Any:
    """The tokenizer of an HF folder. Raises InvalidValue where the folder holds none."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    with _lightly():
        from transformers import AutoTokenizer
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        files = sorted(path.name for path in Path(folder).glob("*")) if Path(folder).is_dir() else "no such folder"
        raise InvalidValue(f"--hf-checkpoint {folder} has no tokenizer ({files}): {error}") from error


class _FoundLater(Mapping[str, list[str]]):
    """What `find` returns, found when it is first looked into."""

    def __init__(self, find: Callable[[], Mapping[str, list[str]]]) -> None:
        self._find = find

    @cached_property
    def _found(self) -> Mapping[str, list[str]]:
        return self._find()

    def __getitem__(self, name: str) -> list[str]:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


@contextlib.contextmanager
def _lightly() -> Iterator[None]:
    """While transformers is imported.

    It imports torch where it finds it: 6 s of start-up and 300 MB that a tokenizer does not need. And it reads the list
    of files of every installed package, a third of a second, to know versions that no tokenizer asks for.
    """
    if "torch" in sys.modules or "transformers" in sys.modules:
        yield
        return
    find_spec, distributions = importlib.util.find_spec, importlib.metadata.packages_distributions
    importlib.util.find_spec = lambda name, package=None: None if name == "torch" else find_spec(name, package)
    importlib.metadata.packages_distributions = lambda: _FoundLater(distributions)
    try:
        yield
    finally:
        importlib.util.find_spec, importlib.metadata.packages_distributions = find_spec, distributions
