"""Averages of the last measurements that a stalled machine does not move."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque


class RecentAverage:
    """Interquartile mean of the last ``window`` values.

    A quarter of the values on either side is left out, so that it takes more outliers than that to
    move it, and half a window of new values to follow a machine that has changed for good. Up to
    three values give the (lower) median.

    Parameters
    ----------
    window : int
        Values that are remembered.
    start : tuple of float
        Values to begin with; they leave the window like any other.

    Notes
    -----
    An update costs O(window) moves of one sorted list, under a microsecond for the windows here.

    Examples
    --------
    >>> average = RecentAverage(8)
    >>> for value in (1.0, 1.1, 0.9, 50.0):
    ...     average.add(value)
    >>> round(average.value, 2)
    1.05
    """

    def __init__(self, window: int, start: tuple[float, ...] = ()) -> None:
        self._recent: deque[float] = deque(start, maxlen=window)
        self._sorted = sorted(self._recent)
        self._value: float | None = None

    def __len__(self) -> int:
        return len(self._recent)

    @property
    def values(self) -> list[float]:
        """The values that are remembered, the oldest first."""
        return list(self._recent)

    def add(self, value: float) -> None:
        """Take in ``value``, and forget the oldest one if the window is full."""
        if len(self._recent) == self._recent.maxlen:
            self._sorted.remove(self._recent[0])
        self._recent.append(value)
        insort(self._sorted, value)
        self._value = None

    @property
    def value(self) -> float:
        """The average; 0 before the first value."""
        if self._value is None:
            self._value = self._average()
        return self._value

    @property
    def error(self) -> float:
        """Standard error of the average, from the distance of the quartiles; 0 before two values.

        Meant for scatter that is normal in the middle: there the quartiles are 1.35 standard
        deviations apart, and the average scatters 1.1 times as much as a mean would.
        """
        n = len(self._sorted)
        if n < 2:
            return 0.0
        return 0.82 * (self._sorted[n - 1 - n // 4] - self._sorted[n // 4]) / math.sqrt(n)

    def _average(self) -> float:
        n = len(self._sorted)
        if n == 0:
            return 0.0
        if n < 4:
            return self._sorted[(n - 1) // 2]
        middle = self._sorted[n // 4 : n - n // 4]
        return sum(middle) / len(middle)


class RecentRatio:
    """Ratio of two sums over the last ``window`` pairs, without the pairs of extreme ratio.

    Pairs weigh by their denominator: of the sum of denominators, the quarter with the lowest
    ratios and the quarter with the highest are left out.

    Parameters
    ----------
    window : int
        Pairs that are remembered.
    start : float
        The ratio before the first pair. It counts as ``start_pairs`` pairs like the first one, and
        they leave the window like any other.
    start_pairs : int

    Examples
    --------
    >>> ratio = RecentRatio(8, start=1.0)
    >>> for numerator in (2.0, 2.0, 2.0, 2.0, 2.0, 90.0):
    ...     ratio.add(numerator, 1.0)
    >>> ratio.value
    2.0
    """

    def __init__(self, window: int, start: float, start_pairs: int = 2) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=window)
        self._sorted: list[tuple[float, float]] = []
        self._start = start
        self._start_pairs = start_pairs

    def add(self, numerator: float, denominator: float) -> None:
        """Take in a pair; ``denominator`` must be positive."""
        if not self._recent:
            for _ in range(self._start_pairs):
                self._add(self._start, denominator)
        self._add(numerator / denominator, denominator)

    def _add(self, ratio: float, weight: float) -> None:
        if len(self._recent) == self._recent.maxlen:
            self._sorted.remove(self._recent[0])
        self._recent.append((ratio, weight))
        insort(self._sorted, (ratio, weight))

    @property
    def value(self) -> float:
        """The ratio."""
        if not self._sorted:
            return self._start
        total = sum(weight for _, weight in self._sorted)
        low, high = 0.25 * total, 0.75 * total
        passed = inside = 0.0
        for ratio, weight in self._sorted:
            # The part of this pair's weight that lies between the quarters.
            part = min(passed + weight, high) - max(passed, low)
            if part > 0.0:
                inside += part * ratio
            passed += weight
        return inside / (high - low)
