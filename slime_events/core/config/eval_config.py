"""slime's `--eval-config`: a YAML file of data sets. It is read once, when a run's settings are parsed.

    eval:                            # optional: its keys may also be at the top level
      defaults: {temperature: 0, max_response_len: 16384}
      datasets:                      # a list of sets with names, or a mapping from names to sets
        - {name: aime, path: aime.jsonl, rm_type: deepscaler, n_samples_per_eval_prompt: 16}

slime reads only some keys from `defaults` and silently ignores the rest. Here `defaults` accepts each key of a set
except name and path, and an unknown key is an error.
"""

import functools
import math
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec

from schemas.errors import InvalidValue, UnknownFlag
from slime_events.core.config.evaluation import HINTS, EvalSet, name_problem, sampling_problems
from slime_events.core.config.nearest import did_you_mean
from slime_events.core.config.rules import Limits
from slime_events.core.config.values import Kind, ValueType, fits, of_annotation

Sets = dict[str, dict[str, Any]]
"""Set to key to value: the source of `EvalSettings.eval_sets`."""


def with_eval_config(
    evaluation: Mapping[str, Any], read: Callable[[str], str], set_by_flag: Collection[tuple[str, str]] = ()
) -> dict[str, Any]:
    """Return the values of `[evaluation]` with the sets of the file `eval_config` as checked `eval_sets`.

    Recorded settings have both, and their file is not read again. read: returns the text of a file. set_by_flag:
    (component, field) pairs. Raises InvalidValue and UnknownFlag, which name the file, the set and the key.
    """
    path, sets = evaluation.get("eval_config"), evaluation.get("eval_sets")
    by_flag = [("evaluation", name) in set_by_flag for name in ("eval_config", "eval_sets")]
    if all(by_flag):
        raise InvalidValue(f"--eval-config {path} and --eval-sets both define the data sets: give one.")
    if path is not None and (not sets or by_flag[0]):
        return {**evaluation, "eval_sets": read_eval_config(read(path), f"--eval-config {path}")}
    return {**evaluation, "eval_sets": _checked(sets, "eval_sets")} if sets else dict(evaluation)


def read_eval_config(text: str, source: str) -> Sets:
    """Return the sets of a file, each with the file's defaults. source: names the file in errors."""
    from slime_events.core.config.yaml_text import parse_yaml

    parsed = parse_yaml(text, source)
    root = parsed.get("eval", parsed) if isinstance(parsed, dict) else parsed
    if not isinstance(root, dict) or (root is not parsed and len(parsed) > 1):
        raise InvalidValue(f"{source}: it must be a mapping with datasets and defaults, or have both under eval.")
    for key in root:
        if key not in ("defaults", "datasets"):
            hint = did_you_mean(str(key), ["defaults", "datasets"])
            raise UnknownFlag(f"{source}: {key} is neither defaults nor datasets.{hint}")
    defaults = root.get("defaults") or {}
    if not isinstance(defaults, dict):
        raise InvalidValue(f"{source}: defaults must be a mapping of keys to values.")
    if own := [key for key in ("name", "path") if key in defaults]:
        raise InvalidValue(f"{source}: defaults has {own[0]}: give it in each set.")
    _check_keys(defaults, f"{source}: defaults")
    sets: Sets = {}
    for name, values in _named(root.get("datasets"), source):
        if name in sets:
            raise InvalidValue(f"{source}: two sets have the name {name!r}: names must differ.")
        both = {"metadata_overrides": {**_overrides(defaults, source), **_overrides(values, f"{source}: set {name!r}")}}
        sets[name] = {**defaults, **values, **(both if both["metadata_overrides"] else {})}
    return _checked(sets, source)


def _named(datasets: object, source: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the sets with their names. A name is a key of the set, or the set's key in a mapping."""
    if isinstance(datasets, dict):
        named = [(name, {} if values is None else values) for name, values in datasets.items()]
        datasets = [{"name": name, **values} if isinstance(values, dict) else values for name, values in named]
    if not isinstance(datasets, list) or not datasets:
        raise InvalidValue(f"{source}: datasets must be a list of sets, each with a name and a path.")
    sets = []
    for number, values in enumerate(datasets, 1):
        if not isinstance(values, dict):
            raise InvalidValue(f"{source}: set {number} of datasets is {values!r}: it must be a mapping.")
        if not isinstance(name := values.get("name"), str) or not name:
            raise InvalidValue(f"{source}: set {number} of datasets has no name: give it one, for its results.")
        sets.append((name, {key: value for key, value in values.items() if key != "name"}))
    return sets


def _overrides(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    overrides = values.get("metadata_overrides") or {}
    if not isinstance(overrides, dict):
        raise InvalidValue(f"{where}: metadata_overrides is {overrides!r}: it must be {Kind.JSON.words}.")
    return overrides


def _checked(sets: object, source: str) -> Sets:
    """Return the checked sets without keys that are null; a null label key means no labels."""
    if not isinstance(sets, dict):
        raise InvalidValue(f"{source}: it must be a mapping from names to sets.")
    for name in sets:
        if problem := name_problem(name):
            raise InvalidValue(f"{source}: set {name!r}: {problem}")
    return {name: _checked_set(values, f"{source}: set {name!r}") for name, values in sets.items()}


def _checked_set(keys: object, where: str) -> dict[str, Any]:
    if not isinstance(keys, dict):
        raise InvalidValue(f"{where} is {keys!r}: it must be a mapping.")
    _check_keys(keys, where)
    values = {key: "" if key == "label_key" and value is None else value for key, value in keys.items()}
    values = {key: value for key, value in values.items() if value is not None}
    if not values.get("path"):
        raise InvalidValue(f"{where} has no path: give a JSONL or Parquet file, or an fsspec URL of one.")
    for key, value in values.items():
        expected = _types()[key]
        if isinstance(value, str) and not expected.scalar:
            values[key] = value = [value]  # a single stop string
        if not fits(value, expected) or (isinstance(value, float) and not math.isfinite(value)):
            raise InvalidValue(f"{where}: {key} is {value!r}: it must be {expected}.")
    for problem in (*_out_of_range(values), *sampling_problems(msgspec.convert(values, EvalSet))):
        raise InvalidValue(f"{where}: {problem}")
    return values


def _out_of_range(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        limits: Limits = typing.get_args(HINTS[name])[1].extra["limits"]
        if isinstance(value, int | float) and (problem := limits.problem(name, value)):
            yield problem


def _check_keys(keys: Mapping[Any, object], where: str) -> None:
    for key in keys:
        if key not in _types():
            hint = did_you_mean(str(key), _types()) or f" The keys are name, {', '.join(_types())}."
            raise UnknownFlag(f"{where} has no key {key}.{hint}")


@functools.cache
def _types() -> dict[str, ValueType]:
    return {name: of_annotation(hint) for name, hint in HINTS.items()}
