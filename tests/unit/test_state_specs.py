"""Declarations become specs, or errors that say what to write."""

import collections
import dataclasses
import pickle
from typing import Annotated, Any, NewType, Optional

import numpy as np
import pytest

from bedload.core.errors import StateTypeError
from bedload.state import StateSpec, build_specs, specs
from bedload.state.types import ListNode, OpaqueNode, OptionalNode, ScalarNode

CarId = NewType("CarId", str)


@dataclasses.dataclass
class Point:
    x: int = 0


@dataclasses.dataclass
class Tree:
    left: Optional["Tree"]


@dataclasses.dataclass
class Holder:
    thing: np.ndarray


class Opaque:
    pass


def one(annotation: Any, declaration: Any, **more: Any) -> StateSpec:
    (spec,) = build_specs("Trip", {"x": annotation}, {"x": declaration})
    return spec


def test_a_spec_has_what_was_declared() -> None:
    spec = one(list[float], specs.list_(maxlen=20))
    assert spec == StateSpec("x", "list", ListNode(ScalarNode(float), 20), None, 20, None)


def test_specs_keep_the_order_of_declaration() -> None:
    built = build_specs("Trip", {"b": int}, {"b": specs.value(0), "a": specs.value("")})
    assert [spec.name for spec in built] == ["b", "a"]


def test_scalars_are_inferred_from_the_default() -> None:
    (spec,) = build_specs("Trip", {}, {"x": specs.value(0.5)})
    assert spec.type == ScalarNode(float)


def test_optional_defaults_to_none() -> None:
    assert one(int | None, specs.value()).default is None
    assert one(Optional[int], specs.value(3)).type == OptionalNode(ScalarNode(int))  # noqa: UP045


def test_newtype_and_annotated_stand_for_their_type() -> None:
    assert one(CarId, specs.value("")).type == ScalarNode(str)
    assert one(Annotated[int, "km"], specs.value(0)).type == ScalarNode(int)


def test_specs_pickle() -> None:
    spec = one(dict[str, list[Point]], specs.map_())
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert hash(pickle.loads(pickle.dumps(spec))) == hash(spec)


def test_a_codec_makes_any_type_declarable() -> None:
    assert one(np.ndarray, specs.value(None, codec="pickle")).type == OpaqueNode("pickle", np.ndarray)
    assert one(int | str, specs.value(0, codec="msgspec")).codec == "msgspec"


@pytest.mark.parametrize(
    ("annotation", "declaration", "says"),
    [
        (Opaque, specs.value(Opaque()), 'codec="msgspec"'),
        (np.ndarray, specs.value(None), 'codec="pickle"'),
        (Any, specs.value(None), "codec"),
        (object, specs.value(None), "codec"),
        (int | str, specs.value(0), "mixes types"),
        (list, specs.list_(), r"list\[float\]"),
        (frozenset[int], specs.set_(), "not a type that Bedload tracks"),
        (list[int], specs.value([]), r"use bl\.list\(\)"),
        (dict[str, int], specs.value({}), r"use bl\.map\(\)"),
        (set[int], specs.value(set()), r"use bl\.set\(\)"),
        (collections.Counter[str], specs.value(collections.Counter()), r"use bl\.counter\(\)"),
        (collections.deque[int], specs.value(collections.deque()), r"use bl\.deque\(\)"),
        (list[int], specs.value(0), r"use bl\.list\(\)"),
        (dict[str, int], specs.list_(), r"annotate it as in list\[float\]"),
        (set[list[int]], specs.set_(), "element type"),
        (dict[Point, int], specs.map_(), "key type Point"),
        (int, specs.value("zero"), "default does not fit"),
        (int, specs.value(2**63), "64 bits"),
        (int, specs.value(), r"bl\.value\(0\)"),
        (list[int], specs.list_(maxlen=0), "positive int"),
        (Tree | None, specs.value(), "contains itself"),
        (Holder | None, specs.value(), "field 'thing' of Holder"),
        (int, specs.value(0, codec="json"), "no codec 'json'"),
        (Opaque, specs.value(None, codec="msgspec"), "cannot read"),
    ],
)
def test_a_bad_declaration_names_class_and_variable_and_the_way_out(
    annotation: Any, declaration: Any, says: str
) -> None:
    with pytest.raises(StateTypeError, match=rf"Trip\.x: (?s:.*){says}"):
        one(annotation, declaration)


def test_a_container_without_annotation_is_refused() -> None:
    with pytest.raises(StateTypeError, match=r"Trip\.x: .*x: dict\[str, int\] = bl\.map\(\)"):
        build_specs("Trip", {}, {"x": specs.map_()})
    with pytest.raises(StateTypeError, match="annotate the variable"):
        build_specs("Trip", {}, {"x": specs.value(None)})


def test_a_reserved_name_is_refused() -> None:
    with pytest.raises(StateTypeError, match="reserved"):
        build_specs("Trip", {"_bl_log": int}, {"_bl_log": specs.value(0)})


def test_a_dataclass_of_names_that_do_not_resolve_is_refused() -> None:
    @dataclasses.dataclass
    class Lost:
        at: "Nowhere"  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(StateTypeError, match="cannot be resolved"):
        one(Lost | None, specs.value())
