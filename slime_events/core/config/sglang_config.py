"""slime's `--sglang-config`: a YAML file of models and groups of engines, read once when settings are parsed."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from schemas.errors import InvalidValue, UnknownFlag
from slime_events.core.config.engine_groups import ServedModel, ServerGroup
from slime_events.core.config.installed import InstalledField, sglang_fields
from slime_events.core.config.nearest import did_you_mean
from slime_events.core.config.tables import SGLANG_OURS, SGLANG_RENAMED
from slime_events.core.config.values import fits

FLAG = "--sglang-config"
_KEYS = ("name", *ServedModel.__struct_fields__)
_GROUP_KEYS = ServerGroup.__struct_fields__


def with_sglang_config(
    engine: Mapping[str, Any], read: Callable[[str], str], set_by_flag: Collection[tuple[str, str]] = ()
) -> dict[str, Any]:
    """Return the values of `[engine]` with the models of the file `sglang_config` as checked `sglang_models`.

    Recorded settings have both, and their file is not read again. read: returns the text of a file. set_by_flag:
    (component, field) pairs. Raises InvalidValue and UnknownFlag, which name the file, the model and the key.
    """
    path, models = engine.get("sglang_config"), engine.get("sglang_models")
    by_flag = [("engine", name) in set_by_flag for name in ("sglang_config", "sglang_models")]
    if all(by_flag):
        raise InvalidValue(f"{FLAG} {path} and --sglang-models both define the models: give one.")
    if path is not None and (not models or by_flag[0]):
        return {**engine, "sglang_models": read_sglang_config(read(path), f"{FLAG} {path}")}
    if models:
        return {
            **engine,
            "sglang_models": {name: _model(values, f"sglang_models: {name}") for name, values in models.items()},
        }
    return dict(engine)


def read_sglang_config(text: str, source: str) -> dict[str, dict[str, Any]]:
    """Return the models of a file by name. source: names the file in errors."""
    from slime_events.core.config.yaml_text import parse_yaml

    parsed = parse_yaml(text, source)
    listed = parsed.get("sglang") if isinstance(parsed, dict) else None
    if not isinstance(listed, list) or not listed or len(parsed) > 1:
        raise InvalidValue(f"{source}: it must have the key sglang alone, with a list of models.")
    models: dict[str, dict[str, Any]] = {}
    for number, values in enumerate(listed, 1):
        name = values.get("name") if isinstance(values, dict) else None
        if not isinstance(name, str) or not name:
            raise InvalidValue(f"{source}: model {number} is not a mapping with a name: give it one.")
        if name in models:
            raise InvalidValue(f"{source}: two models have the name {name!r}: names must differ.")
        models[name] = _model(
            {key: value for key, value in values.items() if key != "name"}, f"{source}: model {name!r}"
        )
    return models


def _model(values: object, where: str) -> dict[str, Any]:
    """Return the checked values of a model, without keys that are null."""
    if not isinstance(values, dict):
        raise InvalidValue(f"{where} is {values!r}: it must be a mapping.")
    if "engine_groups" in values:  # the older name
        if "server_groups" in values:
            raise InvalidValue(f"{where} has both server_groups and engine_groups: give server_groups.")
        values = {"server_groups" if key == "engine_groups" else key: value for key, value in values.items()}
    _check_keys(values, _KEYS, where)
    groups = values.get("server_groups") or []
    if not isinstance(groups, list):
        raise InvalidValue(f"{where}: server_groups is {groups!r}: it must be a list of groups.")
    own = {key: value for key, value in values.items() if value is not None}
    own["server_groups"] = [_group(group, f"{where}, group {number}") for number, group in enumerate(groups)]
    try:
        msgspec.convert(own, ServedModel)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"{where} has an invalid value: {error}.") from error
    return own


def _group(values: object, where: str) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise InvalidValue(f"{where} is {values!r}: it must be a mapping with worker_type and num_gpus.")
    _check_keys(values, _GROUP_KEYS, where)
    own = {key: value for key, value in values.items() if value is not None}
    overrides = own.get("overrides", {})
    if not isinstance(overrides, dict):
        raise InvalidValue(f"{where}: overrides is {overrides!r}: it must be a mapping of SGLang's arguments.")
    if overrides:
        own["overrides"] = dict(_override(str(key), value, f"{where}: overrides") for key, value in overrides.items())
    return own


def _override(key: str, value: object, where: str) -> tuple[str, object]:
    """Return SGLang's name of an argument and its value."""
    name = key.replace("-", "_")
    if name == "model_path":
        if not isinstance(value, str):
            raise InvalidValue(f"{where}: model_path is {value!r}: it must be text.")
        return name, value
    argument: InstalledField | None = sglang_fields().get(SGLANG_RENAMED.get(name, name))
    if argument is None:
        raise UnknownFlag(f"{where}: SGLang has no argument {key}.{did_you_mean(name, sglang_fields())}")
    if argument.name in SGLANG_OURS:
        use = "num_gpus_per_engine" if argument.name == "tp_size" else SGLANG_OURS[argument.name]
        raise InvalidValue(f"{where}: {key} is set by the engine itself: use {use}.")
    if argument.type is not None and not fits(value, argument.type):
        raise InvalidValue(f"{where}: {key} is {value!r}: it must be {argument.type}.")
    return argument.name, value


def _check_keys(values: Mapping[Any, object], names: Collection[str], where: str) -> None:
    for key in values:
        if key not in names:
            hint = did_you_mean(str(key), list(names)) or f" The keys are {', '.join(names)}."
            raise UnknownFlag(f"{where} has no key {key}.{hint}")
