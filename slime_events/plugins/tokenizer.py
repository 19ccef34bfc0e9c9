"""The checkpoint's tokenizer, loaded without importing torch."""

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
from typing import Any, Protocol

from schemas.errors import InvalidValue

PIECE = 64 * 1024
"""Characters of a long text that are tokenized at once."""
COUNTED = 8
"""A text with more characters per allowed token than this is counted before use. Most texts have four per token."""


class Tokenizer(Protocol):
    """The methods of a transformers tokenizer that are used."""

    def __call__(
        self, text: str, *, add_special_tokens: bool = ..., return_offsets_mapping: bool = ...
    ) -> Mapping[str, Any]:
        """Return `input_ids`, and `offset_mapping` if requested."""

    def __hash__(self) -> int:
        """Return a hash of the identity: caches use a tokenizer as key."""

    def __len__(self) -> int:
        """Return the number of ids."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]:
        """Return the token ids of a text."""

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = ...,
        spaces_between_special_tokens: bool = ...,
        clean_up_tokenization_spaces: bool = ...,
    ) -> str:
        """Return the text of token ids."""

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **kwargs: Any) -> Any:
        """Return a chat as text."""

    def get_added_vocab(self) -> Mapping[str, int]:
        """Return the tokens added to the vocabulary, with their ids."""


def load_tokenizer(folder: str) -> Tokenizer:
    """Return the tokenizer of an HF folder. Raises InvalidValue if the folder holds none."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    with _lightly():
        from transformers import AutoTokenizer
    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        files = sorted(path.name for path in Path(folder).glob("*")) if Path(folder).is_dir() else "no such folder"
        raise InvalidValue(f"--hf-checkpoint {folder} has no tokenizer ({files}): {error}") from error
    return tokenizer


class TokenizerAhead:
    """A tokenizer that a thread is loading: `loaded_tokenizer` returns the tokenizer itself."""

    def __init__(self, load: Callable[[], Tokenizer]) -> None:
        thread = ThreadPoolExecutor(1)
        self._loading = thread.submit(load)
        thread.shutdown(wait=False)

    @property
    def loaded(self) -> Tokenizer:
        """The tokenizer, once it is loaded. Raises the exception that loading raised."""
        return self._loading.result()


TokenizerSource = Tokenizer | TokenizerAhead
"""A tokenizer, loaded or loading. The type checker rejects a call of it: use `loaded_tokenizer`."""


def loaded_tokenizer(source: TokenizerSource) -> Tokenizer:
    """Return the tokenizer. Waits until it is loaded, and raises the exception that loading raised."""
    return source.loaded if isinstance(source, TokenizerAhead) else source


def encode_all(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return `tokenizer.encode(text, add_special_tokens=False)` of each text. For many texts it takes a third of the
    time.

    `encode` configures the Rust tokenizer below it, and passes the text on. So the first text goes through `encode`,
    and the others directly to the Rust tokenizer in one call, unless a model's own class overrides encoding.
    """
    alone = len(texts) if not _is_plain(tokenizer) else 1
    encoded = [tokenizer.encode(text, add_special_tokens=False) for text in texts[:alone]]
    if rest := list(texts[alone:]):
        plain: Any = tokenizer
        encoded += [text.ids for text in plain.backend_tokenizer.encode_batch(rest, add_special_tokens=False)]
    return encoded


def has_far_more(tokenizer: Tokenizer, text: str, most: int) -> bool:
    """Return whether a text has more than twice `most` tokens. Counts in pieces, and stops as soon as the answer is
    known.

    A tokenizer takes some 150 bytes of memory per character: a gigabyte for a text of megabytes that is refused anyway.
    The cuts change a few tokens, hence the factor of two. A text that is not very long is not counted.
    """
    if len(text) <= max(PIECE, COUNTED * most):
        return False
    left = 2 * most
    for begin in range(0, len(text), PIECE):
        left -= len(tokenizer.encode(text[begin : begin + PIECE], add_special_tokens=False))
        if left < 0:
            return True
    return False


def _is_plain(tokenizer: Tokenizer) -> bool:
    """Return whether no class between the tokenizer's own and the one that passes texts on overrides encoding."""
    classes = type(tokenizer).__mro__
    passes_on = next((n for n, cls in enumerate(classes) if "backend_tokenizer" in vars(cls)), None)
    if passes_on is None:
        return False
    return not any("encode" in name for cls in classes[:passes_on] for name in vars(cls)) and not any(
        "encode" in name for name in vars(tokenizer)
    )


class _Lazy(Mapping[str, list[str]]):
    """The mapping that `find` returns, computed at the first access."""

    def __init__(self, find: Callable[[], Mapping[str, list[str]]]) -> None:
        self._find = find

    @cached_property
    def _mapping(self) -> Mapping[str, list[str]]:
        return self._find()

    def __getitem__(self, name: str) -> list[str]:
        return self._mapping[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)


@contextlib.contextmanager
def _lightly() -> Iterator[None]:
    """Make the import of transformers cheap, for the duration of the block.

    transformers imports torch if it finds it: 6 s of start-up and 300 MB that a tokenizer does not need. It also reads
    the file list of every installed package, a third of a second, for versions that no tokenizer needs. In other
    threads torch can still be imported.
    """
    if "torch" in sys.modules or "transformers" in sys.modules:
        yield
        return
    find_spec, distributions = importlib.util.find_spec, importlib.metadata.packages_distributions
    own = threading.get_ident()

    def find_spec_but_torch(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "torch" and threading.get_ident() == own else find_spec(name, package)

    importlib.util.find_spec = find_spec_but_torch
    importlib.metadata.packages_distributions = lambda: _Lazy(distributions)
    try:
        yield
    finally:
        importlib.util.find_spec, importlib.metadata.packages_distributions = find_spec, distributions
