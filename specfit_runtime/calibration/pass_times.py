"""Times passes over trees of several sizes, with their experts in place and without some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..verify import TargetSession
from .clock import now

if TYPE_CHECKING:
    from ..offload import Offload

#: Share of a pass's experts that are taken away to see what they cost.
_DROPPED = 0.5


@dataclass(frozen=True, eq=False)
class TimedPass:
    """One pass.

    Attributes
    ----------
    seconds, wait_seconds : float
        Wall time of the whole pass, and of it the time spent waiting for weights.
    misses : int
    experts : ndarray of int32, shape (n, L, k)
        Not the whole result: the logits of all passes together would be much memory.
    """

    seconds: float
    wait_seconds: float
    misses: int
    experts: NDArray[np.int32]


@dataclass(frozen=True)
class MissCost:
    """What missing experts added to a pass, per expert.

    Attributes
    ----------
    seconds : float
        May be negative on a noisy machine.
    wait_seconds : float
    """

    seconds: float
    wait_seconds: float


class PassTimer:
    """Times passes over the first nodes of one tree.

    Parameters
    ----------
    offload : Offload
    session : TargetSession
        With the text that the tree continues; left as it was after each pass.
    tokens, parent : sequence of int
        The tree, see :func:`likely_tree`.
    rng : numpy.random.Generator
        Draws the experts that are taken away.

    Attributes
    ----------
    passes : dict of int to list of TimedPass
        By size: experts in place, as far as the cache can hold them.
    misses : list of MissCost
    """

    def __init__(
        self,
        offload: Offload,
        session: TargetSession,
        tokens: Sequence[int],
        parent: Sequence[int],
        rng: np.random.Generator,
    ) -> None:
        self._offload = offload
        self._session = session
        self._tokens = list(tokens)
        self._parent = list(parent)
        self._rng = rng
        self.passes: dict[int, list[TimedPass]] = {}
        self.misses: list[MissCost] = []

    def warm_up(self, size: int) -> None:
        """Run a pass that is not counted."""
        self._run(size)

    def time(self, size: int) -> None:
        """Time a pass with its experts in place, and one that lacks some of them."""
        usual = self._run(size)
        if usual.misses:
            # Another size's experts had their slots. If they fit, they are all there now.
            usual = self._run(size)
        self.passes.setdefault(size, []).append(usual)
        if usual.misses:
            return
        self._drop_some(usual)
        lacking = self._run(size)
        if lacking.misses:
            self.misses.append(
                MissCost(
                    (lacking.seconds - usual.seconds) / lacking.misses,
                    lacking.wait_seconds / lacking.misses,
                )
            )

    def handling_seconds(self) -> float:
        """Return what a missed expert costs beside the waiting, the median."""
        if not self.misses:
            return 0.0
        return max(0.0, float(np.median([m.seconds - m.wait_seconds for m in self.misses])))

    def node_seconds(self, size: int) -> list[float]:
        """Return the times of the passes of one size, less what missed experts cost."""
        handling = self.handling_seconds()
        return [
            # What is left stays a time, whatever the noise.
            max(p.seconds - p.wait_seconds - p.misses * handling, 0.02 * p.seconds)
            for p in self.passes[size]
        ]

    def _run(self, size: int) -> TimedPass:
        offload = self._offload
        before = offload.cache.counters()
        begin = now(offload.device)
        result = self._session.verify(self._tokens[:size], self._parent[:size])
        seconds = now(offload.device) - begin
        self._session.rollback()
        moved = offload.cache.counters() - before
        return TimedPass(seconds, moved.wait_seconds, moved.misses, result.experts)

    def _drop_some(self, usual: TimedPass) -> None:
        for layer in range(self._offload.n_layers):
            used = np.unique(usual.experts[:, layer])
            count = max(1, round(_DROPPED * len(used)))
            self._offload.cache.drop(
                layer,
                self._rng.choice(used, count, replace=False).tolist(),
            )
