"""Times of calls within one process, for ratios of the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median


def times(call: Callable[[], object], repeats: int) -> list[float]:
    """Return the seconds of each of ``repeats`` calls; one call more comes first, to warm up."""
    call()
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


def median_time(call: Callable[[], object], repeats: int) -> float:
    """Return the median time of ``call`` in seconds."""
    return median(times(call, repeats))
