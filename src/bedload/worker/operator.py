"""What users subclass: an operator, its rows and its context.

An operator's state variables are declared on the class and become ``__slots__`` at the worker: one object per
key holds them, so that reading or writing a scalar is a plain attribute access, with nothing in
between. What was there before is copied once per key and epoch, by the store, not per write.

Two consequences are deliberate. There is no ``__init__`` of the user's: objects appear when a key is first seen; what
whoever applies the operator chooses is a parameter (:mod:`bedload.worker.parameters`), and what all keys share (a
model, a connection) is made in :meth:`Operator.setup`. And an attribute that is neither declared nor made there cannot
be assigned, because it would be lost when the key moves.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Iterable
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from bedload.core.epoch import EpochTime
from bedload.core.errors import DefinitionError, StateTypeError
from bedload.core.ids import Epoch, WorkerId
from bedload.state import Declaration, RecordLayout, StateSpec, build_specs
from bedload.state.expiries import with_expiries
from bedload.state.specs import TIMERS
from bedload.state.timers import Timer
from bedload.state.ttl import Ttl
from bedload.store import row_slots
from bedload.worker.attributes import check_attributes
from bedload.worker.parameters import PARAMETERS, Configured, Parameter, Values, parameters_of, values_of
from bedload.worker.rows import Rows
from bedload.worker.timers import OperatorTimers

_T = TypeVar("_T")
_NO_VALUES: Values = MappingProxyType({})


class Context:
    """What an operator may know about its call: the name of the ``operator``, ``worker`` and ``epoch``, the time."""

    __slots__ = ("_forgotten", "_time", "_timers", "epoch", "operator", "worker")

    _forgotten: bool
    """Whether the call under way asked to forget its key. The runtime clears it where an epoch begins or ends."""

    def __init__(self, operator: str, worker: WorkerId, epoch: Epoch) -> None:
        self.operator = operator
        self.worker = worker
        self._timers: OperatorTimers | None = None
        self._begin(epoch)

    def _begin(self, epoch: Epoch) -> None:
        """An epoch begins; its time follows."""
        self.epoch = epoch
        self._time: EpochTime | None = None
        self._forgotten = False

    @property
    def now(self) -> int:
        """The time of the epoch, in milliseconds since 1970: when Spark first planned its batch.

        It is the same for all rows of an epoch, on every replay and at every worker. Use it instead of the machine's
        clock, which would give another state each time.
        """
        return self._epoch_time("now").processing

    @property
    def watermark(self) -> int:
        """Spark's event-time watermark for this epoch, in milliseconds since 1970.

        0 if the query has no ``withWatermark``, or no row has moved it yet. It is the same on every replay.
        """
        return self._epoch_time("watermark").watermark

    def is_late(self, at: Any) -> Any:
        """Whether the watermark has passed an event time, in milliseconds since 1970: nobody waits for such a row.

        Of an array it says so for each item.
        """
        watermark = self.watermark
        try:
            return at < watermark
        except TypeError:
            raise DefinitionError(
                f"ctx.is_late({at!r:.100}): give milliseconds since 1970 (of a datetime: int(moment.timestamp() * "
                f'1000); of an array of datetime64: at.astype("datetime64[ms]").astype("int64"))'
            ) from None

    @property
    def timers(self) -> OperatorTimers:
        """The timers of the current key, by event time; ``ctx.timers.processing`` are those by the epochs' own time.

        ::

            ctx.timers.set(ctx.watermark + 60_000)              # on_timer is called when the watermark is there
            ctx.timers.processing.set(ctx.now + 60_000, "report")
            ctx.timers.delete(); ctx.timers.list()
        """
        if self._timers is None:
            raise DefinitionError(
                f"operator {self.operator} has no on_timer(self, key, timer, ctx): define it, and its keys have timers"
            )
        return self._timers

    def _epoch_time(self, name: str) -> EpochTime:
        if self._time is None:
            raise DefinitionError(
                f"operator {self.operator}: ctx.{name} is for process and result: it is the time of an epoch, and "
                f"setup belongs to none"
            )
        return self._time

    def forget(self) -> None:
        """Remove all state of the current key when this call returns."""
        self._forgotten = True

    def __repr__(self) -> str:
        return f"Context(operator={self.operator!r}, worker={self.worker}, epoch={self.epoch})"


class OperatorMeta(type):
    """Collects declarations and validates them when the class is defined."""

    __bedload_specs__: tuple[StateSpec, ...]

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> OperatorMeta:
        """Make the class."""
        declared = {key: item for key, item in namespace.items() if isinstance(item, Declaration)}
        chosen = {key: item for key, item in namespace.items() if isinstance(item, Parameter)}
        for key in declared:
            del namespace[key]
        for method in ("__init__", "__new__"):
            if bases and method in namespace:
                raise DefinitionError(
                    f"operator {name} defines {method}, but one object is made per key, without a call. Declare what "
                    f"is given from outside as parameters (gap: int = bl.param(30), then {name}(gap=60)), give state "
                    f"variables defaults (bl.value(0)), and make what keys share in setup()"
                )
        # SUBTLE: the slots for the state are on a subclass that the worker makes (make_shared): a class that is
        # pickled by value, as those in __main__ are, comes back without the slots that it had.
        namespace["__slots__"] = ()
        cls = super().__new__(mcls, name, bases, namespace, **kwargs)
        _check_bases(cls)
        inherited = {s.name: s for base in bases for s in getattr(base, "__bedload_specs__", ())}
        own: tuple[StateSpec, ...] = ()
        if declared or chosen:
            caller = sys._getframe(1)
            hints = _hints(cls, caller.f_globals, caller.f_locals)
            own = build_specs(name, {key: hints[key] for key in declared if key in hints}, declared)
            for key, item in chosen.items():
                setattr(cls, key, item.declared(name, key, hints[key] if key in hints else _inherited(cls, key)))
        cls.__bedload_specs__ = tuple({**inherited, **{s.name: s for s in own}}.values())
        both = sorted(parameters_of(cls).keys() & {spec.name for spec in cls.__bedload_specs__})
        if both:
            raise DefinitionError(
                f"operator {name}: {', '.join(both)} is a parameter and a state variable; give one of them another name"
            )
        if bases:
            if issubclass(cls, Operator) and cls.timed() and TIMERS not in cls.__bedload_specs__:
                cls.__bedload_specs__ += (TIMERS,)
            check_attributes(cls, cls.__bedload_specs__)
        return cls

    def __call__(cls, *args: Any, **parameters: Any) -> Any:
        """The operator with these parameters, to be applied. Objects of keys are not made like this."""
        if args:
            known, given = parameters_of(cls), ", ".join(map(repr, args))
            if not known:
                raise DefinitionError(f"operator {cls.__name__} has no parameters, and was given {given}")
            raise DefinitionError(
                f"operator {cls.__name__}: parameters are given by name, as in {cls.__name__}({next(iter(known))}=...),"
                f" and not as {given}"
            )
        values, operator = values_of(cls, parameters), typing.cast("type[Any]", cls)
        made = object.__new__(_subclass(operator, Configured))
        made._bl_operator, made._bl_parameters = cls, values
        return made


def _check_bases(cls: type) -> None:
    """Refuse declarations where nobody looks for them."""
    for base in cls.__mro__:
        if not isinstance(base, OperatorMeta):
            lost = [name for name, item in vars(base).items() if isinstance(item, Declaration | Parameter)]
            if lost:
                raise DefinitionError(
                    f"operator {cls.__name__}: its base {base.__name__} declares {', '.join(lost)}, but is no "
                    f"operator: make it a subclass of bl.Operator or bl.VectorOperator, whichever {cls.__name__} is"
                )


def _inherited(cls: type, name: str) -> Any:
    """The type of a parameter that a base class has, too."""
    found = (getattr(base, name, None) for base in cls.__mro__[1:])
    return next((item.annotation for item in found if isinstance(item, Parameter)), Any)


def _hints(cls: type, module: dict[str, Any], local: dict[str, Any]) -> dict[str, Any]:
    own = type("_", (), {"__annotations__": inspect.get_annotations(cls)})
    try:
        return typing.get_type_hints(own, module, local, include_extras=True)
    except NameError as error:
        raise StateTypeError(
            f"operator {cls.__name__}: the annotation of a state variable or parameter names something that is not "
            f"defined here: {error}. Define it before the operator"
        ) from error


class Operator(metaclass=OperatorMeta):
    """User logic over the state of one key.

    ::

        class Trip(bl.Operator):
            count: int = bl.value(0)
            recent: list[float] = bl.list(maxlen=20)

            def process(self, key, rows, ctx):
                for row in rows:
                    self.count += 1
                    self.recent.append(row.speed)
                yield key, self.count

    Define ``process``, and ``result`` if you want one output per changed key and epoch. Both may
    return one row (a tuple, or a dict by column), return a list of rows or yield them, or nothing. Set
    ``grouped = True`` to have ``process`` called once per key and epoch, with all of its rows.

    What whoever applies the operator chooses is a parameter: ``limit: float = bl.param(130.0)``, read as
    ``self.limit`` and given by ``operator=Trip(limit=90.0)``.
    """

    __slots__ = ()

    grouped: ClassVar[bool] = False

    def __init__(self, **parameters: Any) -> None:
        """The operator with these parameters (:func:`bedload.param`), to be applied."""

    def process(self, key: Any, rows: Rows, ctx: Context) -> Iterable[Any] | None:
        """Take the next rows of one key, in arrival order."""
        raise NotImplementedError

    def result(self, key: Any, ctx: Context) -> Iterable[Any] | None:
        """Give the output for a key that changed in the epoch."""
        raise NotImplementedError

    def on_timer(self, key: Any, timer: Timer, ctx: Context) -> Iterable[Any] | None:
        """A timer of the key is due: at the end of an epoch, whether the key had rows in it or not.

        It may return rows, set timers and change state as ``process`` does. Timers fire in the order of their time, and
        of keys where that is the same; one that is set here for a time that has come fires in the same epoch.
        """
        raise NotImplementedError

    @classmethod
    def timed(cls) -> bool:
        """Whether its keys have timers: whether it defines ``on_timer``."""
        return cls.on_timer is not Operator.on_timer

    def setup(self, ctx: Context) -> None:
        """Make what all keys of a worker share; called once per worker, on an object without a key."""

    def close(self) -> None:
        """Release what :meth:`setup` made; called once, on the same object."""


def state_of(operator: type[Operator], ttl: Ttl | None = None) -> tuple[StateSpec, ...]:
    """The operator's state variables, with the hidden ones; ``ttl`` is that of whole keys."""
    return with_expiries(operator.__bedload_specs__, ttl)


def check_operator(operator: object) -> type[Operator]:
    """The operator, if it is a class that can be applied; else a DefinitionError that says why not."""
    if not (inspect.isclass(operator) and issubclass(operator, Operator)):
        raise DefinitionError(
            f"operator={operator!r} is not a subclass of bedload.Operator; write "
            f"`class MyOperator(bl.Operator)` and pass the class, or with parameters MyOperator(gap=30)"
        )
    if operator.process is Operator.process:
        raise DefinitionError(f"operator {operator.__name__} has no process(self, key, rows, ctx)")
    if operator.grouped not in (True, False):
        raise DefinitionError(f"operator {operator.__name__}: grouped must be True or False")
    _check_signature(operator, "process", ("key", "rows", "ctx"))
    _check_signature(operator, "result", ("key", "ctx"))
    _check_signature(operator, "on_timer", ("key", "timer", "ctx"))
    return operator


def _check_signature(operator: type[Operator], method: str, names: tuple[str, ...]) -> None:
    function = getattr(operator, method)
    try:
        inspect.signature(function).bind(None, *names)
    except TypeError as error:
        wanted = f"{method}(self, {', '.join(names)})"
        raise DefinitionError(
            f"operator {operator.__name__}: {method} must be callable as {wanted}: {error}"
        ) from error


def make_shared(
    operator: type[Operator],
    parameters: Values = _NO_VALUES,
    layout: RecordLayout | None = None,
    slots: tuple[str, ...] = (),
) -> tuple[Operator, type[Operator]]:
    """The object for ``setup`` and ``close``, and the class of the per-key objects.

    ``layout`` is that of their state, ``slots`` what the store of the objects needs besides.

    Attributes that ``setup`` sets on the first become visible, read-only, on all objects of the
    second: they and the parameters are put on its class by :func:`share`.
    """
    layout = RecordLayout(state_of(operator)) if layout is None else layout
    row = _subclass(operator, slots_class((*layout.names, *row_slots(layout), *slots)))
    if row.__dictoffset__:  # a base class that is no operator has no slots, and would let everything be assigned
        row.__setattr__ = _declared_only  # type: ignore[method-assign]
    return make_holder(operator, parameters), row


def _declared_only(self: Any, name: str, value: Any) -> None:
    if not hasattr(type(inspect.getattr_static(type(self), name, None)), "__set__"):
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
    super(type(self), self).__setattr__(name, value)


def make_holder(operator: type[_T], parameters: Values) -> _T:
    """An object of an operator that is no key's, with a place for what ``setup`` makes."""
    holder = object.__new__(_subclass(operator, slots_class(("__dict__",))))
    holder.__dict__[PARAMETERS] = parameters
    return holder


@cache
def slots_class(names: tuple[str, ...]) -> type:
    """A class that is nothing but these slots.

    SUBTLE: two versions of an operator with the same state share it, so that objects of the one can become
    objects of the other by assigning ``__class__``: Python allows that only if the slots are the same ones.
    """
    return type("Slots", (), {"__slots__": names})


def _subclass(operator: type[_T], slots: type) -> type[_T]:
    namespace = {"__slots__": (), "__module__": operator.__module__, "__qualname__": operator.__qualname__}
    made = type.__new__(OperatorMeta, operator.__name__, (operator, slots), namespace)
    assert issubclass(made, operator)
    return made


def share(holder: Operator, row: type[Operator]) -> None:
    """Put the parameters, and what ``setup`` made, on the class of the per-key objects."""
    if taken := sorted(holder.__dict__.keys() & {spec.name for spec in row.__bedload_specs__}):
        raise DefinitionError(
            f"setup of operator {row.__name__} sets {', '.join(taken)}, which is a state variable: each key has its "
            f"own, and setup belongs to none. Give it its value in the declaration or in process"
        )
    # SUBTLE: a parameter's value takes the place of its descriptor, as reading a plain attribute of a class is faster.
    for name, item in {**holder.__dict__[PARAMETERS], **holder.__dict__}.items():
        # A function on a class would be a method, and be given the object of the key.
        setattr(row, name, staticmethod(item) if hasattr(type(item), "__get__") else item)
