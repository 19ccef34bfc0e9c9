"""Keys of a session: one for its agent, and one for its harness that the agent never gets.

Keys are derived from the session's name and a secret that the run's gateways share. So any gateway can create and check
them, and no event contains one.
"""

import base64
import contextlib
import enum
import hashlib
import hmac
import secrets
from pathlib import Path

from storage.nats.accounts import write_private

FILE = "session-secret"


class Capability(enum.StrEnum):
    """Use of a key. agent: make turns. control: read the state and seal the session."""

    AGENT = "agent"
    CONTROL = "control"


class SessionKeys:
    """Derives keys. secret: shared by the run's gateways."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of(self, session: str, capability: Capability) -> str:
        """Return the key: sha256 HMAC, base64url without padding."""
        digest = hmac.digest(self._secret, f"{capability}:{session}".encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def check(self, session: str, key: str, capability: Capability) -> bool:
        """Return whether the key is the session's, in a time that does not depend on the key."""
        return hmac.compare_digest(self.of(session, capability).encode(), key.encode())

    def session_of(self, bearer: str) -> str | None:
        """Return the session of a bearer token `<session>.<agent key>`; None if the token is not valid."""
        session, point, key = bearer.rpartition(".")
        return session if point and self.check(session, key, Capability.AGENT) else None


def session_keys(folder: Path) -> SessionKeys:
    """Return keys with the secret in a private file of the folder. The first gateway creates the file."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / FILE
    if not path.is_file():
        with contextlib.suppress(FileExistsError):  # another gateway created it first
            write_private(path, secrets.token_urlsafe(32), new=True)
    return SessionKeys(path.read_text(encoding="ascii").encode())
