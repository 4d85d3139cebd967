"""Times of calls within one process, for ratios of the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median


def median_time(call: Callable[[], object], repeats: int) -> float:
    """Return the median time of ``call`` in seconds; one call more comes first, to warm up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times)
