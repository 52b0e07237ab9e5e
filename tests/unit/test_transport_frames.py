"""Frames and addresses: pure, no sockets."""

import array
import ctypes
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedload.core.errors import ProtocolError, TooLarge
from bedload.transport import (
    MAX_BODY,
    MAX_HEADER,
    Frame,
    FrameReader,
    SendQueue,
    encode_frame,
    format_address,
    parse_address,
)

frames = st.tuples(st.binary(max_size=200), st.lists(st.binary(max_size=300), max_size=6))


def read_all(stream: bytes, sizes: list[int]) -> list[Frame]:
    """Feed the stream to a reader in pieces of the given sizes, over and over."""
    reader, found, at, turn = FrameReader(), [], 0, 0
    while at < len(stream):
        space = reader.space()
        piece = stream[at : at + min(len(space), sizes[turn % len(sizes)])]
        space[: len(piece)] = piece
        at += len(piece)
        turn += 1
        frame = reader.filled(len(piece))
        if frame is not None:
            found.append(frame)
    assert reader.between_frames
    return found


def prefix(magic: bytes, header: int, body: int) -> bytes:
    return struct.pack("<4sIQ", magic, header, body)


@given(st.lists(frames, max_size=8), st.lists(st.integers(1, 400), min_size=1, max_size=10))
def test_frames_survive_any_chunking(sent, sizes):
    stream = b"".join(b"".join(encode_frame(header, buffers)) for header, buffers in sent)
    got = read_all(stream, sizes)
    assert [(f.header, bytes(f.body or b"")) for f in got] == [(h, b"".join(bs)) for h, bs in sent]
    assert all((f.body is None) == (not any(bs)) for f, (_, bs) in zip(got, sent, strict=True))


@given(st.integers(0, 200), st.integers(1, 5000))
def test_a_received_body_is_aligned(header_size, body_size):
    (frame,) = read_all(b"".join(encode_frame(bytes(header_size), [bytes(body_size)])), [1 << 20])
    assert frame.body is not None
    assert ctypes.addressof(ctypes.c_char.from_buffer(frame.body)) % 64 == 0


def test_a_reader_takes_no_byte_of_the_next_frame():
    reader = FrameReader()
    assert len(reader.space()) == 16
    reader.space()[:] = prefix(b"BLF1", 3, 5)
    assert reader.filled(16) is None
    assert len(reader.space()) == 8
    assert not reader.between_frames


def test_bodies_of_successive_frames_share_no_memory():
    stream = b"".join(encode_frame(b"", [b"aaaa"])) + b"".join(encode_frame(b"", [b"bbbb"]))
    first, second = read_all(stream, [7])
    assert first.body is not None
    first.body[:] = b"zzzz"
    assert second.body == b"bbbb"


def test_buffers_of_every_shape_are_sent_as_their_bytes():
    numbers = array.array("d", [1.0, 2.0])
    grid = memoryview(bytes(range(12))).cast("B", (3, 4))
    buffers = [numbers, memoryview(array.array("q")), b"", grid]
    (frame,) = read_all(b"".join(encode_frame(b"h", buffers)), [9])
    assert frame.body == numbers.tobytes() + bytes(range(12))


def test_encoding_copies_no_body():
    body = bytearray(b"before")
    views = encode_frame(b"h", [body])
    body[:] = b"after!"
    assert b"".join(views).endswith(b"after!")


def test_a_large_header_arrives_whole():
    header = bytes(range(256)) * 1024
    (frame,) = read_all(b"".join(encode_frame(header, [b"x"])), [100_000])
    assert frame == (header, b"x")


@pytest.mark.parametrize(
    "start",
    [
        prefix(b"GET ", 1, 1),
        prefix(b"BLF1", MAX_HEADER + 1, 0),
        prefix(b"BLF1", 0, MAX_BODY + 1),
    ],
    ids=["magic", "header size", "body size"],
)
def test_a_damaged_prefix_is_refused(start):
    reader = FrameReader()
    reader.space()[:] = start
    with pytest.raises(ProtocolError):
        reader.filled(len(start))


def test_a_frame_over_the_limits_is_not_sent():
    block = bytes(64 * 1024 * 1024)
    with pytest.raises(TooLarge, match=r"a message has a header of 67,108,865 bytes .* nothing was sent"):
        encode_frame(block + b"x")
    with pytest.raises(TooLarge, match=r"and 4,362,076,160 bytes of rows or state"):
        encode_frame(b"", [block] * 65)


@given(
    st.lists(st.binary(min_size=1, max_size=50), max_size=30),
    st.lists(st.integers(0, 120), min_size=1, max_size=10).filter(any),
)
def test_a_queue_gives_its_bytes_once_and_in_order_whatever_the_socket_takes(pieces, takes):
    queue, out, turn = SendQueue(), b"", 0
    queue.push(memoryview(piece) for piece in pieces)
    while queue.pending:
        offered = b"".join(queue.next_vectors())
        taken = min(takes[turn % len(takes)], len(offered))
        out += offered[:taken]
        queue.sent(taken)
        turn += 1
    assert out == b"".join(pieces)
    assert queue.next_vectors() == []


def test_a_queue_offers_no_more_vectors_than_a_system_call_takes():
    queue = SendQueue()
    queue.push(memoryview(b"x") for _ in range(5000))
    assert 0 < len(queue.next_vectors()) <= 1024
    assert queue.pending == 5000


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::1]:123", ("::1", 123)),
        ("node-7.lan:65535", ("node-7.lan", 65535)),
    ],
)
def test_addresses_are_taken_apart_and_put_together(address, parts):
    assert parse_address(address) == parts
    assert format_address(*parts) == address


@pytest.mark.parametrize("address", ["", "host", "host:", ":80", "host:x", "host:65536", "::1:80", "[]:80", "h:-1"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ProtocolError, match="host:port"):
        parse_address(address)
