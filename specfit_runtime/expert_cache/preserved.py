"""Uses an expert cache on the side, for instance to measure, and leaves it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cache import ExpertCache


@contextmanager
def preserved(cache: ExpertCache) -> Iterator[None]:
    """Restore at the end of the block which experts are there, who goes next, and the counters.

    Whatever a pass prefetched before the block counts as used or wasted then. Experts that the
    block lost are fetched again; one that cannot be is left out, and its next use says why. After
    an interrupt they are still on their way when the block is left.

    Parameters
    ----------
    cache : ExpertCache

    Notes
    -----
    Experts may come back in other slots than before. The store's own counters go on counting: they
    say what was moved, and it was.
    """
    before = cache.snapshot()
    wait = False
    try:
        yield
        wait = True
    except Exception:
        wait = True
        raise
    finally:
        cache.restore(before, wait=wait)
