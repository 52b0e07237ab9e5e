"""Names say what a file is, and strangers' names say nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bedload.checkpoint import paths
from bedload.core.ids import Generation, OperatorName, Turn, WorkerId, counter_of, generation_of, make_turn

OPERATOR = OperatorName("Trip")
turns = st.builds(make_turn, st.integers(1, 10**9).map(Generation), st.integers(0, 2**32 - 1))


@given(turns, turns)
def test_turns_keep_their_parts_and_ascend_over_generations(one: Turn, other: Turn) -> None:
    assert make_turn(generation_of(one), counter_of(one)) == one
    assert (one < other) == ((generation_of(one), counter_of(one)) < (generation_of(other), counter_of(other)))


@pytest.mark.parametrize(("generation", "counter"), [(-1, 0), (1, -1), (1, 2**32)])
def test_a_turn_out_of_range_is_refused(generation: int, counter: int) -> None:
    with pytest.raises(ValueError, match="no turn"):
        make_turn(Generation(generation), counter)


@given(turns, st.integers(0, 10**6).map(WorkerId))
def test_every_name_is_parsed_back(turn: Turn, worker: WorkerId) -> None:
    def name(path: str) -> str:
        return path.rpartition("/")[2]

    assert paths.parse_turn(name(paths.turn(OPERATOR, turn))) == turn
    assert paths.parse_delta(name(paths.delta(OPERATOR, turn, worker))) == (turn, worker)
    assert paths.parse_snapshot(name(paths.snapshot(OPERATOR, turn))) == turn
    assert paths.parse_generation(name(paths.generation(generation_of(turn)))) == generation_of(turn)
    assert paths.parse_schema(name(paths.schema(OPERATOR, worker))) == worker


@given(turns, turns)
def test_the_order_of_names_is_the_order_of_turns(one: Turn, other: Turn) -> None:
    assert (paths.turn(OPERATOR, one) < paths.turn(OPERATOR, other)) == (one < other)


@given(st.text(min_size=1))
def test_any_operator_name_is_one_path_component_and_comes_back(name: str) -> None:
    folder = paths.escape(name)
    assert set(folder) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-%")
    assert paths.parse_operator(folder) == name


@pytest.mark.parametrize("name", ["..", ".", "a/b", "ü ", "a%2Fb", "a.b"])
def test_awkward_names_stay_inside_the_folder_of_operators(name: str) -> None:
    assert paths.operator(OperatorName(name)).count("/") == 1
    assert "." not in paths.operator(OperatorName(name))


@pytest.mark.parametrize(
    "stranger", ["", "x", "1.json", ".0000000001.json.tmp", "0000000001.json.bak", "9" * 10 + "-" + "9" * 10]
)
def test_a_strangers_name_is_nothing(stranger: str) -> None:
    assert paths.parse_generation(stranger) is None
    assert paths.parse_turn(stranger + ".json") is None
    assert paths.parse_delta(stranger + "-w0.arrow") is None
    assert paths.parse_snapshot(stranger) is None


@pytest.mark.parametrize("folder", ["a.b", "a%2fb", "%ff", "a b"])
def test_a_folder_that_no_operator_name_gives_is_no_operator(folder: str) -> None:
    assert paths.parse_operator(folder) is None


def test_the_layout_is_as_documented() -> None:
    turn = make_turn(Generation(3), 17)
    assert paths.generation(Generation(3)) == "generations/0000000003.json"
    assert paths.turn(OPERATOR, turn) == "operators/Trip/turns/0000000003-0000000017.json"
    assert paths.delta(OPERATOR, turn, WorkerId(2)) == "operators/Trip/deltas/0000000003-0000000017-w2.arrow"
    assert paths.manifest(OPERATOR, turn) == "operators/Trip/snapshots/0000000003-0000000017/manifest.json"
    assert paths.part("a b", 4, "0f") == "a%20b/part-00004-0f.parquet"
    assert paths.schema(OPERATOR, 1) == "operators/Trip/schemas/0001.json"


def test_the_mark_of_a_turn_that_was_given_up_is_known_again_and_is_no_record() -> None:
    turn = make_turn(Generation(3), 14)
    name = paths.abandoned(OperatorName("Trip"), turn).rpartition("/")[2]
    assert paths.parse_abandoned(name) == turn
    assert paths.parse_turn(name) is None
    assert paths.parse_abandoned(paths.turn(OperatorName("Trip"), turn).rpartition("/")[2]) is None
