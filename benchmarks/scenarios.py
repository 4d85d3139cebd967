"""Does choosing by scenarios of uncertain routing beat choosing by the most likely experts?

    python -m benchmarks.scenarios [--trace FILE] [--write]

Every policy drafts a fixed number of levels and chooses exactly; they differ in what they believe
of the experts. The recorded routing is what is then loaded, into an LRU cache that the next pass
finds. The beliefs are those of a table of token frequencies, fitted on the other half of the
prompts. Optional material beside the checkout; ``--write`` replaces the file that the documentation
shows, whole or not at all.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specfit_opt import (
    CostModel,
    DraftTree,
    ExpertRouting,
    Instance,
    Trace,
    load_trace,
    sample_scenarios,
    solve_instance,
)
from specfit_opt.caches import CACHE_RULES, SimulatedCache, slots_of
from specfit_opt.data import EXAMPLE_EXPERT_BYTES, EXAMPLE_LAYER_REPEAT
from specfit_opt.files.atomic import atomic_write
from specfit_opt.profiles import load_profile
from specfit_opt.replay import WARMUP
from specfit_opt.solution import evaluate, node_time_at

from .problems import qwen3
from .replay_table import aligned
from .timing import median_time

ROOT = Path(__file__).resolve().parents[1]
TRACE = ROOT.parent / "shared" / "traces" / "small" / "qwen3moe-8x64-draft-lm.npz"
OUTPUT = ROOT / "benchmarks" / "results" / "scenarios.txt"
PROFILES = ("pcie4", "nvme")
CACHES = ("12.5%", "25%", "50%")
LEVELS = (3, 5)
COUNTS = (4, 8, 16, 32)

#: Observations that the mean over all tokens weighs as much as, in the table of frequencies.
PRIOR = 1.0

RESAMPLES = 2000

#: Positions from one comparison beside a frozen cache to the next.
EVERY = 3

LEGEND = f"""\
Beliefs from token frequencies of the other half of the prompts; exact choice of the ratio after
all of 3 or 5 levels were drafted; recorded routing is loaded, LRU cache in the loop. Each recorded
layer stands for 6, each expert has the bytes of one of Qwen3-30B-A3B.

likeliest    the most likely set of k experts; at 1.5 x the price: what dearer loads alone do;
             2k at mean price: twice as many, each at its mean probability over the nodes
scenarios    from sample_scenarios, with `shared` as given: 1 comonotone, 0 independent nodes
corrected    loads at the running ratio of realised to predicted misses

speed        tokens/s over that of the likeliest experts, geometric mean over cells, with the 95 %
             interval of {RESAMPLES} resamples of the prompts; least and most by cell; by levels
cycle        mean predicted tokens/s at true routing over the best choice's, beside what plain
             decoding leaves in the cache, every {EVERY} positions
misses       realised over predicted
solve, make  microseconds on average: of a solve, with its ratio to that of the likeliest experts,
             and of making and packing the experts
"""


@dataclass(frozen=True, eq=False)
class Belief:
    """What a policy takes the experts of a pool to be.

    Attributes
    ----------
    routing : ExpertRouting
    price : ndarray of float64, shape (L, E), or None
        Factors on the times of experts.
    seconds : float
        What it took to make it.
    """

    routing: ExpertRouting
    price: NDArray[np.float64] | None
    seconds: float


@dataclass(frozen=True)
class Variant:
    """A way to turn probabilities, shape (n, L, E), into a belief.

    Attributes
    ----------
    name : str
    make : callable
        ``make(probability, true, seed) -> (routing, price factors or None)``.
    corrected : bool
        Whether loads are priced by the running ratio of realised to predicted misses.
    """

    name: str
    make: Callable[..., tuple[ExpertRouting, NDArray[np.float64] | None]]
    corrected: bool = False


def _most_likely(probability: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    return np.argsort(-probability, axis=2, kind="stable")[:, :, :k]


def _true(probability: Any, true: NDArray[np.integer], seed: int) -> Any:
    return ExpertRouting(true, probability.shape[2]), None


def _likely(probability: Any, true: NDArray[np.integer], seed: int) -> Any:
    k = true.shape[2]
    return ExpertRouting(_most_likely(probability, k), probability.shape[2]), None


def _dearer(probability: Any, true: NDArray[np.integer], seed: int) -> Any:
    return _likely(probability, true, seed)[0], np.full(probability.shape[1:], 1.5)


def _mean_price(probability: Any, true: NDArray[np.integer], seed: int) -> Any:
    ids = _most_likely(probability, 2 * true.shape[2])
    used = np.zeros(probability.shape, dtype=np.bool_)
    np.put_along_axis(used, ids, True, axis=2)
    price = (probability * used).sum(axis=0) / np.maximum(used.sum(axis=0), 1)
    return ExpertRouting(ids, probability.shape[2]), price


def _scenarios(probability: Any, true: Any, seed: int, *, count: int, shared: float) -> Any:
    ids = sample_scenarios(probability, true.shape[2], count, seed=seed, shared=shared)
    return ExpertRouting.from_scenarios(ids, probability.shape[2]), None


SHARED = (1.0, 0.7, 0.0)

VARIANTS = (
    Variant("likeliest experts", _likely),
    Variant("likeliest at 1.5 x the price", _dearer),
    Variant("likeliest 2k at mean price", _mean_price),
    *(
        Variant(f"{m} scenarios, {shared:g}", partial(_scenarios, count=m, shared=shared))
        for shared in SHARED
        for m in COUNTS
    ),
    Variant("corrected: likeliest", _likely, corrected=True),
    *(
        Variant(
            f"corrected: 8 scenarios, {shared:g}",
            partial(_scenarios, count=8, shared=shared),
            corrected=True,
        )
        for shared in SHARED
    ),
    Variant("true routing", _true),
)
BASE, TRUE = 0, len(VARIANTS) - 1


@dataclass(eq=False)
class Totals:
    """Of one variant in one cell."""

    tokens: NDArray[np.float64]  # by prompt
    seconds: NDArray[np.float64]
    passes: int = 0
    predicted: float = 0.0  # misses
    realised: float = 0.0
    solving: float = 0.0  # seconds
    making: float = 0.0
    shares: list[float] = field(default_factory=list)  # of the optimum, cycle by cycle


Cell = tuple[int, str, str]
_CELL_TITLES = ("levels", "machine", "cache")


class Table:
    """Token frequencies of one half of the prompts."""

    def __init__(self, trace: Trace, prompts: NDArray[np.bool_]) -> None:
        own = prompts[np.repeat(trace.prompt, np.diff(trace.cycle_start))]
        self._token, which = np.unique(trace.token[own], return_inverse=True)
        used = np.zeros((int(own.sum()), trace.n_layers, trace.n_experts), dtype=np.float32)
        np.put_along_axis(used, trace.experts[own].astype(np.int64), 1.0, axis=2)
        seen = np.bincount(which)
        counts = np.zeros((len(self._token), *used.shape[1:]))
        np.add.at(counts, which, used)
        self._mean = counts.sum(axis=0) / seen.sum()
        self._share = (counts + PRIOR * self._mean) / (seen + PRIOR)[:, None, None]

    def probabilities(self, token: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the probability of every expert for each token, shape (n, L, E)."""
        at = np.minimum(np.searchsorted(self._token, token), len(self._token) - 1)
        known = self._token[at] == token
        found: NDArray[np.float64] = np.where(known[:, None, None], self._share[at], self._mean)
        return found


@dataclass(eq=False)
class Position:
    """The pool of one position, down to some depth, and what the variants believe of it."""

    tree: DraftTree
    true: ExpertRouting
    accepted: NDArray[np.bool_]
    probability: NDArray[np.float64]
    seed: int
    beliefs: dict[int, Belief] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace, index: int, levels: int, table: Table) -> Position:
        cycle = trace.cycle(index)
        kept = cycle.tree.depth <= levels
        n = int(kept.sum())
        if not kept[:n].all():
            raise ValueError(f"cycle {index} does not come level by level")
        return cls(
            DraftTree(cycle.tree.parent[:n], cycle.tree.path_prob[:n]),
            ExpertRouting(cycle.experts[:n], trace.n_experts),
            cycle.accepted[:n],
            table.probabilities(cycle.token[:n]),
            index,
        )

    def belief(self, variant: int) -> Belief:
        found = self.beliefs.get(variant)
        if found is None:
            begin = time.perf_counter()
            made = VARIANTS[variant].make(self.probability, self.true.experts, self.seed)
            found = self.beliefs[variant] = Belief(*made, time.perf_counter() - begin)
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--write", action="store_true", help=f"write {OUTPUT.name}")
    options = parser.parse_args()
    if not options.trace.exists():
        print(f"no trace at {options.trace}; name one with --trace", file=sys.stderr)
        return 2
    trace = load_trace(options.trace)
    text = "\n".join(
        ["$ python -m benchmarks.scenarios --write", "", *report(trace, run(trace)), "", *large()]
    )
    if options.write:
        with atomic_write(OUTPUT, "w") as handle:
            handle.write(text + "\n")
    print(text)
    return 0


def run(trace: Trace) -> dict[Cell, list[Totals]]:
    """Walk every prompt in every cell under every variant; say on stderr how far it is."""
    n_prompts = len(trace.prompts)
    cells = [(lv, p, c) for lv in LEVELS for p in PROFILES for c in CACHES]
    results = {
        cell: [Totals(np.zeros(n_prompts), np.zeros(n_prompts)) for _ in VARIANTS] for cell in cells
    }
    half = np.arange(n_prompts) < n_prompts // 2
    tables = [Table(trace, half), Table(trace, ~half)]
    begin = time.monotonic()
    for prompt, (first, end) in enumerate(trace.prompts):
        table = tables[int(half[prompt])]  # of the other half
        for levels in LEVELS:
            pools = [Position.of(trace, i, levels, table) for i in range(first, end)]
            for cell in cells:
                if cell[0] == levels:
                    machine = Machine(trace, *cell)
                    for variant, totals in enumerate(results[cell]):
                        machine.walk(pools, variant, totals, prompt)
                    machine.compare(pools, results[cell])
        took = time.monotonic() - begin
        print(f"{prompt + 1} of {n_prompts} prompts; {took:.0f} s so far", file=sys.stderr)
    return results


class Machine:
    """One machine with one cache size."""

    def __init__(self, trace: Trace, levels: int, profile: str, cache: str) -> None:
        machine = load_profile(profile)
        shape = trace.n_layers, trace.n_experts
        cost = machine.cost_model(*shape, EXAMPLE_EXPERT_BYTES, layer_repeat=EXAMPLE_LAYER_REPEAT)
        self.cost = cost.with_fixed_time(cost.fixed_time + levels * machine.draft_time)
        self.time = cost.expert_table(*shape)
        layer_bytes = np.full(trace.n_layers, float(EXAMPLE_EXPERT_BYTES))
        slots = slots_of(cache, trace.n_experts, layer_bytes, EXAMPLE_LAYER_REPEAT)
        self.new_cache = partial(SimulatedCache, CACHE_RULES["lru"], slots, *shape)

    def choose(
        self, pool: Position, variant: int, resident: NDArray[np.bool_], totals: Totals
    ) -> NDArray[np.bool_]:
        """Return what the variant chooses, at the prices that it believes in."""
        belief = pool.belief(variant)
        cost, factor = self.cost, belief.price
        if VARIANTS[variant].corrected and totals.predicted > 0.0:
            factor = np.full_like(self.time, totals.realised / totals.predicted)
        if factor is not None:
            cost = CostModel(cost.fixed_time, cost.node_time, self.time * factor)
        instance = Instance(pool.tree, belief.routing.with_resident(resident), cost)
        begin = time.perf_counter()
        solution = solve_instance(instance)
        totals.solving += time.perf_counter() - begin
        totals.making += belief.seconds
        loaded = solution.experts_loaded.sum()
        if belief.price is not None:
            new = belief.routing.union(solution.mask) & ~resident
            loaded = float(belief.price[new].sum())
        totals.predicted += float(loaded)
        totals.realised += int((pool.true.union(solution.mask) & ~resident).sum())
        totals.passes += 1
        return solution.mask

    def walk(self, pools: Sequence[Position], variant: int, totals: Totals, prompt: int) -> None:
        """Decode a prompt with the cache in the loop."""
        cache, at = self.new_cache(), 0
        while at < len(pools):
            pool = pools[at]
            if at < WARMUP:
                cache.use(pool.true.union(pool.tree.parent < 0))
                at += 1
                continue
            mask = self.choose(pool, variant, cache.resident, totals)
            missed = cache.use(pool.true.union(mask))
            compute = self.cost.fixed_time + node_time_at(self.cost, int(mask.sum()))
            emitted = int((mask & pool.accepted).sum())
            totals.tokens[prompt] += emitted
            totals.seconds[prompt] += compute + float(self.time[missed].sum())
            at += emitted

    def compare(self, pools: Sequence[Position], results: Sequence[Totals]) -> None:
        """Let all variants choose, now and then, beside what plain decoding leaves in the cache."""
        cache = self.new_cache()
        for at, pool in enumerate(pools):
            if at >= WARMUP and at % EVERY == 0:
                true = pool.true.with_resident(cache.resident)
                reached = []
                for variant, totals in enumerate(results):
                    counted = totals.predicted, totals.realised, totals.passes
                    mask = self.choose(pool, variant, cache.resident, totals)
                    totals.predicted, totals.realised, totals.passes = counted
                    reached.append(evaluate(pool.tree, true, self.cost, mask).throughput)
                for totals, value in zip(results, reached, strict=True):
                    totals.shares.append(value / reached[TRUE])
            cache.use(pool.true.union(pool.tree.parent < 0))


def report(trace: Trace, results: dict[Cell, list[Totals]]) -> Iterator[str]:
    """Say what came out."""
    positions = trace.n_cycles - WARMUP * len(trace.prompts)
    yield f"{trace.name}: {len(trace.prompts)} prompts, {positions} counted positions."
    yield LEGEND
    yield aligned(_summary(results))
    yield ""
    yield "tokens/s by cell"
    yield ""
    yield aligned(_cells(results))


def _summary(results: dict[Cell, list[Totals]]) -> list[list[str]]:
    title = "beliefs|speed|95 % interval|least|most|3 levels|5 levels|cycle|misses|solve|ratio"
    rows = [[*title.split("|"), "make"]]
    rng = np.random.default_rng(0)
    n_prompts = len(next(iter(results.values()))[0].tokens)
    draws = rng.multinomial(n_prompts, np.full(n_prompts, 1.0 / n_prompts), RESAMPLES)
    base = _log_speeds(results, BASE, draws)
    for variant, entry in enumerate(VARIANTS):
        gain = _log_speeds(results, variant, draws) - base
        low, high = np.exp(np.quantile(gain[1:].mean(axis=1), [0.025, 0.975]))
        own = [totals[variant] for totals in results.values()]
        solve = _mean_solve(own)
        by_levels = [
            math.exp(gain[0, [cell[0] == levels for cell in results]].mean()) for levels in LEVELS
        ]
        rows.append(
            [
                entry.name,
                f"{math.exp(gain[0].mean()):.3f}",
                f"{low:.3f}-{high:.3f}",
                f"{math.exp(gain[0].min()):.3f}",
                f"{math.exp(gain[0].max()):.3f}",
                *(f"{value:.3f}" for value in by_levels),
                f"{np.mean([s for t in own for s in t.shares]):.3f}",
                f"{sum(t.realised for t in own) / sum(t.predicted for t in own):.2f}",
                f"{1e6 * solve:.0f}",
                f"{solve / _mean_solve([totals[BASE] for totals in results.values()]):.1f}",
                f"{1e6 * sum(t.making for t in own) / _calls(own):.0f}",
            ]
        )
    return rows


def _log_speeds(
    results: dict[Cell, list[Totals]], variant: int, draws: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return log tokens/s by resample (the first row: all prompts once) and cell."""
    draws = np.vstack([np.ones((1, draws.shape[1]), dtype=draws.dtype), draws])
    speeds = [
        draws @ totals[variant].tokens / (draws @ totals[variant].seconds)
        for totals in results.values()
    ]
    return np.log(np.stack(speeds, axis=1))


def _calls(own: Sequence[Totals]) -> int:
    return sum(t.passes + len(t.shares) for t in own)


def _mean_solve(own: Sequence[Totals]) -> float:
    return sum(t.solving for t in own) / _calls(own)


def _cells(results: dict[Cell, list[Totals]]) -> list[list[str]]:
    # Titles in three rows, so that the table stays narrow.
    rows = [[title, *(str(cell[i]) for cell in results)] for i, title in enumerate(_CELL_TITLES)]
    for variant, entry in enumerate(VARIANTS):
        speeds = (t[variant].tokens.sum() / t[variant].seconds.sum() for t in results.values())
        rows.append([entry.name, *(f"{speed:.2f}" for speed in speeds)])
    return rows


def large() -> Iterator[str]:
    """Time a problem of a large model's shape by the number of scenarios."""
    instance = qwen3(0)
    tree, certain = instance.tree, instance.routing
    n_experts, k = certain.n_experts, certain.experts.shape[2]
    # Each expert of the problem with probability 0.7; the rest of k evenly over all.
    probability = np.full((tree.n_nodes, certain.n_layers, n_experts), 0.3 * k / (n_experts - k))
    np.put_along_axis(probability, certain.experts.astype(np.int64), 0.7, axis=2)
    first = 1e6 * median_time(partial(solve_instance, instance), 30)
    yield f"{tree.n_nodes} nodes x {certain.n_layers} layers x {n_experts} experts, top-{k}, each"
    yield "used with probability 0.7; microseconds, medians of 30 calls (5 for making)"
    yield f"certain routing: {first:.0f}"
    yield ""
    rows = [["scenarios", "solve", "ratio", "pack", "KiB of rows", "make"]]
    for shared in SHARED:
        for count in COUNTS:
            draw = partial(sample_scenarios, probability, k, count, seed=0, shared=shared)
            pack = partial(ExpertRouting.from_scenarios, draw(), n_experts, certain.resident)
            problem = Instance(tree, pack(), instance.cost_model)
            solve = 1e6 * median_time(partial(solve_instance, problem), 30)
            rows.append(
                [
                    f"{count}, {shared:g}",
                    f"{solve:.0f}",
                    f"{solve / first:.1f}",
                    f"{1e6 * median_time(pack, 30):.0f}",
                    f"{problem.routing.rows.nbytes / 1024:.0f}",
                    f"{1e6 * median_time(draw, 5):.0f}",
                ]
            )
    yield aligned(rows)


if __name__ == "__main__":
    sys.exit(main())
