"""Guesses the next layer's experts while a layer is computed, and fetches what is worth it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .foresight import Foresight
from .judgement import Judgement
from .logit_map import LogitMap
from .precision import Precision

if TYPE_CHECKING:
    from ..offload import Offload

#: Tokens of a pass that maps learn from, at most.
_MOST_ROWS = 256
#: Passes that maps learn from at first; later it is one in so many.
_ALL_AT_FIRST, _ONE_IN = 192, 4
#: Passes whose guesses are looked at together, and then it is decided anew what is worth fetching.
_TOGETHER = 8


class Prefetcher:
    """Fetches experts early within a pass, as far as that pays, and learns from every pass.

    Parameters
    ----------
    model : PreTrainedModel
        From `load_offloaded`; only read.
    offload : Offload
        The model's.

    Attributes
    ----------
    maps : list of LogitMap
        One per layer.
    precision : Precision
    judgement : Judgement

    Notes
    -----
    Per layer and pass: a product of the router's size and a few steps over E numbers. On a CUDA
    device the host waits no more often for it: the logits come together with the routing. A layer
    that maps learn from takes two more such products.
    """

    def __init__(self, model: Any, offload: Offload) -> None:
        self._offload = offload
        self._foresight = Foresight(model, offload)
        n_layers, n_experts = offload.n_layers, offload.n_experts
        self.maps = [LogitMap(n_experts) for _ in range(n_layers)]
        self.precision = Precision(n_layers)
        self.judgement = Judgement(n_layers)
        self._cuda = offload.device.type == "cuda"
        # What makes the mean margin of chosen experts 1.
        self._unit = np.ones(n_layers, dtype=np.float32)
        shape = _TOGETHER, n_layers, n_experts
        self._margins = np.empty(shape, dtype=np.float32)
        self._missing, self._used = np.empty(shape, np.bool_), np.empty(shape, np.bool_)
        self._at = 0
        self._early: list[NDArray[np.float32] | None] = [None] * n_layers
        self._true: list[NDArray[np.float32] | None] = [None] * n_layers
        self._free_at = 0.0
        self._guessed_for = -1
        self._fetches = self._learns = False
        self._passes = 0
        self._asked = self._hidden = 0.0

    # ---- around a pass

    @contextmanager
    def watching(self, *, fetch: bool) -> Iterator[None]:
        """Guess, and fetch early, in the forward passes of this thread inside the block.

        Parameters
        ----------
        fetch : bool
            False: only learn, as in the passes over a prompt, which use nearly all experts.
        """
        self._fetches = self._learns = False
        if fetch and not self.judgement.pays:
            self.judgement.tick()
            yield
            return
        self._begin(fetch)
        with self._offload.prefetching(self):
            if self._cuda:
                yield
            else:
                with self._foresight.entry(self._enter):
                    yield

    def _begin(self, fetch: bool) -> None:
        self._fetches = fetch
        self._passes += fetch
        self._learns = (
            not fetch or self._passes <= _ALL_AT_FIRST or self._passes % _ONE_IN == 0
        )
        self._margins[self._at] = -1.0
        self._early[:] = self._true[:] = [None] * len(self._early)
        self._asked, self._guessed_for = 0.0, -1
        self._hidden = self._offload.cache.counters().hidden_seconds

    def learn(self, used: NDArray[np.bool_] | None = None) -> None:
        """Learn from the pass that was watched.

        Parameters
        ----------
        used : ndarray of bool, shape (L, E), optional
            The experts that it used. None: of a prompt.
        """
        begin = perf_counter()
        if self._learns:
            self._learn_maps()
        if used is None or not self._fetches:
            return
        self._fetches = False
        self._used[self._at] = used
        self._at += 1
        if self._at == _TOGETHER:
            self._at = 0
            self._learn_precision()
        hidden = self._offload.cache.counters().hidden_seconds - self._hidden
        self.judgement.note_pass(hidden, self._asked + perf_counter() - begin)

    def _learn_maps(self) -> None:
        for layer, (early, true) in enumerate(zip(self._early, self._true, strict=True)):
            if early is None or true is None or len(early) != len(true):
                continue
            learned = self.maps[layer]
            if learned.learn(early[-_MOST_ROWS:], true[-_MOST_ROWS:]):
                self._foresight.fit(layer, learned.matrix, learned.offset)

    def _learn_precision(self) -> None:
        guessed = self._margins > 0.0
        chosen = np.where(guessed, self._margins, 0.0).sum(axis=(0, 2))
        mean = chosen / np.maximum(guessed.sum(axis=(0, 2)), 1)
        passes, layers, experts = np.nonzero(guessed & self._missing)
        self.precision.learn(
            layers, self._margins[passes, layers, experts], self._used[passes, layers, experts]
        )
        # Halfway: the mean margin of eight passes varies.
        self._unit /= np.sqrt(np.where(mean > 0.0, mean, 1.0)).astype(np.float32)
        cache = self._offload.cache
        transfer = [cache.transfer_seconds(layer) for layer in range(len(self.maps))]
        self.judgement.update(self.precision.chances(), np.array(transfer))

    # ---- within a pass

    def routing(self, layer: int, states: Tensor, routing: Tensor) -> Tensor:
        """Bring a layer's routing to the host, and with it what the next guess needs.

        Parameters
        ----------
        layer : int
        states : Tensor, shape (T, H)
            What the layer's experts read.
        routing : Tensor of int, shape (T, k)

        Returns
        -------
        Tensor of int, shape (T, k)
        """
        if self._guessed_for == layer:
            self.judgement.note_window(layer, perf_counter() - self._free_at)
        if not self._cuda:
            if self._learns:
                self._true[layer] = self._foresight.routers[layer].logits(states).numpy()
            return routing
        parts = [routing.float()]  # exact: there are less than 2**24 experts
        following, learns = layer + 1, self._learns
        if following < len(self.maps):
            parts.append(self._foresight.logits(following, states, fitted=not learns))
        if learns:
            parts.append(self._foresight.routers[layer].logits(states))
        host = torch.cat(parts, dim=1).cpu()
        top_k, n_experts = routing.shape[1], self._offload.n_experts
        if learns:
            self._true[layer] = host[:, -n_experts:].numpy()
        if following < len(self.maps):
            self._early[following] = host[:, top_k : top_k + n_experts].numpy()
        return host[:, :top_k].to(routing.dtype)

    def meanwhile(self, layer: int, states: Tensor, coming: int) -> None:
        """Guess for the layer after this one, whose own fetches have begun.

        Parameters
        ----------
        layer : int
        states : Tensor, shape (T, H)
        coming : int
            How many of its own experts still have to come.
        """
        following = layer + 1
        if following == len(self.maps):
            return
        begin = perf_counter()
        self._look(following, states)
        if not coming:  # else this was done while waiting
            self._asked += perf_counter() - begin
        # Until then the link serves the layer itself.
        self._free_at = begin + coming * self._offload.cache.transfer_seconds(layer)

    def _enter(self, states: Tensor) -> None:
        self._free_at = begin = perf_counter()
        self._look(0, states)
        self._asked += perf_counter() - begin

    def _look(self, layer: int, states: Tensor) -> None:
        learns = self._learns
        if not (learns or self._fetches):
            return
        early = self._early[layer]
        if early is None:
            early = self._foresight.logits(layer, states, fitted=not learns).numpy()
            self._early[layer] = early
        if self._fetches:
            self._guess(layer, self.maps[layer](early) if learns else early)

    def _guess(self, layer: int, logits: NDArray[np.float32]) -> None:
        """Compare what probably comes with what is there, and fetch what is worth it."""
        margins = self._foresight.routers[layer].margins(logits)
        # A pass over several nodes uses an expert that any of them uses.
        best = margins[0] if len(margins) == 1 else margins.max(axis=0)
        best = np.multiply(best, self._unit[layer], out=self._margins[self._at, layer])
        cache = self._offload.cache
        resident = cache.resident[layer]
        np.logical_not(resident, out=self._missing[self._at, layer])
        self._guessed_for = layer
        limits = self.judgement.limits(layer)
        if not limits:
            return
        likely = np.flatnonzero(best > limits[0]).tolist()
        worth = [(float(best[e]), e) for e in likely if not resident[e]]
        if not worth:
            return
        worth.sort(reverse=True)
        chosen = [
            expert for (margin, expert), least in zip(worth, limits, strict=False)
            if margin > least
        ]
        cache.prefetch(layer, chosen, np.flatnonzero(best > 0.0).tolist())
