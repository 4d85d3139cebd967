"""How long bringing in one expert takes, as the store's own counters have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..stores.expert_store import ExpertStore

#: What a pass is still worth one pass later; together they weigh as much as the last 16.
_KEEP = 15.0 / 16.0


class TransferPace:
    """Seconds per byte over the last passes; 0 before the first transfer.

    Parameters
    ----------
    store : ExpertStore
    """

    def __init__(self, store: ExpertStore) -> None:
        self._store = store
        self._last = store.counters()
        self._bytes = self._seconds = 0.0

    def look(self) -> None:
        """Take in what was moved since the last look."""
        now = self._store.counters()
        moved, self._last = now - self._last, now
        if moved.bytes > 0:
            self._bytes = _KEEP * self._bytes + moved.bytes
            self._seconds = _KEEP * self._seconds + moved.seconds

    def seconds(self, layer: int) -> float:
        """Return how long one expert of a layer takes."""
        if not self._bytes:
            return 0.0
        return float(self._store.moved_bytes[layer]) * self._seconds / self._bytes
