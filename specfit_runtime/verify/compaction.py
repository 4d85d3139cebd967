"""Going back: what a verification appended to the cache is kept along one path, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from ..errors import InvalidInputError
from .transformers_api import slides

__all__ = ["CachePoint"]


@dataclass(frozen=True, eq=False)
class _LayerPoint:
    """One layer as it was: its length, and what a sliding layer held (at most a window)."""

    kept: int
    keys: Tensor | None
    values: Tensor | None


class CachePoint:
    """A state of a cache to return to after a forward pass, in full or along a path.

    Parameters
    ----------
    cache : DynamicCache
        Of full-attention and sliding layers. Sliding layers are first trimmed to what their window
        can still show.

    Attributes
    ----------
    length : int
        Tokens in the cache at this point.

    Notes
    -----
    Taking a point copies nothing: full layers only grow at their end, and of a sliding layer a
    reference to what it held is enough.
    """

    def __init__(self, cache: DynamicCache) -> None:
        self.cache = cache
        self.length = int(cache.get_seq_length())
        self._points = [_point(layer) for layer in self._layers]

    @property
    def _layers(self) -> list[Any]:
        # Read each time: a cache made without a configuration gets its layers during a pass.
        return self.cache.layers

    @property
    def kept(self) -> tuple[int, ...]:
        """Keys that each layer held at this point, all of them or the end of them."""
        return tuple(point.kept for point in self._points)

    def own_memory(self) -> None:
        """Let the cache hold the memory of what it shows, without the rows that were dropped."""
        for layer in self._layers:
            for name in ("keys", "values"):
                states = getattr(layer, name)
                if states is not None and states.untyped_storage().nbytes() > states.nbytes:
                    setattr(layer, name, states.clone(memory_format=torch.contiguous_format))

    def rollback(self) -> None:
        """Return to this point, whatever was appended since, and however much of it.

        Also after a pass that was interrupted between its layers, and more than once.
        """
        for i, layer in enumerate(self._layers):
            point = self._points[i] if i < len(self._points) else _EMPTY
            if point.kept == 0:
                layer.keys = layer.values = None
                layer.is_initialized = False
            elif slides(layer):
                layer.keys, layer.values = point.keys, point.values
            else:
                layer.keys = _first(layer.keys, point.kept)
                layer.values = _first(layer.values, point.kept)
            if slides(layer):
                layer.cumulative_length = self.length

    def keep(self, rows: Sequence[int], n: int) -> None:
        """Keep some of the ``n`` tokens that one pass appended since, and drop the others.

        Parameters
        ----------
        rows : sequence of int
            Ascending, each in 0..n-1. They take the positions right after this point.
        n : int
            What the pass appended, with the past of sliding layers kept (`keeping_past`), or 1.

        Raises
        ------
        InvalidInputError
            If the cache does not hold this point and ``n`` more tokens, or the rows are not so.

        Notes
        -----
        Rows 0..m-1 are kept by slicing. Others are moved to their places within the tensors of the
        pass: O(m) per layer, not O(length).
        """
        rows = [int(row) for row in rows]
        m = len(rows)
        if any(not 0 <= row < n for row in rows) or any(a >= b for a, b in pairwise(rows)):
            raise InvalidInputError(f"rows {rows} are not ascending and among 0..{n - 1}")
        if rows == list(range(n)) == [0]:
            return  # a single token, which is kept: nothing to do, in any layer
        # One for all layers: to bring it to a GPU waits for all that the GPU was given before.
        index: Tensor | None = None
        for i, layer in enumerate(self._layers):
            kept = self._points[i].kept if i < len(self._points) else 0
            last = kept + m
            first = max(0, last - layer.sliding_window + 1) if slides(layer) else 0
            parts = []
            for part in (layer.keys, layer.values):
                if part is None or part.ndim != 4 or part.shape[-2] != kept + n:
                    raise InvalidInputError(
                        f"layer {i} of the cache holds {None if part is None else part.shape[-2]} "
                        f"keys, not the {kept} before the pass and its {n}"
                    )
                if rows != list(range(m)):
                    if index is None or index.device != part.device:
                        index = torch.tensor(rows, device=part.device)
                    _move(part, kept, index)
                parts.append(part[..., first:last, :])
            layer.keys, layer.values = parts
            if slides(layer):
                layer.cumulative_length = self.length + m


def _point(layer: Any) -> _LayerPoint:
    if not layer.get_seq_length():
        return _EMPTY
    if not slides(layer):
        return _LayerPoint(int(layer.keys.shape[-2]), None, None)
    # More than the window shows is left when the layer was recording its past.
    extra = layer.keys.shape[-2] - (layer.sliding_window - 1)
    if extra > 0:
        layer.keys, layer.values = layer.keys[..., extra:, :], layer.values[..., extra:, :]
    return _LayerPoint(int(layer.keys.shape[-2]), layer.keys, layer.values)


_EMPTY = _LayerPoint(0, None, None)


def _first(states: Tensor, length: int) -> Tensor:
    return states if states.shape[-2] == length else states[..., :length, :]


def _move(states: Tensor, kept: int, index: Tensor) -> None:
    """Move rows ``kept + index`` of the sequence dimension to ``kept``, ``kept + 1``, ..."""
    # The pass made these tensors by concatenation, so no one else holds them. Under inference mode
    # they can only be written to under inference mode.
    with torch.no_grad(), torch.inference_mode(states.is_inference()):
        states[..., kept : kept + len(index), :] = states.index_select(-2, index + kept)
