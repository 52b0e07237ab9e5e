"""Values that are kept as the bytes of a codec, which the user asked for by name.

Invariants: the first byte names the codec that wrote the rest, and no other codec reads it; above
all, bytes that pickle wrote are never unpickled for a variable that was not declared so.

Why a tag and not the declaration alone: a declaration can change between writing and reading, and
unpickling what another codec wrote, or what somebody else put there, runs code.
"""

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import Any

import msgspec

from bedload.core.errors import StateTypeError
from bedload.state.types import OpaqueNode

_TAGS = {"msgspec": b"M", "pickle": b"P"}
_CODECS = {tag: codec for codec, tag in _TAGS.items()}


@lru_cache(maxsize=256)
def _decoder(node: OpaqueNode) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(Any if node.annotation is object else node.annotation)


_encoder = msgspec.msgpack.Encoder()


def check_codec(node: OpaqueNode, where: str) -> None:
    """Refuse an annotation that the codec could write but not read back."""
    if node.codec != "msgspec" or node.annotation is object:
        return
    try:
        info = msgspec.inspect.type_info(node.annotation)
    except TypeError as bad:
        raise StateTypeError(f'{where}: msgspec cannot handle {node} ({bad}); ask for codec="pickle"') from None
    if isinstance(info, msgspec.inspect.CustomType):
        raise StateTypeError(
            f"{where}: msgspec writes but cannot read {node}; make it a dataclass or a msgspec.Struct, "
            'or ask for codec="pickle"'
        )


def encode_opaque(node: OpaqueNode, value: Any) -> bytes:
    """The bytes of a value."""
    try:
        body = _encoder.encode(value) if node.codec == "msgspec" else pickle.dumps(value, protocol=5)
    except BaseException as bad:  # pickling and msgspec's hooks run user code, which may raise anything
        raise StateTypeError(
            f"codec {node.codec!r} cannot encode a {type(value).__name__} ({bad}): {value!r:.200}"
        ) from bad
    return _TAGS[node.codec] + body


def decode_opaque(node: OpaqueNode, data: bytes) -> Any:
    """The value of some bytes; refused if another codec wrote them."""
    wrote = _CODECS.get(data[:1])
    if wrote != node.codec:
        raise StateTypeError(
            f"stored by {f'codec {wrote!r}' if wrote else 'an unknown codec'}, declared with codec "
            f"{node.codec!r}: not read. Declare the codec that wrote it, or drop the stored value"
        )
    if node.codec == "pickle":
        return pickle.loads(data[1:])
    try:
        return _decoder(node).decode(data[1:])
    except msgspec.MsgspecError as bad:
        raise StateTypeError(f"the stored value is not a {node} ({bad})") from None
