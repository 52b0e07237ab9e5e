"""What a Redis may be like: each kind of trouble has its error, no call waits for ever, and nothing is taken for right
that is not.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.redis_server import RedisProcess, needs_redis

from bedload.core.errors import DefinitionError, RemoteStoreError
from bedload.core.ids import Turn, WorkerId
from bedload.store.remote import NEW, Whose, put, stamp_of
from bedload.worker.redis_remote import RedisServer, RedisServers, address_of

pytestmark = needs_redis
Start = Callable[..., RedisProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers, which end with the test."""
    started: list[RedisProcess] = []

    def start(*options: str) -> RedisProcess:
        started.append(RedisProcess(*options))
        return started[-1]

    yield start
    for process in started:
        process.close()


def at(url: str, home: str = "here") -> RedisServer:
    return RedisServer(url, WorkerId(3), home)


def writes(server: RedisServer, size: int) -> None:
    whose = Whose(b"x:places", b"0", b"0@3")
    stamp = stamp_of(Turn(1))
    for number in range(100):
        order = put(b"x:0:%d" % number, whose, server.owner, NEW, stamp, b"s", [(b"key", bytes(size))])
        server.open("x").do([order])


def test_a_server_that_does_not_answer_is_waited_for_no_longer_than_it_was_said(start: Start) -> None:
    redis = start()
    server = at(f"{redis.url}?deadline=0.2")
    server.prepare()
    redis.pause()
    for _ in range(2):  # the second time there is no connection
        with pytest.raises(RemoteStoreError, match=r"worker 3: the store redis://127.0.0.1:\d+/0 did not answer"):
            server.prepare()
    redis.go_on()
    at(redis.url).prepare()
    server._address = server._address._replace(seconds=30.0)
    server.prepare()


def test_a_server_that_is_not_there_is_named(start: Start) -> None:
    redis = start()
    server = at(redis.url)
    server.prepare()
    redis.stop()
    for _ in range(2):
        with pytest.raises(RemoteStoreError, match="cannot be reached"):
            server.prepare()
    redis.start()
    server.prepare()


def test_a_password_is_given_and_a_wrong_one_is_refused_without_being_shown(start: Start) -> None:
    redis = start("--requirepass", "s3cret")
    at(redis.url.replace("//", "//:s3cret@")).prepare()
    for url in (redis.url, redis.url.replace("//", "//:wr0ng@")):
        with pytest.raises(RemoteStoreError, match="refuses the user or the password") as raised:
            at(url).prepare()
        assert "wr0ng" not in str(raised.value)


def test_a_server_that_would_remove_state_is_refused(start: Start) -> None:
    redis = start("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    with pytest.raises(RemoteStoreError, match=r"maxmemory-policy is allkeys-lru.*Set maxmemory-policy noeviction"):
        at(redis.url).prepare()


def test_a_server_that_is_full_says_so(start: Start) -> None:
    redis = start("--maxmemory", "4mb", "--maxmemory-policy", "noeviction")
    server = at(redis.url)
    with pytest.raises(RemoteStoreError, match="is full"):
        writes(server, 1_000_000)
    server.call([("CONFIG", "SET", "maxmemory", "0")])
    writes(server, 10)


def test_a_replica_is_refused(start: Start) -> None:
    master = start()
    replica = start("--replicaof", "127.0.0.1", str(master.port))
    with pytest.raises(RemoteStoreError, match=f"is a replica.*127.0.0.1:{master.port}"):
        at(replica.url).prepare()


def test_a_server_that_becomes_a_replica_takes_no_writes(start: Start) -> None:
    redis = start()
    server = at(redis.url)
    server.prepare()
    server.call([("REPLICAOF", "127.0.0.1", "1")])
    with pytest.raises(RemoteStoreError, match="takes no writes"):
        writes(server, 10)


def test_another_attachment_with_the_same_names_is_refused(start: Start) -> None:
    redis = start()
    url = f"{redis.url}?prefix=mine"
    at(url, "one").prepare()
    at(url, "one").prepare()
    with pytest.raises(RemoteStoreError, match=r"begin with 'mine' are in use by another attachment.*\?prefix="):
        at(url, "two").prepare()
    at(redis.url, "two").prepare()
    at(redis.url, "three").prepare()


def test_the_script_is_there_again_after_the_server_was_started_again(start: Start) -> None:
    redis = start()
    server = at(redis.url)
    writes(server, 10)
    redis.stop()
    redis.start()
    with pytest.raises(RemoteStoreError):
        writes(server, 10)
    writes(server, 10)


def test_a_connection_can_be_encrypted(start: Start, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
        .not_valid_after(dt.datetime(2100, 1, 1, tzinfo=dt.UTC))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    cert, secret = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    options = ("--tls-cert-file", str(cert), "--tls-key-file", str(secret), "--tls-ca-cert-file", str(cert))
    plain = start()
    port = plain.port + 1 if plain.port < 65000 else plain.port - 1
    start("--tls-port", str(port), "--tls-auth-clients", "no", *options)
    url = f"rediss://127.0.0.1:{port}/0"
    at(f"{url}?ssl_ca_certs={cert}").prepare()
    with pytest.raises(RemoteStoreError, match="cannot be reached"):
        at(url).prepare()


@pytest.mark.parametrize(
    "url", ["redis://", "redis://host:port", "redis://host?deadline=soon", "redis://host?prefix=a+b"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(DefinitionError):
        address_of(url)


def test_operators_of_a_worker_share_a_connection(start: Start) -> None:
    redis = start()
    servers = RedisServers(WorkerId(0), "file:///checkpoint")
    one, two = servers.open("a", redis.url), servers.open("b", redis.url)
    assert one.prefix != two.prefix
    one.do([])
    servers.prepare(redis.url)
    assert servers.lost is None
    two.lose("it is gone")
    assert servers.lost is not None
    servers.close()
