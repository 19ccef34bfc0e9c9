"""`Sources`: who may send prompts to a run's gateway, by a bearer token each.

`<run folder>/gateway/sources.json` holds the sha256 of each token, never the token, and only the run's owner may read
it. It is read again when it changes: a new token is admitted, and a revoked one refused, from the next request on.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
from pathlib import Path

from schemas.errors import InvalidValue
from storage.nats.accounts import write_private

FOLDER, FILE = "gateway", "sources.json"
"""In the run's folder."""
NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")


class Sources:
    """The sources of one run. run_folder: in which their file is, or is to be."""

    def __init__(self, run_folder: Path) -> None:
        self._file = run_folder / FOLDER / FILE
        self._read: tuple[int, dict[str, str]] = (-1, {})

    @property
    def names(self) -> list[str]:
        """Those that have a token."""
        return sorted(self._digests())

    def issue(self, name: str) -> str:
        """A token for a source; an earlier one of it ends. Raises InvalidValue."""
        if not NAME.fullmatch(name):
            raise InvalidValue(f"a source cannot be called {name!r}: up to 32 letters, digits, '-' and '_'")
        token = secrets.token_urlsafe(32)
        self._write(self._digests() | {name: _digest(token)})
        return token

    def revoke(self, name: str) -> None:
        """Its token ends. Raises InvalidValue where there is none of that name."""
        digests = self._digests()
        if name not in digests:
            there = f"there are {', '.join(sorted(digests))}" if digests else "there is none"
            raise InvalidValue(f"no source is called {name!r}: {there}")
        self._write({other: digest for other, digest in digests.items() if other != name})

    def of(self, token: str) -> str | None:
        """The source whose token this is."""
        digest = _digest(token)
        found = [name for name, own in self._digests().items() if hmac.compare_digest(own, digest)]
        return found[0] if found else None

    def _digests(self) -> dict[str, str]:
        try:
            changed = os.stat(self._file).st_mtime_ns
        except FileNotFoundError:
            return {}
        if changed != self._read[0]:
            self._read = changed, json.loads(self._file.read_text())
        return self._read[1]

    def _write(self, digests: dict[str, str]) -> None:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self._file, json.dumps(digests, indent=1) + "\n")
        self._read = -1, {}


def _digest(token: str) -> str:
    """A token has 256 random bits, so a plain hash hides it."""
    return hashlib.sha256(token.encode()).hexdigest()
