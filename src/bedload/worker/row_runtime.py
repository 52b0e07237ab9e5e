"""Running one operator on rows: sub-batches become calls of user code, and what these return becomes outputs.

Everything that user code raises becomes an :class:`~bedload.core.errors.OperatorFailed` with the user's
own traceback, the key and the epoch. Nothing of a call that failed is left when its epoch has been aborted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bedload.core.epoch import Due, EpochTime
from bedload.core.errors import BedloadError, DataError, DefinitionError, OperatorFailed, ProtocolError
from bedload.core.ids import NO_EPOCH, Epoch, KeyGroup, OperatorName, WorkerId
from bedload.keys import groups_in, hash_columns
from bedload.keys.lookup import Hashes
from bedload.state import RecordLayout
from bedload.state.kinds import Layout, Store
from bedload.state.specs import StateSpec
from bedload.state.timers import Timer, TimerClock, put_timers
from bedload.state.ttl import CODE, Ttl
from bedload.store import KeyGroupStore
from bedload.store.deltas import StateVariable, describe, key_arrays
from bedload.store.due import NEVER
from bedload.store.row_table import RowTable
from bedload.store.selection import Selection
from bedload.store.shelf import NO_HASHES, Shelf
from bedload.worker.allowance import Images
from bedload.worker.failures import located, operator_failed, report
from bedload.worker.firing import Firing, Owns, owned
from bedload.worker.grouping import Grouped, group_rows
from bedload.worker.operator import Context, Operator, make_shared, share, state_of
from bedload.worker.outputs import OutputRows
from bedload.worker.parameters import Values
from bedload.worker.rows import Rows, SortedBatch, row_type, rows_of
from bedload.worker.stores import Stores
from bedload.worker.table_runtime import TableRuntime, row_table
from bedload.worker.timers import CurrentKey, OperatorTimers, due_at

_T = TypeVar("_T")


@dataclass(frozen=True)
class Deployment:
    """An operator as it is shipped to the workers."""

    name: OperatorName
    operator: type[Operator]
    key: tuple[int, ...]
    """The key's columns, by position in the input."""
    columns: tuple[str, ...]
    """The input's columns, without the key group."""
    output: pa.Schema
    key_types: tuple[pa.DataType, ...] = ()
    """The types of the key's columns; who keeps deltas must give them."""
    epoch_bytes: int | None = None
    """What an epoch may take at a worker beside the state; None: what the worker finds right."""
    parameters: Values = field(default_factory=dict)
    ttl: Ttl | None = None
    """How long a key lives without a row."""
    store: Store = Store.MEMORY
    store_url: str = ""
    """Of a remote one."""

    @property
    def specs(self) -> tuple[StateSpec, ...]:
        """The state variables as they are declared, with the hidden ones."""
        return state_of(self.operator, self.ttl)

    @property
    def layout(self) -> Layout:
        """How its state lies in memory."""
        return Layout.ROWS

    @property
    def variables(self) -> tuple[StateVariable, ...]:
        """The state variables."""
        return describe(self.specs)

    @property
    def timed(self) -> bool:
        """Whether its keys have timers, or something of them expires."""
        return self.operator.timed() or any(spec.ttl is not None for spec in self.specs)

    def prepare(self) -> None:
        """Nothing to do: rows run as they are."""

    def start(self, worker: WorkerId, stores: Stores | None = None) -> OperatorRuntime:
        """The running operator."""
        return OperatorRuntime(self, worker, stores)


class OperatorRuntime(TableRuntime[RowTable]):
    """One operator at one worker: its code, its key groups, its current epoch."""

    def __init__(self, deployment: Any, worker: WorkerId, stores: Stores | None = None) -> None:
        self._worker = worker
        self._table = row_table(deployment, stores)
        self._context = Context(deployment.name, worker, NO_EPOCH)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes, self._images = 0, Images()
        self._holder: Operator | None = None
        """What ``setup`` and ``close`` are called on; None: it is closed."""
        self.rows, self.durable = 0, False
        self._bind(deployment)

    def _bind(self, deployment: Any) -> None:
        self.deployment = deployment
        operator = deployment.operator
        layout = RecordLayout(deployment.specs)
        holder, row = make_shared(operator, deployment.parameters, layout, self._table.slots)
        self._current = CurrentKey(deployment.name) if operator.timed() else None
        self._context._timers = None if self._current is None else OperatorTimers(self._current)
        self._context._begin(NO_EPOCH)  # setup belongs to none, also of code that comes later
        self._call("setup", lambda: holder.setup(self._context))
        if self._context._forgotten:
            self._context._forgotten = False
            raise DefinitionError(
                f"setup of operator {deployment.name} called ctx.forget(), but there is no key to forget yet; "
                "call it in process or result"
            )
        share(holder, row)
        self._holder, self._row, self._row_type = holder, row, row_type(deployment.columns)
        self._table.bind(layout, row, len(deployment.key), deployment.key_types)
        self._expiries = self._table.layout.expiries
        self._grouped, self._has_result = operator.grouped, operator.result is not Operator.result

    def redeploy(self, deployment: Any) -> None:
        """New code for the same state, between epochs."""
        report(self.close())
        self._bind(deployment)

    def close(self) -> OperatorFailed | None:
        """Let the operator release what it made in ``setup``; what that raised."""
        holder, self._holder = self._holder, None
        try:
            if holder is not None:
                self._call("close", holder.close)
        except OperatorFailed as failed:
            return failed
        return None

    # --- epochs ---

    def begin(self, epoch: Epoch, groups: Iterable[KeyGroup]) -> None:
        """An epoch begins, in which the worker owns these key groups."""
        groups = self._groups = frozenset(groups)
        self._context._begin(epoch)
        self._waiting, self._waiting_bytes, self._images, self.rows = [], 0, Images(), 0
        if self._current is not None:
            self._current.armed.clear()
        self._table.begin(groups)

    def set_time(self, time: EpochTime) -> None:
        """The time of the epoch that has begun: once, and before its first row."""
        self._context._time = time
        if self._expiries is not None:
            self._expiries.begin(time)

    def hashes(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The hash of the key of each row of a sub-batch."""
        return hash_columns([batch.column(i) for i in self.deployment.key])

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take a sub-batch; the outputs that leave at once, if there are any."""
        self.rows += batch.num_rows
        if self._grouped:
            self._waiting.append(batch)
            self._waiting_bytes += batch.nbytes
            return None
        return self._call("process", lambda: self._process(batch).batch())

    def seal(self, owns: Owns | None = None) -> pa.RecordBatch | None:
        """All rows of the epoch are here: run what waits for that; the outputs that leave now."""
        outputs = self._call("seal", lambda: self._seal(owns))
        self._images.look_again()  # grouped rows, timers and results have changed state since
        return outputs

    def _seal(self, owns: Owns | None) -> pa.RecordBatch | None:
        outputs = OutputRows(self.deployment.name, self.deployment.output, self.allow, self.take)
        if self._waiting:
            whole = pa.Table.from_batches(self._waiting).combine_chunks().to_batches()
            self._waiting = []
            for batch in whole:
                self._process(batch, outputs)
        if self._expiries is not None:
            self._sweep(owns)
        if self._current is not None:
            self._fire(self._current, outputs, owns)
        results = (lambda store: self._results(store, outputs)) if self._has_result else None
        self._table.seal(results, durable=self.durable)
        return outputs.batch()

    @property
    def timed(self) -> bool:
        """Whether its keys may have something due: timers, or what expires."""
        return self._current is not None or self._expiries is not None

    def due_hashes(self, groups: Iterable[KeyGroup], time: EpochTime) -> Hashes:
        """Keys of these key groups that may have something due."""
        stores = (store for group in groups if (store := self._table.stores.get(group)) is not None)
        keys = [key for store in stores for key in store.may_be_due(time)]
        return hash_columns(key_arrays(keys, self.deployment.key_types)) if keys else NO_HASHES

    def next_due(self) -> Due | None:
        """The earliest that something of a key may be due."""
        if not self.timed:
            return None
        stores = [store for group, store in self._table.stores.items() if group in self._groups]
        return due_at({clock: min((it.next_due(clock) for it in stores), default=NEVER) for clock in TimerClock})

    def drop(self, groups: Iterable[KeyGroup]) -> None:
        """Forget the state of these key groups; no epoch may have touched them."""
        groups = list(groups)
        if len(self._waiting_hashes(groups)):
            raise ProtocolError(
                f"operator {self.deployment.name}: key groups were dropped while rows of theirs wait for the end of "
                "the epoch; end it first"
            )
        super().drop(groups)

    def shelve(self, selection: Selection) -> Shelf:
        """The keys that are meant, to go elsewhere."""
        return self._table.shelve(selection, self._waiting_hashes)

    def _waiting_hashes(self, groups: Collection[KeyGroup]) -> npt.NDArray[np.int64]:
        """Key hashes of the rows of these key groups that wait for the seal."""
        found = [np.empty(0, np.int64)]
        for batch in self._waiting:
            mine = np.isin(groups_in(batch), np.fromiter(groups, np.int64, len(groups)))
            if mine.any():
                found.append(self.hashes(batch)[mine])
        return np.concatenate(found)

    def abort(self) -> None:
        """The epoch does not count."""
        self._waiting, self._context._forgotten = [], False
        super().abort()

    def held_bytes(self) -> int:
        """Roughly what is kept for the current epoch alone."""
        return self._waiting_bytes + self._images.bytes(self.rows, super().held_bytes)

    def _met(self, keys: int) -> None:
        """The seal has touched so many keys that may have no rows."""
        self._images.others += keys
        if keys and self.allow is not None:
            self.allow(0)

    # --- calling user code ---

    def _process(self, batch: pa.RecordBatch, outputs: OutputRows | None = None) -> OutputRows:
        deployment = self.deployment
        if outputs is None:
            outputs = OutputRows(deployment.name, deployment.output)
        group_column = groups_in(batch)
        grouped = group_rows([batch.column(i) for i in deployment.key], group_column)
        keys, stores = grouped.keys, self._table.stores
        parts = self._table.ready([(stores[group], keys[start:stop]) for group, start, stop in grouped.groups])
        expiries = self._expiries
        objects: Iterable[Any] = chain.from_iterable(_in_turn(parts, outputs))
        if not self._table.layout.scalars_only or (expiries is not None and expiries.watches_code):
            # SUBTLE: a call may change a container of another key of the batch, and so all have to be open before it.
            objects = list(objects)
        if expiries is not None and expiries.key is not None:
            objects = list(objects)
            expiries.renew(objects)
        view = SortedBatch(batch, deployment.columns, self._row_type, grouped.order)
        context, process = self._context, self._row.process
        add_row, add_key = outputs.rows.append, outputs.keys.append
        key: Any = None
        if self._current is not None:
            objects = self._current.each(objects)
        try:
            if expiries is not None:
                CODE.runs = expiries.watches_code
            for key, item, rows in zip(keys, objects, rows_of(view, grouped.bounds), strict=True):
                returned = process(item, key, rows, context)
                if returned is not None:
                    if type(returned) is tuple:
                        add_row(returned)
                        add_key(key)
                    else:
                        outputs.add(key, returned)
                if context._forgotten:
                    context._forgotten = False
                    self._forget(key, rows, grouped)
        except BedloadError as error:
            raise self._located("process", error, key=key) from error
        except BaseException as error:
            raise self._failed("process", error, key=key) from error
        finally:
            CODE.runs = False
            if self._current is not None:
                self._current.item = None
        if self._current is not None and self._current.armed:
            group_of = {key: group for group, start, stop in grouped.groups for key in keys[start:stop]}
            for key, clock, at in self._current.armed:
                stores[group_of[key]].arm(clock, at, key)
            self._current.armed.clear()
        return outputs

    def _sweep(self, owns: Owns | None) -> None:
        """Take out what is due in keys that have no rows."""
        for group, store in self._table.stores.items():
            if group in self._groups and (keys := store.overdue()):
                store.sweep(set(keys if owns is None else owned(group, keys, owns, self.deployment.key_types)))
                self._met(len(keys))

    def _fire(self, current: CurrentKey, outputs: OutputRows, owns: Owns | None) -> None:
        """Call ``on_timer`` for what is due."""
        context, on_timer = self._context, self._row.on_timer
        assert context._time is not None
        firing = Firing(current, context._time, self.deployment.key_types, self._met)
        firing.collect([store for group, store in self._table.stores.items() if group in self._groups], owns)

        def call(item: Any, key: Any, timer: Timer, store: KeyGroupStore) -> None:
            try:
                CODE.runs = self._expiries is not None and self._expiries.watches_code
                returned = on_timer(item, key, timer, context)
                if returned is not None:
                    outputs.add(key, returned)
                if context._forgotten:
                    context._forgotten = False
                    store.forget([key])
                    put_timers(item, ())
            except BedloadError as error:
                raise self._located("on_timer", error, key=key) from error
            except BaseException as error:
                raise self._failed("on_timer", error, key=key) from error
            finally:
                CODE.runs = False
            outputs.settle()

        firing.run(call)

    def _results(self, store: KeyGroupStore, outputs: OutputRows) -> None:
        context, result = self._context, self._row.result
        add_row, add_key = outputs.rows.append, outputs.keys.append
        key: Any = None
        try:
            changed = store.changed()
            CODE.runs = self._expiries is not None and self._expiries.watches_code
            for item in changed:
                key = item._bedload_key
                returned = result(item, key, context)
                if type(returned) is tuple:
                    add_row(returned)
                    add_key(key)
                elif returned is not None:
                    outputs.add(key, returned)
                if context._forgotten:
                    context._forgotten = False
                    store.forget([key])
        except BedloadError as error:
            raise self._located("result", error, key=key) from error
        except BaseException as error:
            raise self._failed("result", error, key=key) from error
        finally:
            CODE.runs = False
        outputs.settle()

    def _forget(self, key: Any, rows: Rows, grouped: Grouped) -> None:
        # Where the rows begin says which key of the batch it is, and that, of which key group.
        at = bisect_left(grouped.bounds, rows._start)
        group, _, _ = grouped.groups[bisect_right(grouped.groups, at, key=itemgetter(2))]
        self._table.stores[group].forget([key])

    def _call(self, method: str, function: Callable[[], _T]) -> _T:
        try:
            return function()
        except (DefinitionError, DataError) as error:
            raise self._located(method, error) from error
        except BedloadError:
            raise
        except BaseException as error:
            raise self._failed(method, error) from error

    def _located(self, method: str, error: BedloadError, **where: Any) -> BedloadError:
        return located(error, self.deployment.name, method, epoch=self._context.epoch, **where)

    def _failed(self, method: str, error: BaseException, **where: Any) -> OperatorFailed:
        return operator_failed(
            self.deployment.name, method, error, worker=self._worker, epoch=self._context.epoch, **where
        )


def _in_turn(parts: list[tuple[KeyGroupStore, list[Any]]], outputs: OutputRows) -> Iterator[Sequence[Any]]:
    """The objects of each key group, found when the one before is done: so they are in the processor's cache."""
    for store, keys in parts:
        outputs.settle()
        yield store.touch(keys)
