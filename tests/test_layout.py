"""The tidy layout of trees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfit_opt.layout import tidy_layout
from specfit_opt.tree import DraftTree


@st.composite
def trees(draw) -> DraftTree:
    n = draw(st.integers(1, 40))
    n_roots = draw(st.integers(1, min(n, 3)))
    parent = [-1] * n_roots + [draw(st.integers(0, v - 1)) for v in range(n_roots, n)]
    return DraftTree(parent, np.ones(n))


@given(trees())
def test_no_two_nodes_of_a_depth_are_closer_than_one(tree):
    position = tidy_layout(tree)
    for depth in range(int(tree.depth.max()) + 1):
        across = np.sort(position[tree.depth == depth, 0])
        assert (np.diff(across) >= 1.0 - 1e-9).all()


@given(trees())
def test_children_keep_their_order_below_the_middle_of_their_parent(tree):
    position = tidy_layout(tree)
    for v, children in enumerate(tree.children):
        if children:
            across = position[list(children), 0]
            assert (np.diff(across) > 0.0).all()
            assert (across[0] + across[-1]) / 2.0 == pytest.approx(position[v, 0])
    assert (position[:, 1] == tree.depth).all()
    assert position[:, 0].min() == 0.0


@given(trees())
def test_edges_of_two_layers_do_not_cross(tree):
    position = tidy_layout(tree)
    for depth in range(1, int(tree.depth.max()) + 1):
        layer = np.flatnonzero(tree.depth == depth)
        layer = layer[np.argsort(position[layer, 0])]
        assert (np.diff(position[tree.parent[layer], 0]) >= 0.0).all()


def test_a_chain_is_straight_and_a_subtree_fits_beside_a_deeper_one():
    assert tidy_layout(DraftTree([-1, 0, 1, 2], np.ones(4)))[:, 0].tolist() == [0.0] * 4
    # Node 1 is a chain, node 2 a fan of three: the fan's middle stands one beside the chain's
    # end plus half its own width.
    tree = DraftTree([-1, 0, 0, 1, 2, 2, 2], np.ones(7))
    assert tidy_layout(tree)[:, 0].tolist() == [1.0, 0.0, 2.0, 0.0, 1.0, 2.0, 3.0]


def test_deep_trees_do_not_exhaust_the_stack():
    n = 5000
    position = tidy_layout(DraftTree(np.arange(-1, n - 1), np.ones(n)))
    assert (position[:, 0] == 0.0).all()
    assert position[-1, 1] == n - 1
