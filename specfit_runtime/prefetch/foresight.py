"""The states that a pass has at hand, and the router that they are shown to early."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .router import Router

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..offload import Offload


class Foresight:
    """The routers of a model, each with its own norm, for states from before their layer.

    Parameters
    ----------
    model : PreTrainedModel
        From `load_offloaded`; only read.
    offload : Offload
        The model's.

    Notes
    -----
    The states at hand are what the experts of a layer read: those after its attention, under its
    norm. All families' norms scale each state to its root mean square and then each channel by a
    weight, so the next layer's norm of them is another scale for each channel. The first layer with
    experts has none before it; it is shown what enters the layer.
    """

    def __init__(self, model: Any, offload: Offload) -> None:
        config = model.config.get_text_config(decoder=True)
        family = offload.family
        self._offload = offload
        layers = [model.model.layers[i] for i in family.moe_layers(config)]
        groups = family.groups(config)
        self.routers = [
            Router(layer.get_submodule(family.router_module), offload.top_k, groups)
            for layer in layers
        ]
        self._norms = [layer.get_submodule(family.norm_module) for layer in layers]
        self._entry = layers[0]
        weights = [norm.weight.float() for norm in self._norms]
        self._scales = [
            torch.where(before.abs() > 1e-6, after / before, 0.0).to(norm.weight.dtype)
            for before, after, norm in zip(weights, weights[1:], self._norms, strict=False)
        ]

    def next_logits(self, layer: int, states: Tensor) -> Tensor | None:
        """Return what the router after ``layer`` makes of what the experts of ``layer`` read.

        Parameters
        ----------
        layer : int
            Counted over the MoE layers.
        states : Tensor, shape (T, H)

        Returns
        -------
        Tensor of float32, shape (T, E), or None
            None after the last layer.
        """
        if layer == len(self._scales):
            return None
        return self.routers[layer + 1].logits(states * self._scales[layer])

    @contextmanager
    def entry(self, see: Callable[[Tensor], None]) -> Iterator[None]:
        """Call ``see`` with the first router's logits of what enters its layer, shape (T, E)."""

        def hook(module: Any, args: Any, kwargs: Any) -> None:
            if self._offload.prefetcher is None:
                return  # another thread's pass
            states = args[0] if args else kwargs["hidden_states"]
            normed = self._norms[0](states)
            see(self.routers[0].logits(normed.reshape(-1, normed.shape[-1])))

        handle = self._entry.register_forward_pre_hook(hook, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()
