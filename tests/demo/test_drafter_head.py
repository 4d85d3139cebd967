"""The drafter's forward pass, its trees and the count of accepted tokens."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.usefixtures("recipe"), pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def pair(recipe):
    import torch

    from tools.demo_model.drafter import SMOKE_DRAFTER, EagleHead
    from tools.demo_model.model import FastMoe
    from tools.demo_model.shape import SMOKE

    torch.manual_seed(5)
    target = FastMoe(SMOKE, torch.float32)
    kept = torch.randperm(SMOKE.vocab_size)[: SMOKE_DRAFTER.draft_vocab_size].sort().values
    return target, EagleHead(SMOKE, SMOKE_DRAFTER, kept)


def unrolled_chain(head, target, ids, levels):
    """Return int64[B, S - 1, levels]: greedy drafts at every position by unrolling `step`."""
    import torch
    from torch.nn import functional

    from tools.demo_model.tree import first_step

    _, features = target.features(ids, head.shape.boundaries)
    logits, states, context = first_step(head, target.embed, ids, features)
    tokens = []
    for _ in range(levels):
        tokens.append(head.kept[logits.argmax(-1)])
        embedded = functional.embedding(tokens[-1], target.embed)
        logits, states, context = head.step(embedded, states, context)
    return torch.stack(tokens, dim=-1)


def test_tables_translate_between_the_vocabularies(pair):
    import torch

    _, head = pair
    assert torch.equal(head.t2d.nonzero().squeeze(1), head.kept)
    assert (head.kept.diff() > 0).all()


def test_a_step_sees_the_text_before_it_and_its_own_path_alone(pair):
    import torch

    target, head = pair
    ids = torch.randint(0, target.shape.vocab_size, (1, 24))
    changed = ids.clone()
    changed[:, 16:] = (changed[:, 16:] + 7) % target.shape.vocab_size
    with torch.no_grad():
        one, other = (unrolled_chain(head, target, some, 3) for some in (ids, changed))
    # Position t reads tokens up to t + 1.
    assert torch.equal(one[:, :15], other[:, :15])
    assert not torch.equal(one[:, 15:], other[:, 15:])


def test_trees_of_width_one_are_the_unrolled_chains(pair):
    import torch

    from tools.demo_model.acceptance import grow_along

    target, head = pair
    ids = torch.randint(0, target.shape.vocab_size, (3, 20))
    with torch.no_grad():
        wanted = unrolled_chain(head, target, ids, 4)
        grown = grow_along(head, target, ids, range(4, 12), width=1, levels=4)
    assert torch.equal(grown.trees.token.view(3, 8, 4), wanted[:, 4:12])


def test_every_path_of_a_tree_has_the_probability_of_its_tokens(pair):
    import torch
    from torch.nn import functional

    from tools.demo_model.acceptance import grow_along
    from tools.demo_model.tree import first_step

    target, head = pair
    ids = torch.randint(0, target.shape.vocab_size, (1, 16))
    place = 9
    grown = grow_along(head, target, ids, [place], width=3, levels=3)
    trees = grown.trees
    assert trees.token.shape == (1, 3 + 9 + 9)
    for node in (2, 7, 15, 20):
        path, at = [], node
        while at >= 0:
            path.append(at)
            at = int(trees.parent[0, at])
        path.reverse()
        assert len(path) == int(trees.depth[node])
        with torch.no_grad():
            _, features = target.features(ids, head.shape.boundaries)
            logits, states, context = first_step(head, target.embed, ids, features)
            total = 0.0
            for at in path:
                token = trees.token[0, at]
                draft = int((head.kept == token).nonzero())
                total += float(torch.log_softmax(logits[0, place], -1)[draft])
                embedded = functional.embedding(token.expand(1, 15), target.embed)
                logits, states, context = head.step(embedded, states, context)
        assert float(trees.log_prob[0, node]) == pytest.approx(total, abs=1e-4)


def test_selections_are_closed_under_parents(pair):
    import torch

    from tools.demo_model.acceptance import grow_along
    from tools.demo_model.tree import select

    target, head = pair
    ids = torch.randint(0, target.shape.vocab_size, (2, 20))
    trees = grow_along(head, target, ids, range(5, 15), width=4, levels=4).trees
    for size in (1, 5, 20):
        chosen = select(trees, size)
        assert (chosen.sum(1) == size).all()
        parent = trees.parent
        above = chosen.gather(1, parent.clamp_min(0)) | (parent < 0)
        assert (above | ~chosen).all()


def test_passes_are_made_one_behind_the_other():
    import numpy as np
    import torch

    from tools.demo_model.acceptance import Grown, accepted, committed
    from tools.demo_model.tree import Trees

    ids = torch.tensor([[9, 9, 1, 2, 3, 4, 5, 6]])
    # Trees at positions 0, 1, 2, whose roots are tokens 1, 2, 3 of the sequence.
    trees = Trees(
        token=torch.tensor([[1, 7, 2, 8], [5, 2, 5, 3], [3, 4, 0, 0]]),
        parent=torch.tensor([[-1, -1, 0, 0], [-1, -1, 0, 1], [-1, -1, 0, 1]]),
        log_prob=torch.zeros(3, 4),
        depth=torch.tensor([1, 1, 2, 2]),
    )
    grown = Grown(trees, torch.tensor([[0, 0], [0, 1], [0, 2]]), ids)
    every = torch.ones(3, 4, dtype=torch.bool)
    assert accepted(grown, every).tolist() == [2, 2, 1]
    assert accepted(grown, torch.tensor([[True, True, False, False]]).expand(3, 4)).tolist() == [
        1,
        1,
        1,
    ]
    # The first pass commits three tokens and passes over the other positions.
    assert committed(np.array([2, 2, 1]), grown) == 3.0
    assert committed(np.array([0, 0, 1]), grown) == pytest.approx(4 / 3, abs=1e-4)
    assert committed(np.array([1, 0, 1]), grown) == 2.0
