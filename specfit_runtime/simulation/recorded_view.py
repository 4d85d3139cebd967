"""A recorded position as a policy sees it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specfit_opt.files import TraceCycle
from specfit_opt.routing_predictor import RoutingPredictor

from ..acceptance import AcceptanceCalibrator
from ..decode.view import CycleView, Prices
from .recorded_drafter import RecordedDrafter


class RecordedView(CycleView):
    """The view of a live decode, whose drafter, clock and target are a recording.

    Parameters
    ----------
    cycle : TraceCycle
    predictor : RoutingPredictor
    calibrator : AcceptanceCalibrator
    prices : Prices
    level_seconds : float
        What drafting one level takes.
    limit : int, optional
        Most levels that may be drafted; by default all that were recorded.
    """

    def __init__(
        self,
        cycle: TraceCycle,
        predictor: RoutingPredictor,
        calibrator: AcceptanceCalibrator,
        prices: Prices,
        level_seconds: float,
        limit: int | None = None,
    ) -> None:
        self._recorded = RecordedDrafter(cycle, limit)
        self._cycle = cycle
        self._level_seconds = level_seconds
        self._limit = limit
        root = int(cycle.token[0])
        levels = self._recorded.max_levels
        super().__init__(root, self._recorded, predictor, calibrator, prices, levels)

    @property
    def nodes(self) -> NDArray[np.int64]:
        """The recorded node behind each node, shape (n,)."""
        return self._recorded.nodes

    @property
    def true_experts(self) -> NDArray[np.integer]:
        """Recorded experts of each node, shape (n, L, k)."""
        return self._cycle.experts[self.nodes]

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """Whether each node is on the target's path, shape (n,)."""
        return self._cycle.accepted[self.nodes]

    def ahead(self, tokens: int) -> RecordedView | None:
        """Return the position ``tokens`` later in the text, nothing drafted; None past its end.

        For the clairvoyant. Costs, cache and calibration are those of this position.
        """
        trace, index = self._cycle.trace, self._cycle.index + tokens
        if index >= trace.n_cycles or trace.prompt[index] != self._cycle.prompt:
            return None
        return RecordedView(
            trace.cycle(index),
            self._predictor,
            self._calibrator,
            self._prices,
            self._level_seconds,
            self._limit,
        )

    def grow(self, top_k: int, width: int) -> bool:
        """See `DraftView`; a level takes the machine's time."""
        grown = super().grow(top_k, width)
        if grown:
            self.level_seconds[-1] = self._level_seconds
        elif len(self.level_seconds) > self.levels:
            self.level_seconds[-1] = 0.0  # finding out that there is no more costs nothing
        return grown

    def _truth(self, first: int) -> NDArray[np.integer]:
        return self.true_experts[first:]
