"""The exact kernel against other ways to the same optimum, as ratios of one run."""

from __future__ import annotations

from specfit_opt import solve

from . import dinkelbach_maxflow
from .problems import SEEDS, qwen3
from .timing import median_time


class AgainstOthers:
    """How many times as long another solver takes for the same proven optimum."""

    params = tuple(SEEDS)[:4]
    param_names = ("seed",)
    timeout = 300
    unit = "times"

    def setup(self, seed):
        self.problem = p = qwen3(seed)
        self.ours = lambda: solve(p.tree, p.routing, p.cost_model)

    def track_maxflow_ratio(self, seed):
        theirs = dinkelbach_maxflow.solve(self.problem)
        assert abs(theirs.throughput / self.ours().throughput - 1.0) < 1e-6
        other = median_time(lambda: dinkelbach_maxflow.solve(self.problem), 5)
        return other / median_time(self.ours, 200)

    def track_mip_ratio(self, seed):
        p = self.problem
        theirs = solve(p.tree, p.routing, p.cost_model, method="mip")
        assert abs(theirs.throughput / self.ours().throughput - 1.0) < 1e-6
        other = median_time(lambda: solve(p.tree, p.routing, p.cost_model, method="mip"), 1)
        return other / median_time(self.ours, 200)
