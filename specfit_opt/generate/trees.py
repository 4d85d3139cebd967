"""Draft trees as drafters grow them."""

from __future__ import annotations

import numpy as np

from ..errors import InvalidInputError
from ..tree import DraftTree

#: Levels of a drafted pool below its roots.
LEVELS = 6


def drafted_tree(rng: np.random.Generator, nodes: int, roots: int = 1) -> DraftTree:
    """Return a pool of ``nodes`` candidates grown as EAGLE-2 does, level by level.

    Each level expands the ``width`` nodes of the last one with the highest path probability, per
    sequence, into ``width`` children each; at the end the ``nodes`` of highest path probability
    stay (EAGLE-2, arXiv 2406.16858, sections 4.1 and 4.2). ``width`` is the least that reaches
    ``nodes`` in :data:`LEVELS` levels: 4 for 60 nodes, 11 for 611.

    Conditional probabilities are broken from a stick: the most likely child takes a share
    Beta(2.5, 1.2) of the whole (0.68 on average), each further one Beta(2, 2) of what is left.
    Siblings therefore add up to less than 1, as alternatives for one position must.
    """
    if roots > nodes:
        raise InvalidInputError(f"roots = {roots} exceeds nodes = {nodes}; every root is a node")
    per_root = -(-nodes // roots)
    width = 1
    while 1 + width + (LEVELS - 1) * width * width < per_root:
        width += 1
    parent = [-1] * roots
    prob = [1.0] * roots
    frontier = [[root] for root in range(roots)]
    for _ in range(LEVELS):
        for root in range(roots):
            grown: list[int] = []
            best = sorted(frontier[root], key=lambda v: -prob[v])[:width]
            for v in best:
                left = prob[v]
                shares = rng.beta(2.0, 2.0, size=width)
                shares[0] = rng.beta(2.5, 1.2)
                for share in shares.tolist():
                    grown.append(len(parent))
                    parent.append(v)
                    prob.append(left * share)
                    left -= left * share
            frontier[root] = grown
    pool = DraftTree(parent, prob)
    kept = np.sort(pool.prefix_order()[:nodes])
    position = np.full(pool.n_nodes, -1, dtype=np.int64)
    position[kept] = np.arange(nodes)
    above = pool.parent[kept]
    return DraftTree(np.where(above >= 0, position[above], -1), pool.path_prob[kept])


def chain(rng: np.random.Generator, nodes: int, roots: int = 1) -> DraftTree:
    """Return one path of ``nodes`` tokens, each accepted with Beta(60, 1) (0.98 on average)."""
    assert roots == 1
    prob = np.concatenate(([1.0], rng.beta(60.0, 1.0, size=nodes - 1)))
    return DraftTree.from_conditional(np.arange(nodes) - 1, prob)


def roots_alone(rng: np.random.Generator, nodes: int, roots: int) -> DraftTree:
    """Return ``roots`` roots with nothing below: plain decoding leaves no other choice."""
    return drafted_tree(rng, roots, roots)


def with_zero_subtrees(rng: np.random.Generator, nodes: int, roots: int) -> DraftTree:
    """Return a drafted tree where 0.2 of the nodes, and all below them, have probability 0."""
    tree = drafted_tree(rng, nodes, roots)
    prob = tree.path_prob.copy()
    prob[(rng.random(tree.n_nodes) < 0.2) & (tree.parent >= 0)] = 0.0
    for v, u in enumerate(tree.parent.tolist()):
        if u >= 0 and prob[u] == 0.0:
            prob[v] = 0.0
    return DraftTree(tree.parent, prob)
