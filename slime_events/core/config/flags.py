"""`parse_settings`: from the command line of `slime-events train` to `TrainSettings`.

slime's flags have their names, Megatron's have no prefix, and SGLang's begin with `--sglang-`. The parser reads the
file of `--config` and, for a flag of another package, that package's source.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from schemas.doc import doc
from schemas.errors import ConfigError, ImpossibleCombination, InvalidValue, MissingPart, UnknownFlag
from schemas.trust import name_words
from slime_events.core.config import tables
from slime_events.core.config.combinations import impossible
from slime_events.core.config.custom_config import NULL, read_yaml
from slime_events.core.config.derivations import derive
from slime_events.core.config.eval_config import with_eval_config
from slime_events.core.config.fields import Registered, honoured, settings_fields
from slime_events.core.config.idle import idle
from slime_events.core.config.installed import InstalledField, megatron_fields, sglang_fields
from slime_events.core.config.megatron_roles import role_overrides
from slime_events.core.config.nearest import did_you_mean, nearest_text
from slime_events.core.config.presets import preset_words
from slime_events.core.config.router_flags import NO_ROUTER, ROUTER_INERT, ROUTER_PREFIX, ROUTER_REFUSED
from slime_events.core.config.secrets import kept
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.sglang_config import FLAG, with_sglang_config
from slime_events.core.config.toml import Values, read_toml, settings_from
from slime_events.core.config.values import ValueType, fits, layer_pattern, parse_words


@dataclass(frozen=True, slots=True)
class ParsedTrain:
    """The result of parsing: derived and checked settings, and a sentence for each flag with an unusual effect."""

    settings: TrainSettings
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Draft:
    """The settings while they are parsed."""

    values: Values
    registered: Registered
    notes: list[str] = field(default_factory=list)
    inert: Annotated[dict[str, list[str]], doc("reason to the flags that have no effect for it")] = field(
        default_factory=dict
    )
    set_by_flag: Annotated[
        set[tuple[str, str]], doc("(component, field) pairs set by flag: a repeated list is appended to")
    ] = field(default_factory=set)

    def put(self, component: str, name: str, value: object) -> None:
        table = self.values.setdefault(component, {})
        if isinstance(value, list) and (component, name) in self.set_by_flag:
            value = table[name] + value
        table[name] = value
        self.set_by_flag.add((component, name))

    def put_inner(self, component: str, inner: str, name: str, value: object) -> None:
        self.values.setdefault(component, {}).setdefault(inner, {})[name] = value


@dataclass(frozen=True, slots=True)
class _Occurrence:
    """A flag on the command line."""

    flag: str
    inline: Annotated[str | None, doc("text after `=`")]
    words: Annotated[list[str], doc("words up to the next flag")]

    def take(self, arity: tables.Arity) -> list[str]:
        """Return the words of the flag. Raises InvalidValue if there are too few or too many."""
        words = self.words if self.inline is None else [self.inline, *self.words]
        if arity == "none" and words:
            raise InvalidValue(f"{self.flag} takes no value: remove {' '.join(words)!r}.")
        if arity != "none" and not words:
            raise InvalidValue(f"{self.flag} needs a value (write --flag=value for a value that begins with --).")
        if arity == "one" and len(words) > 1:
            raise InvalidValue(f"{self.flag} takes one value: remove {' '.join(words[1:])!r}.")
        return words

    def value(self, expected: ValueType) -> Any:
        """Return the value of the words. Raises InvalidValue."""
        words = self.take("many" if expected.many else "one")
        return parse_words(self.flag, words, expected)


def parse_settings(
    argv: Sequence[str],
    registered: Registered,
    *,
    read: Callable[[str], str] | None = None,
    complete: bool = True,
) -> ParsedTrain:
    """Return the settings of a command line. Flags override the file of `--config`, in any position.

    Raises UnknownFlag (with the nearest names), InvalidValue, ImpossibleCombination (a sentence for each problem), or
    ConfigError for a flag of slime whose feature does not exist yet. read: returns the text of the `--config` file.
    complete: False takes settings that no run could start with, for a plan.
    Secrets in the values become references to variables of this process (schemas/references.py).
    """
    name_words(argv)
    occurrences = _split(argv)
    files = [occurrence.take("one")[0] for occurrence in occurrences if occurrence.flag == "--config"]
    if len(files) > 1:
        raise InvalidValue(f"--config is given {len(files)} times: give one file.")
    values = read_toml((read or _read)(files[0]), files[0], registered) if files else {}
    draft = _Draft(values, registered)
    for occurrence in occurrences:
        if occurrence.flag not in (*FILES, PRESET):
            _apply(draft, occurrence)
    _apply_preset(draft, [occurrence for occurrence in occurrences if occurrence.flag == PRESET])
    for path in (occurrence.take("one")[0] for occurrence in occurrences if occurrence.flag == ROLES):
        _apply_role(draft, path)
    _apply_custom_config(draft)
    if "evaluation" in draft.values:
        evaluation = with_eval_config(draft.values["evaluation"], _read_sets, draft.set_by_flag)
        draft.values["evaluation"] = evaluation
    if "engine" in draft.values:
        draft.values["engine"] = with_sglang_config(draft.values["engine"], _read_models, draft.set_by_flag)
    settings, derived = derive(settings_from(kept(draft.values)), set_by_flag=draft.set_by_flag)
    if complete and (problems := impossible(settings, registered)):
        raise ImpossibleCombination("\n".join(problems))
    inert = [f"{', '.join(flags)}: no effect; {reason}." for reason, flags in draft.inert.items()]
    notes = (*draft.notes, *inert, *derived, *idle(settings, registered))
    return ParsedTrain(settings, (*notes, *_other_defaults(settings, draft.values)))


def _other_defaults(settings: TrainSettings, values: Values) -> list[str]:
    """Return a sentence about the settings that are not set and whose default differs from slime's."""
    differing = []
    for (component, name), theirs in tables.SLIME_DEFAULTS.items():
        ours = getattr(getattr(settings, component), name)
        if name not in values.get(component, {}) and ours != theirs:
            differing.append(f"{name} {ours} ({theirs})")
    return (
        [f"not set, and with different defaults in slime (in brackets): {', '.join(differing)}."] if differing else []
    )


def _read(path: str, flag: str = "--config") -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(f"{flag} {path} cannot be read: {error}") from error


def _read_sets(path: str) -> str:
    return _read(path, "--eval-config")


def _read_models(path: str) -> str:
    return _read(path, FLAG)


def _split(argv: Sequence[str]) -> list[_Occurrence]:
    """Return the flags, each with the words up to the next flag. A word that begins with one dash is a value."""
    occurrences: list[_Occurrence] = []
    for word in argv:
        if word.startswith("--") and len(word) > 2:
            flag, equals, inline = word.partition("=")
            occurrences.append(_Occurrence(flag, inline if equals else None, []))
        elif occurrences:
            occurrences[-1].words.append(word)
        else:
            raise InvalidValue(f"{word!r} is before the first flag: write settings as --name value.")
    return occurrences


def _apply_preset(draft: _Draft, occurrences: Sequence[_Occurrence]) -> None:
    """Apply the flags of a preset; a value from the command line or a file takes precedence, with a note."""
    names = [occurrence.take("one")[0] for occurrence in occurrences]
    if len(names) > 1:
        raise InvalidValue(f"{PRESET} is given {len(names)} times: give one name.")
    for name in names:
        preset = _Draft({}, draft.registered)
        for occurrence in _split(preset_words(name)):
            _apply(preset, occurrence)
        own = draft.values.setdefault("trainer", {}).setdefault("megatron", {})
        for setting, value in preset.values["trainer"]["megatron"].items():
            if own.setdefault(setting, value) != value:
                draft.notes.append(f"{PRESET} {name} has {setting} {value}, and {own[setting]} is set: that applies.")


def _apply_role(draft: _Draft, path: str) -> None:
    """Apply the file's settings of actor and critic as if they ended the command line."""
    for name, value in role_overrides(path).items():
        flag = "--" + name.replace("_", "-")
        if value is False:
            flag = (
                next((setting.negative for setting in settings_fields() if setting.flag == flag), None)
                or f"--no-{flag[2:]}"
            )
        words = [] if isinstance(value, bool) else value if isinstance(value, list) else [value]
        _apply(draft, _Occurrence(flag, None, [str(word) for word in words]))


def _apply_custom_config(draft: _Draft) -> None:
    """Apply the YAML file of `--custom-config-path`.

    As in slime, a key that is the name of a setting sets it and overrides flags. The contents are recorded: if a TOML
    file has them, the YAML file is not read again.
    """
    table = draft.values.get("rollout", {})
    path = table.get("custom_config_path")
    if path is None or ("custom_config" in table and ("rollout", "custom_config_path") not in draft.set_by_flag):
        return
    added = dict(table.get("custom_config", {}))
    for name, value in read_yaml(path, "--custom-config-path").items():
        owners = [setting for setting in settings_fields() if setting.name == name and setting.component != "run"]
        if value is None:  # null: as if the key were left out
            if not owners or any(setting.default is not None for setting in owners):
                raise InvalidValue(f"--custom-config-path {path}: {name} {NULL}.")
            for setting in owners:
                draft.values.get(setting.component, {}).pop(name, None)
            continue
        for setting in owners:
            expected = draft.registered.type_of(setting)
            if not fits(value, expected):
                raise InvalidValue(f"--custom-config-path {path}: {name} is {value!r}: it must be {expected}.")
            draft.values.setdefault(setting.component, {})[name] = value
            draft.set_by_flag.add((setting.component, name))
        if not owners:
            added[name] = value
    table["custom_config"] = added


OLDER_FLAGS = {
    "--finetune": ("--no-load-optim", "a new run counts its steps from 0 in any case"),
    "--async-buffer-size": ("--max-staleness", "how many versions a rollout may be behind"),
    "--sglang-enable-deterministic-inference": ("--deterministic", "the same tokens for the same seed and weights"),
    "--true-on-policy-mode": (
        "--deterministic",
        "the same tokens for the same seed and weights; the log-probs of engine and trainer differ only by the "
        "rounding of two kernels: logprob_agreement_max of each step has the difference",
    ),
}
"""Flags of Megatron and of older releases of slime: flag to the name here and its meaning."""

ROLES = "--megatron-config-path"
FILES = ("--config", ROLES)
"""Flags that name a file of settings."""
PRESET = "--preset"
"""Names a published model, whose flags it gives."""


def _apply(draft: _Draft, occurrence: _Occurrence) -> None:
    """Apply a flag by the table that has it."""
    flag, meaning = OLDER_FLAGS.get(occurrence.flag, (occurrence.flag, ""))
    if meaning:
        draft.notes.append(f"{occurrence.flag} means {flag}: {meaning}.")
    if len(occurrence.words) == 1 and (flag, occurrence.words[0]) in tables.SETTING_VALUES:
        _apply_as_setting(draft, flag, occurrence.words[0])
    elif flag in honoured():
        _apply_honoured(draft, occurrence, flag)
    elif flag in tables.INERT:
        arity, reason = tables.INERT[flag]
        occurrence.take(arity)
        draft.inert.setdefault(reason, []).append(flag)
    elif flag in tables.ONLY_VALUE:
        only, reason = tables.ONLY_VALUE[flag]
        words = " ".join(occurrence.take("many" if " " in only else "one"))
        if words != only:
            raise ConfigError(f"{flag} {words} is not supported: {reason}.")
    elif flag in tables.NOT_YET:
        raise ConfigError(f"{flag} is not supported yet: {tables.NOT_YET[flag]}.")
    elif flag in ROUTER_INERT:  # some take several words
        draft.inert.setdefault(NO_ROUTER, []).append(flag)
    elif flag.startswith(ROUTER_PREFIX):
        hint = did_you_mean(flag, (*ROUTER_INERT, *ROUTER_REFUSED))
        raise UnknownFlag(f"{flag} is not a flag of SGLang's router.{hint}")
    elif flag.startswith("--sglang-"):
        _apply_sglang(draft, occurrence)
    else:
        _apply_megatron(draft, occurrence)


def _apply_as_setting(draft: _Draft, flag: str, word: str) -> None:
    component, name, value = tables.SETTING_VALUES[flag, word]
    if (component, name) not in draft.set_by_flag:
        draft.put(component, name, value)
        shown = "" if value is True else f" {value}"
        draft.notes.append(f"{flag} {word} means --{name.replace('_', '-')}{shown}, unless that flag is given.")


def _apply_honoured(draft: _Draft, occurrence: _Occurrence, flag: str) -> None:
    """Apply a flag of a setting. flag: its current name."""
    if occurrence.inline is None and not occurrence.words and flag in tables.ALONE:
        occurrence = _Occurrence(flag, tables.ALONE[flag], [])
    for setting in honoured()[flag]:
        if setting.type.switch:
            occurrence.take("none")
            draft.put(setting.component, setting.name, flag == setting.flag)
            continue
        for word in (occurrence.inline, *occurrence.words):
            module = (word or "").replace(":", ".").rpartition(".")[0]
            if needs := tables.NOT_YET_VALUES.get((flag, word or ""), tables.NOT_YET_VALUES.get((flag, module))):
                raise ConfigError(f"{flag} {word} is not supported yet: {needs}.")
        if set(occurrence.take("many")) <= set(tables.USUAL_VALUES.get(flag, ())):
            continue
        draft.put(setting.component, setting.name, occurrence.value(draft.registered.type_of(setting)))


def _apply_sglang(draft: _Draft, occurrence: _Occurrence) -> None:
    name = occurrence.flag.removeprefix("--sglang-").replace("-", "_")
    fields = sglang_fields()
    if name not in fields and name in tables.SGLANG_RENAMED:
        draft.notes.append(
            f"{occurrence.flag} means --sglang-{tables.SGLANG_RENAMED[name].replace('_', '-')} in the installed SGLang."
        )
        name = tables.SGLANG_RENAMED[name]
    installed, value = _installed_field(fields, name, "no_")
    if installed is None:
        names = [f"--sglang-{field.replace('_', '-')}" for field in fields]
        raise UnknownFlag(
            f"{occurrence.flag} is not a setting of the installed SGLang.{did_you_mean(occurrence.flag, names)}"
        )
    if installed.name in tables.SGLANG_OURS:
        raise ConfigError(f"{occurrence.flag} is set by the engine itself: use {tables.SGLANG_OURS[installed.name]}.")
    draft.put_inner("engine", "sglang", installed.name, _installed_value(occurrence, installed, value))


def _apply_megatron(draft: _Draft, occurrence: _Occurrence) -> None:
    if occurrence.flag in tables.CLASSIC:
        name, value = tables.CLASSIC[occurrence.flag]
        if isinstance(value, ValueType):
            value = occurrence.value(value)
        else:
            occurrence.take("none")
        draft.put_inner("trainer", "megatron", name, value)
        return
    name = occurrence.flag.removeprefix("--").replace("-", "_")
    installed, value = _installed_field(_megatron_fields(), name, "no_", "disable_")
    if installed is None:
        raise UnknownFlag(f"Unknown flag {occurrence.flag}.{nearest_text(occurrence.flag, known_flags())}")
    draft.put_inner("trainer", "megatron", installed.name, _installed_value(occurrence, installed, value))


def _installed_field(
    fields: Mapping[str, InstalledField], name: str, *negations: str
) -> tuple[InstalledField | None, bool]:
    """Return the field that a name sets, and the value if it is a switch: false if the name has a negation."""
    if name in fields:
        return fields[name], True
    for negation in negations:
        positive = fields.get(name.removeprefix(negation))
        if name.startswith(negation) and positive and positive.type and positive.type.switch:
            return positive, False
    return None, True


def _installed_value(occurrence: _Occurrence, installed: InstalledField, switch_value: bool) -> Any:
    if installed.type is None:
        raise InvalidValue(
            f"{occurrence.flag} cannot be given on a command line: {installed.owner}.{installed.name} is a "
            f"{installed.annotation}."
        )
    if installed.type.switch:
        occurrence.take("none")
        return switch_value
    if installed.name == "moe_layer_freq" and (layers := layer_pattern(occurrence.inline or "".join(occurrence.words))):
        return layers
    return occurrence.value(installed.type)


def known_flags() -> tuple[str, ...]:
    """Return every flag of `train` except SGLang's, which are many and have a prefix."""
    own = (*FILES, PRESET, *OLDER_FLAGS, *honoured(), *tables.INERT, *tables.ONLY_VALUE, *tables.NOT_YET)
    own = (*own, *tables.CLASSIC)
    return (*own, *(f"--{name.replace('_', '-')}" for name in _megatron_fields()))


def _megatron_fields() -> Mapping[str, InstalledField]:
    """Return megatron-core's fields; empty if it is not installed."""
    try:
        return megatron_fields()
    except MissingPart:
        return {}
