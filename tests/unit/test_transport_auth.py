"""The handshake as pure state: bytes in, steps out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedload.core.errors import ProtocolError, SecretRefused, VersionMismatch
from bedload.transport import ClientHandshake, ServerHandshake
from bedload.transport.auth import Step

SECRET = b"correct horse"


def feed(handshake: ClientHandshake | ServerHandshake, message: bytes, piece: int = 1000) -> Step:
    """Give a whole message in pieces; return the last step."""
    step = Step()
    while message:
        size = min(piece, handshake.wanted)
        step, message = handshake.receive(message[:size]), message[size:]
        if step.error is not None:
            break
    return step


def shake(client: ClientHandshake, server: ServerHandshake, piece: int = 1000) -> tuple[Step, Step]:
    """The whole exchange: how it ended for the client and for the server."""
    first = client.start()
    answer = feed(client, server.start(), piece)
    at_server = feed(server, first + answer.reply, piece)
    return feed(client, at_server.reply, piece), at_server


@given(st.integers(1, 120), st.binary(min_size=1, max_size=100))
def test_both_ends_accept_the_same_secret_in_pieces_of_any_size(piece, secret):
    at_client, at_server = shake(ClientHandshake(secret), ServerHandshake(secret), piece)
    assert at_client.done
    assert at_server.done
    assert at_client.error is None
    assert at_server.error is None


@given(st.binary(min_size=1, max_size=100).filter(lambda s: s.rstrip(b"\0") != SECRET))
def test_both_ends_refuse_another_secret(other):
    at_client, at_server = shake(ClientHandshake(other), ServerHandshake(SECRET))
    assert isinstance(at_client.error, SecretRefused)
    assert isinstance(at_server.error, SecretRefused)
    assert not at_client.done
    assert not at_server.done


def test_different_versions_are_named_at_both_ends():
    at_client, at_server = shake(ClientHandshake(SECRET, "1.0"), ServerHandshake(SECRET, "2.0"))
    assert isinstance(at_client.error, VersionMismatch)
    assert isinstance(at_server.error, VersionMismatch)
    assert (at_client.error.ours, at_client.error.theirs) == ("1.0", "2.0")
    assert (at_server.error.ours, at_server.error.theirs) == ("2.0", "1.0")
    assert "1.0" in str(at_client.error)
    assert "2.0" in str(at_client.error)


def test_a_stranger_with_another_version_learns_only_that_it_is_refused():
    at_client, at_server = shake(ClientHandshake(b"guess", "1.0"), ServerHandshake(SECRET, "2.0"))
    assert isinstance(at_client.error, SecretRefused)
    assert isinstance(at_server.error, SecretRefused)


def test_a_server_without_the_secret_is_not_believed():
    client = ClientHandshake(SECRET)
    impostor = ServerHandshake(b"guess")
    feed(client, impostor.start())
    step = feed(client, b"BLH1+" + bytes(32))
    assert isinstance(step.error, SecretRefused)
    assert not step.done


def test_a_servers_welcome_is_not_forged_from_the_clients_own_proof():
    client = ClientHandshake(SECRET)
    answer = feed(client, ServerHandshake(b"guess").start())
    step = feed(client, b"BLH1+" + answer.reply[-32:])
    assert isinstance(step.error, SecretRefused)


def test_a_mismatch_of_versions_is_not_forged_into_a_welcome():
    client, server = ClientHandshake(SECRET, "1"), ServerHandshake(SECRET, "2")
    verdict = feed(server, client.start() + feed(client, server.start()).reply).reply
    step = feed(client, verdict.replace(b"BLH1v", b"BLH1+"))
    assert isinstance(step.error, SecretRefused)


def test_an_answer_heard_on_one_connection_opens_no_other():
    client = ClientHandshake(SECRET)
    heard = client.start() + feed(client, (first := ServerHandshake(SECRET)).start()).reply
    assert feed(first, heard).done
    assert isinstance(feed(ServerHandshake(SECRET), heard).error, SecretRefused)


@pytest.mark.parametrize("end", [ClientHandshake, ServerHandshake])
def test_the_first_wrong_byte_of_a_stranger_ends_it_without_a_reply(end):
    step = end(SECRET).receive(b"G")
    assert isinstance(step.error, ProtocolError)
    assert step.reply == b""


def test_a_server_holds_few_bytes_of_a_caller():
    assert ServerHandshake(SECRET).wanted <= 128


@pytest.mark.parametrize("end", [ClientHandshake, ServerHandshake])
def test_an_empty_secret_is_refused_before_anything_is_sent(end):
    with pytest.raises(SecretRefused, match="empty"):
        end(b"")


@pytest.mark.parametrize("version", ["", "x" * 33])
def test_a_version_that_does_not_fit_is_refused(version):
    with pytest.raises(ProtocolError, match="version"):
        ServerHandshake(SECRET, version)


def test_nonces_come_from_the_given_source():
    asked = []

    def nonces(size: int) -> bytes:
        asked.append(size)
        return b"n" * size

    greeting = ServerHandshake(SECRET, nonces=nonces).start()
    assert b"n" * 32 in greeting
    assert asked == [32]
