"""slime's `--eval-config`: a YAML file of data sets, read once, when a run's settings are parsed.

    eval:                            # or its two keys at the top
      defaults: {temperature: 0, max_response_len: 16384}
      datasets:                      # a list of sets with names, or a mapping from names to sets
        - {name: aime, path: aime.jsonl, rm_type: deepscaler, n_samples_per_eval_prompt: 16}

slime takes only some keys from `defaults` and drops the others without a word. Here each key of a set may be there but
its name and path, and an unknown one is an error.
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
from slime_events.core.config.values import Kind, ValueType, fits, of_annotation

Sets = dict[str, dict[str, Any]]
"""Set to key to value: what `EvalSettings.eval_sets` is made from."""


def with_eval_config(
    evaluation: Mapping[str, Any], read: Callable[[str], str], given: Collection[tuple[str, str]] = ()
) -> dict[str, Any]:
    """The values of `[evaluation]` with the sets of the file `eval_config` as `eval_sets`, each name and type checked.

    Settings that were recorded have both, and their file is not read again. read: gives the text of a file. given:
    (component, field) pairs that were set by flag. Raises InvalidValue and UnknownFlag, which name the file, the set
    and the key.
    """
    path, sets = evaluation.get("eval_config"), evaluation.get("eval_sets")
    by_flag = [("evaluation", name) in given for name in ("eval_config", "eval_sets")]
    if all(by_flag):
        raise InvalidValue(f"--eval-config {path} and --eval-sets both say what is evaluated; give one.")
    if path is not None and (not sets or by_flag[0]):
        return {**evaluation, "eval_sets": read_eval_config(read(path), f"--eval-config {path}")}
    return {**evaluation, "eval_sets": _checked(sets, "eval_sets")} if sets else dict(evaluation)


def read_eval_config(text: str, source: str) -> Sets:
    """The sets of a file, each with the file's defaults. source: names the file in errors."""
    from slime_events.core.config.yaml_text import parse_yaml

    parsed = parse_yaml(text, source)
    root = parsed.get("eval", parsed) if isinstance(parsed, dict) else parsed
    if not isinstance(root, dict) or (root is not parsed and len(parsed) > 1):
        raise InvalidValue(f"{source}: it is a mapping with datasets and defaults, or with these two under eval.")
    for key in root:
        if key not in ("defaults", "datasets"):
            hint = did_you_mean(str(key), ["defaults", "datasets"])
            raise UnknownFlag(f"{source}: {key} is neither defaults nor datasets.{hint}")
    defaults = root.get("defaults") or {}
    if not isinstance(defaults, dict):
        raise InvalidValue(f"{source}: defaults is a mapping of keys to values.")
    if own := [key for key in ("name", "path") if key in defaults]:
        raise InvalidValue(f"{source}: defaults has {own[0]}, which is of one set alone.")
    _check_keys(defaults, f"{source}: defaults")
    sets: Sets = {}
    for name, given in _named(root.get("datasets"), source):
        if name in sets:
            raise InvalidValue(f"{source}: two sets are called {name!r}: results are told apart by their names.")
        both = {"metadata_overrides": {**_overrides(defaults, source), **_overrides(given, f"{source}: set {name!r}")}}
        sets[name] = {**defaults, **given, **(both if both["metadata_overrides"] else {})}
    return _checked(sets, source)


def _named(datasets: Any, source: str) -> list[tuple[str, dict[str, Any]]]:
    """Sets with their names, which are a key of each, or the mapping's."""
    if isinstance(datasets, dict):
        named = [(name, {} if one is None else one) for name, one in datasets.items()]
        datasets = [{"name": name, **one} if isinstance(one, dict) else one for name, one in named]
    if not isinstance(datasets, list) or not datasets:
        raise InvalidValue(f"{source}: datasets is a list of sets, each with a name and a path, and not empty.")
    sets = []
    for number, one in enumerate(datasets, 1):
        if not isinstance(one, dict):
            raise InvalidValue(f"{source}: set {number} of datasets is {one!r}, and should be a mapping.")
        if not isinstance(name := one.get("name"), str) or not name:
            raise InvalidValue(f"{source}: set {number} of datasets has no name: a text, which its results go by.")
        sets.append((name, {key: value for key, value in one.items() if key != "name"}))
    return sets


def _overrides(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    overrides = given.get("metadata_overrides") or {}
    if not isinstance(overrides, dict):
        raise InvalidValue(f"{where}: metadata_overrides is {overrides!r}, and should be {Kind.JSON.words}.")
    return overrides


def _checked(sets: Any, source: str) -> Sets:
    """The sets without what is null, which is left out; for labels it means none."""
    if not isinstance(sets, dict):
        raise InvalidValue(f"{source}: it is a mapping from names to sets.")
    for name in sets:
        if problem := name_problem(name):
            raise InvalidValue(f"{source}: set {name!r}: {problem}")
    return {name: _checked_set(one, f"{source}: set {name!r}") for name, one in sets.items()}


def _checked_set(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InvalidValue(f"{where} is {given!r}, and should be a mapping.")
    _check_keys(given, where)
    values = {key: "" if key == "label_key" and value is None else value for key, value in given.items()}
    values = {key: value for key, value in values.items() if value is not None}
    if not values.get("path"):
        raise InvalidValue(f"{where} has no path: a JSONL or Parquet file, or an fsspec URL of one.")
    for key, value in values.items():
        expected = _types()[key]
        if isinstance(value, str) and not expected.scalar:
            values[key] = value = [value]  # a single stop string
        if not fits(value, expected) or (isinstance(value, float) and not math.isfinite(value)):
            raise InvalidValue(f"{where}: {key} is {value!r}, and should be {expected}.")
    for problem in (*_out_of_range(values), *sampling_problems(msgspec.convert(values, EvalSet))):
        raise InvalidValue(f"{where}: {problem}")
    return values


def _out_of_range(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        above, least = (typing.get_args(HINTS[name])[1].extra[limit] for limit in ("above", "least"))
        if above is not None and value <= above:
            yield f"{name} is {value}: it must be above {above}."
        if least is not None and value < least:
            yield f"{name} is {value}: it cannot be below {least}."


def _check_keys(given: Mapping[Any, Any], where: str) -> None:
    for key in given:
        if key not in _types():
            hint = did_you_mean(str(key), _types()) or f" There are name, {', '.join(_types())}."
            raise UnknownFlag(f"{where} has no key {key}.{hint}")


@functools.cache
def _types() -> dict[str, ValueType]:
    return {name: of_annotation(hint) for name, hint in HINTS.items()}
