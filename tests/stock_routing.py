"""Records the routing of a stock Transformers model, as an offloaded one records its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn


class StockRouting:
    """Listens to what the experts modules of ``model`` are asked for."""

    def __init__(self, model: nn.Module) -> None:
        self.layers = [m for name, m in model.named_modules() if name.endswith(".experts")]
        assert self.layers

    @contextmanager
    def recording(self) -> Iterator[StockRecord]:
        record = StockRecord(len(self.layers))
        handles = [
            module.register_forward_pre_hook(record.listener(layer))
            for layer, module in enumerate(self.layers)
        ]
        try:
            yield record
        finally:
            for handle in handles:
                handle.remove()


class StockRecord:
    """What was heard."""

    def __init__(self, n_layers: int) -> None:
        self.heard: list[list[torch.Tensor]] = [[] for _ in range(n_layers)]

    def listener(self, layer: int) -> Any:
        def listen(module: nn.Module, args: tuple[Any, ...]) -> None:
            self.heard[layer].append(args[1])

        return listen

    def experts(self) -> NDArray[np.int32]:
        layers = [torch.cat(heard) for heard in self.heard]
        return torch.stack(layers, dim=1).to("cpu", torch.int32).numpy()
