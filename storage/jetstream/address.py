"""`NatsAddress`: the URL of a NATS server, with credentials."""

from __future__ import annotations

import json
import logging
import ssl
import tempfile
from pathlib import Path
from typing import Annotated, Any

import msgspec
from nats.errors import AuthorizationError

from schemas.doc import doc
from schemas.errors import AccessDenied, InvalidValue, MissingPart
from schemas.references import expand

_JWT, _SEED = "-----BEGIN NATS USER JWT-----", "SU"
"""Beginnings of a credentials file, and of the seed of a user's nkey."""


class NatsAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Ray sends it to other processes; it is never in settings or the environment. Its text shows no secret."""

    url: Annotated[str, doc("URLs of the nodes, with commas; passwords are references.")]
    user: str = ""
    password: str = ""
    creds: Annotated[str, doc("Content of a NATS credentials file, or nkey seed.")] = ""
    ca: Annotated[str, doc("PEM text of the certificate authority.")] = ""
    certificate: Annotated[str, doc("PEM text of the client's certificate.")] = ""
    key: Annotated[str, doc("PEM text of the client's key.")] = ""
    reads_only: Annotated[bool, doc("The server refuses consumers, so none is created.")] = False

    def __repr__(self) -> str:
        return f"NatsAddress({self.url!r})"

    def options(self) -> dict[str, Any]:
        """Return the arguments of nats-py's `connect`. Raises MissingPart, InvalidValue."""
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
                "--nats-creds names a file with a key, and signing with it needs a package: pip install nkeys"
            ) from error
        if self.creds.startswith(_SEED):
            return {"nkeys_seed_str": self.creds}
        from nats.aio.client import RawCredentials

        return {"user_credentials": RawCredentials(self.creds)}

    def _tls(self) -> ssl.SSLContext:
        logging.getLogger("asyncio").addFilter(_is_news)
        try:
            context = ssl.create_default_context(cadata=self.ca or None)
            if self.certificate:
                with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # OpenSSL reads these from a file only
                    file.write(f"{self.certificate}\n{self.key}")
                    file.flush()
                    context.load_cert_chain(file.name)
        except (ssl.SSLError, ValueError) as error:
            raise InvalidValue(f"--nats-tls-*: these are not matching PEM certificates and keys: {error}") from error
        return context


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a message of asyncio says more than that a connection has ended, as each one with TLS does."""
    return "eof_received()" not in record.getMessage()


class NatsPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The user's NATS server as settings name it. It holds no secret, so it may be recorded."""

    url: Annotated[str, doc("URLs of the nodes, with commas.")]
    creds: Annotated[str | None, doc("Path of the credentials file.")] = None
    tls_ca: Annotated[str | None, doc("Path of the certificate authority's PEM file.")] = None
    tls_cert: Annotated[str | None, doc("Path of the client certificate's PEM file.")] = None
    tls_key: Annotated[str | None, doc("Path of the client key's PEM file.")] = None

    def address(self) -> NatsAddress:
        """Return the address, with the current content of the files. Raises InvalidValue."""
        address = read_credentials(self.creds, self.url) if self.creds else NatsAddress(url=self.url)
        return msgspec.structs.replace(
            address,
            ca=_read("--nats-tls-ca", self.tls_ca) if self.tls_ca else address.ca,
            certificate=_read("--nats-tls-cert", self.tls_cert) if self.tls_cert else "",
            key=_read("--nats-tls-key", self.tls_key) if self.tls_key else "",
        )


def address_of(server: NatsAddress | str) -> NatsAddress:
    """Return `server`, or the address of a URL."""
    return server if isinstance(server, NatsAddress) else NatsAddress(url=server)


def refusal_of(error: Exception, url: str) -> AccessDenied | None:
    """Return AccessDenied for an error while connecting that another attempt would repeat, else None."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return AccessDenied(f"the certificate of NATS at {url} is not trusted ({error.verify_message}): --nats-tls-ca")
    if "authorization violation" in str(error).lower() or isinstance(error, AuthorizationError):
        return AccessDenied(f"NATS at {url} does not accept these credentials, or needs some: give --nats-creds FILE")
    return None


class _UserFile(msgspec.Struct):
    user: str
    password: str
    url: str = ""
    reads_only: bool = False
    ca: str = ""


def read_credentials(path: str | Path, url: str = "") -> NatsAddress:
    """Read a credentials file: JSON with user and password (from a run's folder, or a context of the nats command), a
    NATS .creds file, or the seed of an nkey. url: overrides the file's URL. Raises InvalidValue.
    """
    text = _read("--nats-creds", str(path)).strip()
    if text.startswith((_JWT, _SEED)):
        return NatsAddress(url=url, creds=text)
    try:
        file = msgspec.convert(json.loads(text), _UserFile)
    except (ValueError, RecursionError) as error:  # its text could show the file's content
        raise InvalidValue(
            f"--nats-creds {path}: give JSON with user and password, a NATS .creds file or the seed of an nkey"
        ) from (None if isinstance(error, json.JSONDecodeError | RecursionError) else error)
    return NatsAddress(
        url=url or file.url, user=file.user, password=file.password, reads_only=file.reads_only, ca=file.ca
    )


def _read(flag: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidValue(f"{flag} {path} cannot be read: {reason}") from None
