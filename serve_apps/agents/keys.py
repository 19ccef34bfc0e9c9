"""Keys of a session: one for its agent, another for its harness, which the agent never has.

They follow from the session's name and a secret of the run's gateways, so any gateway makes and checks them, and none
is in an event.
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
    """What a key is for: turns, or state and end."""

    AGENT = "agent"
    CONTROL = "control"


class SessionKeys:
    """secret: of the run's gateways."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of(self, session: str, capability: Capability) -> str:
        """The key: sha256 HMAC, base64url without padding."""
        digest = hmac.digest(self._secret, f"{capability}:{session}".encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def check(self, session: str, key: str, capability: Capability) -> bool:
        """Whether it is the session's, in a time that tells nothing about it."""
        return hmac.compare_digest(self.of(session, capability).encode(), key.encode())

    def session_of(self, bearer: str) -> str | None:
        """The session that `<session>.<agent key>` is of; None where it is of none."""
        session, point, key = bearer.rpartition(".")
        return session if point and self.check(session, key, Capability.AGENT) else None


def session_keys(folder: Path) -> SessionKeys:
    """With the secret in a private file of the folder, which the first gateway makes."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / FILE
    if not path.is_file():
        with contextlib.suppress(FileExistsError):  # another gateway is faster
            write_private(path, secrets.token_urlsafe(32), new=True)
    return SessionKeys(path.read_text(encoding="ascii").encode())
