"""A remote store in memory, which follows orders as the script of the real one does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from bedload.core.errors import RemoteStoreError
from bedload.store.remote import HEAD, NO_STAMP, Answer, Head

_NUMBERS = itertools.count()


def _worker_of(owner: bytes) -> bytes:
    return owner.split(b".")[0]


class MemoryServer:
    """What lies under names: places, what is undone of them, and indexes."""

    def __init__(self) -> None:
        self.data: dict[bytes, dict[bytes, bytes]] = {}

    def head(self, place: bytes) -> Head | None:
        packed = self.data.get(place, {}).get(HEAD)
        return None if packed is None else Head.of(packed)

    def put_head(self, place: bytes, head: Head) -> None:
        self.data.setdefault(place, {})[HEAD] = head.pack()

    def undone(self, place: bytes) -> dict[bytes, bytes]:
        return self.data.setdefault(place + b":u", {})

    def forget(self, place: bytes) -> None:
        self.data.pop(place, None)
        self.data.pop(place + b":u", None)

    def follow(self, order: list[Any]) -> Answer:
        answer: Answer = getattr(self, "_" + order[0].decode())(*order[1:])
        return answer

    def _keep_private(self, index: bytes, private: bytes, place: bytes, owner: bytes) -> None:
        known = self.data.setdefault(index, {})
        before, known[private] = known.get(private), place
        head = None if before in (None, place) else self.head(before or b"")
        if before is not None and head is not None and _worker_of(head.owner) == _worker_of(owner):
            self.forget(before)

    def _register(self, index: bytes, field: bytes, private: bytes, place: bytes, turn: bytes) -> bool:
        known, older = self.data.setdefault(index, {}), field + b"~"
        before = known.get(field)
        if before != place:
            head = None if before is None else self.head(before)
            if head is not None and (head.stamp > turn or head.fence >= turn):
                return False
            known[field], last = place, known.get(older)
            if before is not None:
                known[older] = before
            head = None if last in (None, place) else self.head(last or b"")
            if last is not None and head is not None and known.get(field + b"@" + _worker_of(head.owner)) != last:
                self.forget(last)
        if known.get(private) == place:
            del known[private]
        return True

    def _put_back(self, place: bytes, head: Head, base: bytes, most: int) -> bytes:
        undone = self.undone(place)
        if len(undone) != head.undone:
            return b"lost"
        for name in list(undone)[:most]:
            if (old := undone.pop(name)) == b"":
                self.data[place].pop(name, None)
            else:
                self.data[place][name] = old
        head = head._replace(undone=len(undone), partial=True)
        if not undone:
            head = head._replace(stamp=base, before=NO_STAMP, partial=False, fence=max(head.fence, head.stamp))
        self.put_head(place, head)
        return b"more" if undone else b"ok"

    def _seal(
        self, place: bytes, index: bytes, field: bytes, private: bytes, owner: bytes, expected: bytes, turn: bytes,
        base: bytes, shape: bytes, whole: int, first: int, last: int, puts: list[bytes], gone: list[bytes],
    ) -> Answer:  # fmt: skip
        head = self.head(place)
        if head is None:
            if expected or not first:
                return [b"lost"]
            head = Head(base, NO_STAMP, False, False, owner, NO_STAMP, 0, shape)
        elif head.owner != owner or head.fence >= turn:
            return [b"fenced"]
        elif (first and (head.stamp != expected or head.partial)) or (
            not first and (head.stamp != turn or not head.partial)
        ):
            return [b"stale"]
        if first:
            head = head._replace(stamp=turn, before=base, whole=bool(whole))
        self.put_head(place, head._replace(partial=True))
        undone = self.undone(place)
        if first:
            undone.clear()
            if not head.whole or field == private:
                self._keep_private(index, private, place, owner)
            elif not self._register(index, field, private, place, turn):
                return [b"fenced"]
        state = self.data[place]
        for name, data in zip(puts[::2], puts[1::2], strict=True):
            undone.setdefault(name, state.get(name, b""))
            state[name] = data
        for name in gone:
            undone.setdefault(name, state.get(name, b""))
            state.pop(name, None)
        self.put_head(place, head._replace(partial=not last, undone=len(undone)))
        return [b"ok"]

    def _put(
        self, place: bytes, index: bytes, field: bytes, private: bytes, owner: bytes, expected: bytes, stamp: bytes,
        shape: bytes, puts: list[bytes], gone: list[bytes],
    ) -> Answer:  # fmt: skip
        head = self.head(place)
        if head is None:
            if expected:
                return [b"lost"]
            self.put_head(place, Head(stamp, NO_STAMP, False, False, owner, NO_STAMP, 0, shape))
            self._keep_private(index, private, place, owner)
        elif head.owner != owner:
            return [b"fenced"]
        elif head.stamp != expected or head.partial:
            return [b"stale"]
        else:
            self.put_head(place, head._replace(whole=False))
        state = self.data[place]
        before = len(state)
        state.update(zip(puts[::2], puts[1::2], strict=True))
        new = len(state) - before
        return [b"ok", new, sum(state.pop(name, None) is not None for name in gone)]

    def _undo(self, place: bytes, owner: bytes, base: bytes, was: bytes, latest: bytes, most: int) -> Answer:
        head = self.head(place)
        if head is None:
            return [b"none"]
        if head.owner != owner:
            return [b"fenced"]
        if head.stamp in (base, was) and not head.partial:
            return [b"ok", head.stamp]
        if head.stamp > latest:
            return [b"fenced"]
        if head.before != base:
            return [b"stale"]
        return [self._put_back(place, head, base, most), base]

    def _find(
        self, index: bytes, field: bytes, owner: bytes, base: bytes, latest: bytes, shape: bytes, most: int
    ) -> Answer:
        place = self.data.get(index, {}).get(field)
        head = None if place is None else self.head(place)
        if place is None or head is None or not head.whole or head.shape != shape or head.stamp > latest:
            return [b"lost"]
        head = head._replace(owner=owner, fence=latest)
        if head.stamp == base and not head.partial:
            self.put_head(place, head)
        elif head.before == base:
            if (done := self._put_back(place, head, base, most)) != b"ok":
                return [done]
        else:
            return [b"lost"]
        return [b"ok", place, len(self.data[place]) - 1]

    def _take(self, place: bytes, owner: bytes, expected: bytes) -> Answer:
        head = self.head(place)
        if head is None:
            return [b"lost"]
        if head.stamp != expected or head.partial:
            return [b"stale"]
        self.put_head(place, head._replace(owner=owner))
        return [b"ok", len(self.data[place]) - 1]

    def _drop(self, place: bytes, index: bytes, private: bytes, owner: bytes) -> Answer:
        head = self.head(place)
        if head is not None and head.owner == owner:
            self.forget(place)
            known = self.data.get(index, {})
            if known.get(private) == place:
                del known[private]
        return [b"ok"]


class MemoryRemotes:
    """A store of its own for each operator."""

    lost: RemoteStoreError | None = None

    def open(self, operator: str, url: str) -> MemoryRemote:
        return MemoryRemote(MemoryServer(), operator)


class MemoryRemote:
    """The names of one operator at one worker. ``broken``: it does not answer for now."""

    def __init__(self, server: MemoryServer, operator: str = "x") -> None:
        self.server = server
        self.prefix = operator.encode()
        self.owner = b"owner%d" % next(_NUMBERS)
        self.broken = False
        self.lost: RemoteStoreError | None = None
        self.reads = 0

    def read(self, asks: Sequence[tuple[bytes, Sequence[bytes]]]) -> list[list[bytes | None]]:
        self._check()
        self.reads += sum(len(names) for _, names in asks)
        return [[self.server.data.get(place, {}).get(name) for name in names] for place, names in asks]

    def do(self, orders: Sequence[list[Any]]) -> list[Answer]:
        return [self._one(order) for order in orders]

    def _one(self, order: list[Any]) -> Answer:
        self._check()
        return self.server.follow(order)

    def names(self, place: bytes) -> Iterator[bytes]:
        self._check()
        return iter([name for name in self.server.data.get(place, {}) if name != HEAD])

    def size(self) -> int:
        return sum(len(data) for place in self.server.data.values() for data in place.values())

    def lose(self, why: str) -> RemoteStoreError:
        self.lost = self.lost or RemoteStoreError(why)
        return self.lost

    def close(self) -> None:
        """What is there stays."""

    def _check(self) -> None:
        if self.broken:
            raise RemoteStoreError("the store does not answer")
