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

#: Tokens of a pass that maps learn from; passes that they learn from in full at first, and one in
#: so many later.
_MOST_ROWS, _ALL_AT_FIRST, _ONE_IN = 256, 512, 8
#: Passes between two decisions what is worth fetching.
_DECIDE = 4
#: What a pass is still worth one pass later, of a layer's mean margin.
_KEEP = 15.0 / 16.0


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
    Per layer and pass: the product of a router, one of shape (T, E) x (E, E), and a few steps over
    E numbers; no passes over weights of experts, and on a CUDA device no further wait, since the
    logits come to the host together with the routing.
    """

    def __init__(self, model: Any, offload: Offload) -> None:
        self._offload = offload
        self._foresight = Foresight(model, offload)
        shape = offload.n_layers, offload.n_experts
        self.maps = [LogitMap(offload.n_experts) for _ in range(shape[0])]
        self.precision = Precision(shape[0])
        self.judgement = Judgement(shape[0])
        self._cuda = offload.device.type == "cuda"
        self._scale = np.zeros(shape[0])
        self._margins = np.full(shape, -1.0, dtype=np.float32)
        self._missing = np.zeros(shape, dtype=np.bool_)
        self._early: list[NDArray[np.float32] | None] = [None] * shape[0]
        self._true: list[NDArray[np.float32] | None] = [None] * shape[0]
        self._free_at = 0.0
        self._guessed_for = -1
        self._fetches = self._learns = False
        self._passes = self._rows = 0
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
        self._passes += 1
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
        self._learns = not fetch or self._rows < _ALL_AT_FIRST or self._passes % _ONE_IN == 0
        self._margins[:] = -1.0
        self._early[:] = self._true[:] = [None] * len(self._early)
        self._asked = 0.0
        self._guessed_for = -1
        self._hidden = self._offload.cache.counters().hidden_seconds

    def learn(self, used: NDArray[np.bool_] | None = None) -> None:
        """Learn from the pass that was watched.

        Parameters
        ----------
        used : ndarray of bool, shape (L, E), optional
            The experts that it used. None: of a prompt.
        """
        begin = perf_counter()
        for early, true, learned in zip(self._early, self._true, self.maps, strict=True):
            if early is not None and true is not None and len(early) == len(true):
                learned.learn(early[-_MOST_ROWS:], true[-_MOST_ROWS:])
        if self._learns:
            self._rows += 1 if used is not None else 0
        if used is None or not self._fetches:
            return
        guessed = self._missing & (self._margins >= 0.0)
        layers, experts = np.nonzero(guessed)
        if len(layers):
            self.precision.learn(
                layers, self._margins[layers, experts], used[layers, experts]
            )
        cache = self._offload.cache
        if self._passes % _DECIDE == 0:
            transfer = np.array([cache.transfer_seconds(i) for i in range(len(used))])
            self.judgement.update(self.precision.chances(), transfer)
        hidden = cache.counters().hidden_seconds - self._hidden
        self._fetches = False
        self.judgement.note_pass(hidden, self._asked + perf_counter() - begin)

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
        ahead = self._foresight.next_logits(layer, states)
        if ahead is not None:
            parts.append(ahead)
        if self._learns:
            parts.append(self._foresight.routers[layer].logits(states))
        host = torch.cat(parts, dim=1).cpu()
        top_k, n_experts = routing.shape[1], self._offload.n_experts
        if self._learns:
            self._true[layer] = host[:, -n_experts:].numpy()
        if ahead is not None:
            self._early[layer + 1] = host[:, top_k : top_k + n_experts].numpy()
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
        begin = perf_counter()
        following = layer + 1
        if following == len(self.maps):
            return
        if self._cuda:
            early = self._early[following]
        else:
            logits = self._foresight.next_logits(layer, states)
            early = self._early[following] = None if logits is None else logits.numpy()
        if early is not None:
            self._guess(following, early)
        end = perf_counter()
        if not coming:  # else this was done while waiting
            self._asked += end - begin
        # Until then the link serves the layer itself.
        self._free_at = begin + coming * self._offload.cache.transfer_seconds(layer)

    def _enter(self, logits: Tensor) -> None:
        begin = perf_counter()
        self._early[0] = logits.numpy()
        self._guess(0, self._early[0])
        self._asked += perf_counter() - begin
        self._free_at = begin

    def _guess(self, layer: int, early: NDArray[np.float32]) -> None:
        """Compare what probably comes with what is there, and fetch what is worth it."""
        if not self._fetches:
            return
        margins = self._foresight.routers[layer].margins(self.maps[layer](early))
        # A pass over several nodes uses an expert that any of them uses.
        best = margins[0] if len(margins) == 1 else margins.max(axis=0)
        scale = self._scale_of(layer, best)
        best = np.multiply(best, scale, out=self._margins[layer])
        cache = self._offload.cache
        missing = np.logical_not(cache.resident[layer], out=self._missing[layer])
        self._guessed_for = layer
        limits = self.judgement.limits(layer)
        if not limits:
            return
        worth = np.flatnonzero(missing & (best >= min(limits)))
        if not len(worth):
            return
        order = worth[np.argsort(-best[worth], kind="stable")]
        chosen = [e for e, least in zip(order.tolist(), limits, strict=False) if best[e] >= least]
        if chosen:
            cache.prefetch(layer, chosen, np.flatnonzero(best >= 0.0).tolist())

    def _scale_of(self, layer: int, margins: NDArray[np.float32]) -> float:
        """Return what makes the mean margin of chosen experts 1, over the last passes."""
        chosen = margins[margins > 0.0]
        if len(chosen):
            mean = float(chosen.mean())
            known = self._scale[layer]
            self._scale[layer] = mean if known == 0.0 else known + (mean - known) * (1.0 - _KEEP)
        return 1.0 / self._scale[layer] if self._scale[layer] else 0.0
