"""Which keys each node of a draft tree may attend to, and the mask that tells the model so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specfit_opt.arrays import integer_array

from ..errors import InvalidInputError

__all__ = ["MASK_FORMATS", "TreeShape", "attention_mask"]


@dataclass(frozen=True, eq=False)
class TreeShape:
    """The ancestry of a draft tree that is verified behind a prefix.

    Attributes
    ----------
    parent : ndarray of int64, shape (n,)
        -1 for the root, which is node 0; parents come before their children.
    depth : ndarray of int64, shape (n,)
        Edges from the root. A node's position in the text is the prefix's length plus this.
    ancestors : ndarray of bool, shape (n, n)
        ``ancestors[v, u]``: u lies on the path from the root to v, v included.
    """

    parent: NDArray[np.int64]
    depth: NDArray[np.int64]
    ancestors: NDArray[np.bool_]

    @classmethod
    def of(cls, parent: Sequence[int] | NDArray[np.integer]) -> TreeShape:
        """Return the shape of a tree from the parents of its nodes.

        Raises
        ------
        InvalidInputError
            If there is no node, node 0 is not the root, or a node's parent is missing or comes
            after it. A node verified without its parent would attend to a text that nobody wrote.

        Notes
        -----
        Takes O(n^2) time and memory for the n^2 pairs of ``ancestors``.
        """
        if len(parent) == 0:
            raise InvalidInputError("the tree has no nodes; it needs its root at least")
        parents = integer_array(parent, "parent", 1, np.int64)
        n = len(parents)
        if parents[0] != -1:
            raise InvalidInputError(f"parent[0] = {parents[0]}, but node 0 is the root: give -1")
        depth = np.zeros(n, dtype=np.int64)
        ancestors = np.zeros((n, n), dtype=np.bool_)
        ancestors[0, 0] = True
        for v, u in enumerate(parents[1:].tolist(), start=1):
            if not 0 <= u < v:
                raise InvalidInputError(
                    f"parent[{v}] = {u}: node {v} has no parent among the nodes before it; verify "
                    "a node only together with its ancestors, parents first"
                )
            depth[v] = depth[u] + 1
            ancestors[v] = ancestors[u]
            ancestors[v, v] = True
        for array in (depth, ancestors):
            array.flags.writeable = False
        return cls(parents, depth, ancestors)

    @property
    def n_nodes(self) -> int:
        """Number of nodes, the root included."""
        return len(self.parent)

    def visible(
        self, prefix: int, *, kept: int | None = None, window: int | None = None
    ) -> NDArray[np.bool_]:
        """Return which keys each node attends to.

        Parameters
        ----------
        prefix : int
            Tokens before the root.
        kept : int, optional
            Keys of the prefix that the cache still holds, the most recent ones. Default: all.
        window : int, optional
            A sliding-window layer sees a key only if it lies less than ``window`` positions back,
            the node's own position counting as 0.

        Returns
        -------
        ndarray of bool, shape (n, kept + n)
            The kept prefix first, then the nodes.

        Raises
        ------
        InvalidInputError
            If keys are gone that the window still shows.
        """
        kept = prefix if kept is None else kept
        if not 0 <= kept <= prefix:
            raise InvalidInputError(f"kept = {kept} is not between 0 and the prefix of {prefix}")
        if kept < min(prefix, prefix if window is None else window - 1):
            raise InvalidInputError(
                f"the cache holds {kept} of {prefix} earlier keys, but the "
                + ("layer sees them all" if window is None else f"window is {window}")
            )
        n = self.n_nodes
        seen = np.empty((n, kept + n), dtype=np.bool_)
        seen[:, :kept] = True
        seen[:, kept:] = self.ancestors
        if window is not None:
            position = np.concatenate([np.arange(prefix - kept, prefix), prefix + self.depth])
            back = (prefix + self.depth)[:, None] - position[None, :]
            seen &= back < window
        return seen

    def position_ids(self, prefix: int, device: torch.device | str) -> torch.Tensor:
        """Return the nodes' positions in the text, shape [1, n]: siblings share one."""
        return torch.from_numpy(self.depth + prefix).to(device)[None]


def _additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # Eager attention adds the mask to the scores. A bool mask would be added as 0 and 1, without an
    # error. The lowest finite number, as Transformers has it: -inf would give NaN in other places.
    zero = torch.zeros((), dtype=dtype, device=visible.device)
    return torch.where(visible, zero, torch.finfo(dtype).min)


def _boolean(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # What Transformers itself gives to scaled_dot_product_attention.
    return visible


#: How each attention implementation takes a mask, by its name in Transformers.
MASK_FORMATS: dict[str, Callable[[torch.Tensor, torch.dtype], torch.Tensor]] = {
    "eager": _additive,
    "sdpa": _boolean,
}


def attention_mask(
    visible: NDArray[np.bool_],
    implementation: str,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
) -> torch.Tensor:
    """Return ``visible`` in the form that an attention implementation takes.

    Parameters
    ----------
    visible : ndarray of bool, shape (n, keys)
    implementation : str
        A key of `MASK_FORMATS`.
    dtype : torch.dtype
        Of the model's activations.
    device : torch.device or str

    Returns
    -------
    Tensor, shape [1, 1, n, keys]
        For ``"eager"`` of ``dtype``, to be added to the scores; for ``"sdpa"`` of bool, True where
        a key is seen.

    Raises
    ------
    InvalidInputError
        If the implementation takes no mask of arbitrary shape, as flash attention does not.
    """
    return require_mask_format(implementation)(
        torch.from_numpy(visible).to(device)[None, None], dtype
    )


def require_mask_format(
    implementation: str,
) -> Callable[[torch.Tensor, torch.dtype], torch.Tensor]:
    """Return how ``implementation`` takes a mask.

    Raises
    ------
    InvalidInputError
        If it takes none that can express a tree.
    """
    if implementation not in MASK_FORMATS:
        raise InvalidInputError(
            f"attention implementation {implementation!r} cannot verify a tree; load the model "
            f"with attn_implementation={' or '.join(repr(name) for name in MASK_FORMATS)}"
        )
    return MASK_FORMATS[implementation]
