"""Fetching experts early: before their layer asks for them, within the pass that uses them.

While a layer waits for its experts and computes with them, the router of the next layer, applied to
the states at hand, says which experts are probably coming. Those that are missing, and whose chance
to be used times the time that this hides outweighs what a fetch in vain costs, are fetched behind
all others.
"""

from __future__ import annotations

from .prefetcher import Prefetcher

__all__ = ["Prefetcher"]
