"""The experts implementation that computes with an expert cache.

Transformers asks a registry which function computes the experts of a layer. The one registered here
takes the weights from the cache of an offloaded model, in whatever order they arrive, and gives bit
for bit what the stock implementation ``grouped_mm`` gives: every row, a token with one of its
experts, is computed by the same kernel from the same operands, is written to its own place, and one
sum over a token's experts in their given order ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from .errors import InvalidInputError

if TYPE_CHECKING:
    from .expert_cache import ReadyBatch
    from .offload import Offload

#: What the implementation is called in Transformers' registry.
EXPERTS_IMPLEMENTATION = "specfit_offload"


def register() -> None:
    """Enter the implementation into Transformers' registry; may be called again."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(EXPERTS_IMPLEMENTATION, offloaded_experts_forward)


class ExpertLayer:
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
        self._weights: dict[int, tuple[Tensor, dict[str, Tensor]]] = {}

    def weights(self, slab: Tensor) -> dict[str, Tensor]:
        """Return the parameters that the records of a slab hold, by name, as views."""
        found = self._weights.get(id(slab))
        if found is None:
            views = self.offload.index.layouts[self.layer].views(slab)
            # The slab is kept too, so that no other object gets its id.
            found = self._weights[id(slab)] = (slab, views)
        return found[1]

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise InvalidInputError(
            "an offloaded model cannot be copied: files, threads and slots belong to one model; "
            "load it a second time with load_offloaded"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise InvalidInputError(
            "an offloaded model cannot be pickled: its experts are not in it; pass on the "
            "checkpoint and load it with load_offloaded"
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
    tag = getattr(self, "_specfit", None)
    if not isinstance(tag, ExpertLayer):
        raise InvalidInputError(
            f"this {type(self).__name__} has no expert cache: the experts implementation "
            f"{EXPERTS_IMPLEMENTATION!r} is for models that load_offloaded returned"
        )
    if torch.is_grad_enabled() and (hidden_states.requires_grad or top_k_weights.requires_grad):
        raise InvalidInputError(
            "an offloaded model cannot be trained: its experts are not parameters; run it under "
            "torch.no_grad() or torch.inference_mode()"
        )
    if getattr(self, "_is_expert_parallel", False):
        raise InvalidInputError(
            "expert parallelism and offloaded experts exclude each other; load the model on one "
            "device"
        )
    offload, layer = tag.offload, tag.layer
    routing = top_k_index.to("cpu", torch.int32).numpy()
    n_tokens, top_k = routing.shape
    with offload.lock, torch.no_grad():
        offload.record_routing(layer, routing)
        if not n_tokens:
            return torch.empty_like(hidden_states)
        rows = _Rows(routing.reshape(-1), offload.n_experts)
        cache = offload.cache
        out = None
        weights = top_k_weights.reshape(-1)
        with closing(cache.use(layer, rows.experts, rows.demand)) as batches:
            for batch in batches:
                part, computed = _compute(self, tag, batch, rows, hidden_states, weights, top_k)
                if out is None:
                    out = computed.new_empty((n_tokens * top_k, computed.shape[1]))
                out.index_copy_(0, part, computed)
        assert out is not None
        return out.view(n_tokens, top_k, -1).sum(dim=1).to(hidden_states.dtype)


class _Rows:
    """The rows of a forward pass, each a token with one of its experts, grouped by expert."""

    def __init__(self, ids: np.ndarray[Any, Any], n_experts: int) -> None:
        count = np.bincount(ids, minlength=n_experts)
        if len(count) > n_experts:
            raise InvalidInputError(f"the router chose expert {len(count) - 1} of {n_experts}")
        used = np.flatnonzero(count)
        self.experts: list[int] = used.tolist()
        self.demand: list[int] = count[used].tolist()
        self._order = np.argsort(ids, kind="stable")
        end = np.cumsum(count)
        self._end: list[int] = end.tolist()
        self._start: list[int] = (end - count).tolist()

    def of(self, experts: Sequence[int]) -> tuple[np.ndarray[Any, Any], list[int]]:
        """Return the rows of these experts, one after the other, and how many each has."""
        start, end = self._start, self._end
        if len(experts) == len(self.experts) and list(experts) == self.experts:
            return self._order, self.demand
        parts = [self._order[start[e] : end[e]] for e in experts]
        return np.concatenate(parts), [end[e] - start[e] for e in experts]


def _compute(
    module: Any,
    tag: ExpertLayer,
    batch: ReadyBatch,
    rows: _Rows,
    hidden_states: Tensor,
    weights: Tensor,
    top_k: int,
) -> tuple[Tensor, Tensor]:
    """Return the rows of a batch's experts and, weighted, what the experts make of them."""
    parameter = tag.weights(batch.slab)
    by_slot = sorted(zip(batch.slots, batch.experts, strict=True))
    slots = [slot for slot, _ in by_slot]
    found, counts = rows.of([expert for _, expert in by_slot])
    part = torch.from_numpy(found).to(hidden_states.device)
    groups = _Groups(slots, counts, len(batch.slab), hidden_states.device)
    up_name = "gate_up_proj" if module.has_gate else "up_proj"
    x = hidden_states.index_select(0, part // top_k)
    y = groups.linear(x, parameter, up_name, module)
    y = module._apply_gate(y) if module.has_gate else module.act_fn(y)
    y = groups.linear(y, parameter, "down_proj", module)
    if getattr(module, "has_post_expert_norm", False):
        y = module.post_expert_norm(y)
    return part, y * weights.index_select(0, part).unsqueeze(-1)


class _Groups:
    """Rows grouped by slot, and the products of each group with its slot's matrix."""

    def __init__(
        self, slots: list[int], counts: list[int], n_slots: int, device: torch.device
    ) -> None:
        self._slots, self._counts = slots, counts
        per_slot = np.zeros(n_slots, dtype=np.int32)
        per_slot[slots] = counts
        self._offsets = torch.from_numpy(np.cumsum(per_slot, dtype=np.int32)).to(device)
        self._rows = torch.from_numpy(np.repeat(slots, counts)).to(device)

    def linear(self, x: Tensor, parameter: dict[str, Tensor], name: str, module: Any) -> Tensor:
        """Return each row of ``x`` times the matrix ``name`` of its slot, plus the bias."""
        weight = parameter[name]
        matrix = weight if module.is_transposed else weight.transpose(-2, -1)
        x = x.to(matrix.dtype)
        if matrix.dtype == torch.float64:
            parts = torch.split(x, self._counts)
            y = torch.cat([p @ matrix[s] for p, s in zip(parts, self._slots, strict=True)])
        else:
            y = torch.nn.functional.grouped_mm(x, matrix, offs=self._offsets)
        if module.has_bias:
            y.add_(parameter[f"{name}_bias"].index_select(0, self._rows))
        return y
