"""A cache without weights: which experts would be in fast memory, pass by pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import kernel
from ..arrays import frozen
from .eviction_rule import CacheRule


class SimulatedCache:
    """Plays an eviction rule over whole passes; empty at first.

    A pass loads each expert that it uses and that is missing once, however many it uses. Only then
    experts are evicted, the lowest rank first and the smallest expert id among equals, until every
    layer has no more than its slots.

    Parameters
    ----------
    rule : CacheRule
    slots : int or array_like of int, shape (L,)
        Experts that stay, of each layer; >= 0.
    n_layers, n_experts : int

    Notes
    -----
    :meth:`use` takes O(L E) time, and O(E) for every expert that is evicted.

    Examples
    --------
    >>> import numpy as np
    >>> from specfit_opt.caches import CACHE_RULES, SimulatedCache
    >>> cache = SimulatedCache(CACHE_RULES.find("lru"), 2, n_layers=1, n_experts=4)
    >>> cache.use(np.array([[True, True, False, False]])).tolist()
    [[True, True, False, False]]
    >>> cache.use(np.array([[True, False, True, False]])).tolist()
    [[False, False, True, False]]
    >>> cache.resident.tolist()
    [[True, False, True, False]]
    """

    def __init__(
        self, rule: CacheRule, slots: ArrayLike, n_layers: int, n_experts: int
    ) -> None:
        self._rule = rule.make(n_layers, n_experts)
        self._resident = frozen(np.zeros((n_layers, n_experts), dtype=np.bool_))
        wide = np.broadcast_to(np.asarray(slots, dtype=np.int64), n_layers)
        self._slots = np.ascontiguousarray(wide)

    @property
    def resident(self) -> NDArray[np.bool_]:
        """Read-only mask of shape (L, E): what is in fast memory now."""
        return self._resident

    def use(self, used: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Run one pass and return the experts that were missing, each of them loaded once.

        Parameters
        ----------
        used : ndarray of bool, shape (L, E)
            Experts that the pass uses.

        Returns
        -------
        ndarray of bool, shape (L, E)
        """
        missed: NDArray[np.bool_] = used & ~self._resident
        self._rule.use(used)
        self._rule.load(missed)
        held = self._resident | used
        rank = np.ascontiguousarray(self._rule.rank(), dtype=np.float64)
        kernel.evict(held, rank, self._slots)
        self._resident = frozen(held)
        return missed

    def committed(self, tokens: int) -> None:
        """Note how many tokens the last pass committed; one, if nothing is said."""
        self._rule.committed(tokens)

    def take_over(self, resident: NDArray[np.bool_]) -> None:
        """Go on with what is in fast memory, whatever was there before.

        What is known of earlier uses is kept; an expert of which nothing is known counts as never
        used.

        Parameters
        ----------
        resident : ndarray of bool, shape (L, E)
            Copied; at most as many experts of a layer as there are slots.
        """
        self._resident = frozen(np.array(resident))

    def foresee(self, passes: Sequence[NDArray[np.bool_]]) -> None:
        """Tell the rule what all coming passes use, before the first; for clairvoyant rules."""
        self._rule.foresee(passes)
