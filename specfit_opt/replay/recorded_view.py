"""A recorded position as a policy sees it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..control.acceptance_calibration import AcceptanceCalibrator
from ..policies.view import CycleState, DraftLevel, DraftView
from ..routing_predictor import RoutingPredictor
from .recorded_drafter import RecordedDrafter, RecordedTree


class RecordedView(DraftView):
    """The view of a decode whose drafter, clock and target are a recording.

    Parameters
    ----------
    tree : RecordedTree
    predictor : RoutingPredictor
    calibrator : AcceptanceCalibrator
    state : CycleState
    level_seconds : float
        What drafting one level takes.
    limit : int, optional
        Most levels that may be drafted; by default all that were recorded.

    Attributes
    ----------
    predictions : int
        Times that routing had to be predicted.
    """

    def __init__(
        self,
        tree: RecordedTree,
        predictor: RoutingPredictor,
        calibrator: AcceptanceCalibrator,
        state: CycleState,
        level_seconds: float,
        limit: int | None = None,
    ) -> None:
        self._tree = tree
        self._recorded = RecordedDrafter(tree, limit)
        self._charge = level_seconds
        self.predictions = 0
        root = int(tree.token[0])
        levels = self._recorded.max_levels
        super().__init__(root, self._recorded, predictor, calibrator, state, levels)

    @property
    def nodes(self) -> NDArray[np.int64]:
        """The recorded node behind each node, shape (n,)."""
        return self._recorded.nodes

    @property
    def true_experts(self) -> NDArray[np.integer]:
        """Recorded experts of each node, shape (n, L, k)."""
        return self._tree.cycle.experts[self.nodes]

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """Whether each node is on the target's path, shape (n,)."""
        return self._tree.cycle.accepted[self.nodes]

    @property
    def drafter_path_prob(self) -> NDArray[np.float64]:
        """See `DraftView`; as recorded, without the rounding of a product."""
        return self._tree.path_prob[self.nodes]

    def _seconds_of_level(self, measured: float, level: DraftLevel | None) -> float:
        # Finding out that there is no more costs nothing.
        return 0.0 if level is None else self._charge

    def _truth(self, first: int) -> NDArray[np.integer]:
        self.predictions += 1  # each prediction asks once
        return self.true_experts[first:]
