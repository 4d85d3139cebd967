"""Computes what is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from .gate import apply_gate
from .products import Products, all_at_once
from .rows import Rows
from .weights import SlabWeights

if TYPE_CHECKING:
    from ..expert_cache import ReadyBatch


def compute_batch(
    module: Any,
    batch: ReadyBatch,
    parameters: SlabWeights,
    rows: Rows,
    hidden_states: Tensor,
    weights: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the rows of a batch's experts and, weighted, what the experts make of them.

    Parameters
    ----------
    module : stock experts module
    batch : ReadyBatch
    parameters : SlabWeights
        Of the batch's slab.
    rows : Rows
    hidden_states : Tensor, shape (T, H)
    weights : Tensor, shape (T * k,)

    Returns
    -------
    tuple of Tensor
        The rows, int64 of shape (n,), and their outputs, of shape (n, H).
    """
    device, dtype = hidden_states.device, batch.slab.dtype
    if all_at_once(device, dtype) is None:
        by_expert = sorted(zip(batch.experts, batch.slots, strict=True))
        experts, slots = [e for e, _ in by_expert], [s for _, s in by_expert]
    else:
        by_slot = sorted(zip(batch.slots, batch.experts, strict=True))
        experts, slots = [e for _, e in by_slot], [s for s, _ in by_slot]
    mine, counts = rows.of(experts)
    products = Products(slots, counts, len(batch.slab), device, dtype)
    y = products.of(hidden_states.index_select(0, mine // rows.top_k), parameters.up)
    y = apply_gate(module, y, rows, experts)
    y = products.of(y, parameters.down)
    if getattr(module, "has_post_expert_norm", False):
        y = module.post_expert_norm(y)
    return mine, y * weights.index_select(0, mine).unsqueeze(-1)
