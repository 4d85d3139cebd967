"""Stock experts modules of every family, and the same experts behind a cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import numpy as np
import torch
from manual_store import ManualStore
from numpy.typing import NDArray
from tiny_models import tiny_model

from specfit_runtime.checkpoint import RecordLayout
from specfit_runtime.expert_cache import ExpertCache
from specfit_runtime.experts import EXPERTS_IMPLEMENTATION, ExpertLayer, register

register()


@dataclass
class FakeOffload:
    """What the experts implementation needs of an offload."""

    cache: ExpertCache
    index: Any
    n_experts: int
    lock: Any = field(default_factory=RLock)
    recorded: list[tuple[int, NDArray[np.int32]]] = field(default_factory=list)
    prefetcher: None = None

    def record_routing(self, layer: int, routing: NDArray[np.int32]) -> None:
        self.recorded.append((layer, routing))


class StockExperts:
    """The experts module of a tiny model, run as stock or from a cache.

    Parameters
    ----------
    model_type : str
    dtype : torch.dtype
    **changes
        To the tiny model's configuration.
    """

    def __init__(self, model_type: str, dtype: torch.dtype, **changes: Any) -> None:
        model = tiny_model(model_type, torch.float32, **changes)
        modules = [m for m in model.modules() if type(m).__name__.endswith("Experts")]
        self.module: Any = modules[-1].to(dtype)
        self.dtype = dtype
        self.hidden_size: int = model.config.hidden_size
        self.n_experts: int = self.module.num_experts
        names = ["gate_up_proj", "down_proj"]
        if self.module.has_bias:
            names = [name for part in names for name in (part, f"{part}_bias")]
        parameters = {name: getattr(self.module, name).detach() for name in names}
        self.layout = RecordLayout.of(
            [(name, tuple(p.shape[1:])) for name, p in parameters.items()], dtype
        )
        self.records = torch.zeros(self.n_experts, self.layout.n_elements, dtype=dtype)
        for name, view in self.layout.views(self.records).items():
            view.copy_(parameters[name])

    def behind_a_cache(
        self, slots: int, *, scratch: int = 2, seed: int | None = 0, **options: Any
    ) -> tuple[FakeOffload, ManualStore]:
        """Return an offload over a new cache and its store, whose fetches end at random."""
        store = ManualStore([self.layout], self.n_experts, records=[self.records], seed=seed)
        cache = ExpertCache(store, [slots], scratch=scratch, **options)
        return FakeOffload(cache, store.index, self.n_experts), store

    def inputs(
        self, n_tokens: int, *, seed: int = 0, top_k: int = 2, weights: torch.dtype | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return hidden states, distinct experts and their weights, random."""
        generator = torch.Generator().manual_seed(seed)
        hidden = torch.randn(n_tokens, self.hidden_size, generator=generator).to(self.dtype)
        scores = torch.randn(n_tokens, self.n_experts, generator=generator).softmax(-1)
        weight, index = torch.topk(scores, top_k)
        return hidden, index, weight.to(weights or self.dtype)

    def stock(self, *inputs: torch.Tensor, implementation: str = "grouped_mm") -> torch.Tensor:
        """Run the module as stock."""
        return self._run(implementation, None, inputs)

    def offloaded(self, offload: FakeOffload, *inputs: torch.Tensor) -> torch.Tensor:
        """Run the module from the offload's cache."""
        tag = self.module.__dict__.get("_specfit")
        if tag is None or tag.offload is not offload:
            tag = ExpertLayer(offload, 0)  # type: ignore[arg-type]
        return self._run(EXPERTS_IMPLEMENTATION, tag, inputs)

    def _run(
        self, implementation: str, tag: ExpertLayer | None, inputs: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        self.module._specfit = tag
        self.module.config._experts_implementation = implementation
        with torch.no_grad():
            output: torch.Tensor = self.module(*inputs)
        return output
