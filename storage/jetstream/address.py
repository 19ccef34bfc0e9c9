"""`NatsAddress`: where a NATS server is, and as whom to connect there."""

from __future__ import annotations

import json
import ssl
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from nats.errors import AuthorizationError

from schemas.errors import AccessDenied, InvalidValue, MissingPart
from schemas.references import expand

_JWT, _SEED = "-----BEGIN NATS USER JWT-----", "SU"
"""How a credentials file begins, and the seed of a user's nkey."""


class NatsAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Sent to other processes by Ray, never by settings or the environment. Its text shows no secret.

    url: several nodes with commas; passwords in it are references. creds: the text of a NATS credentials file or nkey
    seed. ca, certificate, key: PEM texts for TLS. reads_only: the server refuses consumers, so none is asked for.
    """

    url: str
    user: str = ""
    password: str = ""
    creds: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""
    reads_only: bool = False

    def __repr__(self) -> str:
        return f"NatsAddress({self.url!r})"

    def options(self) -> dict[str, Any]:
        """Arguments of nats-py's `connect`. Raises MissingPart, InvalidValue."""
        options: dict[str, Any] = {"servers": expand(self.url).split(",")}
        if self.user:
            options |= {"user": self.user, "password": self.password}
        if self.creds:
            options |= self._signed()
        if self.ca or self.certificate:
            options["tls"] = self._tls()
        return options

    def _signed(self) -> dict[str, Any]:
        try:
            import nkeys  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
        except ImportError as error:
            raise MissingPart(
                "--nats-creds names a file with a key, which takes a package to sign with: pip install nkeys"
            ) from error
        if self.creds.startswith(_SEED):
            return {"nkeys_seed_str": self.creds}
        from nats.aio.client import RawCredentials

        return {"user_credentials": RawCredentials(self.creds)}

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cadata=self.ca or None)
            if self.certificate:
                with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # OpenSSL takes these from a file alone
                    file.write(f"{self.certificate}\n{self.key}")
                    file.flush()
                    context.load_cert_chain(file.name)
        except (ssl.SSLError, ValueError) as error:
            raise InvalidValue(f"--nats-tls-*: no PEM certificates and keys that fit each other: {error}") from error
        return context


class NatsPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A server of the user's own, as settings name it: its URL and the paths of files. It may be recorded."""

    url: str
    creds: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def address(self) -> NatsAddress:
        """With what stands in the files now. Raises InvalidValue."""
        address = read_credentials(self.creds, self.url) if self.creds else NatsAddress(url=self.url)
        return msgspec.structs.replace(
            address,
            ca=_read("--nats-tls-ca", self.tls_ca) if self.tls_ca else "",
            certificate=_read("--nats-tls-cert", self.tls_cert) if self.tls_cert else "",
            key=_read("--nats-tls-key", self.tls_key) if self.tls_key else "",
        )


def address_of(server: NatsAddress | str) -> NatsAddress:
    """Of a URL too."""
    return server if isinstance(server, NatsAddress) else NatsAddress(url=server)


def refusal_of(error: Exception, url: str) -> AccessDenied | None:
    """What an error says while a client connects, where it would be the same at the next try."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return AccessDenied(f"the certificate of NATS at {url} is not trusted ({error.verify_message}): --nats-tls-ca")
    if "authorization violation" in str(error).lower() or isinstance(error, AuthorizationError):
        return AccessDenied(
            f"NATS at {url} admits nobody with these credentials, or without any: give --nats-creds FILE"
        )
    return None


class _UserFile(msgspec.Struct):
    user: str
    password: str
    url: str = ""
    reads_only: bool = False


def read_credentials(path: str | Path, url: str = "") -> NatsAddress:
    """What a credentials file says: JSON with user and password (as in a run's folder, or a context of the nats
    command), a NATS .creds file, or the seed of an nkey. url: instead of the one in the file. Raises InvalidValue.
    """
    text = _read("--nats-creds", str(path)).strip()
    if text.startswith((_JWT, _SEED)):
        return NatsAddress(url=url, creds=text)
    try:
        file = msgspec.convert(json.loads(text), _UserFile)
    except (ValueError, RecursionError) as error:  # its text could show what is in the file
        raise InvalidValue(
            f"--nats-creds {path}: give JSON with user and password, a NATS .creds file or the seed of an nkey"
        ) from (None if isinstance(error, json.JSONDecodeError | RecursionError) else error)
    return NatsAddress(url=url or file.url, user=file.user, password=file.password, reads_only=file.reads_only)


def _read(flag: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InvalidValue(f"{flag} {path} cannot be read: {reason}") from None
