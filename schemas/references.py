"""Secrets by reference: `nats://me:${NATS_PASSWORD}@host` names an environment variable, and says no password.

Settings, events, files and messages hold references. A secret that is given as it is becomes one at once (`concealed`)
and lives in the environment of the run's processes, nowhere else. `expand` is called where the secret is used: where
a connection or a file system is opened.
"""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from schemas.errors import InvalidValue
from schemas.redaction import URL_LOGIN, URL_QUERY, URL_TOKEN, is_secret_setting, substitute
from schemas.trust import check_trusted

PREFIX = "SLIME_EVENTS_"
REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_URLS = re.compile(r"[a-zA-Z][\w+.:-]*://\S+")
"""A text that is a URL, or several with commas, and nothing else."""


def expand(text: str, environ: Mapping[str, str] | None = None) -> str:
    """A URL with the values of its references, or that of a text that is one reference alone; any other as it is.

    Raises InvalidValue, which names the variable, where one is not set; UntrustedText for what an archive alone says.
    """
    check_trusted(text)
    environ = os.environ if environ is None else environ
    if not _refers(text):
        return text

    def value(found: re.Match[str]) -> str:
        if (value := environ.get(found[1])) is None:
            raise InvalidValue(f"{text} needs the environment variable {found[1]}, which is not set: no secret is kept")
        return value

    return REFERENCE.sub(value, text)


def expand_all(value: Any, environ: Mapping[str, str] | None = None) -> Any:
    """`expand` for every text in plain values: lists, dicts and what is in them."""
    return _mapped(value, "", lambda text, _: expand(text, environ))


class Concealer:
    """Makes references of secrets. secrets: their values by variable, to be put into the environment."""

    def __init__(self) -> None:
        self.secrets: dict[str, str] = {}

    def text(self, text: str, name: str) -> str:
        """A URL without its passwords and tokens, or, where a setting of that name is a secret, a reference to it."""
        name = name.strip("-").replace("-", "_")
        if is_secret_setting(name.lower()):
            return text if not text or REFERENCE.fullmatch(text) else self._reference(name, text)
        if not _URLS.fullmatch(text):
            return text
        for pattern in (URL_LOGIN, URL_TOKEN, URL_QUERY):
            text = substitute(pattern, text, lambda secret: self._reference(f"{name}_password", secret))
        return text

    def plain(self, value: Any, name: str) -> Any:
        """`text` for every text in plain values; the keys of dicts are names."""
        return _mapped(value, name, self.text)

    def _reference(self, name: str, secret: str) -> str:
        variable, number = first, _ = PREFIX + re.sub(r"\W", "_", name).upper(), 1
        while self.secrets.setdefault(variable, secret) != secret:
            number += 1
            variable = f"{first}_{number}"
        return f"${{{variable}}}"


def _refers(text: str) -> bool:
    return "${" in text and ("://" in text or REFERENCE.fullmatch(text) is not None)


def references_in(value: Any) -> set[str]:
    """The variables that plain values name."""
    found: set[str] = set()

    def look(text: str, _: str) -> str:
        found.update(REFERENCE.findall(text) if _refers(text) else ())
        return text

    _mapped(value, "", look)
    return found


def _mapped(value: Any, name: str, change: Callable[[str, str], str]) -> Any:
    if isinstance(value, str):
        return change(value, name)
    if isinstance(value, Mapping):
        return {key: _mapped(one, str(key), change) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(one, name, change) for one in value]
    return value
