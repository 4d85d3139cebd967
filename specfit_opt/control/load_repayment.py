"""Which part of an unneeded load the expert cache pays back, learned while decoding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import Real, Whole, checked
from ..errors import InvalidInputError
from ..expert_union import expert_union
from ..schema import ListOf, Record

#: Tokens times experts that this stands for, and those that the figure of all layers stands for in
#: one.
_POOLED_EXPOSURE, _LAYER_EXPOSURE = 100.0, 30.0
#: Cycles after which what was seen of loads has lost 63 % of its weight, and tokens that the first
#: guess, a token that finds none of its experts, stands for.
_MEMORY, _FIRST_TOKENS = 64.0, 8.0
#: Tokens after which what was seen of uses has lost 63 % of its weight.
_USES_MEMORY = 2048.0

_SUMS = ListOf(Real(most=1e15), 1)
_RATES = ("absent", "loads", "needed")
_WATCH = Record({"uses": _SUMS, "exposure": _SUMS})
#: What `LoadRepayment.to_state` gives: a sum per layer.
REPAYMENT_STATE = Record(
    {"top_k": Whole(), "drafted": _WATCH, "evicted": _WATCH, **dict.fromkeys(_RATES, _SUMS)}
)


class LoadRepayment:
    r"""The share of its price that an unneeded load costs in the long run, per layer.

    An expert that only rejected nodes used stays in the cache, and the text may use it before it is
    evicted; the load is then repaid in full. Meanwhile it holds a slot, so that another expert is
    evicted earlier, which the text may miss. With

    * :math:`h`, the probability per committed token that the text uses a given expert that was
      loaded unneeded,
    * :math:`g`, the same of an expert that was evicted,
    * :math:`\lambda`, the probability per committed token that an expert outside the cache is
      loaded, for whatever reason,
    * :math:`E` experts of a layer, of which the cache can hold :math:`S` and holds :math:`H`,
    * :math:`\tau_0 = \frac{1}{\lambda} \ln \frac{E - H}{E - S}`, the tokens until the cache evicts
      at all: the fuller it is, the less is loaded,
    * :math:`\tau = \tau_0 + \frac{S}{\lambda (E - S)}`, the tokens that an unused expert stays,

    an unneeded load is repaid with probability :math:`1 - e^{-h \tau}`, and until it is, from
    :math:`\tau_0` on, it displaces another expert's use at the rate :math:`g`:

    .. math:: \mathrm{share} = e^{-h\tau} + \frac{g}{h} \left( e^{-h\tau_0} - e^{-h\tau} \right),

    at most 1. In a cache that is still filling almost everything is repaid; in a small full one
    :math:`h` and :math:`g` are alike and almost nothing is. The lifetime is that of first-in
    first-out, an upper bound for an unused expert under LRU or LFU (Che, Tung and Wang 2002 for the
    characteristic time); a lifetime measured instead gained next to nothing in replays with either.
    :math:`h` and :math:`g` are uses over exposure, the maximum-likelihood rates of a Poisson
    process, held to those of all layers where a layer has seen little and forgotten over some
    thousand tokens, so that another kind of text is followed. :math:`\lambda` is loads over
    exposure as well, of the last passes only.

    Parameters
    ----------
    n_layers, n_experts : int

    References
    ----------
    H. Che, Y. Tung, Z. Wang. Hierarchical Web Caching Systems: Modeling, Design and Experimental
    Results. IEEE JSAC 20(7), 2002.
    """

    def __init__(self, n_layers: int, n_experts: int) -> None:
        self._n_experts = n_experts
        self._drafted = _Watch(n_layers, n_experts)
        self._evicted = _Watch(n_layers, n_experts)
        self._top_k = 0
        self._absent = np.zeros(n_layers)
        self._loads = np.zeros(n_layers)
        self._needed = np.zeros(n_layers)
        self._resident: NDArray[np.bool_] | None = None
        self._outside = np.full(n_layers, n_experts)  # experts that are not resident

    def start(self) -> None:
        """Take note that another text begins: what was evicted before it says nothing about it.

        Until then it was not used, and that counts.
        """
        self._evicted.end(self._evicted.watched, used=False)
        self._resident = None

    def to_state(self) -> dict[str, Any]:
        """Return what a later decode of the same model and cache may begin with, plain values."""
        return {
            "top_k": self._top_k,
            "drafted": self._drafted.to_state(),
            "evicted": self._evicted.to_state(),
            **{name: getattr(self, f"_{name}").tolist() for name in _RATES},
        }

    def from_state(self, state: Mapping[str, Any]) -> None:
        """Begin with what :meth:`to_state` gave.

        Raises
        ------
        InvalidInputError
            If it is none or for another number of layers; nothing is changed then.
        """
        kept = checked(state, REPAYMENT_STATE, "repayment")
        watches = kept["drafted"], kept["evicted"]
        sums = [kept[name] for name in _RATES] + [s for watch in watches for s in watch.values()]
        if any(len(values) != len(self._absent) for values in sums):
            raise InvalidInputError(
                f"repayment must have a sum for each of {len(self._absent)} layers"
            )
        self._top_k = kept["top_k"]
        self._drafted.from_state(kept["drafted"])
        self._evicted.from_state(kept["evicted"])
        for name in _RATES:
            setattr(self, f"_{name}", np.array(kept[name]))

    @property
    def unused(self) -> NDArray[np.bool_]:
        """Experts of unneeded loads that may yet be used, shape (L, E)."""
        return self._drafted.watched

    def look(self, resident: NDArray[np.bool_]) -> None:
        """See the cache before a pass.

        Parameters
        ----------
        resident : ndarray of bool, shape (L, E)
        """
        self._drafted.end(self._drafted.watched & ~resident, used=False)
        if self._resident is not None:
            self._evicted.begin(self._resident & ~resident)
        self._resident = np.array(resident)
        self._outside = resident.shape[1] - np.count_nonzero(resident, axis=1)

    def share(self, slots: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the share of a load's price that an unneeded load costs now, shape (L,).

        Parameters
        ----------
        slots : ndarray of int64, shape (L,)
            Experts of each layer that the cache can hold.

        Notes
        -----
        1 before the first pass was learned from: the experts that a token uses are not known then.
        In a full cache it is 1 until drafted experts were seen to be used more than evicted ones.
        """
        assert self._resident is not None  # look comes first
        if not self._top_k:
            return np.ones(len(slots))
        # Per expert that was not in the cache, and token.
        first = _FIRST_TOKENS * self._top_k
        absent = self._absent + _FIRST_TOKENS * self._n_experts
        loaded, needed = (self._loads + first) / absent, (self._needed + first) / absent
        # Before anything was seen of them, both are used like any expert that is not in the cache.
        used = self._drafted.rate(needed)
        missed = self._evicted.rate(needed)
        # Experts outside of the full cache, and of the cache as it is.
        full = np.maximum(self._n_experts - slots, 0)
        now = np.maximum(self._outside, np.maximum(full, 1))
        with np.errstate(divide="ignore"):  # what has room for all never evicts
            late = np.exp(-used * np.log(now / full) / loaded)
            gone = late * np.exp(-used * slots / (full * loaded))
        share: NDArray[np.float64] = np.minimum(gone + missed / used * (late - gone), 1.0)
        return share

    def learn(
        self,
        experts: NDArray[np.integer],
        accepted: NDArray[np.integer],
        misses: NDArray[np.int64],
    ) -> None:
        """Take in a pass.

        Parameters
        ----------
        experts : ndarray of int, shape (m, L, k)
            True experts of the nodes that it ran; -1 pads.
        accepted : ndarray of int, shape (a,)
            Rows of the accepted ones.
        misses : ndarray of int64, shape (L,)
            Experts that it loaded.
        """
        assert self._resident is not None  # look comes first
        self._top_k = experts.shape[2]
        tokens = len(accepted)
        used = expert_union(experts, self._n_experts)
        needed = expert_union(experts[accepted], self._n_experts)
        for watch in (self._drafted, self._evicted):
            watch.wait(0.5 * tokens)  # an expert is used somewhere among the pass's tokens
            watch.end(watch.watched & needed, used=True)
            watch.wait(0.5 * tokens)
        # What was evicted and is now loaded unneeded is watched as that.
        self._evicted.end(self._evicted.watched & used, used=False)
        self._drafted.begin(used & ~needed & ~self._resident)
        keep = 1.0 - 1.0 / _MEMORY
        self._loads = keep * self._loads + misses
        self._needed = keep * self._needed + np.count_nonzero(needed > self._resident, axis=1)
        self._absent = keep * self._absent + tokens * self._outside


class _Watch:
    """Counts how often watched experts come to be used, and for how long they are watched.

    Attributes
    ----------
    watched : ndarray of bool, shape (L, E)
    """

    def __init__(self, n_layers: int, n_experts: int) -> None:
        self.watched = np.zeros((n_layers, n_experts), dtype=np.bool_)
        self._since = np.zeros((n_layers, n_experts))
        self._clock = 0.0
        self._uses = np.zeros(n_layers)
        self._exposure = np.zeros(n_layers)

    def to_state(self) -> dict[str, list[float]]:
        exposure = self._exposure + self._open(self.watched)
        return {"uses": self._uses.tolist(), "exposure": exposure.tolist()}

    def from_state(self, state: Mapping[str, list[float]]) -> None:
        self._uses, self._exposure = np.array(state["uses"]), np.array(state["exposure"])

    def wait(self, tokens: float) -> None:
        """Let time pass."""
        self._clock += tokens
        keep = math.exp(-tokens / _USES_MEMORY)
        self._uses *= keep
        self._exposure *= keep

    def begin(self, experts: NDArray[np.bool_]) -> None:
        """Watch more experts."""
        self.watched |= experts
        self._since[experts] = self._clock

    def end(self, experts: NDArray[np.bool_], *, used: bool) -> None:
        """Watch some of the watched no longer, because they were used or for another reason."""
        self._exposure += self._open(experts)
        self.watched &= ~experts
        if used:
            self._uses += np.count_nonzero(experts, axis=1)

    def rate(self, guess: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the uses per token of a watched expert, shape (L,).

        Parameters
        ----------
        guess : ndarray of float64, shape (L,)
            Of it before any was watched.
        """
        exposure = self._exposure + self._open(self.watched)
        pooled = (self._uses.sum() + _POOLED_EXPOSURE * guess.mean()) / (
            exposure.sum() + _POOLED_EXPOSURE
        )
        rate: NDArray[np.float64] = (self._uses + _LAYER_EXPOSURE * pooled) / (
            exposure + _LAYER_EXPOSURE
        )
        return rate

    def _open(self, experts: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return how long ``experts`` have been watched, summed per layer."""
        # Few are watched, so they are looked up one by one.
        at = np.flatnonzero(experts)
        waited = self._clock - self._since.ravel()[at]
        layer = at // experts.shape[1]
        summed = np.bincount(layer, waited, minlength=len(experts))
        return summed.astype(np.float64, copy=False)
