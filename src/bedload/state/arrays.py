"""NumPy arrays of a fixed shape and dtype as state.

To operator code a state array is a plain ``numpy.ndarray``. All of NumPy writes into its memory, through views,
``out=`` and C code, and nothing of that can be hooked. So it is memory that is tracked: operator code never gets hold
of committed memory. The array that it works on is a copy, made when the key is first touched in an epoch; the committed
one is the before-image. At the seal the bytes of both are compared, and what differs is copied once more.

Invariants: between epochs the array of a key is contiguous, read-only, and nobody else's: to write into one that was
kept from an earlier epoch is an error, or has no effect. An array that an epoch left as it was, is the same object
after it.

In Arrow an array is a fixed-size list, one within the other for more dimensions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import StateTypeError
from bedload.state.handling import mismatch
from bedload.state.types import TypeNode

Array: TypeAlias = npt.NDArray[Any]

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)


@dataclasses.dataclass(frozen=True)
class ArrayNode(TypeNode):
    """A NumPy array. Its values are handled whole, so to the journal it is no container."""

    dims: tuple[int, ...]
    dtype: str

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The dtype, in this machine's byte order."""
        return np.dtype(self.dtype)

    @property
    def nbytes(self) -> int:
        """Of one value."""
        return math.prod(self.dims) * self.numpy.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.dims))}]"


def array_node(shape: Any, dtype: Any) -> ArrayNode:
    """The node of what a user gave; raises :class:`ValueError` that says what to give instead."""
    dims = (shape,) if isinstance(shape, int) else shape
    sizes = isinstance(dims, tuple | list) and all(type(size) is int and size >= 1 for size in dims)
    if not sizes or not dims:
        raise ValueError(f"the shape is {shape!r}; give a positive int, or a tuple of them, as in (3, 4)")
    try:
        name = np.dtype(dtype).name
    except TypeError:
        name = ""
    if name not in DTYPES:
        raise ValueError(f"the dtype is {dtype!r}; use one of {', '.join(DTYPES)}")
    return ArrayNode(tuple(dims), name)


def is_array_type(annotation: Any) -> bool:
    """Whether an annotation is ``np.ndarray``, or ``npt.NDArray[...]``."""
    return annotation is np.ndarray or getattr(annotation, "__origin__", None) is np.ndarray


def annotated_dtype(annotation: Any) -> str | None:
    """The dtype of ``npt.NDArray[np.float32]``; None if the annotation leaves it open."""
    try:
        name = annotation.__args__[1].__args__[0].__name__
    except (AttributeError, IndexError):
        return None
    return name if name in DTYPES else None


# --- values ---


def fitted(node: ArrayNode, value: Any) -> Array:
    """The value with the declared dtype; refused if it has another shape, or a dtype with other values."""
    if type(value) is not np.ndarray:
        raise mismatch(node, value)
    if value.shape == node.dims:
        if value.dtype == node.numpy:
            return value
        # NumPy says that large integers become floats safely, but many of them have none.
        rounds = value.dtype.kind in "iu" and value.dtype.itemsize == 8 and node.numpy.kind == "f"
        if np.can_cast(value.dtype, node.numpy, "safe") and not rounds:
            return value.astype(node.numpy)
        advice = f"Change the array in place, or convert what you assign: .astype({node.dtype!r})"
    else:
        advice = f"The shape of an array is declared and does not change: assign one of shape {node.dims}"
    raise StateTypeError(f"expected {node}, got {value.dtype}{list(value.shape)}. {advice}")


def pack_array(node: ArrayNode, value: Any) -> bytes:
    """The bytes of a value."""
    return fitted(node, value).tobytes()


def unpack_array(node: ArrayNode, data: bytes) -> Array:
    """An array of its own from its bytes."""
    return np.frombuffer(data, node.numpy).reshape(node.dims).copy()


def frozen(value: Array) -> Array:
    """A copy that nobody has, and that is not written into."""
    made = np.array(value, order="C")
    made.flags.writeable = False
    return made


def settled(node: ArrayNode, value: Any, before: Array | None) -> Any:
    """What stays of the array that an epoch worked on: the one of before, if nothing changed.

    A value that does not fit stays as it is, for the check that names it with its key.
    """
    try:
        made = fitted(node, value)
    except StateTypeError:
        return value
    return frozen(made) if before is None or differ(made, before) else before


def differ(value: Any, before: Any) -> bool:
    """Whether two arrays have other bytes: unlike equality, it tells apart zeros and takes NaN for itself."""
    if value is before:
        return False
    if type(value) is not np.ndarray or value.dtype != before.dtype or value.shape != before.shape:
        return True
    return bool(value.tobytes() != before.tobytes())


# --- columns ---


def list_type(node: ArrayNode) -> pa.DataType:
    """The Arrow type: lists of a fixed size, one within the other."""
    kind = pa.from_numpy_dtype(node.numpy)
    for size in reversed(node.dims):
        kind = pa.list_(kind, size)
    return kind


def array_column(node: ArrayNode, values: Sequence[Any], rows: int | None = None, at: Any = ()) -> pa.Array:
    """A column of arrays; with ``rows`` it is so long, null but for the rows ``at``."""
    block = np.zeros((len(values) if rows is None else rows, *node.dims), node.numpy)
    places = range(len(values)) if rows is None else at
    for place, value in zip(places, values, strict=True):
        block[place] = fitted(node, value)
    mask = None
    if rows is not None and len(values) < rows:
        gone = np.ones(rows, np.bool_)
        gone[list(at)] = False
        mask = pa.array(gone)
    return nested(pa.array(block.reshape(-1)), node.dims, mask)


def nested(flat: pa.Array, dims: Sequence[int], mask: pa.Array | None = None) -> pa.Array:
    """The values of arrays, one after the other, as fixed-size lists."""
    made = flat
    for size in reversed(dims[1:]):
        made = pa.FixedSizeListArray.from_arrays(made, size)
    return pa.FixedSizeListArray.from_arrays(made, dims[0], mask=mask)


def flat_values(column: pa.Array) -> pa.Array:
    """The values of arrays that are not null, one after the other."""
    while pa.types.is_fixed_size_list(column.type):
        column = column.flatten()
    return column


def column_arrays(node: ArrayNode, column: pa.Array) -> list[Array]:
    """The arrays of a column without nulls, each its own."""
    flat = flat_values(column)
    if flat.null_count:
        raise StateTypeError(f"there are nulls in an array, {node}; put numbers in their places")
    block = flat.to_numpy(zero_copy_only=False).reshape(-1, *node.dims)
    return [np.array(value) for value in block]


def array_of_lists(node: ArrayNode, value: Any) -> Array:
    """The array of what Arrow gives for one."""
    (made,) = column_arrays(node, pa.array([value], list_type(node)))
    return made
