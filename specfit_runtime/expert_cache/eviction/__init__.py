"""The eviction policies: one file and one entry here each."""

from __future__ import annotations

from typing import Any

from ...errors import InvalidInputError
from . import admit, fifo, lfu, lru, lru_2
from .registry import EvictionKind, EvictionPolicy

#: Every eviction policy by name.
EVICTION_POLICIES: dict[str, EvictionKind] = {
    module.POLICY.name: module.POLICY for module in (lru, lru_2, lfu, fifo, admit)
}

#: What loads least on the traces and texts of docs/replay.
DEFAULT_EVICTION = "lfu"


def get_eviction_policy(name: Any) -> EvictionKind:
    """Return the eviction policy registered as ``name``.

    Raises
    ------
    InvalidInputError
        If there is none; the message lists the names.
    """
    kind = EVICTION_POLICIES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InvalidInputError(
            f"cache policy {name!r} is unknown; the cache policies are "
            f"{', '.join(EVICTION_POLICIES)}"
        )
    return kind


__all__ = [
    "DEFAULT_EVICTION",
    "EVICTION_POLICIES",
    "EvictionKind",
    "EvictionPolicy",
    "get_eviction_policy",
]
