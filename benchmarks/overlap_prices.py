"""Compare what a choice may charge for an expert when part of the transfer hides behind compute.

    python -m benchmarks.overlap_prices [--traces FOLDER] [--every N] [--write]

With overlap the time of a pass is a sum of hinges (theory page). Whole trees of the simulated
traces are chosen from, with the cache as a decode at full prices leaves it, and what is chosen is
judged by that time.
Prices are fitted on the first simulation of a model and judged on the second. The traces are
optional material beside the checkout; ``--write`` replaces the file that the documentation shows.
Some minutes on one core.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import geometric_mean

import numpy as np
from numpy.typing import NDArray

from specfit_opt import CostModel, DraftTree, ExpertRouting, solve
from specfit_opt.caches import CACHE_RULES, SimulatedCache
from specfit_opt.expert_union import expert_union
from specfit_opt.files import Trace
from specfit_opt.profiles import load_profile
from specfit_opt.replay import WARMUP
from specfit_opt.text import format_table

from .routing_replay import MODELS, SMALL, Cell, cells, traces
from .traces_command import publish, traces_parser

OUTPUT = Path(__file__).resolve().parent / "results" / "overlap_prices.txt"
CACHES = ("12.5%", "25%", "50%")
PRECISION = 0.9
#: Window of a layer, over its compute, and coverage of the first and of the last layer.
SETTINGS = ((0.25, (0.5, 0.5)), (0.5, (0.5, 0.5)), (1.0, (0.5, 0.5)), (1.0, (0.2, 0.8)))
#: Most solves for the bound of a pass, and the gap at which it counts as closed.
STEPS, CLOSED = 30, 1e-4

Floats = NDArray[np.float64]
Nodes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Hinges:
    """The time of a pass: ``cost``, less what hides.

    Attributes
    ----------
    cost : CostModel
        Without overlap; ``expert_time`` per layer.
    free : ndarray of float64, shape (L,)
        Seconds of right guesses that a layer's window holds.
    coverage : ndarray of float64, shape (L,)
    """

    cost: CostModel
    free: Floats
    coverage: Floats

    @property
    def expert_time(self) -> Floats:
        return np.asarray(self.cost.expert_time, dtype=np.float64)

    def excess(self, misses: Floats) -> Floats:
        """Return the argument of each layer's hinge."""
        excess: Floats = self.coverage * misses * self.expert_time - self.free
        return excess

    def waits(self, misses: Floats) -> Floats:
        late = (1.0 - self.coverage) * misses * self.expert_time
        waits: Floats = late + np.maximum(0.0, self.excess(misses))
        return waits

    def seconds(self, n_nodes: int, misses: Floats) -> float:
        assert isinstance(self.cost.node_time, float)
        compute = self.cost.fixed_time + self.cost.node_time * n_nodes
        return compute + float(self.waits(misses).sum())

    def at(self, share: Floats) -> CostModel:
        """Return the linear cost, nowhere above the true one, of fixed shares of the hinges."""
        price = (1.0 - self.coverage + share * self.coverage) * self.expert_time
        fixed = self.cost.fixed_time - float(share @ self.free)
        return CostModel(fixed, self.cost.node_time, price)


@dataclass(frozen=True, eq=False)
class Pass:
    """One position: what there is to choose from."""

    tree: DraftTree
    experts: NDArray[np.integer]
    resident: NDArray[np.bool_]

    def misses(self, nodes: Nodes) -> Floats:
        used = expert_union(self.experts[nodes], self.resident.shape[1])
        misses: Floats = np.count_nonzero(used & ~self.resident, axis=1).astype(np.float64)
        return misses

    def rate(self, nodes: Nodes, hinges: Hinges) -> float:
        tokens = float(self.tree.path_prob[nodes].sum())
        return tokens / hinges.seconds(len(nodes), self.misses(nodes))

    @cached_property
    def routing(self) -> ExpertRouting:
        return ExpertRouting(self.experts, self.resident.shape[1], self.resident)

    def chosen(self, cost: CostModel) -> tuple[Nodes, float]:
        """Return the best nodes at linear prices, and the rate that these promise."""
        solution = solve(self.tree, self.routing, cost)
        return solution.nodes, solution.throughput


def bounded(one: Pass, hinges: Hinges, known: Sequence[Nodes]) -> tuple[float, float]:
    """Return the best rate found, and a bound on all.

    Notes
    -----
    The bound is the least over the shares, by a projected subgradient. Every set on the way
    competes.
    """
    best = max(known, key=lambda nodes: one.rate(nodes, hinges))
    found, bound = one.rate(best, hinges), float("inf")
    share = (hinges.excess(one.misses(best)) > 0.0).astype(np.float64)
    for step in range(1, STEPS + 1):
        nodes, promised = one.chosen(hinges.at(share))
        found, bound = max(found, one.rate(nodes, hinges)), min(bound, promised)
        excess = hinges.excess(one.misses(nodes))
        slope = np.where(np.where(excess > 0.0, share < 1.0, share > 0.0), excess, 0.0)
        steepest = float(np.abs(slope).max())
        if bound <= found * (1.0 + CLOSED) or not steepest:
            break
        share = np.clip(share + 0.5 / np.sqrt(step) * slope / steepest, 0.0, 1.0)
    return found, max(bound, found)


def twice(one: Pass, hinges: Hinges, first: Nodes) -> Nodes:
    """Return the better of a set and of what is chosen with the shares that fit it."""
    share = (hinges.excess(one.misses(first)) > 0.0).astype(np.float64)
    second, _ = one.chosen(hinges.at(share))
    return max((first, second), key=lambda nodes: one.rate(nodes, hinges))


def passes(trace: Trace, slots: int, price: CostModel, every: int) -> list[Pass]:
    """Decode a trace, choosing at a price from all of each tree; return every Nth pass."""
    shape = trace.n_layers, trace.n_experts
    found = []
    for first, end in trace.prompts:
        cache = SimulatedCache(CACHE_RULES.find("lru"), np.full(shape[0], slots), *shape)
        at = first
        while at < end:
            cycle = trace.cycle(at)
            nodes = np.zeros(1, dtype=np.int64)
            if at >= first + WARMUP:
                one = Pass(cycle.tree, cycle.experts, cache.resident.copy())
                nodes, _ = one.chosen(price)
                found.append(one)
            cache.use(expert_union(cycle.experts[nodes], shape[1]))
            committed = int(np.count_nonzero(cycle.accepted[nodes]))
            cache.committed(committed)
            at += committed
    return found[::every]


def fitted(seen: Sequence[Pass], hinges: Hinges) -> dict[str, CostModel]:
    """Return the linear prices to compare, by name; all but the first are fitted to passes."""
    full, time = hinges.cost, hinges.expert_time
    fixed, node_time = full.fixed_time, full.node_time
    layers = full
    # Twice, so that the prices are those of what they lead to.
    for _ in range(2):
        misses = np.array([one.misses(one.chosen(layers)[0]) for one in seen])
        waits = np.array([hinges.waits(row) for row in misses])
        factor = float(waits.sum() / (misses @ time).sum())
        # A layer that missed little leans on all.
        price = (waits.sum(axis=0) + 8.0 * factor * time) / (misses.sum(axis=0) + 8.0)
        layers = CostModel(fixed, node_time, price)
    moved, waited = misses @ time, waits.sum(axis=1)
    slope = float(np.clip(np.polyfit(moved, waited, 1)[0], 0.0, 1.0))
    constant = max(float((waited - slope * moved).mean()), -0.99 * fixed)
    return {
        "full": full,
        "one factor": CostModel(fixed, node_time, factor * time),
        "per layer": layers,
        "line": CostModel(fixed + constant, node_time, slope * time),
    }


def cost_of(cell: Cell, trace: Trace) -> CostModel:
    """Return the cost of a pass without overlap."""
    return load_profile(cell.profile).cost_model(
        trace.n_layers,
        trace.n_experts,
        cell.options(trace)["expert_bytes"],
        layer_repeat=cell.model.layer_repeat,
    )


def judged(cell: Cell, folder: Path, every: int) -> list[dict[str, float]]:
    """Return the rates over the best found, and the bound over it, by setting.

    Geometric means over the passes of a cell.
    """
    fit, other = traces(cell.model, folder)[:2]
    cost = cost_of(cell, fit)
    assert isinstance(cost.node_time, float)
    compute = (cost.fixed_time + cost.node_time) / fit.n_layers
    slots = round(float(cell.cache[:-1]) / 100.0 * fit.n_experts)
    seen, judges = (passes(trace, slots, cost, every) for trace in (fit, other))
    results = []
    for window, coverage in SETTINGS:
        free = np.full(fit.n_layers, PRECISION * window * compute)
        hinges = Hinges(cost, free, np.linspace(*coverage, fit.n_layers))
        prices = fitted(seen, hinges)
        found: dict[str, list[float]] = {}
        for one in judges:
            sets = {name: one.chosen(price)[0] for name, price in prices.items()}
            sets["twice"] = twice(one, hinges, sets["one factor"])
            best, bound = bounded(one, hinges, list(sets.values()))
            for name, nodes in sets.items():
                found.setdefault(name, []).append(one.rate(nodes, hinges) / best)
            found.setdefault("bound", []).append(bound / best)
        results.append({name: geometric_mean(values) for name, values in found.items()})
    return results


def report(folder: Path, every: int) -> str:
    """Measure everything and return the table; say on stderr how far it is."""
    begin = time.monotonic()
    own = list(cells([model for model in MODELS if model is not SMALL], CACHES))
    results = []
    for cell in own:
        results.append(judged(cell, folder, every))
        took = time.monotonic() - begin
        print(f"{cell.model.name}, {cell.profile}, {cell.cache}: {took:.0f} s", file=sys.stderr)
    rows = []
    for number, (window, coverage) in enumerate(SETTINGS):
        row = [f"{window:.0%}", " to ".join(f"{c:.0%}" for c in dict.fromkeys(coverage))]
        for name in results[0][0]:
            values = [result[number][name] for result in results]
            worst = max(values) if name == "bound" else min(values)
            row += [f"{geometric_mean(values):.4f}", f"{worst:.4f}"]
        rows.append(row)
    head = ["window", "guessed"]
    for name in results[0][0]:
        head += [name, "worst"]
    return HEAD.format(cells=len(own)) + format_table(head, rows, left=["window", "guessed"]) + "\n"


HEAD = """\
$ python -m benchmarks.overlap_prices --write

Expected tokens over the time with overlap of what each price chooses, over the best set found:
geometric mean over {cells} cells of large models, and worst cell. window: time in which the link
brings guesses, of a layer's compute; guessed: share of the missing experts, of the first layer to
that of the last, at a precision of 0.9. full: prices without overlap; one factor: waiting over
transfer, of all layers; per layer: of each; line: waiting as a constant and a slope of transfer;
twice: one factor, then once more with the shares of the hinges that fit the answer, which takes the
window and the coverage as known. bound: no set is better than the best found by more.

"""


def main() -> int:
    parser = traces_parser(__doc__, OUTPUT)
    parser.add_argument("--every", type=int, default=4, help="judge every Nth pass; default 4")
    options = parser.parse_args()
    if options.every < 1:
        parser.error("--every must be at least 1")
    return publish(options, OUTPUT, lambda: report(options.traces, options.every))


if __name__ == "__main__":
    raise SystemExit(main())
