"""Encryption: TLS 1.3 around a connection, before the two ends prove that they know the secret.

Both ends show the cluster's certificate and take no other one. A caller that does not speak TLS is told so, in a word
that its own handshake understands; one that speaks TLS to an end that does not finds out by itself.

Invariants:

- A :class:`TlsSocket` behaves as a plain one to those that use it: ``sendmsg``, ``recv`` and ``recv_into`` give
  ``BlockingIOError`` where a plain socket does. There is one difference, :meth:`TlsSocket.pending`: bytes that were
  decrypted and not taken. A selector knows nothing of them, so whoever waits looks there first.
- Nothing is decrypted ahead: OpenSSL takes one record from the socket at a time, so what is not in ``pending`` is in
  the socket, where a selector sees it.
- No session tickets are sent: they would make an idle connection readable.

An end of the stream without TLS's own goodbye counts as an end, as on a plain socket. Whoever can cut a connection
can do no more than that: no message of ours is the end of a connection.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import socket
import ssl
import tempfile
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from bedload.core.errors import BedloadError, ProtocolError, SecretRefused
from bedload.transport.credentials import Credentials

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

HANDSHAKE_RECORD = 0x16
"""The first byte of whoever speaks TLS."""

_RECORD_BYTES = 16 * 1024
"""What one TLS record holds: smaller buffers are joined up to this, since each record costs a cipher's start."""
_CHUNK_BYTES = 256 * 1024
_WRITE_PER_CALL = 4 * 1024 * 1024
_WAIT_ALL: int = getattr(socket, "MSG_WAITALL", 0)

_WANTS = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class TlsSocket(ssl.SSLSocket):
    """A TLS connection with a plain socket's manners."""

    _stuck: memoryview | None = None
    """What TLS has begun to write: it must be given the same bytes again."""

    def sendmsg(self, buffers: Iterable[ReadableBuffer], *_more: Any) -> int:  # type: ignore[override]
        """Write some of what the buffers hold; how much, as ``sendmsg`` says it."""
        sent = 0
        chunks = iter([self._stuck]) if self._stuck is not None else _chunks(buffers)
        for chunk in chunks:
            try:
                wrote = self.send(chunk)
            except (*_WANTS, TimeoutError) as error:
                self._stuck = chunk
                if sent:
                    return sent
                if isinstance(error, TimeoutError):
                    raise
                raise BlockingIOError("the connection takes nothing now") from None
            self._stuck = None
            sent += wrote
            if wrote < len(chunk) or sent >= _WRITE_PER_CALL:
                break
        return sent

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Some bytes; none at the end of the stream."""
        try:
            return super().recv(buflen, 0)
        except _WANTS:
            raise BlockingIOError("there is nothing to receive now") from None

    def recv_into(self, buffer: WriteableBuffer, nbytes: int | None = None, flags: int = 0) -> int:
        """Fill the buffer with what is there, record by record; with ``MSG_WAITALL``, until it is full."""
        space = memoryview(buffer)
        size = nbytes or len(space)
        patient = bool(flags & _WAIT_ALL) or self.gettimeout() == 0
        got = 0
        while got < size:
            try:
                more = super().recv_into(space[got:size])
            except (*_WANTS, TimeoutError) as error:
                if got:
                    break
                if isinstance(error, TimeoutError):
                    raise
                raise BlockingIOError("there is nothing to receive now") from None
            got += more
            if not more or not (patient or self.pending()):
                break
        return got


class Securing:
    """The TLS handshake of one connection, on a socket that does not block."""

    def __init__(self, credentials: Credentials, *, server: bool) -> None:
        self._credentials = credentials
        self._server = server

    def advance(self, sock: socket.socket) -> tuple[socket.socket, int]:
        """Go as far as possible: the socket from now on, and the events to wait for, 0 if it is done.

        Raises :class:`PlainCaller` if the other end does not speak TLS at all; :func:`explained` knows the rest.
        """
        if not isinstance(sock, TlsSocket):
            if self._server:
                try:
                    first = sock.recv(1, socket.MSG_PEEK)
                except (BlockingIOError, InterruptedError):
                    return sock, selectors.EVENT_READ
                if first and first[0] != HANDSHAKE_RECORD:
                    raise PlainCaller
            sock = wrap(sock, self._credentials, server=self._server)
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            return sock, selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            return sock, selectors.EVENT_WRITE
        check_pin(sock, self._credentials)
        return sock, 0


class PlainCaller(Exception):
    """A caller does not speak TLS."""


def wrap(sock: socket.socket, credentials: Credentials, *, server: bool) -> TlsSocket:
    """The connection with TLS around it; the handshake is still to come."""
    secure = _context(credentials, server).wrap_socket(sock, server_side=server, do_handshake_on_connect=False)
    assert isinstance(secure, TlsSocket)
    return secure


def check_pin(sock: TlsSocket, credentials: Credentials) -> None:
    """Raise unless the other end has the cluster's own certificate, and not just one that it vouches for."""
    assert credentials.certificate is not None
    if sock.getpeercert(binary_form=True) != ssl.PEM_cert_to_DER_cert(credentials.certificate):
        raise ssl.SSLCertVerificationError("another certificate")


def unread(sock: socket.socket) -> bool:
    """Whether the connection holds bytes that a selector does not see."""
    return isinstance(sock, TlsSocket) and sock.pending() > 0


_OTHER_CERTIFICATE = (
    "the other end does not have this cluster's certificate: it belongs to another cluster, or to an earlier "
    "attachment of this one, or another program has taken its address; attach again"
)


def explained(error: OSError) -> BedloadError | None:
    """What an error of a TLS handshake means; None for one of the network."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return SecretRefused(_OTHER_CERTIFICATE)
    if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError):
        return None
    reason = str(error.reason or "")
    if "NOT_RETURN_A_CERTIFICATE" in reason:
        return SecretRefused("a caller showed no certificate: its connection was refused")
    if "ALERT" in reason:
        return SecretRefused(
            "the other end refused this cluster's certificate: it belongs to another cluster, or to an earlier "
            "attachment of this one; attach again"
        )
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE", "RECORD_LAYER_FAILURE"):
        return ProtocolError(
            "the other end does not encrypt, and this one does: check the address, and that both belong to the same "
            "attachment"
        )
    return ProtocolError(f"encryption could not be agreed upon ({reason or error}); the connection was dropped")


@functools.lru_cache(maxsize=8)
def _context(credentials: Credentials, server: bool) -> ssl.SSLContext:
    assert credentials.certificate is not None
    assert credentials.key is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = TlsSocket
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # whoever has the certificate is the cluster, wherever it is
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=credentials.certificate)
    if server:
        context.num_tickets = 0
    with _file_of(credentials.certificate + credentials.key) as path:
        context.load_cert_chain(path)
    return context


@contextlib.contextmanager
def _file_of(text: str) -> Iterator[str]:
    """A name for the text: OpenSSL reads a key from a file only. No disk sees it where memory will do."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("bedload")
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    with tempfile.TemporaryDirectory(prefix="bedload-") as folder:
        path = f"{folder}/key"  # in a folder that nobody else can enter
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(text)
        yield path


def _chunks(buffers: Iterable[ReadableBuffer]) -> Iterator[memoryview]:
    """The buffers as pieces to write: small ones joined, large ones cut."""
    small: list[memoryview] = []
    size = 0
    for buffer in buffers:
        view = memoryview(buffer)
        if small and size + len(view) > _RECORD_BYTES:
            yield memoryview(b"".join(small)) if len(small) > 1 else small[0]
            small, size = [], 0
        if len(view) <= _RECORD_BYTES:
            small.append(view)
            size += len(view)
        else:
            for start in range(0, len(view), _CHUNK_BYTES):
                yield view[start : start + _CHUNK_BYTES]
    if small:
        yield memoryview(b"".join(small)) if len(small) > 1 else small[0]
