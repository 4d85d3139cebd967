"""A clock for a machine that does other work at the same time.

It shows the processor time of the thread that decodes and the waits for an emulated link, which
pass at once. What others do on the machine is not in it, and neither is waiting for a real store.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial


class ProcessorClock:
    """Shows processor time, and jumps when somebody sleeps."""

    def __init__(self) -> None:
        self._slept = 0.0

    def now(self) -> float:
        """Return the time in seconds."""
        return time.thread_time() + self._slept

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self._slept += max(seconds, 1e-6)


@contextmanager
def processor_clock() -> Iterator[ProcessorClock]:
    """Let all of specfit_runtime, emulated links included, go by such a clock in the block."""
    import specfit_runtime.calibration.measure
    import specfit_runtime.speculate  # noqa: F401
    from specfit_runtime import stores

    clock, link = ProcessorClock(), stores.EmulatedLink
    modules = [
        module
        for name, module in sys.modules.items()
        if name.startswith(("specfit_runtime", "specfit_opt"))
        and getattr(module, "perf_counter", None) is time.perf_counter
    ]
    for module in modules:
        module.perf_counter = clock.now  # type: ignore[attr-defined]
    stores.EmulatedLink = partial(link, now=clock.now, sleep=clock.sleep)  # type: ignore
    try:
        yield clock
    finally:
        for module in modules:
            module.perf_counter = time.perf_counter  # type: ignore[attr-defined]
        stores.EmulatedLink = link  # type: ignore[misc]
