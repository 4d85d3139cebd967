"""The states that a pass has at hand, and what a router makes of them early."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .router import Router

if TYPE_CHECKING:
    from ..offload import Offload


class Foresight:
    """The routers of a model, each with its own norm, for states from before their layer.

    Parameters
    ----------
    model : PreTrainedModel
        From `load_offloaded`; only read.
    offload : Offload
        The model's.

    Attributes
    ----------
    routers : list of Router
        One per MoE layer.

    Notes
    -----
    The states at hand are what the experts of a layer read: those after its attention, under its
    norm. All families' norms scale each state to its root mean square and then each channel by a
    weight, so the next layer's norm of them is another scale for each channel. The first layer with
    experts has none before it; it is shown what enters the layer. Scale, router and what was fitted
    are one matrix for each layer, of the router's size.
    """

    def __init__(self, model: Any, offload: Offload) -> None:
        config = model.config.get_text_config(decoder=True)
        family = offload.family
        layers = [model.model.layers[i] for i in family.moe_layers(config)]
        groups = family.groups(config)
        self._offload = offload
        self._dtype = offload.dtype
        self._entry = layers[0]
        self._epsilon = float(config.rms_norm_eps)
        self.routers = [
            Router(layer.get_submodule(family.router_module), offload.top_k, groups)
            for layer in layers
        ]
        gains = [layer.get_submodule(family.norm_module).weight.float() for layer in layers]
        self._scales = [gains[0]] + [
            torch.where(before.abs() > 1e-6, after / before, 0.0)
            for before, after in pairwise(gains)
        ]
        self._fitted: list[tuple[Tensor, Tensor | None]] = []
        for router, scale in zip(self.routers, self._scales, strict=True):
            weight = (router.weight.float() * scale).to(self._dtype)
            self._fitted.append(
                (weight, None if router.bias is None else router.bias.to(self._dtype))
            )

    def logits(self, layer: int, states: Tensor, *, fitted: bool = True) -> Tensor:
        """Return what a layer's router should make of the states that will have come from these.

        Parameters
        ----------
        layer : int
            Counted over the MoE layers.
        states : Tensor, shape (T, H)
            What the experts of the layer before read; for layer 0 what enters it.
        fitted : bool
            False: what it makes of them as they are, which maps learn from.

        Returns
        -------
        Tensor of float32, shape (T, E)
        """
        if not layer:  # the others are under a norm
            states = states.float()
            size = states.square().mean(dim=1, keepdim=True) + self._epsilon
            states = states * torch.rsqrt(size)
        if not fitted:
            return self.routers[layer].logits(states.float() * self._scales[layer])
        weight, bias = self._fitted[layer]
        return torch.nn.functional.linear(states.to(weight.dtype), weight, bias).float()

    def fit(
        self, layer: int, matrix: NDArray[np.float32], offset: NDArray[np.float32]
    ) -> None:
        """Take a map from the logits of early states to those that the router gives."""
        router, device = self.routers[layer], self._scales[layer].device
        change = torch.from_numpy(matrix.T.copy()).to(device)
        shift = torch.from_numpy(offset).to(device)
        if router.bias is not None:
            shift = shift + change @ router.bias.float()
        fitted = change @ (router.weight.float() * self._scales[layer])
        self._fitted[layer] = fitted.to(self._dtype), shift.to(self._dtype)

    @contextmanager
    def entry(self, see: Callable[[Tensor], None]) -> Iterator[None]:
        """Call ``see`` with what enters the first layer with experts, shape (T, H)."""

        def hook(module: Any, args: Any, kwargs: Any) -> None:
            if self._offload.prefetcher is None:
                return  # another thread's pass
            states = args[0] if args else kwargs["hidden_states"]
            see(states.view(-1, states.shape[-1]))

        handle = self._entry.register_forward_pre_hook(hook, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()
