"""Expert routing as real routers have it: some experts are popular, and neighbours share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..routing import ExpertRouting
from ..tree import DraftTree

#: Tokens that were decoded, per sequence, before the roots: they fill the cache.
HISTORY = 32


def correlated_routing(
    rng: np.random.Generator,
    tree: DraftTree,
    *,
    layers: int,
    experts: int,
    top_k: int,
    skew: float,
    overlap: float,
    resident: float,
) -> ExpertRouting:
    """Return routing over ``tree``, and what a cache holds when its roots are decoded.

    Parameters
    ----------
    rng : numpy.random.Generator
    tree : DraftTree
    layers, experts, top_k : int
    skew : float
        Exponent of the Zipf law of popularity, drawn anew per layer; 0: all alike. With 1.2 the
        union over 2 to 16 consecutive tokens grows about as recorded from models of 128 experts.
    overlap : float
        Mean share of its experts that a node has in common with its parent. Real neighbours share
        about a third in models of 128 experts. What popularity alone gives is the least: at a skew
        of 1.2 most of that third.
    resident : float
        Share of the experts of each layer that fast memory has room for. It holds those that the
        :data:`HISTORY` tokens before the roots used last; room left goes to the popular.

    Returns
    -------
    ExpertRouting

    Notes
    -----
    Experts are drawn without replacement with weights by popularity, as the top k of log weight
    plus Gumbel noise (Efraimidis and Spirakis 2006; Kool et al. 2019). A child keeps each of its
    parent's experts with the probability that gives ``overlap`` and draws the rest. O(n L E) time.
    """
    ranks = rng.permuted(np.tile(np.arange(1.0, experts + 1.0), (layers, 1)), axis=1)
    weight = -skew * np.log(ranks)
    chance = _chance_overlap(rng, weight, top_k)
    keep = 1.0 if chance >= 1.0 else min(max((overlap - chance) / (1.0 - chance), 0.0), 1.0)
    rows = np.arange(layers)[:, None]

    def route(above: NDArray[np.int32] | None) -> NDArray[np.int32]:
        key = weight + rng.gumbel(size=weight.shape)
        if above is not None:
            kept = rng.random((layers, top_k)) < keep
            key[rows, above] = np.where(kept, np.inf, key[rows, above])
        return _top(key, top_k)

    # Popular experts count as used before the history, the most popular last.
    last_use = -ranks
    ids = np.empty((tree.n_nodes, layers, top_k), dtype=np.int32)
    for v, u in enumerate(tree.parent.tolist()):
        above = ids[u] if u >= 0 else None
        if u < 0 and resident > 0.0:
            for step in range(HISTORY):
                above = route(above)
                last_use[rows, above] = np.maximum(last_use[rows, above], step + 1.0)
        ids[v] = route(above)
    cached = np.zeros((layers, experts), dtype=np.bool_)
    slots = round(resident * experts)
    if slots:
        # Experts of one token tie; the more popular one stays.
        cached[rows, _top(last_use - ranks / (experts + 1.0), slots)] = True
    narrow = experts - 1 <= np.iinfo(np.int16).max
    return ExpertRouting(ids.astype(np.int16) if narrow else ids, experts, cached)


def _chance_overlap(rng: np.random.Generator, weight: NDArray[np.float64], top_k: int) -> float:
    # Two tokens that have nothing to do with each other still meet in popular experts.
    draws = [_top(weight + rng.gumbel(size=weight.shape), top_k) for _ in range(16)]
    pairs = zip(draws[::2], draws[1::2], strict=True)
    return float(np.mean([(a[:, :, None] == b[:, None, :]).any(axis=2).mean() for a, b in pairs]))


def _top(key: NDArray[np.float64], k: int) -> NDArray[np.int32]:
    return np.sort(np.argpartition(-key, k - 1, axis=1)[:, :k], axis=1).astype(np.int32)
