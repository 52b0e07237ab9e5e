"""Keys as words: every key becomes a fixed number of 64-bit integers, equal if and only if the keys are equal.

Numbers, dates and times are their bits (minus zero is zero, every NaN the same one), decimals their unscaled value in
one word or two. Strings and binaries are interned: their word is the number under which the value is kept. A composite
key has one more word, with a bit for each column that is null; so has a single column, if asked for, else it is never
null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.errors import KeyTypeError, NullKey
from bedload.core.ids import KeyGroup
from bedload.keys import check_key_type
from bedload.keys.columns import floats_of, longs_of, numbers_of
from bedload.keys.kinds import KeyKind, kind_of, value_type
from bedload.store.columns.index import KeyIndex
from bedload.store.columns.interner import Interner, NumbersOf
from bedload.store.columns.memory import PLAIN, Memory

Words = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MAX_COLUMNS = 63
"""One bit each in the word of nulls."""

_BLOCKS = 128
"""Blocks of slots whose keys are looked at together."""

_EXACT = frozenset({KeyKind.SMALL_DECIMAL, KeyKind.LARGE_DECIMAL, KeyKind.FIXED_BINARY})


class KeyWords:
    """Turns key columns into words and back."""

    def __init__(self, types: Sequence[pa.DataType], memory: Memory = PLAIN, *, nullable: bool = False) -> None:
        """``nullable``: a key of a single column may be null."""
        if not 0 < len(types) <= MAX_COLUMNS:
            raise KeyTypeError(f"a key has from 1 to {MAX_COLUMNS} columns, not {len(types)}")
        for i, kind in enumerate(types):
            check_key_type(kind, f"#{i}")
        self.types = tuple(value_type(kind) for kind in types)
        """The types of the key's columns, as decoded: dictionaries are a layout, not a type."""
        self._columns = [_coder(kind, memory) for kind in self.types]
        self._has_nulls = nullable or len(types) > 1
        ends = np.cumsum([coder.width for coder in self._columns]).tolist()
        self._spans = [slice(end - coder.width, end) for coder, end in zip(self._columns, ends, strict=True)]
        self.width = ends[-1] + self._has_nulls

    def encode(self, columns: Sequence[pa.Array], *, intern: bool = True) -> Words:
        """The words of each row. Unless ``intern``, bytes that are not known yet give a word that nothing has."""
        if len(columns) != len(self.types) or len({len(column) for column in columns}) > 1:
            lengths = [len(column) for column in columns]
            raise KeyTypeError(f"the key has {len(self.types)} columns, but columns of {lengths} rows were given")
        if not self._has_nulls:
            null = _nulls(columns[0]) if intern else None
            if null is not None and null.any():
                raise NullKey(f"{int(null.sum())} of {len(null)} rows have a null key: filter them out before")
            return self._encode(0, columns[0], intern)
        words = np.zeros((len(columns[0]), self.width), np.int64)
        for i, column in enumerate(columns):
            encoded = self._encode(i, column, intern)
            null = _nulls(column)
            if null is not None:
                encoded = np.where(null[:, None], 0, encoded)
                words[:, -1] |= null.astype(np.int64) << i
            words[:, self._spans[i]] = encoded
        return words

    def no_keys(self, columns: Sequence[pa.Array]) -> Mask | None:
        """Rows that cannot be a key: null in the only column. Their words mean nothing."""
        return None if self._has_nulls else _nulls(columns[0])

    def decode(self, words: Words) -> list[pa.Array]:
        """The key columns of these words, whose memory they may share."""
        out = []
        for i, coder in enumerate(self._columns):
            null = self._null(words, i)
            out.append(coder.decode(words[:, self._spans[i]], null if null is not None and null.any() else None))
        return out

    @property
    def longest(self) -> int:
        """Bytes beside the words that no key has more of."""
        return sum(coder.longest for coder in self._columns)

    def weight(self, words: Words) -> int:
        """Bytes beside the words that these keys have."""
        return sum(coder.weight(self._given(words, i)) for i, coder in enumerate(self._columns))

    def foresee(self, keys: int) -> None:
        """About so many keys will come."""
        for coder in self._columns:
            coder.foresee(keys)

    def gone(self, keys: int) -> None:
        """Count keys that were taken out."""
        for coder in self._columns:
            coder.gone(keys)

    def tidy(self, index: KeyIndex, work: int) -> bool:
        """Forget bytes that no key has any more, if they are many: over so many values at a time.

        Returns whether there is nothing left to do.
        """
        done = True
        for i, coder in enumerate(self._columns):
            done &= coder.tidy(index.live, index.key_groups, self._numbers_of(index, i), work)
        return done

    def _numbers_of(self, index: KeyIndex, i: int) -> NumbersOf:
        def parts(group: int) -> Iterator[npt.NDArray[np.int64]]:
            blocks = index.blocks_of(KeyGroup(group))
            for at in range(0, len(blocks), _BLOCKS):
                yield self._given(index.keys[index.slots_within(KeyGroup(group), blocks[at : at + _BLOCKS])], i)

        return parts

    @property
    def nbytes(self) -> int:
        """Memory of the interned bytes."""
        return sum(coder.nbytes for coder in self._columns)

    def check(self, words: Words) -> None:
        """Raise AssertionError unless all of these keys can be decoded."""
        for i, coder in enumerate(self._columns):
            coder.check(self._given(words, i))

    def _encode(self, i: int, column: pa.Array, intern: bool) -> Words:
        coder = self._columns[i]
        self._check_type(i, column.type)
        if not isinstance(column, pa.DictionaryArray):
            return coder.encode(column, intern)
        if len(column.dictionary) > len(column):
            return coder.encode(column.dictionary_decode(), intern)
        # A null has index -1: whatever it finds is put right by the mask.
        indices = column.indices.cast(pa.int64()).fill_null(-1).to_numpy()
        if not len(column.dictionary):
            return np.zeros((len(column), coder.width), np.int64)
        taken: Words = coder.encode(column.dictionary, intern)[indices]
        return taken

    def _check_type(self, i: int, given: pa.DataType) -> None:
        declared = self.types[i]
        if given == declared or value_type(given) == declared:
            return
        kind = kind_of(given, f"#{i}")
        # Other layouts of the same values will do; of decimals, two types are two scales.
        if kind is not kind_of(declared) or kind in _EXACT:
            raise KeyTypeError(f"key column #{i} has type {declared}, but a column of type {given} was given")

    def _null(self, words: Words, i: int) -> Mask | None:
        return (words[:, -1] >> i & 1).astype(np.bool_) if self._has_nulls else None

    def _given(self, words: Words, i: int) -> npt.NDArray[np.int64]:
        null = self._null(words, i)
        first: npt.NDArray[np.int64] = words[:, self._spans[i].start]
        return first if null is None else first[~null]


class _Coder(Protocol):
    """One key column. What stands under a null means nothing: the caller puts zeros there."""

    width: int

    def encode(self, column: pa.Array, intern: bool) -> Words: ...

    def decode(self, words: Words, null: Mask | None) -> pa.Array: ...

    @property
    def longest(self) -> int: ...

    def weight(self, words: npt.NDArray[np.int64]) -> int: ...

    def foresee(self, keys: int) -> None: ...

    def gone(self, keys: int) -> None: ...

    def tidy(self, keys: int, groups: int, numbers_of: NumbersOf, work: int) -> bool: ...

    def check(self, words: npt.NDArray[np.int64]) -> None: ...

    @property
    def nbytes(self) -> int: ...


def _coder(data_type: pa.DataType, memory: Memory) -> _Coder:
    match kind_of(data_type):
        case KeyKind.STRING | KeyKind.BINARY | KeyKind.FIXED_BINARY:
            return _Interned(data_type, memory)
        case KeyKind.SMALL_DECIMAL | KeyKind.LARGE_DECIMAL as kind:
            return _Decimal(data_type, 1 if kind is KeyKind.SMALL_DECIMAL else 2)
        case KeyKind.FLOAT | KeyKind.DOUBLE:
            return _Float(data_type)
        case _:
            return _Integer(data_type)


class _Plain:
    """A column that keeps nothing."""

    width = 1
    nbytes = 0
    longest = 0

    def __init__(self, data_type: pa.DataType) -> None:
        self._type = data_type

    def weight(self, words: npt.NDArray[np.int64]) -> int:
        return 0

    def foresee(self, keys: int) -> None:
        pass

    def gone(self, keys: int) -> None:
        pass

    def tidy(self, keys: int, groups: int, numbers_of: NumbersOf, work: int) -> bool:
        return True

    def check(self, words: npt.NDArray[np.int64]) -> None:
        pass


class _Integer(_Plain):
    """Booleans, integers, days and microseconds."""

    def encode(self, column: pa.Array, intern: bool) -> Words:
        return numbers_of(column).astype(np.int64, copy=False).reshape(-1, 1)

    def decode(self, words: Words, null: Mask | None) -> pa.Array:
        if pa.types.is_boolean(self._type):
            return pa.array(words[:, 0].astype(np.bool_), mask=null)
        signed = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}[self._type.bit_width]
        return _from_numbers(self._type, words[:, 0].astype(signed, copy=False), null)


class _Float(_Plain):
    """The bits of the one form that each key has."""

    def encode(self, column: pa.Array, intern: bool) -> Words:
        floats = floats_of(column)
        bits = floats.view(np.int32 if floats.dtype == np.float32 else np.int64)
        return bits.astype(np.int64, copy=False).reshape(-1, 1)

    def decode(self, words: Words, null: Mask | None) -> pa.Array:
        bits = words[:, 0].astype(np.int32 if self._type == pa.float32() else np.int64)
        return _from_numbers(self._type, bits, null)


class _Decimal(_Plain):
    """The unscaled value: up to 18 digits in a word, more in two."""

    def __init__(self, data_type: pa.DataType, width: int) -> None:
        super().__init__(data_type)
        self.width = width

    def encode(self, column: pa.Array, intern: bool) -> Words:
        if self.width == 1:
            return longs_of(column).reshape(-1, 1)
        if not len(column):
            return np.empty((0, 2), np.int64)
        words = np.frombuffer(column.buffers()[1], np.int64, 2 * len(column), 16 * column.offset)
        return words.reshape(-1, 2)

    def decode(self, words: Words, null: Mask | None) -> pa.Array:
        if self.width == 2:
            return _from_numbers(self._type, words, null)
        both = np.empty((len(words), 2), np.int64)
        both[:, 0] = words[:, 0]
        both[:, 1] = words[:, 0] >> 63  # the sign
        return _from_numbers(self._type, both, null)


class _Interned(_Plain):
    """The number under which the bytes are kept."""

    def __init__(self, data_type: pa.DataType, memory: Memory) -> None:
        super().__init__(data_type)
        self._interner = Interner(data_type, memory)

    def encode(self, column: pa.Array, intern: bool) -> Words:
        return self._interner.encode(column, add=intern).reshape(-1, 1)

    def decode(self, words: Words, null: Mask | None) -> pa.Array:
        return self._interner.decode(words[:, 0], null)

    @property
    def longest(self) -> int:  # type: ignore[override]
        return self._interner.longest

    def weight(self, words: npt.NDArray[np.int64]) -> int:
        return self._interner.weight(words)

    def foresee(self, keys: int) -> None:
        self._interner.foresee(keys)

    def gone(self, keys: int) -> None:
        self._interner.gone(keys)

    def tidy(self, keys: int, groups: int, numbers_of: NumbersOf, work: int) -> bool:
        return self._interner.tidy(keys, groups, numbers_of, work)

    def check(self, words: npt.NDArray[np.int64]) -> None:
        self._interner.check(words)

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return self._interner.nbytes


def _from_numbers(data_type: pa.DataType, numbers: npt.NDArray[Any], null: Mask | None) -> pa.Array:
    validity = None if null is None else pa.array(~null).buffers()[1]
    return pa.Array.from_buffers(data_type, len(numbers), [validity, pa.py_buffer(np.ascontiguousarray(numbers))])


def _nulls(column: pa.Array) -> Mask | None:
    if isinstance(column, pa.DictionaryArray):
        # The dictionary may hold nulls as well, which null_count does not tell.
        null = column.is_null()
        if column.dictionary.null_count:
            null = column.dictionary_decode().is_null()
    elif column.null_count:
        null = column.is_null()
    else:
        return None
    mask: Mask = null.to_numpy(zero_copy_only=False)
    return mask
