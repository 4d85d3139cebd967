"""Runs fetches in a few threads, so that they overlap with compute."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Barrier, Lock
from time import perf_counter

import torch

from specfit_opt.checks import Whole

from ..errors import StoreError
from ..forking import renew_after_fork
from ._cuda import is_over
from ._early import EarlyQueue
from ._meter import Meter
from .expert_store import Ticket

#: What a fetch from a closed store says.
CLOSED = "the expert store is closed; load the model again"

#: How many threads read.
THREADS = Whole(1)


class FetchPool:
    """A few threads; jobs start in the order in which they came, early ones when all others ended.

    Notes
    -----
    The interpreter joins the threads when it exits, after finishing the jobs that are queued; none
    of them waits for anything but a transfer, so it does not hang.
    """

    def __init__(self, threads: int, name: str, meter: Meter) -> None:
        self._threads = threads
        self._name = f"specfit-{name}"
        self._meter = meter
        self._closed = False
        under_way: deque[Future[torch.cuda.Event | None]] = deque()
        self._under_way = under_way
        # Not a method of this: a cycle would keep a dropped store until the collector runs.
        self._early = EarlyQueue(lambda: not under_way)
        self._open()
        renew_after_fork(self)

    def _open(self) -> None:
        self._draining = Lock()
        self._under_way.clear()
        self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix=self._name)

    def after_fork(self) -> None:
        """Start anew: the threads stayed in the parent, and so did what they were doing."""
        self._open()
        if self._closed:
            self._executor.shutdown()

    def start(
        self,
        job: Callable[[], torch.cuda.Event | None],
        device: torch.device,
        early: bool = False,
    ) -> Ticket:
        """Queue ``job``, which returns the event of its copy if it ends on CUDA.

        Raises
        ------
        StoreError
            If the pool is closed.
        """
        if self._closed:
            raise StoreError(CLOSED)
        if early:
            return self._early.add(partial(self._submit, job, device))
        return self._submit(job, device)

    def _submit(
        self, job: Callable[[], torch.cuda.Event | None], device: torch.device
    ) -> Ticket:
        try:
            future = self._executor.submit(self._run, job)
        except RuntimeError as error:
            if self._closed:
                raise StoreError(CLOSED) from None
            raise StoreError(f"a fetch could not begin: {error}") from error
        self._under_way.append(future)
        future.add_done_callback(self._ended)
        return PoolTicket(future, device)

    def _ended(self, future: Future[torch.cuda.Event | None]) -> None:
        with suppress(ValueError):  # a fork or an interrupt may have lost it
            self._under_way.remove(future)
        self._early.go_on()

    def drain(self) -> None:
        """Return when all jobs that were queued before are over."""
        self._early.begin_all()
        # Jobs start in order, so once every thread has met all the others, each has finished what
        # it had begun before. One at a time, or two would wait for each other's threads.
        with self._draining:
            meeting = Barrier(self._threads)
            try:
                futures = [self._executor.submit(meeting.wait) for _ in range(self._threads)]
                for future in futures:
                    # Who is cancelled never comes; the others must not wait for him.
                    future.add_done_callback(lambda f: meeting.abort() if f.cancelled() else None)
                for future in futures:
                    future.result()
            except (RuntimeError, CancelledError):
                # The pool is closed, or was just now: closing waits for the jobs under way.
                meeting.abort()
                self.close()
            except BaseException:
                meeting.abort()
                raise

    def close(self) -> None:
        """Let the jobs under way finish, fail the others, and end the threads."""
        self._closed = True
        self._early.close()
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _run(self, job: Callable[[], torch.cuda.Event | None]) -> torch.cuda.Event | None:
        start, failed = perf_counter(), True
        try:
            event = job()
            failed = False
        finally:
            self._meter.ended(perf_counter() - start, failed)
        return event


class PoolTicket(Ticket):
    """A fetch in a pool."""

    def __init__(self, future: Future[torch.cuda.Event | None], device: torch.device) -> None:
        self._future = future
        self._device = device
        self._process = os.getpid()

    def done(self) -> bool:
        """Return whether :meth:`wait` would return or raise at once. Never blocks."""
        if os.getpid() != self._process:
            return True  # the future's lock may be held by nobody
        if not self._future.done():
            return False
        if self._future.cancelled() or self._future.exception() is not None:
            return True
        event = self._future.result()
        return event is None or is_over(event)

    def wait(self) -> None:
        """Return when the weights may be used; see :meth:`Ticket.wait`."""
        if os.getpid() != self._process:
            raise StoreError("the fetch stayed in the process from which this one was forked")
        try:
            event = self._future.result()
        except CancelledError:
            raise StoreError("the expert store was closed before the fetch began") from None
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(f"a fetch failed: {type(error).__name__}: {error}") from error
        if event is not None:
            torch.cuda.current_stream(self._device).wait_event(event)


class DoneTicket(Ticket):
    """A fetch that was over before it could be waited for."""

    def done(self) -> bool:
        """Return True."""
        return True

    def wait(self) -> None:
        """Return at once."""
