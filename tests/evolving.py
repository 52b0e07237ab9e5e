"""Operators that change between epochs, on real runtimes and a real checkpoint, for the tests of evolution."""

import types
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

import bedload as bl
from bedload.checkpoint.evolution import same_state
from bedload.checkpoint.history import Plan
from bedload.checkpoint.records import Manifest, OperatorSchema, decode, encode
from bedload.checkpoint.restore import Restore
from bedload.checkpoint.storage import Storage
from bedload.core.ids import Epoch, KeyGroup, Turn, WorkerId
from bedload.state import codec
from bedload.worker.operator import state_of
from bedload.worker.row_runtime import Deployment, OperatorRuntime
from bedload.worker.state_schema import state_schema
from tests.checkpoint_states import OPERATOR, Writer, groups_of_keys

GROUPS = 8
KEY = pa.int64()


class Scripted(bl.Operator):
    """Does to its state what a row says."""

    def process(self, key: Any, rows: Any, ctx: Any) -> None:
        for row in rows:
            SCRIPT[row.step](self, ctx)


SCRIPT: list[Any] = []


def operator(name: str = "Op", /, **declared: tuple[Any, Any]) -> type[bl.Operator]:
    """A class with these state variables: annotation and declaration by name."""
    body: dict[str, Any] = {n: declaration for n, (_, declaration) in declared.items()}
    body["__annotations__"] = {n: annotation for n, (annotation, _) in declared.items()}
    made: type[bl.Operator] = types.new_class(name, (Scripted,), {}, lambda space: space.update(body))
    return made


def deployment(cls: type[bl.Operator]) -> Deployment:
    return Deployment(OPERATOR, cls, (0,), ("key", "step"), pa.schema([]), (KEY,))


def schema_for(cls: type[bl.Operator], number: int = 1, base: int | None = None) -> OperatorSchema:
    """Its schema, as one that was stored and read again."""
    made = state_schema(deployment(cls), ["car"], [KEY], GROUPS, state_of(cls))
    numbered = OperatorSchema(
        **{name: getattr(made, name) for name in made.__struct_fields__} | {"number": number, "base": base}
    )
    return decode(OperatorSchema, encode(numbered), "schema")


def column_of(cls: type[bl.Operator], values: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """A state of the keys 0, 1, ... in state form."""
    batch = codec.encode(state_of(cls), values)
    keys = list(range(len(values)))
    schema = schema_for(cls)
    groups = pa.array(groups_of_keys(schema, keys), pa.int16())
    names = ["bedload_group", "bedload_key_0", *batch.schema.names]
    return pa.RecordBatch.from_arrays([groups, pa.array(keys, KEY), *batch.columns], names=names)


class Evolving:
    """One operator's checkpoint, written by the runtimes of one definition after the other."""

    def __init__(self, storage: Storage, cls: type[bl.Operator]) -> None:
        self.schemas = {1: schema_for(cls)}
        self.writer = Writer(storage, self.schemas[1])
        self.manifests: list[Manifest] = []
        self.runtime = self._start(cls, None)
        self.states: dict[Turn, dict[Any, dict[str, Any]]] = {}

    def _start(self, cls: type[bl.Operator], turn: Turn | None) -> OperatorRuntime:
        self.cls = cls
        runtime = deployment(cls).start(WorkerId(0))
        groups = [KeyGroup(group) for group in range(GROUPS)]
        if turn is None:
            runtime.install(groups, None)
        else:
            for some, state in self.restore(turn).chunks(chunk_groups=3):
                state.validate(full=True)
                runtime.install([KeyGroup(group) for group in some], state)
        return runtime

    @property
    def schema(self) -> OperatorSchema:
        return self.writer.schema

    def become(self, cls: type[bl.Operator], at: Turn | None = None) -> None:
        """Go on with another definition, at the last turn or an earlier one."""
        turn = self.writer.records[-1].turn if at is None else at
        base = self.writer.records[-1].schema
        wanted = schema_for(cls, len(self.schemas) + 1, base)
        if not same_state(wanted, self.schemas[base]):
            self.schemas[wanted.number] = wanted
            self.writer.schema = wanted
        else:
            self.writer.schema = self.schemas[base]
        self.runtime = self._start(cls, turn)

    def epoch(self, *steps: tuple[Any, Any]) -> Turn:
        """Run one epoch of pairs of key and what to do with its state."""
        SCRIPT[:] = [step for _, step in steps]
        keys = [key for key, _ in steps]
        groups = pa.array(groups_of_keys(self.schema, keys), pa.int16())
        rows = pa.RecordBatch.from_arrays(
            [pa.array(keys, KEY), pa.array(range(len(keys)), pa.int64()), groups],
            names=["key", "step", "bedload_group"],
        )
        self.runtime.begin(Epoch(len(self.writer.records)), [KeyGroup(group) for group in range(GROUPS)])
        if keys:
            self.runtime.apply(rows)
        self.runtime.seal()
        delta = self.runtime.delta()
        record = self.writer.turn(self._nothing() if delta is None else delta)
        self.runtime.commit()
        self.states[record.turn] = self.state()
        return record.turn

    def _nothing(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], pa.schema([("bedload_group", pa.int16())]))

    def state(self) -> dict[Any, dict[str, Any]]:
        """What the workers have now, as plain values."""
        return dict(self.runtime.snapshot())

    def plan(self, turn: Turn | None = None) -> Plan:
        return self.writer.plan(self.manifests, turn)

    def restore(self, turn: Turn | None = None, schema: OperatorSchema | None = None) -> Restore:
        return Restore(
            self.writer.storage, OPERATOR, schema or self.schema, self.plan(turn), schemas=self.schemas, threads=1
        )

    def restored(self, turn: Turn | None = None) -> dict[Any, dict[str, Any]]:
        """What a new worker of the present definition would have."""
        return dict(self._start(self.cls, turn or self.writer.records[-1].turn).snapshot())
