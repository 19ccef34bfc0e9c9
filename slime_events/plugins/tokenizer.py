"""The checkpoint's tokenizer, without the weight of torch."""

import contextlib
import importlib.metadata
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from importlib.machinery import ModuleSpec
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


class TokenizerAhead:
    """A tokenizer that a thread loads: whoever asks something of it waits, and has the error that loading raised."""

    def __init__(self, load: Callable[[], Any]) -> None:
        thread = ThreadPoolExecutor(1)
        self._loading = thread.submit(load)
        thread.shutdown(wait=False)

    @property
    def loaded(self) -> Any:
        """The tokenizer itself."""
        return self._loading.result()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loaded, name)

    def __len__(self) -> int:
        return len(self.loaded)


def encode_all(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """What `tokenizer.encode(text, add_special_tokens=False)` gives for each text, in a third of the time for many.

    That call prepares the tokenizers library's tokenizer below it, and passes one text on. So the first text goes the
    whole way, and the others straight there, in one call, unless a class of the model's own encodes otherwise.
    """
    if isinstance(tokenizer, TokenizerAhead):
        tokenizer = tokenizer.loaded
    alone = len(texts) if not _is_plain(tokenizer) else 1
    found = [tokenizer.encode(text, add_special_tokens=False) for text in texts[:alone]]
    if rest := list(texts[alone:]):
        found += [one.ids for one in tokenizer.backend_tokenizer.encode_batch(rest, add_special_tokens=False)]
    return found


def _is_plain(tokenizer: Any) -> bool:
    """Whether nothing between its class and the one that passes texts on has anything to do with encoding."""
    classes = type(tokenizer).__mro__
    passes_on = next((n for n, one in enumerate(classes) if "backend_tokenizer" in vars(one)), None)
    if passes_on is None:
        return False
    return not any("encode" in name for one in classes[:passes_on] for name in vars(one)) and not any(
        "encode" in name for name in vars(tokenizer)
    )


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
    of files of every installed package, a third of a second, to know versions that no tokenizer asks for. Other threads
    find torch.
    """
    if "torch" in sys.modules or "transformers" in sys.modules:
        yield
        return
    find_spec, distributions = importlib.util.find_spec, importlib.metadata.packages_distributions
    own = threading.get_ident()

    def found(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "torch" and threading.get_ident() == own else find_spec(name, package)

    importlib.util.find_spec = found
    importlib.metadata.packages_distributions = lambda: _FoundLater(distributions)
    try:
        yield
    finally:
        importlib.util.find_spec, importlib.metadata.packages_distributions = find_spec, distributions
