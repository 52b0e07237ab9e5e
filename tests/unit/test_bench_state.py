import gc
import hashlib
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# `bench` is not part of the package: it is found from the root of the repository.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import counter, counter_peers
from bench.counter_systems import SYSTEMS
from bench.isolate import NotAvailable, WrongAnswer
from bench.plots import Panel, draw, short
from bench.report import Result, Status
from bench.state import OPERATIONS, make_report, parse, plan_runs, ratios_of, run_one
from bench.state_inputs import KINDS, SIZES, Inputs, Shape
from bench.state_layouts import LAYOUTS, DictLayout, RowLayout, unsupported
from bench.state_measure import check, measure

NEEDS = {"rocksdb": "rocksdict"}


def cells() -> list[Any]:
    return [
        pytest.param(
            layout,
            Shape(kind, size),
            id=f"{layout}-{kind}-{size}",
            marks=pytest.mark.skipif(
                layout in NEEDS and find_spec(NEEDS[layout]) is None, reason=f"needs {NEEDS.get(layout)}"
            ),
        )
        for layout in LAYOUTS
        for kind in KINDS
        for size in SIZES
        if not unsupported(layout, Shape(kind, size))
    ]


@pytest.mark.parametrize(("layout", "shape"), cells())
def test_a_layout_goes_through_the_same_history_as_plain_dicts(layout: str, shape: Shape) -> None:
    check(LAYOUTS[layout], shape, 60)


class LosesAnAbort(RowLayout):
    def abort(self) -> None:
        self.commit()


class ReadsWhatIsNotCommitted(RowLayout):
    def read(self, group: int, key: int) -> Any:
        (live,) = self._stores[group].touch([key])
        return live.state


class KeepsWhatMoved(DictLayout):
    def discard(self, groups: Any) -> None:
        pass

    def fresh(self) -> DictLayout:
        return DictLayout(self._shape)


@pytest.mark.parametrize("broken", [LosesAnAbort, ReadsWhatIsNotCommitted, KeepsWhatMoved])
def test_a_layout_that_answers_wrong_is_not_timed(broken: Any) -> None:
    with pytest.raises(WrongAnswer):
        check(broken, Shape("value", "small"), 60)


def test_every_layout_gets_the_same_keys_states_and_rows() -> None:
    one, other = Inputs(Shape("map", "small"), 50), Inputs(Shape("map", "small"), 50)
    assert [states for _, states in one.states()] == [states for _, states in other.states()]
    first, second = one.batch(20), other.batch(20)
    assert first.keys.pairs() == second.keys.pairs()
    assert (first.fields, first.values) == (second.fields, second.values)


@pytest.fixture
def own_collector() -> Iterator[None]:
    """A measurement sets the garbage collector for its process."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("own_collector")
def test_a_measurement_has_every_operation_of_a_layout_with_epochs() -> None:
    figures = measure("columns", "value", "small", 500, 1, 0.0)
    assert set(OPERATIONS) <= figures.keys()
    assert all(value > 0 for name, value in figures.items() if name.endswith("_ns"))


def test_what_a_layout_cannot_hold_is_reported_with_the_reason(tmp_path: Path) -> None:
    options = parse(["--layouts", "columns", "--kinds", "nested", "--keys", "10"])
    results = [run_one(run, options, tmp_path)[0] for run in plan_runs(options)]
    assert [(r.status, dict(r.figures)) for r in results] == [(Status.UNAVAILABLE, {})] * len(SIZES)
    assert all("scalars" in r.note for r in results)


def test_many_keys_are_measured_with_values_only_unless_asked() -> None:
    def kinds(*arguments: str) -> set[str]:
        return {run.shape.kind for run in plan_runs(parse(["--keys", "1000000", *arguments]))}

    assert kinds() == {"value"}
    assert kinds("--kinds", "map") == {"map"}


def cell(layout: str, update: float, **figures: float) -> Result:
    params = {"kind": "value", "size": "small", "keys": 10_000}
    return Result(layout, params, Status.OK, {"update_ns": update, **figures})


def test_a_ratio_says_how_many_times_as_fast_the_first_layout_is() -> None:
    found = ratios_of([cell("rows", 90.0, commit_ns=5.0), cell("columns", 30.0), cell("dict", 45.0)])
    assert found["columns_vs_rows_update_value_small_10k"] == 3.0
    assert found["rows_vs_dict_update_value_small_10k"] == 0.5
    assert not [name for name in found if "commit" in name or "rocksdb" in name]


def test_the_report_has_the_common_form() -> None:
    said = make_report([cell("rows", 90.0)], parse(["--quick"])).as_json()
    assert said["bench"] == "state"
    (result,) = said["results"]
    assert result == {
        "system": "rows", "status": "ok", "kind": "value", "size": "small", "keys": 10_000, "update_ns": 90.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"), [(4.2, "4.2"), (950, "950"), (1_234, "1.2k"), (9_999, "10k"), (35_000, "35k"), (2_000_000, "2M")]
)
def test_numbers_on_bars_are_short(value: float, text: str) -> None:
    assert short(value) == text


def test_a_plot_is_written_also_where_something_was_not_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    panel = Panel("one", ["update", "commit"], {"rows": [70.0, 90.0], "dict": [50.0, None]}, "ns")
    file = draw([panel, panel], tmp_path / "deep" / "plot.png", "two")
    assert file.read_bytes().startswith(b"\x89PNG")


# --- peers of the counter


@pytest.mark.parametrize(
    ("keys", "start", "stop", "last", "digest"),
    [
        # Made by Spark: `key_expression` over `range(start, stop)`.
        (1_000, 0, 8_000, [630, 840, 394, 481], "598ce9a49a7a82a3"),
        (10_000, 5_000, 20_000, [6545, 210, 6230, 6927], "c3f7ed6643e7c5bd"),
        (1_000_000, 995_000, 1_005_000, [7739, 28043, 812879, 872734], "45b84296d3613a25"),
    ],
)
def test_peers_count_the_keys_that_spark_makes(keys: int, start: int, stop: int, last: list[int], digest: str) -> None:
    made = counter_peers.row_keys(start, stop, keys)
    assert made[-4:].tolist() == last
    assert hashlib.sha256(made.astype("<i8").tobytes()).hexdigest()[:16] == digest


def test_a_peers_rate_is_over_the_rows_after_the_warm_up() -> None:
    logs = [[(0.0, 50), (1.0, 100), (2.0, 200)], [(0.5, 50), (1.0, 100), (3.0, 200)]]
    rate = counter_peers.rate_of(logs, before=200, total=400)
    assert (rate["rows"], rate["rows_per_s"], rate["slowest_trigger_s"]) == (200, 100.0, 1.0)


def test_a_peer_that_lost_rows_is_wrong() -> None:
    with pytest.raises(WrongAnswer, match="90 rows were counted instead of 100"):
        counter_peers.rate_of([[(0.0, 50), (1.0, 90)]], before=50, total=100)


@pytest.mark.parametrize("peer", ["bytewax", "pathway"])
def test_a_peer_that_is_not_installed_says_how_to_install_it(
    peer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'peer'\" >&2\nexit 1\n", encoding="utf-8")
    bare.chmod(0o755)
    monkeypatch.setenv(counter_peers.PYTHON_VARIABLE, str(bare))
    with pytest.raises(NotAvailable, match=r"pip install bedload\[bench-peers\]"):
        SYSTEMS[peer].require()


def test_peers_are_in_a_full_run_and_not_in_a_quick_one() -> None:
    def systems(*arguments: str) -> set[str]:
        return {run.system for run in counter.plan_runs(counter.parse([*arguments]))}

    assert {"bytewax", "pathway"} <= systems()
    assert not {"bytewax", "pathway"} & systems("--quick")


def test_files_for_pathway_are_in_the_order_of_batches(tmp_path: Path) -> None:
    counter_peers._write_files(tmp_path / "in", np.arange(5), 2)
    files = sorted((tmp_path / "in").iterdir(), key=lambda file: file.stat().st_mtime)
    assert [file.read_text(encoding="utf-8").split() for file in files] == [
        ["key", "0", "1"],
        ["key", "2", "3"],
        ["key", "4"],
    ]
