"""How long a plain pass takes, by the experts that it has to load."""

from __future__ import annotations

#: Plain passes after which what was seen has lost 63 % of its weight.
_MEMORY = 64.0
#: Standard deviations of u and v that are expected beforehand, and the relative noise of a pass.
_PASS_SD, _LOAD_SD, _NOISE = 0.2, 1.0, 0.1


class PlainTime:
    """Learns ``seconds = u * pass + v * load * misses`` from plain passes.

    ``pass``, the time of a pass without loading, and ``load``, the wait for an expert, are what all
    cycles show at the time, so that u and v are near 1 and the estimate keeps up with the machine
    while nothing is decoded plainly. A load costs more than the wait for it where the processor has
    a part in it, and then passes of one size do not all take the same.

    Least squares with exponential forgetting, in relative terms, held to u = v = 1.
    """

    def __init__(self) -> None:
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._u = self._v = 1.0

    def seconds(self, tokens: float, misses: float, pass_time: float, load_time: float) -> float:
        """Return the seconds of ``tokens`` plain passes that load ``misses`` experts in all."""
        return self._u * pass_time * tokens + self._v * load_time * misses

    def learn(self, seconds: float, misses: float, pass_time: float, load_time: float) -> None:
        """Take in the measured seconds of one plain pass."""
        expected = pass_time + load_time * misses
        if not (seconds > 0.0 and expected > 0.0):
            return
        # What is far off is a stall of the machine: it counts as not that far.
        seconds = min(seconds, 3.0 * self.seconds(1.0, misses, pass_time, load_time))
        x, z, y = pass_time / expected, load_time * misses / expected, seconds / expected
        keep = 1.0 - 1.0 / _MEMORY
        xx, xz, zz, xy, zy = (keep * value for value in self._sums)
        self._sums = (xx + x * x, xz + x * z, zz + z * z, xy + x * y, zy + z * y)
        xx, xz, zz, xy, zy = self._sums
        hold_u, hold_v = (_NOISE / _PASS_SD) ** 2, (_NOISE / _LOAD_SD) ** 2
        xx, zz, xy, zy = xx + hold_u, zz + hold_v, xy + hold_u, zy + hold_v
        determinant = xx * zz - xz * xz
        self._u = max((xy * zz - zy * xz) / determinant, 0.0)
        self._v = max((xx * zy - xz * xy) / determinant, 0.0)
