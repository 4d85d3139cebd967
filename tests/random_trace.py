"""Small random traces with everything the format allows."""

from __future__ import annotations

import numpy as np

from specfit_opt.files import Trace


def random_trace(
    rng: np.random.Generator,
    *,
    prompts: int = 2,
    positions: int = 20,
    max_nodes: int = 14,
    n_layers: int = 3,
    n_experts: int = 9,
    sizes: bool = True,
) -> Trace:
    """Return a trace of pools of one node to ``max_nodes``, in no particular node order.

    The children of a node share its path probability, as alternatives do.
    Experts lean to small ids, so that caches hit; some slots are padding, some ids repeat.
    """
    parent: list[int] = []
    prob: list[float] = []
    depth: list[int] = []
    accepted: list[bool] = []
    start = [0]
    prompt: list[int] = []
    position: list[int] = []
    for p in range(prompts):
        # Prompts end at different positions; some are shorter than the plain start.
        for at in range(positions if p == 0 else int(rng.integers(3, positions + 1))):
            n = int(rng.integers(1, max_nodes + 1))
            up, pr, de, ac = [-1], [1.0], [0], [True]
            rest = [1.0]  # what the children so far leave of a node's probability
            taken = set()
            for v in range(1, n):
                u = int(rng.integers(0, v))
                up.append(u)
                share = rest[u] * float(rng.choice([1.0, 0.5, 0.5, 0.25, rng.random()]))
                rest[u] -= share
                rest.append(share)
                pr.append(share)
                de.append(de[u] + 1)
                ok = ac[u] and u not in taken and rng.random() < 0.5
                ac.append(ok)
                if ok:
                    taken.add(u)
            parent += up
            prob += pr
            depth += de
            accepted += ac
            start.append(start[-1] + n)
            prompt.append(p)
            position.append(at)
    n_nodes = start[-1]
    experts = (n_experts * rng.random((n_nodes, n_layers, 3)) ** 2).astype(np.int16)
    experts[rng.random(experts.shape) < 0.1] = -1
    return Trace(
        cycle_start=start,
        prompt=prompt,
        position=position,
        parent=parent,
        token=rng.integers(0, 50, n_nodes),
        path_prob=np.array(prob, dtype=np.float32),
        depth=depth,
        accepted=accepted,
        experts=experts,
        n_experts=n_experts,
        expert_bytes=rng.integers(1_000, 9_000, n_layers) * 1_000 if sizes else None,
        name="random",
    )
