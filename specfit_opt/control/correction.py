"""Keeps a cost model honest while decoding: learns from what each cycle took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import Real, Whole, checked
from ..cost import CostModel
from ..errors import InvalidInputError
from ..limits import SECONDS
from ..schema import ListOf, Record
from .robust import RecentAverage, RecentRatio

#: Cycles that the averages of times remember.
WINDOW = 32

#: Cycles after which what was seen of misses has lost 63 % of its weight.
MEMORY = 32

#: The machine may turn out this many times faster or slower than the profile says, no more.
MOST_SCALE = 64.0

#: Realised over predicted misses, at least and at most.
LEAST_MISS_RATIO, MOST_MISS_RATIO = 0.25, 8.0

#: Predicted misses of a layer that make its own ratio weigh as much as the ratio of all layers.
_LAYER_PRIOR = 8.0

#: Misses of each layer that came as predicted, before anything was seen: in the first cycles of a
#: text few of the tokens that a drafter proposes were seen before, and their misses are not
#: predicted at all.
_MISS_PRIOR = 4.0

#: Standard deviations that are expected beforehand: of what every pass, and every token beyond the
#: first, takes more than in proportion, relative to a pass over one token; and of what handling an
#: expert costs, relative to bringing it in.
_CONSTANT_PRIOR, _SLOPE_PRIOR, _HANDLING_PRIOR = 0.3, 0.03, 0.2

#: The least noise that is believed of a pass.
_LEAST_NOISE = 0.02

#: A cycle further off than this many robust standard deviations weighs less, by the square.
_NEAR = 2.0

#: Values of an average that what is kept of it stands for.
_KEPT = 4

#: Once the averages are full, the model is refreshed every so many cycles.
_REFRESH = 4


_COUNTS = ListOf(Real(most=1e9), 1)
#: What `OnlineCorrection.to_state` gives.
COST_STATE = Record(
    {
        "compute": Record(
            {
                "scale": Real(1.0 / MOST_SCALE, MOST_SCALE),
                "constant": Real(-MOST_SCALE, MOST_SCALE),
                "slope": Real(-MOST_SCALE, MOST_SCALE),
                "extra": Real(-MOST_SCALE, MOST_SCALE),
            }
        ),
        "transfer": Real(most=1e9),
        "hidden": Real(most=1e9),
        "levels": ListOf(SECONDS, 0, 1024),
        "search": SECONDS,
        "other": SECONDS,
        "predicted": _COUNTS,
        "realised": _COUNTS,
    }
)


@dataclass(frozen=True, eq=False)
class CycleMeasurement:
    """What one cycle was expected to load, and what it took.

    Attributes
    ----------
    n_nodes : int
        Nodes that were verified, the root included.
    predicted_misses : array_like of float, shape (L,)
        Experts per layer of the verified nodes' predicted union that were not in place when the
        nodes were chosen.
    realised_misses : array_like of float, shape (L,)
        The same of the experts that the pass used; an expert that prefetching brought in
        between counts, because it had to be moved.
    compute_seconds : float
        Wall time of the pass without the waiting.
    wait_seconds : float
        Wall time in which the pass waited for weights.
    draft_seconds : tuple of float
        Wall time of each drafted level, the first level first.
    search_seconds : float
        Wall time of choosing and of deciding to stop, all levels together.
    other_seconds : float
        Wall time of the cycle that none of the others covers.
    hidden_seconds : float
        Transfer of experts that the pass used, for which it did not wait because it was computing;
        a part of ``compute_seconds``.

    Raises
    ------
    InvalidInputError
        For NaN, negative or infinite figures, or misses that are not one per layer.
    """

    n_nodes: int
    predicted_misses: NDArray[Any]
    realised_misses: NDArray[Any]
    compute_seconds: float
    wait_seconds: float = 0.0
    draft_seconds: tuple[float, ...] = ()
    search_seconds: float = 0.0
    other_seconds: float = 0.0
    hidden_seconds: float = 0.0

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        put("n_nodes", Whole(1)(self.n_nodes, "n_nodes"))
        for name in ("compute", "wait", "search", "other", "hidden"):
            name = f"{name}_seconds"
            put(name, Real()(getattr(self, name), name))
        put("draft_seconds", tuple(ListOf(Real())(self.draft_seconds, "draft_seconds")))
        for name in ("predicted_misses", "realised_misses"):
            misses = np.asarray(getattr(self, name), dtype=np.float64)
            # One sum tells NaN and infinities, and is quicker than looking for each.
            if misses.ndim != 1 or not math.isfinite(misses.sum()) or misses.min(initial=0.0) < 0:
                raise InvalidInputError(
                    f"{name} must be one finite number >= 0 per layer, got {misses.tolist()}"
                )
            put(name, misses)
        if len(self.predicted_misses) != len(self.realised_misses):
            raise InvalidInputError(
                f"predicted_misses and realised_misses are for {len(self.predicted_misses)} and "
                f"{len(self.realised_misses)} layers"
            )

    @property
    def seconds(self) -> float:
        """Wall time of the whole cycle."""
        return (
            self.compute_seconds
            + self.wait_seconds
            + sum(self.draft_seconds)
            + self.search_seconds
            + self.other_seconds
        )


@dataclass(frozen=True)
class CycleTimeError:
    """Predicted against measured cycle time.

    Attributes
    ----------
    cycles : int
    measured_seconds : float
        Sum over the cycles.
    predicted_seconds : float
        Sum of what was predicted from the predicted misses, each cycle's before it was learned
        from.
    mean_relative_error : float
        Mean over cycles of abs(predicted - measured) / measured; 0 before the first cycle.
    """

    cycles: int
    measured_seconds: float
    predicted_seconds: float
    mean_relative_error: float

    @property
    def bias(self) -> float:
        """Predicted over measured seconds, less 1: positive when cycles took less than said."""
        if not self.measured_seconds:
            return 0.0
        return self.predicted_seconds / self.measured_seconds - 1.0


class OnlineCorrection:
    r"""A cost model that learns from every cycle what the machine really charges.

    Parameters
    ----------
    base : CostModel
        Of a pass without drafting, as :meth:`~specfit_runtime.RuntimeProfile.cost_model` gives it:
        its ``expert_time`` must tell the layers apart. Its ``resident_time`` is passed on as it is:
        0 where a measured pass includes what resident experts cost.
    draft_time : sequence of float
        Seconds per drafted level as calibrated; empty if unknown.
    handling : float
        Share of the base model's ``expert_time``, from 0 to 1, that is not waiting but compute:
        starting a transfer, copying where nothing waits for a copy, computing with an expert
        apart from the others.

    Raises
    ------
    InvalidInputError
        If the base model does not fit, or a draft time is no time.

    Notes
    -----
    With :math:`g` the base model's time of a pass by node count, :math:`t_l` its expert time,
    :math:`m_l` the predicted and :math:`r_l` the realised misses of a layer and
    :math:`x = \sum_l r_l t_l`, learned are

    * compute: :math:`s\,(g(n) + c\,x) + a + b\,(n - 1) + d\,x` with :math:`c` the share of
      handling, by least squares over the last ``WINDOW`` cycles, in relative terms, reweighted so
      that cycles far off hardly count; :math:`a` is held to the order of :math:`0.3\,g(1)`,
      :math:`b` to :math:`0.03\,g(1)`, :math:`d` to 0.2;
    * transfer: :math:`\tau`, the interquartile mean ratio to :math:`x` of waiting and of what hid
      behind compute together, and that of the latter alone, :math:`\eta`;
    * misses: :math:`\rho_l`, realised over predicted, with exponential forgetting; a layer that
      has seen little leans on the ratio of all layers;
    * a level's drafting, a level's search and the rest of a cycle: interquartile means.

    The corrected model charges :math:`\rho_l (\tau + s c + d)\,t_l` for an expert and the rest of
    the cycle as fixed time; the search is part of :meth:`level_time`. What hides is not taken off
    the price: where there is time left to hide it, the price decides little, and where there is
    none, one expert more is waited for in full (section on overlap of the theory page). It is taken
    off what :meth:`predict` says. Every estimate starts at what
    the profile says, and the profile counts as two or three cycles that are forgotten like the
    others.

    :meth:`update` and :meth:`cost_model` take some tens of microseconds together. After the first
    ``WINDOW`` cycles the model is refreshed every fourth cycle only; draft and search times follow
    every cycle.

    Examples
    --------
    >>> correction = OnlineCorrection(CostModel(0.0, [0.0, 1e-2, 1e-2], [1e-3]))
    >>> for _ in range(40):
    ...     correction.update(CycleMeasurement(1, [2.0], [4.0], 2e-2, 2e-3))
    >>> corrected = correction.cost_model()
    >>> round(float(corrected.node_time[1]), 4), round(float(corrected.expert_time[0]), 4)
    (0.02, 0.001)
    """

    def __init__(
        self, base: CostModel, draft_time: Sequence[float] = (), *, handling: float = 0.0
    ) -> None:
        if isinstance(base.expert_time, float):
            raise InvalidInputError(
                "the base cost model must have an expert_time per layer, shape (L,) or (L, E); "
                f"it has one for all, {base.expert_time}"
            )
        self.base = base
        times = base.expert_time
        self._layer_time = times if times.ndim == 1 else times.mean(axis=1)
        self.n_layers = len(self._layer_time)
        self._draft_base = tuple(ListOf(Real())(draft_time, "draft_time"))
        share: float = Real(most=1.0)(handling, "handling")
        self._compute = _ComputeFit(base, share)
        self._transfer = RecentRatio(WINDOW, 1.0 - share)
        self._hidden = RecentRatio(WINDOW, 0.0)
        self._drafts = [RecentAverage(WINDOW, (t, t)) for t in self._draft_base]
        # The first search of a process takes many times what others do, and a level that seems
        # dear is not drafted again: it does not count before there are others.
        self._search = RecentAverage(WINDOW, (0.0, 0.0))
        self._other = RecentAverage(WINDOW)
        # The prior of the misses: so many experts per layer, as predicted.
        self._predicted = np.full(self.n_layers, _MISS_PRIOR)
        self._realised = np.full(self.n_layers, _MISS_PRIOR)
        self._ratio = np.ones(self.n_layers)
        self._scale, self._hidden_scale = 1.0 - share, 0.0
        self._updates = 0
        self._model: CostModel | None = None
        self._cycles = 0
        self._measured_sum = 0.0
        self._sums = [[0.0, 0.0], [0.0, 0.0]]  # predicted, relative error: corrected and base

    def update(self, cycle: CycleMeasurement) -> None:
        """Learn from one cycle.

        Parameters
        ----------
        cycle : CycleMeasurement

        Raises
        ------
        InvalidInputError
            If it is for another number of layers, or has more nodes than the base model's table.
            Nothing is learned then.
        """
        if len(cycle.predicted_misses) != self.n_layers:
            raise InvalidInputError(
                f"the cycle's misses are for {len(cycle.predicted_misses)} layers, the cost model "
                f"for {self.n_layers}"
            )
        self.base.require_table(cycle.n_nodes)
        self._compare(cycle)
        moving = float(cycle.realised_misses @ self._layer_time)
        self._compute.add(cycle.n_nodes, cycle.compute_seconds, moving)
        if moving > 0.0:
            self._transfer.add(cycle.wait_seconds + cycle.hidden_seconds, moving)
            self._hidden.add(cycle.hidden_seconds, moving)
        levels = len(cycle.draft_seconds)
        while len(self._drafts) < levels:
            self._drafts.append(RecentAverage(WINDOW))
        for average, seconds in zip(self._drafts, cycle.draft_seconds, strict=False):
            average.add(seconds)
        if levels:
            self._search.add(cycle.search_seconds / levels)
            self._other.add(cycle.other_seconds)
        else:
            self._other.add(cycle.other_seconds + cycle.search_seconds)
        self._count_misses(cycle)
        self._updates += 1
        if self._updates <= WINDOW or self._updates % _REFRESH == 0:
            self._refresh()

    def cost_model(self) -> CostModel:
        """Return the corrected cost model of a pass without drafting."""
        if self._model is None:
            base = self.base
            factor = self._expert_scale * self._ratio
            expert_time = base.expert_time
            assert not isinstance(expert_time, float)  # refused at construction
            if expert_time.ndim == 2:
                factor = factor[:, None]
            fixed, node_time = self._compute.corrected()
            self._model = CostModel(
                fixed + self._other.value, node_time, expert_time * factor, base.resident_time
            )
        return self._model

    @property
    def load_time(self) -> NDArray[np.float64]:
        """Seconds that a pass takes longer for an expert that is really loaded, shape (L,)."""
        time: NDArray[np.float64] = (self._expert_scale - self._hidden_scale) * self._layer_time
        return time

    def level_time(self, level: int) -> float:
        """Return the seconds that level ``level`` (1, 2, ...) takes, its search included.

        Parameters
        ----------
        level : int

        Returns
        -------
        float
            A level that was never drafted is taken to cost what the last known one does; 0 as
            long as no level is known at all.

        Raises
        ------
        InvalidInputError
            If ``level`` is not a positive whole number.
        """
        level = Whole(1)(level, "level")
        return self._draft_seconds(level) + self._search.value

    def predict(self, n_nodes: int, misses: ArrayLike, levels: int = 0) -> float:
        """Return the seconds that a cycle is expected to take.

        Parameters
        ----------
        n_nodes : int
            Nodes to be verified, the root included.
        misses : array_like of float, shape (L,)
            Predicted misses per layer.
        levels : int
            Levels drafted.

        Returns
        -------
        float
        """
        loads = np.asarray(misses, dtype=np.float64)
        transfer = float((loads * self._ratio) @ self.load_time)
        drafting = sum(self._draft_seconds(level) for level in range(1, levels + 1))
        drafting += levels * self._search.value
        model = self.cost_model()
        time = model.node_time
        passing = time * n_nodes if isinstance(time, float) else float(time[n_nodes])
        return model.fixed_time + passing + transfer + drafting

    def error(self) -> CycleTimeError:
        """Return how the corrected predictions compare with what was measured."""
        return self._error(0)

    def base_error(self) -> CycleTimeError:
        """Return how the uncorrected profile would have compared."""
        return self._error(1)

    def to_state(self) -> dict[str, Any]:
        """Return what a later decode with the same base model may begin with.

        Returns
        -------
        dict
            Plain values: the estimates, not what they were made from.
        """
        return {
            "compute": self._compute.to_state(),
            "transfer": self._transfer.value,
            "hidden": self._hidden.value,
            "levels": [average.value for average in self._drafts],
            "search": self._search.value,
            "other": self._other.value,
            "predicted": self._predicted.tolist(),
            "realised": self._realised.tolist(),
        }

    def from_state(self, state: Mapping[str, Any]) -> None:
        """Begin with what :meth:`to_state` gave; it counts as much as the profile does.

        Raises
        ------
        InvalidInputError
            If it is none or for another number of layers; nothing is changed then.
        """
        kept = checked(state, COST_STATE, "costs")
        for name in ("predicted", "realised"):
            if len(kept[name]) != self.n_layers:
                raise InvalidInputError(
                    f"costs.{name} is for {len(kept[name])} layers, the cost model for "
                    f"{self.n_layers}"
                )
        self._compute.from_state(kept["compute"])
        self._transfer = RecentRatio(WINDOW, kept["transfer"])
        self._hidden = RecentRatio(WINDOW, kept["hidden"])
        self._drafts = [RecentAverage(WINDOW, (t,) * _KEPT) for t in kept["levels"]]
        self._search = RecentAverage(WINDOW, (kept["search"],) * _KEPT)
        self._other = RecentAverage(WINDOW, (kept["other"],) * _KEPT)
        self._predicted, self._realised = np.array(kept["predicted"]), np.array(kept["realised"])
        self._refresh()

    def _refresh(self) -> None:
        """Let what was learned change the prices."""
        self._scale = min(self._transfer.value, MOST_SCALE)
        self._hidden_scale = min(self._hidden.value, self._scale)
        self._compute.fit()
        self._weigh_misses()
        self._model = None

    @property
    def _expert_scale(self) -> float:
        """What a missed expert takes, link and handling, over what the profile says."""
        return self._scale + self._compute.handling

    def _draft_seconds(self, level: int) -> float:
        return self._drafts[min(level, len(self._drafts)) - 1].value if self._drafts else 0.0

    def _error(self, which: int) -> CycleTimeError:
        predicted, relative = self._sums[which]
        return CycleTimeError(
            self._cycles, self._measured_sum, predicted, relative / max(self._cycles, 1)
        )

    def _compare(self, cycle: CycleMeasurement) -> None:
        measured = cycle.seconds
        if not measured > 0.0:
            return
        levels = len(cycle.draft_seconds)
        base = self._compute.base_seconds(cycle.n_nodes)
        base += float(cycle.predicted_misses @ self._layer_time)
        known = self._draft_base
        base += sum(known[:levels]) + (known[-1] * max(0, levels - len(known)) if known else 0.0)
        corrected = self.predict(cycle.n_nodes, cycle.predicted_misses, levels)
        if not math.isfinite(base):
            return  # a size that the table forbids was run all the same: nothing was predicted
        self._cycles += 1
        self._measured_sum += measured
        for sums, predicted in zip(self._sums, (corrected, base), strict=True):
            sums[0] += predicted
            sums[1] += abs(predicted - measured) / measured

    def _count_misses(self, cycle: CycleMeasurement) -> None:
        keep = 1.0 - 1.0 / MEMORY
        self._predicted *= keep
        self._predicted += cycle.predicted_misses
        self._realised *= keep
        self._realised += cycle.realised_misses

    def _weigh_misses(self) -> None:
        total = float(self._realised.sum()) / max(float(self._predicted.sum()), 1e-9)
        total = min(max(total, LEAST_MISS_RATIO), MOST_MISS_RATIO)
        ratio = self._realised + _LAYER_PRIOR * total
        ratio /= self._predicted + _LAYER_PRIOR
        np.minimum(ratio, MOST_MISS_RATIO, out=ratio)
        self._ratio = np.maximum(ratio, LEAST_MISS_RATIO, out=ratio)


class _ComputeFit:
    """Fits compute = s * (g(n) + c * x) + a + b * (n - 1) + d * x, in relative terms.

    ``g`` is the base model's time of a pass, ``x`` are the seconds that bringing in the missed
    experts should have taken, ``c`` is the share of them that handling has by the profile.
    """

    def __init__(self, base: CostModel, handling: float) -> None:
        self._base = base
        self.scale = 1.0
        # The rest in units of g(1); d as it is.
        self._constant = self._slope = self._extra = 0.0
        self._handling = handling
        table = base.node_time
        #: The sizes of a table that are allowed, if its time does not fall over them.
        self._rising: NDArray[np.intp] | None = None
        if not isinstance(table, float):
            allowed = 1 + np.flatnonzero(np.isfinite(table[1:]))
            if (np.diff(table[allowed]) >= 0.0).all():
                self._rising = allowed
        # What the profile says, as three passes of different size.
        last = 64 if isinstance(table, float) else len(table) - 1
        sizes = [n for n in (1, max(1, last // 4), last) if 0 < self.base_seconds(n) < math.inf]
        # The time of one token, or of the least pass that is allowed.
        self._unit = self.base_seconds(sizes[0]) if sizes else 0.0
        # A row per cycle: what is to be multiplied by s, a, b and d, over g(n).
        self._rows = np.zeros((WINDOW, 4))
        self._rows[:, 0] = 1.0
        self._seconds = np.ones(WINDOW)
        self._used = len(sizes)
        self._next = self._used % WINDOW
        self._seen = False
        self._stale = False
        for i, n in enumerate(sizes):
            unit = self._unit / self.base_seconds(n)
            self._rows[i, 1:3] = unit, unit * (n - 1)

    @property
    def handling(self) -> float:
        """Seconds of compute per second of ``x``."""
        return min(max(0.0, self.scale * self._handling + self._extra), MOST_SCALE)

    def base_seconds(self, n_nodes: int) -> float:
        time = self._base.node_time
        node_time = time * n_nodes if isinstance(time, float) else float(time[n_nodes])
        return self._base.fixed_time + node_time

    def corrected(self) -> tuple[float, float | NDArray[np.float64]]:
        """Return the corrected fixed time and node time of a pass that misses nothing."""
        fixed, time = self.scale * self._base.fixed_time, self._base.node_time
        if isinstance(time, float):
            slope = max(0.0, self.scale * time + self._slope * self._unit)
            # Through the time of one token, the size that is seen most often.
            first = fixed + self.scale * time + self._constant * self._unit
            return max(0.0, first - slope), slope
        table = self.scale * time + self._constant * self._unit
        table += self._slope * self._unit * np.arange(-1.0, len(table) - 1.0)
        np.maximum(table, 0.0, out=table)
        if self._rising is not None:
            # Where more tokens took no less time, they do not now.
            table[self._rising] = np.maximum.accumulate(table[self._rising])
        return fixed, table

    def add(self, n_nodes: int, seconds: float, moving: float) -> None:
        base = self.base_seconds(n_nodes)
        if not 0.0 < base < math.inf:
            return
        x, unit = moving / base, self._unit / base
        if not self._seen:
            # The profile is given a say on passes like this one, whatever they miss.
            self._seen = True
            first = slice(0, self._used)
            self._rows[first, 3] = x
            self._rows[first, 0] = 1.0 + self._handling * x
            self._seconds[first] += (self.scale * self._handling + self._extra) * x
        at = self._next
        self._rows[at] = (1.0 + self._handling * x, unit, unit * (n_nodes - 1), x)
        self._seconds[at] = seconds / base
        self._next = (at + 1) % WINDOW
        self._used = min(self._used + 1, WINDOW)
        self._stale = True

    def to_state(self) -> dict[str, float]:
        return {
            "scale": float(self.scale),
            "constant": float(np.clip(self._constant, -MOST_SCALE, MOST_SCALE)),
            "slope": float(np.clip(self._slope, -MOST_SCALE, MOST_SCALE)),
            "extra": float(np.clip(self._extra, -MOST_SCALE, MOST_SCALE)),
        }

    def from_state(self, state: Mapping[str, float]) -> None:
        """Let the kept estimate take the profile's place, before anything was added."""
        self.scale = state["scale"]
        self._constant, self._slope = state["constant"], state["slope"]
        self._extra = state["extra"]
        at = self.scale, self._constant, self._slope, 0.0
        self._seconds[: self._used] = self._rows[: self._used] @ at

    def fit(self) -> None:
        """Take one step of iteratively reweighted least squares, from the last estimate."""
        if not self._stale:
            return
        self._stale = False
        rows, y = self._rows[: self._used], self._seconds[: self._used]
        residual = y - rows @ (self.scale, self._constant, self._slope, self._extra)
        half = self._used // 2
        # Spread about the median, not about the estimate: one that outliers have dragged along
        # would call every good cycle as far off as they are, and stay where it is.
        residual = np.abs(residual - np.partition(residual, half)[half])
        middle = float(np.partition(residual, half)[half])
        noise = max(1.4826 * middle, _LEAST_NOISE * self.scale)
        near = _NEAR * noise
        weighted = (rows * np.square(near / np.maximum(residual, near))[:, None]).T
        normal = weighted @ rows
        right = weighted @ y
        hold = (noise / self.scale) ** 2
        for i, prior in enumerate((_CONSTANT_PRIOR, _SLOPE_PRIOR, _HANDLING_PRIOR), 1):
            normal[i, i] += hold / prior**2
        found = np.linalg.solve(normal, right).tolist()
        if found[0] * self._handling + found[3] < 0.0:
            # Missing an expert makes no pass quicker: the best fit with d = -s * c.
            onto = np.eye(4, 3)
            onto[3, 0] = -self._handling
            found = (onto @ np.linalg.solve(onto.T @ normal @ onto, onto.T @ right)).tolist()
        if not found[0] > 0.0:
            # In proportion at least; the rest cannot stand for all of a pass.
            found = [float(right[0] / normal[0, 0]), 0.0, 0.0, 0.0]
        self.scale = min(max(found[0], 1.0 / MOST_SCALE), MOST_SCALE)
        self._constant, self._slope, self._extra = found[1:]
