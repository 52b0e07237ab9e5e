"""Frames over TCP between driver, workers and feeders.

An :class:`Endpoint` serves many peers on one thread; a :class:`Channel` is a blocking connection to
one. Both ends prove that they know the cluster's secret before a frame is read; with a certificate among
their :class:`Credentials` they encrypt as well. What a frame says is the protocol layer's business: here a
header is bytes and a body is memory.
"""

from bedload.transport.auth import PROTOCOL_VERSION, ClientHandshake, NonceSource, ServerHandshake
from bedload.transport.channel import Channel, wait
from bedload.transport.credentials import Credentials
from bedload.transport.endpoint import Endpoint
from bedload.transport.frames import MAX_BODY, MAX_HEADER, Frame, FrameReader, SendQueue, encode_frame
from bedload.transport.handler import Handler
from bedload.transport.peer import Peer, Phase
from bedload.transport.pool import ChannelPool
from bedload.transport.sockets import format_address, is_loopback, parse_address
from bedload.transport.timers import Timer

__all__ = [
    "MAX_BODY",
    "MAX_HEADER",
    "PROTOCOL_VERSION",
    "Channel",
    "ChannelPool",
    "ClientHandshake",
    "Credentials",
    "Endpoint",
    "Frame",
    "FrameReader",
    "Handler",
    "NonceSource",
    "Peer",
    "Phase",
    "SendQueue",
    "ServerHandshake",
    "Timer",
    "encode_frame",
    "format_address",
    "is_loopback",
    "parse_address",
    "wait",
]
