"""`read_sample`: a user function's sample with the types that an event needs."""

import copy
import operator
from typing import Any, SupportsIndex, cast

import numpy as np

from schemas.errors import PlugPointError
from schemas.text import repr_text, valid_text
from slime_events.plugins.sample import Sample


def read_sample(sample: Sample) -> Sample:
    """Return a copy with a valid text as response, a number as its length, and numbers as mask and tokens.

    Numbers of numpy and torch and subclasses of our types are converted, unpaired surrogates replaced. Raises
    PlugPointError that names the field for anything else.
    """
    read = copy.copy(sample)
    read.response = _text("response", sample.response)
    read.response_length = _length(sample.response_length)
    if not isinstance(sample.status, str):
        raise _wrong("status", sample.status, "a Sample.Status, or its text")
    _check_numbers("tokens", sample.tokens, "iu", "token ids")
    if sample.loss_mask is not None:
        _check_numbers("loss_mask", sample.loss_mask, "iufb", "0 or 1 for each token of the response")
    if sample.rollout_log_probs is not None:
        _check_log_probs(sample.rollout_log_probs)
    read.remove_sample = bool(sample.remove_sample)
    for counts in ("spec_info", "prefix_cache_info"):
        if not callable(getattr(getattr(sample, counts), "to_dict", None)):
            raise _wrong(counts, getattr(sample, counts), "an object like the sample's first one")
    return read


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(field, value, "a text")
    return valid_text(str.__str__(value))


def _length(value: object) -> int:
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise _wrong("response_length", value, "a number of tokens")
    return operator.index(cast(SupportsIndex, value))


def _check_numbers(field: str, values: object, kinds: str, expected: str) -> None:
    """Raise PlugPointError unless `values` is empty, or a list of numbers of these `kinds` (numpy's letters)."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, OverflowError):  # lists of different lengths, numbers of any size
        array = np.asarray(None)
    if array.ndim != 1 or (array.size and array.dtype.kind not in kinds):
        raise _wrong(field, values, f"a list of {expected}")


def _check_log_probs(values: Any) -> None:
    """Raise PlugPointError unless `values` has a number for each token, or None for a token without."""
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O" and array.ndim == 1:
            array = np.asarray([0.0 if value is None else value for value in values])
    except (TypeError, ValueError, OverflowError):
        array = np.asarray(None)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iuf"):
        raise _wrong("rollout_log_probs", values, "a list of numbers, or None for a token without")


def _wrong(field: str, value: object, expected: str) -> PlugPointError:
    actual = type(value).__name__ if value is None else f"{type(value).__name__} {repr_text(value)}"
    return PlugPointError(f"sample.{field} is {actual}, not {expected}")
