"""The walk over a trace's positions: choose, load, pay, advance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..caches import DEFAULT_CACHE_RULE
from ..errors import InvalidInputError
from ..files import Trace
from ..profiles import HardwareProfile
from ..schema import shown
from ..solution import node_time_at
from .policies import Choice, PassState, Policy, default_policies, make_policies
from .pool import Pool
from .result import ReplayResult
from .setting import ReplaySetting

#: Positions at the start of a prompt that are decoded plainly and not counted.
WARMUP = 12


def replay(
    trace: Trace,
    *,
    policies: Iterable[str | Policy] | None = None,
    profile: str | PathLike[str] | HardwareProfile = "pcie4",
    cache: float | int | str | Sequence[float | int | str] | None = None,
    objective: str = "ratio",
    expert_bytes: ArrayLike | None = None,
    layer_repeat: int | None = None,
    cache_policy: str = DEFAULT_CACHE_RULE,
    warmup: int = WARMUP,
    progress: Callable[[int, int], None] | None = None,
) -> list[ReplayResult]:
    """Replay recorded decoding under several policies and cache sizes, the cache in the loop.

    At every position the policy chooses a subtree of the recorded pool; the pass loads what its
    union lacks, which changes what later passes pay; and the walk goes on as many positions later
    as the recorded acceptance emits. Policies see the true routing.

    Parameters
    ----------
    trace : Trace
    policies : iterable of str or Policy, optional
        See :func:`make_policy`; default :func:`default_policies`.
    profile : str, path or HardwareProfile
        The machine: a shipped name, a JSON file or an object.
    cache : float, int or str, or a sequence of them, optional
        Cache sizes, see :func:`~specfit_opt.caches.slots_of`; default 12.5, 25 and 50 % of the
        experts. A profile whose experts are all resident takes none.
    objective : str
        ``"ratio"``, or ``"surplus"``: what the policies that maximise something maximise per pass,
        at the rate that the replay has had so far.
    expert_bytes : int or array_like of int, shape (L,), optional
        Bytes of one expert, per recorded layer; default the trace's, else the profile's.
    layer_repeat : int, optional
        Layers that each recorded one stands for; default the profile's. Every expert's bytes and
        time count this many times.
    cache_policy : str
        A name of :data:`~specfit_opt.caches.CACHE_RULES`. Such as know all passes beforehand
        (``belady``) serve fixed policies only: what others choose depends on what is resident, so
        there is nothing to know.
    warmup : int
        Positions at the start of each prompt that are decoded plainly and not counted.
    progress : callable, optional
        Called as ``progress(done, total)`` after every pass, in positions over all combinations.

    Returns
    -------
    list of ReplayResult
        By cache size, then by policy.

    Raises
    ------
    InvalidInputError
        If a name, a size or an option is not understood, ``expert_bytes`` is known from nowhere, a
        fixed policy asks for more than the trace's pools hold, or the cache policy does not serve a
        policy.

    Notes
    -----
    Time of a pass = ``fixed_time`` + ``draft_time`` per drafted level + ``node_time`` of the nodes
    verified + the experts loaded, and resident ones where the profile charges for them. A pass that
    reaches past the end of a prompt counts whole.

    Examples
    --------
    >>> from specfit_opt.data import example_trace
    >>> from specfit_opt.replay import replay
    >>> results = replay(
    ...     example_trace(), policies=["ar", "chain-2"], profile="pcie4", cache="50%",
    ...     expert_bytes=9_437_184, layer_repeat=6,
    ... )
    >>> [(r.policy, r.slots) for r in results]
    [('ar', 32), ('chain-2', 32)]
    """
    check_warmup(warmup)
    setting = ReplaySetting.of(
        trace,
        profile,
        cache=cache,
        expert_bytes=expert_bytes,
        layer_repeat=layer_repeat,
        cache_policy=cache_policy,
    )
    n_nodes = int(np.diff(trace.cycle_start).max())
    if policies is None:
        policies = default_policies(trace.max_depth, n_nodes)
    chosen = make_policies(policies, objective)
    for policy in chosen:
        policy.check(trace.max_depth, n_nodes)
    rule = setting.cache
    if rule is not None and rule.clairvoyant:
        for policy in chosen:
            if not policy.fixed:
                raise InvalidInputError(
                    f"cache policy {rule.name} must know all passes beforehand, but what policy "
                    f"{policy.name} chooses depends on the cache; replay fixed policies, such as "
                    "ar, chain-4 or eagle-8"
                )
    runs = [
        _Run(trace, policy.fresh(), setting, slots)
        for slots in setting.slots
        for policy in chosen
    ]
    done, total = 0, trace.n_cycles * len(runs)
    for first, end in trace.prompts:
        pools = _Pools(trace)
        for run in runs:
            run.start_prompt(pools, first, end, warmup)
            at = first
            while at < end:
                step = run.step(pools[at], counted=at - first >= warmup)
                done += min(step, end - at)
                at += step
                if progress is not None:
                    progress(done, total)
    return [run.result(setting.layer_repeat) for run in runs]


def check_warmup(warmup: int) -> None:
    """Check the number of positions that are decoded plainly.

    Raises
    ------
    InvalidInputError
        If it is no whole number of at least 0.
    """
    if warmup != int(warmup) or warmup < 0:
        raise InvalidInputError(f"warmup must be a number of positions >= 0, got {shown(warmup)}")


class _Pools(dict[int, Pool]):
    """The pools of a prompt by position, made at their first use."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __missing__(self, at: int) -> Pool:
        pool = self[at] = Pool.of(self._trace.cycle(at))
        return pool


class _Run:
    """One policy on one machine with one cache size: the state of a walk and its totals."""

    def __init__(
        self,
        trace: Trace,
        policy: Policy,
        setting: ReplaySetting,
        slots: int,
    ) -> None:
        self.trace = trace
        self.policy = policy
        self.machine = setting.machine
        self.cost = setting.cost
        self.setting = setting
        self.clairvoyant = setting.cache is not None and setting.cache.clairvoyant
        self.slots = slots
        self.layer_bytes = setting.layer_bytes
        self.layer_time = setting.cost.expert_time
        self.prompts = self.passes = self.tokens = self.nodes = self.levels = 0
        self.misses = self.hits = self.bytes = 0
        self.predicted = self.compute = self.drafting = self.transfer = 0.0

    def start_prompt(self, pools: _Pools, first: int, end: int, warmup: int) -> None:
        """Empty the cache."""
        self.cache = self.setting.new_cache(self.slots)
        self._counted_here = False
        if self.clairvoyant:
            self.cache.foresee(list(self._passes(pools, first, end, warmup)))

    @property
    def seconds(self) -> float:
        return self.compute + self.drafting + self.transfer

    def step(self, pool: Pool, counted: bool) -> int:
        """Run one pass at a position and return how many positions it advances."""
        if not counted:
            self._use(pool, pool.tree.parent < 0)
            return 1
        choice = self._choose(pool)
        self._charge(pool, choice)
        self.policy.observe(pool, choice)
        emitted = pool.emitted(choice.mask)
        self.cache.committed(emitted)
        self.tokens += emitted
        return emitted

    def _passes(
        self, pools: _Pools, first: int, end: int, warmup: int
    ) -> Iterator[NDArray[np.bool_]]:
        """Yield what each pass over a prompt will use; the policy is a fixed one."""
        at = first
        while at < end:
            pool = pools[at]
            plain = at - first < warmup
            mask = pool.tree.parent < 0 if plain else self._choose(pool).mask
            yield pool.used(mask)
            at += 1 if plain else pool.emitted(mask)

    def _choose(self, pool: Pool) -> Choice:
        rate = self.tokens / self.seconds if self.passes else None
        state = PassState(self.cache.resident, self.cost, self.machine.draft_time, rate)
        return self.policy.choose(pool, state)

    def _use(self, pool: Pool, mask: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[Any]]:
        """Run a pass over ``mask``; return what it used and, per layer, how many it missed."""
        used = pool.used(mask)
        return used, np.count_nonzero(self.cache.use(used), axis=1)

    def _charge(self, pool: Pool, choice: Choice) -> None:
        size = int(np.count_nonzero(choice.mask))
        node_time = node_time_at(self.cost, size)
        if not math.isfinite(node_time):
            raise InvalidInputError(
                f"policy {self.policy.name} verifies {size} nodes, which the node_time of profile "
                f"{self.machine.name} forbids"
            )
        used, missed = self._use(pool, choice.mask)
        misses = int(missed.sum())
        hits = int(np.count_nonzero(used)) - misses
        if not self._counted_here:
            self._counted_here = True
            self.prompts += 1
        self.passes += 1
        self.nodes += size
        self.levels += choice.levels
        self.misses += misses
        self.hits += hits
        self.bytes += round(float(missed @ self.layer_bytes))
        self.predicted += float(pool.tree.path_prob[choice.mask].sum())
        self.compute += self.cost.fixed_time + node_time
        self.drafting += self.machine.draft_time * choice.levels
        self.transfer += float(missed @ self.layer_time) + hits * self.cost.resident_time

    def result(self, layer_repeat: int) -> ReplayResult:
        """Return the totals."""
        return ReplayResult(
            trace=self.trace.name,
            policy=self.policy.name,
            objective=self.policy.objective,
            profile=self.machine.name,
            cache_policy=self.setting.cache_policy,
            slots=self.slots,
            n_experts=self.trace.n_experts,
            n_layers=self.trace.n_layers,
            layer_repeat=layer_repeat,
            prompts=self.prompts,
            passes=self.passes,
            tokens=self.tokens,
            predicted_tokens=self.predicted,
            nodes=self.nodes,
            levels=self.levels,
            misses=self.misses,
            hits=self.hits,
            bytes=self.bytes,
            seconds=self.seconds,
            compute_seconds=self.compute,
            draft_seconds=self.drafting,
            transfer_seconds=self.transfer,
        )
