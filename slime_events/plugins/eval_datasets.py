"""slime's `EvalDatasetConfig`: data sets of evaluations as objects, for user code that reads or makes such lists.

A run reads `--eval-config` by itself (`core/config/eval_config.py`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import asdict, fields

from schemas.errors import InvalidValue
from slime_events.core.config.evaluation import EvalSet

_SAMPLING, _KEYS = ("temperature", "top_p", "top_k", "max_response_len"), ("input_key", "label_key", "tool_key")
_FLAGS: dict[str, tuple[str, ...]] = {
    **{name: (f"eval_{name}", f"rollout_{name}") for name in _SAMPLING},
    **{name: (f"eval_{name}", name) for name in _KEYS},
    "min_new_tokens": ("eval_min_new_tokens",),
    "stop": ("rollout_stop",),
    "stop_token_ids": ("rollout_stop_token_ids",),
    "metadata_key": ("metadata_key",),
    "n_samples_per_eval_prompt": ("n_samples_per_eval_prompt",),
}
"""Settings of a set, and the flags that say what it does not; the first one counts."""


class EvalDatasetConfig:
    """One data set: its name, and the settings of `EvalSet` as attributes. Raises TypeError for others."""

    name: str

    def __init__(self, name: str, path: str, **settings: Any) -> None:
        settings["metadata_overrides"] = settings.get("metadata_overrides") or {}
        vars(self).update(asdict(EvalSet(path=path, **settings)), name=name)

    @property
    def cache_key(self) -> tuple[Any, ...]:
        """What two sets that read the same prompts have in common."""
        names = ("name", "path", "input_key", "label_key", "tool_key", "metadata_key")
        return tuple(getattr(self, name) for name in names)

    def inject_metadata(self, sample_metadata: Any) -> dict[str, Any]:
        """The metadata of one question of the set. sample_metadata: its own; anything but a dict counts as none."""
        one = EvalSet(**{name: value for name, value in vars(self).items() if name != "name"})
        return one.metadata(sample_metadata if isinstance(sample_metadata, dict) else {})


def ensure_dataset_list(config: Any) -> list[dict[str, Any]]:
    """Data sets as a list: of one, or of a mapping from names to sets. Raises ValueError for a set without a name,
    TypeError for anything else.
    """
    if isinstance(config, Mapping):
        config = [{"name": name, **(one or {})} for name, one in config.items()]
    if not isinstance(config, list | tuple | None):
        raise TypeError(f"data sets of an evaluation are a list or a mapping, not {config!r}")
    sets = [dict(one or {}) for one in config or ()]
    if nameless := [number for number, one in enumerate(sets, 1) if "name" not in one]:
        raise ValueError(f"set {nameless[0]} of the evaluation has no name")
    return sets


def build_eval_dataset_configs(
    args: Any, raw_config: Iterable[Mapping[str, Any]], defaults: Mapping[str, Any] | None = None
) -> list[EvalDatasetConfig]:
    """The sets, each with the `defaults`, then the flags of `args`, for what it does not say itself.

    Raises InvalidValue for a default that is no setting of a set.
    """
    known = [field.name for field in fields(EvalSet)]
    if unknown := sorted(set(defaults or {}) - set(known)):
        raise InvalidValue(f"defaults has no key {unknown[0]}. There are {', '.join(known)}.")
    flags = _over(*({name: getattr(args, flag, None)} for name, of in _FLAGS.items() for flag in reversed(of)))
    return [EvalDatasetConfig(**_over(flags, defaults or {}, one)) for one in raw_config]


def _over(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later ones go over earlier ones, but for what they leave open."""
    return {name: value for layer in layers for name, value in layer.items() if value is not None}
