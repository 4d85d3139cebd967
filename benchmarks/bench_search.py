"""TreeSearch: a level of 10 nodes and its solve, and advice."""

from __future__ import annotations

import numpy as np

from specfit_opt import TreeSearch

from .problems import levels


class Extend:
    """The last of a number of levels of 10 nodes each."""

    params = ((1, 2, 3, 4, 5, 6), (False, True))
    param_names = ("level", "waste")
    # A state serves one extend, so every sample is a single call after a set-up.
    number = 1
    repeat = (50, 200, 5.0)
    warmup_time = 0.0

    def setup(self, level, waste):
        instance, parts = levels(0)
        routing = instance.routing
        self.search = TreeSearch(
            instance.cost_model,
            routing.n_layers,
            routing.n_experts,
            routing.resident,
            waste_share=np.full(routing.n_layers, 0.8) if waste else None,
        )
        for part in parts[:level]:
            self.search.extend(*part)
        self.part = parts[level]

    def time_extend(self, level, waste):
        self.search.extend(*self.part)

    def time_advise(self, level, waste):
        self.search.advise(0.001, 0.7)

    def time_expects_gain(self, level, waste):
        self.search.expects_gain(0.001, 0.7)
