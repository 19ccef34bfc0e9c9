"""Secrets by reference: `nats://me:${NATS_PASSWORD}@host` names an environment variable instead of a password.

Settings, events, files and messages hold references. `Concealer` replaces a literal secret by a reference at once; the
secret is then in the environment of the run's processes only. `expand` is called when a connection or a file system is
opened.
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
"""A text that consists of one URL, or of several URLs with commas."""


def expand(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Return a URL, or a text that is one reference, with the values of its references; other texts unchanged.

    Raises InvalidValue if a variable is not set, UntrustedText if only an archive names the text.
    """
    check_trusted(text)
    environ = os.environ if environ is None else environ
    if not _refers(text):
        return text

    def value(match: re.Match[str]) -> str:
        if (value := environ.get(match[1])) is None:
            raise InvalidValue(
                f"{text} needs the environment variable {match[1]}, which is not set: set it; secrets are not stored"
            )
        return value

    return REFERENCE.sub(value, text)


def expand_all(value: object, environ: Mapping[str, str] | None = None) -> Any:
    """Expand every text in nested lists and dicts."""
    return _mapped(value, "", lambda text, _: expand(text, environ))


class Concealer:
    """Replace secrets by references. secrets: values by variable, for the environment."""

    def __init__(self) -> None:
        self.secrets: dict[str, str] = {}

    def text(self, text: str, name: str) -> str:
        """Return a URL with references for passwords and tokens, or one reference if the setting `name` is a secret."""
        name = name.strip("-").replace("-", "_")
        if is_secret_setting(name.lower()):
            return text if not text or REFERENCE.fullmatch(text) else self._reference(name, text)
        if not _URLS.fullmatch(text):
            return text
        for pattern in (URL_LOGIN, URL_TOKEN, URL_QUERY):
            text = substitute(pattern, text, lambda secret: self._reference(f"{name}_password", secret))
        return text

    def plain(self, value: object, name: str) -> Any:
        """Apply `text` to every text in nested lists and dicts, with a dict's keys as names."""
        return _mapped(value, name, self.text)

    def _reference(self, name: str, secret: str) -> str:
        variable, number = first, _ = PREFIX + re.sub(r"\W", "_", name).upper(), 1
        while self.secrets.setdefault(variable, secret) != secret:
            number += 1
            variable = f"{first}_{number}"
        return f"${{{variable}}}"


def _refers(text: str) -> bool:
    return "${" in text and ("://" in text or REFERENCE.fullmatch(text) is not None)


def references_in(value: object) -> set[str]:
    """Return the environment variables that texts in nested lists and dicts refer to."""
    variables: set[str] = set()

    def look(text: str, _: str) -> str:
        variables.update(REFERENCE.findall(text) if _refers(text) else ())
        return text

    _mapped(value, "", look)
    return variables


def _mapped(value: object, name: str, change: Callable[[str, str], str]) -> Any:
    if isinstance(value, str):
        return change(value, name)
    if isinstance(value, Mapping):
        return {key: _mapped(item, str(key), change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, name, change) for item in value]
    return value
