"""Checks of an engine's requests and answers, before either does harm.

SGLang indexes tensors with the ids of a request: an id outside its vocabulary ends the scheduler, and with it every
request of that engine. Its other refusals are returned as the reason of an abort. Its answers go into the log, and
tokens without log-probs could never be read again.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from schemas.errors import EngineError, InvalidValue, PlugPointError
from schemas.rollouts import Sampling, StopReason
from schemas.text import repr_text, valid_text
from serve_apps.engines.engine import FIXED_SAMPLING, Delta, GenerateRequest
from slime_events.core.checkpoint.vocabulary import HIGHEST, check_ids, token_ids, wrong_id
from slime_events.plugins.sample import carried

FEW = 32
"""Number of values that Python checks faster than numpy does."""
MOST_STOPS = 32
"""Maximum number of stop strings, and of stop patterns, in one request: SGLang's limit."""
STOP_REGEX_BYTES = 256
GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")
"""Sampling parameters that restrict the text. A request may have at most one."""
_NUMBERS: dict[str, tuple[float, float, bool]] = {
    "min_p": (0.0, 1.0, False),
    "frequency_penalty": (-2.0, 2.0, False),
    "presence_penalty": (-2.0, 2.0, False),
    "repetition_penalty": (0.0, 2.0, True),
}
"""SGLang's parameter to its minimum, its maximum, and whether the minimum itself is excluded."""
_FLAGS = ("ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "ebnf_full_assistant")

_FIELDS = frozenset(Sampling.__struct_fields__) - {"more"}
_ALLOWED = FIXED_SAMPLING | {"n": 1}


def check_request(request: GenerateRequest, vocabulary: int | None) -> None:
    """Raise InvalidValue for a request that an engine would refuse or crash on."""
    check_ids(request.prompt, vocabulary, "prompt")
    check_ids(request.resume, vocabulary, "response so far")
    check_sampling(request.sampling, vocabulary)
    if not -(2**63) <= request.seed < 2**63:
        raise InvalidValue("sampling_seed: it has more than 63 bits")
    for name in ("token_ids_logprob",):
        if (ids := request.payload.get(name)) is not None:
            token_ids(ids, vocabulary, name)


def check_sampling(sampling: Sampling, vocabulary: int | None) -> None:
    """Raise InvalidValue for parameters that SGLang refuses or crashes on. `vocabulary` is None if unknown."""
    if not 0 <= sampling.max_new_tokens <= HIGHEST:
        raise InvalidValue(f"max_new_tokens: must be from 0 to {HIGHEST}, not {sampling.max_new_tokens}")
    if not 0 <= sampling.min_new_tokens <= sampling.max_new_tokens:
        least, most = sampling.min_new_tokens, sampling.max_new_tokens
        raise InvalidValue(f"min_new_tokens: must be from 0 to max_new_tokens {most}, not {least}")
    _check_number("temperature", sampling.temperature, 0.0, math.inf)
    _check_number("top_p", sampling.top_p, 0.0, 1.0, above=True)
    if sampling.top_k != -1 and not 1 <= sampling.top_k <= HIGHEST:
        raise InvalidValue(f"top_k: must be -1 or at least 1, not {sampling.top_k}")
    if sampling.stop != ():
        _check_texts("stop", list(sampling.stop))
    if sampling.stop_token_ids != ():
        token_ids(list(sampling.stop_token_ids), vocabulary, "stop_token_ids")
    if sampling.more != {}:
        _check_more(sampling.more, vocabulary)


def _check_more(more: dict[str, Any], vocabulary: int | None) -> None:
    for name, (low, high, above) in _NUMBERS.items():
        if more.get(name) is not None:
            _check_number(name, more[name], low, high, above=above)
    for name in _FLAGS:
        if not isinstance(more.get(name), bool | None):
            raise InvalidValue(f"{name}: must be true or false, not {more[name]!r:.40}")
    grammars = [name for name in GRAMMARS if more.get(name)]
    for name in grammars:
        if not isinstance(more[name], str):
            raise InvalidValue(f"{name}: must be a text, not {type(more[name]).__name__}")
        _check_unicode(name, more[name])
    if len(grammars) > 1:
        raise InvalidValue(f"{grammars[1]}: an answer has one grammar: give {grammars[0]} or {grammars[1]}")
    if (patterns := more.get("stop_regex")) is not None:
        _check_patterns([patterns] if isinstance(patterns, str) else patterns)
    if (bias := more.get("logit_bias")) is not None:
        _check_bias(bias, vocabulary)


def _check_number(name: str, value: object, low: float, high: float, *, above: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidValue(f"{name}: must be a number, not {type(value).__name__}")
    if not low <= value <= high or value == math.inf or (above and value == low):
        least, most = (
            f"{'above' if above else 'at least'} {low:g}",
            "" if high == math.inf else f" and at most {high:g}",
        )
        raise InvalidValue(f"{name}: must be {least}{most}, not {value!r:.40}")


def _check_texts(name: str, values: object) -> None:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InvalidValue(f"{name}: must be a text or a list of texts")
    if len(values) > MOST_STOPS:
        raise InvalidValue(f"{name}: at most {MOST_STOPS} are allowed, not {len(values)}")
    if "" in values:
        raise InvalidValue(f"{name}: a stop string cannot be empty")
    for value in values:
        _check_unicode(name, value)


def _check_unicode(name: str, text: str) -> None:
    if valid_text(text) != text:
        raise InvalidValue(f"{name}: the text has an unpaired surrogate, half a character")


def _check_patterns(values: Any) -> None:
    _check_texts("stop_regex", values)
    for value in values:
        if len(value.encode(errors="replace")) > STOP_REGEX_BYTES:
            raise InvalidValue(f"stop_regex: at most {STOP_REGEX_BYTES} bytes are allowed, not {len(value.encode())}")
        try:
            re.compile(value)
        except (re.error, OverflowError, RecursionError) as error:
            raise InvalidValue(f"stop_regex: {error}") from error


def _check_bias(bias: object, vocabulary: int | None) -> None:
    if not isinstance(bias, dict):
        raise InvalidValue("logit_bias: must be an object of token ids and numbers")
    ids = []
    for name, value in bias.items():
        text = str(name)
        if not text.isascii() or not text.isdigit() or len(text) > 19:
            raise InvalidValue(f"logit_bias: {text!r:.40} is not a token id")
        ids.append(int(text))
        _check_number(f"logit_bias.{text}", value, -math.inf, math.inf)
        if not math.isfinite(value):
            raise InvalidValue(f"logit_bias.{text}: must be a finite number")
    token_ids(ids, vocabulary, "logit_bias")


def read_sampling(defaults: Sampling, params: Mapping[str, Any]) -> tuple[Sampling, int | None]:
    """Return the sampling of one turn and its seed: `params` override `defaults`.

    Parameters that are not a field of ours go to SGLang unchanged. Raises PlugPointError for an invalid value.
    """
    own = {name: value for name, value in params.items() if value is not None}
    seed = own.pop("sampling_seed", None)
    more = dict(defaults.more)
    for name in [name for name in own if name not in _FIELDS]:
        value = carried(own.pop(name), f"sampling parameter {name}")
        if name not in _ALLOWED:
            more[name] = value
        elif value != _ALLOWED[name]:
            raise PlugPointError(
                f"sampling parameter {name} can only be {_ALLOWED[name]!r} here, not {repr_text(value)}"
            )
    for name in own.keys() & {"stop", "stop_token_ids"}:
        own[name] = [own[name]] if isinstance(own[name], str | int) else own[name]
    try:
        if "stop_token_ids" in own:
            own["stop_token_ids"] = token_ids(_listed(own["stop_token_ids"]), None, "stop_token_ids").tolist()
        if "stop" in own:
            own["stop"] = _listed(own["stop"])
        sampling = msgspec.convert(msgspec.to_builtins(defaults) | own | {"more": more}, Sampling)
        check_sampling(sampling, None)
        if seed is not None and not -(2**63) <= (seed := _seed(seed)) < 2**63:
            raise InvalidValue(f"sampling_seed: it has {seed.bit_length()} bits, at most 63 are allowed")
    except (msgspec.ValidationError, InvalidValue) as error:
        raise PlugPointError(f"sampling parameters {repr_text(dict(params), 400)}: {error}") from error
    if sampling.max_new_tokens < 1:
        raise PlugPointError(f"max_new_tokens is {sampling.max_new_tokens}: there is no room for a turn")
    return sampling, seed


def _listed(values: object) -> object:
    """Return a set or a tuple as a list."""
    return list(values) if isinstance(values, set | frozenset | tuple) else values


def _seed(value: Any) -> int:
    """Return a whole number, also from a float or a text. Raises InvalidValue."""
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidValue(f"sampling_seed: must be a whole number, not {value!r:.40}") from None


def checked(delta: Delta, vocabulary: int | None, where: str) -> Delta:
    """Return an engine's answer if it can be appended, else raise EngineError. `where` is the response's name.

    The last step of an abort may have tokens without log-probs, for example if a grammar does not compile. They were
    not sampled, so they are dropped.
    """
    count = len(delta.tokens)
    if len(delta.log_probs) != count:
        if delta.finish is StopReason.ABORT:
            return Delta(delta.tokens[:0], delta.log_probs[:0], (), delta.finish, delta.text, delta.meta)
        raise EngineError(f"response {where}: {count} tokens came with {len(delta.log_probs)} log-probs")
    if not count:
        return delta
    if count <= FEW:  # the common case: a step of a response has few tokens
        tokens: list[int] = delta.tokens.tolist()
        in_range = min(tokens) >= 0 and max(tokens) <= (HIGHEST if vocabulary is None else vocabulary - 1)
        if in_range and all(map(math.isfinite, delta.log_probs.tolist())):
            return delta
    if (reason := wrong_id(delta.tokens, vocabulary)) is not None:
        raise EngineError(f"response {where}: the engine sampled an id that cannot be trained on: {reason}")
    if not np.isfinite(delta.log_probs).all():
        raise EngineError(f"response {where}: a log-prob of the engine is not a finite number")
    return delta
