"""`Sources`: who may use a run's gateway, by a bearer token each, and for what.

`<run folder>/gateway/sources.json` holds the sha256 of each token, never the token, and only the run's owner may read
it. It is read again when it changes: a new token is admitted, and a revoked one refused, from the next request on.
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

import msgspec

from schemas.errors import InvalidValue
from schemas.outside_json import read_json
from storage.nats.accounts import write_private

FOLDER, FILE = "gateway", "sources.json"
"""In the run's folder."""
_NOT_READ = (-1, -1)
NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")


class Scope(StrEnum):
    """What a source may do. Each may ask what became of its own prompts."""

    PROMPTS = "prompts"
    TRAJECTORIES = "trajectories"
    REWARDS = "rewards"
    SESSIONS = "sessions"
    TINKER = "tinker"


def scope_of(text: str) -> Scope:
    """By its name. Raises InvalidValue."""
    try:
        return Scope(text)
    except ValueError:
        raise InvalidValue(f"a token cannot be for {text!r}: it is for {', '.join(Scope)}, or for everything") from None


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """sha256: hex, of its token. may: None for everything. per_minute: its requests; None for any number."""

    sha256: str
    may: tuple[Scope, ...] | None = None
    per_minute: int | None = None

    def allows(self, scope: Scope) -> bool:
        """Whether it may do this."""
        return self.may is None or scope in self.may

    @property
    def limits(self) -> str:
        """In words; empty where there is none."""
        may = [] if self.may is None else [" ".join(self.may)]
        return ", ".join(may if self.per_minute is None else [*may, f"{self.per_minute} requests a minute"])


class Sources:
    """The sources of one run. run_folder: in which their file is, or is to be."""

    def __init__(self, run_folder: Path) -> None:
        self._file = run_folder / FOLDER / FILE
        self._read: tuple[tuple[int, int], dict[str, Source]] = (_NOT_READ, {})

    @property
    def names(self) -> list[str]:
        """Those that have a token."""
        return sorted(self._known())

    def rights(self, name: str) -> Source:
        """Of one that has a token."""
        return self._known()[name]

    def issue(self, name: str, may: Iterable[Scope] = (), per_minute: int | None = None) -> str:
        """A token for a source; an earlier one of it ends. What is not given stays as that one had it: everything, and
        any number of requests, for a source that is new. Raises InvalidValue.
        """
        if not NAME.fullmatch(name):
            raise InvalidValue(f"a source cannot be called {name!r}: up to 32 letters, digits, '-' and '_'")
        if per_minute is not None and per_minute < 1:
            raise InvalidValue(f"{name} cannot make {per_minute} requests a minute: at least 1")
        token, known = secrets.token_urlsafe(32), self._known()
        before = known.get(name, Source(""))
        source = Source(_digest(token), tuple(may) or before.may, per_minute or before.per_minute)
        self._write(known | {name: source})
        return token

    def revoke(self, name: str) -> None:
        """Its token ends. Raises InvalidValue where there is none of that name."""
        known = self._known()
        if name not in known:
            raise InvalidValue(f"no source is called {name!r}: there is {', '.join(sorted(known)) or 'none'}")
        self._write({other: source for other, source in known.items() if other != name})

    def admitted(self, token: str) -> tuple[str, Source] | None:
        """The source whose token this is, with its rights, by one look: a token may end between two."""
        digest = _digest(token)
        found = [(name, one) for name, one in self._known().items() if hmac.compare_digest(one.sha256, digest)]
        return found[0] if found else None

    def _known(self) -> dict[str, Source]:
        try:
            stat = os.stat(self._file)
        except FileNotFoundError:
            return {}
        # Each writing makes another file: two within one tick of the clock are two.
        if (changed := (stat.st_mtime_ns, stat.st_ino)) != self._read[0]:
            self._read = changed, self._from_file()
        return self._read[1]

    def _from_file(self) -> dict[str, Source]:
        try:
            read = read_json(self._file.read_bytes(), dict[str, str | Source])
        except msgspec.DecodeError as error:
            raise InvalidValue(
                f"{self._file} is damaged, and nobody is admitted: remove it, and issue each source a new token"
            ) from error
        return {name: Source(one) if isinstance(one, str) else one for name, one in read.items()}

    def _write(self, known: dict[str, Source]) -> None:
        """A source without limits as its digest alone, as files of before scopes have all of them."""
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        plain = {name: one.sha256 if one == Source(one.sha256) else one for name, one in known.items()}
        write_private(self._file, json.dumps(msgspec.to_builtins(plain), indent=1) + "\n")


def _digest(token: str) -> str:
    """A token has 256 random bits, so a plain hash hides it."""
    return hashlib.sha256(token.encode()).hexdigest()
