"""Measures what passes, draft levels and experts cost on the machine at hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from ..offload import BUSY, model_name, offload_of
from ..verify import TargetSession
from .draft_times import DraftTimer
from .fetch_times import FetchTimer
from .likely_tree import likely_tree
from .offload_setup import setup_of
from .pass_line import closest_line, measured_sizes
from .pass_times import PassTimer
from .quartiles import Quartiles
from .runtime_profile import RuntimeProfile

if TYPE_CHECKING:
    from ..offload import Offload

#: Measurements behind each figure, and the largest pass, unless said otherwise.
REPEATS, MAX_NODES = 7, 64

#: More of them would run for days without telling more.
MOST_REPEATS, MOST_NODES, MOST_LEVELS = 1000, 4096, 1000

#: Levels, children per node and nodes per level that drafting is measured with: those of the
#: policy "specfit".
DRAFT_LEVELS, DRAFT_TOP_K, DRAFT_WIDTH = 6, 4, 4

#: What a prompt of the caller's is.
_TOKENS = ListOf(Whole())


def calibrate(
    model: Any,
    drafter: Drafter | str | None = None,
    *,
    max_nodes: int = MAX_NODES,
    repeats: int = REPEATS,
    prompt: Sequence[int] | None = None,
    draft_levels: int = DRAFT_LEVELS,
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
        Largest pass, up to 4,096.
    repeats : int
        Measurements of each figure, up to 1,000; the medians count.
    prompt : sequence of int, optional
        Token ids of a text like those that will be decoded. Default: 32 random tokens.
    draft_levels : int
        Levels that the drafter is measured with, up to 1,000.
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
    *Node time*: passes over the first 1, 2, 4, 8, ... nodes of a tree of likely continuations,
    experts in place; the line closest to their medians counts. Where the cache cannot hold a pass's
    experts, the waiting is measured and taken out; ``node_misses`` says where.

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
    ((1, 2, 4), 8, 'prompt-lookup')
    >>> sr.offload_of(model).close()
    """
    offload = offload_of(model)
    if isinstance(drafter, str):
        drafter = make_drafter(drafter)

    plan = _Plan(
        sizes=measured_sizes(Whole(1, MOST_NODES)(max_nodes, "max_nodes")),
        repeats=Whole(1, MOST_REPEATS)(repeats, "repeats"),
        levels=Whole(1, MOST_LEVELS)(draft_levels, "draft_levels"),
        prompt=None if prompt is None else _TOKENS(prompt, "prompt"),
        progress=progress,
    )
    parts = [(offload, BUSY), (drafter, taken("drafter"))]
    return exclusively(
        [part for part in parts if part[0] is not None], lambda: _measure(model, drafter, plan)
    )


def calibrate_briefly(model: Any, drafter: Drafter | None) -> RuntimeProfile:
    """Measure less, for a decode that is about to begin and has model and drafter for itself.

    Passes over up to 16 tokens, 3 repeats, less of both if that takes longer than half a second.
    """
    return _measure(model, drafter, _QUICK)


@dataclass(frozen=True)
class _Plan:
    """What is measured, and how often.

    Attributes
    ----------
    sizes : tuple of int
        Of the passes.
    repeats : int
    levels : int
        That are drafted.
    prompt : list of int, optional
        Default: random tokens, as many as `prompt_length`.
    prompt_length : int
    most_seconds : float
        After which no further sizes and repeats are begun.
    progress : callable, optional
    """

    sizes: tuple[int, ...]
    repeats: int
    levels: int = DRAFT_LEVELS
    prompt: list[int] | None = None
    prompt_length: int = 32
    most_seconds: float = math.inf
    progress: Callable[[int, int], None] | None = None


_QUICK = _Plan(sizes=(1, 4, 16), repeats=3, prompt_length=8, most_seconds=0.5)


def _measure(model: Any, drafter: Drafter | None, plan: _Plan) -> RuntimeProfile:
    offload = offload_of(model)
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
        bench = _Bench(model, offload, drafter, plan)
        bench.run()
        return bench.profile(model_name(model))


class _Bench:
    """The things to be timed, and the rounds over them."""

    def __init__(
        self, model: Any, offload: Offload, drafter: Drafter | None, plan: _Plan
    ) -> None:
        self._begin = perf_counter()
        self._offload = offload
        self._drafter = drafter
        self._plan = plan
        self._sizes = sizes = plan.sizes
        self._done = 0
        self._rounds = 0
        self._rng = np.random.default_rng(0)
        session = TargetSession(
            model, feature_layers=() if drafter is None else drafter.feature_layers
        )
        vocabulary = int(model.get_input_embeddings().weight.shape[0])
        ids = self._prompt(session.context_length, vocabulary)
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

    def run(self) -> None:
        """Warm up, then measure everything as often as planned."""
        repeats, progress = self._plan.repeats, self._plan.progress
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
        if progress is not None and self._done < total:
            progress(total, total)

    def profile(self, model: str) -> RuntimeProfile:
        """Return what was measured."""
        setup = setup_of(self._offload)
        passes, sizes = self._passes, self._sizes
        nodes = Quartiles.of([passes.node_seconds(size) for size in sizes])
        fetches = Quartiles.of(self._fetches.seconds)
        drafts = Quartiles.of([] if self._drafts is None else self._drafts.seconds)
        added = [max(0.0, miss.seconds) for miss in passes.misses]
        misses = Quartiles.of([added] if added else [])
        fixed, slope = closest_line(sizes, nodes.median)
        return RuntimeProfile(
            name=f"{model} from {setup.store}",
            setup=setup,
            drafter=self._drafter.name if self._drafter is not None else None,
            repeats=self._rounds,
            prefix_tokens=self._prefix,
            fixed_time=fixed,
            node_time=slope,
            node_sizes=sizes,
            node_quartiles=nodes,
            node_misses=tuple(
                float(np.median([p.misses for p in passes.passes[size]])) for size in sizes
            ),
            draft_time=drafts.median,
            draft_quartiles=drafts,
            expert_time=_expert_time(fetches, misses, setup.moved_bytes),
            expert_quartiles=fetches,
            handling_time=passes.handling_seconds(),
        )

    def _prompt(self, context: int | None, vocabulary: int) -> list[int]:
        if self._plan.prompt is not None:
            return self._plan.prompt
        n = self._plan.prompt_length
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
            top_k=DRAFT_TOP_K,
            width=DRAFT_WIDTH,
            levels=self._plan.levels,
        )

    def _late(self, times: float = 1.0) -> bool:
        return perf_counter() - self._begin > times * self._plan.most_seconds

    def _step(self, total: int) -> None:
        self._done += 1
        if self._plan.progress is not None:
            self._plan.progress(min(self._done, total), total)


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
