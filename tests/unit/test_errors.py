"""One hierarchy, drawn in its module's docstring, and able to cross processes."""

from __future__ import annotations

import pickle
import re

import pytest

from bedload.core import errors
from bedload.core.errors import BedloadError
from bedload.protocol.messages import WireError


def _all(root: type[BedloadError]) -> list[type[BedloadError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _all(child))]


def _depth(kind: type[BedloadError]) -> int:
    ours = [base for base in kind.__mro__ if issubclass(base, BedloadError)]
    return len(ours) - 1


CLASSES = [kind for kind in _all(BedloadError) if kind.__module__ == errors.__name__]


def test_the_docstring_draws_the_tree_as_it_is() -> None:
    drawn = re.findall(r"^( {4}[│├└─ ]*)([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE)
    warnings = [errors.BedloadWarning, *errors.BedloadWarning.__subclasses__()]
    depths = {k.__name__: _depth(k) for k in CLASSES} | {k.__name__: int(k is not warnings[0]) for k in warnings}
    assert {name: (len(indent) - 4) // 4 for indent, name in drawn} == depths


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_pickles_and_crosses_the_wire(kind: type[BedloadError]) -> None:
    error = kind("what, where, what to do", operator="Trip", epoch=3)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.message == error.message
    assert again.epoch == 3
    wired = WireError.of(error).error()
    assert type(wired) is kind
    assert str(wired) == str(error)
    assert wired.operator == "Trip"


def test_a_detail_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="worker"):
        _ = BedloadError("x").worker


def test_an_error_of_another_version_becomes_the_root() -> None:
    assert type(errors.from_wire("FromTheFuture", "text", {})) is BedloadError


def test_half_characters_and_endless_texts_can_be_sent() -> None:
    kind, message, details = errors.to_wire(errors.OperatorFailed("file \udcff", error="\ud800"))
    assert (kind, message, details) == ("OperatorFailed", "file \\udcff", {"error": "\\ud800"})
    _, message, _ = errors.to_wire(errors.OperatorFailed("x" * 1_000_005))
    assert message.endswith("x... (5 more characters)")
