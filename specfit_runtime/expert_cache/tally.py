"""The running counts of an expert cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .counters import CacheCounters


@dataclass
class Tally:
    """Counts what happens; the lists hold one number per layer.

    Attributes
    ----------
    hits, misses, prefetched, wasted : list of int, shape (L,)
        Experts found, loaded when they were used, fetched early, and of those not used in their
        pass.
    prefetch_hits, evictions, bypassed, scratch_rounds : int
        As in :class:`CacheCounters`.
    hidden_seconds : float
        Likewise.
    """

    hits: list[int]
    misses: list[int]
    prefetched: list[int]
    wasted: list[int]
    prefetch_hits: int = 0
    evictions: int = 0
    bypassed: int = 0
    scratch_rounds: int = 0
    hidden_seconds: float = 0.0

    @classmethod
    def of(cls, n_layers: int) -> Tally:
        """Return zeros."""
        return cls([0] * n_layers, [0] * n_layers, [0] * n_layers, [0] * n_layers)

    def counters(self, moved: Sequence[int], wait_seconds: float) -> CacheCounters:
        """Return the sums.

        Parameters
        ----------
        moved : sequence of int, shape (L,)
            Bytes that loading one expert of each layer moves.
        wait_seconds : float
        """

        def n_bytes(counts: Sequence[int]) -> int:
            return sum(n * b for n, b in zip(counts, moved, strict=True))

        hits, misses = sum(self.hits), sum(self.misses)
        return CacheCounters(
            lookups=hits + misses,
            hits=hits,
            misses=misses,
            evictions=self.evictions,
            bytes=n_bytes(self.prefetched) + n_bytes(self.misses),
            prefetched=sum(self.prefetched),
            prefetch_hits=self.prefetch_hits,
            prefetch_bytes=n_bytes(self.prefetched),
            wasted_prefetch_bytes=n_bytes(self.wasted),
            bypassed=self.bypassed,
            scratch_rounds=self.scratch_rounds,
            wait_seconds=wait_seconds,
            hidden_seconds=self.hidden_seconds,
        )
