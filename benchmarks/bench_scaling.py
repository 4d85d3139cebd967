"""How the time of a solve grows with nodes, layers and experts."""

from __future__ import annotations

from specfit_opt import solve

from .problems import sized

NODES = (16, 60, 250, 1000, 5000)
LAYERS = (4, 12, 24, 48, 96)
EXPERTS = (8, 32, 64, 128, 256, 512)


class _Scaling:
    def solve_one(self):
        p = self.problem
        solve(p.tree, p.routing, p.cost_model)


class Nodes(_Scaling):
    params = tuple(NODES)
    param_names = ("nodes",)

    def setup(self, nodes):
        self.problem = sized(nodes=nodes)

    def time_solve(self, nodes):
        self.solve_one()


class Layers(_Scaling):
    params = tuple(LAYERS)
    param_names = ("layers",)

    def setup(self, layers):
        self.problem = sized(layers=layers)

    def time_solve(self, layers):
        self.solve_one()


class Experts(_Scaling):
    params = tuple(EXPERTS)
    param_names = ("experts",)

    def setup(self, experts):
        self.problem = sized(experts=experts)

    def time_solve(self, experts):
        self.solve_one()
