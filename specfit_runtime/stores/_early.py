"""Fetches that wait until nothing else needs the link."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import RLock

from ..errors import StoreError
from ..forking import renew_after_fork
from .expert_store import Ticket


class EarlyQueue:
    """Begins one early fetch after the other whenever the link is idle, the first asked for first.

    Parameters
    ----------
    idle : callable
        ``idle()``: whether nothing is under way. Asked under :attr:`lock`.

    Attributes
    ----------
    lock : threading.RLock
        Guards the queue, and what a store decides together with it.

    Notes
    -----
    Somebody has to call :meth:`go_on` when the link may have become idle: threads at the end of a
    fetch, or whoever next asks the store for anything.
    """

    def __init__(self, idle: Callable[[], bool]) -> None:
        self._idle = idle
        self._waiting: deque[EarlyTicket] = deque()
        self.lock = RLock()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Replace the lock; what waited for a link waits in the parent."""
        self.lock = RLock()
        self._waiting.clear()

    def add(self, start: Callable[[], Ticket]) -> Ticket:
        """Return a ticket of a fetch that ``start`` will begin."""
        ticket = EarlyTicket(self, start)
        with self.lock:
            self._waiting.append(ticket)
        self.go_on()
        return ticket

    def go_on(self) -> None:
        """Begin what may begin now."""
        if not self._waiting:  # without the lock, because most calls end here
            return
        with self.lock:
            while self._waiting and self._idle():
                self._waiting.popleft().begin()

    def begin(self, ticket: EarlyTicket) -> None:
        """Begin this fetch now, before the others, unless it has begun."""
        with self.lock:
            if self.withdraw(ticket):
                ticket.begin()

    def withdraw(self, ticket: EarlyTicket) -> bool:
        """Take a fetch out of the queue; return whether it was there, not begun."""
        self.go_on()
        with self.lock:
            if ticket not in self._waiting:
                return False
            self._waiting.remove(ticket)
            return True

    def begin_all(self) -> None:
        """Begin everything, so that whoever waits for the store's fetches waits for these too."""
        with self.lock:
            while self._waiting:
                self._waiting.popleft().begin()

    def close(self) -> None:
        """Let what has not begun fail."""
        with self.lock:
            while self._waiting:
                self._waiting.popleft().fail("the expert store was closed before the fetch began")


class EarlyTicket(Ticket):
    """A fetch that begins when the link is idle, or when it is wanted."""

    def __init__(self, queue: EarlyQueue, start: Callable[[], Ticket]) -> None:
        self._queue, self._start = queue, start
        self._begun: Ticket | None = None
        self._error: Exception | None = None

    def begin(self) -> None:
        """Begin the fetch; for the queue. What goes wrong is raised by :meth:`wait`."""
        try:
            self._begun = self._start()
        except Exception as error:
            self._error = error

    def fail(self, reason: str) -> None:
        """End the fetch before it began; for the queue."""
        self._error = StoreError(reason)

    def done(self) -> bool:
        """Return whether :meth:`wait` would return or raise at once. Never blocks."""
        self._queue.go_on()
        return self._error is not None or (self._begun is not None and self._begun.done())

    def wait(self) -> None:
        """Return when the weights may be used; begins the fetch if it has not begun."""
        self.promote()
        if self._error is not None:
            raise self._error
        if self._begun is None:  # an interrupt came between the queue and the start
            self._begun = self._start()
        self._begun.wait()

    def promote(self) -> None:
        """Put the fetch before all that are early."""
        if self._begun is None:
            self._queue.begin(self)

    def cancel(self) -> bool:
        """Give the fetch up if it has not begun, and return whether it had not."""
        if self._begun is not None or not self._queue.withdraw(self):
            return False
        self.fail("the fetch was given up before it began")
        return True
