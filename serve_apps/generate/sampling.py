"""slime's sampling parameters, as its functions hand them on, and ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from schemas.errors import PlugPointError
from schemas.rollouts import Sampling

_OURS = frozenset(Sampling.__struct_fields__)
_SO_ANYWAY = {"no_stop_trim": True, "spaces_between_special_tokens": False, "n": 1}
_SEED = "sampling_seed"


def sampling_params(sampling: Sampling) -> dict[str, Any]:
    """What a generate function is given, under slime's names."""
    named = msgspec.structs.asdict(sampling)
    return {
        **named,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }


def read_sampling(given: Sampling, params: Mapping[str, Any]) -> Sampling:
    """The sampling of one turn: `params` over what the run gives. Raises PlugPointError for one that is not known."""
    known = {name: _value(name, value) for name, value in params.items() if name in _OURS and value is not None}
    for name, value in params.items():
        if name in _OURS or name == _SEED or value is None:
            continue
        if name not in _SO_ANYWAY:
            raise PlugPointError(f"sampling parameter {name!r} is not known here; known: {', '.join(sorted(_OURS))}")
        if value != _SO_ANYWAY[name]:
            raise PlugPointError(f"sampling parameter {name} can only be {_SO_ANYWAY[name]!r} here, not {value!r}")
    try:
        sampling = msgspec.convert(msgspec.to_builtins(given) | known, Sampling)
    except msgspec.ValidationError as error:
        raise PlugPointError(f"sampling parameters {dict(params)!r}: {error}") from error
    if sampling.max_new_tokens < 1:
        raise PlugPointError(f"max_new_tokens is {sampling.max_new_tokens}: there is no room for a turn")
    return sampling


def read_seed(params: Mapping[str, Any]) -> int | None:
    """A seed of the function's own."""
    seed = params.get(_SEED)
    return None if seed is None else int(seed)


def _value(name: str, value: Any) -> Any:
    if name == "stop":
        return [value] if isinstance(value, str) else list(value)
    return list(value) if name == "stop_token_ids" else value
