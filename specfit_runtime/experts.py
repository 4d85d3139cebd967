"""The experts implementation that computes with an expert cache.

Transformers asks a registry which function computes the experts of a layer. The one registered here
takes the weights from the cache of an offloaded model, in whatever order they arrive, and gives bit
for bit what the stock implementation ``grouped_mm`` gives: every row, a token with one of its
experts, is computed by the same kernel from the same operands, is written to its own place, and one
sum over a token's experts in their given order ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
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


class Weight(NamedTuple):
    """The matrices that one parameter has in a slab, as factors on the right."""

    stacked: Tensor
    by_slot: tuple[Tensor, ...]


class Weights(NamedTuple):
    """The parameters of the experts in a slab; the slab too, so that no other gets its id."""

    slab: Tensor
    up: Weight
    up_bias: Tensor | None
    down: Weight
    down_bias: Tensor | None


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
        self._weights: dict[int, Weights] = {}

    def weights(self, slab: Tensor, module: Any) -> Weights:
        """Return the parameters that the records of a slab hold, as views."""
        found = self._weights.get(id(slab))
        if found is None:
            views = self.offload.index.layouts[self.layer].views(slab)
            up = "gate_up_proj" if module.has_gate else "up_proj"

            def weight(name: str) -> Weight:
                stacked = views[name] if module.is_transposed else views[name].transpose(-2, -1)
                return Weight(stacked, stacked.unbind(0))

            def bias(name: str) -> Tensor | None:
                return views[f"{name}_bias"] if module.has_bias else None

            found = self._weights[id(slab)] = Weights(
                slab, weight(up), bias(up), weight("down_proj"), bias("down_proj")
            )
        return found

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
        rows = _Rows(routing.reshape(-1), offload.n_experts, hidden_states.device)
        out = None
        weights = top_k_weights.reshape(-1)
        with closing(offload.cache.use(layer, rows.experts, rows.demand)) as batches:
            for batch in batches:
                part, computed = _compute(self, tag, batch, rows, hidden_states, weights, top_k)
                if out is None:
                    out = computed.new_empty((n_tokens * top_k, computed.shape[1]))
                out.index_copy_(0, part, computed)
        assert out is not None
        return out.view(n_tokens, top_k, -1).sum(dim=1).to(hidden_states.dtype)


class _Rows:
    """The rows of a forward pass, each a token with one of its experts, grouped by expert."""

    def __init__(self, ids: NDArray[np.int32], n_experts: int, device: torch.device) -> None:
        if ids.min() < 0 or ids.max() >= n_experts:
            bad = ids.min() if ids.min() < 0 else ids.max()
            raise InvalidInputError(f"the router chose expert {bad} of {n_experts}")
        count = np.bincount(ids, minlength=n_experts)
        used = np.flatnonzero(count)
        self.experts: list[int] = used.tolist()
        self.demand: list[int] = count[used].tolist()
        self._order = np.argsort(ids, kind="stable")
        self._device = device
        end = np.cumsum(count)
        self._end: list[int] = end.tolist()
        self._start: list[int] = (end - count).tolist()

    def of(self, experts: list[int]) -> tuple[Tensor, list[int]]:
        """Return the rows of these experts, one after the other, and how many each has."""
        order, start, end = self._order, self._start, self._end
        if experts == self.experts:
            counts = self.demand
        else:
            order = np.concatenate([order[start[e] : end[e]] for e in experts])
            counts = [end[e] - start[e] for e in experts]
        return _on_device(order, self._device), counts


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
    parameter = tag.weights(batch.slab, module)
    by_slot = sorted(zip(batch.slots, batch.experts, strict=True))
    slots = [slot for slot, _ in by_slot]
    part, counts = rows.of([expert for _, expert in by_slot])
    groups = _Groups(slots, counts, len(batch.slab), batch.slab.dtype, hidden_states.device)
    x = hidden_states.index_select(0, part // top_k)
    y = groups.linear(x, parameter.up, parameter.up_bias)
    y = module._apply_gate(y) if module.has_gate else module.act_fn(y)
    y = groups.linear(y, parameter.down, parameter.down_bias)
    if getattr(module, "has_post_expert_norm", False):
        y = module.post_expert_norm(y)
    return part, y * weights.index_select(0, part).unsqueeze(-1)


class _Groups:
    """Rows grouped by slot, and the products of each group with its slot's matrix.

    On a CPU grouped_mm is one mm after the other, bit for bit. It also visits the slots that have
    no rows, so that calling mm is faster; and it knows neither float64 nor, before torch 2.9, CPUs.
    """

    def __init__(
        self,
        slots: list[int],
        counts: list[int],
        n_slots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._slots, self._counts, self._device = slots, counts, device
        self._offsets: Tensor | None = None
        if dtype != torch.float64 and _grouped_mm(device) is not None:
            per_slot = np.zeros(n_slots, dtype=np.int32)
            per_slot[slots] = counts
            self._offsets = _on_device(np.cumsum(per_slot, dtype=np.int32), device)

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        """Return each row of ``x`` times the matrix of its slot, plus the bias."""
        if x.dtype != weight.stacked.dtype:
            x = x.to(weight.stacked.dtype)
        if self._offsets is None:
            if torch.is_autocast_enabled(self._device.type):
                # Autocast knows mm but not the stock implementation's grouped_mm.
                with torch.autocast(self._device.type, enabled=False):
                    y = self._one_by_one(x, weight)
            else:
                y = self._one_by_one(x, weight)
        else:
            grouped_mm = _grouped_mm(self._device)
            assert grouped_mm is not None
            y = grouped_mm(x, weight.stacked, offs=self._offsets)
        if bias is not None:
            rows = _on_device(np.repeat(self._slots, self._counts), self._device)
            y.add_(bias.index_select(0, rows))
        return y

    def _one_by_one(self, x: Tensor, weight: Weight) -> Tensor:
        parts = torch.split_with_sizes(x, self._counts)
        products = [
            torch.mm(part, weight.by_slot[slot])
            for part, slot in zip(parts, self._slots, strict=True)
        ]
        return products[0] if len(products) == 1 else torch.cat(products)


def _on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return an array as a tensor, which shares its memory on a CPU."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.to(device)


@cache
def _grouped_mm(device: torch.device) -> Callable[..., Tensor] | None:
    """Return what computes all groups at once on a device; None: one by one, as stock does."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return None
    return getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
