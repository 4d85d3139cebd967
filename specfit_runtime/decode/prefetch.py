"""Fetching the predicted experts of the chosen nodes before the pass asks for them."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from specfit_opt.checks import shown

from ..errors import InvalidInputError

if TYPE_CHECKING:
    from ..expert_cache import ExpertCache

#: Cycles after which what was seen has lost 63 % of its weight.
_MEMORY = 32
#: Cycles seen before prefetching may begin on its own.
_LEAST_CYCLES = 16
#: What prefetching must hide for each second of transfer that it wastes: an unused expert occupies
#: the link, and pushes out another that may have to be fetched again.
_MARGIN = 3.0


class Prefetcher:
    """Prefetches the predicted union of the chosen nodes, and judges whether that pays.

    Parameters
    ----------
    mode : bool or "auto"
        ``"auto"``: while the seconds of transfer that it hides behind compute are more than those
        that it wastes on experts that the pass does not use, by what the last cycles would have
        shown.
    expert_time : ndarray of float64, shape (L,), or None
        Seconds to bring in one expert; None: unknown, and ``"auto"`` is off.

    Raises
    ------
    InvalidInputError
        If the mode is unknown.

    Notes
    -----
    With R seconds of transfer predicted rightly, W wrongly, and C seconds of compute per cycle,
    prefetching hides at most min(C, R) seconds, occupies the link for W more, pushes out as many
    experts that were there, and takes the time of asking for each. On a slow link with a middling
    predictor W is the larger, which is why reading ahead is known to raise the hit rate and lower
    the speed.
    """

    def __init__(
        self, mode: bool | Literal["auto"], expert_time: NDArray[np.float64] | None
    ) -> None:
        if not (isinstance(mode, bool) or (isinstance(mode, str) and mode == "auto")):
            raise InvalidInputError(f"prefetch must be True, False or 'auto', got {shown(mode)}")
        self.mode = mode
        self._expert_time = expert_time
        self._cycles = 0
        self._right = self._wrong = self._compute = 0.0
        self._asking = 0.0

    @property
    def wanted(self) -> bool:
        """Whether the next pass is to be prefetched for."""
        if self.mode != "auto":
            return bool(self.mode)
        hidden = min(self._compute, self._right) - self._asking
        return self._cycles >= _LEAST_CYCLES and hidden > _MARGIN * self._wrong

    def issue(self, cache: ExpertCache, experts: NDArray[Any]) -> None:
        """Begin to fetch what the nodes are predicted to use, layer by layer.

        Parameters
        ----------
        cache : ExpertCache
        experts : ndarray of int, shape (n, L, k)
            Predicted experts of the chosen nodes, -1 pads.
        """
        begin = perf_counter()
        for layer in range(experts.shape[1]):
            found, count = np.unique(experts[:, layer], return_counts=True)
            if len(found) and found[0] < 0:
                found, count = found[1:], count[1:]
            # All chosen nodes run, however likely, so an expert that more of them should use is
            # the surer guess. What does not fit is dropped.
            cache.prefetch(layer, found[np.argsort(-count, kind="stable")].tolist())
        self._asking += perf_counter() - begin

    def learn(
        self,
        predicted: NDArray[np.bool_] | None,
        used: NDArray[np.bool_],
        resident: NDArray[np.bool_],
        compute_seconds: float,
    ) -> None:
        """Compare what would have been, or was, prefetched with what the pass used.

        Parameters
        ----------
        predicted, used, resident : ndarray of bool, shape (L, E)
            Predicted and true experts of the chosen nodes, and what was there beforehand.
            ``predicted`` is None where nothing was predicted; nothing is learned then.
        compute_seconds : float
            Of the pass.
        """
        if predicted is None or self._expert_time is None:
            return
        missing = predicted & ~resident
        keep = 1.0 - 1.0 / _MEMORY
        right = (missing & used).sum(axis=1) @ self._expert_time
        wrong = (missing & ~used).sum(axis=1) @ self._expert_time
        self._right = keep * self._right + float(right)
        self._wrong = keep * self._wrong + float(wrong)
        self._compute = keep * self._compute + compute_seconds
        self._asking *= keep
        self._cycles += 1
