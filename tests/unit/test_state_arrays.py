"""NumPy arrays as state: whatever writes into their memory is noticed, rolled back, and written down."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from bedload import state as bl
from bedload.core.errors import OperatorFailed, StateTypeError
from bedload.core.ids import Epoch, KeyGroup, OperatorName, WorkerId
from bedload.state import Declaration, RecordLayout, build_specs
from bedload.state.settling import Settling
from bedload.store.deltas import OP, PUT
from bedload.store.rows import ROW_SLOTS, RowStore
from bedload.testing import InProcessCluster, OperatorHarness
from bedload.testing.input import InputFormat
from bedload.worker.operator import Context, Operator
from bedload.worker.row_runtime import Deployment
from bedload.worker.rows import Rows

IN = {"k": pa.string(), "x": pa.int64()}
OUT = {"k": pa.string()}
FORM = InputFormat(pa.schema(IN), "k", 4)
EVERY = [KeyGroup(group) for group in range(4)]
STRATEGIES = ("seamless", "all_at_once", "progressive", "lazy")


class Subject(Operator):
    """Does to its arrays what a row names."""

    w: np.ndarray = bl.array(4, default=1.0)
    grid: npt.NDArray[np.int32] = bl.array((2, 3), "int32")

    def process(self, key: Any, rows: Rows, ctx: Context) -> None:
        for row in rows:
            STEPS[row.x](self)


def _past_numpy(op: Any) -> None:
    """What C code does that was given an address."""
    ctypes.cast(op.w.ctypes.data, ctypes.POINTER(ctypes.c_double))[2] = 7.0


def _fail(op: Any) -> None:
    op.w[:] = -1
    op.grid += 5
    raise RuntimeError("after the change")


STEPS: list[Callable[[Any], Any]] = [
    lambda op: op.w.__setitem__(3, op.w[3] + 1),
    lambda op: setattr(op, "w", op.w.__imul__(2)),
    lambda op: op.w.__setitem__(slice(None), [1, 2, 3, 4]),
    lambda op: np.add(op.w, 1, out=op.w),
    lambda op: op.w[1:3].__iadd__(5),
    lambda op: op.w.reshape(2, 2)[:, 0].fill(9),
    lambda op: op.w.sort(),
    lambda op: np.copyto(op.w.view(np.ndarray), 3.5),
    lambda op: memoryview(op.w).cast("B").__setitem__(0, 1),
    _past_numpy,
    lambda op: setattr(op, "w", np.linspace(0, 1, 4)),
    lambda op: setattr(op, "w", np.arange(4, dtype="int32")),
    lambda op: setattr(op, "w", np.arange(8.0)[::2]),
    lambda op: delattr(op, "w"),
    lambda op: op.grid[1].__setitem__(slice(None), op.grid[0] + 1),
]
NOTHING, FAIL = len(STEPS), len(STEPS) + 1
STEPS += [lambda op: op.w.sum(), _fail]


def harness(operator: type[Operator] = Subject) -> OperatorHarness:
    return OperatorHarness(operator, schema=OUT, key="k", input=IN, key_groups=4)


def bytes_of(state: dict[str, Any] | None) -> dict[str, bytes]:
    return {} if state is None else {name: value.tobytes() for name, value in state.items()}


def like_numpy(steps: list[int]) -> dict[str, bytes]:
    class Plain:
        w = np.full(4, 1.0)
        grid = np.zeros((2, 3), "int32")

    plain = Plain()
    plain.w, plain.grid = Plain.w, Plain.grid
    for step in steps:
        STEPS[step](plain)
        if "w" not in vars(plain):
            plain.w = np.full(4, 1.0)  # what was deleted starts again
        plain.w = plain.w.astype("float64")
    return bytes_of(vars(plain))


class Bench:
    """A runtime that writes deltas."""

    def __init__(self, operator: type[Operator] = Subject) -> None:
        deployment = Deployment(OperatorName("Op"), operator, FORM.key, FORM.columns, pa.schema(OUT), FORM.key_types)
        self.runtime = deployment.start(WorkerId(0))
        self.epochs = 0

    def sealed(self, *steps: int) -> pa.RecordBatch | None:
        """What an epoch of key ``a`` writes."""
        self.runtime.begin(Epoch(self.epochs), EVERY)
        for x in steps:
            self.runtime.apply(FORM.batch([{"k": "a", "x": x}]))
        self.runtime.seal()
        self.epochs += 1
        return self.runtime.delta()

    def state(self) -> dict[str, bytes]:
        return bytes_of(dict(self.runtime.snapshot()).get("a"))


@pytest.mark.parametrize("step", range(len(STEPS) - 1))
def test_every_way_to_change_an_array_is_a_change(step: int) -> None:
    made = Bench()
    for steps in ([NOTHING], [step], [NOTHING], [NOTHING, step]):
        before = made.state()
        delta = made.sealed(*steps)
        assert made.state() == before, "the committed state is seen until the commit"
        made.runtime.commit()
        assert (made.state() != before) == (delta is not None), "what changed is written, and nothing else"
    assert made.state() == like_numpy([step, step])


@pytest.mark.parametrize("step", range(len(STEPS) - 1))
def test_an_epoch_that_fails_puts_the_bytes_back(step: int) -> None:
    made = harness()
    made.run_epoch([{"k": "a", "x": 2}])
    before = bytes_of(made.state("a"))
    with pytest.raises(OperatorFailed, match=r"after the change|no attribute 'w'"):
        made.run_epoch([{"k": "a", "x": step}, {"k": "b", "x": step}, {"k": "a", "x": FAIL}])
    assert bytes_of(made.state("a")) == before
    assert made.state("b") is None
    made.run_epoch([{"k": "a", "x": step}])
    assert bytes_of(made.state("a")) == like_numpy([2, step])


def test_a_sealed_epoch_that_is_aborted_puts_the_bytes_back() -> None:
    made = harness()
    made.run_epoch([{"k": "a", "x": 2}])
    before = bytes_of(made.state("a"))
    made.feed([{"k": "a", "x": 3}])
    made.seal()
    made.abort()
    assert bytes_of(made.state("a")) == before


def test_zeros_of_two_kinds_are_two_values_and_nan_is_itself() -> None:
    class Zeros(Operator):
        w: np.ndarray = bl.array(1, default=np.nan)

        def process(self, key: Any, rows: Rows, ctx: Context) -> None:
            for row in rows:
                self.w *= 1
                if row.x > 1:
                    self.w[0] = 0.0 if row.x == 3 else -0.0

    made = Bench(Zeros)
    for x, written in ((1, True), (1, False), (3, True), (1, False), (2, True), (2, False)):
        assert (made.sealed(x) is not None) == written
        made.runtime.commit()
    assert np.signbit(np.frombuffer(made.state()["w"])[0])


class Keeper(Operator):
    """Keeps arrays and views of them where other keys and epochs find them."""

    w: np.ndarray = bl.array(2)
    kept: dict[Any, Any]

    def setup(self, ctx: Context) -> None:
        self.kept = {}

    def process(self, key: Any, rows: Rows, ctx: Context) -> None:
        for row in rows:
            if row.x == 1:
                self.kept["view"][0] = 99
            elif row.x == 2:
                self.kept["self"].w[0] = 99
            else:
                self.w += 1
                self.kept.update({"view": self.w[:], "self": self})


def test_what_is_written_into_an_array_of_an_earlier_epoch_is_not_state() -> None:
    made = harness(Keeper)
    made.run_epoch([{"k": "a", "x": 0}])
    made.run_epoch([{"k": "b", "x": 1}])
    assert bytes_of(made.state("a")) == bytes_of({"w": np.ones(2)})
    with pytest.raises(OperatorFailed, match="read-only"):
        made.run_epoch([{"k": "b", "x": 2}])
    assert bytes_of(made.state("a")) == bytes_of({"w": np.ones(2)})


def test_what_is_read_is_a_copy() -> None:
    made = harness()
    made.run_epoch([{"k": "a", "x": 2}])
    state = made.state("a")
    assert state is not None
    state["w"][:] = 0
    assert bytes_of(made.state("a")) == like_numpy([2])


def test_an_epoch_goes_on_after_a_seal_that_was_not_the_last_word() -> None:
    layout = RecordLayout(build_specs("Op", {}, {"w": bl.array(2)}))
    row = type("Row", (), {"__slots__": (*layout.names, *ROW_SLOTS)})
    store = RowStore(KeyGroup(0), layout, row)
    for _ in range(2):
        (obj,) = store.touch(["a"])
        obj.w[0] += 1
        store.seal(Settling(layout))
    store.commit()
    (state,) = store.read(["a"])
    assert state is not None
    assert state["w"].tolist() == [2, 0]
    assert store.image_bytes() == 0
    store.touch(["a"])
    assert store.image_bytes() >= 16


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_arrays_move(strategy: str) -> None:
    cluster = InProcessCluster(Subject, schema=OUT, key="k", input=IN, workers=1, key_groups=8)
    calm = harness()
    for number, workers in enumerate([2, 3, 1]):
        rows = [{"k": f"key {i}", "x": (i + number) % NOTHING} for i in range(20)]
        cluster.run_epoch([rows])
        calm.run_epoch(rows)
        cluster.rescale(workers, strategy=strategy)
        found = {key: bytes_of(state) for key, state in cluster.snapshot().items()}
        assert found == {key: bytes_of(state) for key, state in calm.snapshot().items()}


def test_in_a_delta_an_array_is_a_fixed_size_list() -> None:
    delta = Bench().sealed(2)
    assert delta is not None
    assert delta.column(OP).to_pylist() == [PUT]
    assert delta.schema.field("w").type == pa.list_(pa.float64(), 4)
    assert delta.schema.field("grid").type == pa.list_(pa.list_(pa.int32(), 3), 2)
    assert delta.column("grid").to_pylist() == [[[0, 0, 0], [0, 0, 0]]]


# --- what is refused ---


MISFITS = {
    "another shape": (
        lambda op: setattr(op, "w", np.zeros(3)),
        r"expected float64\[4\], got float64\[3\]. The shape of an array is declared .* assign one of shape \(4,\)$",
    ),
    "resized in place": (lambda op: op.w.resize((2, 2), refcheck=False), r"expected float64\[4\], got float64\[2, 2\]"),
    "a list": (lambda op: setattr(op, "w", [1.0] * 4), r"expected float64\[4\], got list: \[1.0"),
    "None": (lambda op: setattr(op, "w", None), r"expected float64\[4\], got NoneType"),
    "other numbers": (lambda op: setattr(op, "grid", op.grid / 2), r"int32\[2, 3\], got float64.*\.astype\('int32'\)"),
    "integers that floats round": (
        lambda op: setattr(op, "w", np.full(4, 2**53 + 1)),
        r"expected float64\[4\], got int64\[4\]. Change the array in place, or .*astype\('float64'\)",
    ),
    "a subclass": (lambda op: setattr(op, "w", np.ma.masked_array(np.zeros(4), mask=True)), "got MaskedArray"),
}


@pytest.mark.parametrize("what", MISFITS)
def test_an_array_that_does_not_fit_fails_the_epoch_and_is_named(what: str) -> None:
    change, text = MISFITS[what]

    class Misfit(Subject):
        def process(self, key: Any, rows: Rows, ctx: Context) -> None:
            for row in rows:
                if row.x:
                    change(self)

    made = harness(Misfit)
    made.run_epoch([{"k": "a", "x": 0}])
    before = bytes_of(made.state("a"))
    with pytest.raises(StateTypeError, match=rf"state variable '(w|grid)' .*of key 'a' \(str\): .*{text}"):
        made.run_epoch([{"k": "a", "x": 1}])
    assert bytes_of(made.state("a")) == before


DECLARATIONS = {
    "no shape": (bl.array(()), np.ndarray, r"Op.w: bl.array\(\): the shape is \(\); give a positive int, or a tuple"),
    "an empty shape": (bl.array((3, 0)), np.ndarray, r"the shape is \(3, 0\)"),
    "a shape of text": (bl.array("3"), np.ndarray, "the shape is '3'"),  # type: ignore[arg-type]
    "objects": (bl.array(3, object), np.ndarray, "the dtype is <class 'object'>; use one of bool, int8"),
    "complex": (bl.array(3, "complex128"), np.ndarray, "the dtype is 'complex128'"),
    "no dtype": (bl.array(3, "number"), np.ndarray, "the dtype is 'number'"),
    "another annotation": (
        bl.array(3),
        list[float],
        r"does not fit the annotation list\[float\]; annotate it as np.nd",
    ),
    "another dtype, annotated": (
        bl.array(3),
        Annotated[npt.NDArray[np.int8], "km"],
        r"the annotation says int8, and bl.array\(\) float64",
    ),
    "another dtype": (bl.array(3), npt.NDArray[np.int8], r"the annotation says int8, and bl.array\(\) float64"),
    "a default of text": (bl.array(3, default="a"), np.ndarray, r"the default 'a' does not fit float64\[3\]"),
    "a default that is rounded": (bl.array(3, int, default=0.5), np.ndarray, r"0.5 does not fit int64\[3\]: 0.5 is no"),
    "too large a default": (bl.array(3, "int8", default=300), np.ndarray, r"300 does not fit int8\[3\]"),
    "a default beyond its floats": (bl.array(3, "float32", default=1e300), np.ndarray, r"1e\+300 is no float32"),
    "a default that no float is": (bl.array(3, "float32", default=2**24 + 1), np.ndarray, "16777217 is no float32"),
    "a list with one of them": (bl.array(2, "int8", default=[1, 300]), np.ndarray, "300 is no int8"),
    "a longer default": (bl.array(3, default=np.zeros(4)), np.ndarray, r"does not fit float64\[3\]"),
    "a value": (bl.value(0), np.ndarray, r"bl.value\(\) does not fit a NumPy array; use bl.array\(shape, dtype\)"),
    "a value with a dtype": (bl.value(0), npt.NDArray[np.int8], r"use bl.array\(shape, dtype\)"),
}


@pytest.mark.parametrize("what", DECLARATIONS)
def test_a_declaration_that_makes_no_sense_is_refused(what: str) -> None:
    declaration, annotation, text = DECLARATIONS[what]
    with pytest.raises(StateTypeError, match=text):
        build_specs("Op", {"w": annotation}, {"w": declaration})


@pytest.mark.parametrize(
    ("declaration", "start"),
    [
        (bl.array(2), np.zeros(2)),
        (bl.array((1, 2), "float32", default=0.1), np.full((1, 2), 0.1, "float32")),
        (bl.array(2, default=np.float32(0.5)), np.full(2, 0.5)),
        (bl.array((2, 2), "int64", default=[1, 2]), np.array([[1, 2], [1, 2]])),
        (bl.array(2, default=[1, 2]), np.array([1.0, 2.0])),
        (bl.array(2, "float32", default=[0.1, np.nan]), np.array([0.1, np.nan], "float32")),
        (bl.array(2, bool, default=True), np.array([True, True])),
        (bl.array(2, default=np.inf), np.array([np.inf, np.inf])),
        (bl.array([2], np.uint8, default=255), np.array([255, 255], "uint8")),  # type: ignore[arg-type]
    ],
)
def test_a_new_key_starts_with_an_array_of_its_own(declaration: Declaration, start: npt.NDArray[Any]) -> None:
    (spec,) = build_specs("Op", {}, {"w": declaration})
    made = spec.fresh_default()
    assert (made.dtype, made.shape, made.tobytes()) == (start.dtype, start.shape, start.tobytes())
    made[...] = 0
    assert spec.fresh_default().tobytes() == start.tobytes()
    assert spec == build_specs("Op", {}, {"w": declaration})[0]
