"""Routing statistics of the target: popularity, overlap of neighbours, growth of unions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .model import FastMoe

__all__ = ["draft_tree_unions", "record_routing", "routing_figures", "union_growth"]

Experts = NDArray[np.int16]


@torch.no_grad()
def record_routing(target: FastMoe, ids: Tensor) -> Experts:
    """Return int16[B, S, L, k], the experts of every token of int64[B, S] ids."""
    return np.concatenate([_record(target, some) for some in ids.split(16)])


def _record(target: FastMoe, ids: Tensor) -> Experts:
    chosen: list[Tensor] = []
    target.states(ids, None, chosen=chosen)
    stacked = torch.stack(chosen, dim=1)  # [B * S, L, k]
    return stacked.view(*ids.shape, *stacked.shape[1:]).to(torch.int16).numpy()


def routing_figures(experts: Experts, n_experts: int, seed: int = 0) -> dict[str, Any]:
    """Return per-layer figures of recorded routing, int16[B, S, L, k].

    ``popularity`` is each layer's shares of the (token, slot) pairs, largest first. ``neighbours``
    is the mean share of a token's experts that its predecessor used too, ``strangers`` the same for
    tokens paired at random, ``uniform`` what experts drawn evenly would share (k / E).
    """
    batch, length, layers, top_k = experts.shape
    flat = experts.reshape(-1, layers, top_k)
    rng = np.random.default_rng(seed)
    shuffled = flat[rng.permutation(len(flat))]
    popularity, used, busy, entropy = [], [], [], []
    for layer in range(layers):
        load = np.bincount(flat[:, layer].ravel(), minlength=n_experts)
        share = load / load.sum()
        popularity.append([round(float(value), 5) for value in np.sort(share)[::-1]])
        used.append(int((load > 0).sum()))
        busy.append(int((share >= 0.1 / n_experts).sum()))
        positive = share[share > 0]
        entropy.append(round(float(np.exp(-(positive * np.log(positive)).sum())), 2))
    return {
        "tokens": batch * length,
        "experts": n_experts,
        "top_k": top_k,
        "used": used,
        "used_at_a_tenth_of_even_share": busy,
        "effective_experts": entropy,  # exp of the entropy of the shares
        "popularity": popularity,
        "neighbours": _shared(experts[:, 1:], experts[:, :-1]),
        "strangers": _shared(flat, shuffled),
        "uniform": round(top_k / n_experts, 4),
    }


def union_growth(
    experts: Experts, n_experts: int, sizes: Sequence[int], seed: int = 0
) -> dict[str, list[float]]:
    """Return the mean number of distinct experts, over layers and groups, by tokens in the group.

    ``consecutive`` takes runs of the text, ``strangers`` tokens drawn from all of it,
    ``independent`` is the expectation under even routing, E (1 - (1 - k / E)^n).
    """
    _, length, layers, top_k = experts.shape
    flat = experts.reshape(-1, layers, top_k)
    rng = np.random.default_rng(seed)
    out: dict[str, list[float]] = {"consecutive": [], "strangers": [], "independent": []}
    for size in sizes:
        starts = np.arange(0, length - size + 1, size)
        runs = np.stack([experts[:, s : s + size] for s in starts], 1)
        runs = runs.reshape(-1, size, layers, top_k)
        some = runs[rng.permutation(len(runs))[:512]]
        random = flat[rng.integers(len(flat), size=(512, size))]
        out["consecutive"].append(round(float(_distinct(some, n_experts).mean()), 3))
        out["strangers"].append(round(float(_distinct(random, n_experts).mean()), 3))
        even = n_experts * (1 - (1 - top_k / n_experts) ** size)
        out["independent"].append(round(even, 3))
    return out


def draft_tree_unions(
    target: FastMoe,
    prefixes: Tensor,
    roots: Tensor,
    token: Tensor,
    parent: Tensor,
    n_experts: int,
    sizes: Sequence[int],
) -> list[float]:
    """Return the mean union of draft trees' first nodes, the root counted, over layers and trees.

    Each node's routing is computed on its own path: prefix, root, ancestors, node.

    Parameters
    ----------
    prefixes, roots
        int64[N, S] and int64[N].
    token, parent
        int64[N, M], most probable nodes first; -1 for the root.
    sizes
        Numbers of nodes, root included.
    """
    rows, ends, owner = [], [], []
    count, nodes = token.shape
    longest = prefixes.shape[1] + 1 + nodes
    for tree in range(count):
        paths: list[list[int]] = []
        for node in range(-1, nodes):
            above = int(parent[tree, node]) + 1 if node >= 0 else 0
            path = [*paths[above], int(token[tree, node])] if node >= 0 else [int(roots[tree])]
            paths.append(path)
            rows.append([*prefixes[tree].tolist(), *path])
            ends.append(prefixes.shape[1] + len(path) - 1)
            owner.append(tree)
    longest = max(len(row) for row in rows)
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    experts = record_routing(target, ids)[np.arange(len(rows)), ends]  # [N * (M + 1), L, k]
    experts = experts.reshape(count, nodes + 1, *experts.shape[1:])
    return [round(float(_distinct(experts[:, :size], n_experts).mean()), 3) for size in sizes]


def _shared(one: Experts, other: Experts) -> list[float]:
    """Return per layer the mean share of the experts of `one` that are in `other`."""
    hit = (one[..., :, None] == other[..., None, :]).any(-1).mean(-1)
    return [round(float(value), 4) for value in hit.reshape(-1, hit.shape[-1]).mean(0)]


def _distinct(groups: Experts, n_experts: int) -> NDArray[np.int64]:
    """Return int64[G, L] for int16[G, n, L, k]."""
    seen = np.zeros((len(groups), groups.shape[2], n_experts), dtype=bool)
    moved = np.moveaxis(groups, 2, 1).reshape(len(groups), groups.shape[2], -1).astype(np.int64)
    np.put_along_axis(seen, moved, True, axis=2)
    return seen.sum(2)
