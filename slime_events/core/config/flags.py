"""`parse_settings`: the words after `slime-events train` become `TrainSettings`.

slime's flags have their names, Megatron's no prefix, SGLang's `--sglang-`. It reads the file of `--config` and, for a
flag of another package, that package's source.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.errors import ConfigError, ImpossibleCombination, InvalidValue, MissingPart, UnknownFlag
from schemas.trust import name_words
from slime_events.core.config import tables
from slime_events.core.config.combinations import impossible
from slime_events.core.config.custom_config import NULL, read_yaml
from slime_events.core.config.derivations import derive
from slime_events.core.config.eval_config import with_eval_config
from slime_events.core.config.fields import Registered, honoured, settings_fields
from slime_events.core.config.installed import InstalledField, megatron_fields, sglang_fields
from slime_events.core.config.megatron_roles import role_overrides
from slime_events.core.config.nearest import did_you_mean, nearest_text
from slime_events.core.config.secrets import kept
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import Values, read_toml, settings_from
from slime_events.core.config.values import ValueType, fits, layer_pattern, parse_words


@dataclass(frozen=True, slots=True)
class ParsedTrain:
    """Derived and checked settings, and a sentence for each flag that has not the usual effect."""

    settings: TrainSettings
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Draft:
    """The settings so far. given: fields set by flags, so that a repeated list is appended to."""

    values: Values
    registered: Registered
    notes: list[str] = field(default_factory=list)
    inert: dict[str, list[str]] = field(default_factory=dict)
    given: set[tuple[str, str]] = field(default_factory=set)

    def put(self, component: str, name: str, value: Any) -> None:
        table = self.values.setdefault(component, {})
        if isinstance(value, list) and (component, name) in self.given:
            value = table[name] + value
        table[name] = value
        self.given.add((component, name))

    def put_inner(self, component: str, inner: str, name: str, value: Any) -> None:
        self.values.setdefault(component, {}).setdefault(inner, {})[name] = value


@dataclass(frozen=True, slots=True)
class _Occurrence:
    """One flag on the command line. inline: the text after `=`. words: those that follow it."""

    flag: str
    inline: str | None
    words: list[str]

    def take(self, arity: tables.Arity) -> list[str]:
        """The words of the flag; InvalidValue where there are too few or too many."""
        words = self.words if self.inline is None else [self.inline, *self.words]
        if arity == "none" and words:
            raise InvalidValue(f"{self.flag} takes no value, and {' '.join(words)!r} follows it.")
        if arity != "none" and not words:
            raise InvalidValue(f"{self.flag} needs a value (write --flag=value for one that begins with --).")
        if arity == "one" and len(words) > 1:
            raise InvalidValue(f"{self.flag} takes one value; what is {' '.join(words[1:])!r} for?")
        return words

    def value(self, expected: ValueType) -> Any:
        """The typed value of the words."""
        words = self.take("many" if expected.many else "one")
        return parse_words(self.flag, words, expected)


def parse_settings(
    argv: Sequence[str], registered: Registered, *, read: Callable[[str], str] | None = None
) -> ParsedTrain:
    """Settings from flags, on top of the file of `--config` where one is given; where flags stand makes no difference.

    Raises UnknownFlag (with the nearest names), InvalidValue, ImpossibleCombination (a sentence for each problem), or
    ConfigError for a flag of slime's whose feature does not exist yet. read: gives the text of the `--config` file.
    Secrets in the values become references, and variables of this process (schemas/references.py).
    """
    name_words(argv)
    occurrences = _split(argv)
    files = [one.take("one")[0] for one in occurrences if one.flag == "--config"]
    if len(files) > 1:
        raise InvalidValue(f"--config is given {len(files)} times; one run has one file.")
    values = read_toml((read or _read)(files[0]), files[0], registered) if files else {}
    draft = _Draft(values, registered)
    for occurrence in occurrences:
        if occurrence.flag not in FILES:
            _apply(draft, occurrence)
    for path in (one.take("one")[0] for one in occurrences if one.flag == ROLES):
        _apply_role(draft, path)
    _apply_custom_config(draft)
    if "evaluation" in draft.values:
        evaluation = with_eval_config(draft.values["evaluation"], _read_sets, draft.given)
        draft.values["evaluation"] = evaluation
    settings, derived = derive(settings_from(kept(draft.values)), given=draft.given)
    if problems := [*impossible(settings), *registered.impossible(settings)]:
        raise ImpossibleCombination("\n".join(problems))
    inert = [f"{', '.join(flags)}: no effect; {reason}." for reason, flags in draft.inert.items()]
    said = (*draft.notes, *inert, *derived, *registered.idle(settings))
    return ParsedTrain(settings, (*said, *_other_defaults(settings, draft.values)))


def _other_defaults(settings: TrainSettings, values: Values) -> list[str]:
    """A sentence about the settings that nobody gave and that slime would have taken other values for."""
    said = []
    for (component, name), theirs in tables.SLIME_DEFAULTS.items():
        ours = getattr(getattr(settings, component), name)
        if name not in values.get(component, {}) and ours != theirs:
            said.append(f"{name} {ours} ({theirs})")
    return [f"not given, and otherwise in slime (its default in brackets): {', '.join(said)}."] if said else []


def _read(path: str, flag: str = "--config") -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(f"{flag} {path} cannot be read: {error}") from error


def _read_sets(path: str) -> str:
    return _read(path, "--eval-config")


def _split(argv: Sequence[str]) -> list[_Occurrence]:
    """Flags, each with the words up to the next flag. A word with one dash is a value."""
    occurrences: list[_Occurrence] = []
    for word in argv:
        if word.startswith("--") and len(word) > 2:
            flag, equals, inline = word.partition("=")
            occurrences.append(_Occurrence(flag, inline if equals else None, []))
        elif occurrences:
            occurrences[-1].words.append(word)
        else:
            raise InvalidValue(f"{word!r} stands before the first flag; every setting is --name value.")
    return occurrences


def _apply_role(draft: _Draft, path: str) -> None:
    """What the file has for actor and critic, as if it stood at the end of the command line."""
    for name, value in role_overrides(path).items():
        flag = "--" + name.replace("_", "-")
        if value is False:
            flag = next((one.negative for one in settings_fields() if one.flag == flag), None) or f"--no-{flag[2:]}"
        words = [] if isinstance(value, bool) else value if isinstance(value, list) else [value]
        _apply(draft, _Occurrence(flag, None, [str(word) for word in words]))


def _apply_custom_config(draft: _Draft) -> None:
    """As in slime a key of the file that is the name of a setting sets it, and wins. The contents are recorded: a TOML
    file that has them is not asked for the YAML file again.
    """
    table = draft.values.get("rollout", {})
    path = table.get("custom_config_path")
    if path is None or ("custom_config" in table and ("rollout", "custom_config_path") not in draft.given):
        return
    added = dict(table.get("custom_config", {}))
    for name, value in read_yaml(path, "--custom-config-path").items():
        owners = [one for one in settings_fields() if one.name == name and one.component != "run"]
        if value is None:  # as where it is left out
            if not owners or any(known.default is not None for known in owners):
                raise InvalidValue(f"--custom-config-path {path}: {name} {NULL}.")
            for known in owners:
                draft.values.get(known.component, {}).pop(name, None)
            continue
        for known in owners:
            expected = draft.registered.type_of(known)
            if not fits(value, expected):
                raise InvalidValue(f"--custom-config-path {path}: {name} is {value!r}, and should be {expected}.")
            draft.values.setdefault(known.component, {})[name] = value
            draft.given.add((known.component, name))
        if not owners:
            added[name] = value
    table["custom_config"] = added


OLDER_FLAGS = {
    "--finetune": ("--no-load-optim", "a new run counts its steps from 0 in any case"),
    "--async-buffer-size": ("--max-staleness", "how many versions a rollout may be behind"),
    "--sglang-enable-deterministic-inference": ("--deterministic", "the same tokens for the same seed and weights"),
    "--true-on-policy-mode": (
        "--deterministic",
        "the same tokens for the same seed and weights; the engine's log-probs are the trainer's up to the rounding of "
        "two kernels, and logprob_agreement_max of each step says how much that is",
    ),
}
"""Flags of Megatron and of older releases of slime that have another name here, and what that means."""

ROLES = "--megatron-config-path"
FILES = ("--config", ROLES)
"""Flags that name a file of settings."""


def _apply(draft: _Draft, one: _Occurrence) -> None:
    """Apply the flag by the table that has it."""
    flag, meaning = OLDER_FLAGS.get(one.flag, (one.flag, ""))
    if meaning:
        draft.notes.append(f"{one.flag} is {flag}: {meaning}.")
    if len(one.words) == 1 and (flag, one.words[0]) in tables.SETTING_VALUES:
        _apply_as_setting(draft, flag, one.words[0])
    elif flag in honoured():
        _apply_honoured(draft, one, flag)
    elif flag in tables.INERT:
        arity, reason = tables.INERT[flag]
        one.take(arity)
        draft.inert.setdefault(reason, []).append(flag)
    elif flag in tables.ONLY_VALUE:
        (word,) = one.take("one")
        only, reason = tables.ONLY_VALUE[flag]
        if word != only:
            raise ConfigError(f"{flag} {word} is not supported: {reason}.")
    elif flag in tables.NOT_YET:
        raise ConfigError(f"{flag} is not supported yet: {tables.NOT_YET[flag]}.")
    elif family := next((prefix for prefix in tables.INERT_PREFIXES if flag.startswith(prefix)), None):
        draft.inert.setdefault(tables.INERT_PREFIXES[family], []).append(flag)
    elif flag.startswith("--sglang-"):
        _apply_sglang(draft, one)
    else:
        _apply_megatron(draft, one)


def _apply_as_setting(draft: _Draft, flag: str, word: str) -> None:
    component, name, value = tables.SETTING_VALUES[flag, word]
    if (component, name) not in draft.given:
        draft.put(component, name, value)
        shown = "" if value is True else f" {value}"
        draft.notes.append(f"{flag} {word} is --{name.replace('_', '-')}{shown}, unless that is given.")


def _apply_honoured(draft: _Draft, one: _Occurrence, flag: str) -> None:
    """flag: its name today."""
    if one.inline is None and not one.words and flag in tables.ALONE:
        one = _Occurrence(flag, tables.ALONE[flag], [])
    for known in honoured()[flag]:
        if known.type.switch:
            one.take("none")
            draft.put(known.component, known.name, flag == known.flag)
            continue
        for word in (one.inline, *one.words):
            module = (word or "").replace(":", ".").rpartition(".")[0]
            if needs := tables.NOT_YET_VALUES.get((flag, word or ""), tables.NOT_YET_VALUES.get((flag, module))):
                raise ConfigError(f"{flag} {word} is not supported yet: {needs}.")
        if set(one.take("many")) <= set(tables.USUAL_VALUES.get(flag, ())):
            continue
        draft.put(known.component, known.name, one.value(draft.registered.type_of(known)))


def _apply_sglang(draft: _Draft, one: _Occurrence) -> None:
    asked = one.flag.removeprefix("--sglang-").replace("-", "_")
    fields = sglang_fields()
    if asked not in fields and asked in tables.SGLANG_RENAMED:
        draft.notes.append(
            f"{one.flag} is --sglang-{tables.SGLANG_RENAMED[asked].replace('_', '-')} in the installed SGLang."
        )
        asked = tables.SGLANG_RENAMED[asked]
    known, value = _installed_field(fields, asked, "no_")
    if known is None:
        names = [f"--sglang-{name.replace('_', '-')}" for name in fields]
        raise UnknownFlag(f"{one.flag} is no setting of the installed SGLang.{did_you_mean(one.flag, names)}")
    if known.name in tables.SGLANG_OURS:
        raise ConfigError(f"{one.flag} is set by the engine itself; use {tables.SGLANG_OURS[known.name]}.")
    draft.put_inner("engine", "sglang", known.name, _installed_value(one, known, value))


def _apply_megatron(draft: _Draft, one: _Occurrence) -> None:
    if one.flag in tables.CLASSIC:
        name, value = tables.CLASSIC[one.flag]
        if isinstance(value, ValueType):
            value = one.value(value)
        else:
            one.take("none")
        draft.put_inner("trainer", "megatron", name, value)
        return
    asked = one.flag.removeprefix("--").replace("-", "_")
    known, value = _installed_field(_megatron_fields(), asked, "no_", "disable_")
    if known is None:
        raise UnknownFlag(f"Unknown flag {one.flag}.{nearest_text(one.flag, known_flags())}")
    draft.put_inner("trainer", "megatron", known.name, _installed_value(one, known, value))


def _installed_field(
    fields: Mapping[str, InstalledField], name: str, *negations: str
) -> tuple[InstalledField | None, bool]:
    """The field that a name sets, and the value where it is a switch: false for a negation before its name."""
    if name in fields:
        return fields[name], True
    for negation in negations:
        positive = fields.get(name.removeprefix(negation))
        if name.startswith(negation) and positive and positive.type and positive.type.switch:
            return positive, False
    return None, True


def _installed_value(one: _Occurrence, known: InstalledField, switch_value: bool) -> Any:
    if known.type is None:
        raise InvalidValue(
            f"{one.flag} cannot be given on a command line: {known.owner}.{known.name} is a {known.annotation}."
        )
    if known.type.switch:
        one.take("none")
        return switch_value
    if known.name == "moe_layer_freq" and (layers := layer_pattern(one.inline or "".join(one.words))):
        return layers
    return one.value(known.type)


def known_flags() -> tuple[str, ...]:
    """Every flag of `train` without SGLang's, which are many and have their own prefix."""
    own = (*FILES, *OLDER_FLAGS, *honoured(), *tables.INERT, *tables.ONLY_VALUE, *tables.NOT_YET, *tables.CLASSIC)
    return (*own, *(f"--{name.replace('_', '-')}" for name in _megatron_fields()))


def _megatron_fields() -> Mapping[str, InstalledField]:
    """Empty where megatron-core is not installed."""
    try:
        return megatron_fields()
    except MissingPart:
        return {}
