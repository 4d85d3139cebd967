"""What an expert cache did, as numbers."""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class CacheCounters:
    """Sums since the cache was made or reset; subtract two to get what happened in between.

    Always ``lookups == hits + misses``.

    Attributes
    ----------
    lookups : int
        Experts asked for, each once per layer and pass, however many tokens use it.
    hits : int
        Lookups that found the expert in a slot, or on its way into one.
    misses : int
        Lookups that had to fetch the expert.
    evictions : int
        Experts that lost their slot to another.
    bytes : int
        What misses and prefetches moved over the store's link.
    prefetched : int
        Experts fetched early, before their layer asked for them.
    prefetch_hits : int
        Of those, the ones used in the pass that they were fetched for; they are hits too.
    prefetch_bytes : int
        What prefetches moved, a part of ``bytes``.
    wasted_prefetch_bytes : int
        Of those, the bytes of experts that their layer then did not use. Such an expert may serve
        a later pass, as a plain hit.
    bypassed : int
        Misses that went through the scratch slab and left nothing behind.
    scratch_rounds : int
        How often the scratch slab was filled for them.
    wait_seconds : float
        Time for which compute stood still for want of weights.
    hidden_seconds : float
        Time for which compute would have stood still without prefetches, estimated: of each hit by
        prefetch the mean time of a transfer, less the time that it was waited for. On a CUDA device
        one that was still on its way counts for nothing.
    """

    lookups: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    bytes: int = 0
    prefetched: int = 0
    prefetch_hits: int = 0
    prefetch_bytes: int = 0
    wasted_prefetch_bytes: int = 0
    bypassed: int = 0
    scratch_rounds: int = 0
    wait_seconds: float = 0.0
    hidden_seconds: float = 0.0

    def __sub__(self, earlier: CacheCounters) -> CacheCounters:
        return CacheCounters(*(a - b for a, b in zip(astuple(self), astuple(earlier), strict=True)))

    @property
    def hit_rate(self) -> float | None:
        """Hits per lookup; None before the first lookup."""
        return self.hits / self.lookups if self.lookups else None
