"""The probability that the target's path meets an expert, against enumeration of where it ends."""

from __future__ import annotations

import numpy as np
import pytest
from random_trace import random_trace

from specfit_opt.path_weights import PathWeights


def by_where_the_path_ends(parent, path_prob, experts, n_experts):
    """It ends at a node with the node's probability less that of its children."""
    n, n_layers, _ = experts.shape
    weight = np.zeros((n_layers, n_experts))
    for end in range(n):
        chance = path_prob[end] - sum(path_prob[v] for v in range(n) if parent[v] == end)
        met = np.zeros((n_layers, n_experts), dtype=bool)
        node = end
        while node >= 0:
            for layer in range(n_layers):
                met[layer, [e for e in experts[node, layer] if e >= 0]] = True
            node = parent[node]
        weight += chance * met
    return weight


@pytest.mark.parametrize("seed", range(8))
def test_same_as_summing_over_ends(seed: int) -> None:
    trace = random_trace(np.random.default_rng(seed), positions=6)
    for index in range(trace.n_cycles):
        tree, experts = trace.cycle(index).tree, trace.cycle(index).experts
        found = PathWeights(tree.parent, tree.path_prob).of(experts, trace.n_experts)
        wanted = by_where_the_path_ends(
            tree.parent.tolist(), tree.path_prob, experts, trace.n_experts
        )
        assert found == pytest.approx(wanted, abs=1e-6)
        assert found.shape == (trace.n_layers, trace.n_experts)
        assert found.max() <= 1.0


def test_layers_are_weighed_alike_one_by_one() -> None:
    cycle = random_trace(np.random.default_rng(3)).cycle(4)
    paths = PathWeights(cycle.tree.parent, cycle.tree.path_prob)
    together = paths.of(cycle.experts, 9)
    for layer in range(3):
        assert np.array_equal(paths.of(cycle.experts[:, layer : layer + 1], 9)[0], together[layer])
