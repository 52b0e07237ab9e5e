"""A Redis server as the store of operators: one connection, in which each order is one call of a script.

Every call has a deadline. What has failed may have been done or not, so nothing is said twice; the next call connects
anew. Nothing of what is there is trusted for longer than a call: each answer is of a place whose head is looked at.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any, NamedTuple, NoReturn
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from bedload.core.errors import DefinitionError, RemoteStoreError
from bedload.core.ids import WorkerId
from bedload.store.remote import HEAD, Answer, Remote

_SECONDS = 10.0
"""How long a call may take."""
_TOGETHER = 1 << 20
"""About the bytes of orders that are under way at a time."""
_ASKED = 4096
"""About the names that are read at a time."""
_NAMES = 1000
_PREFIX = "bedload"
_SCRIPT = object()
"""In place of a command: the script."""


class Address(NamedTuple):
    """What a URL says."""

    url: str
    """For the client, without what is ours."""
    prefix: str
    seconds: float
    shown: str
    """Without the password, to be read by people."""


def address_of(url: str) -> Address:
    """Take a URL apart; raises a DefinitionError that says what is wrong with it."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    prefix, seconds = query.pop("prefix", ""), query.pop("deadline", str(_SECONDS))
    try:
        within = float(seconds)
        port = parts.port
    except ValueError as error:
        raise DefinitionError(f"store={_shown(url)!r}: {error}") from None
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or not within > 0:
        raise DefinitionError(
            f"store={_shown(url)!r}: give the address of a Redis server, as redis://user:password@host:6379/0 or, with "
            f"TLS, rediss://…; ?prefix= is what its names begin with, ?deadline= how many seconds a call may take"
        )
    if any(it.isspace() for it in prefix):
        raise DefinitionError(f"store={_shown(url)!r}: prefix={prefix!r} has a blank")
    plain = urlunsplit(parts._replace(query=urlencode(query)))
    return Address(plain, prefix, within, f"{parts.scheme}://{parts.hostname}:{port or 6379}{parts.path}")


def _shown(url: str) -> str:
    parts = urlsplit(url)
    return url if parts.password is None else url.replace(f":{parts.password}@", ":…@")


class RedisServer:
    """The connection of a worker to one server."""

    def __init__(self, url: str, worker: WorkerId, home: str = "") -> None:
        """``home``: the checkpoint that the state belongs to; the names of another one are left alone."""
        self._address = address_of(url)
        named = hashlib.sha256(home.encode()).hexdigest()[:16]
        self.prefix = (self._address.prefix or f"{_PREFIX}:{named}").encode()
        self.owner = f"{worker}.{os.getpid()}.{os.urandom(6).hex()}".encode()
        self.lost: RemoteStoreError | None = None
        self._worker, self._home = worker, home
        self._connection: Any = None
        self._script = b""
        self._redis = _package()

    def open(self, operator: str) -> RedisRemote:
        """That of an operator."""
        return RedisRemote(self, self.prefix + b":" + operator.encode())

    def prepare(self) -> None:
        """See that it is there, and fit. Raises what is wrong with it."""
        self.call([("PING",)])

    def call(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Say these together, and give the answers; the first that is an error is raised."""
        deadline = time.monotonic() + self._address.seconds
        try:
            connection = self._connected(deadline)
            return self._said(connection, commands, deadline)
        except self._redis.RedisError as error:
            self._disconnect()
            self._fail(error)
        except OSError as error:
            self._disconnect()
            self._fail(error)

    def run(self, orders: Sequence[Sequence[Any]]) -> list[Any]:
        """The script, for each of these."""
        return self.call([(_SCRIPT, *order) for order in orders])

    def _said(self, connection: Any, commands: Sequence[tuple[Any, ...]], deadline: float) -> list[Any]:
        # Its name is not known before there is a connection.
        commands = [("EVALSHA", self._script, 0, *it[1:]) if it[0] is _SCRIPT else it for it in commands]
        connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        answers, wrong = list[Any](), None
        for _ in commands:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._redis.TimeoutError(f"no answer within {self._address.seconds:g} seconds")
            connection._sock.settimeout(left)  # of a call as a whole: the package has one for each answer
            try:
                answers.append(connection.read_response())
            except self._redis.ResponseError as error:
                wrong = wrong or error
        if wrong is not None:
            raise wrong
        return answers

    def _connected(self, deadline: float) -> Any:
        if self._connection is not None:
            return self._connection
        from redis.backoff import NoBackoff
        from redis.connection import Connection, parse_url
        from redis.retry import Retry

        given: dict[str, Any] = parse_url(self._address.url)  # type: ignore[no-untyped-call]
        kind = given.pop("connection_class", Connection)
        seconds = max(deadline - time.monotonic(), 0.001)
        given |= {
            "socket_timeout": seconds,
            "socket_connect_timeout": seconds,
            "retry": Retry(NoBackoff(), 0),
            "decode_responses": False,
            "protocol": 2,
        }
        connection = kind(**given)
        try:
            connection.connect()
            (facts,) = self._said(connection, [("INFO",)], deadline)
            self._look_at(dict(line.split(":", 1) for line in facts.decode().splitlines() if ":" in line))
            source = resources.files("bedload.worker").joinpath("redis.lua").read_bytes()
            name = self.prefix + b":home"
            said = [("SCRIPT", "LOAD", source), ("SET", name, self._home, "NX"), ("GET", name)]
            self._script, _, home = self._said(connection, said, deadline)
            if home != self._home.encode():
                raise RemoteStoreError(
                    f"{self._where}: names that begin with {self.prefix.decode()!r} are in use by another attachment, "
                    f"of checkpoint {home.decode(errors='replace')!r}: give each a prefix of its own, as in "
                    f"?prefix=mine, or remove that one's names"
                )
        except BaseException:
            connection.disconnect()
            raise
        self._connection = connection
        return connection

    def _look_at(self, facts: dict[str, str]) -> None:
        policy = facts.get("maxmemory_policy", "noeviction")
        if facts.get("maxmemory", "0") != "0" and policy != "noeviction":
            raise RemoteStoreError(
                f"{self._where}: its maxmemory-policy is {policy}, so it removes state when it is full. Set "
                f"maxmemory-policy noeviction (redis-cli config set maxmemory-policy noeviction, and in its file)"
            )
        if facts.get("role") == "slave":
            raise RemoteStoreError(
                f"{self._where} is a replica, which takes no writes: give the address of its master "
                f"({facts.get('master_host')}:{facts.get('master_port')})"
            )

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def close(self) -> None:
        """The worker ends."""
        self._disconnect()

    @property
    def _where(self) -> str:
        return f"worker {self._worker}: the store {self._address.shown}"

    def _fail(self, error: Exception) -> NoReturn:
        kinds, said = self._redis, str(error)
        if isinstance(error, kinds.AuthenticationError) or said.startswith(("NOAUTH", "WRONGPASS", "invalid username")):
            what = f"refuses the user or the password: {said}. Give them in the URL: redis://user:password@host:6379/0"
        elif isinstance(error, kinds.OutOfMemoryError) or said.startswith("OOM") or "OOM command" in said:
            what = f"is full: {said}. Give it more memory (maxmemory), or remove what else is there"
        elif isinstance(error, kinds.ReadOnlyError) or "READONLY" in said:
            what = f"takes no writes: {said}. Give the address of the master"
        elif isinstance(error, kinds.NoPermissionError) or said.startswith("NOPERM"):
            what = f"does not allow it: {said}. Give its user the commands of hashes and scripts, and its names"
        elif isinstance(error, kinds.TimeoutError):
            what = f"did not answer within {self._address.seconds:g} seconds ({said}). See that it runs"
        elif isinstance(error, kinds.ResponseError):
            what = f"refused: {said}"
        else:
            what = f"cannot be reached: {said}. See that it runs and is reachable"
        raise RemoteStoreError(
            f"{self._where} {what}; then start the query again. Nothing committed is lost"
        ) from error


class RedisServers:
    """Those of a worker: one connection to each."""

    def __init__(self, worker: WorkerId, checkpoint: str) -> None:
        self._worker = worker
        self._checkpoint = checkpoint
        self._servers: dict[str, RedisServer] = {}

    def open(self, operator: str, url: str) -> Remote:
        """The names of an operator."""
        return self._at(url).open(operator)

    def prepare(self, url: str) -> None:
        """See that a server is there, and fit. Raises what is wrong with it."""
        self._at(url).prepare()

    @property
    def lost(self) -> RemoteStoreError | None:
        """Why state is not to be trusted any more."""
        return next((it.lost for it in self._servers.values() if it.lost is not None), None)

    def close(self) -> None:
        """The worker ends."""
        for server in self._servers.values():
            server.close()

    def _at(self, url: str) -> RedisServer:
        if url not in self._servers:
            self._servers[url] = RedisServer(url, self._worker, self._checkpoint)
        return self._servers[url]


class RedisRemote:
    """The names of one operator."""

    def __init__(self, server: RedisServer, prefix: bytes) -> None:
        self._server = server
        self.prefix = prefix
        self.owner = server.owner

    def read(self, asks: Sequence[tuple[bytes, Sequence[bytes]]]) -> list[list[bytes | None]]:
        """What lies in places under these names."""
        found: list[list[bytes | None]] = []
        said, wanted = list[tuple[Any, ...]](), 0
        for place, names in asks:
            said.append(("HMGET", place, *names))
            wanted += len(names)
            if wanted >= _ASKED:
                found += self._server.call(said)
                said, wanted = [], 0
        return [*found, *self._server.call(said)] if said else found

    def do(self, orders: Sequence[list[Any]]) -> list[Answer]:
        """Follow orders, one after the other."""
        answers: list[Answer] = []
        some, size = list[list[Any]](), 0
        for order in orders:
            said = list[Any]()
            for part in order:
                said += [len(part), *part] if isinstance(part, list) else [part]
            some.append(said)
            size += sum(len(it) for it in said if isinstance(it, bytes))
            if size >= _TOGETHER:
                answers += self._server.run(some)
                some, size = [], 0
        return [*answers, *self._server.run(some)] if some else answers

    def names(self, place: bytes) -> Iterator[bytes]:
        """The names in a place, but for the head."""
        cursor, seen = b"0", set[bytes]()
        while True:
            ((cursor, some),) = self._server.call([("HSCAN", place, cursor, "COUNT", _NAMES)])
            new = [name for name in some[::2] if name != HEAD and name not in seen]
            seen.update(new)
            yield from new
            if cursor == b"0":
                return

    def size(self) -> int:
        """The bytes of memory that the server has in use."""
        ((facts),) = self._server.call([("INFO", "memory")])
        line = next((it for it in facts.decode().splitlines() if it.startswith("used_memory:")), "used_memory:0")
        return int(line.split(":")[1])

    def lose(self, why: str) -> RemoteStoreError:
        """State that should be there is not."""
        self._server.lost = self._server.lost or RemoteStoreError(f"{self._server._where}: {why}")
        return self._server.lost

    def close(self) -> None:
        """The operator needs it no more; what is there stays."""


def _package() -> Any:
    try:
        import redis
    except ImportError as error:
        raise DefinitionError(
            "store='redis://…' needs the package redis, which is not installed where the workers run: "
            "pip install 'bedload[redis]'"
        ) from error
    return redis.exceptions


_: type[Remote] = RedisRemote
