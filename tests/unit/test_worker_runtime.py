"""Calls of user code: when, with which rows, and what becomes of what it returns or raises."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from bedload import state as bl
from bedload.core.errors import OperatorFailed, OutputError, StateTypeError
from bedload.testing import OperatorHarness
from bedload.worker.operator import Context, Operator
from bedload.worker.rows import Rows

OUT = {"key": pa.string(), "n": pa.int64()}
IN = {"key": pa.string(), "n": pa.int64()}


def rows(*pairs: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"key": key, "n": n} for key, n in pairs]


def harness(operator: type[Operator], **options: Any) -> OperatorHarness:
    return OperatorHarness(operator, schema=OUT, key="key", input=IN, key_groups=4, **options)


class Seen(Operator):
    """Tells each call of process."""

    total: int = bl.value(0)

    def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
        for row in rows:
            self.total += row.n
        yield key, self.total


class Grouped(Seen):
    grouped = True


class Result(Operator):
    total: int = bl.value(0)

    def process(self, key: Any, rows: Rows, ctx: Context) -> None:
        self.total += sum(row.n for row in rows)

    def result(self, key: Any, ctx: Context) -> Any:
        if self.total >= 100:
            ctx.forget()
        return key, self.total


def test_process_is_called_per_key_and_batch_with_rows_in_order() -> None:
    calls: list[tuple[Any, list[int]]] = []

    class Spy(Operator):
        def process(self, key: Any, rows: Rows, ctx: Context) -> None:
            calls.append((key, [row.n for row in rows]))

    with harness(Spy).epoch() as epoch:
        epoch.feed(rows(("a", 3), ("b", 1), ("a", 2)))
        epoch.feed(rows(("a", 9)))
    assert sorted(calls[:2]) == [("a", [3, 2]), ("b", [1])]
    assert calls[2:] == [("a", [9])]


def test_outputs_of_process_leave_at_once() -> None:
    h = harness(Seen)
    assert h.feed(rows(("a", 1))) == [{"key": "a", "n": 1}]
    assert h.feed(rows(("a", 1))) == [{"key": "a", "n": 2}]
    assert h.commit() == []


def test_grouped_runs_once_per_key_at_the_seal() -> None:
    h = harness(Grouped)
    assert h.feed(rows(("a", 1), ("b", 5))) == []
    assert h.feed(rows(("a", 2))) == []
    assert sorted(row["n"] for row in h.seal()) == [3, 5]


def test_result_is_called_for_changed_keys_only() -> None:
    h = harness(Result)
    h.run_epoch(rows(("a", 1), ("b", 1)))
    assert h.run_epoch(rows(("a", 1), ("b", 0))) == [{"key": "a", "n": 2}]


def test_a_forgotten_key_starts_from_its_default() -> None:
    h = harness(Result)
    assert h.run_epoch(rows(("a", 100))) == [{"key": "a", "n": 100}]
    assert h.state("a") is None
    assert h.run_epoch(rows(("a", 1))) == [{"key": "a", "n": 1}]


def test_forgetting_is_rolled_back_with_its_epoch() -> None:
    h = harness(Result)
    h.run_epoch(rows(("a", 1)))
    h.feed(rows(("a", 100)))
    h.seal()
    h.abort()
    assert h.state("a") == {"total": 1}


@pytest.mark.parametrize(
    "returned", [("k", 1), {"key": "k", "n": 1}, [("k", 1)], [["k", 1]], iter([{"n": 1, "key": "k"}])]
)
def test_what_counts_as_rows(returned: Any) -> None:
    class Returns(Operator):
        def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
            return returned

    assert harness(Returns).feed(rows(("a", 1))) == [{"key": "k", "n": 1}]


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (("k",), "has 1 columns, but the schema has 2"),
        (("k", "many"), "column 'n'"),
        ("k", "return or yield rows"),
        (5, "return or yield rows"),
        ({"key": "k", "m": 1}, "unknown columns"),
        ([5], "A list is many rows"),
        (iter([5]), "must be a tuple"),
    ],
)
def test_what_does_not_fit_the_schema_is_named_with_its_key(returned: Any, says: str) -> None:
    class Returns(Operator):
        def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
            return returned

    with pytest.raises(OutputError, match=says) as caught:
        harness(Returns).feed(rows(("car-17", 1)))
    assert "car-17" in caught.value.message


def test_an_error_of_user_code_carries_key_epoch_and_its_own_traceback() -> None:
    class Fails(Operator):
        n: int = bl.value(0)

        def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
            self.n += 1
            yield key, self.n
            raise ZeroDivisionError("so it goes")

    h = harness(Fails)
    with pytest.raises(OperatorFailed, match="so it goes") as caught:
        h.feed(rows(("a", 1)))
    assert caught.value.details["key"] == "a"
    assert caught.value.details["epoch"] == 0
    assert "bedload/worker" not in caught.value.message
    assert h.state("a") is None


def test_an_undeclared_attribute_is_refused_with_a_hint() -> None:
    class Undeclared(Operator):
        def process(self, key: Any, rows: Rows, ctx: Context) -> None:
            self.other = 1  # type: ignore[attr-defined]

    with pytest.raises(OperatorFailed, match=r"declared on the class.* Undeclared has the state variables: none"):
        harness(Undeclared).feed(rows(("a", 1)))


def failure(process: Any, **more: Any) -> str:
    """What is said of an operator whose ``process`` fails."""
    operator = type("Trip", (Counted,), {"process": process, **more})
    with pytest.raises(OperatorFailed) as caught:
        harness(operator).feed(rows(("a", 1)))
    return caught.value.message


class Counted(Operator):
    n: int = bl.value(0)


def test_advice_on_state_variables_is_for_attributes_of_the_operator_alone() -> None:
    def reads(self: Any, key: Any, rows: Rows, ctx: Context) -> Any:
        return key, self.nope

    def assigns(self: Any, key: Any, rows: Rows, ctx: Context) -> Any:
        self.nope = 1

    def set_up(self: Any, ctx: Context) -> None:
        self.model = 1

    def overwrites(self: Any, key: Any, rows: Rows, ctx: Context) -> Any:
        self.model = 2

    for process in (reads, assigns, overwrites):
        assert failure(process, setup=set_up).endswith("Trip has the state variables: n.")

    def of_the_users(self: Any, key: Any, rows: Rows, ctx: Context) -> Any:
        raise AttributeError("read-only in this mode")

    def as_pythons(self: Any, key: Any, rows: Rows, ctx: Context) -> Any:
        raise AttributeError("'Trip' object has no attribute 'mode'")

    def of_a_property(self: Any, key: Any, rows: Rows, ctx: Context) -> Any:
        return self.mode

    mode = property(lambda self: of_the_users(self, None, rows, None))  # type: ignore[arg-type]
    for process in (of_the_users, as_pythons, of_a_property):
        assert "state variables" not in failure(process, mode=mode)

    class Other:
        __slots__ = ()

    other = Other()

    def of_another(self: Any, key: Any, rows: Rows, ctx: Context) -> Any:
        return other.nope  # type: ignore[attr-defined]

    def to_another(self: Any, key: Any, rows: Rows, ctx: Context) -> Any:
        other.nope = 1  # type: ignore[attr-defined]

    def of_nothing(self: Any, key: Any, rows: Rows, ctx: Context) -> Any:
        return None.nope  # type: ignore[attr-defined]

    for process in (of_another, to_another, of_nothing):
        assert "declared on the class" not in failure(process)


def test_a_column_that_a_row_does_not_have_is_told_with_those_that_there_are() -> None:
    def process(self: Any, key: Any, rows: Rows, ctx: Context) -> Any:
        return key, rows[0].nope

    message = failure(process)
    assert "raised AttributeError: no column 'nope'; there are: key, n\n" in message
    assert "declared on the class" not in message


def test_of_a_failure_the_users_own_lines_are_shown_and_none_of_ours() -> None:
    def process(self: Any, key: Any, rows: Rows, ctx: Context) -> Any:
        try:
            return key, rows[0]["nope"]
        except KeyError as error:
            raise ValueError("it is not there") from error

    lines = failure(process).splitlines()
    assert lines[0] == "process of operator Trip, key 'a', epoch 0, worker 0 raised ValueError: it is not there"
    assert lines[1] == "Traceback (most recent call last):"
    files = [line for line in lines if line.startswith("  File ")]
    assert len(files) == 2, "one for each of the two exceptions"
    assert all("test_worker_runtime.py" in line and "in process" in line for line in files)
    assert any("KeyError" in line for line in lines)


def test_an_assigned_container_is_rolled_back_like_any_other() -> None:
    class Assigns(Operator):
        items: list[int] = bl.list()

        def process(self, key: Any, rows: Rows, ctx: Context) -> None:
            self.items = [*self.items, *(row.n for row in rows)]

    h = harness(Assigns)
    h.run_epoch(rows(("a", 1)))
    h.run_epoch(rows(("a", 2)))
    h.feed(rows(("a", 3)))
    h.abort()
    assert h.state("a") == {"items": [1, 2]}


def test_a_container_that_was_assigned_last_epoch_is_tracked_in_this_one() -> None:
    class AssignsThenAppends(Operator):
        items: list[int] = bl.list()

        def process(self, key: Any, rows: Rows, ctx: Context) -> None:
            if ctx.epoch == 0:
                self.items = [row.n for row in rows]
            else:
                self.items.extend(row.n for row in rows)

    h = harness(AssignsThenAppends)
    h.run_epoch(rows(("a", 1)))
    h.feed(rows(("a", 2)))
    assert h.state("a") == {"items": [1]}
    h.abort()
    assert h.state("a") == {"items": [1]}


def test_what_result_assigns_is_tracked_too() -> None:
    class Clears(Operator):
        items: list[int] = bl.list()

        def process(self, key: Any, rows: Rows, ctx: Context) -> None:
            self.items.extend(row.n for row in rows)

        def result(self, key: Any, ctx: Context) -> Any:
            total = sum(self.items)
            self.items = []
            return key, total

    h = harness(Clears)
    assert h.run_epoch(rows(("a", 1))) == [{"key": "a", "n": 1}]
    h.feed(rows(("a", 2)))
    h.abort()
    assert h.state("a") == {"items": []}


def test_a_value_of_another_type_than_declared_fails_the_seal_and_not_the_commit() -> None:
    class Misfit(Operator):
        items: list[int] = bl.list()

        def process(self, key: Any, rows: Rows, ctx: Context) -> None:
            self.items = 5  # type: ignore[assignment]

    h = harness(Misfit)
    h.feed(rows(("a", 1)))
    with pytest.raises(StateTypeError, match="items"):
        h.seal()
    assert h.state("a") is None


def test_setup_shares_what_it_makes_and_close_releases_it() -> None:
    events: list[str] = []

    class Shares(Operator):
        def setup(self, ctx: Context) -> None:
            self.factor = 10  # type: ignore[attr-defined]
            events.append("setup")

        def process(self, key: Any, rows: Rows, ctx: Context) -> Any:
            return key, len(rows) * self.factor  # type: ignore[attr-defined]

        def close(self) -> None:
            events.append("close")

    h = harness(Shares)
    assert h.run_epoch(rows(("a", 1))) == [{"key": "a", "n": 10}]
    h.close()
    assert events == ["setup", "close"]


def test_rows_can_be_read_as_columns_by_name_and_by_position() -> None:
    found: list[Any] = []

    class Reads(Operator):
        def process(self, key: Any, rows: Rows, ctx: Context) -> None:
            first = rows[0]
            found.append((len(rows), rows.column("n").to_pylist(), first.n, first["n"], first[1], first.asDict()))

    harness(Reads).run_epoch(rows(("a", 1), ("a", 2)))
    assert found == [(2, [1, 2], 1, 1, 1, {"key": "a", "n": 1})]
