"""From a drafter's probabilities to the target's acceptance, learned while decoding."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..checks import Real, Whole, checked
from ..errors import DrafterError, InvalidInputError
from ..schema import ListOf, Record

__all__ = ["AcceptanceCalibrator", "CalibrationState", "DepthState", "ReliabilityBin"]

#: Drafter probabilities and what siblings leave over are kept this far from 0.
_LEAST = 1e-6
#: Siblings may add up to this much above 1 by rounding.
_TOLERANCE = 1e-3
#: Logarithm that stands for a child that is not there: its weight is exactly 0.
_ABSENT = -1e9
_N_BINS = 10

#: (a, b) before anything was observed. EAGLE's probabilities are reported to be close to acceptance
#: (EAGLE-2, arXiv 2406.16858), which is b = 0; the drafters recorded here promise about half of it,
#: which is b = 1 and more (docs, reliability diagram).
COLD_START = (1.0, 0.5)
#: How far, as standard deviations of (a, b), all depths together may lie from the cold start.
_POOLED_SD = (0.5, 1.0)
#: How far one depth may lie from all depths together.
_DEPTH_SD = (0.2, 0.5)
#: Acceptance of an expanded node's children before anything was observed, and the number of trials
#: that this is worth; then the trials that the figure of all depths is worth at one depth.
_ACCEPTANCE, _POOLED_TRIALS, _DEPTH_TRIALS = 0.5, 4.0, 8.0
_SLOPES = (0.05, 4.0)
_INTERCEPTS = (-8.0, 8.0)
#: Trials of an earlier decode that are believed at most, at one depth.
_KEPT_TRIALS = 32
_DEEPEST = 64
#: Two numbers, of a and of b; and of a and a, a and b, b and b.
_Pair: TypeAlias = tuple[float, float]
_Information: TypeAlias = tuple[float, float, float]
#: Newton's method stops when twice what the log-posterior could still rise is below this.
_ENOUGH = 1e-3

#: What `AcceptanceCalibrator.to_state` gives; entry 0 of each list is of all depths together.
ACCEPTANCE_STATE = Record(
    {
        "a": ListOf(Real(*_SLOPES), 1, _DEEPEST + 1),
        "b": ListOf(Real(*_INTERCEPTS), 1, _DEEPEST + 1),
        "acceptance": ListOf(Real(0.0, 1.0), 1, _DEEPEST + 1),
        "trials": ListOf(Real(0.0, _KEPT_TRIALS), 1, _DEEPEST + 1),
    }
)


@dataclass(frozen=True)
class DepthState:
    """What is known of the children at one depth.

    Attributes
    ----------
    depth : int
        Edges from the root to the children.
    trials, hits : int
        Accepted nodes with drafted children, and how many of them had the target's token among
        these, over the window.
    acceptance : float
        Smoothed probability of the latter.
    a, b : float
        Parameters in use at this depth.
    """

    depth: int
    trials: int
    hits: int
    acceptance: float
    a: float
    b: float


@dataclass(frozen=True)
class ReliabilityBin:
    """Children whose calibrated probability, given their parent, lay in one interval.

    Attributes
    ----------
    low, high : float
    trials : int
        Children of accepted nodes, since the beginning.
    predicted, realised : float or None
        Mean of the predictions, made before the outcome was known, and share that was accepted.
        None without trials.
    """

    low: float
    high: float
    trials: int
    predicted: float | None
    realised: float | None


@dataclass(frozen=True)
class CalibrationState:
    """A calibrator's parameters and its record so far.

    Attributes
    ----------
    a, b : float
        Parameters of all depths together.
    depths : tuple of DepthState
        From depth 1 on.
    bins : tuple of ReliabilityBin
    """

    a: float
    b: float
    depths: tuple[DepthState, ...]
    bins: tuple[ReliabilityBin, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain Python values, ready for JSON.

        Returns
        -------
        dict
        """
        return dataclasses.asdict(self)


class AcceptanceCalibrator:
    """Estimates how likely the target accepts drafted children, and learns from what it did.

    Among the children of an accepted node, with the drafter's probabilities ``q_1 .. q_c`` and
    ``r = 1 - q_1 - .. - q_c`` left for all other tokens, child i is accepted with probability ::

        p_i = q_i^a / (q_1^a + .. + q_c^a + exp(-b) r^a)

    which for a single child is ``sigmoid(a logit(q) + b)``. The p_i never add up to more than 1;
    ``a = 1, b = 0`` trusts the drafter. Each depth has its own (a, b): the most probable ones given
    the last ``window`` outcomes at that depth, and, where these are few, close to those of all
    depths together.

    Parameters
    ----------
    cold_start : tuple of float
        (a, b) before anything was observed. The default takes the drafter for a little too modest.
    window : int
        Accepted nodes remembered per depth; twice as many for all depths together.

    Raises
    ------
    InvalidInputError
        If an argument is out of range.

    Notes
    -----
    A trial is an accepted node whose children were drafted. What the target put after it is known
    whether or not the children were verified, so every drafted child of an accepted node counts,
    and what a policy chooses to verify cannot bias the estimate.

    The likelihood is that of a multinomial logit with an outside option (McFadden 1974), concave in
    (a, b); the priors are normal, ``COLD_START`` with deviations (0.5, 1) for all depths together,
    and these with deviations (0.2, 0.5) for one depth. Newton's method, warm-started, refits each
    time an eighth of the trials remembered are new (at least 8), O(window x children) for all
    depths together and for each depth with new trials. Between refits :meth:`observe` takes
    O(tree), and :meth:`path_prob` O(level).

    Probabilities of 0 and 1 are taken for 1e-6 and for leaving 1e-6.

    References
    ----------
    D. McFadden. Conditional logit analysis of qualitative choice behavior. In *Frontiers in
    Econometrics*, 1974.

    Examples
    --------
    >>> calibrator = AcceptanceCalibrator()
    >>> calibrator.path_prob([0, 0], [0.6, 0.2], [1.0], depth=1).round(3).tolist()
    [0.651, 0.217]
    >>> tree = dict(parent=[-1, 0, 0], token=[7, 8, 9], prob=[1.0, 0.6, 0.2])
    >>> for _ in range(40):  # the target always wants token 8
    ...     calibrator.observe(**tree, accepted=[0, 1], committed=[8, 3])
    >>> calibrator.path_prob([0, 0], [0.6, 0.2], [1.0], depth=1).round(2).tolist()
    [0.91, 0.07]
    """

    def __init__(
        self, *, cold_start: tuple[float, float] = COLD_START, window: int = 256
    ) -> None:
        a, b = (float(value) for value in cold_start)
        if not (_SLOPES[0] <= a <= _SLOPES[1] and _INTERCEPTS[0] <= b <= _INTERCEPTS[1]):
            raise InvalidInputError(
                f"cold_start (a, b) = ({a}, {b}) is out of range; a must be in {list(_SLOPES)}, "
                f"b in {list(_INTERCEPTS)}"
            )
        self._cold = np.array([a, b])
        self._window: int = Whole(1)(window, "window")
        self.forget()

    def forget(self) -> None:
        """Return to the cold start."""
        self._kept = np.zeros((0, 2)), np.zeros((0, 2))  # see from_state
        self._pooled = self._cold
        self._params: list[NDArray[np.float64]] = []
        self._all = _Groups(2 * self._window)
        self._groups: list[_Groups] = []
        self._acceptance: tuple[float, ...] | None = None
        self._bin_trials = np.zeros(_N_BINS, dtype=np.int64)
        self._bin_predicted = np.zeros(_N_BINS)
        self._bin_hits = np.zeros(_N_BINS, dtype=np.int64)

    @property
    def acceptance(self) -> tuple[float, ...]:
        """Probability that some child of an accepted, expanded node is accepted.

        Indexed by the child's depth; entry 0 is not used and the last one serves deeper children.
        """
        if self._acceptance is None:
            before = self._before(0, _ACCEPTANCE, _POOLED_TRIALS)
            pooled = _smoothed(self._all.hits, self._all.size, *before)
            depths = [
                _smoothed(g.hits, g.size, *self._before(d, pooled, _DEPTH_TRIALS))
                for d, g in enumerate(self._groups, 1)
            ]
            self._acceptance = (pooled, *depths, pooled)
        return self._acceptance

    def parameters(self, depth: int) -> tuple[float, float]:
        """Return (a, b) of the children at ``depth``.

        Parameters
        ----------
        depth : int
            At least 1.
        """
        a, b = self._of_depth(depth)
        return float(a), float(b)

    def path_prob(
        self,
        parent: Sequence[int] | NDArray[np.integer],
        prob: Sequence[float] | NDArray[np.floating],
        above: Sequence[float] | NDArray[np.floating],
        depth: int,
    ) -> NDArray[np.float64]:
        """Return the calibrated path probabilities of a new level.

        Parameters
        ----------
        parent : sequence of int, shape (m,)
            Tree ids of the new nodes' parents. All children of a parent come in one level.
        prob : sequence of float, shape (m,)
            The drafter's probability of each new node given its parent.
        above : sequence of float, shape (n,)
            Calibrated path probabilities of the tree so far.
        depth : int
            Depth of the new nodes, at least 1.

        Returns
        -------
        ndarray of float64, shape (m,)
            Siblings add up to at most their parent's.

        Raises
        ------
        DrafterError
            If a probability is NaN or outside [0, 1], or siblings add up to more than 1.
        """
        parents = np.asarray(parent, dtype=np.int64)
        q = _checked_prob(parents, np.asarray(prob, dtype=np.float64), f"level {depth}")
        conditional = _conditional(parents, q, *self._of_depth(depth))
        path: NDArray[np.float64] = np.asarray(above, dtype=np.float64)[parents] * conditional
        return path

    def observe(
        self,
        parent: Sequence[int] | NDArray[np.integer],
        token: Sequence[int] | NDArray[np.integer],
        prob: Sequence[float] | NDArray[np.floating],
        accepted: Sequence[int] | NDArray[np.integer],
        committed: Sequence[int] | NDArray[np.integer],
    ) -> None:
        """Learn from one cycle.

        Parameters
        ----------
        parent, token : sequence of int, shape (n,)
            The whole drafted tree, the root included (parent -1).
        prob : sequence of float, shape (n,)
            The drafter's probability of each node given its parent; the root's is not used.
        accepted : sequence of int
            Node ids along the accepted path, the root first.
        committed : sequence of int
            The target's token after each accepted node. Where it is shorter than ``accepted``, as
            when the text ended, the nodes beyond it teach nothing.

        Raises
        ------
        DrafterError
            As for :meth:`path_prob`.
        InvalidInputError
            If ``accepted`` is no path of the tree that begins at its root.
        """
        parents = np.asarray(parent, dtype=np.int64)
        tokens = np.asarray(token, dtype=np.int64)
        probs = np.asarray(prob, dtype=np.float64)
        before = -1
        path = list(zip(accepted, committed, strict=False))
        for node, _ in path:
            if not 0 <= node < len(parents) or parents[node] != before:
                raise InvalidInputError(
                    f"accepted holds node {node}, which does not follow node {before}; give the "
                    "path from the root"
                )
            before = int(node)
        if path:
            self._learn(path, parents, tokens, probs)
        if self._all.new >= max(8, self._all.size // 8):
            self._refit()

    def _learn(
        self,
        path: list[tuple[Any, Any]],
        parents: NDArray[np.int64],
        tokens: NDArray[np.int64],
        probs: NDArray[np.float64],
    ) -> None:
        """Take in the children of every node of a path from the root, with the token after it."""
        step_of = np.full(len(parents) + 1, -1, dtype=np.int64)  # the root's parent is the last
        step_of[[node for node, _ in path]] = np.arange(len(path))
        children = np.flatnonzero(step_of[parents] >= 0)
        if not children.size:
            return
        step = step_of[parents[children]]
        q = probs[children]
        _checked_prob(parents[children], q, "the children of the accepted nodes")
        hit = tokens[children] == np.array([int(token) for _, token in path])[step]
        a, b = np.array([self._of_depth(depth) for depth in range(1, len(path) + 1)]).T
        self._score(_conditional(step, q, a, b), hit)
        log_q = np.log(np.maximum(q, _LEAST))
        log_rest = np.log(np.maximum(1.0 - np.bincount(step, q), _LEAST))
        # Children of one node need not be neighbours in a tree of any order.
        for i in np.unique(step).tolist():
            mine = step == i
            hits = np.flatnonzero(hit[mine])
            choice = int(hits[0]) if hits.size else -1
            while len(self._groups) <= i:
                self._groups.append(_Groups(self._window))
                self._params.append(self._pooled)
            for groups in (self._all, self._groups[i]):
                groups.add(log_q[mine], float(log_rest[i]), choice)
        self._acceptance = None

    def state(self) -> CalibrationState:
        """Return the parameters, and predicted against realised acceptance so far."""
        acceptance = self.acceptance
        depths = tuple(
            DepthState(
                depth=d,
                trials=g.size,
                hits=g.hits,
                acceptance=acceptance[d],
                a=float(self._params[d - 1][0]),
                b=float(self._params[d - 1][1]),
            )
            for d, g in enumerate(self._groups, 1)
        )
        bins = tuple(
            ReliabilityBin(
                low=i / _N_BINS,
                high=(i + 1) / _N_BINS,
                trials=int(n),
                predicted=float(self._bin_predicted[i]) / n if n else None,
                realised=int(self._bin_hits[i]) / n if n else None,
            )
            for i, n in enumerate(self._bin_trials.tolist())
        )
        return CalibrationState(float(self._pooled[0]), float(self._pooled[1]), depths, bins)

    def to_state(self) -> dict[str, Any]:
        """Return what a later decode of the same model and drafter may begin with.

        Returns
        -------
        dict
            Plain values: (a, b) and acceptance, of all depths together and of each.
        """
        acceptance = self.acceptance
        seen = [self._believed(d) for d in range(len(self._params) + 1)]
        return {
            "a": [float(self._pooled[0]), *(float(p[0]) for p in self._params)][: _DEEPEST + 1],
            "b": [float(self._pooled[1]), *(float(p[1]) for p in self._params)][: _DEEPEST + 1],
            "acceptance": list(acceptance[:-1])[: _DEEPEST + 1],
            "trials": seen[: _DEEPEST + 1],
        }

    def from_state(self, state: Mapping[str, Any]) -> None:
        """Begin with what :meth:`to_state` gave in place of the cold start.

        The parameters become those that estimates are held to; the acceptance of a depth counts as
        much as it was observed, up to 32 trials.

        Raises
        ------
        InvalidInputError
            If it is none; nothing is changed then.
        """
        kept = checked(state, ACCEPTANCE_STATE, "acceptance")
        n = len(kept["trials"])
        if any(len(values) != n for values in kept.values()):
            raise InvalidInputError("acceptance holds lists of different lengths")
        self.forget()
        params = np.array([kept["a"], kept["b"]]).T
        self._pooled, self._params = params[0], list(params[1:])
        self._kept = params, np.array([kept["acceptance"], kept["trials"]]).T
        self._groups = [_Groups(self._window) for _ in self._params]

    def _believed(self, depth: int) -> float:
        """Return the trials that the acceptance of a depth stands on; 0: of all together."""
        own = self._groups[depth - 1].size if depth else self._all.size
        before = self._kept[1][depth, 1] if depth < len(self._kept[1]) else 0.0
        return float(min(own + before, _KEPT_TRIALS))

    def _before(self, depth: int, mean: float, weight: float) -> tuple[float, float]:
        """Return acceptance before anything was observed, and the trials that it is worth.

        What is kept holds the first guess already.
        """
        if depth >= len(self._kept[1]):
            return mean, weight
        acceptance, trials = self._kept[1][depth].tolist()
        return acceptance, trials + weight

    def _of_depth(self, depth: int) -> NDArray[np.float64]:
        if depth < 1:
            raise InvalidInputError(f"children are at depth 1 or more, got {depth}")
        return self._params[depth - 1] if depth <= len(self._params) else self._pooled

    def _score(self, predicted: NDArray[np.float64], hit: NDArray[np.bool_]) -> None:
        where = np.minimum((predicted * _N_BINS).astype(np.int64), _N_BINS - 1)
        self._bin_trials += np.bincount(where, minlength=_N_BINS)
        self._bin_predicted += np.bincount(where, predicted, minlength=_N_BINS)
        self._bin_hits += np.bincount(where[hit], minlength=_N_BINS)

    def _refit(self) -> None:
        kept = self._kept[0]
        cold = kept[0] if len(kept) else self._cold
        self._pooled = _fit(self._all, self._pooled, cold, _POOLED_SD)
        for i, group in enumerate(self._groups, 1):
            if group.new:
                held_to = kept[i] if i < len(kept) else self._pooled
                self._params[i - 1] = _fit(group, self._params[i - 1], held_to, _DEPTH_SD)


class _Groups:
    """The last outcomes: an accepted node's children and which of them the target took.

    Attributes
    ----------
    size : int
        Outcomes remembered.
    new : int
        Outcomes since the last fit.
    hits : int
        Remembered outcomes where one of the children was accepted.
    """

    def __init__(self, window: int) -> None:
        self.size = self.new = self.hits = 0
        self._at = 0
        self._log_q = np.full((window, 1), _ABSENT)
        self._log_rest = np.zeros(window)
        self._choice = np.full(window, -1, dtype=np.int64)

    def add(self, log_q: NDArray[np.float64], log_rest: float, choice: int) -> None:
        """Remember children and the accepted one (-1: none); the oldest outcome may go."""
        rows, columns = self._log_q.shape
        if len(log_q) > columns:
            more = np.full((rows, len(log_q) - columns), _ABSENT)
            self._log_q = np.concatenate([self._log_q, more], axis=1)
        self._log_q[self._at] = _ABSENT
        self._log_q[self._at, : len(log_q)] = log_q
        self._log_rest[self._at] = log_rest
        self.hits += int(choice >= 0) - int(self._choice[self._at] >= 0)
        self._choice[self._at] = choice
        self._at = (self._at + 1) % rows
        self.size = min(self.size + 1, rows)
        self.new += 1

    def log_likelihood(self, a: float, b: float) -> tuple[float, _Pair, _Information]:
        """Return the log-likelihood of (a, b), its gradient and minus its Hessian."""
        n = self.size
        x = np.concatenate([self._log_rest[:n, None], self._log_q[:n]], axis=1)
        z = a * x
        z[:, 1:] += b
        # No term overflows: x is at most 0, and b has a limit. The rest is never absent.
        p = np.exp(z)
        total = p.sum(axis=1)
        p /= total[:, None]
        chosen = self._choice[:n] + 1
        at = np.arange(0, x.size, x.shape[1]) + chosen
        value = float(z.take(at).sum() - np.log(total).sum())
        px = p * x
        mean = px.sum(axis=1)
        none = p[:, 0]  # (x, any child) are the two features
        some = n - float(none.sum())
        gradient = float(x.take(at).sum() - mean.sum()), float(np.count_nonzero(chosen)) - some
        cross = float(none @ (mean - x[:, 0]))
        spread = float(px.ravel() @ x.ravel() - mean @ mean)
        return value, gradient, (spread, cross, float(none.sum() - none @ none))


def _conditional(
    parent: NDArray[np.int64],
    q: NDArray[np.float64],
    a: float | NDArray[np.float64],
    b: float | NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the probability of each child, given its parent.

    ``a`` and ``b`` are those of all parents, or indexed by parent.
    """
    of_child = a if np.ndim(a) == 0 else np.asarray(a)[parent]
    weight = np.maximum(q, _LEAST) ** of_child
    left = np.maximum(1.0 - np.bincount(parent, q), _LEAST)
    of_parent = a if np.ndim(a) == 0 else np.asarray(a)[: len(left)]
    odds = np.exp(-b if np.ndim(b) == 0 else -np.asarray(b)[: len(left)])
    rest = left**of_parent * odds
    p: NDArray[np.float64] = weight / (np.bincount(parent, weight) + rest)[parent]
    return p


def _fit(
    group: _Groups,
    start: NDArray[np.float64],
    prior: NDArray[np.float64],
    deviation: tuple[float, float],
) -> NDArray[np.float64]:
    """Return the most probable (a, b) by Newton's method with step halving."""
    group.new = 0
    prior_a, prior_b = prior.tolist()
    hold_a, hold_b = (1.0 / sd**2 for sd in deviation)

    def posterior(a: float, b: float) -> tuple[float, _Pair, _Information]:
        value, (slope_a, slope_b), (aa, ab, bb) = group.log_likelihood(a, b)
        off_a, off_b = a - prior_a, b - prior_b
        value -= 0.5 * (hold_a * off_a * off_a + hold_b * off_b * off_b)
        gradient = slope_a - hold_a * off_a, slope_b - hold_b * off_b
        return value, gradient, (aa + hold_a, ab, bb + hold_b)

    # In plain floats: there are two parameters.
    a, b = start.tolist()
    value, gradient, information = posterior(a, b)
    for _ in range(20):
        (slope_a, slope_b), (aa, ab, bb) = gradient, information
        determinant = aa * bb - ab * ab
        step_a = (bb * slope_a - ab * slope_b) / determinant
        step_b = (aa * slope_b - ab * slope_a) / determinant
        if slope_a * step_a + slope_b * step_b < _ENOUGH:
            break
        for _ in range(10):
            trial = _within(a + step_a, _SLOPES), _within(b + step_b, _INTERCEPTS)
            found = posterior(*trial)
            if found[0] > value:
                break
            step_a, step_b = step_a / 2.0, step_b / 2.0
        else:
            break
        (a, b), (value, gradient, information) = trial, found
    return np.array([a, b])


def _within(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])


def _smoothed(hits: int, trials: int, mean: float, weight: float) -> float:
    return (hits + weight * mean) / (trials + weight)


def _checked_prob(
    parent: NDArray[np.int64], prob: NDArray[np.float64], where: str
) -> NDArray[np.float64]:
    if prob.shape != parent.shape or prob.ndim != 1:
        raise DrafterError(
            f"{where}: {len(parent)} parents but probabilities of shape {prob.shape}; a drafter "
            "gives one probability per node"
        )
    if not ((prob >= 0.0) & (prob <= 1.0 + _TOLERANCE)).all():
        bad = int(np.flatnonzero(~((prob >= 0.0) & (prob <= 1.0 + _TOLERANCE)))[0])
        raise DrafterError(
            f"{where}: the drafter's probability of candidate {bad} is {prob[bad]}; it must be in "
            "[0, 1]"
        )
    total = np.bincount(parent, prob) if len(parent) else np.zeros(1)
    if total.max() > 1.0 + _TOLERANCE:
        raise DrafterError(
            f"{where}: the drafter's probabilities of the children of node {int(total.argmax())} "
            f"add up to {total.max():.6g}; siblings are different tokens, so they share 1"
        )
    return prob
