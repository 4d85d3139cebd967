"""Routing statistics on routing whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = [pytest.mark.usefixtures("recipe"), pytest.mark.filterwarnings("default")]


def test_figures_of_routing_that_never_changes():
    from tools.demo_model.routing import routing_figures, union_growth

    experts = np.tile(np.array([0, 3], np.int16), (2, 16, 1, 1))
    found = routing_figures(experts, 8)
    assert found["used"] == [2]
    assert found["neighbours"] == found["strangers"] == [1.0]
    assert found["effective_experts"] == [2.0]
    assert found["popularity"][0][:3] == [0.5, 0.5, 0.0]
    growth = union_growth(experts, 8, [1, 4])
    assert growth["consecutive"] == growth["strangers"] == [2.0, 2.0]
    assert growth["independent"] == [2.0, round(8 * (1 - 0.75**4), 3)]


def test_figures_of_independent_routing_match_their_expectation():
    from tools.demo_model.routing import routing_figures, union_growth

    rng = np.random.default_rng(0)
    order = rng.permuted(np.tile(np.arange(32, dtype=np.int16), (64 * 64 * 2, 1)), axis=1)
    experts = order[:, :4].reshape(64, 64, 2, 4)
    found = routing_figures(experts, 32)
    assert found["neighbours"] == pytest.approx([4 / 32] * 2, abs=0.01)
    assert found["used"] == [32, 32]
    growth = union_growth(experts, 32, [1, 2, 8])
    for name in ("consecutive", "strangers"):
        assert growth[name] == pytest.approx(growth["independent"], rel=0.02)


def test_draft_tree_unions_follow_the_paths():
    import torch

    from tools.demo_model.model import FastMoe
    from tools.demo_model.routing import draft_tree_unions, record_routing
    from tools.demo_model.shape import SMOKE

    torch.manual_seed(1)
    target = FastMoe(SMOKE, torch.float32)
    prefix = torch.randint(0, SMOKE.vocab_size, (1, 5))
    root, token, parent = torch.tensor([11]), torch.tensor([[4, 9, 7]]), torch.tensor([[-1, 0, -1]])
    found = draft_tree_unions(target, prefix, root, token, parent, SMOKE.num_experts, [1, 2, 3, 4])
    paths = [[11], [11, 4], [11, 4, 9], [11, 7]]
    seen: list[set[int]] = [set() for _ in range(SMOKE.num_hidden_layers)]
    wanted = []
    for path in paths:
        ids = torch.tensor([[*prefix[0].tolist(), *path]])
        for layer, some in enumerate(record_routing(target, ids)[0, -1]):
            seen[layer] |= set(some.tolist())
        wanted.append(round(float(np.mean([len(some) for some in seen])), 3))
    assert found == wanted
