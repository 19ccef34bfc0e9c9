"""Token ids that a model has: whole numbers from 0 to the rows of its embedding, whatever its tokenizer makes.

A tokenizer may have more ids (a special token that was added to it) or fewer (rows that pad the embedding). Engine and
trainer index the embedding, so its size is the only limit. Every door that takes ids asks here.
"""

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.errors import InvalidValue
from slime_events.core.model_config import config_parts

HIGHEST = 2**31 - 1
"""Of an id in an event (int32)."""
Tokens = npt.NDArray[np.int32]


def vocabulary_of(checkpoint: str | Path) -> int | None:
    """The rows of a checkpoint's embedding by its config.json; None where that does not say."""
    for part in config_parts(checkpoint):
        size = part.get("vocab_size")
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            return size
    return None


def wrong_id(ids: npt.NDArray[Any], vocabulary: int | None) -> str | None:
    """A sentence about the first id that the model does not have; None if it has all. vocabulary: None is unknown."""
    if not len(ids):
        return None
    limit = HIGHEST + 1 if vocabulary is None else vocabulary
    if ids.dtype == np.int32:  # one pass: what is below 0 is above all others then
        if int(ids.view(np.uint32).max()) < limit:
            return None
    elif int(ids.min()) >= 0 and int(ids.max()) < limit:
        return None
    token = int(ids[(ids < 0) | (ids >= limit)][0])
    return f"token {token} is none of the model's {limit}" if token >= 0 else f"token {token} is below 0"


def check_ids(ids: npt.NDArray[Any], vocabulary: int | None, field: str) -> None:
    """Raise InvalidValue for an id that the model does not have. field: of the ids, for the message."""
    if (reason := wrong_id(ids, vocabulary)) is not None:
        raise InvalidValue(f"{field}: {reason}")


def token_ids(values: Any, vocabulary: int | None, field: str) -> Tokens:
    """The ids of a user's list (or array, or tensor) as int32. Raises InvalidValue for what is no id of the model.

    true, 1.0 and "1" are no ids: numpy would take each of them for 1, and 1.5 too.
    """
    if hasattr(values, "__array__"):
        ids = np.asarray(values)
        if ids.ndim != 1 or (ids.dtype.kind not in "iu" and len(ids)):
            raise InvalidValue(f"{field}: token ids are whole numbers in a row, not {ids.dtype} of {list(ids.shape)}")
    elif not isinstance(values, list | tuple):
        raise InvalidValue(f"{field}: token ids are a list of whole numbers, not {type(values).__name__}")
    else:
        whole = values if all(type(value) is int for value in values) else _whole(values, field)
        try:
            ids = np.array(whole, np.int64)
        except OverflowError:
            token = next(value for value in whole if not -(2**63) <= value < 2**63)
            raise InvalidValue(f"{field}: a token of {token.bit_length()} bits is none of the model's") from None
    check_ids(ids, vocabulary, field)
    return ids.astype(np.int32)


def _whole(values: Sequence[Any], field: str) -> list[int]:
    """Numbers of numpy and torch as ints."""
    ids = []
    for place, value in enumerate(values):
        try:
            if isinstance(value, bool | np.bool_):
                raise TypeError
            ids.append(operator.index(value))
        except (TypeError, ValueError):
            kind = type(value).__name__
            shown = f" {value!r:.40}" if isinstance(value, bool | float | str) else ""
            raise InvalidValue(f"{field}[{place}]: a token id is a whole number, not {kind}{shown}") from None
    return ids
