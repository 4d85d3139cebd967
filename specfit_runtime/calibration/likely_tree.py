"""A draft tree that is likely by the target's own reckoning, to measure passes with."""

from __future__ import annotations

import numpy as np
import torch

from specfit_opt.errors import InvalidInputError

from ..verify import TargetSession

#: Children per node and levels of the tree.
_CHILDREN, _LEVELS = 8, 5


def likely_tree(session: TargetSession, root: int, n_nodes: int) -> tuple[list[int], list[int]]:
    """Return tokens and parents of a tree of ``n_nodes`` nodes, by falling path probability.

    Its first nodes are trees too, those that a perfect drafter would propose. Their experts overlap
    as those of real drafts do, which random tokens' experts would not.

    Parameters
    ----------
    session : TargetSession
        With the text that the tree continues; left as it was.
    root : int
        The last token of the text.
    n_nodes : int

    Raises
    ------
    InvalidInputError
        If the model's logits are not finite.
    """
    tokens, parent, path = [root], [-1], [1.0]
    width = max(1, -(-(n_nodes - 1) // _LEVELS))
    frontier = [0]
    while len(tokens) < n_nodes:
        result = session.verify(tokens, parent)
        session.rollback()
        prob = torch.softmax(result.logits[frontier].double(), dim=-1)
        best = torch.topk(prob, min(_CHILDREN, prob.shape[-1]), dim=-1)
        if not bool(torch.isfinite(prob).all()):
            raise InvalidInputError(
                "the model's logits are not finite, so there is nothing to measure; check its "
                "weights and dtype"
            )
        found = sorted(
            (
                (-path[node] * p, node, token)
                for node, probs, children in zip(
                    frontier, best.values.tolist(), best.indices.tolist(), strict=True
                )
                for p, token in zip(probs, children, strict=True)
            ),
        )[: min(width, n_nodes - len(tokens))]
        frontier = list(range(len(tokens), len(tokens) + len(found)))
        tokens += [token for _, _, token in found]
        parent += [node for _, node, _ in found]
        path += [-p for p, _, _ in found]
    # Parents stay before their children: no child is likelier, and equals keep their order.
    order = np.argsort(-np.array(path), kind="stable")
    place = {int(node): i for i, node in enumerate(order)}
    return (
        [tokens[node] for node in order],
        [-1 if parent[node] < 0 else place[parent[node]] for node in order],
    )
