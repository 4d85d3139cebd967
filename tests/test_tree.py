"""DraftTree: construction, derived figures and the exchange with NetworkX."""

from __future__ import annotations

import sys

import networkx as nx
import numpy as np
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st

from specfit_opt import DraftTree, InvalidInputError, MissingExtraError

#     0        5
#    / \       |
#   1   2      6
#  / \
# 3   4
PARENT = [-1, 0, 0, 1, 1, -1, 5]
PROB = [1.0, 0.6, 0.3, 0.5, 0.05, 1.0, 0.9]


@pytest.fixture
def forest() -> DraftTree:
    return DraftTree(PARENT, PROB)


def test_arrays(forest: DraftTree) -> None:
    assert forest.parent.dtype == np.int32
    assert forest.path_prob.dtype == np.float64
    assert forest.depth.dtype == np.int32
    assert forest.parent.tolist() == PARENT
    assert forest.path_prob.tolist() == PROB
    assert forest.depth.tolist() == [0, 1, 1, 2, 2, 0, 1]


def test_counts_and_relations(forest: DraftTree) -> None:
    assert len(forest) == forest.n_nodes == 7
    assert forest.n_roots == 2
    assert forest.roots.tolist() == [0, 5]
    assert forest.children == ((1, 2), (3, 4), (), (), (), (6,), ())


def test_path(forest: DraftTree) -> None:
    assert forest.path(4) == [0, 1, 4]
    assert forest.path(5) == [5]
    for node in (-1, 7):
        with pytest.raises(InvalidInputError, match=f"node must be .* from 0 to 6, got {node}"):
            forest.path(node)


def test_prefix_order(forest: DraftTree) -> None:
    assert forest.prefix_order().tolist() == [0, 5, 6, 1, 3, 2, 4]
    # Equal probabilities: the earlier node first.
    assert DraftTree([-1, 0, 0, 1], [1, 0.5, 0.5, 0.5]).prefix_order().tolist() == [0, 1, 2, 3]


@given(strategies.trees())
def test_every_prefix_with_the_roots_is_closed(tree: DraftTree) -> None:
    order = tree.prefix_order().tolist()
    assert sorted(order) == list(range(tree.n_nodes))
    assert set(order[: tree.n_roots]) == set(tree.roots.tolist())
    seen = {-1}
    for v in order:
        assert int(tree.parent[v]) in seen
        seen.add(v)
    assert (np.diff(tree.path_prob[order]) <= 0.0).all()


@given(strategies.trees())
def test_depth_is_the_number_of_edges(tree: DraftTree) -> None:
    for v in range(tree.n_nodes):
        path = tree.path(v)
        assert path[-1] == v
        assert tree.parent[path[0]] == -1
        assert [int(tree.parent[u]) for u in path[1:]] == path[:-1]
        assert tree.depth[v] == len(path) - 1
    assert DraftTree(tree.parent, tree.path_prob, tree.depth).depth.tolist() == tree.depth.tolist()


@given(st.data())
def test_from_conditional_multiplies_along_the_path(data: st.DataObject) -> None:
    shape = data.draw(strategies.trees())
    prob = [1.0 if u < 0 else data.draw(strategies.probabilities()) for u in shape.parent.tolist()]
    tree = DraftTree.from_conditional(shape.parent, prob)
    for v in range(tree.n_nodes):
        assert tree.path_prob[v] == pytest.approx(np.prod([prob[u] for u in tree.path(v)]))


def test_from_conditional_by_hand() -> None:
    tree = DraftTree.from_conditional([-1, 0, 1, 1], [1, 0.5, 0.25, 1])
    assert tree.path_prob.tolist() == [1.0, 0.5, 0.125, 0.5]


def test_rounding_is_clipped() -> None:
    tree = DraftTree([-1, 0, 1, 2], [1 + 9e-7, 1 + 5e-7, 0.5, 0.5 + 9e-7])
    assert tree.path_prob.tolist() == [1.0, 1.0, 0.5, 0.5]
    assert DraftTree([-1], [1 - 9e-7]).path_prob.tolist() == [1.0]


def test_clipping_reaches_the_descendants() -> None:
    # Each child exceeds its parent by less than the tolerance, which adds up along the chain.
    prob = [1.0, 0.5, 0.5 + 8e-7, 0.5 + 16e-7]
    assert DraftTree([-1, 0, 1, 2], prob).path_prob.tolist() == [1.0, 0.5, 0.5, 0.5]


def test_arrays_are_private_and_read_only() -> None:
    parent, prob = np.array(PARENT, dtype=np.int32), np.array(PROB)
    tree = DraftTree(parent, prob)
    parent[1], prob[1] = 5, 0.0
    assert tree.parent.tolist() == PARENT
    assert tree.path_prob.tolist() == PROB
    for array in (tree.parent, tree.path_prob, tree.depth, tree.roots):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(AttributeError):
        tree.parent = parent  # type: ignore[misc]


def test_other_layouts_are_converted() -> None:
    wide = np.array([PARENT, PARENT], dtype=">i8").T  # strided, big-endian
    assert DraftTree(wide[:, 0], np.array(PROB, dtype=np.float32)).parent.tolist() == PARENT


@given(strategies.trees())
def test_networkx_round_trip(tree: DraftTree) -> None:
    graph = tree.to_networkx()
    assert nx.is_forest(graph)
    assert graph.number_of_nodes() == tree.n_nodes
    back, labels = DraftTree.from_networkx(graph)
    for v, label in enumerate(labels):
        assert back.path_prob[v] == tree.path_prob[label]
        assert back.depth[v] == tree.depth[label] == graph.nodes[label]["depth"]
        up = int(back.parent[v])
        assert (labels[up] if up >= 0 else -1) == tree.parent[label]


def test_from_networkx_takes_any_labels() -> None:
    graph = nx.DiGraph()
    graph.add_node("the")
    graph.add_node("cat", p=0.7)
    graph.add_node("dog", p=0.2)
    graph.add_edges_from([("the", "cat"), ("the", "dog")])
    tree, labels = DraftTree.from_networkx(graph, path_prob="p")
    assert labels[0] == "the"
    assert dict(zip(labels, tree.path_prob.tolist(), strict=True)) == {
        "the": 1.0,
        "cat": 0.7,
        "dog": 0.2,
    }


def _cycle() -> nx.DiGraph:
    return nx.DiGraph([(0, 1), (1, 0)])


def _two_parents() -> nx.DiGraph:
    graph = nx.DiGraph([(0, 2), (1, 2)])
    nx.set_node_attributes(graph, 1.0, "path_prob")
    return graph


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (nx.DiGraph(), "no nodes"),
        (_cycle(), "has a cycle"),
        (_two_parents(), "node 2 has 2 parents"),
        (nx.DiGraph([(0, 1)]), "node 1 lacks the attribute 'path_prob'"),
        (nx.path_graph(3), "undirected"),
    ],
)
def test_from_networkx_refuses(graph: nx.Graph, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        DraftTree.from_networkx(graph)


def test_networkx_missing(forest: DraftTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(MissingExtraError, match=r"specfit\[graph\]"):
        forest.to_networkx()


def test_repr(forest: DraftTree) -> None:
    assert repr(forest) == "DraftTree(n_nodes=7, n_roots=2, max_depth=2)"
