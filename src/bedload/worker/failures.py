"""Exceptions of user code, as errors that say where: operator, method, key, epoch, and the user's own traceback.

Whatever user code raises is one of them, ``SystemExit`` and the like included: a library that calls ``sys.exit()``
must fail the epoch, not end the worker with the state of every other operator.
"""

from __future__ import annotations

import dis
import os
import re
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from bedload.core.errors import BedloadError, OperatorFailed, ProtocolError
from bedload.core.ids import Epoch, OperatorName, WorkerId
from bedload.state import TrackedList
from bedload.worker.operator import Operator, state_of
from bedload.worker.parameters import Parameter

_NO_KEY: Any = object()

_C_CODE = (
    "\nC code does not take a state list for a list, because it could write past its methods: give it a copy, x[:]. "
    "For a priority queue declare bl.heap()."
)

_HINT = (
    "\nState variables are declared on the class (`n: int = bl.value(0)`); what all keys share is set in setup(). "
    "Other attributes cannot be assigned. {name} has the state variables: {variables}."
)

_OF_KEYS = ("process", "result", "on_timer", "handleInputRows", "handleExpiredTimer", "handleInitialState")
"""Methods that are called about a key."""

_OWN = tuple(f"{Path(__file__).parent.parent / part}{os.sep}" for part in ("worker", "state", "store", "spark/drop_in"))
"""Where code of ours is that operators call, or that calls them."""


def operator_failed(
    name: OperatorName,
    method: str,
    error: BaseException,
    *,
    worker: WorkerId,
    epoch: Epoch,
    key: Any = _NO_KEY,
) -> OperatorFailed:
    """The error for an exception that a method of an operator raised."""
    trace, text = _own_lines(error), _text(error)
    hint = ""
    if isinstance(error, AttributeError):
        hint = _of_state(error)
    elif isinstance(error, TypeError) and TrackedList.__name__ in text:
        hint = _C_CODE
    where = f", key {key!r}" if key is not _NO_KEY else ""
    where += f", epoch {epoch}" if method in (*_OF_KEYS, "seal") else ""
    return OperatorFailed(
        f"{method} of operator {name}{where}, worker {worker} raised {type(error).__name__}: {text}\n{trace}{hint}",
        operator=name,
        key=None if key is _NO_KEY else key,
        epoch=epoch,
        worker=worker,
        error=f"{type(error).__name__}: {text}",
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # it is user code, too
        return "(its str() failed)"


def located(error: BedloadError, name: OperatorName, method: str, *, epoch: Epoch, key: Any = _NO_KEY) -> BedloadError:
    """An error of ours that an operator met or caused, with where that was; one that says so already stays as it is."""
    if "operator" in error.details:
        return error
    where = f"operator {name}, epoch {epoch}" + (f", key {key!r}" if key is not _NO_KEY else "")
    trace = ""
    if method in _OF_KEYS:
        trace = "\n" + "".join(traceback.format_tb(_skip_own(error.__traceback__))[:1]).rstrip()
    details = {"operator": name, "epoch": epoch} | ({"key": key} if key is not _NO_KEY else {}) | error.details
    return type(error)(f"{where}: {error.message}{trace}", **details)


def report(error: OperatorFailed | None) -> None:
    """Put a failure that stops nothing into the worker's log: a ``close`` that raised."""
    if error is not None:
        print(f"{error.message}\nThe worker goes on without it.", file=sys.stderr, flush=True)


def _own_lines(error: BaseException) -> str:
    """The traceback with the user's lines alone: the frames of the runtime say nothing to the user."""
    told = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = told
    while part is not None:
        users = [frame for frame in part.stack if not frame.filename.startswith(_OWN)]
        part.stack[:] = users or part.stack
        part = part.__cause__ or part.__context__
    return "".join(told.format()).rstrip()


def _of_state(error: AttributeError) -> str:
    """Advice on state variables, if it is about an attribute of the operator."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or _is_users(last):
        return ""
    missed = error.obj
    if missed is None:
        # SUBTLE: an assignment does not say to what. It is one to `self`, if the text is about an object of its class.
        missed = last.tb_frame.f_locals.get("self")
        if not _text(error).startswith((f"'{type(missed).__name__}' object", "readonly attribute")):
            return ""
    if not isinstance(missed, Operator):
        return ""
    named = re.search(r"attribute '(\w+)' is read-only", str(error))
    if named is not None:
        # SUBTLE: on the class of this object the value has taken the place of the parameter; its bases have that still.
        declared = (vars(cls).get(named[1]) for cls in type(missed).__mro__)
        chosen = next((it for it in declared if isinstance(it, Parameter)), None)
        if chosen is not None:
            return f"\n{chosen.name} is a parameter of {chosen.operator}, and {chosen.advice}."
    variables = (
        ", ".join(spec.name for spec in state_of(type(missed)) if not spec.name.startswith("bedload_")) or "none"
    )
    return _HINT.format(name=type(missed).__name__, variables=variables)


def _is_users(place: TracebackType) -> bool:
    """Whether the error that came from here was raised by a ``raise`` of the user's."""
    code = place.tb_frame.f_code
    return dis.opname[code.co_code[place.tb_lasti]] == "RAISE_VARARGS" and not code.co_filename.startswith(_OWN)


def _skip_own(trace: Any) -> Any:
    # A generator runs when its outputs are collected, so not all of our frames are of one module.
    own = (f"{__package__}.", "bedload.spark.drop_in.")
    while trace is not None and trace.tb_next is not None:
        if not str(trace.tb_frame.f_globals.get("__name__")).startswith(own):
            break
        trace = trace.tb_next
    return trace


def as_ours(error: Exception) -> BedloadError:
    """What was raised, as an error of ours: whatever else goes wrong ends the turn as well, and is not swallowed."""
    return error if isinstance(error, BedloadError) else bug(error)


def bug(error: Exception) -> ProtocolError:
    """An error that is not ours, with where it was raised."""
    return ProtocolError("".join(traceback.format_exception(error)))
