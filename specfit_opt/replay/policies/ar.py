"""Plain autoregressive decoding: no drafting, one token per pass."""

from __future__ import annotations

from ..pool import Pool
from .registry import Choice, PassState, Policy, PolicyKind


class Autoregressive(Policy):
    """Verify the root alone and draft nothing."""

    name = "ar"
    fixed = True

    def choose(self, pool: Pool, state: PassState) -> Choice:
        """Return the root."""
        return Choice(pool.tree.parent < 0, 0)


def _make(number: int | None, objective: str) -> Policy:
    return Autoregressive()


KIND = PolicyKind(
    name="ar",
    make=_make,
    summary="plain decoding: no draft, one token per pass",
    source="reference semantics of the trace format",
)
