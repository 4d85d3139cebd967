"""Computes with experts in slots what stock computes with all of them in one tensor.

Each product has the rows that it has in stock, in the same order, and what is elementwise has its
elements at the same places. So the results are those of stock to rounding, and to the last bit
where the kernels go by shapes alone, or the weights of both are aligned and rows are multiples of
16 bytes.
"""

from __future__ import annotations

from .compute import compute_batch
from .rows import Rows
from .weights import SlabWeights, slab_weights

__all__ = ["Rows", "SlabWeights", "compute_batch", "slab_weights"]
