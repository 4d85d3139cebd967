"""How far the size of a predicted union of experts is off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specfit_opt.expert_union import expert_union
from specfit_opt.files import Trace


@dataclass(frozen=True)
class UnionError:
    """The union of the experts of a tree, predicted against true, over the positions of a trace.

    Attributes
    ----------
    tree : str
        ``"eagle-N"``: the N nodes of highest path probability, root included; ``"pool"``: all.
    true_size : float
        Mean experts per layer.
    error : float
        Mean of the absolute difference in size relative to the true size, over all layers at once.
    bias : float
        Mean of that difference with its sign; negative: too few experts were expected.
    """

    tree: str
    true_size: float
    error: float
    bias: float


def union_errors(
    trace: Trace, predicted: NDArray[np.integer], sizes: tuple[int, ...] = (8,)
) -> tuple[UnionError, ...]:
    """Return the errors of the ``sizes`` most probable nodes, and of the whole pool.

    Parameters
    ----------
    trace : Trace
    predicted : ndarray of int, shape (N, L, k)
    sizes : tuple of int
        Pools with fewer nodes are left out.
    """
    found: dict[str, list[tuple[int, int]]] = {f"eagle-{size}": [] for size in sizes}
    found["pool"] = []
    for cycle in trace.cycles():
        start, stop = trace.cycle_start[cycle.index : cycle.index + 2].tolist()
        order = cycle.tree.prefix_order()
        trees = {f"eagle-{size}": order[:size] for size in sizes if size <= len(order)}
        for name, nodes in {**trees, "pool": order}.items():
            found[name].append(
                (
                    int(expert_union(predicted[start:stop][nodes], trace.n_experts).sum()),
                    int(expert_union(cycle.experts[nodes], trace.n_experts).sum()),
                )
            )
    errors = []
    for name, pairs in found.items():
        if pairs:
            guess, true = np.array(pairs, dtype=np.float64).T
            off = (guess - true) / true
            errors.append(
                UnionError(
                    tree=name,
                    true_size=float(true.mean()) / trace.n_layers,
                    error=float(np.abs(off).mean()),
                    bias=float(off.mean()),
                )
            )
    return tuple(errors)
