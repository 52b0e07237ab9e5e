"""A virtual network and its clock: an event heap, and connections that behave like TCP.

Invariants:

- events happen in the order of their time, those of one time in the order in which they were planned;
- what one end sends on a connection arrives in order, as over TCP; nothing is ordered between
  connections, so a message may overtake any other that took another way;
- after a close nothing arrives at the end that closed; the other end hears of it after what had been sent
  before, or what was under way is lost with it;
- a network that is held up (a whole cluster that is paused) lets nothing happen; when it goes on, all that was
  due happens in its order.

Somebody who waits within an event (a worker that writes a file) lets others' events happen meanwhile, and must not
take any itself. What such an event raises is a :class:`Broken`, which no ``except Exception`` on the way swallows.

Copies (:meth:`Connection.send` with ``copies``) are not something that TCP does. They stand for a sender
that repeats itself, and may arrive at any time while the connection is open.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from bedload.protocol import messages as m
from tests.simulator.chance import Chance

Body = Any
"""What travels beside a message: Arrow data, or None."""


class Broken(BaseException):
    """Something is wrong with what is simulated; carries what."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class VirtualTime:
    """A clock that moves from event to event, and the events."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self.watch: Callable[[], None] | None = None
        """Called after every event."""
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0

    def monotonic(self) -> float:
        """The virtual time."""
        return self.now

    def wall(self) -> float:
        """The virtual time."""
        return self.now

    def processor(self) -> float:
        """The virtual time."""
        return self.now

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Plan something."""
        self.at(self.now + delay, action)

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Plan something for a time."""
        self._planned += 1
        heapq.heappush(self._heap, (max(when, self.now), self._planned, action))

    def step(self) -> bool:
        """Let the next event happen; False if there is none."""
        if not self._heap:
            return False
        self.now, _, action = heapq.heappop(self._heap)
        self.events += 1
        action()
        if self.watch is not None:
            self.watch()
        return True

    def step_within(self, until: float | None = None) -> bool:
        """As :meth:`step`, from within an event; with ``until`` only what is due by then."""
        if not self._heap or (until is not None and self._heap[0][0] > until):
            return False
        try:
            return self.step()
        except Exception as error:
            raise Broken(error) from error


class End(Protocol):
    """Whoever is at an end of a connection."""

    name: str

    def on_message(self, connection: Connection, message: m.Message, body: Body) -> None:
        """A message arrived."""
        ...

    def on_close(self, connection: Connection) -> None:
        """The other end is gone."""
        ...


class Network:
    """Time, chance and the record of what happened."""

    def __init__(
        self,
        chance: Chance,
        *,
        tracing: bool = False,
        delay: float = 1.0,
        beside: Network | None = None,
        within: Network | None = None,
    ) -> None:
        self.time: VirtualTime = VirtualTime() if beside is None else beside.time
        self.chance = chance
        self.story: list[str] = [] if beside is None else beside.story
        self._tracing = tracing
        self._delay = delay
        self._held: list[Callable[[], None]] | None = None
        self._within = within

    def another(self) -> Network:
        """Another one in the same world, to be held up by itself."""
        return Network(self.chance, tracing=self._tracing, delay=self._delay, beside=self)

    def part(self) -> Network:
        """A part of this one, which can be held up by itself, and is held up with the whole."""
        return Network(self.chance, tracing=self._tracing, delay=self._delay, beside=self, within=self)

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Plan something."""
        self.at(self.time.now + delay, action)

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Plan something for a time; if all is held up then, for later."""
        self.time.at(when, lambda: self.happen(action))

    def happen(self, action: Callable[[], None]) -> None:
        """Something happens now; if all is held up, later."""
        if self._held is not None:
            self._held.append(action)
        elif self._within is not None:
            self._within.happen(action)
        else:
            action()

    @property
    def held(self) -> bool:
        """Whether all is held up."""
        return self._held is not None or (self._within is not None and self._within.held)

    def hold(self) -> None:
        """From here on nothing happens in this network."""
        self._held = [] if self._held is None else self._held

    def go_on(self) -> None:
        """What was held up happens now; if the whole is held up, when that goes on."""
        if self._within is not None and self._within.held:
            self._within.happen(self.go_on)  # after what came meanwhile: that has to wait for what came before it
            return
        held, self._held = self._held or [], None
        self._let_go(held)

    def _let_go(self, held: list[Callable[[], None]]) -> None:
        """These happen now, in their order."""
        if self._held is not None:  # it is held up again
            self._held[:0] = held
            return
        for number, action in enumerate(held, 1):
            self.at(self.time.now, action)
            if isinstance(getattr(action, "__self__", None), Network):
                # SUBTLE: a part goes on. What it held up came before what is next here, which must not overtake it.
                self.time.at(self.time.now, partial(self._let_go, held[number:]))
                return

    def sleep(self, delay: float) -> None:
        """Let time go by within an event; longer if all is held up meanwhile."""
        until = self.time.now + delay
        while self.time.step_within(until):
            pass
        self.time.now = max(self.time.now, until)
        while self.held and self.time.step_within():
            pass

    def note(self, text: str) -> None:
        """Add a line to the story, if somebody wants to read it."""
        if self._tracing:
            self.story.append(f"{self.time.now:9.3f}  {text}")

    def connect(self, first: End, second: End) -> Connection:
        """A new connection."""
        return Connection(self, first, second)

    def delay(self) -> float:
        """How long a message is under way."""
        return self.chance.delay(self._delay)


class Connection:
    """Two ends and what is under way between them."""

    def __init__(self, network: Network, first: End, second: End) -> None:
        self._network = network
        self._ends = (first, second)
        self._arrival = [0.0, 0.0]
        self._deaf: set[int] = set()
        self._lost = False

    def send(self, sender: End, message: m.Message, body: Body = None, *, copies: int = 1) -> None:
        """Send a message to the other end; nothing happens if the connection is closed."""
        side = self._side(sender)
        if side in self._deaf or self._lost:
            return
        header = m.encode(message)
        network = self._network
        arrival = self._arrival[side] = max(self._arrival[side], network.time.now + network.delay())
        network.at(arrival, lambda: self._deliver(side, header, body))
        for _ in range(copies - 1):
            late = arrival + network.delay()
            network.at(late, lambda: self._deliver(side, header, body))

    def close(self, closer: End) -> None:
        """Close from one end."""
        side = self._side(closer)
        if side in self._deaf:
            return
        self._deaf.add(side)
        network = self._network
        if network.chance.happens(0.3):
            self._lost = True
        arrival = max(self._arrival[side], network.time.now) if not self._lost else network.time.now
        network.at(arrival + network.delay(), lambda: self._closed(1 - side))

    def vanish(self, end: End, silence: float) -> None:
        """One end is gone without a word: the other hears of it when it has waited for so long."""
        side = self._side(end)
        if side in self._deaf:
            return
        self._deaf.add(side)
        self._lost = True
        self._network.after(silence, lambda: self._closed(1 - side))

    def _side(self, end: End) -> int:
        return 0 if end is self._ends[0] else 1

    def _deliver(self, side: int, header: bytes, body: Body) -> None:
        to = self._ends[1 - side]
        if self._lost or 1 - side in self._deaf:
            return
        message = m.decode(header)
        self._network.note(f"{self._ends[side].name} -> {to.name}: {message}")
        to.on_message(self, message, body)

    def _closed(self, side: int) -> None:
        if side not in self._deaf:
            self._deaf.add(side)
            self._ends[side].on_close(self)
