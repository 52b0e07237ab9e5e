"""Which zones the datetimes of a view have: by that they are timestamps, timestamps without a zone, or structs.

A table's columns have types before a value is read, so this looks at values before. The snapshot's manifest tells its
own; the changes after it are read, of variables with datetimes alone. Whoever gives a schema spares that.

Invariant: no value of the view has a zone that is not found. More may be found, of values that were replaced.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa

from bedload.checkpoint.evolution import Evolution, path_between
from bedload.checkpoint.forms import StateForm
from bedload.checkpoint.patches import decode_patch
from bedload.checkpoint.pools import THREADS
from bedload.checkpoint.records import OperatorSchema, Variable
from bedload.checkpoint.restore import load_delta
from bedload.checkpoint.shapes import Shape, unpack_value
from bedload.checkpoint.storage import open_storage
from bedload.checkpoint.timestamps import NAIVE, is_dated, zone_shown, zones_of
from bedload.checkpoint.uniform import zones_by_variable
from bedload.spark.source_view import View
from bedload.state.moments import MOMENT
from bedload.store.deltas import PATCHES

_THREADS = 4
"""Segments that are held in memory at a time."""
_MOMENT = {field.name for field in MOMENT}


def zones_shown(view: View) -> dict[str, str]:
    """By variable with datetimes, the zone that Spark sees them in; structs are left out."""
    chosen = view.variables
    dated = [v for v in view.schema.variables if is_dated(v) and (chosen is None or v.name in chosen)]
    if not dated:
        return {}
    found = _Found(view, dated)
    found.look()
    shown = {name: zone_shown(zones) for name, zones in found.zones.items()}
    return {name: zone for name, zone in shown.items() if name not in found.unknown}


class _Found:
    """What is found in a view, by the variables as they are called at its end."""

    def __init__(self, view: View, dated: list[Variable]) -> None:
        self._view = view
        self._dated = dated
        self.zones: dict[str, set[str]] = {variable.name: set() for variable in dated}
        self.unknown: set[str] = set()
        """Variables of which an older snapshot does not tell."""

    def look(self) -> None:
        """At everything."""
        view = self._view
        manifest = view.plan.snapshot
        if manifest is not None:
            told = zones_by_variable(manifest.parts)
            for name, source in self._sources(view.schemas[manifest.schema]).items():
                written = any(source.name in part.files for part in manifest.parts)
                if written and is_dated(source) and source.name not in told:
                    self.unknown.add(name)
                self.zones[name] |= told.get(source.name, set())
        storage = open_storage(view.options.url, view.options.storage)
        turns = {record.turn: record for record in (*view.plan.deltas, *(view.feed or ()))}
        written_in = [record.schema for record in turns.values()]
        sources_in = {number: self._sources(view.schemas[number]) for number in set(written_in)}
        self._look_at_defaults(written_in if manifest is None else [manifest.schema, *written_in])

        def read(item: tuple[Any, Any]) -> Iterator[tuple[str, set[str]]]:
            record, worker = item
            sources = sources_in[record.schema]
            form = StateForm.of(view.schemas[record.schema], [source.name for source in sources.values()])
            delta, _ = load_delta(storage, view.operator, form, record, worker)
            for name, source in sources.items():
                yield name, zones_of(delta.column(source.name), exact=False)
            if PATCHES in delta.schema.names:
                for data in delta.column(PATCHES).drop_null().to_pylist():
                    patches = decode_patch(data)
                    for name, source in sources.items():
                        yield name, set(_zones_in(patches.get(source.name)))

        items = [(record, worker) for record in turns.values() for worker in record.workers]
        with THREADS(_THREADS, "bedload-source") as pool:
            for at in range(0, len(items), _THREADS):
                for some in pool.map(lambda item: list(read(item)), items[at : at + _THREADS]):
                    for name, zones in some:
                        self.zones[name] |= zones

    def _look_at_defaults(self, written_in: list[int]) -> None:
        """At what began when state went from schema to schema, as it was written, and to that of the view."""
        schemas, wanted = self._view.schemas, self._view.schema.number
        hops = {*pairwise(written_in), *((number, wanted) for number in written_in)}
        steps = {step for hop in hops for step in pairwise(s.number for s in path_between(schemas, *hop))}
        for before, after in steps:
            step = Evolution([schemas[before], schemas[after]], self._view.operator)
            for name, source in self._sources(schemas[after]).items():
                is_new = not step.sources([source.name])
                for data, kind in _defaults(source, is_new=is_new):
                    self.zones[name] |= zones_of(unpack_value(data, kind), exact=False)

    def _sources(self, schema: OperatorSchema) -> dict[str, Variable]:
        """What the variables are in a schema, of those that it has."""
        there = {variable.name: variable for variable in schema.variables}
        path = path_between(self._view.schemas, schema.number, self._view.schema.number)
        evolution = Evolution(path, self._view.operator)
        return {v.name: there[source] for v in self._dated for source in evolution.sources([v.name])}


def _defaults(variable: Variable, *, is_new: bool) -> Iterator[tuple[bytes, pa.DataType]]:
    """What a variable starts with if it is new, and what fields in it start with."""
    if is_new and variable.default is not None:
        yield variable.default, variable.field.type
    if variable.shape is not None:
        yield from _field_defaults(variable.shape)


def _field_defaults(shape: Shape) -> Iterator[tuple[bytes, pa.DataType]]:
    for item in shape.items:
        yield from _field_defaults(item)
    for field in shape.fields:
        if field.default is not None:
            with pa.ipc.open_stream(field.default) as reader:
                yield field.default, reader.schema.field(0).type
        yield from _field_defaults(field.shape)


def _zones_in(value: Any) -> Iterator[str]:
    """The zones of the datetimes in a patch."""
    if isinstance(value, dict):
        if value.keys() == _MOMENT and isinstance(value["wall"], dt.datetime):
            yield value["zone"] or NAIVE
        else:
            for item in value.values():
                yield from _zones_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _zones_in(item)
