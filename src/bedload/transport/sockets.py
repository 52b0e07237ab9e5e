"""How sockets are opened: addresses, options, listening, and a blocking authenticated call.

Invariants:

- An address is ``host:port``, with brackets around an IPv6 host (``[::1]:4000``).
- Sockets have the same options at both ends, and none is inherited by a child process (Python's
  default, which nothing here changes).
- Whatever keeps a connection from coming up ends as ``WorkerUnreachable`` with the address in it, or as the error that
  says why the other end is not of this cluster.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable

from bedload.core.clock import Clock
from bedload.core.errors import BedloadError, ClusterError, HungUp, ProtocolError, Unanswered, WorkerUnreachable
from bedload.transport import tls
from bedload.transport.auth import ClientHandshake
from bedload.transport.credentials import Credentials
from bedload.transport.silence import KEEPALIVE

_AGAIN_SECONDS = (0.02, 0.1, 0.5)
"""How long a caller that was closed during its handshake waits before it calls again, each time."""

_BUFFER_BYTES = 4 * 1024 * 1024
"""A few bulk batches: an end that computes for a while does not stall the one that feeds it."""


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[host]:port``."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536) or (
        ":" in host and not bracketed
    ):
        raise ProtocolError(f"{address!r} is not an address: it must be host:port, or [host]:port for IPv6")
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """What :func:`parse_address` takes apart."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether whatever goes to this host stays on this machine."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


def tune(sock: socket.socket) -> None:
    """Set the options of a connection."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
    _widen(sock)


def listen(host: str, port: int) -> socket.socket:
    """A non-blocking socket that accepts connections."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, proto, _, bound = found[0]
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _widen(sock)  # inherited by what it accepts; the receive window is fixed when a connection is made
            sock.bind(bound)
            sock.listen(1024)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise ClusterError(
            f"cannot listen at {format_address(host, port)}: {error}; use a host name or address of this "
            "machine, and port 0 for any free port"
        ) from error
    return sock


def most_descriptors() -> int:
    """How many descriptors this process may have."""
    try:
        import resource
    except ImportError:  # not on this system
        return 1 << 16
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def start_connect(address: str) -> socket.socket:
    """A non-blocking socket on its way to the address: when it is writable, ``SO_ERROR`` says how it went."""
    host, port = parse_address(address)
    try:
        family, kind, proto, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, proto)
        try:
            tune(sock)
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(target)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise unreachable(address, error) from error
    return sock


def call(
    address: str, timeout: float, clock: Clock, handshake: Callable[[], ClientHandshake], credentials: Credentials
) -> socket.socket:
    """Connect and shake hands; blocks at most ``timeout`` seconds. The socket is left in blocking mode.

    An endpoint that strangers crowd may close a caller before it has proven itself, so one that was closed in the
    middle of its handshake calls again, a few times.
    """
    deadline = clock.monotonic() + timeout
    for pause in _AGAIN_SECONDS:
        try:
            return _call(address, deadline, timeout, clock, handshake(), credentials)
        except HungUp:
            time.sleep(max(0.0, min(pause, deadline - clock.monotonic())))
    return _call(address, deadline, timeout, clock, handshake(), credentials)


def _call(
    address: str, deadline: float, timeout: float, clock: Clock, handshake: ClientHandshake, credentials: Credentials
) -> socket.socket:
    host, port = parse_address(address)

    def left() -> float:
        seconds = deadline - clock.monotonic()
        if seconds <= 0:
            raise TimeoutError(f"no handshake within {timeout:g} seconds")
        return seconds

    try:
        sock = socket.create_connection((host, port), timeout=left())
    except OSError as error:
        raise unreachable(address, error) from error
    try:
        tune(sock)
        if credentials.encrypted:
            sock = tls.wrap(sock, credentials, server=False)
            sock.settimeout(left())
            sock.do_handshake()
            tls.check_pin(sock, credentials)
        sock.sendall(handshake.start())
        while True:
            sock.settimeout(left())
            data = sock.recv(handshake.wanted)
            if not data:
                raise ConnectionResetError("end of the stream")
            step = handshake.receive(data)
            if step.reply:
                sock.sendall(step.reply)
            if step.error is not None:
                raise at_address(step.error, address)
            if step.done:
                sock.settimeout(None)
                return sock
    except OSError as error:
        sock.close()
        raise not_secured(address, error) from error
    except BaseException:
        sock.close()
        raise


def not_secured(address: str, error: OSError) -> BedloadError:
    """The error for a handshake that did not come to its end."""
    known = tls.explained(error)
    if isinstance(error, ConnectionResetError | BrokenPipeError | ssl.SSLEOFError):
        return unreachable(address, f"it closed the connection during the handshake ({error})", HungUp)
    return unreachable(address, error) if known is None else at_address(known, address)


def unreachable(
    address: str, cause: BaseException | str, kind: type[WorkerUnreachable] = WorkerUnreachable
) -> WorkerUnreachable:
    """The error for a connection that did not come up."""
    return (Unanswered if isinstance(cause, TimeoutError) else kind)(
        f"no connection to {address}: {cause}; check that its process runs and that the network lets this "
        "host reach it",
        address=address,
    )


def closed(address: str, how: str) -> WorkerUnreachable:
    """The error for a connection that ended."""
    return WorkerUnreachable(
        f"connection to {address} closed {how}; look at the log of the process at that address",
        address=address,
    )


def no_memory() -> ProtocolError:
    """The error for a frame that there is no room for."""
    return ProtocolError("no memory for a frame that came: use smaller batches")


def at_address(error: BedloadError, address: str) -> BedloadError:
    """The same error, saying with whom it happened."""
    return type(error)(f"{address}: {error.message}", **{**error.details, "address": address})


def _widen(sock: socket.socket) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        if _grants(option):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)


@functools.cache
def _grants(option: int) -> bool:
    """Whether the system allows buffers of our size.

    SUBTLE: Linux cuts the size to its limit without a word, and a size once set is never tuned again:
    where the limit is small, its own tuning reaches larger buffers than asking does.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        except OSError:
            return False
        return probe.getsockopt(socket.SOL_SOCKET, option) >= _BUFFER_BYTES
