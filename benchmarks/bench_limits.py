"""Hard instances under a time limit: what is proven, and whether the limit is kept."""

from __future__ import annotations

import time

from specfit_opt import solve_instance
from specfit_opt.generate import generate

HARD = ("densest-k-subgraph", "min-k-union")


class HardStars:
    """Stars of 200 nodes whose best subset is NP-hard to find; one second each."""

    params = tuple(HARD)
    param_names = ("kind",)
    timeout = 60

    def setup(self, kind):
        self.problem = generate(kind, seed=0, nodes=200)

    def track_gap(self, kind):
        return solve_instance(self.problem, time_limit=1.0).gap

    def track_seconds(self, kind):
        start = time.perf_counter()
        solve_instance(self.problem, time_limit=1.0)
        return time.perf_counter() - start

    track_seconds.unit = "seconds"
