"""The simulated expert caches: one file and one entry here each."""

from __future__ import annotations

from ...errors import InvalidInputError
from . import admit, belady, fifo, lfu, lru, lru_2, resident
from .registry import Cache, CacheKind

#: Every kind of cache by name.
CACHES: dict[str, CacheKind] = {
    module.CACHE.name: module.CACHE for module in (lru, lru_2, lfu, fifo, admit, belady, resident)
}


def get_cache(name: str) -> CacheKind:
    """Return the kind of cache registered as ``name``.

    Raises
    ------
    InvalidInputError
        If there is none; the message lists the names.
    """
    try:
        return CACHES[name]
    except KeyError:
        raise InvalidInputError(
            f"cache policy {name!r} is unknown; the cache policies are {', '.join(CACHES)}"
        ) from None


__all__ = ["CACHES", "Cache", "CacheKind", "get_cache"]
