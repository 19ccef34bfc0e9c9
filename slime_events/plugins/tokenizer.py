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
from typing import Any, Protocol

from schemas.errors import InvalidValue

PIECE = 64 * 1024
"""Characters of a long text that are counted at once."""
COUNTED = 8
"""A text of more characters for each token that it may have is counted first: of most texts a token has four."""


class Tokenizer(Protocol):
    """The methods of a transformers tokenizer that are used."""

    def __call__(
        self, text: str, *, add_special_tokens: bool = ..., return_offsets_mapping: bool = ...
    ) -> Mapping[str, Any]:
        """A text as `input_ids`, and the `offset_mapping` where it is asked for."""

    def __hash__(self) -> int:
        """Tells one object from another: what is made of a tokenizer once is kept by it."""

    def __len__(self) -> int:
        """Ids are below it."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]:
        """Token ids of a text."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of some tokens."""

    def apply_chat_template(self, conversation: Sequence[Mapping[str, Any]], **kwargs: Any) -> Any:
        """A chat as text."""

    def get_added_vocab(self) -> Mapping[str, int]:
        """Tokens that were added to the vocabulary, with their ids."""


def load_tokenizer(folder: str) -> Tokenizer:
    """The tokenizer of an HF folder. Raises InvalidValue where the folder holds none."""
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
    """A handle on a tokenizer that a thread loads. It is none itself: `loaded_tokenizer` gives the tokenizer."""

    def __init__(self, load: Callable[[], Tokenizer]) -> None:
        thread = ThreadPoolExecutor(1)
        self._loading = thread.submit(load)
        thread.shutdown(wait=False)

    @property
    def loaded(self) -> Tokenizer:
        """The tokenizer, once it is loaded. Raises what loading raised."""
        return self._loading.result()


TokenizerSource = Tokenizer | TokenizerAhead
"""What holds a tokenizer until a text has to be read: the type checker lets nobody call one of the two."""


def loaded_tokenizer(source: TokenizerSource) -> Tokenizer:
    """The tokenizer itself; waits for one that is being loaded, and raises what loading raised."""
    return source.loaded if isinstance(source, TokenizerAhead) else source


def encode_all(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """What `tokenizer.encode(text, add_special_tokens=False)` gives for each text, in a third of the time for many.

    That call prepares the tokenizers library's tokenizer below it, and passes one text on. So the first text goes the
    whole way, and the others straight there, in one call, unless a class of the model's own encodes otherwise.
    """
    alone = len(texts) if not _is_plain(tokenizer) else 1
    found = [tokenizer.encode(text, add_special_tokens=False) for text in texts[:alone]]
    if rest := list(texts[alone:]):
        plain: Any = tokenizer
        found += [one.ids for one in plain.backend_tokenizer.encode_batch(rest, add_special_tokens=False)]
    return found


def has_far_more(tokenizer: Tokenizer, text: str, most: int) -> bool:
    """Whether a text has more than twice `most` tokens. It is counted in pieces, and no further than to the answer.

    A tokenizer takes some 150 bytes of memory for each character: of a text of megabytes that is only refused, a
    gigabyte. Where a text is cut its tokens differ a little, hence twice. One that is not very long is not counted.
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
