"""The loop over cycles: draft as far as it pays, choose, verify, commit, learn."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specfit_opt.control.correction import CycleMeasurement
from specfit_opt.expert_union import expert_union
from specfit_opt.policies import Choice, CycleState, DraftView, Outcome

from ..report import CycleRecord, PrefillRecord
from ..verify import Accepted, ForwardResult, TargetSession, accept
from .memory import DecodeMemory
from .request import Request

if TYPE_CHECKING:
    from ..expert_cache import ExpertCache
    from ..offload import Offload
    from ..prefetch import Prefetcher


class DecodeLoop:
    """One text, from its prompt to its end.

    Parameters
    ----------
    model : PreTrainedModel
        From `load_offloaded`.
    offload : Offload
        The model's.
    request : Request
    learned : DecodeMemory
        Is used and taught.
    prefetcher : Prefetcher or None
        Likewise; None: nothing is fetched early.

    Attributes
    ----------
    ids : Tensor of int64, shape (1, t)
        The text so far.
    prefill : PrefillRecord or None
        None before :meth:`run` came past the prompt.
    cycles : list of CycleRecord
    warning : str
        What went otherwise than asked for; empty if nothing did.
    scores, logits : list of Tensor
        One of shape (1, V) per committed token, where the request wants them.
    """

    def __init__(
        self,
        model: Any,
        offload: Offload,
        request: Request,
        learned: DecodeMemory,
        prefetcher: Prefetcher | None,
    ) -> None:
        self._offload = offload
        self._request = request
        self._learned = learned
        self._prefetcher = prefetcher
        drafter = learned.drafter
        self._session = TargetSession(
            model,
            feature_layers=() if drafter is None else drafter.feature_layers,
            cache=request.prompt.cache,
        )
        self._slots = np.array(offload.cache.slots, dtype=np.int64)
        self._closed = self._seconds = 0.0
        self._tokens = 0
        self.ids = request.input_ids
        self.prefill: PrefillRecord | None = None
        self.cycles: list[CycleRecord] = []
        self.warning = ""
        self.scores: list[Tensor] = []
        self.logits: list[Tensor] = []

    @torch.no_grad()
    def run(self) -> None:
        """Decode until a criterion, an end token or the limit ends the text."""
        finished = self._prefill()
        self._note_length()
        while not finished:
            finished = self._cycle()
            self._note_length()
        # Stock code marks a cache that the caller gave, and so keeps.
        if self._request.returns_dict or getattr(self.cache, "_is_user_defined", False):
            self._session.finish()
        if self._request.streamer is not None:
            self._request.streamer.end()

    @property
    def cache(self) -> Any:
        """Keys and values of the committed text, its last token excepted."""
        return self._session.cache

    def close(self) -> None:
        """Leave the caches as between two passes, also after an interrupt."""
        self._session.rollback()
        self._offload.cache.end_pass()

    def _watched(self, *, fetch: bool) -> AbstractContextManager[None]:
        return nullcontext() if self._prefetcher is None else self._prefetcher.watching(fetch=fetch)

    def _prefill(self) -> bool:
        request, learned, cache = self._request, self._learned, self._offload.cache
        begin = perf_counter()
        before = cache.counters()
        cache.begin_pass()
        prompt = request.prompt
        with self._watched(fetch=False):
            result = self._session.prefill(prompt.new_ids, chunk=prompt.chunk)
        taken = self._accept(result, [int(self.ids[0, -1])], [-1])
        new = prompt.new_ids[0].tolist()
        learned.torn = True
        if self._prefetcher is not None:
            self._prefetcher.learn()
        predictor = learned.predictor
        predictor.start(self._offload.n_layers, self._offload.n_experts, self._offload.top_k)
        self._observe_routing(new, result)
        learned.policy.start()
        if learned.drafter is not None and not taken.finished:
            learned.drafter.start([*new, *taken.tokens], result.features)
        learned.torn = False
        moved = cache.counters() - before
        self._closed = perf_counter()
        self.prefill = PrefillRecord(
            tokens=len(new),
            seconds=self._closed - begin,
            transfer_seconds=moved.wait_seconds,
            lookups=moved.lookups,
            hits=moved.hits,
            misses=moved.misses,
            bytes=moved.bytes,
        )
        return taken.finished

    def _cycle(self) -> bool:
        self._offload.cache.begin_pass()
        times = _Times(self._closed, self._offload.cache)
        resident = self._offload.cache.resident.copy()
        view, choice = self._choose(resident)
        times.chosen()
        tokens, parent = (part.tolist() for part in view.subtree(choice.nodes))
        with self._watched(fetch=True):
            result = self._session.verify(tokens, parent)
        if self._offload.device.type == "cuda":
            # Else what the device still computes would be charged to whatever reads a result first.
            # Not the whole device: what was prefetched for nothing may still be on its way.
            torch.cuda.current_stream(self._offload.device).synchronize()
        times.verified()
        taken = self._accept(result, tokens, parent)
        self._session.commit(taken.rows)
        misses = self._learn_from_pass(view, choice, taken, result, resident)
        # What was prefetched for nothing is in this cycle's account, not in none.
        self._offload.cache.end_pass(len(taken.tokens))
        self._closed = times.close(view.draft_time)
        self._learn_from_cycle(view, choice, taken, result, misses, times)
        self.cycles.append(_record(self._tokens + 1, view, choice, taken, times))
        self._tokens += len(taken.tokens)
        self._seconds += times.seconds
        return taken.finished

    def _choose(self, resident: NDArray[np.bool_]) -> tuple[DraftView, Choice]:
        """Draft and choose."""
        learned = self._learned
        learned.torn = True
        view = DraftView(
            int(self.ids[0, -1]),
            learned.drafter,
            learned.predictor,
            learned.calibrator,
            self._state(resident),
            self._levels_left(),
        )
        choice = learned.policy.choose(view)
        learned.torn = False
        return view, choice

    def _learn_from_pass(
        self,
        view: DraftView,
        choice: Choice,
        taken: Accepted,
        result: ForwardResult,
        resident: NDArray[np.bool_],
    ) -> _Misses:
        """Teach drafter, predictor and acceptance what the target made of the tree."""
        learned, nodes = self._learned, choice.nodes
        learned.torn = True
        self._tell_drafter(view, taken, nodes, result)
        self._observe_routing(view.token[nodes].tolist(), result)
        if view.levels:
            accepted = nodes[list(taken.rows)].tolist()
            learned.calibrator.observe(view.parent, view.token, view.prob, accepted, taken.tokens)
        used = expert_union(result.experts, self._offload.n_experts)
        # Where the policy asked no predictions, none are made for it here either.
        predicted = expert_union(view.experts()[nodes], len(used[0])) if view.predicted else None
        if self._prefetcher is not None:
            self._prefetcher.learn(used)
        realised = (used & ~resident).sum(axis=1)
        expected = realised if predicted is None else (predicted & ~resident).sum(axis=1)
        return _Misses(expected, realised)

    def _learn_from_cycle(
        self,
        view: DraftView,
        choice: Choice,
        taken: Accepted,
        result: ForwardResult,
        misses: _Misses,
        times: _Times,
    ) -> None:
        """Teach prices and policy what the cycle took."""
        learned = self._learned
        if learned.correction is not None:
            learned.correction.update(
                CycleMeasurement(
                    n_nodes=len(choice.nodes),
                    predicted_misses=misses.predicted,
                    realised_misses=misses.realised,
                    compute_seconds=times.compute,
                    wait_seconds=times.waited,
                    hidden_seconds=times.hidden,
                    draft_seconds=tuple(view.level_seconds),
                    search_seconds=times.search,
                    other_seconds=times.other,
                )
            )
        learned.policy.observe(
            Outcome(
                choice=choice,
                levels=view.levels,
                accepted=choice.nodes[list(taken.rows)],
                committed=len(taken.tokens),
                experts=result.experts,
                misses=misses.realised,
                seconds=times.seconds,
                transfer_seconds=times.waited,
            )
        )
        learned.torn = False

    def _state(self, resident: NDArray[np.bool_]) -> CycleState:
        correction = self._learned.correction
        return CycleState(
            cost_model=None if correction is None else correction.cost_model(),
            level_time=None if correction is None else correction.level_time,
            resident=resident,
            slots=self._slots,
            cache_policy=self._offload.cache.policy,
            rate=self._tokens / self._seconds if self._tokens else None,
            load_time=None if correction is None else correction.load_time,
        )

    def _levels_left(self) -> int:
        """Return how deep a draft can be and still be committed."""
        # The pass itself yields a token, so the last one allowed is never drafted.
        return max(self._request.max_new_tokens - self._tokens - 2, 0)

    def _note_length(self) -> None:
        """Say once that the text is longer than what the model was made for."""
        made_for = self._session.context_length
        if not self.warning and made_for is not None and self._session.length > made_for:
            self.warning = (
                f"the text is longer than the {made_for} tokens that the model was made for; it "
                "is decoded on as generate does, and may get worse"
            )
            warnings.warn(self.warning, stacklevel=2)

    def _accept(
        self, result: ForwardResult, tokens: Sequence[int], parent: Sequence[int]
    ) -> Accepted:
        """Commit tokens to the text, and hand them on."""
        request = self._request
        done = self.ids.shape[1] - request.input_ids.shape[1]
        taken = accept(
            result.logits,
            tokens,
            parent,
            self.ids,
            logits_processor=request.logits_processor,
            stopping_criteria=request.stopping_criteria,
            do_sample=request.do_sample,
            max_new_tokens=request.max_new_tokens - done,
            scores=tuple(self.scores) if "scores" in request.wants else None,
        )
        self.ids = taken.committed_ids
        if taken.scores is not None:
            self.scores += taken.scores
        if "logits" in request.wants:
            # Copies: a view of one row would keep the logits of the whole tree.
            for row in taken.rows:
                self.logits.append(result.logits[row : row + 1].to(self.ids.device, copy=True))
        if request.streamer is not None:
            for token in taken.tokens:
                request.streamer.put(torch.tensor([token], device="cpu"))
        return taken

    def _observe_routing(self, tokens: Sequence[int], result: ForwardResult) -> None:
        # A policy that asks for no prediction should not pay for it.
        if self._learned.policy.predicts:
            self._learned.predictor.observe(tokens, result.experts)

    def _tell_drafter(
        self, view: DraftView, taken: Accepted, nodes: NDArray[np.int64], result: ForwardResult
    ) -> None:
        drafter = self._learned.drafter
        if drafter is None or taken.finished:
            return
        features = result.features
        rows = list(taken.rows)
        drafter.commit(taken.tokens, None if features is None else features[rows])
        if (view.parent[nodes] == 0).any():
            drafter.note_acceptance(1, int(len(rows) > 1))


@dataclass(frozen=True, eq=False)
class _Misses:
    """Experts that a pass had to load, shape (L,) each: as predicted, and in fact."""

    predicted: NDArray[np.int64]
    realised: NDArray[np.int64]


class _Times:
    """What one cycle took, and what it moved.

    Parameters
    ----------
    closed : float
        When the account of the cycle before was closed. What was learned from that cycle was
        learned after it, so it counts for this one.
    cache : ExpertCache
    """

    def __init__(self, closed: float, cache: ExpertCache) -> None:
        self._begin = perf_counter()
        self._late = self._begin - closed
        self._cache = cache
        self._before = cache.counters()

    def chosen(self) -> None:
        """Note that drafting and choosing are over."""
        self._chosen = perf_counter()

    def verified(self) -> None:
        """Note that the pass is over."""
        self._verified = perf_counter()
        moved = self._cache.counters() - self._before
        self.waited, self.hidden = moved.wait_seconds, moved.hidden_seconds
        self.compute = max(self._verified - self._chosen - self.waited, 0.0)

    def close(self, draft_seconds: float) -> float:
        """End the account, and return when."""
        end = perf_counter()
        self.draft = draft_seconds
        self.search = max(self._chosen - self._begin - draft_seconds, 0.0)
        self.other = max(end - self._verified, 0.0) + self._late
        self.seconds = end - self._begin + self._late
        self.moved = self._cache.counters() - self._before
        return end


def _record(
    position: int, view: DraftView, choice: Choice, taken: Accepted, times: _Times
) -> CycleRecord:
    moved = times.moved
    return CycleRecord(
        position=position,
        levels=view.levels,
        drafted=len(view.token) - 1,
        verified=len(choice.nodes),
        accepted=len(taken.rows) - 1,
        committed=len(taken.tokens),
        predicted_seconds=choice.predicted_time,
        expected_tokens=choice.expected_tokens,
        lookups=moved.lookups,
        hits=moved.hits,
        misses=moved.misses,
        bytes=moved.bytes,
        prefetched=moved.prefetched,
        prefetch_hits=moved.prefetch_hits,
        prefetch_bytes=moved.prefetch_bytes,
        wasted_prefetch_bytes=moved.wasted_prefetch_bytes,
        hidden_seconds=moved.hidden_seconds,
        evictions=moved.evictions,
        bypassed=moved.bypassed,
        scratch_rounds=moved.scratch_rounds,
        draft_seconds=times.draft,
        search_seconds=times.search,
        transfer_seconds=times.waited,
        verify_seconds=times.compute,
        other_seconds=times.other,
    )
