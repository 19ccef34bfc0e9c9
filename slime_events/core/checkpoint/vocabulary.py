"""Check token ids against a model: whole numbers from 0 to below the rows of its embedding.

A tokenizer may have more ids (added special tokens) or fewer (rows that pad the embedding). Engine and trainer index
the embedding, so its size is the only limit. All code that accepts ids calls these checks.
"""

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.errors import InvalidValue
from slime_events.core.checkpoint.model_config import config_parts

HIGHEST = 2**31 - 1
"""The highest id that an event can hold (int32)."""
Tokens = npt.NDArray[np.int32]


def vocabulary_of(checkpoint: str | Path) -> int | None:
    """Return the rows of a checkpoint's embedding by its config.json; None if it does not have the number."""
    for part in config_parts(checkpoint):
        size = part.get("vocab_size")
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            return size
    return None


def wrong_id(ids: npt.NDArray[Any], vocabulary: int | None) -> str | None:
    """Return a sentence about the first id that the model does not have; None if all are valid.

    vocabulary: rows of the embedding; None: unknown.
    """
    if not len(ids):
        return None
    limit = HIGHEST + 1 if vocabulary is None else vocabulary
    if ids.dtype == np.int32:  # a single pass: negative ids are the largest as unsigned
        if int(ids.view(np.uint32).max()) < limit:
            return None
    elif int(ids.min()) >= 0 and int(ids.max()) < limit:
        return None
    token = int(ids[(ids < 0) | (ids >= limit)][0])
    return f"token {token} is not in the model's vocabulary of {limit}" if token >= 0 else f"token {token} is below 0"


def check_ids(ids: npt.NDArray[Any], vocabulary: int | None, field: str) -> None:
    """Raise InvalidValue for an id that the model does not have. field: name of the ids in the message."""
    if (reason := wrong_id(ids, vocabulary)) is not None:
        raise InvalidValue(f"{field}: {reason}")


def token_ids(values: object, vocabulary: int | None, field: str) -> Tokens:
    """Return the ids of a user's list, array or tensor as int32. Raises InvalidValue for an invalid id.

    true, 1.0 and "1" are invalid: numpy would read each of them, and 1.5, as 1.
    """
    if hasattr(values, "__array__"):
        ids = np.asarray(values)
        if ids.ndim != 1 or (ids.dtype.kind not in "iu" and len(ids)):
            raise InvalidValue(
                f"{field}: token ids must be a 1-d array of whole numbers, not {ids.dtype} of {list(ids.shape)}"
            )
    elif not isinstance(values, list | tuple):
        raise InvalidValue(f"{field}: token ids must be a list of whole numbers, not {type(values).__name__}")
    else:
        whole = values if all(type(value) is int for value in values) else _whole(values, field)
        try:
            ids = np.array(whole, np.int64)
        except OverflowError:
            token = next(value for value in whole if not -(2**63) <= value < 2**63)
            raise InvalidValue(
                f"{field}: a token of {token.bit_length()} bits is not in the model's vocabulary"
            ) from None
    check_ids(ids, vocabulary, field)
    return ids.astype(np.int32)


def _whole(values: Sequence[object], field: str) -> list[int]:
    """Return numbers of numpy and torch as ints."""
    ids = []
    for index, value in enumerate(values):
        try:
            if isinstance(value, bool | np.bool_):
                raise TypeError
            ids.append(operator.index(value))  # type: ignore[arg-type]
        except (TypeError, ValueError):
            kind = type(value).__name__
            shown = f" {value!r:.40}" if isinstance(value, bool | float | str) else ""
            raise InvalidValue(f"{field}[{index}]: a token id must be a whole number, not {kind}{shown}") from None
    return ids
