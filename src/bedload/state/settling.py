"""The end of an epoch for per-key objects: containers are adopted, and values of other types than declared refused.

Values are collected by variable, over many keys and key groups, and then checked in one go (see
:mod:`bedload.state.checking`): of containers only those that are new or changed, and of these what is new in them. So
it costs a fraction of encoding them. The error names variable, key and value.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from bedload.state import codec
from bedload.state.checking import check_news, check_whole
from bedload.state.journal import Journal
from bedload.state.record import RecordLayout

_KEYS: Final = 4096
"""So many keys are checked together: enough to forget the price of a check, few enough for the processor's cache."""


class Settling:
    """What the objects of one epoch hold, on its way to being checked."""

    def __init__(self, layout: RecordLayout) -> None:
        self._layout = layout
        self._objs: list[Any] = []
        self._scalars: list[tuple[Any, Any, list[Any]]] = []
        self._containers: list[tuple[Any, Any, list[Any]]] = []
        for spec, live in zip(layout.specs, layout.tracked, strict=True):
            if spec.checked:
                continue
            if live:
                self._containers += [(spec, check_whole(spec.type), []), (spec, check_news(spec.type), [])]
            else:
                self._scalars.append((spec, check_whole(spec.type), []))
        self._extends = [(values.extend, attrgetter(spec.name)) for spec, _, values in self._scalars]
        self._appends = [values.append for _, _, values in self._containers]

    def add(self, objs: Sequence[Any], journal: Journal, absent: Any) -> None:
        """Adopt what is in objects, and take it in. ``absent`` is the image of a new key.

        A deleted attribute is an :class:`AttributeError`; then the objects may be added again.
        """
        self._layout.sort_out(objs, journal, absent, *self._appends)
        for extend, get in self._extends:
            extend(map(get, objs))
        self._objs += objs
        if len(self._objs) >= _KEYS:
            self.check()

    def check(self) -> None:
        """Raise if something that was taken in is not of its declared type."""
        for spec, check, values in (*self._scalars, *self._containers):
            try:
                if values:
                    check(values)
            except Exception:
                # The slow way knows best: it names what does not fit, or finds that all of it does.
                plain = [{spec.name: self._layout.plain_value(spec.name, obj)} for obj in self._objs]
                codec.encode((spec,), plain, [obj._bedload_key for obj in self._objs])
            values.clear()
        self._objs.clear()
