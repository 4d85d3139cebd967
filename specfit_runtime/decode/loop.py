"""The loop over cycles: draft as far as it pays, choose, verify, commit, learn."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..calibration import CycleMeasurement
from ..expert_union import expert_union
from ..policies import Choice, Outcome
from ..report import CycleRecord, PrefillRecord
from ..verify import Accepted, ForwardResult, TargetSession, accept
from .learned import Learned
from .prefetch import Prefetcher
from .request import Request
from .view import CycleView, Prices

if TYPE_CHECKING:
    from ..expert_cache import CacheCounters
    from ..offload import Offload


class DecodeLoop:
    """One text, from its prompt to its end.

    Parameters
    ----------
    model : PreTrainedModel
        From `load_offloaded`.
    offload : Offload
        The model's.
    request : Request
    learned : Learned
        Is used and taught.
    prefetcher : Prefetcher
        Likewise.

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
        learned: Learned,
        prefetcher: Prefetcher,
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
        self._settled = self._seconds = 0.0
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

    def _prefill(self) -> bool:
        request, learned, cache = self._request, self._learned, self._offload.cache
        begin = perf_counter()
        before = cache.counters()
        cache.begin_pass()
        prompt = request.prompt
        result = self._session.prefill(prompt.new_ids, chunk=prompt.chunk)
        taken = self._accept(result, [int(self.ids[0, -1])], [-1])
        new = prompt.new_ids[0].tolist()
        learned.torn = True
        predictor = learned.predictor
        predictor.start(self._offload.n_layers, self._offload.n_experts, self._offload.top_k)
        self._observe_routing(new, result)
        learned.policy.start()
        if learned.drafter is not None and not taken.finished:
            learned.drafter.start([*new, *taken.tokens], result.features)
        learned.torn = False
        moved = cache.counters() - before
        self._settled = perf_counter()
        self.prefill = PrefillRecord(
            tokens=len(new),
            seconds=self._settled - begin,
            transfer_seconds=moved.wait_seconds,
            lookups=moved.lookups,
            hits=moved.hits,
            misses=moved.misses,
            bytes=moved.bytes,
        )
        return taken.finished

    def _cycle(self) -> bool:
        learned, cache = self._learned, self._offload.cache
        begin = perf_counter()
        # What was learned from the last cycle was learned after that one's account was closed.
        late = begin - self._settled
        cache.begin_pass()
        before = cache.counters()
        resident = cache.resident.copy()
        root = int(self.ids[0, -1])
        learned.torn = True
        view = CycleView(
            root,
            learned.drafter,
            learned.predictor,
            learned.calibrator,
            self._prices(resident),
            self._levels_left(),
        )
        choice = learned.policy.choose(view)
        nodes = choice.nodes
        tokens, parent = _subtree(view, nodes)
        if self._prefetcher.wanted:
            self._prefetcher.issue(cache, view.experts()[nodes])
        learned.torn = False
        chosen = perf_counter()
        result = self._session.verify(tokens, parent)
        if self._offload.device.type == "cuda":
            # Else what the device still computes would be charged to whatever reads a result first.
            # Not the whole device: what was prefetched in vain may still be on its way.
            torch.cuda.current_stream(self._offload.device).synchronize()
        verified = perf_counter()
        waited = (cache.counters() - before).wait_seconds
        taken = self._accept(result, tokens, parent)
        self._session.commit(taken.rows)
        learned.torn = True
        self._tell_drafter(view, taken, nodes, result)
        self._observe_routing(tokens, result)
        accepted = nodes[list(taken.rows)]
        if view.levels:
            learned.calibrator.observe(
                view.parent, view.token, view.prob, accepted.tolist(), taken.tokens
            )
        used = expert_union(result.experts, self._offload.n_experts)
        misses = (used & ~resident).sum(axis=1)
        # Where the policy asked no predictions, none are made for it here either.
        predicted = expert_union(view.experts()[nodes], len(used[0])) if view.predicted else None
        self._prefetcher.learn(predicted, used, resident, verified - chosen - waited)
        # What was prefetched in vain is in this cycle's account, not in none.
        cache.end_pass(len(taken.tokens))
        moved = cache.counters() - before
        end = self._settled = perf_counter()

        draft_seconds = view.draft_time
        search_seconds = max(chosen - begin - draft_seconds, 0.0)
        compute_seconds = max(verified - chosen - waited, 0.0)
        other_seconds = max(end - verified, 0.0) + late
        seconds = end - begin + late
        if learned.correction is not None:
            expected = misses if predicted is None else (predicted & ~resident).sum(axis=1)
            learned.correction.update(
                CycleMeasurement(
                    n_nodes=len(nodes),
                    predicted_misses=expected,
                    realised_misses=misses,
                    compute_seconds=compute_seconds,
                    wait_seconds=waited,
                    draft_seconds=tuple(view.level_seconds),
                    search_seconds=search_seconds,
                    other_seconds=other_seconds,
                )
            )
        learned.policy.observe(
            Outcome(
                choice=choice,
                levels=view.levels,
                accepted=accepted,
                committed=len(taken.tokens),
                experts=result.experts,
                misses=misses,
                seconds=seconds,
                draft_seconds=draft_seconds,
                search_seconds=search_seconds,
                verify_seconds=compute_seconds,
                transfer_seconds=waited,
            )
        )
        learned.torn = False
        self.cycles.append(
            _record(
                position=self._tokens + 1,
                view=view,
                choice=choice,
                taken=taken,
                moved=moved,
                draft_seconds=draft_seconds,
                search_seconds=search_seconds,
                transfer_seconds=waited,
                verify_seconds=compute_seconds,
                other_seconds=other_seconds,
            )
        )
        self._tokens += len(taken.tokens)
        self._seconds += seconds
        return taken.finished

    def _prices(self, resident: NDArray[np.bool_]) -> Prices:
        correction = self._learned.correction
        return Prices(
            cost_model=None if correction is None else correction.cost_model(),
            level_time=None if correction is None else correction.level_time,
            resident=resident,
            slots=self._slots,
            cache_policy=self._offload.cache.policy,
            rate=self._tokens / self._seconds if self._tokens else None,
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
        # A policy that asks for no prediction should not pay for it; prefetching asks as well.
        if self._learned.policy.predicts or self._prefetcher.wanted:
            self._learned.predictor.observe(tokens, result.experts)

    def _tell_drafter(
        self, view: CycleView, taken: Accepted, nodes: NDArray[np.int64], result: ForwardResult
    ) -> None:
        drafter = self._learned.drafter
        if drafter is None or taken.finished:
            return
        features = result.features
        rows = list(taken.rows)
        drafter.commit(taken.tokens, None if features is None else features[rows])
        if (view.parent[nodes] == 0).any():
            drafter.note_acceptance(1, int(len(rows) > 1))


def _subtree(view: CycleView, nodes: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Return tokens and parents of the chosen nodes, numbered among themselves."""
    if len(nodes) == 1:
        return [int(view.token[0])], [-1]
    number = np.full(len(view.token) + 1, -1, dtype=np.int64)
    number[nodes] = np.arange(len(nodes))
    # The root's parent, -1, is the entry behind the last.
    return view.token[nodes].tolist(), number[view.parent[nodes]].tolist()


def _record(
    *,
    position: int,
    view: CycleView,
    choice: Choice,
    taken: Accepted,
    moved: CacheCounters,
    **seconds: float,
) -> CycleRecord:
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
        evictions=moved.evictions,
        bypassed=moved.bypassed,
        scratch_rounds=moved.scratch_rounds,
        **seconds,
    )
