"""The handshake: both ends prove that they know the cluster's secret before a frame is read.

::

    server                                             client
      greeting: magic, server nonce, version     ──▶
                                                 ◀──  answer: magic, client nonce, version, proof
      verdict: magic, status, proof              ──▶

Each proof is HMAC-SHA256, under the secret, of the prover's role, both nonces and both versions (the
server's also covers the status), so that no proof serves another role, connection or verdict.

Invariants:

- Pure state: bytes in, a :class:`Step` out. Nonces come from a function that is passed in.
- Every message has a fixed size. An end never reads past :attr:`wanted`, so a caller that has proven
  nothing can make the server hold a hundred bytes, and none of them is interpreted before the
  proof has been checked; only the constant magic is compared, to drop strangers early.
- Versions are compared after the proofs: both ends then raise ``VersionMismatch`` naming both.
- The client sends its magic, the start of its answer, at once. A server that encrypts needs a first word to see that a
  caller does not, and says so (:data:`TLS_ONLY`) instead of letting it wait.

The handshake tells friend from stranger. Encryption is not its business: see ``transport.tls``.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections.abc import Callable
from typing import NamedTuple, Protocol

from bedload.core.errors import BedloadError, ProtocolError, SecretRefused, VersionMismatch

PROTOCOL_VERSION = "3"
"""The version that an end declares unless it is given another."""

MAX_VERSION = 32
"""The longest version, in bytes of ASCII."""

TLS_ONLY = b"BLHS"
"""What a server that encrypts says to a caller that does not."""

_MAGIC = b"BLH1"
_TLS_RECORD = b"\x16"
_NONCE = 32
_PROOF = 32
_GREETING = struct.Struct(f"<4s{_NONCE}s{MAX_VERSION}s")
_ANSWER = struct.Struct(f"<4s{_NONCE}s{MAX_VERSION}s{_PROOF}s")
_VERDICT = struct.Struct(f"<4sc{_PROOF}s")

_WELCOME = b"+"
_REFUSED = b"-"
_OTHER_VERSION = b"v"

NonceSource = Callable[[int], bytes]


class Step(NamedTuple):
    """What one message led to: send ``reply`` (if any); then, done or failed, or wait for more."""

    reply: bytes = b""
    done: bool = False
    error: BedloadError | None = None


class Handshake(Protocol):
    """One end's half of the exchange."""

    @property
    def wanted(self) -> int:
        """How many bytes are missing from the message that comes next."""
        ...

    def start(self) -> bytes:
        """What to send before anything is received."""
        ...

    def receive(self, data: bytes) -> Step:
        """Take at most :attr:`wanted` bytes."""
        ...


class ServerHandshake:
    """The half of the end that was called."""

    def __init__(
        self, secret: bytes, version: str = PROTOCOL_VERSION, nonces: NonceSource = secrets.token_bytes
    ) -> None:
        self._secret = check_secret(secret)
        self._version = _encode_version(version)
        self._nonce = nonces(_NONCE)
        self._got = b""

    @property
    def wanted(self) -> int:
        """How many bytes are missing from the client's answer."""
        return _ANSWER.size - len(self._got)

    def start(self) -> bytes:
        """The greeting."""
        return _GREETING.pack(_MAGIC, self._nonce, self._version)

    def receive(self, data: bytes) -> Step:
        """Take a piece of the answer; the last one gives the verdict."""
        self._got += data
        if self._got.startswith(_TLS_RECORD):
            return Step(error=ProtocolError("a caller encrypts, and this cluster does not: its connection was refused"))
        if not self._got.startswith(_MAGIC[: len(self._got)]):
            return Step(error=_not_ours("a caller"))
        if self.wanted > 0:
            return Step()
        _, nonce, version, proof = _ANSWER.unpack(self._got)
        facts = (self._nonce, nonce, self._version, version)
        if not hmac.compare_digest(proof, _prove(self._secret, b"client", *facts)):
            return Step(
                _VERDICT.pack(_MAGIC, _REFUSED, bytes(_PROOF)),
                error=SecretRefused("a caller does not have this cluster's secret: its connection was refused"),
            )
        status = _WELCOME if version == self._version else _OTHER_VERSION
        verdict = _VERDICT.pack(_MAGIC, status, _prove(self._secret, b"server" + status, *facts))
        if status == _OTHER_VERSION:
            return Step(verdict, error=_mismatch(ours=self._version, theirs=version))
        return Step(verdict, done=True)


class ClientHandshake:
    """The half of the end that calls."""

    def __init__(
        self, secret: bytes, version: str = PROTOCOL_VERSION, nonces: NonceSource = secrets.token_bytes
    ) -> None:
        self._secret = check_secret(secret)
        self._version = _encode_version(version)
        self._nonce = nonces(_NONCE)
        self._server: tuple[bytes, bytes] | None = None
        self._got = b""

    @property
    def wanted(self) -> int:
        """How many bytes are missing from the server's next message."""
        return (_GREETING.size if self._server is None else _VERDICT.size) - len(self._got)

    def start(self) -> bytes:
        """The start of the answer."""
        return _MAGIC

    def receive(self, data: bytes) -> Step:
        """Take a piece of the greeting, which is answered, or of the verdict."""
        self._got += data
        if self._got.startswith(TLS_ONLY):
            return Step(
                error=ProtocolError(
                    "the other end takes encrypted connections only, and this one does not encrypt: check the address, "
                    "and that both belong to the same attachment"
                )
            )
        if not self._got.startswith(_MAGIC[: len(self._got)]):
            return Step(error=_not_ours("the other end"))
        if self.wanted > 0:
            return Step()
        message, self._got = self._got, b""
        if self._server is None:
            _, nonce, version = _GREETING.unpack(message)
            self._server = (nonce, version)
            proof = _prove(self._secret, b"client", nonce, self._nonce, version, self._version)
            return Step(_ANSWER.pack(_MAGIC, self._nonce, self._version, proof)[len(_MAGIC) :])
        return self._judge(message, *self._server)

    def _judge(self, message: bytes, nonce: bytes, version: bytes) -> Step:
        _, status, proof = _VERDICT.unpack(message)
        if status == _REFUSED:
            return Step(
                error=SecretRefused(
                    "the other end refused this cluster's secret: it belongs to another cluster, or to an "
                    "earlier attachment of this one; attach again"
                )
            )
        facts = (nonce, self._nonce, version, self._version)
        if not hmac.compare_digest(proof, _prove(self._secret, b"server" + status, *facts)):
            return Step(
                error=SecretRefused(
                    "the other end could not prove that it has this cluster's secret: another program may "
                    "have taken its address; check the address and attach again"
                )
            )
        if status == _OTHER_VERSION:
            return Step(error=_mismatch(ours=self._version, theirs=version))
        return Step(done=True)


def check_secret(secret: bytes) -> bytes:
    """The secret, if there is one: an empty key would let everyone in."""
    if not secret:
        raise SecretRefused("the cluster's secret is empty: give every process of the cluster the same random bytes")
    return bytes(secret)


def _prove(secret: bytes, role: bytes, *facts: bytes) -> bytes:
    # Roles differ in their first byte and facts have fixed sizes: no two inputs join to the same bytes.
    return hmac.digest(secret, role + b"".join(facts), "sha256")


def _encode_version(version: str) -> bytes:
    data = version.encode("ascii")
    if not 0 < len(data) <= MAX_VERSION:
        raise ProtocolError(f"the version {version!r} must have 1 to {MAX_VERSION} characters")
    return data.ljust(MAX_VERSION, b"\0")


def _mismatch(*, ours: bytes, theirs: bytes) -> VersionMismatch:
    here, there = (v.rstrip(b"\0").decode("ascii", "replace") for v in (ours, theirs))
    return VersionMismatch(
        f"this end speaks version {here} of Bedload's protocol and the other end version {there}: "
        "install the same version of Bedload on the driver and on every executor",
        ours=here,
        theirs=there,
    )


def _not_ours(who: str) -> ProtocolError:
    return ProtocolError(f"{who} does not speak Bedload's protocol: check the address; the connection was dropped")
