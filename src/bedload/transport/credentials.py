"""What lets a process into a cluster: the attachment's secret and, if connections are encrypted, its certificate.

Every process of an attachment has the same credentials, which the driver makes and ships. There is no authority and
nothing to renew: the certificate signs itself, both ends of a connection show it, and both take exactly that one.

Invariant: no part of them is in a repr, so in no log, no error and no plan that Spark prints.
"""

from __future__ import annotations

import datetime
import hashlib
import secrets
from collections.abc import Callable
from typing import Self

import msgspec

from bedload.core.errors import SecretRefused
from bedload.transport.auth import check_secret

_SECRET_BYTES = 32

# SUBTLE: no host's clock may decide whether a cluster comes up, so the certificate has always been valid and never ends
# to be (RFC 5280, 4.1.2.5, has this very end for it). It is worth nothing once its attachment is over.
_VALID_FROM = datetime.datetime(2000, 1, 1)
_VALID_TO = datetime.datetime(9999, 12, 31, 23, 59, 59)


class Credentials(msgspec.Struct, frozen=True):
    """A cluster's secret; with a certificate and its key, both as PEM, connections are encrypted too."""

    secret: bytes
    certificate: str | None = None
    key: str | None = None

    @classmethod
    def fresh(cls, *, encrypted: bool, randomness: Callable[[int], bytes] = secrets.token_bytes) -> Self:
        """Credentials that nobody else has."""
        secret = randomness(_SECRET_BYTES)
        return cls(secret, *_certificate()) if encrypted else cls(secret)

    @property
    def encrypted(self) -> bool:
        """Whether connections are encrypted."""
        return self.certificate is not None

    def __post_init__(self) -> None:
        check_secret(self.secret)
        if (self.certificate is None) != (self.key is None):
            raise SecretRefused("a certificate needs its key, and a key its certificate: give both or none")

    @property
    def fingerprint(self) -> str:
        """What tells attachments apart, and says nothing of the secret."""
        return hashlib.sha256(b"bedload attachment" + self.secret).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"Credentials({'encrypted' if self.encrypted else 'not encrypted'})"

    def __rich_repr__(self) -> list[tuple[str, bool]]:
        return [("encrypted", self.encrypted)]


def _certificate() -> tuple[str, str]:
    """A certificate that signs itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bedload")])
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_VALID_FROM)
        .not_valid_after(_VALID_TO)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(both, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem).decode(), secret.decode()
