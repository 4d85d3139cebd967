"""A whole call of solve on packed routing, and packing itself."""

from __future__ import annotations

from specfit_opt import ExpertRouting, solve

from .problems import REAL_AFFINE, SEEDS, STAIRCASES, per_expert, qwen3, real


class Qwen3Affine:
    """60 nodes x 48 layers x 128 experts x top-8, affine node time."""

    params = tuple(SEEDS)
    param_names = ("seed",)

    def setup(self, seed):
        self.problem = qwen3(seed)
        self.priced = per_expert(self.problem)

    def time_solve_per_expert(self, seed):
        p = self.priced
        solve(p.tree, p.routing, p.cost_model)

    def time_solve(self, seed):
        p = self.problem
        solve(p.tree, p.routing, p.cost_model)

    def time_pack(self, seed):
        routing = self.problem.routing
        ExpertRouting(routing.experts, routing.n_experts, routing.resident)

    def track_cuts(self, seed):
        p = self.problem
        return solve(p.tree, p.routing, p.cost_model).stats["cuts"]

    def track_rounds(self, seed):
        p = self.problem
        return solve(p.tree, p.routing, p.cost_model).stats["rounds"]


class Staircase:
    """The same with staircase tables: branch and bound must end in a proof."""

    params = (STAIRCASES, tuple(SEEDS))
    param_names = ("node_time", "seed")

    def setup(self, node_time, seed):
        self.problem = qwen3(seed, node_time)

    def time_solve(self, node_time, seed):
        p = self.problem
        solve(p.tree, p.routing, p.cost_model)

    def track_gap(self, node_time, seed):
        p = self.problem
        return solve(p.tree, p.routing, p.cost_model).gap

    def track_branches(self, node_time, seed):
        p = self.problem
        return solve(p.tree, p.routing, p.cost_model).stats["branches"]


class RealAffine:
    """Trees over real routing; needs the optional material."""

    params = REAL_AFFINE or ("absent",)
    param_names = ("instance",)

    def setup(self, name):
        if name == "absent":
            raise NotImplementedError("the optional material beside the checkout is absent")
        self.problem = real(name)

    def time_solve(self, name):
        p = self.problem
        solve(p.tree, p.routing, p.cost_model)

    def track_core_nodes(self, name):
        p = self.problem
        return solve(p.tree, p.routing, p.cost_model).stats["core_nodes"]


class Pool:
    """The default candidate pool of EAGLE-3: 611 nodes."""

    params = tuple(SEEDS)
    param_names = ("seed",)

    def setup(self, seed):
        self.problem = qwen3(seed, nodes=611)

    def time_solve(self, seed):
        p = self.problem
        solve(p.tree, p.routing, p.cost_model)
