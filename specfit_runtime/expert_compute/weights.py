"""The parameters of the experts in a slab, as the products need them."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from ..checkpoint import RecordLayout


class Weight(NamedTuple):
    """What one parameter is in every slot, as a factor on the right, and its bias.

    Attributes
    ----------
    stacked : Tensor, shape (S, n_in, n_out)
    by_slot : tuple of Tensor, shape (n_in, n_out) each
    bias : Tensor or None, shape (S, n_out)
    """

    stacked: Tensor
    by_slot: tuple[Tensor, ...]
    bias: Tensor | None


class SlabWeights(NamedTuple):
    """The parameters in a slab: views, so that whatever is fetched into it shows."""

    slab: Tensor
    up: Weight
    down: Weight


def slab_weights(slab: Tensor, layout: RecordLayout, module: Any) -> SlabWeights:
    """Return the parameters of ``module``, a stock experts module, as they lie in ``slab``."""
    views = layout.views(slab)

    def weight(name: str) -> Weight:
        stacked = views[name] if module.is_transposed else views[name].transpose(-2, -1)
        bias = views[f"{name}_bias"] if module.has_bias else None
        return Weight(stacked, stacked.unbind(0), bias)

    up = "gate_up_proj" if module.has_gate else "up_proj"
    return SlabWeights(slab, weight(up), weight("down_proj"))
