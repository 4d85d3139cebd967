"""The draft tree: candidate tokens, their parents and their path probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arrays import first, float_array, frozen, integer_array, refreeze
from .checks import Whole
from .errors import InvalidInputError, MissingExtraError
from .limits import MOST_NODES

if TYPE_CHECKING:
    import networkx

#: How far a path probability may exceed its parent's (or 1) by rounding before it is an error.
PROBABILITY_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class DraftTree:
    """A tree, or a forest with one root per sequence, of draft tokens.

    Parameters
    ----------
    parent : array_like of int, shape (n,)
        Index of each node's parent, -1 for a root. Parents come before their children.
    path_prob : array_like of float, shape (n,)
        Estimated probability that the target accepts the node and all of its ancestors. 1 for a
        root, never above the parent's. Excesses up to 1e-6 are taken for rounding and clipped.
    depth : array_like of int, shape (n,), optional
        Edges from the root; computed from ``parent`` when omitted, checked against it when given.

    Attributes
    ----------
    parent : ndarray of int32, shape (n,)
    path_prob : ndarray of float64, shape (n,)
    depth : ndarray of int32, shape (n,)
        All three are read-only.

    Raises
    ------
    InvalidInputError
        For shapes that disagree, no root, a cycle, a parent after its child, a probability that is
        NaN, negative, above 1 or above the parent's, or more than 1,048,576 nodes.

    Notes
    -----
    Construction takes O(n) time. A path probability may be as small as it likes, down to a product
    that vanishes in double precision and is 0: a root's 1 keeps the expected tokens of every
    subtree between 1 and n.

    Examples
    --------
    >>> tree = DraftTree([-1, 0, 0, 1], [1.0, 0.6, 0.3, 0.5])
    >>> tree.n_nodes, tree.n_roots
    (4, 1)
    """

    parent: NDArray[np.int32]
    path_prob: NDArray[np.float64]
    depth: NDArray[np.int32]

    def __init__(
        self, parent: ArrayLike, path_prob: ArrayLike, depth: ArrayLike | None = None
    ) -> None:
        parents = integer_array(parent, "parent", 1)
        _check_parents(parents)
        prob = float_array(path_prob, "path_prob")
        if prob.shape != parents.shape:
            raise InvalidInputError(
                f"parent has shape {parents.shape} but path_prob has shape {prob.shape}; "
                "give one probability per node"
            )
        object.__setattr__(self, "parent", parents)
        object.__setattr__(self, "path_prob", _checked_path_prob(parents, prob))
        levels = _depth(parents)
        if depth is not None:
            given = integer_array(depth, "depth", 1)
            if given.shape != parents.shape:
                raise InvalidInputError(
                    f"parent has shape {parents.shape} but depth has shape {given.shape}"
                )
            if (v := first(given != levels)) is not None:
                raise InvalidInputError(
                    f"depth[{v}] = {given[v]} but the path to the root has {levels[v]} edges; "
                    "omit depth to have it computed"
                )
        object.__setattr__(self, "depth", levels)

    @classmethod
    def from_conditional(cls, parent: ArrayLike, prob: ArrayLike) -> DraftTree:
        """Build a tree from each node's probability given that its parent was accepted.

        Parameters
        ----------
        parent : array_like of int, shape (n,)
            As for the class.
        prob : array_like of float, shape (n,)
            Conditional acceptance probabilities in [0, 1]; 1 for a root.

        Returns
        -------
        DraftTree
            Its ``path_prob`` is the product along the path.

        Raises
        ------
        InvalidInputError
            As for the class; also if a probability is NaN or outside [0, 1].
        """
        parents = integer_array(parent, "parent", 1)
        _check_parents(parents)
        path = float_array(prob, "prob").copy()
        if path.shape != parents.shape:
            raise InvalidInputError(
                f"parent has shape {parents.shape} but prob has shape {path.shape}"
            )
        _check_range(path, "prob")
        for v, u in enumerate(parents.tolist()):
            if u >= 0:
                path[v] = min(path[v], 1.0) * path[u]
        return cls(parents, path)

    @classmethod
    def from_networkx(
        cls, graph: networkx.DiGraph[Any], path_prob: str = "path_prob"
    ) -> tuple[DraftTree, list[Any]]:
        """Build a tree from a NetworkX graph whose edges point from parent to child.

        Parameters
        ----------
        graph : networkx.DiGraph
            A forest (arborescences).
        path_prob : str
            The node attribute that holds the path probability; a root may lack it (1).

        Returns
        -------
        tree : DraftTree
        labels : list
            The graph's node for each index of the tree, in topological order.

        Raises
        ------
        InvalidInputError
            If the graph is no forest or an attribute is missing.
        MissingExtraError
            If networkx is not installed.
        """
        nx = _networkx()
        if len(graph) == 0:
            raise InvalidInputError("the graph has no nodes; a tree needs at least its root")
        if not graph.is_directed():
            raise InvalidInputError("the graph is undirected; give a DiGraph, parent to child")
        if not nx.is_directed_acyclic_graph(graph):
            raise InvalidInputError("the graph has a cycle; a draft tree cannot")
        order = list(nx.topological_sort(graph))
        index = {label: v for v, label in enumerate(order)}
        parent, prob = [], []
        for label in order:
            above = list(graph.predecessors(label))
            if len(above) > 1:
                raise InvalidInputError(
                    f"node {label!r} has {len(above)} parents; a draft tree allows one"
                )
            value = graph.nodes[label].get(path_prob, None if above else 1.0)
            if value is None:
                raise InvalidInputError(f"node {label!r} lacks the attribute {path_prob!r}")
            parent.append(index[above[0]] if above else -1)
            prob.append(value)
        return cls(parent, prob), order

    def to_networkx(self) -> networkx.DiGraph[int]:
        """Return a NetworkX graph with an edge from each parent to its child.

        Returns
        -------
        networkx.DiGraph
            Its nodes are the indices of the tree, with the attributes ``path_prob`` and ``depth``.

        Raises
        ------
        MissingExtraError
            If networkx is not installed.
        """
        graph = _networkx().DiGraph()
        for v, (u, p, d) in enumerate(
            zip(self.parent.tolist(), self.path_prob.tolist(), self.depth.tolist(), strict=True)
        ):
            graph.add_node(v, path_prob=p, depth=d)
            if u >= 0:
                graph.add_edge(u, v)
        return graph

    @property
    def n_nodes(self) -> int:
        """Number of nodes, roots included."""
        return len(self.parent)

    @cached_property
    def roots(self) -> NDArray[np.int32]:
        """Indices of the roots, ascending."""
        return frozen(np.flatnonzero(self.parent < 0).astype(np.int32))

    @cached_property
    def n_roots(self) -> int:
        """Number of roots: the batch size."""
        return len(self.roots)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of every node, ascending."""
        lists: list[list[int]] = [[] for _ in range(self.n_nodes)]
        for v, u in enumerate(self.parent.tolist()):
            if u >= 0:
                lists[u].append(v)
        return tuple(tuple(c) for c in lists)

    def path(self, node: int) -> list[int]:
        """Return the path from the root down to a node.

        Parameters
        ----------
        node : int
            Where the path ends.

        Returns
        -------
        list of int
            Root first, ``node`` last.

        Raises
        ------
        InvalidInputError
            If there is no such node.
        """
        nodes: list[int] = [Whole(0, self.n_nodes - 1)(node, "node")]
        while (up := int(self.parent[nodes[-1]])) >= 0:
            nodes.append(up)
        return nodes[::-1]

    def prefix_order(self) -> NDArray[np.int64]:
        """Return the nodes by falling path probability, roots first, earlier node first on ties.

        Every prefix that holds the roots is ancestor-closed, because path probability never rises
        along a path and parents come before their children.

        Returns
        -------
        ndarray of int64, shape (n,)
        """
        return np.lexsort((np.arange(self.n_nodes), -self.path_prob, self.parent >= 0))

    def __len__(self) -> int:
        return self.n_nodes

    __setstate__ = refreeze

    def __repr__(self) -> str:
        return (
            f"DraftTree(n_nodes={self.n_nodes}, n_roots={self.n_roots}, "
            f"max_depth={int(self.depth.max())})"
        )


def _networkx() -> Any:
    try:
        import networkx
    except ImportError:
        raise MissingExtraError("networkx", "graph") from None
    return networkx


def _check_parents(parent: NDArray[np.int32]) -> None:
    n = len(parent)
    if n == 0:
        raise InvalidInputError("the tree has no nodes; it needs at least its root")
    if n > MOST_NODES:
        raise InvalidInputError(f"the tree has {n} nodes; at most {MOST_NODES} are taken")
    if (v := first((parent < -1) | (parent >= n))) is not None:
        raise InvalidInputError(
            f"parent[{v}] = {parent[v]} is no node of a tree of {n}; use -1 for a root"
        )
    if (parent >= 0).all():
        raise InvalidInputError("the tree has no root; give the last committed token parent -1")
    if (v := first(parent >= np.arange(n))) is not None:
        cycle = _find_cycle(parent, v)
        if cycle:
            raise InvalidInputError(
                f"parent has a cycle through the nodes {cycle}; every path must end at a root (-1)"
            )
        raise InvalidInputError(
            f"parent[{v}] = {parent[v]} comes after its child; order the nodes so that parents "
            "come first"
        )


def _find_cycle(parent: NDArray[np.int32], start: int) -> list[int]:
    seen: dict[int, int] = {}
    v = start
    while v >= 0 and v not in seen:
        seen[v] = len(seen)
        v = int(parent[v])
    return [] if v < 0 else sorted(u for u, i in seen.items() if i >= seen[v])


def _check_range(prob: NDArray[np.float64], name: str) -> None:
    if (v := first(~((prob >= 0.0) & (prob <= 1.0 + PROBABILITY_TOLERANCE)))) is not None:
        raise InvalidInputError(f"{name}[{v}] = {prob[v]} is no probability; it must be in [0, 1]")


def _checked_path_prob(parent: NDArray[np.int32], prob: NDArray[np.float64]) -> NDArray[np.float64]:
    _check_range(prob, "path_prob")
    is_root = parent < 0
    above = np.where(is_root, 1.0, prob[parent])
    if (v := first(is_root & (np.abs(prob - 1.0) > PROBABILITY_TOLERANCE))) is not None:
        raise InvalidInputError(
            f"path_prob[{v}] = {prob[v]} but node {v} is a root; a root is always committed, "
            "its probability is 1"
        )
    if (v := first(prob > above + PROBABILITY_TOLERANCE)) is not None:
        raise InvalidInputError(
            f"path_prob[{v}] = {prob[v]} exceeds that of its parent {parent[v]} ({above[v]}); "
            "path probabilities are products along the path (from_conditional builds them)"
        )
    if np.where(is_root, prob == 1.0, prob <= above).all():
        return prob
    clipped = prob.copy()
    clipped[is_root] = 1.0
    # In node order, so that a clipped parent lowers its children too.
    for v in range(len(clipped)):
        if parent[v] >= 0:
            clipped[v] = min(clipped[v], clipped[parent[v]])
    return frozen(clipped)


def _depth(parent: NDArray[np.int32]) -> NDArray[np.int32]:
    levels = [0] * len(parent)
    for v, u in enumerate(parent.tolist()):
        if u >= 0:
            levels[v] = levels[u] + 1
    return frozen(np.array(levels, dtype=np.int32))
