"""`Sources`: the sources that may use a run's gateway, each with a bearer token and its rights.

`<run folder>/gateway/sources.json` holds the sha256 of each token, never the token. Only the run's owner may read it.
The file is read again when it changes, so new and revoked tokens take effect with the next request.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Protocol

import msgspec

from schemas.doc import doc
from schemas.errors import InvalidValue
from schemas.outside_json import read_json
from storage.nats.accounts import write_private

FOLDER, FILE = "gateway", "sources.json"
"""Place of the file in the run's folder."""
_NOT_READ = (-1, -1)
NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")


class Scope(StrEnum):
    """Right of a source. Every source may also get the states of its own prompts.

    `view` is for a console, which shows the whole run: a source has it only by name.
    """

    PROMPTS = "prompts"
    TRAJECTORIES = "trajectories"
    REWARDS = "rewards"
    SESSIONS = "sessions"
    TINKER = "tinker"
    VIEW = "view"


def scope_of(text: str) -> Scope:
    """Return a scope by its name. Raises InvalidValue."""
    try:
        return Scope(text)
    except ValueError:
        raise InvalidValue(f"no scope is named {text!r}: use {', '.join(Scope)}, or none to allow everything") from None


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A source in the file."""

    sha256: Annotated[str, doc("digest of its token, hex")]
    may: Annotated[tuple[Scope, ...] | None, doc("scopes; None allows everything but `view`")] = None
    per_minute: Annotated[int | None, doc("limit of requests each minute; None for no limit")] = None

    def allows(self, scope: Scope) -> bool:
        return scope is not Scope.VIEW if self.may is None else scope in self.may

    @property
    def limits(self) -> str:
        """Scopes and rate as text; empty if there is no limit."""
        may = [] if self.may is None else [" ".join(self.may)]
        return ", ".join(may if self.per_minute is None else [*may, f"{self.per_minute} requests a minute"])


class Tokens(Protocol):
    """Valid tokens."""

    def admitted(self, token: str) -> tuple[str, Source] | None:
        """Return the name and the rights of a token; None for no valid token."""


class OneToken:
    """One token in memory. name, may: of its holder."""

    def __init__(self, token: str, name: str, may: Iterable[Scope]) -> None:
        self._name, self._source = name, Source(_digest(token), tuple(may))

    def admitted(self, token: str) -> tuple[str, Source] | None:
        return (self._name, self._source) if hmac.compare_digest(self._source.sha256, _digest(token)) else None


class Sources:
    """The sources of one run. run_folder: folder of the run, where `issue` creates the file."""

    def __init__(self, run_folder: Path) -> None:
        self._file = run_folder / FOLDER / FILE
        self._read: tuple[tuple[int, int], dict[str, Source]] = (_NOT_READ, {})

    @property
    def names(self) -> list[str]:
        """Names of the sources that have a token."""
        return sorted(self._current())

    def rights(self, name: str) -> Source:
        """Return the rights of a source that has a token."""
        return self._current()[name]

    def issue(self, name: str, may: Iterable[Scope] = (), per_minute: int | None = None) -> str:
        """Return a new token for a source, and revoke its earlier one. Raises InvalidValue.

        An empty `may` and a `per_minute` of None keep the source's earlier limits; a new source then has none.
        """
        if not NAME.fullmatch(name):
            raise InvalidValue(f"{name!r} is no valid name of a source: use up to 32 letters, digits, '-' and '_'")
        if per_minute is not None and per_minute < 1:
            raise InvalidValue(f"a source cannot be limited to {per_minute} requests a minute: use at least 1")
        token, sources = secrets.token_urlsafe(32), self._current()
        before = sources.get(name, Source(""))
        source = Source(_digest(token), tuple(may) or before.may, per_minute or before.per_minute)
        self._write(sources | {name: source})
        return token

    def revoke(self, name: str) -> None:
        """Revoke the token of a source. Raises InvalidValue if no source has this name."""
        sources = self._current()
        if name not in sources:
            raise InvalidValue(f"no source is named {name!r}. Sources: {', '.join(sorted(sources)) or 'none'}")
        self._write({other: source for other, source in sources.items() if other != name})

    def admitted(self, token: str) -> tuple[str, Source] | None:
        """Return the source of a token with its rights, both from one read of the file; None for no valid token."""
        digest = _digest(token)
        matches = [item for item in self._current().items() if hmac.compare_digest(item[1].sha256, digest)]
        return matches[0] if matches else None

    def _current(self) -> dict[str, Source]:
        try:
            stat = os.stat(self._file)
        except FileNotFoundError:
            return {}
        # Each write creates a new file, so the inode tells two writes within one tick of the clock apart.
        if (changed := (stat.st_mtime_ns, stat.st_ino)) != self._read[0]:
            self._read = changed, self._from_file()
        return self._read[1]

    def _from_file(self) -> dict[str, Source]:
        try:
            read = read_json(self._file.read_bytes(), dict[str, str | Source])
        except msgspec.DecodeError as error:
            raise InvalidValue(
                f"{self._file} is damaged, so no token is valid: remove the file and issue each source a new token"
            ) from error
        return {name: Source(value) if isinstance(value, str) else value for name, value in read.items()}

    def _write(self, sources: dict[str, Source]) -> None:
        """Write the file. A source without limits is only its digest, as in files of older versions without scopes."""
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        plain = {name: source.sha256 if source == Source(source.sha256) else source for name, source in sources.items()}
        write_private(self._file, json.dumps(msgspec.to_builtins(plain), indent=1) + "\n")


def _digest(token: str) -> str:
    """Return the digest of a token. A plain hash is enough: a token has 256 random bits."""
    return hashlib.sha256(token.encode()).hexdigest()
