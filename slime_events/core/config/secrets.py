"""Replace secrets in settings and command lines by references to environment variables."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from schemas.redaction import is_secret, is_secret_setting
from schemas.references import Concealer, references_in
from slime_events.core.config.base import Settings

_NAMELESS = "url"
"""Used instead of a flag's name, for a word that belongs to no flag."""


def kept(values: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the settings with references instead of secrets, and put the secrets into the environment.

    values: component to field to value.
    """
    concealer = Concealer()
    without = concealed(values, concealer)
    os.environ.update(concealer.secrets)
    return without


def concealed(values: Mapping[str, Mapping[str, Any]], concealer: Concealer | None = None) -> dict[str, dict[str, Any]]:
    """Return the settings with references instead of secrets; the `concealer` collects the secrets."""
    concealer = concealer or Concealer()
    return {component: dict(_fields(concealer, table)) for component, table in values.items()}


def _fields(concealer: Concealer, table: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for field, value in table.items():
        if field == "train_env_vars":  # other rules tell a secret variable by its name
            names = {name: f"secret_{name}" if is_secret(name, str(text)) else name for name, text in value.items()}
            yield field, {name: concealer.plain(text, names[name]) for name, text in value.items()}
        elif isinstance(value, Mapping):  # SGLang's and Megatron's, by their flags
            yield field, {name: concealer.plain(text, f"{field}_{name}") for name, text in value.items()}
        else:
            yield field, concealer.plain(value, field)


def kept_words(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return a command line with references instead of secrets, and the secrets by variable."""
    concealer, name, concealed = Concealer(), _NAMELESS, []
    for word in words:
        flag, equals, value = word.partition("=")
        if not word.startswith("--"):
            concealed.append(concealer.text(word, name))
            name = _NAMELESS if is_secret_setting(name) else name  # a secret is one word, a list of files is many
        elif equals:
            concealed.append(f"{flag}={concealer.text(value, flag)}")
        else:
            concealed.append(word)
            name = flag.strip("-").replace("-", "_")
    return concealed, concealer.secrets


def secrets_of(settings: Settings) -> dict[str, str]:
    """Return the variables that settings refer to, with their values, as a process on another machine needs them."""
    names = references_in(msgspec.to_builtins(settings))
    return {name: os.environ[name] for name in sorted(names) if name in os.environ}
