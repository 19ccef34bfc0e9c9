"""Certificate of a run's own NATS server that other machines reach: its own authority, made once for an address.

certificate.pem    the certificate, which clients trust alone
certificate.key    its key, which only the run's owner may read
"""

import datetime
import ipaddress
from pathlib import Path
from typing import Annotated, NamedTuple

from schemas.doc import doc
from schemas.errors import MissingPart
from storage.nats.accounts import write_private

CERTIFICATE, KEY = "certificate.pem", "certificate.key"
VALID_FOR = datetime.timedelta(days=3650)
CLOCK_SKEW = datetime.timedelta(days=1)
"""Time by which a machine's clock may be behind."""


class Certificate(NamedTuple):
    """A certificate of a server's folder."""

    text: Annotated[str, doc("PEM text, for clients.")]
    file: Annotated[Path, doc("PEM file of the certificate.")]
    key: Annotated[Path, doc("PEM file of its key.")]


def certificate_for(folder: Path, host: str) -> Certificate:
    """Return the folder's certificate for an IP address, made now if there is none. Raises MissingPart.

    A server that is started again keeps its certificate, because the run's processes have it.
    """
    try:
        from cryptography import x509
    except ImportError as error:
        raise MissingPart(
            "a log that other machines reach needs a certificate, and making it a package: pip install cryptography"
        ) from error
    own = Certificate("", folder / CERTIFICATE, folder / KEY)
    address = ipaddress.ip_address(host)
    if own.file.is_file() and own.key.is_file():
        there = x509.load_pem_x509_certificate(own.file.read_bytes())
        names = there.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if names.get_values_for_type(x509.IPAddress) == [address]:
            return own._replace(text=own.file.read_text())
    text, key = _make(address)
    write_private(own.key, key)
    write_private(own.file, text)
    return own._replace(text=text)


def _make(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> tuple[str, str]:
    """Return a new certificate and its key, both as PEM text."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "slime-events log")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(address)]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, *plain).decode()
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), secret
