"""What users write: descriptions of aggregates, and what is refused when a query is defined."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from bedload.core.errors import DefinitionError, SchemaError
from bedload.operators import aggregates as agg

SCHEMA = pa.schema(
    [
        ("car", pa.string()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("whole", pa.int32()),
        ("long", pa.int64()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("bytes", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(10, 2)),
        ("huge", pa.decimal128(36, 6)),
        ("tags", pa.list_(pa.string())),
    ]
)


def made(**functions: Any) -> agg.Aggregates:
    return agg.Aggregates(functions, SCHEMA, [0], ["car"])


def result_type(function: agg.Function) -> pa.DataType:
    return made(out=function).output.field("out").type


def test_descriptions_of_the_same_meaning_are_equal_and_pickle():
    for function in (agg.count(), agg.count("x"), agg.first("x", ignore_nulls=True), agg.collect_list("x", 3)):
        assert pickle.loads(pickle.dumps(function)) == function
    assert agg.first("x") == agg.first("x", ignore_nulls=False)
    assert agg.first("x") != agg.first("x", ignore_nulls=True)
    assert agg.sum("x") != agg.sum("y")


def test_a_description_reads_as_the_call_that_made_it():
    assert repr(agg.arg_max("x", "y")) == "arg_max('x', 'y')"
    assert repr(agg.collect_set("x", 3)) == "collect_set('x', limit=3)"


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (agg.count(), pa.int64()),
        (agg.count("tags"), pa.int64()),
        (agg.sum("tiny"), pa.int64()),
        (agg.sum("long"), pa.int64()),
        (agg.sum("single"), pa.float64()),
        (agg.sum("price"), pa.decimal128(20, 2)),
        (agg.sum("huge"), pa.decimal128(38, 6)),
        (agg.mean("long"), pa.float64()),
        (agg.mean("price"), pa.decimal128(14, 6)),
        (agg.mean("huge"), pa.decimal128(38, 10)),
        (agg.std("price"), pa.float64()),
        (agg.min("day"), pa.date32()),
        (agg.max("at"), pa.timestamp("us", "UTC")),
        (agg.max("flag"), pa.bool_()),
        (agg.min("single"), pa.float32()),
        (agg.last("tags"), pa.list_(pa.string())),
        (agg.arg_min("small", "text"), pa.int16()),
        (agg.collect_set("whole", 3), pa.list_(pa.field("element", pa.int32(), nullable=False))),
        (agg.reduce("whole", init=0, update=lambda s, x: s + x), pa.int64()),
        (agg.reduce("whole", init=0, update=lambda s, x: s + x, result=lambda s: s / 2), pa.float64()),
        (agg.reduce("whole", init=0, update=lambda s, x: s + x, result=lambda s: s > 2), pa.bool_()),
    ],
    ids=repr,
)
def test_result_types_are_those_of_spark(function, kind):
    assert result_type(function) == kind


def test_only_what_cannot_be_null_is_declared_so():
    output = made(n=agg.count(), m=agg.count("text"), s=agg.sum("long"), c=agg.collect_list("text", 2)).output
    assert [field.nullable for field in output] == [True, False, False, True, False]


def test_the_output_has_the_key_columns_first_under_their_given_names():
    logic = agg.Aggregates({"n": agg.count()}, SCHEMA, [8, 3], ["a", "b"])
    assert logic.output.names == ["a", "b", "n"]
    assert logic.output.types == [pa.string(), pa.int32(), pa.int64()]


@pytest.mark.parametrize(
    "function",
    [
        agg.sum("text"),
        agg.sum("flag"),
        agg.mean("day"),
        agg.var("flag"),
        agg.min("tags"),
        agg.any("tiny"),
        agg.all("text"),
        agg.arg_max("text", "tags"),
        agg.collect_set("tags", 2),
        agg.reduce("text", init=0, update=lambda s, x: s),
    ],
    ids=lambda function: function.name,
)
def test_a_type_that_the_function_does_not_take_is_refused_by_name(function):
    with pytest.raises(SchemaError, match=r"aggregate out=.*column '(text|flag|day|tags|tiny)' is a .*Cast it"):
        made(out=function)


def test_a_column_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(SchemaError, match="'speed' is not in the input, which has: car, tiny"):
        made(out=agg.sum("speed"))


def test_an_aggregate_named_as_the_key_is_refused():
    with pytest.raises(SchemaError, match="named as key columns: car"):
        made(car=agg.count())


def test_what_is_no_function_of_ours_is_refused():
    with pytest.raises(DefinitionError, match="n=3 is not one of"):
        made(n=3)
    with pytest.raises(DefinitionError, match="name at least one"):
        made()


@pytest.mark.parametrize("column", [None, "", 3])
def test_a_column_is_given_by_name(column):
    with pytest.raises(DefinitionError, match="not the name of a column"):
        agg.sum(column)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, None])
def test_a_limit_is_a_whole_number_from_one(limit):
    with pytest.raises(DefinitionError, match="bounds the state"):
        agg.collect_list("x", limit)


def test_columns_whose_state_would_have_one_name_are_refused():
    schema = pa.schema([("car", pa.string()), ("x", pa.int64()), ("x, ignore_nulls", pa.int64())])
    functions = {"a": agg.first("x", ignore_nulls=True), "b": agg.first("x, ignore_nulls")}
    with pytest.raises(SchemaError, match="rename an input column"):
        agg.Aggregates(functions, schema, [0], ["car"])


# --- reducers ---


@pytest.mark.parametrize("init", ["", None, (), (1, "a"), [1]])
def test_the_state_of_a_reducer_is_made_of_numbers(init):
    with pytest.raises(DefinitionError, match="init="):
        agg.reduce("x", init=init, update=lambda s, x: s, result=lambda s: 1)


def test_a_reducer_that_would_lose_fractions_is_refused():
    with pytest.raises(DefinitionError, match=r"update returns float64, but the state is 0\..*init=0\.0"):
        made(out=agg.reduce("double", init=0, update=lambda s, x: s + x))


def test_a_reducer_that_returns_another_shape_is_refused():
    with pytest.raises(DefinitionError, match="but the state is"):
        made(out=agg.reduce("double", init=(0.0, 0.0), update=lambda s, x: s[0], result=lambda s: s[0]))
    with pytest.raises(DefinitionError, match="but the state is"):
        made(out=agg.reduce("double", init=0.0, update=lambda s, x: (s, x)))


def test_a_reducer_that_does_not_compile_is_refused_where_it_is_defined():
    with pytest.raises(DefinitionError, match="Numba cannot compile update"):
        made(out=agg.reduce("double", init=0.0, update=lambda s, x: s + x.nothing))


def test_a_state_of_several_numbers_needs_a_result():
    with pytest.raises(DefinitionError, match="needs a result function"):
        agg.reduce("x", init=(0, 0), update=lambda s, x: s)
