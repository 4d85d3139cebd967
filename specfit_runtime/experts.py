"""The experts implementation that computes with an expert cache.

Transformers asks a registry which function computes the experts of a layer. The one registered here
takes the weights from the cache of an offloaded model, in whatever order they arrive, and does what
the stock implementation ``grouped_mm`` does: every row, a token with one of its experts, is
computed by the same kernel from the same operands, is written to its own place, and one sum over a
token's experts in their given order ends it. What that is to the last bit is said in
:mod:`specfit_runtime.expert_compute`.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .errors import InvalidInputError
from .expert_compute import Rows, SlabWeights, compute_batch, slab_weights
from .guards import OfOneModel

if TYPE_CHECKING:
    from .offload import Offload

#: What the implementation is called in Transformers' registry.
EXPERTS_IMPLEMENTATION = "specfit_offload"


def register() -> None:
    """Enter the implementation into Transformers' registry; may be called again."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(EXPERTS_IMPLEMENTATION, offloaded_experts_forward)


class ExpertLayer(OfOneModel):
    """Tells an experts module whose it is; its attribute ``_specfit``.

    Parameters
    ----------
    offload : Offload
        With the cache, the layouts, the lock and the record of the routing.
    layer : int
        Number of the layer among the MoE layers.
    """

    def __init__(self, offload: Offload, layer: int) -> None:
        self.offload = offload
        self.layer = layer
        self._weights: dict[int, SlabWeights] = {}

    def weights(self, slab: Tensor, module: Any) -> SlabWeights:
        """Return the parameters in a slab of the cache."""
        found = self._weights.get(id(slab))
        if found is None:
            # It holds the slab, so that no other object gets its id.
            found = slab_weights(slab, self.offload.index.layouts[self.layer], module)
            self._weights[id(slab)] = found
        return found


def require_implementation(module: torch.nn.Module, args: Any) -> None:
    """Refuse a forward pass of stock code over the parameters on meta, which gives no numbers."""
    chosen = getattr(module.config, "_experts_implementation", None)
    if chosen != EXPERTS_IMPLEMENTATION:
        raise InvalidInputError(
            f"the experts implementation of this offloaded model was changed to {chosen!r}, which "
            f"needs all experts in memory; call set_experts_implementation("
            f"{EXPERTS_IMPLEMENTATION!r}), or load the model with from_pretrained"
        )


def offloaded_experts_forward(
    self: torch.nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Compute the experts of a layer with weights from the expert cache.

    Parameters
    ----------
    self : torch.nn.Module
        A stock experts module with an :class:`ExpertLayer`; its own parameters are not looked at.
    hidden_states : Tensor, shape (T, H)
    top_k_index : Tensor of int, shape (T, k)
    top_k_weights : Tensor, shape (T, k)

    Returns
    -------
    Tensor, shape (T, H)

    Raises
    ------
    InvalidInputError
        If the module was not loaded by ``load_offloaded``, or gradients are asked for.
    StoreError
        If an expert cannot be fetched.
    """
    tag = _checked_layer(self, hidden_states, top_k_weights)
    offload, layer = tag.offload, tag.layer
    prefetcher, meanwhile = offload.prefetcher, None
    if prefetcher is None:
        routing = top_k_index.cpu()
    else:
        routing = prefetcher.routing(layer, hidden_states, top_k_index)
        meanwhile = partial(prefetcher.meanwhile, layer, hidden_states)
    n_tokens, top_k = routing.shape
    with offload.lock, torch.no_grad():
        offload.record_routing(layer, routing.numpy().astype(np.int32))
        if not n_tokens:
            return torch.empty_like(hidden_states)
        rows = Rows(routing, offload.n_experts, hidden_states.device)
        out = None
        weights = top_k_weights.reshape(-1)
        with closing(offload.cache.use(layer, rows.experts, rows.demand, meanwhile)) as batches:
            for batch in batches:
                parameters = tag.weights(batch.slab, self)
                mine, computed = compute_batch(
                    self, batch, parameters, rows, hidden_states, weights
                )
                if out is None:
                    out = computed.new_empty((rows.n_rows, computed.shape[1]))
                out.index_copy_(0, mine, computed)
        assert out is not None
        return out.view(n_tokens, top_k, -1).sum(dim=1).to(hidden_states.dtype)


def _checked_layer(
    module: torch.nn.Module, hidden_states: Tensor, top_k_weights: Tensor
) -> ExpertLayer:
    """Return whose ``module`` is, if its experts can be computed so."""
    tag = getattr(module, "_specfit", None)
    if not isinstance(tag, ExpertLayer):
        raise InvalidInputError(
            f"this {type(module).__name__} has no expert cache: the experts implementation "
            f"{EXPERTS_IMPLEMENTATION!r} is for models that load_offloaded returned"
        )
    if torch.is_grad_enabled() and (hidden_states.requires_grad or top_k_weights.requires_grad):
        raise InvalidInputError(
            "an offloaded model cannot be trained: its experts are not parameters; run it under "
            "torch.no_grad() or torch.inference_mode()"
        )
    if getattr(module, "_is_expert_parallel", False):
        raise InvalidInputError(
            "expert parallelism and offloaded experts exclude each other; load the model on one "
            "device"
        )
    return tag
