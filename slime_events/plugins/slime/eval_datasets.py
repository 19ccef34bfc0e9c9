"""slime's `EvalDatasetConfig`: data sets of evaluations as objects, for user code that reads or builds such lists.

A run reads `--eval-config` itself (`core/config/eval_config.py`).
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
"""Setting of a data set to the flags that supply its default, the most specific flag first."""


class EvalDatasetConfig:
    """A data set: its name, and the settings of `EvalSet` as attributes. Raises TypeError for an unknown setting."""

    name: str

    def __init__(self, name: str, path: str, **settings: Any) -> None:
        settings["metadata_overrides"] = settings.get("metadata_overrides") or {}
        vars(self).update(asdict(EvalSet(path=path, **settings)), name=name)

    @property
    def cache_key(self) -> tuple[object, ...]:
        """Key that is equal for two data sets with the same prompts."""
        names = ("name", "path", "input_key", "label_key", "tool_key", "metadata_key")
        return tuple(getattr(self, name) for name in names)

    def inject_metadata(self, sample_metadata: object) -> dict[str, Any]:
        """Return the metadata of one question. `sample_metadata` is its own metadata, ignored if it is not a dict."""
        dataset = EvalSet(**{name: value for name, value in vars(self).items() if name != "name"})
        return dataset.metadata(sample_metadata if isinstance(sample_metadata, dict) else {})


def ensure_dataset_list(config: object) -> list[dict[str, Any]]:
    """Return data sets as a list. Accepts a list, or a mapping from names to data sets.

    Raises ValueError for a data set without a name, TypeError for anything else.
    """
    if isinstance(config, Mapping):
        config = [{"name": name, **(dataset or {})} for name, dataset in config.items()]
    if not isinstance(config, list | tuple | None):
        raise TypeError(f"data sets of an evaluation must be a list or a mapping, not {config!r}")
    sets = [dict(dataset or {}) for dataset in config or ()]
    if nameless := [number for number, dataset in enumerate(sets, 1) if "name" not in dataset]:
        raise ValueError(f"set {nameless[0]} of the evaluation has no name")
    return sets


def build_eval_dataset_configs(
    args: object, raw_config: Iterable[Mapping[str, Any]], defaults: Mapping[str, Any] | None = None
) -> list[EvalDatasetConfig]:
    """Return the data sets. A setting that a data set leaves open comes from `defaults`, or else from the flags in
    `args`.

    Raises InvalidValue for a default that is not a setting of a data set.
    """
    names = [field.name for field in fields(EvalSet)]
    if unknown := sorted(set(defaults or {}) - set(names)):
        raise InvalidValue(f"defaults has no key {unknown[0]}. There are {', '.join(names)}.")
    flags = _over(*({name: getattr(args, flag, None)} for name, of in _FLAGS.items() for flag in reversed(of)))
    return [EvalDatasetConfig(**_over(flags, defaults or {}, dataset)) for dataset in raw_config]


def _over(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the layers: later ones override earlier ones, except with None."""
    return {name: value for layer in layers for name, value in layer.items() if value is not None}
