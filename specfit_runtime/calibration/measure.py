"""Measures what passes, draft levels and experts cost on the machine at hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specfit_opt.checks import Whole
from specfit_opt.schema import ListOf

from .._ambient import usual_float_errors
from ..drafters import Drafter, make_drafter
from ..exclusive import exclusively, loading, taken
from ..expert_cache.preserved import preserved
from ..offload import BUSY, offload_of
from ..verify import TargetSession
from .draft_times import DraftTimer
from .facts import facts_of
from .fetch_times import FetchTimer
from .likely_tree import likely_tree
from .machine import software_versions, this_machine
from .node_table import grid, node_table
from .pass_times import PassTimer
from .profile import ModelShape, Quartiles, RuntimeProfile

if TYPE_CHECKING:
    from ..offload import Offload

#: Measurements behind each figure, and the largest pass, unless said otherwise.
REPEATS, MAX_NODES = 7, 64

#: Levels, children per node and nodes per level that drafting is measured with: those of the
#: policy "specfit".
DRAFT_LEVELS, DRAFT_TOP_K, DRAFT_WIDTH = 6, 4, 4

#: What a prompt of the caller's is.
_TOKENS = ListOf(Whole())

#: Tokens that stand in for a prompt.
_PROMPT, _QUICK_PROMPT = 32, 8

#: The quick measurement: sizes, repeats, and after how many seconds no further ones are begun.
_QUICK_SIZES, _QUICK_REPEATS, _QUICK_SECONDS = (1, 4, 16), 3, 0.5


def calibrate(
    model: Any,
    drafter: Drafter | str | None = None,
    *,
    max_nodes: int = MAX_NODES,
    repeats: int = REPEATS,
    prompt: Sequence[int] | None = None,
    draft_levels: int = DRAFT_LEVELS,
    draft_top_k: int = DRAFT_TOP_K,
    draft_width: int = DRAFT_WIDTH,
    quick: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> RuntimeProfile:
    """Measure what passes, draft levels and experts of an offloaded model cost here.

    Parameters
    ----------
    model : PreTrainedModel
        From :func:`~specfit_runtime.load_offloaded`. Left as it was: weights, which experts the
        cache holds, its counters, and the random state.
    drafter : Drafter or str, optional
        Is bound to the model and measured as well; without one the profile has no draft times.
    max_nodes : int
        Largest pass.
    repeats : int
        Measurements of each figure; the medians count.
    prompt : sequence of int, optional
        Token ids of a text like those that will be decoded. Default: 32 random tokens.
    draft_levels, draft_top_k, draft_width : int
        Levels, children per node and nodes per level that the drafter is measured with.
    quick : bool
        For a decode that is about to begin, and already has the model to itself: passes over up to
        16 tokens, 3 repeats, less of both if that takes longer than half a second. The model is
        not locked.
    progress : callable, optional
        Called as ``progress(done, total)`` after every step.

    Returns
    -------
    RuntimeProfile

    Raises
    ------
    InvalidInputError
        If the model was not loaded by ``load_offloaded``, an argument is out of range, or the
        drafter does not fit.
    BusyError
        If the model is decoding.
    StoreError
        If weights cannot be brought in.

    Notes
    -----
    *Node time*: passes over the first 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, ... nodes of a tree
    of likely continuations, experts in place. Where the cache cannot hold a pass's experts, the
    waiting is measured and taken out; ``node_misses`` says where. The medians are made not to fall
    and interpolated between the sizes.

    *Expert time*: batches of fetches into memory of their own, and what passes take longer when
    half of their experts were taken away. A file that the operating system has in memory is read
    from there, here as in decoding.

    *Order*: each round measures everything once, sizes in random order, so that a machine that
    slows down meanwhile does so for all figures. Every kind of step is done once before.

    Examples
    --------
    >>> import specfit_runtime as sr
    >>> model = sr.load_offloaded(sr.demo_model(), expert_cache=32)
    >>> profile = sr.calibrate(model, "prompt-lookup", max_nodes=4, repeats=1)
    >>> profile.node_sizes, len(profile.expert_time), profile.drafter
    ((1, 2, 3, 4), 8, 'prompt-lookup')
    >>> sr.offload_of(model).close()
    """
    offload = offload_of(model)
    if isinstance(drafter, str):
        drafter = make_drafter(drafter)

    def measure() -> RuntimeProfile:
        return _measure(
            model, drafter, max_nodes, repeats, prompt, (draft_levels, draft_top_k, draft_width),
            quick, progress,
        )

    parts = [(offload, BUSY), (drafter, taken("drafter"))]
    return exclusively([part for part in parts if part[0] is not None], measure)


def calibrate_briefly(model: Any, drafter: Drafter | None) -> RuntimeProfile:
    """Do ``calibrate(quick=True)`` for a caller who keeps model and drafter for himself already."""
    shape = DRAFT_LEVELS, DRAFT_TOP_K, DRAFT_WIDTH
    return _measure(model, drafter, MAX_NODES, REPEATS, None, shape, True, None)


def _measure(
    model: Any,
    drafter: Drafter | None,
    max_nodes: int,
    repeats: int,
    prompt: Sequence[int] | None,
    draft_shape: tuple[int, int, int],
    quick: bool,
    progress: Callable[[int, int], None] | None,
) -> RuntimeProfile:
    offload = offload_of(model)
    max_nodes = Whole(1)(max_nodes, "max_nodes")
    repeats = Whole(1)(repeats, "repeats")
    names = ("draft_levels", "draft_top_k", "draft_width")
    levels, top_k, width = (Whole(1)(n, s) for n, s in zip(draft_shape, names, strict=True))
    if quick:
        sizes = tuple(n for n in _QUICK_SIZES if n <= max_nodes)
        repeats = min(repeats, _QUICK_REPEATS)
    else:
        sizes = grid(max_nodes)
    # Nothing here draws from torch's generators; a drafter of someone else's might.
    devices = [offload.device] if offload.device.type == "cuda" else []

    with (
        usual_float_errors(),
        preserved(offload.cache),
        torch.random.fork_rng(devices=devices),
    ):
        if drafter is not None and not drafter.bound_to(model):
            with loading():
                drafter.bind(model)
        bench = _Bench(
            model, offload, drafter, sizes, prompt, (levels, top_k, width), quick, progress
        )
        bench.run(repeats)
        return bench.profile(_name_of(model))


class _Bench:
    """The things to be timed, and the rounds over them."""

    def __init__(
        self,
        model: Any,
        offload: Offload,
        drafter: Drafter | None,
        sizes: tuple[int, ...],
        prompt: Sequence[int] | None,
        drafting: tuple[int, int, int],
        quick: bool,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._begin = perf_counter()
        self._offload = offload
        self._drafter = drafter
        self._sizes = sizes
        self._levels, self._top_k, self._width = drafting
        self._quick = quick
        self._progress = progress
        self._done = 0
        self._rounds = 0
        self._rng = np.random.default_rng(0)
        session = TargetSession(
            model, feature_layers=() if drafter is None else drafter.feature_layers
        )
        vocabulary = int(model.get_input_embeddings().weight.shape[0])
        ids = self._prompt(prompt, session.context_length, vocabulary)
        result = session.prefill(torch.tensor([ids], device=offload.device))
        self._prefix = session.length
        self._session = session
        self._text = [*ids, int(result.logits[-1].argmax())]
        self._features = result.features
        tokens, parent = likely_tree(session, self._text[-1], sizes[-1])
        self._tree = tokens, parent
        self._passes = PassTimer(offload, session, tokens, parent, self._rng)
        self._fetches = FetchTimer(offload, self._rng)
        self._drafts: DraftTimer | None = None

    def run(self, repeats: int) -> None:
        """Warm up, then measure everything ``repeats`` times."""
        total = (repeats + 1) * (len(self._sizes) + 1 + (self._drafter is not None))
        for i, size in enumerate(self._sizes):
            if i >= 2 and self._late():
                # Two sizes make a line.
                self._sizes = self._sizes[:i]
                break
            self._passes.warm_up(size)
            self._step(total)
        self._fetches.warm_up()
        self._step(total)
        if self._drafter is not None:
            self._drafts = self._draft_timer(self._drafter)
            self._drafts.warm_up()
            self._step(total)
        for _ in range(repeats):
            # One round alone may have met a stall; a second is worth waiting for, within reason.
            if self._rounds and self._late(1.0 if self._rounds > 1 else 4.0):
                break
            for size in self._rng.permutation(self._sizes).tolist():
                self._passes.time(size)
                self._step(total)
            self._fetches.time()
            self._step(total)
            if self._drafts is not None:
                self._drafts.time()
                self._step(total)
            self._rounds += 1
        if self._progress is not None and self._done < total:
            self._progress(total, total)

    def profile(self, model: str) -> RuntimeProfile:
        """Return what was measured."""
        facts = facts_of(self._offload)
        passes, sizes = self._passes, self._sizes
        nodes = Quartiles.of([passes.node_seconds(size) for size in sizes])
        fetches = Quartiles.of(self._fetches.seconds)
        drafts = Quartiles.of([] if self._drafts is None else self._drafts.seconds)
        added = [max(0.0, miss.seconds) for miss in passes.misses]
        misses = Quartiles.of([added] if added else [])
        has_drafter = self._drafter is not None
        return RuntimeProfile(
            name=f"{model} from {facts.store}",
            machine=this_machine(self._offload.device),
            software=software_versions(),
            model=ModelShape(model, facts.type, facts.n_layers, facts.n_experts, facts.top_k),
            dtype=facts.dtype,
            device=facts.device,
            store=facts.store,
            link_bandwidth=facts.link_bandwidth,
            drafter=self._drafter.name if self._drafter is not None else None,
            draft_top_k=self._top_k if has_drafter else 0,
            draft_width=self._width if has_drafter else 0,
            repeats=self._rounds,
            prefix_tokens=self._prefix,
            node_time=tuple(node_table(sizes, nodes.median).tolist()),
            node_sizes=sizes,
            node_quartiles=nodes,
            node_misses=tuple(
                float(np.median([p.misses for p in passes.passes[size]])) for size in sizes
            ),
            draft_time=drafts.median,
            draft_quartiles=drafts,
            expert_time=_expert_time(fetches, misses, facts.moved_bytes),
            expert_quartiles=fetches,
            expert_batch=self._fetches.batch,
            miss_quartiles=misses,
            handling_time=passes.handling_seconds(),
            moved_bytes=facts.moved_bytes,
        )

    def _prompt(
        self, prompt: Sequence[int] | None, context: int | None, vocabulary: int
    ) -> list[int]:
        if prompt is not None:
            given: list[int] = _TOKENS(prompt, "prompt")
            return given
        n = _QUICK_PROMPT if self._quick else _PROMPT
        if context is not None:
            # Leave most of a tiny context to the tree.
            n = max(1, min(n, context // 4))
        ids: list[int] = self._rng.integers(0, vocabulary, n).tolist()
        return ids

    def _draft_timer(self, drafter: Drafter) -> DraftTimer:
        # Before each tree, a pass of two nodes commits two tokens, where there is such a pass. The
        # text begins anew with them, so that a drafter that looks for repetitions finds one.
        size = min(2, self._sizes[-1], len(self._text))
        tokens, parent = self._tree
        result = self._session.verify(tokens[:size], parent[:size])
        self._session.rollback()
        return DraftTimer(
            drafter,
            self._offload.device,
            self._text,
            self._features,
            self._text[:size],
            result.features,
            top_k=self._top_k,
            width=self._width,
            levels=self._levels,
        )

    def _late(self, times: float = 1.0) -> bool:
        return self._quick and perf_counter() - self._begin > times * _QUICK_SECONDS

    def _step(self, total: int) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(min(self._done, total), total)


def _expert_time(
    fetches: Quartiles, misses: Quartiles, moved_bytes: tuple[int, ...]
) -> tuple[float, ...]:
    """Return what a missed expert of each layer costs.

    Experts of one size share the median of their layers, which differ by noise alone.
    """
    size = np.array(moved_bytes)
    fetch = np.array(fetches.median)
    for bytes_ in set(moved_bytes):
        fetch[size == bytes_] = np.median(fetch[size == bytes_])
    if not len(misses):
        return tuple(fetch.tolist())
    # What a miss adds was measured over all layers; by bytes it is laid on each.
    added = misses.median[0] * size / size.mean()
    return tuple(np.maximum(fetch, added).tolist())


def _name_of(model: Any) -> str:
    """Return a hub model's id, or the name of the folder without what leads to it."""
    name = str(model.config.name_or_path or "")
    if os.path.isdir(name):
        name = os.path.basename(os.path.realpath(name))
    return name or str(model.config.model_type)
